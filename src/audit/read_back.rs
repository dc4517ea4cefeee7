//! Reads decided requests back from their records: the way back of `record`.
//!
//! What policies saw comes back as it was, or not at all: a record that says that it is not replayable, or that holds a word
//! that is not known here, gives no request. No hash is checked; `audit verify` does that.

use serde::Deserialize;

use crate::model::{
    Access, CloneSource, Context, CredentialAccess, Fingerprint, Identity, Impact, Origin, OutcomeFacts, Phase,
    Principal, Relation, RequestId, Requested, SandboxFacts, ServerFacts, StatementClass, StatementFacts, Timestamp,
    TlsMode, Traits, Transport, Usage,
};

/// A decided request, as a closing line says it.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// The request's id.
    pub id: String,
    /// When it ended, in UTC.
    pub at: String,
    /// `ok`, `failed` or `abandoned`.
    pub outcome: String,
    /// The code that the caller got.
    pub code: Option<String>,
    /// `allowed` or `refused`.
    pub verdict: String,
    /// The number of the set of policies that decided.
    pub generation: u64,
    /// The digest of that set.
    pub set_digest: String,
    /// What each policy said.
    pub policies: Vec<RecordedPolicy>,
    /// What policies saw, or why it cannot be shown to them again.
    pub request: Result<Context, String>,
}

/// What one policy said.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub struct RecordedPolicy {
    /// Its name.
    pub policy: String,
    /// `enforce` or `shadow`.
    pub mode: String,
    /// `pass`, `abstain`, `deny`, `not-concerned` or `failed`.
    pub said: String,
    /// Code of a denial or of a failure.
    #[serde(default)]
    pub code: Option<String>,
    /// A denial's text for auditors, or how the policy failed.
    #[serde(default)]
    pub detail: Option<String>,
    /// Microseconds that it took.
    pub elapsed_us: u64,
    /// Fuel that it took.
    pub fuel: u64,
}

#[derive(Deserialize)]
struct Line {
    kind: String,
    at: String,
    #[serde(default)]
    id: String,
    #[serde(default)]
    outcome: String,
    #[serde(default)]
    code: Option<String>,
    #[serde(default)]
    decision: Option<DecisionLine>,
    #[serde(default)]
    request: Option<RequestLine>,
}

#[derive(Deserialize)]
struct DecisionLine {
    verdict: String,
    generation: u64,
    digest: String,
    policies: Vec<RecordedPolicy>,
}

/// Reads one line of a log; nothing where it is about no decision. `operation` knows the operations' names.
///
/// # Errors
/// Says what is wrong with a line that is none of a log.
pub fn read_back(line: &str, operation: impl Fn(&str) -> Option<&'static str>) -> Result<Option<Recorded>, String> {
    let line: Line = serde_json::from_str(line).map_err(|_| "it is no line of an audit log".to_owned())?;
    let (true, Some(decision)) = (line.kind == "close", line.decision) else { return Ok(None) };
    let request = match line.request {
        None => Err("the request was not recorded".to_owned()),
        Some(request) => request.context(&line.id, operation),
    };
    Ok(Some(Recorded {
        id: line.id,
        at: line.at,
        outcome: line.outcome,
        code: line.code,
        verdict: decision.verdict,
        generation: decision.generation,
        set_digest: decision.digest,
        policies: decision.policies,
        request,
    }))
}

#[derive(Deserialize)]
struct RequestLine {
    format: u32,
    phase: String,
    operation: String,
    impact: String,
    principal: PrincipalLine,
    #[serde(default)]
    group_owner: Option<String>,
    now_ms: u64,
    #[serde(default)]
    server: Option<ServerLine>,
    #[serde(default)]
    sandbox: Option<SandboxLine>,
    #[serde(default)]
    principal_usage: Option<UsageLine>,
    #[serde(default)]
    group_usage: Option<UsageLine>,
    #[serde(default)]
    statements: Vec<StatementLine>,
    #[serde(default)]
    clone_source: Option<SourceLine>,
    requested: RequestedLine,
    #[serde(default)]
    result: Option<ResultLine>,
    replayable: bool,
}

#[derive(Deserialize)]
struct PrincipalLine {
    subject: String,
    owner: String,
    groups: Vec<String>,
    transport: String,
    client: String,
}

#[derive(Deserialize)]
struct ServerLine {
    profile: String,
    engine: String,
    major: Option<u16>,
    managed: bool,
}

#[derive(Deserialize)]
struct SandboxLine {
    id: String,
    name: String,
    owner: String,
    group_owner: Option<String>,
    labels: Vec<(String, String)>,
    origin: String,
    created_ms: u64,
    expires_ms: u64,
    bytes: Option<u64>,
}

#[derive(Deserialize)]
struct UsageLine {
    live: u32,
    bytes: u64,
}

#[derive(Deserialize)]
struct StatementLine {
    class: String,
    tag: String,
    fingerprint: String,
    read_only_safe: bool,
    #[serde(default)]
    traits: Vec<String>,
    #[serde(default)]
    relations: Vec<(String, String)>,
    #[serde(default)]
    functions: Vec<String>,
}

#[derive(Deserialize)]
struct SourceLine {
    name: Option<String>,
    host: String,
    port: u16,
    database: String,
    user: String,
    tls: String,
    production: bool,
    schema_only: bool,
    reason: Option<String>,
}

#[derive(Deserialize)]
struct RequestedLine {
    #[serde(default)]
    ttl_minutes: Option<u64>,
    #[serde(default)]
    rows: Option<u64>,
    #[serde(default)]
    timeout_ms: Option<u64>,
    read_only: bool,
    #[serde(default)]
    credentials: Option<String>,
    #[serde(default)]
    labels: Vec<(String, String)>,
    #[serde(default)]
    extensions: Vec<String>,
    #[serde(default)]
    command: Option<(String, u64)>,
}

#[derive(Deserialize)]
struct ResultLine {
    rows: u64,
    bytes: u64,
    elapsed_ms: u64,
    columns: Vec<String>,
}

/// Finds the value that a word stands for.
fn value<T: Copy>(all: &[T], word: &str, of: impl Fn(T) -> &'static str) -> Result<T, String> {
    all.iter().copied().find(|value| of(*value) == word).ok_or_else(|| unknown(word))
}

fn unknown(word: &str) -> String {
    let word: String = word.escape_default().take(64).collect();
    format!("it holds `{word}`, which this version does not know")
}

impl RequestLine {
    fn context(self, id: &str, operation: impl Fn(&str) -> Option<&'static str>) -> Result<Context, String> {
        if self.format != 1 {
            return Err(format!("its format is {}, and this version reads 1", self.format));
        }
        if !self.replayable {
            return Err("it leaves out something that policies saw".to_owned());
        }
        let usage = |line: UsageLine| Usage { live: line.live, bytes: line.bytes };
        let transports = [Transport::Stdio, Transport::Http, Transport::Cli, Transport::Internal];
        Ok(Context {
            request_id: id.parse::<RequestId>().map_err(|_| "its id is none".to_owned())?,
            phase: value(&[Phase::Visible, Phase::Before, Phase::After], &self.phase, Phase::as_str)?,
            operation: operation(&self.operation).ok_or_else(|| unknown(&self.operation))?,
            impact: value(&Impact::ALL, &self.impact, Impact::as_str)?,
            principal: Principal {
                subject: self.principal.subject,
                owner: self.principal.owner,
                groups: self.principal.groups,
                transport: value(&transports, &self.principal.transport, Transport::as_str)?,
                client: self.principal.client,
                identity: Identity::Certain,
            },
            group_owner: self.group_owner,
            now: Timestamp::from_unix_ms(self.now_ms),
            server: self.server.map(|line| ServerFacts {
                profile: line.profile,
                engine: line.engine,
                major: line.major,
                managed: line.managed,
            }),
            sandbox: self.sandbox.map(SandboxLine::facts).transpose()?,
            principal_usage: self.principal_usage.map(usage),
            group_usage: self.group_usage.map(usage),
            statements: self.statements.into_iter().map(StatementLine::facts).collect::<Result<_, _>>()?,
            statement_texts: Vec::new(),
            clone_source: self.clone_source.map(SourceLine::facts).transpose()?,
            requested: self.requested.facts()?,
            outcome: self.result.map(|line| OutcomeFacts {
                rows: line.rows,
                bytes: line.bytes,
                elapsed_ms: line.elapsed_ms,
                columns: line.columns,
            }),
        })
    }
}

impl SandboxLine {
    fn facts(self) -> Result<SandboxFacts, String> {
        let origins = [Origin::Empty, Origin::Clone, Origin::Fork, Origin::Template];
        Ok(SandboxFacts {
            id: self.id.parse().map_err(|_| "the id of its sandbox is none".to_owned())?,
            name: self.name,
            owner: self.owner,
            group_owner: self.group_owner,
            labels: self.labels,
            origin: value(&origins, &self.origin, Origin::as_str)?,
            created_at: Timestamp::from_unix_ms(self.created_ms),
            expires_at: Timestamp::from_unix_ms(self.expires_ms),
            bytes: self.bytes,
        })
    }
}

impl StatementLine {
    fn facts(self) -> Result<StatementFacts, String> {
        let mut traits = Traits::default();
        for word in &self.traits {
            let (one, _) = Traits::NAMED.into_iter().find(|(_, name)| name == word).ok_or_else(|| unknown(word))?;
            traits.insert(one);
        }
        let relation = |(access, name): (String, String)| {
            let access = value(&[Access::Reads, Access::Writes, Access::Defines], &access, Access::as_str)?;
            Ok(Relation { name, access })
        };
        let fingerprint = u64::from_str_radix(&self.fingerprint, 16).map_err(|_| unknown(&self.fingerprint))?;
        Ok(StatementFacts {
            class: value(&StatementClass::ALL, &self.class, StatementClass::as_str)?,
            tag: self.tag,
            traits,
            relations: self.relations.into_iter().map(relation).collect::<Result<_, String>>()?,
            functions: self.functions,
            read_only_safe: self.read_only_safe,
            fingerprint: Fingerprint(fingerprint),
        })
    }
}

impl SourceLine {
    fn facts(self) -> Result<CloneSource, String> {
        let modes = [TlsMode::Disable, TlsMode::Prefer, TlsMode::Require, TlsMode::VerifyCa, TlsMode::VerifyFull];
        Ok(CloneSource {
            name: self.name,
            host: self.host,
            port: self.port,
            database: self.database,
            user: self.user,
            tls: value(&modes, &self.tls, super::record::tls_word)?,
            production: self.production,
            schema_only: self.schema_only,
            reason: self.reason,
        })
    }
}

impl RequestedLine {
    fn facts(self) -> Result<Requested, String> {
        let accesses = [CredentialAccess::Owner, CredentialAccess::ReadOnly];
        let credentials = self.credentials.map(|word| value(&accesses, &word, super::record::access_word));
        Ok(Requested {
            ttl_minutes: self.ttl_minutes,
            rows: self.rows,
            timeout_ms: self.timeout_ms,
            read_only: self.read_only,
            credentials: credentials.transpose()?,
            labels: self.labels,
            extensions: self.extensions,
            // One with arguments is not replayable.
            command: self.command.map(|(program, _)| program).into_iter().collect(),
        })
    }
}
