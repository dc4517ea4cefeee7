//! Tests policies without WebAssembly: requests to begin with, and the runner of cases files.
//!
//! A cases file holds requests in short form and what is expected of them; `policies/README.md` describes it. Here a
//! case's statements come from the facts beside its `sql`; `pgsandbox policy test` has the same file's `sql` read by
//! the real classifier and run by the component that will be deployed.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use crate::{
    Access, Balance, CloneSource, CredentialAccess, Decision, Impact, Label, Obligation, Origin, Outcome, Phase,
    Policy, Principal, Relation, Request, Requested, Sandbox, Scope, Server, Statement, StatementClass,
    StatementTraits, Tls, Transport, Usage, Verdict,
};

/// The operations that policies are asked about, each with the impact that a case assumes unless it names another.
pub const OPERATIONS: &[(&str, Impact)] = &[
    ("approve", Impact::Writes),
    ("cancel_task", Impact::Writes),
    ("cleanup_expired", Impact::Destroys),
    ("clone_database", Impact::ReachesOut),
    ("complete", Impact::Reads),
    ("create_database", Impact::Creates),
    ("create_sandbox_from_template", Impact::Creates),
    ("create_schema_snapshot", Impact::Creates),
    ("create_template_from_sandbox", Impact::Creates),
    ("delete_database", Impact::Destroys),
    ("delete_schema_snapshot", Impact::Destroys),
    ("delete_template", Impact::Destroys),
    ("describe_schema", Impact::Reads),
    ("diff_schema_snapshot", Impact::Reads),
    ("doctor", Impact::Reads),
    ("ensure_postgres", Impact::ReachesOut),
    ("explain_policy", Impact::Reads),
    ("explain_query", Impact::Writes),
    ("export_template", Impact::Creates),
    ("extend_database", Impact::Writes),
    ("fork_database", Impact::Creates),
    ("get_connection_string", Impact::Discloses),
    ("get_prompt", Impact::Reads),
    ("get_task", Impact::Reads),
    ("import_template", Impact::Creates),
    ("list_approvals", Impact::Reads),
    ("list_databases", Impact::Reads),
    ("list_extensions", Impact::Reads),
    ("list_profiles", Impact::Reads),
    ("list_prompts", Impact::Reads),
    ("list_resource_templates", Impact::Reads),
    ("list_resources", Impact::Reads),
    ("list_schema_snapshots", Impact::Reads),
    ("list_templates", Impact::Reads),
    ("prepare_for_repo", Impact::ReachesOut),
    ("read_resource", Impact::Reads),
    ("reset_database", Impact::Destroys),
    ("run_repo_command", Impact::ReachesOut),
    ("run_sql", Impact::Writes),
    ("schema_diff", Impact::Reads),
    ("schema_digest", Impact::Reads),
    ("seed_database", Impact::ReachesOut),
    ("validate_schema_change", Impact::ReachesOut),
    ("verify_sandbox", Impact::Reads),
];

/// Makes a request of principal `ana` for an operation on profile `local`, with nothing else in it.
pub fn request(operation: &str) -> Request {
    let impact = OPERATIONS.iter().find(|(name, _)| *name == operation).map_or(Impact::Reads, |(_, impact)| *impact);
    Request {
        phase: Phase::Before,
        operation: operation.to_owned(),
        impact,
        principal: Principal {
            subject: "ana".into(),
            owner: "ana".into(),
            groups: Vec::new(),
            transport: Transport::Stdio,
            client: String::new(),
        },
        group_owner: None,
        now_ms: 1_800_000_000_000,
        server: Some(Server { profile: "local".into(), engine: "postgres".into(), major: Some(15), managed: true }),
        sandbox: None,
        principal_usage: None,
        group_usage: None,
        balances: Vec::new(),
        statements: Vec::new(),
        clone_source: None,
        requested: Requested {
            ttl_minutes: None,
            rows: None,
            timeout_ms: None,
            read_only: false,
            credentials: None,
            labels: Vec::new(),
            extensions: Vec::new(),
            command: Vec::new(),
        },
        outcome: None,
    }
}

/// Configures a policy from settings, a JSON object.
///
/// # Panics
/// Panics if the settings are refused.
pub fn configured<P: Policy>(settings: &str) -> P {
    match crate::settings::parse(settings).and_then(P::configure) {
        Ok((policy, _)) => policy,
        Err(problems) => panic!("the settings are refused: {problems:?}"),
    }
}

/// Returns the paths and messages with which a policy refuses settings; empty if it takes them.
pub fn problems<P: Policy>(settings: &str) -> Vec<(String, String)> {
    match crate::settings::parse(settings).and_then(P::configure) {
        Ok(_) => Vec::new(),
        Err(problems) => problems.into_iter().map(|p| (p.path, p.message)).collect(),
    }
}

/// Checks that a policy's description, its settings schema and its default settings fit together.
///
/// # Panics
/// Panics if they do not.
pub fn check_description<P: Policy>(default_settings: &str) {
    let about = P::describe();
    for (what, list) in [("covers", &about.covers), ("concerns", &about.concerns), ("codes", &about.codes)] {
        let distinct: BTreeSet<_> = list.iter().collect();
        assert_eq!(distinct.len(), list.len(), "{what} has a repetition");
    }
    for operation in &about.covers {
        assert!(about.concerns.contains(operation) || about.concerns.iter().any(|c| c == "*"), "{operation}");
    }
    for operation in about.concerns.iter().filter(|c| *c != "*") {
        assert!(OPERATIONS.iter().any(|(name, _)| name == operation), "`{operation}` is not an operation");
    }
    let schema: serde_json::Value = serde_json::from_str(&about.settings_schema).expect("the schema is JSON");
    assert_eq!(schema["type"], "object");
    assert_eq!(schema["additionalProperties"], false, "unknown keys are refused");
    let properties = schema["properties"].as_object().expect("the schema has properties");
    let defaults: serde_json::Value = serde_json::from_str(default_settings).expect("the default settings are JSON");
    for key in defaults.as_object().expect("the default settings are an object").keys() {
        assert!(properties.contains_key(key), "the schema does not know `{key}`");
    }
    for (key, property) in properties {
        assert!(property["description"].is_string(), "`{key}` has no description");
        // Whatever the schema names, the settings must know too: `null` may be the wrong type, never an unknown key.
        let lone = serde_json::json!({ key: null }).to_string();
        let unknown = problems::<P>(&lone).into_iter().any(|(_, message)| message.starts_with("unknown field"));
        assert!(!unknown, "the schema names `{key}`, which the settings do not know");
    }
    assert_eq!(problems::<P>(default_settings), [], "the default settings are refused");
    assert!(!problems::<P>(r#"{"no_such_key": 1}"#).is_empty(), "an unknown key is taken");
}

/// Runs a cases file on a policy; `default_settings` serve the cases that bring none of their own.
///
/// # Panics
/// Panics if a case comes out otherwise than expected, if the file cannot be read, or if a declared code is never met.
pub fn check_cases<P: Policy>(cases: &str, default_settings: &str) {
    let file: CasesFile = toml::from_str(cases).expect("the cases file can be read");
    assert!(!file.case.is_empty(), "the cases file has no cases");
    let codes: BTreeSet<String> = P::describe().codes.into_iter().collect();
    let mut met = BTreeSet::new();
    let mut wrong = Vec::new();
    for given in file.case {
        let mut table = file.given.clone();
        table.extend(given);
        let name = table.get("name").and_then(toml::Value::as_str).unwrap_or("?").to_owned();
        let case: Case = toml::Value::Table(table).try_into().unwrap_or_else(|e| panic!("case `{name}`: {e}"));
        let settings = case.settings.as_ref().map_or_else(
            || default_settings.to_owned(),
            |settings| serde_json::to_string(settings).expect("settings are JSON"),
        );
        let expected = case.expect.clone().told();
        let decision = configured::<P>(&settings).evaluate(&case.request());
        if let Verdict::Deny(denial) = &decision.verdict {
            assert!(codes.contains(&denial.code), "case `{name}`: code `{}` is not declared", denial.code);
            assert!(!denial.message.is_empty() && !denial.audit.is_empty(), "case `{name}`: a denial says nothing");
            met.insert(denial.code.clone());
        }
        let came = told(&decision);
        if came != expected {
            wrong.push(format!("case `{name}`\n  expected {expected:?}\n  came     {came:?}\n  {decision:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let unmet: Vec<_> = codes.difference(&met).collect();
    assert!(unmet.is_empty(), "no case meets the declared codes {unmet:?}");
}

/// A decision as cases files write it.
#[derive(Debug, PartialEq, Eq)]
struct Told {
    verdict: String,
    code: Option<String>,
    obligations: Vec<String>,
    charges: BTreeMap<String, u32>,
    warnings: usize,
}

fn told(decision: &Decision) -> Told {
    let (verdict, code) = match &decision.verdict {
        Verdict::Pass => ("pass", None),
        Verdict::Abstain => ("abstain", None),
        Verdict::Deny(denial) => ("deny", Some(denial.code.clone())),
    };
    let mut obligations: Vec<_> = decision.obligations.iter().map(obligation_text).collect();
    obligations.sort();
    Told {
        verdict: verdict.to_owned(),
        code,
        obligations,
        charges: decision.charges.iter().map(|c| (c.bucket.clone(), c.cost)).collect(),
        warnings: decision.warnings.len(),
    }
}

/// Writes an obligation as cases files do: its kind, then what it demands.
pub fn obligation_text(obligation: &Obligation) -> String {
    let quota = |kind: &str, scope: Scope, limit: u64| format!("{kind} {} {limit}", scope.as_str());
    match obligation {
        Obligation::ReadOnly => "read-only".into(),
        Obligation::MaxRows(n) => format!("max-rows {n}"),
        Obligation::MaxResultBytes(n) => format!("max-result-bytes {n}"),
        Obligation::StatementTimeoutMs(n) => format!("statement-timeout-ms {n}"),
        Obligation::MaxTtlMinutes(n) => format!("max-ttl-minutes {n}"),
        Obligation::MaxLiveSandboxes(q) => quota("max-live-sandboxes", q.scope, q.limit),
        Obligation::MaxDatabaseBytes(q) => quota("max-database-bytes", q.scope, q.limit),
        Obligation::Mask(m) => format!("mask {}.{}", m.relation, m.column),
        Obligation::RequireLabel(key) => format!("require-label {key}"),
        Obligation::AddLabel(label) => format!("add-label {}={}", label.key, label.value),
        Obligation::Consent(question) => format!("consent {question}"),
        Obligation::Approval(group) => format!("approval {group}"),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CasesFile {
    /// What every case begins with.
    #[serde(default)]
    given: toml::Table,
    case: Vec<toml::Table>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    #[allow(dead_code, reason = "read from the table, for messages")]
    name: String,
    settings: Option<toml::Table>,
    #[serde(rename = "as")]
    owner: Option<String>,
    subject: Option<String>,
    #[serde(default)]
    groups: Vec<String>,
    transport: Option<String>,
    #[serde(default)]
    client: String,
    operation: String,
    phase: Option<String>,
    impact: Option<String>,
    group_owner: Option<String>,
    now_ms: Option<u64>,
    profile: Option<String>,
    engine: Option<String>,
    major: Option<u16>,
    managed: Option<bool>,
    sandbox: Option<GivenSandbox>,
    usage: Option<GivenUsage>,
    group_usage: Option<GivenUsage>,
    #[serde(default)]
    balances: BTreeMap<String, u64>,
    sql: Option<String>,
    #[serde(default)]
    statements: Vec<GivenStatement>,
    source: Option<GivenSource>,
    #[serde(default)]
    requested: GivenRequested,
    outcome: Option<GivenOutcome>,
    expect: Expect,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GivenSandbox {
    id: Option<String>,
    name: Option<String>,
    owner: Option<String>,
    group_owner: Option<String>,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    origin: Option<String>,
    age_seconds: Option<u64>,
    seconds_left: Option<i64>,
    bytes: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GivenUsage {
    #[serde(default)]
    live: u32,
    #[serde(default)]
    bytes: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GivenStatement {
    class: String,
    #[serde(default)]
    tag: String,
    #[serde(default)]
    traits: Vec<String>,
    #[serde(default)]
    reads: Vec<String>,
    #[serde(default)]
    writes: Vec<String>,
    #[serde(default)]
    defines: Vec<String>,
    #[serde(default)]
    functions: Vec<String>,
    #[serde(default)]
    read_only_safe: bool,
    text: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GivenSource {
    name: Option<String>,
    host: Option<String>,
    port: Option<u16>,
    database: Option<String>,
    user: Option<String>,
    tls: Option<String>,
    #[serde(default)]
    production: bool,
    #[serde(default)]
    schema_only: bool,
    reason: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct GivenRequested {
    ttl_minutes: Option<u64>,
    rows: Option<u64>,
    timeout_ms: Option<u64>,
    read_only: bool,
    credentials: Option<String>,
    labels: BTreeMap<String, String>,
    extensions: Vec<String>,
    command: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct GivenOutcome {
    rows: u64,
    bytes: u64,
    elapsed_ms: u64,
    columns: Vec<String>,
}

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Expect {
    verdict: String,
    code: Option<String>,
    #[serde(default)]
    obligations: Vec<String>,
    #[serde(default)]
    charges: BTreeMap<String, u32>,
    #[serde(default)]
    warnings: usize,
}

impl Expect {
    fn told(mut self) -> Told {
        self.obligations.sort();
        Told {
            verdict: self.verdict,
            code: self.code,
            obligations: self.obligations,
            charges: self.charges,
            warnings: self.warnings,
        }
    }
}

impl Case {
    fn request(self) -> Request {
        let mut request = request(&self.operation);
        assert!(
            self.impact.is_some() || OPERATIONS.iter().any(|(name, _)| *name == self.operation),
            "`{}` is not an operation; name its `impact`",
            self.operation
        );
        assert!(
            self.sql.is_none() || !self.statements.is_empty(),
            "`sql` needs the facts of its `statements` beside it"
        );
        set_word(&mut request.phase, self.phase.as_deref(), Phase::from_word);
        set_word(&mut request.impact, self.impact.as_deref(), Impact::from_word);
        set_word(&mut request.principal.transport, self.transport.as_deref(), Transport::from_word);
        set(&mut request.principal.owner, self.owner);
        request.principal.subject = self.subject.unwrap_or_else(|| request.principal.owner.clone());
        request.principal.groups = self.groups;
        request.principal.groups.sort();
        request.principal.client = self.client;
        request.group_owner = self.group_owner;
        set(&mut request.now_ms, self.now_ms);
        if let Some(server) = &mut request.server {
            set(&mut server.profile, self.profile);
            set(&mut server.engine, self.engine);
            set(&mut server.managed, self.managed);
            server.major = self.major.or(server.major);
        }
        let owner = request.principal.owner.clone();
        request.sandbox = self.sandbox.map(|given| given.fact(owner));
        request.principal_usage = self.usage.map(GivenUsage::fact);
        request.group_usage = self.group_usage.map(GivenUsage::fact);
        request.balances = self.balances.into_iter().map(|(bucket, remaining)| Balance { bucket, remaining }).collect();
        request.statements = self.statements.into_iter().map(GivenStatement::fact).collect();
        request.clone_source = self.source.map(GivenSource::fact);
        request.requested = self.requested.fact();
        request.outcome = self.outcome.map(|given| Outcome {
            rows: given.rows,
            bytes: given.bytes,
            elapsed_ms: given.elapsed_ms,
            columns: given.columns,
        });
        request
    }
}

fn set<T>(slot: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *slot = value;
    }
}

fn set_word<T>(slot: &mut T, word: Option<&str>, from_word: fn(&str) -> Option<T>) {
    if let Some(word) = word {
        *slot = from_word(word).unwrap_or_else(|| panic!("`{word}` is not a word of its set"));
    }
}

fn labels(given: BTreeMap<String, String>) -> Vec<Label> {
    given.into_iter().map(|(key, value)| Label { key, value }).collect()
}

impl GivenSandbox {
    fn fact(self, owner: String) -> Sandbox {
        let mut origin = Origin::Empty;
        set_word(&mut origin, self.origin.as_deref(), Origin::from_word);
        Sandbox {
            id: self.id.unwrap_or_else(|| "00000000-0000-4000-8000-000000000001".into()),
            name: self.name.unwrap_or_else(|| "pgsb_case_0123456789".into()),
            owner: self.owner.unwrap_or(owner),
            group_owner: self.group_owner,
            labels: labels(self.labels),
            origin,
            age_seconds: self.age_seconds.unwrap_or(60),
            seconds_left: self.seconds_left.unwrap_or(3600),
            bytes: self.bytes,
        }
    }
}

impl GivenUsage {
    fn fact(self) -> Usage {
        Usage { live: self.live, bytes: self.bytes }
    }
}

impl GivenStatement {
    fn fact(self) -> Statement {
        let mut class = StatementClass::Unparsed;
        set_word(&mut class, Some(&self.class), StatementClass::from_word);
        let mut traits = StatementTraits::empty();
        for word in &self.traits {
            traits |= StatementTraits::from_word(word).unwrap_or_else(|| panic!("`{word}` is not a trait"));
        }
        let touched = [(Access::Reads, self.reads), (Access::Writes, self.writes), (Access::Defines, self.defines)];
        let relations = touched
            .into_iter()
            .flat_map(|(access, names)| names.into_iter().map(move |name| Relation { name, access }))
            .collect();
        Statement {
            class,
            tag: self.tag,
            traits,
            relations,
            functions: self.functions,
            read_only_safe: self.read_only_safe,
            text: self.text,
        }
    }
}

impl GivenSource {
    fn fact(self) -> CloneSource {
        let mut tls = Tls::VerifyFull;
        set_word(&mut tls, self.tls.as_deref(), Tls::from_word);
        CloneSource {
            name: self.name,
            host: self.host.unwrap_or_else(|| "db.example.com".into()),
            port: self.port.unwrap_or(5432),
            database: self.database.unwrap_or_else(|| "app".into()),
            user: self.user.unwrap_or_else(|| "reader".into()),
            tls,
            production: self.production,
            schema_only: self.schema_only,
            reason: self.reason,
        }
    }
}

impl GivenRequested {
    fn fact(self) -> Requested {
        let credentials = self.credentials.map(|word| {
            CredentialAccess::from_word(&word).unwrap_or_else(|| panic!("`{word}` is not a kind of credentials"))
        });
        Requested {
            ttl_minutes: self.ttl_minutes,
            rows: self.rows,
            timeout_ms: self.timeout_ms,
            read_only: self.read_only,
            credentials,
            labels: labels(self.labels),
            extensions: self.extensions,
            command: self.command,
        }
    }
}
