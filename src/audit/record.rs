//! What a line says: the request as it was decided, the decision, and the outcome, as JSON.
//!
//! The order of keys is fixed, so equal requests give equal records. Statement texts, literals and the
//! arguments of repository commands are never in a record, and secrets cannot be: [`crate::model::Secret`]
//! has no way into it. Whatever is over a bound is cut, and a record that was cut, or that leaves out
//! something policies saw, says `replayable: false`. Request and trace ids stand beside the record, not in it.

use std::borrow::Cow;
use std::time::Duration;

use serde::Serialize;

use super::Beside;
use super::decided::{DecisionRecord, ObligationRecord, obligations};
use super::reload::{Reload, ReloadRecord};
use crate::model::{
    Context, CredentialAccess, Decision, Failure, Obligations, Principal, RequestId, SandboxId, StatementFacts,
    Timestamp, TlsMode, TraceIds, Usage,
};

/// The longest text of a record, in bytes: names are 63, policies' and callers' reasons a few sentences.
pub(super) const TEXT_BYTES_MAX: usize = 512;
/// The most text in one part of a record, in bytes. Three parts, escaped, stay well under what is read back.
pub(super) const PART_BYTES_MAX: usize = 128 << 10;
/// The most statements of one record; a migration file has tens.
pub(super) const STATEMENTS_MAX: usize = 200;
/// The most names in one list of a record.
pub(super) const NAMES_MAX: usize = 100;
/// The characters of a request's digest.
const DIGEST_CHARS: usize = 64;

/// The entry that stands before the work.
#[derive(Serialize)]
pub(super) struct OpenEntry<'a> {
    kind: &'static str,
    id: String,
    at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    trace: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    span: Option<String>,
    build: &'static str,
    principal: PrincipalRecord<'a>,
    operation: Cow<'a, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reload: Option<ReloadRecord<'a>>,
}

impl<'a> OpenEntry<'a> {
    pub(super) fn new(
        id: RequestId,
        at: Timestamp,
        trace: Option<TraceIds>,
        principal: &'a Principal,
        operation: &'a str,
    ) -> Self {
        let mut bounds = Bounds::default();
        Self {
            kind: "open",
            id: id.to_string(),
            at: at.to_string(),
            trace: trace.map(TraceIds::trace_hex),
            span: trace.map(TraceIds::span_hex),
            build: super::BUILD,
            principal: PrincipalRecord::new(principal, &mut bounds),
            operation: operation_name(operation),
            reload: None,
        }
    }

    pub(super) fn reload(mut self, reload: Option<&Reload<'a>>) -> Self {
        self.reload = reload.map(ReloadRecord::new);
        self
    }
}

/// The entry that stands after the work.
#[derive(Serialize)]
pub(super) struct CloseEntry<'a> {
    kind: &'static str,
    id: String,
    at: String,
    elapsed_us: u64,
    outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<&'static str>,
    /// The refusing policy and its own code.
    #[serde(skip_serializing_if = "Option::is_none")]
    denied_by: Option<DeniedBy<'a>>,
    /// The failure's text for auditors.
    #[serde(skip_serializing_if = "Option::is_none")]
    cause: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
    /// Further sandboxes and templates.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    others: Vec<String>,
    /// Under which the request is approved.
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<Cow<'a, str>>,
    /// The request that it was to approve.
    #[serde(skip_serializing_if = "Option::is_none")]
    approves: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    decision: Option<DecisionRecord<'a>>,
    /// What was made true, limits of profile and core among it.
    #[serde(skip_serializing_if = "Option::is_none")]
    enforced: Option<Vec<ObligationRecord<'a>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    request: Option<RequestRecord<'a>>,
}

#[derive(Serialize)]
struct DeniedBy<'a> {
    policy: Cow<'a, str>,
    code: Cow<'a, str>,
}

/// What became of the work.
pub(super) enum Ending<'a> {
    Ok,
    Failed(&'a Failure),
    /// Nobody saw the end; the word says why.
    Abandoned(&'static str),
}

impl<'a> CloseEntry<'a> {
    pub(super) fn new(id: RequestId, at: Timestamp, elapsed: Duration, ending: Ending<'a>) -> Self {
        let mut bounds = Bounds::default();
        let (outcome, failure, why) = match ending {
            Ending::Ok => ("ok", None, None),
            Ending::Failed(failure) => ("failed", Some(failure), None),
            Ending::Abandoned(why) => ("abandoned", None, Some(why)),
        };
        Self {
            kind: "close",
            id: id.to_string(),
            at: at.to_string(),
            elapsed_us: u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX),
            outcome,
            code: failure.map(|f| f.code.as_str()),
            denied_by: failure
                .and_then(|f| f.policy.as_ref())
                .map(|(policy, code)| DeniedBy { policy: bounds.text(policy), code: bounds.text(code) }),
            cause: match (failure, why) {
                (Some(failure), _) => failure.audit.as_deref().map(|text| bounds.text(text)),
                (None, why) => why.map(Cow::Borrowed),
            },
            target: None,
            others: Vec::new(),
            digest: None,
            approves: None,
            decision: None,
            enforced: None,
            request: None,
        }
    }

    pub(super) fn target(mut self, target: Option<SandboxId>) -> Self {
        self.target = target.map(|id| id.to_string());
        self
    }

    pub(super) fn beside(mut self, beside: &Beside<'a>, target: Option<SandboxId>) -> Self {
        let others = beside.others.iter().filter(|other| Some(**other) != target);
        self.others = others.map(ToString::to_string).take(NAMES_MAX).collect();
        self.digest = beside.digest.map(request_digest);
        self.approves = beside.approves.map(request_digest);
        self
    }

    pub(super) fn decision(mut self, decision: Option<&'a Decision>) -> Self {
        self.decision = decision.map(DecisionRecord::new);
        self
    }

    pub(super) fn enforced(mut self, enforced: Option<&'a Obligations>) -> Self {
        self.enforced = enforced.map(obligations);
        self
    }

    pub(super) fn request(mut self, context: Option<&'a Context>) -> Self {
        self.request = context.map(RequestRecord::new);
        self
    }
}

/// Returns the canonical record of a request: equal for requests that policies cannot tell apart.
pub fn canonical(context: &Context) -> String {
    json(&RequestRecord::new(context))
}

/// Renders an entry. Its types hold nothing that JSON cannot: text, numbers and lists under fixed keys.
pub(super) fn json(entry: &impl Serialize) -> String {
    serde_json::to_string(entry).unwrap_or_else(|fault| {
        debug_assert!(false, "{fault}");
        String::from("{\"kind\":\"unprintable\"}")
    })
}

/// Returns an operation's name if it is shaped like one. A caller may name anything, a password included.
fn operation_name(name: &str) -> Cow<'_, str> {
    let shaped = name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"_-:/.".contains(&b));
    if shaped && !name.is_empty() && name.len() <= 64 { Cow::Borrowed(name) } else { Cow::Borrowed("(malformed)") }
}

/// Returns a request's digest if it is shaped like one: a caller may write anything in its place.
fn request_digest(text: &str) -> Cow<'_, str> {
    let shaped = text.len() == DIGEST_CHARS && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if shaped { Cow::Borrowed(text) } else { Cow::Borrowed("(malformed)") }
}

/// Keeps a part of a record small, and remembers whether anything was left out.
pub(super) struct Bounds {
    cut: bool,
    bytes_left: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { cut: false, bytes_left: PART_BYTES_MAX }
    }
}

impl Bounds {
    pub(super) fn text<'a>(&mut self, text: &'a str) -> Cow<'a, str> {
        let room = TEXT_BYTES_MAX.min(self.bytes_left);
        self.bytes_left -= text.len().min(room);
        if text.len() <= room {
            return Cow::Borrowed(text);
        }
        self.cut = true;
        let end = text.floor_char_boundary(room);
        Cow::Owned(format!("{}…", text.get(..end).unwrap_or_default()))
    }

    pub(super) fn some<'a>(&mut self, text: Option<&'a String>) -> Option<Cow<'a, str>> {
        text.map(|text| self.text(text))
    }

    pub(super) fn list<'a, T, R>(
        &mut self,
        items: &'a [T],
        max: usize,
        mut record: impl FnMut(&mut Self, &'a T) -> R,
    ) -> Vec<R> {
        self.cut |= items.len() > max;
        items.iter().take(max).map(|item| record(self, item)).collect()
    }

    /// Takes room for what is no text, a number under its key for instance; false once there is none left.
    pub(super) fn take(&mut self, bytes: usize) -> bool {
        let fits = bytes <= self.bytes_left;
        self.bytes_left -= bytes.min(self.bytes_left);
        self.cut |= !fits;
        fits
    }

    pub(super) fn names<'a>(&mut self, names: &'a [String]) -> Vec<Cow<'a, str>> {
        self.list(names, NAMES_MAX, |bounds, name| bounds.text(name))
    }

    pub(super) fn pairs<'a>(&mut self, pairs: &'a [(String, String)]) -> Vec<[Cow<'a, str>; 2]> {
        self.list(pairs, NAMES_MAX, |bounds, (key, value)| [bounds.text(key), bounds.text(value)])
    }
}

#[derive(Serialize)]
struct PrincipalRecord<'a> {
    subject: Cow<'a, str>,
    owner: Cow<'a, str>,
    groups: Vec<Cow<'a, str>>,
    transport: &'static str,
    client: Cow<'a, str>,
}

impl<'a> PrincipalRecord<'a> {
    fn new(principal: &'a Principal, bounds: &mut Bounds) -> Self {
        Self {
            subject: bounds.text(&principal.subject),
            owner: bounds.text(&principal.owner),
            groups: bounds.names(&principal.groups),
            transport: principal.transport.as_str(),
            client: bounds.text(&principal.client),
        }
    }
}

/// The canonical record. Empty parts are left out, so that an old record still reads when a part is added.
#[derive(Serialize)]
struct RequestRecord<'a> {
    format: u32,
    phase: &'static str,
    operation: &'static str,
    impact: &'static str,
    principal: PrincipalRecord<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    group_owner: Option<Cow<'a, str>>,
    now_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    server: Option<ServerRecord<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sandbox: Option<SandboxRecord<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    principal_usage: Option<UsageRecord>,
    #[serde(skip_serializing_if = "Option::is_none")]
    group_usage: Option<UsageRecord>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    statements: Vec<StatementRecord<'a>>,
    /// How many statements there were, where not all are listed.
    #[serde(skip_serializing_if = "Option::is_none")]
    statement_count: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    clone_source: Option<SourceRecord<'a>>,
    requested: RequestedRecord<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<ResultRecord<'a>>,
    replayable: bool,
}

#[derive(Serialize)]
struct ServerRecord<'a> {
    profile: Cow<'a, str>,
    engine: Cow<'a, str>,
    major: Option<u16>,
    managed: bool,
}

#[derive(Serialize)]
struct SandboxRecord<'a> {
    id: String,
    name: Cow<'a, str>,
    owner: Cow<'a, str>,
    group_owner: Option<Cow<'a, str>>,
    labels: Vec<[Cow<'a, str>; 2]>,
    origin: &'static str,
    created_ms: u64,
    expires_ms: u64,
    bytes: Option<u64>,
}

#[derive(Serialize)]
struct UsageRecord {
    live: u32,
    bytes: u64,
}

impl From<Usage> for UsageRecord {
    fn from(usage: Usage) -> Self {
        Self { live: usage.live, bytes: usage.bytes }
    }
}

#[derive(Serialize)]
struct StatementRecord<'a> {
    class: &'static str,
    tag: Cow<'a, str>,
    fingerprint: String,
    read_only_safe: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    traits: Vec<&'static str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    relations: Vec<(&'static str, Cow<'a, str>)>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    functions: Vec<Cow<'a, str>>,
}

impl<'a> StatementRecord<'a> {
    fn new(bounds: &mut Bounds, facts: &'a StatementFacts) -> Self {
        Self {
            class: facts.class.as_str(),
            tag: bounds.text(&facts.tag),
            fingerprint: facts.fingerprint.to_string(),
            read_only_safe: facts.read_only_safe,
            traits: facts.traits.words().collect(),
            relations: bounds.list(&facts.relations, NAMES_MAX, |bounds, relation| {
                (relation.access.as_str(), bounds.text(&relation.name))
            }),
            functions: bounds.names(&facts.functions),
        }
    }
}

#[derive(Serialize)]
struct SourceRecord<'a> {
    name: Option<Cow<'a, str>>,
    host: Cow<'a, str>,
    port: u16,
    database: Cow<'a, str>,
    user: Cow<'a, str>,
    tls: &'static str,
    production: bool,
    schema_only: bool,
    reason: Option<Cow<'a, str>>,
}

#[derive(Serialize)]
struct RequestedRecord<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    ttl_minutes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rows: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout_ms: Option<u64>,
    read_only: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    credentials: Option<&'static str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    labels: Vec<[Cow<'a, str>; 2]>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    extensions: Vec<Cow<'a, str>>,
    /// The program of a repository command, and how many arguments it was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    command: Option<(Cow<'a, str>, usize)>,
}

#[derive(Serialize)]
struct ResultRecord<'a> {
    rows: u64,
    bytes: u64,
    elapsed_ms: u64,
    columns: Vec<Cow<'a, str>>,
}

impl<'a> RequestRecord<'a> {
    fn new(context: &'a Context) -> Self {
        let mut bounds = Bounds::default();
        let b = &mut bounds;
        let requested = &context.requested;
        let mut record = Self {
            format: 1,
            phase: context.phase.as_str(),
            operation: context.operation,
            impact: context.impact.as_str(),
            principal: PrincipalRecord::new(&context.principal, b),
            group_owner: b.some(context.group_owner.as_ref()),
            now_ms: context.now.unix_ms(),
            server: context.server.as_ref().map(|server| ServerRecord {
                profile: b.text(&server.profile),
                engine: b.text(&server.engine),
                major: server.major,
                managed: server.managed,
            }),
            sandbox: context.sandbox.as_ref().map(|sandbox| SandboxRecord {
                id: sandbox.id.to_string(),
                name: b.text(&sandbox.name),
                owner: b.text(&sandbox.owner),
                group_owner: b.some(sandbox.group_owner.as_ref()),
                labels: b.pairs(&sandbox.labels),
                origin: sandbox.origin.as_str(),
                created_ms: sandbox.created_at.unix_ms(),
                expires_ms: sandbox.expires_at.unix_ms(),
                bytes: sandbox.bytes,
            }),
            principal_usage: context.principal_usage.map(Into::into),
            group_usage: context.group_usage.map(Into::into),
            statements: b.list(&context.statements, STATEMENTS_MAX, StatementRecord::new),
            statement_count: (context.statements.len() > STATEMENTS_MAX).then_some(context.statements.len()),
            clone_source: context.clone_source.as_ref().map(|source| SourceRecord {
                name: b.some(source.name.as_ref()),
                host: b.text(&source.host),
                port: source.port,
                database: b.text(&source.database),
                user: b.text(&source.user),
                tls: tls_word(source.tls),
                production: source.production,
                schema_only: source.schema_only,
                reason: b.some(source.reason.as_ref()),
            }),
            requested: RequestedRecord {
                ttl_minutes: requested.ttl_minutes,
                rows: requested.rows,
                timeout_ms: requested.timeout_ms,
                read_only: requested.read_only,
                credentials: requested.credentials.map(|access| match access {
                    CredentialAccess::Owner => "owner",
                    CredentialAccess::ReadOnly => "readonly",
                }),
                labels: b.pairs(&requested.labels),
                extensions: b.names(&requested.extensions),
                command: requested.command.split_first().map(|(program, rest)| (b.text(program), rest.len())),
            },
            result: context.outcome.as_ref().map(|outcome| ResultRecord {
                rows: outcome.rows,
                bytes: outcome.bytes,
                elapsed_ms: outcome.elapsed_ms,
                columns: b.names(&outcome.columns),
            }),
            replayable: false,
        };
        let left_out = !context.statement_texts.is_empty() || requested.command.len() > 1;
        record.replayable = !bounds.cut && !left_out;
        record
    }
}

const fn tls_word(mode: TlsMode) -> &'static str {
    match mode {
        TlsMode::Disable => "disable",
        TlsMode::Prefer => "prefer",
        TlsMode::Require => "require",
        TlsMode::VerifyCa => "verify-ca",
        TlsMode::VerifyFull => "verify-full",
    }
}
