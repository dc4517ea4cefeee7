//! How a sandbox's database and roles are named.
//!
//! A name is `<prefix>_<slug of the hint>_<ten digits of the id>`; the owner role adds `_role`, its
//! read-only companion `_ro`. While a database is filled from elsewhere its owner role has other names, `_f1`, `_f2` and
//! so on. Every name fits Postgres' 63 bytes with the id whole, and consists of lower-case ASCII letters, digits and `_`,
//! so it never needs quoting.

use super::SandboxId;

/// The longest identifier Postgres keeps, in bytes (`NAMEDATALEN - 1`).
const IDENTIFIER_BYTES_MAX: usize = 63;
/// The longest suffix a role's name adds to its database's: `_role`, `_f255`.
const SUFFIX_BYTES_MAX: usize = 5;
/// The longest prefix a profile may configure, in bytes; it leaves room for a slug.
pub const PREFIX_BYTES_MAX: usize = 24;

/// The names that one sandbox has on its server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SandboxNames {
    /// The database, and the sandbox's name to callers.
    pub database: String,
    /// The login role that owns the database.
    pub owner_role: String,
    /// The login role for read-only calls; owns nothing.
    pub readonly_role: String,
}

impl SandboxNames {
    /// Names a sandbox. `prefix` has passed [`prefix_fault`]; `hint` may be any text.
    pub fn new(prefix: &str, hint: Option<&str>, id: SandboxId) -> Self {
        let short = id.short();
        let fixed = prefix.len() + 1 + short.len() + SUFFIX_BYTES_MAX;
        let room = IDENTIFIER_BYTES_MAX.saturating_sub(fixed + 1);
        let slug = slug(hint.unwrap_or_default(), room);
        let database = if slug.is_empty() { format!("{prefix}_{short}") } else { format!("{prefix}_{slug}_{short}") };
        Self { owner_role: format!("{database}_role"), readonly_role: format!("{database}_ro"), database }
    }
}

impl SandboxNames {
    /// Returns whether these can be the names of sandbox `id` under `prefix`.
    pub fn belong_to(&self, prefix: &str, id: SandboxId) -> bool {
        let own =
            self.database.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('_') && rest.ends_with(&id.short()));
        let roles = self.owner_role == format!("{}_role", self.database)
            && self.readonly_role == format!("{}_ro", self.database);
        let letters = self.database.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
        own && roles && letters && !prefix.is_empty()
    }
}

impl SandboxNames {
    /// Returns what the owner role is called after its database was opened `times` times to be filled.
    ///
    /// A login that somebody has begun under one name ends under it, or not at all: each opening has a name of its own.
    pub fn filling_role(&self, times: u8) -> String {
        format!("{}{FILLING}{times}", self.database)
    }

    /// Returns the regular expression, as Postgres writes them, that these names match and no other.
    pub fn filling_pattern(&self) -> String {
        // Its letters mean nothing there.
        format!("^{}{FILLING}[0-9]{{1,3}}$", self.database)
    }

    /// Returns whether a role is one of the sandbox's, under whatever name.
    pub fn is_own_role(&self, role: &str) -> bool {
        role == self.owner_role
            || role == self.readonly_role
            || settled_role(role).is_some_and(|settled| settled == self.owner_role)
    }
}

/// What stands between a database's name and how often it was opened to be filled.
const FILLING: &str = "_f";

/// Returns what an owner role that is called so while its database is filled is called afterwards.
pub fn settled_role(name: &str) -> Option<String> {
    let (database, times) = name.rsplit_once(FILLING)?;
    times.parse::<u8>().ok().map(|_| format!("{database}_role"))
}

/// Returns the regular expression, as Postgres writes them, that the roles of a prefix' sandboxes match, and no operator's
/// role of any other form, though it begins alike: the admin's own is `pgsandbox_admin` on a managed cluster.
pub fn role_pattern(prefix: &str) -> String {
    // The prefix has passed `prefix_fault`: none of its characters means anything here.
    format!("^{prefix}_([a-z0-9_]+_)?[0-9a-f]{{10}}_(ro(le)?|f[0-9]{{1,3}})$")
}

/// Says what is wrong with a configured prefix, if anything.
pub fn prefix_fault(prefix: &str) -> Option<String> {
    let letters = prefix.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
    let first = prefix.bytes().next().is_some_and(|b| b.is_ascii_lowercase());
    let reserved = prefix == "pg" || prefix.starts_with("pg_");
    if prefix.len() <= PREFIX_BYTES_MAX && letters && first && !reserved && !prefix.ends_with('_') {
        return None;
    }
    Some(format!(
        "database prefix `{}` is not 1 to {PREFIX_BYTES_MAX} lower-case letters, digits or `_`, starting with a letter, \
         not ending in `_`, and not `pg` or `pg_…`",
        prefix.escape_default()
    ))
}

/// Reduces `hint` to at most `bytes_max` bytes of lower-case ASCII letters, digits and single `_`.
fn slug(hint: &str, bytes_max: usize) -> String {
    let mut out = String::with_capacity(bytes_max);
    for c in hint.chars() {
        let c = c.to_ascii_lowercase();
        if out.len() >= bytes_max {
            break;
        }
        if c.is_ascii_alphanumeric() {
            out.push(c);
        } else if !out.is_empty() && !out.ends_with('_') {
            out.push('_');
        }
    }
    out.truncate(out.trim_end_matches('_').len());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(hint: &str, expected_slug: &str) {
        let id = SandboxId::fresh();
        let names = SandboxNames::new("pgsb", Some(hint), id);
        let expected = if expected_slug.is_empty() {
            format!("pgsb_{}", id.short())
        } else {
            format!("pgsb_{expected_slug}_{}", id.short())
        };
        assert_eq!(names.database, expected);
        for name in [&names.database, &names.owner_role, &names.readonly_role, &names.filling_role(u8::MAX)] {
            assert!(name.len() <= IDENTIFIER_BYTES_MAX, "{name}");
            assert!(name.contains(&id.short()), "{name}");
        }
    }

    #[test]
    fn a_hint_becomes_a_slug() {
        check("Add invoices — v2", "add_invoices_v2");
    }

    #[test]
    fn a_hint_of_other_scripts_leaves_the_id() {
        check(&"漢".repeat(200), "");
    }

    #[test]
    fn a_long_hint_is_cut_and_the_id_stays_whole() {
        check(&"a".repeat(500), &"a".repeat(42));
    }

    #[test]
    fn hostile_hints_cannot_leave_the_alphabet() {
        check("x\"; DROP DATABASE y; --\0\n", "x_drop_database_y");
    }

    #[test]
    fn the_names_of_an_owner_are_its_own_and_nobody_elses() {
        let names = SandboxNames::new("pgsb", Some("f1"), SandboxId::fresh());
        for own in
            [names.owner_role.clone(), names.readonly_role.clone(), names.filling_role(1), names.filling_role(255)]
        {
            assert!(names.is_own_role(&own), "{own}");
        }
        let database = &names.database;
        for foreign in
            [format!("{database}_f256"), format!("{database}_f"), format!("{database}_f1x"), database.clone()]
        {
            assert!(!names.is_own_role(&foreign), "{foreign}");
            assert_eq!(settled_role(&foreign), None, "{foreign}");
        }
        let other = SandboxNames::new("pgsb", Some("f1"), SandboxId::fresh());
        assert!(!names.is_own_role(&other.filling_role(1)));
    }

    #[test]
    fn prefixes_are_checked() {
        for good in ["pgsandbox", "a", "team_1"] {
            assert_eq!(prefix_fault(good), None);
        }
        for bad in ["", "Team", "1a", "a-b", "pg_x", "pg", "ends_", "a b", &"a".repeat(25)] {
            assert!(prefix_fault(bad).is_some(), "{bad}");
        }
    }
}
