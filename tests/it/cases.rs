//! The cases of the bundled policies, run by the components that are committed, in the real host.
//!
//! A case's `sql` is read by the real reader here; the `statements` beside it serve tests without one, and must be
//! what the reader says. `policies/README.md` describes the format.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use pgsandbox::model::{
    Access, CloneSource, Context, CredentialAccess, Fingerprint, Identity, Impact, Mode, Obligation, Origin,
    OutcomeFacts, Phase, PolicyDecision, Principal, Relation, RequestId, Requested, Said, SandboxFacts, SandboxId,
    Scope, ServerFacts, StatementClass, StatementFacts, Timestamp, TlsMode, Traits, Transport, Usage, Verdict,
};
use pgsandbox::policy::wasm::{Host, HostSettings};
use pgsandbox::policy::{Component, Limits, Set, Spec};
use toml::{Table, Value};

macro_rules! policies {
    ($($test:ident $name:literal,)+) => {$(
        #[test]
        fn $test() {
            check($name);
        }
    )+};
}

policies! {
    the_cases_of_clone_source_come_out "clone-source",
    the_cases_of_extensions_come_out "extensions",
    the_cases_of_host_command_come_out "host-command",
    the_cases_of_ownership_come_out "ownership",
    the_cases_of_quota_come_out "quota",
    the_cases_of_rate_limit_come_out "rate-limit",
    the_cases_of_readonly_come_out "readonly",
    the_cases_of_row_limit_come_out "row-limit",
    the_cases_of_statement_guard_come_out "statement-guard",
}

fn check(name: &str) {
    let host = Host::new(&HostSettings::default()).unwrap();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("policies").join(name);
    let read = |file: &str| std::fs::read_to_string(folder.join(file)).unwrap();
    let component = std::fs::read(folder.join(format!("{name}.wasm"))).unwrap();
    let file: Table = read("cases.toml").parse().unwrap();
    let given = file.get("given").and_then(Value::as_table).cloned().unwrap_or_default();
    // Loading compiles: once for each settings that cases have.
    let mut sets: BTreeMap<String, Set> = BTreeMap::new();
    let mut wrong = Vec::new();
    for case in file["case"].as_array().unwrap() {
        let mut all = given.clone();
        all.extend(case.as_table().unwrap().clone());
        let case = Case(&all);
        let title = case.text("name");
        let settings = all.get("settings").map_or_else(|| read("default.json"), |s| serde_json::to_string(s).unwrap());
        let set = sets.entry(settings.clone()).or_insert_with(|| {
            let spec = Spec {
                name: name.to_owned(),
                component: Component::new(component.clone()),
                pin: None,
                mode: Mode::Enforce,
                settings,
                sections: Vec::new(),
                limits: Limits::default(),
                sees_text: false,
                of: None,
            };
            Set::load(&host, &[spec], 1).unwrap_or_else(|error| panic!("{title}: {error}"))
        });
        let (context, misread) = case.context();
        wrong.extend(misread.map(|misread| format!("{title}: {misread}")));
        let decision = set.decide(&context, &[]);
        let said = match &decision.reports[0].said {
            Said::Decided(decision) => told(decision),
            other @ (Said::NotConcerned | Said::Failed(_)) => format!("{other:?}"),
        };
        let expected = case.expected();
        if said != expected {
            wrong.push(format!("{title}:\n  expected {expected}\n  came     {said}"));
        }
    }
    assert!(wrong.is_empty(), "policies/{name}/cases.toml\n{}", wrong.join("\n"));
}

fn told(decision: &PolicyDecision) -> String {
    let verdict = match &decision.verdict {
        Verdict::Pass => "pass".to_owned(),
        Verdict::Abstain => "abstain".to_owned(),
        Verdict::Deny(denial) => format!("deny {}", denial.code),
    };
    let mut obligations: Vec<_> = decision.obligations.iter().map(obligation).collect();
    obligations.sort();
    let mut charges: Vec<_> = decision.charges.iter().map(|c| (c.bucket.clone(), i64::from(c.cost))).collect();
    charges.sort();
    format!("{verdict} {obligations:?} {charges:?} {}", decision.warnings.len())
}

fn obligation(obligation: &Obligation) -> String {
    let kind = obligation.kind().as_str();
    let of = |scope: &Scope, limit: &u64| match scope {
        Scope::Principal => format!("{kind} principal {limit}"),
        Scope::Group => format!("{kind} group {limit}"),
    };
    match obligation {
        Obligation::ReadOnly => kind.to_owned(),
        Obligation::MaxRows(n)
        | Obligation::MaxResultBytes(n)
        | Obligation::StatementTimeoutMs(n)
        | Obligation::MaxTtlMinutes(n) => format!("{kind} {n}"),
        Obligation::MaxLiveSandboxes { scope, limit } | Obligation::MaxDatabaseBytes { scope, limit } => {
            of(scope, limit)
        }
        Obligation::Mask { relation, column } => format!("{kind} {relation}.{column}"),
        Obligation::AddLabel { key, value } => format!("{kind} {key}={value}"),
        Obligation::RequireLabel(text) | Obligation::Consent(text) | Obligation::Approval(text) => {
            format!("{kind} {text}")
        }
    }
}

/// A case, or a table inside one.
struct Case<'a>(&'a Table);

impl<'a> Case<'a> {
    fn maybe(&self, key: &str) -> Option<String> {
        self.0.get(key).map(|value| value.as_str().unwrap().to_owned())
    }

    fn text(&self, key: &str) -> String {
        self.maybe(key).unwrap_or_default()
    }

    fn number(&self, key: &str) -> Option<u64> {
        self.0.get(key).map(|value| value.as_integer().unwrap().try_into().unwrap())
    }

    fn flag(&self, key: &str) -> bool {
        self.0.get(key).is_some_and(|value| value.as_bool().unwrap())
    }

    fn list(&self, key: &str) -> Vec<String> {
        let texts = |value: &Value| value.as_array().unwrap().iter().map(|v| v.as_str().unwrap().to_owned()).collect();
        self.0.get(key).map(texts).unwrap_or_default()
    }

    fn table(&self, key: &str) -> Option<Case<'a>> {
        self.0.get(key).map(|value| Case(value.as_table().unwrap()))
    }

    fn pairs(&self, key: &str) -> Vec<(String, String)> {
        let pairs = |case: Case<'_>| case.0.iter().map(|(k, v)| (k.clone(), v.as_str().unwrap().to_owned())).collect();
        self.table(key).map(pairs).unwrap_or_default()
    }

    fn expected(&self) -> String {
        let expect = self.table("expect").unwrap();
        let verdict = [expect.text("verdict"), expect.text("code")].join(" ");
        let mut obligations = expect.list("obligations");
        obligations.sort();
        let charges: Vec<_> = expect.table("charges").map_or_else(Vec::new, |charges| {
            charges.0.iter().map(|(bucket, cost)| (bucket.clone(), cost.as_integer().unwrap())).collect()
        });
        format!("{} {obligations:?} {charges:?} {}", verdict.trim(), expect.number("warnings").unwrap_or(0))
    }

    /// Makes the context; and says where the reader and the case's facts differ.
    fn context(&self) -> (Context, Option<String>) {
        let owner = self.maybe("as").unwrap_or_else(|| "ana".into());
        let now = Timestamp::from_unix_ms(self.number("now_ms").unwrap_or(1_800_000_000_000));
        let operation = self.text("operation").leak();
        let given: Vec<StatementFacts> = self
            .0
            .get("statements")
            .map(|list| list.as_array().unwrap().iter().map(|v| Case(v.as_table().unwrap()).statement()).collect())
            .unwrap_or_default();
        let (statements, misread) = match self.maybe("sql") {
            Some(sql) => {
                let script = pgsandbox::sql::read(&sql).unwrap();
                let read: Vec<_> = script.statements.iter().map(|statement| statement.facts.clone()).collect();
                let differs = (brief(&read) != brief(&given))
                    .then(|| format!("the reader says\n  {:?}\nand the case\n  {:?}", brief(&read), brief(&given)));
                (read, differs)
            }
            None => (given, None),
        };
        let usage = |case: Case<'_>| Usage {
            live: case.number("live").unwrap_or(0).try_into().unwrap(),
            bytes: case.number("bytes").unwrap_or(0),
        };
        let requested = self.table("requested");
        let context = Context {
            request_id: RequestId::fresh(),
            phase: match self.text("phase").as_str() {
                "visible" => Phase::Visible,
                "after" => Phase::After,
                _ => Phase::Before,
            },
            operation,
            impact: impact(&self.maybe("impact").unwrap_or_else(|| default_impact(operation).into())),
            principal: Principal {
                subject: self.maybe("subject").unwrap_or_else(|| owner.clone()),
                owner: owner.clone(),
                groups: self.list("groups"),
                transport: match self.text("transport").as_str() {
                    "http" => Transport::Http,
                    "cli" => Transport::Cli,
                    "internal" => Transport::Internal,
                    _ => Transport::Stdio,
                },
                client: self.text("client"),
                identity: Identity::Certain,
            },
            group_owner: self.maybe("group_owner"),
            now,
            server: Some(ServerFacts {
                profile: self.maybe("profile").unwrap_or_else(|| "local".into()),
                engine: "postgres".into(),
                major: Some(15),
                managed: true,
            }),
            sandbox: self.table("sandbox").map(|case| SandboxFacts {
                id: SandboxId::fresh(),
                name: "pgsb_case_0123456789".into(),
                owner: case.maybe("owner").unwrap_or(owner),
                group_owner: case.maybe("group_owner"),
                labels: case.pairs("labels"),
                origin: Origin::Empty,
                created_at: now,
                expires_at: now.plus(Duration::from_secs(3600)),
                bytes: case.number("bytes"),
            }),
            principal_usage: self.table("usage").map(usage),
            group_usage: self.table("group_usage").map(usage),
            statements,
            statement_texts: Vec::new(),
            clone_source: self.table("source").map(|case| case.source()),
            requested: requested.map_or_else(Requested::default, |case| Requested {
                ttl_minutes: case.number("ttl_minutes"),
                rows: case.number("rows"),
                timeout_ms: case.number("timeout_ms"),
                read_only: case.flag("read_only"),
                credentials: case.maybe("credentials").map(|word| match word.as_str() {
                    "owner" => CredentialAccess::Owner,
                    _ => CredentialAccess::ReadOnly,
                }),
                labels: case.pairs("labels"),
                extensions: case.list("extensions"),
                command: case.list("command"),
            }),
            outcome: self.table("outcome").map(|case| OutcomeFacts {
                rows: case.number("rows").unwrap_or(0),
                bytes: case.number("bytes").unwrap_or(0),
                elapsed_ms: case.number("elapsed_ms").unwrap_or(0),
                columns: case.list("columns"),
            }),
        };
        (context, misread)
    }

    fn statement(&self) -> StatementFacts {
        let word = self.text("class");
        let class = StatementClass::ALL.into_iter().find(|class| class.as_str() == word).unwrap();
        let mut traits = Traits::default();
        for word in self.list("traits") {
            traits.insert(Traits::NAMED.iter().find(|(_, name)| *name == word).unwrap().0);
        }
        let touched = [("reads", Access::Reads), ("writes", Access::Writes), ("defines", Access::Defines)];
        StatementFacts {
            class,
            tag: self.text("tag"),
            traits,
            relations: touched
                .into_iter()
                .flat_map(|(key, access)| self.list(key).into_iter().map(move |name| Relation { name, access }))
                .collect(),
            functions: self.list("functions"),
            read_only_safe: self.flag("read_only_safe"),
            fingerprint: Fingerprint(0),
        }
    }

    fn source(&self) -> CloneSource {
        CloneSource {
            name: self.maybe("name"),
            host: self.maybe("host").unwrap_or_else(|| "db.example.com".into()),
            port: self.number("port").unwrap_or(5432).try_into().unwrap(),
            database: self.maybe("database").unwrap_or_else(|| "app".into()),
            user: self.maybe("user").unwrap_or_else(|| "reader".into()),
            tls: match self.text("tls").as_str() {
                "disabled" => TlsMode::Disable,
                "prefer" => TlsMode::Prefer,
                "require" => TlsMode::Require,
                "verify-ca" => TlsMode::VerifyCa,
                _ => TlsMode::VerifyFull,
            },
            production: self.flag("production"),
            schema_only: self.flag("schema_only"),
            reason: self.maybe("reason"),
        }
    }
}

/// What a case says of statements, without what only the reader knows.
fn brief(statements: &[StatementFacts]) -> Vec<String> {
    let one = |s: &StatementFacts| {
        let traits: Vec<_> = s.traits.words().collect();
        format!("{} {} {traits:?} {:?} {:?} {}", s.class.as_str(), s.tag, s.relations, s.functions, s.read_only_safe)
    };
    statements.iter().map(one).collect()
}

fn impact(word: &str) -> Impact {
    Impact::ALL.into_iter().find(|impact| impact.as_str() == word).unwrap()
}

fn default_impact(operation: &str) -> &'static str {
    match operation {
        "run_sql" | "explain_query" | "extend_database" | "approve" | "cancel_task" => "writes",
        "create_database" | "fork_database" => "creates",
        "delete_database" | "cleanup_expired" | "reset_database" => "destroys",
        "get_connection_string" => "discloses",
        "clone_database"
        | "ensure_postgres"
        | "prepare_for_repo"
        | "run_repo_command"
        | "seed_database"
        | "validate_schema_change" => "reaches-out",
        _ => "reads",
    }
}
