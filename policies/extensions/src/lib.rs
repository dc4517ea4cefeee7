//! Limits which extensions a new sandbox may ask for.
//!
//! It sees the `extensions` argument of the operations that make sandboxes. The program asks it the
//! same about each extension that `CREATE EXTENSION` in `run_sql` names; what else installs, Postgres alone bounds.
//!
//! | setting | meaning |
//! |---|---|
//! | `allow` | patterns of names that may be asked for; none if absent |
//! | `deny` | patterns of names that may not, whatever `allow` says |
//!
//! Some extensions reach other servers, the server's files or its operating system. They are refused whatever the
//! settings say, see [`NEVER`].

use std::fmt::{self, Write as _};

use pgsandbox_policy::{Bucket, Decision, Description, Patterns, Phase, Policy, Problem, Problems, Request};

/// The operations that take extensions. It covers none of them: that the extensions may be installed does not answer
/// whether the sandbox may be made.
const CONCERNS: [&str; 5] =
    ["clone_database", "create_database", "create_sandbox_from_template", "fork_database", "prepare_for_repo"];

const NOT_ALLOWED: &str = "extension_not_allowed";

/// Extensions that leave the sandbox: other servers, files, programs, code without a trusted language around it.
pub const NEVER: [&str; 19] = [
    "adminpack",
    "dblink",
    "file_fdw",
    "http",
    "pageinspect",
    "pg_background",
    "pg_cron",
    "pg_net",
    "pg_surgery",
    "pg_walinspect",
    "pljava",
    "plperlu",
    "plpython2u",
    "plpython3u",
    "plpythonu",
    "plrust",
    "plsh",
    "pltclu",
    "postgres_fdw",
];

/// The settings.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    allow: Vec<String>,
    deny: Vec<String>,
}

/// The policy.
#[derive(Debug)]
pub struct Extensions {
    allow: Patterns,
    deny: Patterns,
}

impl Policy for Extensions {
    type Settings = Settings;

    fn describe() -> Description {
        Description::new("extensions", env!("CARGO_PKG_VERSION"), include_str!("../settings.schema.json"))
            .concerns(CONCERNS)
            .phases([Phase::Visible])
            .codes([NOT_ALLOWED])
    }

    fn configure(settings: Settings) -> Result<(Self, Vec<Bucket>), Vec<Problem>> {
        let mut problems = Problems::default();
        for (index, name) in settings.allow.iter().enumerate() {
            if is_never(name) {
                problems.add(format!("allow[{index}]"), format!("`{name}` leaves the sandbox and is never installed"));
            }
        }
        let policy = Self {
            allow: Patterns::read(&settings.allow, "allow", &mut problems),
            deny: Patterns::read(&settings.deny, "deny", &mut problems),
        };
        problems.done((policy, Vec::new()))
    }

    fn evaluate(&self, request: &Request) -> Decision {
        let refused = request.requested.extensions.iter().find(|name| !self.allows(name));
        match refused {
            Some(name) => self.refusal(name),
            None => Decision::abstain(),
        }
    }
}

impl Extensions {
    fn allows(&self, name: &str) -> bool {
        !is_never(name) && !self.deny.matches(name) && self.allow.matches(name)
    }

    fn refusal(&self, name: &str) -> Decision {
        let name = Shown(name);
        // A pattern among what is allowed may fit the name: the caller has to see why it does not count.
        let (reason, cause) = if is_never(name.0) {
            ("it leaves the sandbox", ": it leaves the sandbox, so it never is, whatever is allowed")
        } else if self.deny.matches(name.0) {
            ("`deny` names it", ": it is denied by name or pattern")
        } else {
            ("`allow` does not name it", "")
        };
        let message = if self.allow.is_empty() {
            format!("extension `{name}` may not be installed{cause}; no extension may, so leave `extensions` out")
        } else {
            // What would be accepted is more than this policy's to say: the host names it, beside the message.
            format!("extension `{name}` may not be installed{cause}")
        };
        Decision::deny(NOT_ALLOWED, message, format!("extension `{name}` refused: {reason}"))
    }
}

/// Postgres folds nothing here, but a name that differs from a forbidden one only in case is no accident.
fn is_never(name: &str) -> bool {
    NEVER.iter().any(|never| never.eq_ignore_ascii_case(name.trim()))
}

/// A name as messages show it: not longer than an identifier can be.
struct Shown<'a>(&'a str);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const CHARS_MAX: usize = 63;
        for c in self.0.chars().take(CHARS_MAX) {
            f.write_char(if c.is_control() { '?' } else { c })?;
        }
        if self.0.chars().nth(CHARS_MAX).is_some() { f.write_str("…") } else { Ok(()) }
    }
}

pgsandbox_policy::export!(Extensions);

#[cfg(test)]
mod tests {
    use pgsandbox_policy::{Verdict, testing};

    use super::*;

    #[test]
    fn the_description_fits_the_settings() {
        testing::check_description::<Extensions>(include_str!("../default.json"));
    }

    #[test]
    fn the_cases_come_out_as_expected() {
        testing::check_cases::<Extensions>(include_str!("../cases.toml"), include_str!("../default.json"));
    }

    #[test]
    fn the_caller_is_told_why_what_a_pattern_fits_is_refused() {
        let policy: Extensions = testing::configured(r#"{"allow":["*"],"deny":["cit*"]}"#);
        for (name, cause) in [("pageinspect", "it leaves the sandbox"), ("citext", "it is denied by name or pattern")] {
            let mut request = testing::request("create_database");
            request.requested.extensions = vec![name.into()];
            match policy.evaluate(&request).verdict {
                Verdict::Deny(denial) => assert!(denial.message.contains(cause), "{denial:?}"),
                Verdict::Pass | Verdict::Abstain => panic!("not refused: {name}"),
            }
        }
    }

    #[test]
    fn nothing_that_leaves_the_sandbox_is_ever_allowed() {
        let policy: Extensions = testing::configured(r#"{"allow":["*"]}"#);
        for name in NEVER {
            assert!(!policy.allows(name), "{name}");
            assert!(!policy.allows(&name.to_uppercase()), "{name}");
        }
        assert!(policy.allows("hstore"));
        assert_eq!(testing::problems::<Extensions>(r#"{"allow":["hstore","dblink"]}"#)[0].0, "allow[1]");
    }
}
