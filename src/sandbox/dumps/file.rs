//! The file that a template is exported to: one line that says what it is, a manifest, and the dump itself.
//!
//! The line holds the checksum of the manifest, and the manifest that of the dump. The dump begins at [`DUMP_AT`], so the
//! manifest is written last and read first, and is never larger than what lies before. A file may come from anywhere:
//! nothing in it is believed but what was compared, and whoever edits both can only change what is restored, not as whom.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::model::limits::NAME_BYTES_MAX;
use crate::sandbox::bounds;
use crate::sandbox::schema::is_checksum;

/// What a file begins with, and the version of its format.
const HEAD: &str = "pgsandbox template dump 1 ";
/// The length of the first line.
const HEAD_BYTES: usize = HEAD.len() + 64 + 1;
/// Where the dump begins.
pub(super) const DUMP_AT: u64 = 256 << 10;
/// The most that the manifest may take.
const MANIFEST_BYTES_MAX: usize = DUMP_AT as usize - HEAD_BYTES;
/// Extensions, settings and notices that a manifest may name.
const NAMED_MAX: usize = 500;
/// The longest text of a server's in it: a version, a locale, an extension's name.
const WORD_BYTES_MAX: usize = 128;
/// The longest value of a setting, and the longest comment.
const VALUE_BYTES_MAX: usize = 8 << 10;
/// The newest server there will be for long.
const MAJOR_MAX: u16 = 999;
/// What is read at once.
const CHUNK_BYTES: usize = 1 << 20;

/// What is known of an exported template beside its contents.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Manifest {
    /// What the template was called.
    pub template_name: String,
    /// Who made it, by its maker's word.
    pub created_by: Option<String>,
    /// What it is for, by its maker's word.
    pub notes: Option<String>,
    /// The labels of the data, which whatever is made of it bears; left out where there are none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// When it was exported, in milliseconds since 1970.
    pub exported_at_ms: i64,
    /// The server's version, as it says itself.
    pub postgres_version: String,
    /// The server's major version.
    pub postgres_major: u16,
    /// The version of `pg_dump`.
    pub dump_tool_version: String,
    /// The database's encoding.
    pub encoding: String,
    /// The database's collation.
    pub collation: String,
    /// The database's character classes.
    pub character_type: String,
    /// The extensions in it.
    pub extensions: Vec<ManifestExtension>,
    /// The database's own settings.
    pub settings: Vec<ManifestSetting>,
    /// The database's comment.
    pub comment: Option<String>,
    /// The version of both digests' form.
    pub digest_version: u32,
    /// The digest of the schema, apart from what no dump carries.
    pub schema_digest: String,
    /// The digest of what objects there are, and of what type columns are.
    pub shape_digest: String,
    /// Tables, partitioned ones and partitions included.
    pub tables: u64,
    /// Rows of all of them.
    pub rows: u64,
    /// Whether rows were counted, or are the server's estimates.
    pub rows_counted: bool,
    /// The database's size.
    pub database_bytes: u64,
    /// What the dump does not hold, in words.
    pub left_out: Vec<String>,
    /// The dump's length.
    pub dump_bytes: u64,
    /// The dump's SHA-256, in hexadecimal digits.
    pub dump_sha256: String,
}

/// An extension of a manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ManifestExtension {
    /// Its name.
    pub name: String,
    /// Its version where it was exported.
    pub version: String,
    /// The schema it is in.
    pub schema: String,
}

/// A setting of a manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ManifestSetting {
    /// The parameter.
    pub name: String,
    /// Its value, as the catalogue has it.
    pub value: String,
}

/// What is wrong with a file.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unsound {
    /// It is no such file, or one of another program.
    #[error("it is no exported template of this program's format")]
    Strange,
    /// The manifest is not what was written.
    #[error("its manifest does not fit its checksum, or is none")]
    Manifest,
    /// Something in the manifest is not as this program writes it.
    #[error("`{0}` of its manifest is not as this program writes it")]
    Field(&'static str),
    /// The dump is shorter or longer than the manifest says.
    #[error("its dump has {found} bytes, and its manifest says {said}")]
    Length {
        /// How many bytes there are.
        found: u64,
        /// How many there should be.
        said: u64,
    },
    /// The dump is not what was written.
    #[error("its dump does not fit its checksum")]
    Checksum,
    /// It cannot be read.
    #[error("it cannot be read")]
    Io(#[from] io::Error),
}

/// Writes the manifest of a file whose dump was written.
pub(super) fn write_manifest(file: &File, manifest: &Manifest) -> Result<(), Unsound> {
    manifest.check()?;
    let mut text = serde_json::to_vec_pretty(manifest).map_err(|_| Unsound::Manifest)?;
    if text.len() > MANIFEST_BYTES_MAX {
        return Err(Unsound::Field("extensions"));
    }
    text.resize(MANIFEST_BYTES_MAX - 1, b' ');
    text.push(b'\n');
    let mut whole = format!("{HEAD}{}\n", digits(&Sha256::digest(&text))).into_bytes();
    whole.extend_from_slice(&text);
    Ok(file.write_all_at(&whole, 0)?)
}

/// Reads the manifest of a file, and finds that the dump behind it is as long as it says.
pub(super) fn read_manifest(file: &File) -> Result<Manifest, Unsound> {
    let length = file.metadata()?.len();
    let mut whole = vec![0; HEAD_BYTES + MANIFEST_BYTES_MAX];
    file.read_exact_at(&mut whole, 0).map_err(|error| {
        let is_short = error.kind() == io::ErrorKind::UnexpectedEof;
        if is_short { Unsound::Strange } else { Unsound::Io(error) }
    })?;
    let (head, text) = whole.split_at(HEAD_BYTES);
    let said = std::str::from_utf8(head).ok().and_then(|head| head.strip_prefix(HEAD)?.strip_suffix('\n'));
    let said = said.filter(|said| is_checksum(said)).ok_or(Unsound::Strange)?;
    if said != digits(&Sha256::digest(text)) {
        return Err(Unsound::Manifest);
    }
    let manifest: Manifest = serde_json::from_slice(text).map_err(|_| Unsound::Manifest)?;
    manifest.check()?;
    let found = length.saturating_sub(DUMP_AT);
    if found != manifest.dump_bytes {
        return Err(Unsound::Length { found, said: manifest.dump_bytes });
    }
    Ok(manifest)
}

/// Finds that the dump is the one that the manifest was written for. Reads all of it.
pub(super) fn verify(file: &File, manifest: &Manifest) -> Result<(), Unsound> {
    let (mut hash, mut at) = (Sha256::new(), DUMP_AT);
    let end = DUMP_AT.saturating_add(manifest.dump_bytes);
    let mut chunk = vec![0; CHUNK_BYTES];
    while at < end {
        let read = file.read_at(&mut chunk, at)?;
        let part = chunk.get(..read).unwrap_or_default();
        if part.is_empty() {
            return Err(Unsound::Length { found: at - DUMP_AT, said: manifest.dump_bytes });
        }
        hash.update(part);
        at += read as u64;
    }
    if at == end && digits(&hash.finalize()) == manifest.dump_sha256 { Ok(()) } else { Err(Unsound::Checksum) }
}

/// Writes a hash in digits.
fn digits(hash: &[u8]) -> String {
    crate::sandbox::schema::hex(hash, usize::MAX)
}

impl Manifest {
    /// Finds what is not as it is written: names and lengths that would be trusted further on.
    fn check(&self) -> Result<(), Unsound> {
        let field = |name, holds: bool| if holds { Ok(()) } else { Err(Unsound::Field(name)) };
        let word = |text: &str| text.len() <= WORD_BYTES_MAX && !text.chars().any(char::is_control);
        let value = |text: &str| text.len() <= VALUE_BYTES_MAX && !text.contains('\0');
        field("templateName", bounds::check_template_name(&self.template_name).is_ok())?;
        let by = self.created_by.as_deref().unwrap_or_default();
        field("createdBy", by.len() <= NAME_BYTES_MAX && !by.contains('\0'))?;
        field("notes", bounds::check_notes(self.notes.as_deref()).is_ok())?;
        let labels: Vec<_> = self.labels.clone().into_iter().collect();
        field("labels", bounds::check_labels(&labels).is_ok())?;
        field("postgresVersion", word(&self.postgres_version))?;
        field("postgresMajor", (1..=MAJOR_MAX).contains(&self.postgres_major))?;
        field("dumpToolVersion", word(&self.dump_tool_version))?;
        field("encoding", word(&self.encoding))?;
        field("collation", word(&self.collation))?;
        field("characterType", word(&self.character_type))?;
        let names = |e: &ManifestExtension| {
            [&e.name, &e.version, &e.schema].into_iter().all(|text| !text.is_empty() && word(text))
        };
        field("extensions", self.extensions.len() <= NAMED_MAX && self.extensions.iter().all(names))?;
        let setting = |s: &ManifestSetting| !s.name.is_empty() && word(&s.name) && value(&s.value);
        field("settings", self.settings.len() <= NAMED_MAX && self.settings.iter().all(setting))?;
        field("comment", self.comment.as_deref().is_none_or(value))?;
        field("schemaDigest", is_checksum(&self.schema_digest))?;
        field("shapeDigest", is_checksum(&self.shape_digest))?;
        field("leftOut", self.left_out.len() <= NAMED_MAX && self.left_out.iter().all(|text| value(text)))?;
        field("dumpSha256", is_checksum(&self.dump_sha256))
    }
}

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;
