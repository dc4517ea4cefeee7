//! Decides which databases may be cloned, and on what terms.
//!
//! | setting | meaning | absent |
//! |---|---|---|
//! | `allow` | list of entries; a source that fits one may be cloned, on the terms of every entry it fits | nothing may |
//! | `terms` | list of entries that allow nothing; the terms of each that a source fits must be met too | none |
//! | `production` | terms for sources that the operator marked as production, beside their entries' | such sources may not be cloned |
//!
//! An entry fits by `name` (pattern; configured sources only) or by `host` (pattern, in lower case), with `ports`,
//! `database` (pattern) and `user` (pattern) where they are there; an entry by `host` also fits a configured source.
//! `production` may also say `allow = false`: such sources may not be cloned. Terms of an entry and of it alike:
//!
//! | term | meaning | absent |
//! |---|---|---|
//! | `tls` | the weakest protection of the connection: `disabled`, `prefer`, `require`, `verify-ca`, `verify-full` | `disabled` |
//! | `schema_only` | no rows may be copied | `false` |
//! | `reason` | the caller must say why | `false` |
//! | `approval_group` | a principal of this group must approve | nobody must |
//! | `approval_for` | what must be approved: `all`, or `rows` for copies that have any | `all` |
//! | `labels` | labels that a copy with rows gets, and its copies with it | none |
//! | `consent` | the person at the caller's client must agree | `false` |

use std::collections::{BTreeMap, BTreeSet};

use pgsandbox_policy::{
    Bucket, CloneSource, Decision, Description, Label, Obligation, Pattern, Phase, Policy, Problem, Problems, Request,
    Tls,
};

const COVERS: [&str; 1] = ["clone_database"];

const SOURCE_NOT_ALLOWED: &str = "source_not_allowed";
const TLS_REQUIRED: &str = "tls_required";
const SCHEMA_ONLY_REQUIRED: &str = "schema_only_required";
const REASON_REQUIRED: &str = "reason_required";

/// The longest name of a group, in bytes.
const GROUP_BYTES_MAX: usize = 128;
/// The longest key or value of a label, in bytes, as the host takes them.
const LABEL_BYTES_MAX: usize = 128;

/// The settings.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    allow: Vec<EntrySettings>,
    terms: Vec<EntrySettings>,
    production: Option<ProductionSettings>,
}

/// One entry as it is written.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EntrySettings {
    name: Option<String>,
    host: Option<String>,
    ports: Option<Vec<u16>>,
    database: Option<String>,
    user: Option<String>,
    tls: Option<String>,
    schema_only: bool,
    reason: bool,
    approval_group: Option<String>,
    approval_for: Option<String>,
    labels: BTreeMap<String, String>,
    consent: bool,
}

/// What is said of production, as it is written.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ProductionSettings {
    allow: Option<bool>,
    tls: Option<String>,
    schema_only: bool,
    reason: bool,
    approval_group: Option<String>,
    approval_for: Option<String>,
    labels: BTreeMap<String, String>,
    consent: bool,
}

/// Terms as they are written, wherever that is.
struct TermsSettings {
    tls: Option<String>,
    schema_only: bool,
    reason: bool,
    approval_group: Option<String>,
    approval_for: Option<String>,
    labels: BTreeMap<String, String>,
    consent: bool,
}

/// The policy.
#[derive(Debug)]
pub struct ClonePolicy {
    allow: Vec<Entry>,
    /// What holds for sources that fit, whichever entry allows them.
    terms: Vec<Entry>,
    production: Option<Terms>,
}

#[derive(Debug)]
struct Entry {
    name: Option<Pattern>,
    host: Option<Pattern>,
    ports: Option<Vec<u16>>,
    database: Option<Pattern>,
    user: Option<Pattern>,
    terms: Terms,
}

#[derive(Clone, Debug)]
struct Terms {
    tls: Tls,
    schema_only: bool,
    reason: bool,
    approval_groups: BTreeSet<String>,
    /// Those that only copies with rows need.
    row_approval_groups: BTreeSet<String>,
    labels: Vec<(String, String)>,
    consent: bool,
}

/// Which copies must be approved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ApprovalFor {
    All,
    Rows,
}

impl ApprovalFor {
    const WORDS: &[(Self, &str)] = &[(Self::All, "all"), (Self::Rows, "rows")];
}

impl Policy for ClonePolicy {
    type Settings = Settings;

    fn describe() -> Description {
        Description::new("clone-source", env!("CARGO_PKG_VERSION"), include_str!("../settings.schema.json"))
            .covers(COVERS)
            .phases([Phase::Visible])
            .codes([SOURCE_NOT_ALLOWED, TLS_REQUIRED, SCHEMA_ONLY_REQUIRED, REASON_REQUIRED])
    }

    fn configure(settings: Settings) -> Result<(Self, Vec<Bucket>), Vec<Problem>> {
        let mut problems = Problems::default();
        let allow = settings
            .allow
            .into_iter()
            .enumerate()
            .map(|(index, entry)| Entry::read(entry, &format!("allow[{index}]"), &mut problems))
            .collect();
        let mut terms = Vec::with_capacity(settings.terms.len());
        for (index, entry) in settings.terms.into_iter().enumerate() {
            let path = format!("terms[{index}]");
            let entry = Entry::read(entry, &path, &mut problems);
            if entry.terms.demand_nothing() {
                problems.add(
                    path,
                    "it demands nothing; name `tls`, `schema_only`, `reason`, `approval_group`, `labels` or `consent`",
                );
            }
            terms.push(entry);
        }
        let production = settings.production.and_then(|production| {
            let terms = TermsSettings {
                tls: production.tls,
                schema_only: production.schema_only,
                reason: production.reason,
                approval_group: production.approval_group,
                approval_for: production.approval_for,
                labels: production.labels,
                consent: production.consent,
            };
            let terms = Terms::read(terms, "production", &mut problems);
            production.allow.unwrap_or(true).then_some(terms)
        });
        problems.done((Self { allow, terms, production }, Vec::new()))
    }

    fn evaluate(&self, request: &Request) -> Decision {
        match request.phase {
            Phase::Visible if self.allow.is_empty() => {
                Decision::deny(SOURCE_NOT_ALLOWED, "no database may be cloned", "`allow` is empty")
            }
            Phase::Visible => Decision::pass(),
            Phase::Before | Phase::After => match &request.clone_source {
                Some(source) => self.decide(source),
                // What is not known may not be cloned.
                None => Decision::deny(
                    SOURCE_NOT_ALLOWED,
                    format!("the request names no source; {}", self.allowed()),
                    "the request names no source",
                ),
            },
        }
    }
}

impl ClonePolicy {
    fn decide(&self, source: &CloneSource) -> Decision {
        // A host name ends in a dot or does not, and its case says nothing.
        let host = source.host.to_ascii_lowercase();
        let host = host.strip_suffix('.').unwrap_or(&host);
        let what = shown(source);
        let production = match (source.production, &self.production) {
            (false, _) => None,
            (true, Some(terms)) => Some(terms),
            (true, None) => {
                return Decision::deny(
                    SOURCE_NOT_ALLOWED,
                    format!("{what} is a production database, and none may be cloned; {}", self.allowed()),
                    format!("{what} refused: `production` allows none"),
                );
            }
        };
        let mut fitting = self.allow.iter().filter(|entry| entry.fits(source, host)).map(|entry| &entry.terms);
        let Some(first) = fitting.next() else {
            return Decision::deny(
                SOURCE_NOT_ALLOWED,
                format!("{what} may not be cloned; {}", self.allowed()),
                format!("{what} refused: no entry of `allow` fits"),
            );
        };
        let further = self.terms.iter().filter(|entry| entry.fits(source, host)).map(|entry| &entry.terms);
        let terms = fitting.chain(further).chain(production).fold(first.clone(), Terms::and);
        terms.breach(source, &what).unwrap_or_else(|| terms.grant(source, &what))
    }

    /// Says what may be cloned, in a sentence: configured sources by name, and databases by where they are.
    fn allowed(&self) -> String {
        const SHOWN_MAX: usize = 8;
        let list = |entries: &mut dyn Iterator<Item = String>| {
            let mut list: Vec<_> = entries.take(SHOWN_MAX + 1).collect();
            if list.len() > SHOWN_MAX {
                list.truncate(SHOWN_MAX);
                list.push("others".to_owned());
            }
            list.join(", ")
        };
        let names = || self.allow.iter().filter_map(|entry| entry.name.as_ref()).map(Pattern::as_str);
        let mut parts = Vec::new();
        if names().any(|name| name == "*") {
            parts.push("configured sources by their names".to_owned());
        } else if names().next().is_some() {
            parts.push(format!("configured sources {}", list(&mut names().map(|name| format!("`{name}`")))));
        }
        let places = || self.allow.iter().filter(|entry| entry.name.is_none()).map(Entry::shown);
        if places().next().is_some() {
            parts.push(format!("databases at {}", list(&mut places())));
        }
        if parts.is_empty() {
            "no source may be cloned".to_owned()
        } else {
            format!("allowed are {}", parts.join(", and "))
        }
    }
}

/// Names a source: a configured one by its name, another by where it is.
fn shown(source: &CloneSource) -> String {
    let clean = |text: &str| text.chars().filter(|c| !c.is_control()).take(253).collect::<String>();
    match &source.name {
        Some(name) => format!("source `{}`", clean(name)),
        None => format!("`{}:{}/{}`", clean(&source.host), source.port, clean(&source.database)),
    }
}

impl Entry {
    fn read(entry: EntrySettings, path: &str, problems: &mut Problems) -> Self {
        if entry.name.is_none() && entry.host.is_none() {
            problems.add(path, "an entry needs a `name` or a `host`; write `*` for any");
        }
        if entry.ports.as_ref().is_some_and(Vec::is_empty) {
            problems.add(format!("{path}.ports"), "an empty list fits no port; leave it out for any");
        }
        let mut pattern = |name: &str, text: Option<String>| match Pattern::new(&text?) {
            Ok(pattern) => Some(pattern),
            Err(message) => {
                problems.add(format!("{path}.{name}"), message);
                None
            }
        };
        let (name, database, user) =
            (pattern("name", entry.name), pattern("database", entry.database), pattern("user", entry.user));
        let host = pattern("host", entry.host.map(|host| host.to_ascii_lowercase()));
        let terms = TermsSettings {
            tls: entry.tls,
            schema_only: entry.schema_only,
            reason: entry.reason,
            approval_group: entry.approval_group,
            approval_for: entry.approval_for,
            labels: entry.labels,
            consent: entry.consent,
        };
        Self { name, host, ports: entry.ports, database, user, terms: Terms::read(terms, path, problems) }
    }

    fn fits(&self, source: &CloneSource, host: &str) -> bool {
        let name = match (&self.name, &source.name) {
            (Some(pattern), Some(name)) => pattern.matches(name),
            (Some(_), None) => false,
            (None, _) => true,
        };
        let fits = |pattern: &Option<Pattern>, text: &str| pattern.as_ref().is_none_or(|p| p.matches(text));
        name && fits(&self.host, host)
            && self.ports.as_ref().is_none_or(|ports| ports.contains(&source.port))
            && fits(&self.database, &source.database)
            && fits(&self.user, &source.user)
    }

    fn shown(&self) -> String {
        let text = |pattern: &Option<Pattern>| pattern.as_ref().map_or("*", Pattern::as_str).to_owned();
        let ports = match self.ports.as_deref() {
            Some([port]) => port.to_string(),
            Some(_) | None => "*".to_owned(),
        };
        format!("`{}:{ports}/{}`", text(&self.host), text(&self.database))
    }
}

impl Terms {
    fn read(terms: TermsSettings, path: &str, problems: &mut Problems) -> Self {
        if terms.approval_group.as_ref().is_some_and(|group| group.is_empty() || group.len() > GROUP_BYTES_MAX) {
            let message = format!("a group's name has 1 to {GROUP_BYTES_MAX} bytes; leave it out for no approval");
            problems.add(format!("{path}.approval_group"), message);
        }
        let tls = match &terms.tls {
            Some(word) => problems.word(&format!("{path}.tls"), word, Tls::WORDS).unwrap_or(Tls::VerifyFull),
            None => Tls::Disabled,
        };
        if terms.approval_for.is_some() && terms.approval_group.is_none() {
            problems.add(format!("{path}.approval_for"), "says nothing without an `approval_group` beside it");
        }
        let approval_for = match &terms.approval_for {
            Some(word) => problems.word(&format!("{path}.approval_for"), word, ApprovalFor::WORDS),
            None => None,
        };
        for (key, value) in &terms.labels {
            let is_odd = |text: &str| text.len() > LABEL_BYTES_MAX || text.chars().any(char::is_control);
            if key.is_empty() || is_odd(key) || is_odd(value) {
                let message = format!(
                    "a label has a key of 1 to {LABEL_BYTES_MAX} bytes and a value of as many at most, without control characters"
                );
                problems.add(format!("{path}.labels.{key}"), message);
            }
        }
        let (mut approval_groups, mut row_approval_groups) = (BTreeSet::new(), BTreeSet::new());
        match approval_for.unwrap_or(ApprovalFor::All) {
            ApprovalFor::All => approval_groups.extend(terms.approval_group),
            ApprovalFor::Rows => row_approval_groups.extend(terms.approval_group),
        }
        Self {
            tls,
            schema_only: terms.schema_only,
            reason: terms.reason,
            approval_groups,
            row_approval_groups,
            labels: terms.labels.into_iter().collect(),
            consent: terms.consent,
        }
    }

    /// Returns whether every source meets these, and gets nothing by them.
    fn demand_nothing(&self) -> bool {
        self.tls == Tls::Disabled
            && !self.schema_only
            && !self.reason
            && self.approval_groups.is_empty()
            && self.row_approval_groups.is_empty()
            && self.labels.is_empty()
            && !self.consent
    }

    /// Adds other terms: both must be met.
    fn and(mut self, other: &Self) -> Self {
        self.tls = self.tls.max(other.tls);
        self.schema_only |= other.schema_only;
        self.reason |= other.reason;
        self.approval_groups.extend(other.approval_groups.iter().cloned());
        self.row_approval_groups.extend(other.row_approval_groups.iter().cloned());
        for label in &other.labels {
            if !self.labels.contains(label) {
                self.labels.push(label.clone());
            }
        }
        self.consent |= other.consent;
        self
    }

    /// Returns the refusal, if a term is not met.
    fn breach(&self, source: &CloneSource, what: &str) -> Option<Decision> {
        if source.tls < self.tls {
            let (has, needs) = (source.tls.as_str(), self.tls.as_str());
            // As libpq calls it, which has no word for what is stronger than the strongest.
            let given = if source.tls == Tls::Disabled { "disable" } else { has };
            let stronger = if self.tls == Tls::VerifyFull { "" } else { " or stronger" };
            return Some(Decision::deny(
                TLS_REQUIRED,
                format!("{what} is connected to with sslmode `{given}`; `{needs}`{stronger} is needed"),
                format!("{what} refused: tls `{has}` is weaker than `{needs}`"),
            ));
        }
        if self.schema_only && !source.schema_only {
            return Some(Decision::deny(
                SCHEMA_ONLY_REQUIRED,
                format!("{what} may only be cloned without its rows; set `schemaOnly` to true"),
                format!("{what} refused: rows were asked for and only the schema may be cloned"),
            ));
        }
        if self.reason && source.reason.as_deref().is_none_or(|reason| reason.trim().is_empty()) {
            return Some(Decision::deny(
                REASON_REQUIRED,
                format!("{what} may only be cloned for a reason; say why in `reason`"),
                format!("{what} refused: no reason was given"),
            ));
        }
        None
    }

    fn grant(self, source: &CloneSource, what: &str) -> Decision {
        let mut decision = Decision::pass();
        let mut groups = self.approval_groups;
        if !source.schema_only {
            groups.extend(self.row_approval_groups);
            let labels = self.labels.into_iter().map(|(key, value)| Obligation::AddLabel(Label { key, value }));
            decision.obligations.extend(labels);
        }
        decision.obligations.extend(groups.into_iter().map(Obligation::Approval));
        if self.consent {
            decision = decision.demand(Obligation::Consent(format!("May {what} be cloned into a new sandbox?")));
        }
        decision
    }
}

pgsandbox_policy::export!(ClonePolicy);

#[cfg(test)]
mod tests {
    use pgsandbox_policy::testing;

    use super::*;

    #[test]
    fn the_description_fits_the_settings() {
        testing::check_description::<ClonePolicy>(include_str!("../default.json"));
    }

    #[test]
    fn the_cases_come_out_as_expected() {
        testing::check_cases::<ClonePolicy>(include_str!("../cases.toml"), include_str!("../default.json"));
    }

    #[test]
    fn terms_that_demand_nothing_are_refused() {
        let settings = r#"{"terms":[{"name":"x"},{"host":"*","reason":true},{"tls":"require"}]}"#;
        let paths: Vec<_> = testing::problems::<ClonePolicy>(settings).into_iter().map(|(path, _)| path).collect();
        assert_eq!(paths, ["terms[0]", "terms[2]"]);
    }

    #[test]
    fn every_fault_is_reported() {
        let settings = r#"{"allow":[{"database":"x"},{"name":"","ports":[],"tls":"on","approval_for":"rows"}],
            "production":{"approval_group":"","approval_for":"some","labels":{"":"x"},"tls":"none"}}"#;
        let paths: Vec<_> = testing::problems::<ClonePolicy>(settings).into_iter().map(|(path, _)| path).collect();
        assert_eq!(
            paths,
            [
                "allow[0]",
                "allow[1].ports",
                "allow[1].name",
                "allow[1].tls",
                "allow[1].approval_for",
                "production.approval_group",
                "production.tls",
                "production.approval_for",
                "production.labels."
            ]
        );
    }
}
