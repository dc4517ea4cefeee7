//! The digest of a schema: one checksum over all of it, and a short one for each object.
//!
//! What is hashed is a list of texts, each behind its length, in the schema's own order, behind the version of the form. A
//! change of what is read of the catalogue, or how it is written, is another version: digests of two are never compared.

use std::collections::BTreeMap;

use sha2::{Digest as _, Sha256};

use crate::model::{Schema, SchemaFilter, SchemaKey, SchemaKind, SchemaObject};

/// The version of the form.
pub const DIGEST_VERSION: u32 = 1;
/// The length of an object's fingerprint, in hexadecimal digits.
const FINGERPRINT_DIGITS: usize = 16;
/// The length of what a kept digest's handle tells of its checksum.
const HANDLE_DIGITS: usize = 24;
/// What a handle begins with.
pub const HANDLE_HEAD: &str = "digest-";

/// What is known of a schema without its texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchemaDigest {
    /// The version of its form.
    pub version: u32,
    /// SHA-256, in hexadecimal digits.
    pub checksum: String,
    /// Which part it is of.
    pub filter: SchemaFilter,
    /// A fingerprint for each object; a table's is also its columns'.
    pub fingerprints: BTreeMap<SchemaKey, String>,
}

impl SchemaDigest {
    /// Digests a schema, which is what there is within `filter`.
    pub fn of(schema: &Schema, filter: &SchemaFilter) -> Self {
        let mut whole = Sha256::new();
        whole.update(format!("pgsandbox schema digest {DIGEST_VERSION}\n"));
        let mut parts: BTreeMap<SchemaKey, Sha256> = BTreeMap::new();
        for object in schema.objects() {
            let hash = hash(object);
            whole.update(hash);
            parts.entry(told_as(schema, object)).or_default().update(hash);
        }
        let short = |hash: Sha256| hex(&hash.finalize(), FINGERPRINT_DIGITS);
        Self {
            version: DIGEST_VERSION,
            checksum: hex(&whole.finalize(), usize::MAX),
            filter: filter.clone(),
            fingerprints: parts.into_iter().map(|(key, hash)| (key, short(hash))).collect(),
        }
    }

    /// Returns the name under which the whole schema may be kept for its owner: the same for the same schema of one sandbox.
    pub fn handle(&self, sandbox_id: &str) -> String {
        let mut hash = Sha256::new();
        let (schema, table) = (self.filter.schema.as_deref(), self.filter.table.as_deref());
        for part in [schema, table, Some(self.checksum.as_str()), Some(sandbox_id)] {
            add(&mut hash, part.map_or("none", |_| "some"));
            add(&mut hash, part.unwrap_or_default());
        }
        format!("{HANDLE_HEAD}{}", hex(&hash.finalize(), HANDLE_DIGITS))
    }
}

/// Returns whether a text can be a handle.
pub fn is_handle(text: &str) -> bool {
    text.strip_prefix(HANDLE_HEAD).is_some_and(|rest| rest.len() == HANDLE_DIGITS && is_hex(rest))
}

/// Returns whether a text can be a checksum.
pub fn is_checksum(text: &str) -> bool {
    text.len() == 64 && is_hex(text)
}

fn is_hex(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

/// Returns the object that an object is told with: a column with its table or view, any other by itself.
pub(super) fn told_as(schema: &Schema, object: &SchemaObject) -> SchemaKey {
    let relations = [SchemaKind::Table, SchemaKind::View, SchemaKind::MaterializedView];
    let (SchemaKind::Column, Some(of)) = (object.key.kind, &object.of) else { return object.key.clone() };
    let relation = |kind| SchemaKey { kind, schema: object.key.schema.clone(), name: of.clone() };
    let found = relations.map(relation).into_iter().find(|key| schema.find(key).is_some());
    found.unwrap_or_else(|| object.key.clone())
}

fn hash(object: &SchemaObject) -> [u8; 32] {
    let mut hash = Sha256::new();
    for text in [object.key.kind.as_str(), &object.key.schema, &object.key.name] {
        add(&mut hash, text);
    }
    for (name, value) in &object.attributes {
        add(&mut hash, name);
        add(&mut hash, value);
    }
    hash.finalize().into()
}

fn add(hash: &mut Sha256, text: &str) {
    hash.update(u64::try_from(text.len()).unwrap_or(u64::MAX).to_be_bytes());
    hash.update(text.as_bytes());
}

/// Writes the first digits of a hash.
pub(in crate::sandbox) fn hex(bytes: &[u8], digits: usize) -> String {
    bytes
        .iter()
        .flat_map(|byte| [byte >> 4, byte & 15])
        .take(digits)
        .filter_map(|n| char::from_digit(n.into(), 16))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(kind: SchemaKind, name: &str, attributes: &[(&str, &str)]) -> SchemaObject {
        let attributes = attributes.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let of = (kind == SchemaKind::Column).then(|| "t".to_owned());
        SchemaObject { key: SchemaKey { kind, schema: "s".to_owned(), name: name.to_owned() }, of, attributes }
    }

    fn digest(objects: Vec<SchemaObject>) -> SchemaDigest {
        SchemaDigest::of(&Schema::new(objects), &SchemaFilter::default())
    }

    #[test]
    fn the_order_in_which_objects_come_does_not_count_and_everything_else_does() {
        let (a, b) = (object(SchemaKind::Table, "t", &[]), object(SchemaKind::View, "v", &[("definition", "x")]));
        let first = digest(vec![a.clone(), b.clone()]);
        assert_eq!(first, digest(vec![b.clone(), a.clone()]));
        for other in [
            vec![a.clone()],
            vec![a.clone(), object(SchemaKind::View, "v", &[("definition", "y")])],
            vec![a.clone(), object(SchemaKind::View, "v", &[("definitionx", "")])],
            vec![a.clone(), object(SchemaKind::View, "w", &[("definition", "x")])],
        ] {
            assert_ne!(first.checksum, digest(other).checksum);
        }
    }

    #[test]
    fn a_column_is_told_with_its_table() {
        let table = object(SchemaKind::Table, "t", &[]);
        let with = |kind: &str| digest(vec![table.clone(), object(SchemaKind::Column, "t.n", &[("type", kind)])]);
        let (before, after) = (with("integer"), with("bigint"));
        assert_eq!(before.fingerprints.keys().map(SchemaKey::path).collect::<Vec<_>>(), ["s.t"]);
        assert_ne!(before.fingerprints, after.fingerprints);
    }

    #[test]
    fn handles_are_told_from_checksums() {
        let digest = digest(Vec::new());
        assert!(is_handle(&digest.handle("a")) && !is_handle(&digest.checksum) && is_checksum(&digest.checksum));
        let part = SchemaFilter { schema: Some("s".to_owned()), table: None };
        assert_ne!(SchemaDigest::of(&Schema::default(), &part).handle("a"), digest.handle("a"));
        assert_ne!(digest.handle("b"), digest.handle("a"), "what is told of it is of one sandbox");
    }
}
