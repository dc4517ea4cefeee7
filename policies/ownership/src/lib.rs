//! Decides who may touch whose sandboxes, and who is given credentials.
//!
//! A sandbox is its owner's. Anyone else is told that it does not exist, unless an `admin_groups` member or a
//! `grants` entry says more. Requests that are about no sandbox pass, within the group owners a principal may name.
//!
//! | setting | meaning | absent |
//! |---|---|---|
//! | `admin_groups` | groups, by pattern, whose members may touch every sandbox | nobody |
//! | `admins_get_credentials` | whether they are given raw credentials of others' sandboxes too | `false` |
//! | `grants` | list of `groups` (patterns), `owners` (patterns) and `impacts`: members of the groups may touch the sandboxes of those owners so far; `discloses` means raw credentials; `reads` lets them run SQL and explain it as the read-only role | none |
//! | `group_owners` | patterns of group owners a principal may name; `{owner}` stands for the principal's owner, `{group}` for any of its groups | every name |
//! | `credentials` | raw credentials that an owner is given of its own sandboxes: `owner`, `read-only` or `none` | `owner` |

use pgsandbox_policy::{
    Bucket, CredentialAccess, Decision, Description, Impact, Obligation, Pattern, Patterns, Phase, Policy, Principal,
    Problem, Problems, Request, Sandbox,
};

/// Operations that are about one existing sandbox, always.
const ABOUT_SANDBOX: [&str; 13] = [
    "create_schema_snapshot",
    "create_template_from_sandbox",
    "delete_database",
    "describe_schema",
    "explain_query",
    "extend_database",
    "fork_database",
    "get_connection_string",
    "reset_database",
    "run_sql",
    "schema_diff",
    "schema_digest",
    "verify_sandbox",
];
/// Operations that may be about one, or about what the principal sees of the whole.
const ABOUT_WHOLE: [&str; 25] = [
    "approve",
    "cancel_task",
    "cleanup_expired",
    "complete",
    "create_database",
    "create_sandbox_from_template",
    "delete_schema_snapshot",
    "delete_template",
    "diff_schema_snapshot",
    "doctor",
    "explain_policy",
    "export_template",
    "get_prompt",
    "get_task",
    "import_template",
    "list_approvals",
    "list_databases",
    "list_extensions",
    "list_profiles",
    "list_prompts",
    "list_resource_templates",
    "list_resources",
    "list_schema_snapshots",
    "list_templates",
    "read_resource",
];
/// Operations that others answer for: that the sandbox is the caller's is not all there is to ask.
const CONCERNS: [&str; 5] =
    ["clone_database", "prepare_for_repo", "run_repo_command", "seed_database", "validate_schema_change"];

/// Operations that write unless they are made to read only.
const RUN_SQL: &str = "run_sql";
const EXPLAIN_QUERY: &str = "explain_query";

const NOT_FOUND: &str = "not_found";
const ACCESS_NOT_ALLOWED: &str = "access_not_allowed";
const CREDENTIALS_NOT_ALLOWED: &str = "credentials_not_allowed";
const GROUP_OWNER_NOT_ALLOWED: &str = "group_owner_not_allowed";

/// The settings.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    admin_groups: Vec<String>,
    admins_get_credentials: bool,
    grants: Vec<GrantSettings>,
    group_owners: Option<Vec<String>>,
    credentials: Option<String>,
}

/// One grant as it is written.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GrantSettings {
    groups: Vec<String>,
    owners: Vec<String>,
    impacts: Vec<String>,
}

/// The policy.
#[derive(Debug)]
pub struct Ownership {
    admin_groups: Patterns,
    admins_get_credentials: bool,
    grants: Vec<Grant>,
    group_owners: Option<Vec<String>>,
    credentials: OwnCredentials,
}

#[derive(Debug)]
struct Grant {
    groups: Patterns,
    owners: Patterns,
    impacts: Vec<Impact>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OwnCredentials {
    Owner,
    ReadOnly,
    None,
}

impl OwnCredentials {
    const WORDS: &[(Self, &str)] = &[(Self::Owner, "owner"), (Self::ReadOnly, "read-only"), (Self::None, "none")];
}

impl Policy for Ownership {
    type Settings = Settings;

    fn describe() -> Description {
        Description::new("ownership", env!("CARGO_PKG_VERSION"), include_str!("../settings.schema.json"))
            .covers(ABOUT_SANDBOX)
            .covers(ABOUT_WHOLE)
            .concerns(CONCERNS)
            .phases([Phase::Visible])
            .codes([NOT_FOUND, ACCESS_NOT_ALLOWED, CREDENTIALS_NOT_ALLOWED, GROUP_OWNER_NOT_ALLOWED])
    }

    fn configure(settings: Settings) -> Result<(Self, Vec<Bucket>), Vec<Problem>> {
        let mut problems = Problems::default();
        let grants = settings
            .grants
            .iter()
            .enumerate()
            .map(|(index, grant)| Grant::read(grant, &format!("grants[{index}]"), &mut problems))
            .collect();
        if let Some(list) = &settings.group_owners {
            Patterns::read(list, "group_owners", &mut problems);
        }
        let credentials = match &settings.credentials {
            Some(word) => problems.word("credentials", word, OwnCredentials::WORDS).unwrap_or(OwnCredentials::None),
            None => OwnCredentials::Owner,
        };
        let policy = Self {
            admin_groups: Patterns::read(&settings.admin_groups, "admin_groups", &mut problems),
            admins_get_credentials: settings.admins_get_credentials,
            grants,
            group_owners: settings.group_owners,
            credentials,
        };
        problems.done((policy, Vec::new()))
    }

    fn evaluate(&self, request: &Request) -> Decision {
        let refusal = match request.phase {
            // Lists are the same for everybody: what is refused here depends on the sandbox and on arguments.
            Phase::Visible => None,
            Phase::Before | Phase::After => self.sandbox_refusal(request).or_else(|| self.group_refusal(request)),
        };
        match refusal {
            Some(refusal) => refusal,
            None if CONCERNS.contains(&request.operation.as_str()) => Decision::abstain(),
            None if self.only_reads(request) => Decision::pass().demand(Obligation::ReadOnly),
            None => Decision::pass(),
        }
    }
}

impl Ownership {
    fn sandbox_refusal(&self, request: &Request) -> Option<Decision> {
        match &request.sandbox {
            Some(sandbox) if sandbox.owner == request.principal.owner => self.own_refusal(request),
            Some(sandbox) => self.foreign_refusal(request, sandbox),
            None if ABOUT_SANDBOX.contains(&request.operation.as_str()) => {
                Some(not_found("the request names no sandbox that exists"))
            }
            None => None,
        }
    }

    fn own_refusal(&self, request: &Request) -> Option<Decision> {
        let asked = request.requested.credentials?;
        let (given, instead) = match self.credentials {
            OwnCredentials::Owner => (true, ""),
            OwnCredentials::ReadOnly => (
                asked == CredentialAccess::ReadOnly,
                "ask for `access: readonly`, or leave `includeCredentials` out and use `run_sql`",
            ),
            OwnCredentials::None => (false, "leave `includeCredentials` out and use `run_sql`"),
        };
        if given {
            return None;
        }
        Some(Decision::deny(
            CREDENTIALS_NOT_ALLOWED,
            format!("raw credentials of the {} role are not given out; {instead}", asked.as_str()),
            format!("credentials of the {} role refused to the sandbox's owner", asked.as_str()),
        ))
    }

    fn foreign_refusal(&self, request: &Request, sandbox: &Sandbox) -> Option<Decision> {
        let principal = &request.principal;
        let impact = impact_on(request);
        if in_any(&self.admin_groups, principal) {
            if impact != Impact::Discloses || self.admins_get_credentials {
                return None;
            }
            return Some(Decision::deny(
                CREDENTIALS_NOT_ALLOWED,
                "raw credentials of another owner's sandbox are not given out, to administrators neither; use `run_sql`",
                "credentials of another owner's sandbox refused to an administrator",
            ));
        }
        let granted = self.granted(principal, sandbox);
        if granted.contains(&impact) || (granted.contains(&Impact::Reads) && may_only_read(request)) {
            return None;
        }
        if granted.is_empty() {
            return Some(not_found("the sandbox is another owner's, and nothing is granted on it"));
        }
        let words: Vec<_> =
            Impact::WORDS.iter().filter(|(i, _)| granted.contains(i)).map(|(_, word)| format!("`{word}`")).collect();
        let words = words.join(", ");
        let instead = match granted.contains(&Impact::Reads) && request.operation == RUN_SQL {
            true => "; set `readonly` to true",
            false => "",
        };
        Some(Decision::deny(
            ACCESS_NOT_ALLOWED,
            format!(
                "the sandbox is another owner's; what you may do with it is {words}, not `{}`{instead}",
                impact.as_str()
            ),
            format!("`{}` on another owner's sandbox refused; granted is {words}", impact.as_str()),
        ))
    }

    fn granted(&self, principal: &Principal, sandbox: &Sandbox) -> Vec<Impact> {
        let grants = self.grants.iter();
        let fitting = grants.filter(|grant| grant.owners.matches(&sandbox.owner) && in_any(&grant.groups, principal));
        fitting.flat_map(|grant| grant.impacts.iter().copied()).collect()
    }

    /// Returns whether a call that was let through is granted for its reading alone.
    fn only_reads(&self, request: &Request) -> bool {
        let Some(sandbox) = &request.sandbox else { return false };
        let principal = &request.principal;
        sandbox.owner != principal.owner
            && !in_any(&self.admin_groups, principal)
            && may_only_read(request)
            && !self.granted(principal, sandbox).contains(&request.impact)
    }

    /// A sandbox keeps the group owner it was made with, even where that name may no longer be given.
    fn group_refusal(&self, request: &Request) -> Option<Decision> {
        let named = request.group_owner.as_deref()?;
        let allowed = self.group_owners.as_ref()?;
        let kept = request.sandbox.as_ref().is_some_and(|sandbox| sandbox.group_owner.as_deref() == Some(named));
        if kept || allowed.iter().any(|template| fits(template, &request.principal, named)) {
            return None;
        }
        let shown = if allowed.is_empty() {
            "none may be named, so leave `owner` out".to_owned()
        } else {
            let list: Vec<_> = allowed.iter().take(8).map(|template| format!("`{template}`")).collect();
            format!("names that fit {} may be", list.join(", "))
        };
        let named: String = named.chars().filter(|c| !c.is_control()).take(80).collect();
        Some(Decision::deny(
            GROUP_OWNER_NOT_ALLOWED,
            format!("group owner `{named}` may not be named; {shown}"),
            format!("group owner `{named}` refused: `group_owners` does not allow it"),
        ))
    }
}

impl Grant {
    fn read(grant: &GrantSettings, path: &str, problems: &mut Problems) -> Self {
        for (name, list) in [("groups", &grant.groups), ("owners", &grant.owners), ("impacts", &grant.impacts)] {
            if list.is_empty() {
                problems.add(format!("{path}.{name}"), "an empty list grants nothing; take the grant out instead");
            }
        }
        Self {
            groups: Patterns::read(&grant.groups, &format!("{path}.groups"), problems),
            owners: Patterns::read(&grant.owners, &format!("{path}.owners"), problems),
            impacts: problems.words(&format!("{path}.impacts"), &grant.impacts, Impact::WORDS),
        }
    }
}

/// The same words whatever the reason: they must not tell a sandbox of others from one that is not there.
fn not_found(audit: &str) -> Decision {
    Decision::deny(NOT_FOUND, "there is no such sandbox, or it is not yours; `list_databases` shows yours", audit)
}

/// A connection string without its password discloses nothing; with one, any operation does.
fn impact_on(request: &Request) -> Impact {
    if request.requested.credentials.is_some() {
        return Impact::Discloses;
    }
    if request.impact == Impact::Discloses { Impact::Reads } else { request.impact }
}

/// Returns whether the host can make the call one that only reads, and the caller wants no other.
fn may_only_read(request: &Request) -> bool {
    request.operation == EXPLAIN_QUERY || (request.operation == RUN_SQL && request.requested.read_only)
}

fn in_any(groups: &Patterns, principal: &Principal) -> bool {
    principal.groups.iter().any(|group| groups.matches(group))
}

/// Returns whether `named` fits the template with its placeholders filled in.
fn fits(template: &str, principal: &Principal, named: &str) -> bool {
    let with_owner = match fill(template, "{owner}", &principal.owner) {
        Some(filled) => filled,
        None => return false,
    };
    if !with_owner.contains("{group}") {
        return matches(&with_owner, named);
    }
    principal.groups.iter().filter_map(|group| fill(&with_owner, "{group}", group)).any(|t| matches(&t, named))
}

/// Fills in a name; a name that is itself a pattern would match more than itself, so it fits nothing.
fn fill(template: &str, placeholder: &str, name: &str) -> Option<String> {
    if !template.contains(placeholder) {
        return Some(template.to_owned());
    }
    if name.contains(['*', '?', '{', '}']) { None } else { Some(template.replace(placeholder, name)) }
}

fn matches(pattern: &str, named: &str) -> bool {
    Pattern::new(pattern).is_ok_and(|pattern| pattern.matches(named))
}

pgsandbox_policy::export!(Ownership);

#[cfg(test)]
mod tests {
    use pgsandbox_policy::{Verdict, testing};

    use super::*;

    #[test]
    fn the_description_fits_the_settings() {
        testing::check_description::<Ownership>(include_str!("../default.json"));
    }

    #[test]
    fn the_cases_come_out_as_expected() {
        testing::check_cases::<Ownership>(include_str!("../cases.toml"), include_str!("../default.json"));
    }

    #[test]
    fn a_sandbox_of_others_and_one_that_is_not_there_sound_the_same() {
        let policy: Ownership = testing::configured("{}");
        let message = |sandbox: Option<Sandbox>| {
            let mut request = testing::request("run_sql");
            request.sandbox = sandbox;
            match policy.evaluate(&request).verdict {
                Verdict::Deny(denial) => (denial.code, denial.message),
                Verdict::Pass | Verdict::Abstain => panic!("not refused"),
            }
        };
        let foreign = Sandbox {
            id: "x".into(),
            name: "secret".into(),
            owner: "bo".into(),
            group_owner: None,
            labels: Vec::new(),
            origin: pgsandbox_policy::Origin::Empty,
            age_seconds: 1,
            seconds_left: 1,
            bytes: None,
        };
        assert_eq!(message(Some(foreign)), message(None));
    }

    #[test]
    fn a_name_that_is_a_pattern_opens_nothing() {
        let policy: Ownership = testing::configured(r#"{"group_owners":["{owner}/x"]}"#);
        let mut request = testing::request("create_database");
        request.principal.owner = "*".into();
        request.group_owner = Some("bo/x".into());
        assert!(matches!(policy.evaluate(&request).verdict, Verdict::Deny(_)));
    }

    #[test]
    fn every_fault_is_reported() {
        let settings = r#"{"admin_groups":[""],"credentials":"all","group_owners":[""],
            "grants":[{"groups":[],"owners":["x"],"impacts":["read"]}]}"#;
        let paths: Vec<_> = testing::problems::<Ownership>(settings).into_iter().map(|(path, _)| path).collect();
        assert_eq!(
            paths,
            ["grants[0].groups", "grants[0].impacts[0]", "group_owners[0]", "credentials", "admin_groups[0]"]
        );
    }
}
