//! Stands between an agent and statements that destroy much at once.
//!
//! It is about these kinds: `no-where` (UPDATE and DELETE without WHERE), `truncate` (TRUNCATE), `drop-table`, `drop-schema`
//! and `drop-database` (DROP of those), and `many`: more statements of any of these kinds in one call than `many_over`.
//!
//! `modes` says what happens to each: `deny`, `consent` (the person at the caller's client must agree), `approval` (somebody
//! of `approval_group` must approve), or `allow`. A kind that is not named there is allowed. Owners have settings of their own
//! by the policy file's `owners` sections; `labels` is a list of further `modes`, each with `match`, labels that the sandbox
//! must carry: of all that match, and of the general ones, the strictest holds.
//!
//! A statement that runs what is not visible (`DO`, `CALL`, `EXECUTE`, functions) may destroy as well: `hidden` is its mode. What
//! a role may not destroy at all is for Postgres to enforce.

use std::collections::BTreeMap;

use pgsandbox_policy::statement::{begins_with, named};
use pgsandbox_policy::{
    Bucket, Decision, Description, Label, Obligation, Pattern, Policy, Problem, Problems, Request, Statement,
    StatementClass, StatementTraits,
};

const CONCERNS: [&str; 2] = ["explain_query", "run_sql"];
const DESTRUCTION_NOT_ALLOWED: &str = "destruction_not_allowed";
/// The longest name of a group, in bytes, as the host takes them.
const GROUP_BYTES_MAX: usize = 128;

/// The settings.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    modes: BTreeMap<String, String>,
    many_over: Option<u64>,
    approval_group: Option<String>,
    labels: Vec<LabelSettings>,
}

/// Modes for sandboxes with some labels.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LabelSettings {
    #[serde(rename = "match")]
    matches: BTreeMap<String, String>,
    modes: BTreeMap<String, String>,
}

/// What a statement destroys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    NoWhere,
    Truncate,
    DropTable,
    DropSchema,
    DropDatabase,
    Many,
    Hidden,
}

impl Kind {
    const WORDS: &[(Self, &str)] = &[
        (Self::NoWhere, "no-where"),
        (Self::Truncate, "truncate"),
        (Self::DropTable, "drop-table"),
        (Self::DropSchema, "drop-schema"),
        (Self::DropDatabase, "drop-database"),
        (Self::Many, "many"),
        (Self::Hidden, "hidden"),
    ];

    /// Returns what a statement destroys, if it does.
    fn of(statement: &Statement) -> Option<Self> {
        const DROPS: [(&str, Kind); 10] = [
            ("TRUNCATE", Kind::Truncate),
            ("DROP TABLE", Kind::DropTable),
            ("DROP FOREIGN TABLE", Kind::DropTable),
            ("DROP MATERIALIZED VIEW", Kind::DropTable),
            ("DROP SCHEMA", Kind::DropSchema),
            ("DROP OWNED", Kind::DropSchema),
            ("DROP EXTENSION", Kind::DropSchema),
            ("DROP TYPE", Kind::DropTable),
            ("DROP DOMAIN", Kind::DropTable),
            ("DROP DATABASE", Kind::DropDatabase),
        ];
        let has = |flag| statement.traits.contains(flag);
        let dropped = DROPS.iter().find(|(tag, _)| begins_with(&statement.tag, tag)).map(|(_, kind)| *kind);
        if dropped.is_some() {
            return dropped;
        }
        let is_hidden = has(StatementTraits::OPAQUE_BODY) && statement.class == StatementClass::Procedural
            || has(StatementTraits::DYNAMIC_SQL)
            || statement.class == StatementClass::Unparsed;
        match (has(StatementTraits::NO_WHERE), is_hidden) {
            (true, _) => Some(Self::NoWhere),
            (false, true) => Some(Self::Hidden),
            (false, false) => None,
        }
    }

    const fn what(self) -> &'static str {
        match self {
            Self::NoWhere => "changes every row of a table",
            Self::Truncate => "empties a table",
            Self::DropTable => "drops a table or what tables are made of",
            Self::DropSchema => "drops all that a schema, a role or an extension holds",
            Self::DropDatabase => "drops a database",
            Self::Many => "is one of several that destroy much in one call",
            Self::Hidden => "runs what is not visible, which may destroy as well",
        }
    }

    const fn instead(self) -> &'static str {
        match self {
            Self::NoWhere => "with a WHERE clause that names the rows it may run",
            Self::Truncate => {
                "DELETE with a WHERE clause may run; `reset_database` gives the sandbox its first contents again"
            }
            Self::DropTable | Self::DropSchema => {
                "`reset_database` gives the sandbox its first contents again, and another one may be made to try things in"
            }
            Self::DropDatabase => "`delete_database` removes a sandbox",
            Self::Many => "make several calls of them, each with fewer",
            Self::Hidden => "write its statements out, so that each can be looked at",
        }
    }
}

/// What happens to a statement, mildest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Mode {
    Allow,
    Consent,
    Approval,
    Deny,
}

impl Mode {
    const WORDS: &[(Self, &str)] =
        &[(Self::Allow, "allow"), (Self::Consent, "consent"), (Self::Approval, "approval"), (Self::Deny, "deny")];
}

/// The mode of each kind.
type Modes = [Mode; Kind::WORDS.len()];

/// The policy.
#[derive(Debug)]
pub struct DestructiveGuard {
    general: Modes,
    labelled: Vec<(Vec<(String, Pattern)>, Modes)>,
    many_over: u64,
    approval_group: String,
}

impl Policy for DestructiveGuard {
    type Settings = Settings;

    fn describe() -> Description {
        Description::new("destructive-guard", env!("CARGO_PKG_VERSION"), include_str!("../settings.schema.json"))
            .concerns(CONCERNS)
            .codes([DESTRUCTION_NOT_ALLOWED])
    }

    fn configure(settings: Settings) -> Result<(Self, Vec<Bucket>), Vec<Problem>> {
        let mut problems = Problems::default();
        let general = read_modes(&settings.modes, "modes", &mut problems);
        let mut labelled = Vec::with_capacity(settings.labels.len());
        for (index, section) in settings.labels.iter().enumerate() {
            let path = format!("labels[{index}]");
            if section.matches.is_empty() {
                problems.add(
                    format!("{path}.match"),
                    "the modes are for no labels; what holds for every sandbox goes into `modes`",
                );
            }
            if section.modes.is_empty() {
                problems.add(format!("{path}.modes"), "no kind is named, so the labels change nothing");
            }
            let mut labels = Vec::with_capacity(section.matches.len());
            for (key, value) in &section.matches {
                match Pattern::new(value) {
                    Ok(pattern) => labels.push((key.clone(), pattern)),
                    Err(message) => problems.add(format!("{path}.match.{key}"), message),
                }
            }
            labelled.push((labels, read_modes(&section.modes, &format!("{path}.modes"), &mut problems)));
        }
        let all = || labelled.iter().map(|(_, modes)| modes).chain([&general]);
        let approves = all().any(|modes| modes.contains(&Mode::Approval));
        let many = all().any(|modes| mode_of(modes, Kind::Many) != Mode::Allow);
        match &settings.approval_group {
            None if approves => problems.add("approval_group", "a mode is `approval`; name the group that approves"),
            Some(_) if !approves => problems.add("approval_group", "no mode is `approval`; leave it out"),
            Some(group) if group.is_empty() || group.len() > GROUP_BYTES_MAX => {
                problems.add("approval_group", format!("a group's name has 1 to {GROUP_BYTES_MAX} bytes"));
            }
            None | Some(_) => {}
        }
        match settings.many_over {
            None if many => problems.add("many_over", "a mode is set for `many`; say how many are not yet many"),
            Some(_) if !many => problems.add("many_over", "says nothing without a mode for `many`"),
            None | Some(_) => {}
        }
        let policy = Self {
            general,
            labelled,
            many_over: settings.many_over.unwrap_or(u64::MAX),
            approval_group: settings.approval_group.unwrap_or_default(),
        };
        problems.done((policy, Vec::new()))
    }

    fn evaluate(&self, request: &Request) -> Decision {
        // Labels that are not known may be any.
        let labels = request.sandbox.as_ref().map(|sandbox| sandbox.labels.as_slice());
        let mode = |kind: Kind| {
            let fitting = self.labelled.iter().filter(|(wanted, _)| labels.is_none_or(|labels| carry(labels, wanted)));
            fitting
                .map(|(_, modes)| modes)
                .chain([&self.general])
                .map(|modes| mode_of(modes, kind))
                .max()
                .unwrap_or(Mode::Deny)
        };
        let mut strictest: Option<(Mode, Kind, &Statement, usize)> = None;
        let mut destroying = 0_u64;
        for (statement, number) in request.statements.iter().zip(1..) {
            let Some(kind) = Kind::of(statement) else { continue };
            let mut judged = (mode(kind), kind);
            if kind != Kind::Hidden {
                destroying += 1;
                if destroying > self.many_over && mode(Kind::Many) > judged.0 {
                    judged = (mode(Kind::Many), Kind::Many);
                }
            }
            if judged.0 > strictest.map_or(Mode::Allow, |(mode, ..)| mode) {
                strictest = Some((judged.0, judged.1, statement, number));
            }
        }
        let Some((mode, kind, statement, number)) = strictest else { return Decision::abstain() };
        let subject = named(statement, number);
        let what = kind.what();
        match mode {
            Mode::Allow => Decision::abstain(),
            Mode::Consent => {
                let question = format!("May {subject} run? It {what}.");
                Decision::abstain().demand(Obligation::Consent(question))
            }
            Mode::Approval => Decision::abstain().demand(Obligation::Approval(self.approval_group.clone())),
            Mode::Deny => Decision::deny(
                DESTRUCTION_NOT_ALLOWED,
                format!("{subject} {what}, which is not allowed here; {}", kind.instead()),
                format!("{subject} {what}"),
            ),
        }
    }
}

fn read_modes(settings: &BTreeMap<String, String>, path: &str, problems: &mut Problems) -> Modes {
    let mut modes = [Mode::Allow; Kind::WORDS.len()];
    for (word, mode) in settings {
        let at = format!("{path}.{word}");
        let kind = problems.word(&at, word, Kind::WORDS);
        let mode = problems.word(&at, mode, Mode::WORDS);
        if let (Some(kind), Some(mode)) = (kind, mode)
            && let Some(place) = modes.get_mut(kind as usize)
        {
            *place = mode;
        }
    }
    modes
}

fn mode_of(modes: &Modes, kind: Kind) -> Mode {
    modes.get(kind as usize).copied().unwrap_or(Mode::Deny)
}

fn carry(labels: &[Label], wanted: &[(String, Pattern)]) -> bool {
    wanted.iter().all(|(key, pattern)| labels.iter().any(|label| label.key == *key && pattern.matches(&label.value)))
}

pgsandbox_policy::export!(DestructiveGuard);

#[cfg(test)]
mod tests {
    use pgsandbox_policy::testing;

    use super::*;

    #[test]
    fn the_description_fits_the_settings() {
        testing::check_description::<DestructiveGuard>(include_str!("../default.json"));
    }

    #[test]
    fn the_cases_come_out_as_expected() {
        testing::check_cases::<DestructiveGuard>(include_str!("../cases.toml"), include_str!("../default.json"));
    }

    #[test]
    fn kinds_have_their_places() {
        assert!(Kind::WORDS.iter().enumerate().all(|(place, (kind, _))| *kind as usize == place));
    }

    #[test]
    fn modes_for_labels_hold_where_the_sandbox_is_not_known() {
        let policy: DestructiveGuard =
            testing::configured(r#"{"labels":[{"match":{"data":"x"},"modes":{"hidden":"deny"}}]}"#);
        let mut request = testing::request("run_sql");
        request.statements = vec![Statement {
            class: StatementClass::Unparsed,
            tag: String::new(),
            traits: StatementTraits::empty(),
            relations: Vec::new(),
            functions: Vec::new(),
            read_only_safe: false,
            text: None,
        }];
        assert!(matches!(policy.evaluate(&request).verdict, pgsandbox_policy::Verdict::Deny(_)));
    }

    #[test]
    fn every_fault_is_reported() {
        let settings = r#"{"modes":{"drop":"deny","truncate":"no","many":"deny"},"approval_group":"x",
            "labels":[{"match":{},"modes":{}},{"match":{"a":""},"modes":{"many":"allow"}}]}"#;
        let paths: Vec<_> = testing::problems::<DestructiveGuard>(settings).into_iter().map(|(path, _)| path).collect();
        assert_eq!(
            paths,
            [
                "modes.drop",
                "modes.truncate",
                "labels[0].match",
                "labels[0].modes",
                "labels[1].match.a",
                "approval_group",
                "many_over"
            ]
        );
        let paths: Vec<_> = testing::problems::<DestructiveGuard>(r#"{"modes":{"truncate":"approval"},"many_over":3}"#);
        assert_eq!(paths.into_iter().map(|(path, _)| path).collect::<Vec<_>>(), ["approval_group", "many_over"]);
    }
}
