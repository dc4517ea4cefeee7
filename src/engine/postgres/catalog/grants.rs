//! Says in words what an access control list grants, beyond what everybody has anyway.
//!
//! The owner's own rights are told only where some are missing, and the reader's never: those are given, and given again,
//! by this program. A list that says what the default says is none. So a list that was written out, by any grant, and one
//! that never was are the same, and a right that only later servers know does not show as a difference.

use std::collections::BTreeMap;

use super::{OWNER, role};
use crate::model::SandboxNames;

/// A right that relations have since 17; before, whoever has all others may do what it allows.
const MAINTAIN: char = 'm';
const MAINTAIN_SINCE: u16 = 17;

/// What rights are granted on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Grantable {
    Table,
    Column,
    Sequence,
    Function,
    Schema,
    Type,
    Language,
    Wrapper,
    Server,
    /// What objects to come in one schema are given on top of all else; the owner has everything anyway.
    ToCome,
}

/// The letter and the word of every right.
const RIGHTS: [(char, &str); 14] = [
    ('r', "SELECT"),
    ('a', "INSERT"),
    ('w', "UPDATE"),
    ('d', "DELETE"),
    ('D', "TRUNCATE"),
    ('x', "REFERENCES"),
    ('t', "TRIGGER"),
    (MAINTAIN, "MAINTAIN"),
    ('X', "EXECUTE"),
    ('U', "USAGE"),
    ('C', "CREATE"),
    ('c', "CONNECT"),
    ('T', "TEMPORARY"),
    ('s', "SET"),
];

impl Grantable {
    /// Returns the letters of every right that there is on it, `MAINTAIN` apart.
    const fn all(self) -> &'static str {
        match self {
            Self::Table => "arwdDxt",
            Self::Column => "arwx",
            Self::Sequence => "rwU",
            Self::Function => "X",
            Self::Schema => "UC",
            Self::Type | Self::Language | Self::Wrapper | Self::Server => "U",
            Self::ToCome => "",
        }
    }

    /// Returns the letters of what everybody has unless it is taken away.
    const fn of_everybody(self) -> &'static str {
        match self {
            Self::Function => "X",
            Self::Type | Self::Language => "U",
            Self::Table
            | Self::Column
            | Self::Sequence
            | Self::Schema
            | Self::Wrapper
            | Self::Server
            | Self::ToCome => "",
        }
    }

    /// Says what `list`, as Postgres writes it, grants; `None` if nothing but what is usual.
    pub(super) fn describe(self, list: Option<&str>, names: &SandboxNames, major: u16) -> Option<String> {
        let mut granted: BTreeMap<String, Vec<(char, bool)>> = BTreeMap::new();
        for item in items(list?) {
            let (grantee, rights) = read(&item)?;
            if grantee == names.readonly_role {
                continue;
            }
            let known =
                granted.entry(if grantee.is_empty() { "PUBLIC".into() } else { role(&grantee, names) }).or_default();
            for (letter, option) in rights {
                match known.iter_mut().find(|(known, _)| *known == letter) {
                    Some((_, before)) => *before |= option,
                    None => known.push((letter, option)),
                }
            }
        }
        let mut said = Vec::new();
        let owner = granted.remove(OWNER).unwrap_or_default();
        let missing: String = self.all().chars().filter(|right| !owner.iter().any(|(has, _)| has == right)).collect();
        if self != Self::Column && !missing.is_empty() {
            said.push(format!("not to {OWNER}: {}", self.words(missing.chars().map(|letter| (letter, false)), major)));
        }
        let everybody = granted.remove("PUBLIC").unwrap_or_default();
        let letters: String = everybody.iter().map(|(letter, _)| *letter).collect();
        if letters != self.of_everybody() && self != Self::Column {
            let words =
                if letters.is_empty() { "nothing".to_owned() } else { self.words(everybody.into_iter(), major) };
            said.push(format!("PUBLIC: {words}"));
        } else if self == Self::Column && !letters.is_empty() {
            said.push(format!("PUBLIC: {}", self.words(everybody.into_iter(), major)));
        }
        said.extend(
            granted.into_iter().map(|(who, rights)| format!("{who}: {}", self.words(rights.into_iter(), major))),
        );
        (!said.is_empty()).then(|| said.join("; "))
    }

    fn words(self, rights: impl Iterator<Item = (char, bool)>, major: u16) -> String {
        let mut rights: Vec<(char, bool)> = rights.collect();
        let has = |letter: char| rights.iter().any(|(has, _)| *has == letter);
        let option = rights.iter().all(|(_, option)| *option);
        let same = option || rights.iter().all(|(_, option)| !*option);
        let maintains = major < MAINTAIN_SINCE || has(MAINTAIN);
        if self == Self::Table && same && self.all().chars().all(has) && maintains {
            return if option { "ALL with grant option".to_owned() } else { "ALL".to_owned() };
        }
        rights.sort_by_key(|(letter, _)| RIGHTS.iter().position(|(known, _)| known == letter));
        let word = |(letter, option): (char, bool)| {
            let word = RIGHTS.iter().find(|(known, _)| *known == letter).map_or("another right", |(_, word)| word);
            if option { format!("{word} with grant option") } else { word.to_owned() }
        };
        rights.into_iter().map(word).collect::<Vec<_>>().join(", ")
    }
}

/// Returns the items of a list as Postgres writes it: `{a=r/b,"\"a b\"=r/b"}`.
fn items(list: &str) -> Vec<String> {
    let mut items = Vec::new();
    let (mut item, mut quoted, mut escaped) = (String::new(), false, false);
    for c in list.trim_start_matches('{').strip_suffix('}').unwrap_or_default().chars() {
        match c {
            _ if escaped => {
                item.push(c);
                escaped = false;
            }
            '\\' => escaped = true,
            '"' => quoted = !quoted,
            ',' if !quoted => items.push(std::mem::take(&mut item)),
            _ => item.push(c),
        }
    }
    if !item.is_empty() {
        items.push(item);
    }
    items
}

/// Reads an item: to whom (nobody for everybody) and which rights, each with whether it may be passed on.
fn read(item: &str) -> Option<(String, Vec<(char, bool)>)> {
    let (grantee, rest) = match item.strip_prefix('"') {
        None => item.split_once('=').map(|(name, rest)| (name.to_owned(), rest))?,
        Some(rest) => {
            // A quote within is doubled; the name ends at one that is not.
            let end = rest
                .match_indices("\"=")
                .map(|(at, _)| at)
                .find(|at| rest.get(..*at).is_some_and(|name| name.matches('"').count() % 2 == 0))?;
            (rest.get(..end)?.replace("\"\"", "\""), rest.get(end + 2..)?)
        }
    };
    let letters = rest.split('/').next()?;
    let mut rights: Vec<(char, bool)> = Vec::new();
    for c in letters.chars() {
        match (c, rights.last_mut()) {
            ('*', Some((_, option))) => *option = true,
            _ => rights.push((c, false)),
        }
    }
    Some((grantee, rights))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::SandboxId;

    fn check(on: Grantable, list: &str, major: u16, expected: Option<&str>) {
        let names = SandboxNames::new("p", None, SandboxId::fresh());
        let list = list.replace("OWNER", &names.owner_role).replace("READER", &names.readonly_role);
        assert_eq!(on.describe(Some(&list), &names, major).as_deref(), expected, "{list}");
    }

    #[test]
    fn what_is_usual_is_not_told() {
        check(Grantable::Table, "{OWNER=arwdDxt/OWNER,READER=r/OWNER}", 15, None);
        check(Grantable::Table, "{OWNER=arwdDxtm/OWNER,READER=r/OWNER}", 18, None);
        check(Grantable::Function, "{=X/OWNER,OWNER=X/OWNER}", 15, None);
        check(Grantable::Column, "{READER=r/OWNER}", 15, None);
        let names = SandboxNames::new("p", None, SandboxId::fresh());
        assert_eq!(Grantable::Function.describe(None, &names, 15), None);
    }

    #[test]
    fn what_is_granted_and_taken_away_is_told() {
        check(Grantable::Table, "{OWNER=arwdDxt/OWNER,=r/OWNER}", 15, Some("PUBLIC: SELECT"));
        check(
            Grantable::Table,
            "{OWNER=ar/OWNER}",
            15,
            Some("not to <owner>: UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER"),
        );
        check(Grantable::Function, "{OWNER=X/OWNER}", 15, Some("PUBLIC: nothing"));
        check(Grantable::Schema, "{OWNER=UC/OWNER,app=U*C/OWNER}", 15, Some("app: USAGE with grant option, CREATE"));
        check(Grantable::Column, "{=w/OWNER}", 15, Some("PUBLIC: UPDATE"));
    }

    #[test]
    fn all_is_all_on_every_server() {
        check(Grantable::Table, "{OWNER=arwdDxt/OWNER,app=arwdDxt/OWNER}", 15, Some("app: ALL"));
        check(Grantable::Table, "{OWNER=arwdDxtm/OWNER,app=arwdDxtm/OWNER}", 18, Some("app: ALL"));
    }

    #[test]
    fn names_of_any_letters_are_read() {
        let list = r#"{OWNER=U/OWNER,"\"a,\"\"b=\\\\\"=U/OWNER"}"#;
        check(Grantable::Server, list, 15, Some(r#""a,""b=\\": USAGE"#));
    }
}
