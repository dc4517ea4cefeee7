//! Which entries of an archive are not restored.
//!
//! The list that `pg_restore` prints has a line for each entry: its number, two numbers of the catalogue, what it is, its
//! schema or `-`, its name, its owner. Only what is before the name is read: a name may be made to look like anything.

use super::job::ClonePlan;

/// Entries that only a superuser could restore, or that lead out of the sandbox.
const NEVER: [&str; 10] = [
    "EVENT TRIGGER ",
    "COMMENT - EVENT TRIGGER ",
    "FOREIGN DATA WRAPPER ",
    "COMMENT - FOREIGN DATA WRAPPER ",
    "SERVER ",
    "COMMENT - SERVER ",
    "USER MAPPING ",
    "SUBSCRIPTION ",
    "PUBLICATION ",
    "SECURITY LABEL ",
];

/// What is left out of an archive.
#[derive(Debug, Default)]
pub(super) struct Filter {
    /// Beginnings of entries.
    prefixes: Vec<String>,
    needed: bool,
}

impl Filter {
    /// Returns what must be left out of a source's archive.
    pub(super) fn of(plan: &ClonePlan) -> Self {
        let mut prefixes: Vec<String> = NEVER.map(str::to_owned).to_vec();
        for name in plan.excluded_extensions.iter().chain(&plan.by_admin) {
            prefixes.push(format!("EXTENSION - {name} "));
            prefixes.push(format!("COMMENT - EXTENSION {name} "));
        }
        // The admin made these schemas with its extensions.
        let schemas = plan.extensions.iter().filter(|(name, _)| plan.by_admin.contains(name)).map(|(_, schema)| schema);
        prefixes.extend(schemas.map(|schema| format!("SCHEMA - {schema} ")));
        let needed = plan.event_triggers
            || plan.foreign_servers
            || !plan.excluded_extensions.is_empty()
            || !plan.by_admin.is_empty();
        Self { prefixes, needed }
    }

    /// Returns whether a source has nothing that must be left out.
    pub(super) fn is_empty(&self) -> bool {
        !self.needed
    }

    /// Returns the list without the lines of what is left out.
    pub(super) fn apply(&self, list: Vec<u8>) -> Vec<u8> {
        let mut kept = Vec::with_capacity(list.len());
        for line in list.split_inclusive(|byte| *byte == b'\n') {
            if !entry(line).is_some_and(|entry| self.prefixes.iter().any(|p| entry.starts_with(p.as_bytes()))) {
                kept.extend_from_slice(line);
            }
        }
        kept
    }
}

/// Returns the name of an extension that an archive makes and that is not among those known.
pub(super) fn extension_beside(list: &[u8], known: &[(String, String)]) -> Option<String> {
    let extension = |line| entry(line)?.strip_prefix(b"EXTENSION - ");
    let name = |rest: &[u8]| String::from_utf8_lossy(rest).trim_end().to_owned();
    let beside = |name: &String| !known.iter().any(|(known, _)| known == name);
    let found = list.split(|byte| *byte == b'\n').filter_map(extension).map(name).find(beside)?;
    Some(found.chars().take(63).flat_map(char::escape_default).collect())
}

/// Returns what stands behind the three numbers of a line; `None` for a line that is no entry's.
fn entry(line: &[u8]) -> Option<&[u8]> {
    let digits = |part: &[u8]| !part.is_empty() && part.iter().all(u8::is_ascii_digit);
    let mut parts = line.splitn(4, |byte| *byte == b' ');
    let (number, first, second) = (parts.next()?, parts.next()?, parts.next()?);
    (digits(number.strip_suffix(b";")?) && digits(first) && digits(second)).then_some(())?;
    parts.next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_only_a_superuser_could_restore_is_left_out_and_nothing_that_looks_like_it() {
        let list = b";\n; Archive created at now\n;\n\
            2; 3079 16385 EXTENSION - postgis \n\
            3; 3079 16386 EXTENSION - citext \n\
            3460; 0 0 COMMENT - EXTENSION postgis \n\
            215; 1259 16400 TABLE public EVENT TRIGGER x ana\n\
            216; 1417 16401 SERVER - elsewhere ana\n\
            217; 1418 16402 USER MAPPING - USER MAPPING ana SERVER elsewhere ana\n\
            218; 3466 16403 EVENT TRIGGER - guard ana\n\
            219; 2615 16404 SCHEMA - geo ana\n\
            220; 2615 16405 SCHEMA - geography ana\n";
        let plan = ClonePlan {
            extensions: vec![("postgis".into(), "geo".into()), ("citext".into(), "public".into())],
            by_admin: vec!["postgis".into()],
            ..ClonePlan::default()
        };
        let filter = Filter::of(&plan);
        assert!(!filter.is_empty());
        let kept = String::from_utf8(filter.apply(list.to_vec())).unwrap();
        let kept: Vec<_> = kept.lines().filter(|line| !line.starts_with(';')).collect();
        assert_eq!(
            kept,
            [
                "3; 3079 16386 EXTENSION - citext ",
                "215; 1259 16400 TABLE public EVENT TRIGGER x ana",
                "220; 2615 16405 SCHEMA - geography ana"
            ]
        );
    }

    #[test]
    fn an_extension_that_is_not_named_is_found_and_nothing_that_looks_like_one() {
        let list = b";\n2; 3079 16385 EXTENSION - citext \n3460; 0 0 COMMENT - EXTENSION x \n\
            215; 1259 16400 TABLE public EXTENSION - x ana\n";
        let known = [("citext".to_owned(), "public".to_owned())];
        assert_eq!(extension_beside(list, &known), None);
        assert_eq!(extension_beside(list, &[]), Some("citext".to_owned()));
    }

    #[test]
    fn a_source_with_nothing_of_the_kind_is_not_filtered() {
        assert!(Filter::of(&ClonePlan::default()).is_empty());
    }
}
