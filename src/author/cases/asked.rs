//! Makes of a case the request that a policy is shown.

use std::time::Duration;

use uuid::Uuid;

use super::case::{Case, GivenOutcome, GivenRequested, GivenSandbox, GivenSource, GivenUsage};
use super::facts;
use crate::model::{
    Balance, CloneSource, Context, Identity, Impact, Origin, OutcomeFacts, Phase, Principal, RequestId, Requested,
    SandboxFacts, SandboxId, ServerFacts, StatementFacts, Timestamp, TlsMode, Transport, Usage,
};
use crate::sql;

/// Who asks unless a case says otherwise.
const OWNER: &str = "ana";
/// The time of a case unless it says otherwise.
const NOW_MS: u64 = 1_800_000_000_000;
/// The sandbox of a case unless it says otherwise.
const SANDBOX_ID: Uuid = Uuid::from_u128(0x0000_0000_0000_4000_8000_0000_0000_0001);
/// Its name.
const SANDBOX_NAME: &str = "pgsb_case_0123456789";
/// Its age, in seconds.
const AGE_SECONDS: u64 = 60;
/// What is left of its time, in seconds.
const SECONDS_LEFT: i64 = 3600;
/// The server's major version unless a case says otherwise.
const MAJOR: u16 = 15;

/// The operations that policies are asked about, each with its impact.
#[derive(Clone, Debug, Default)]
pub struct Operations(pub Vec<(&'static str, Impact)>);

impl Operations {
    /// Returns an operation with its impact.
    pub fn find(&self, name: &str) -> Option<(&'static str, Impact)> {
        self.0.iter().copied().find(|(known, _)| *known == name)
    }
}

/// A request, ready to be shown.
#[derive(Clone, Debug)]
pub struct Asked {
    /// The facts.
    pub context: Context,
    /// What is left in the policy's buckets.
    pub balances: Vec<Balance>,
    /// Whether the case shows statements' texts, which a policy sees only where the operator grants it.
    pub with_text: bool,
    /// Where the reader and the case's own facts differ.
    pub differences: Vec<String>,
}

/// The statements of a case.
struct Statements {
    facts: Vec<StatementFacts>,
    /// Empty unless the case shows any.
    texts: Vec<String>,
    /// Where the reader says another thing than the case.
    differences: Vec<String>,
}

impl Case {
    /// Makes the request for a policy of this name. `sql` is read by the reader that a server has.
    ///
    /// # Errors
    /// Says what of the case no request can be made of.
    pub fn asked(&self, operations: &Operations, policy: &str) -> Result<Asked, String> {
        let (operation, impact) = self.operation(operations)?;
        let owner = self.owner.clone().unwrap_or_else(|| OWNER.to_owned());
        let now = Timestamp::from_unix_ms(self.now_ms.unwrap_or(NOW_MS));
        let mut groups = self.groups.clone().unwrap_or_default();
        groups.sort();
        groups.dedup();
        let Statements { facts: statements, texts: statement_texts, differences } = self.statements()?;
        let with_text = !statement_texts.is_empty();
        let context = Context {
            request_id: RequestId::fresh(),
            phase: self.phase.map_or(Phase::Before, |word| word.0),
            operation,
            impact,
            principal: Principal {
                subject: self.subject.clone().unwrap_or_else(|| owner.clone()),
                owner: owner.clone(),
                groups,
                transport: self.transport.map_or(Transport::Stdio, |word| word.0),
                client: self.client.clone().unwrap_or_default(),
                identity: Identity::Certain,
            },
            group_owner: self.group_owner.clone(),
            now,
            server: Some(ServerFacts {
                profile: self.profile.clone().unwrap_or_else(|| "local".to_owned()),
                engine: self.engine.clone().unwrap_or_else(|| "postgres".to_owned()),
                major: Some(self.major.unwrap_or(MAJOR)),
                managed: self.managed.unwrap_or(true),
            }),
            sandbox: self.sandbox.as_ref().map(|given| sandbox(given, &owner, now)).transpose()?,
            principal_usage: self.usage.map(usage),
            group_usage: self.group_usage.map(usage),
            statements,
            statement_texts,
            clone_source: self.source.as_ref().map(source),
            requested: self.requested.as_ref().map(requested).unwrap_or_default(),
            outcome: self.outcome.as_ref().map(outcome),
        };
        let balance = |(bucket, remaining): (&String, &u32)| Balance {
            policy: policy.to_owned(),
            bucket: bucket.clone(),
            remaining: *remaining,
        };
        let balances = self.balances.iter().flatten().map(balance).collect();
        Ok(Asked { context, balances, with_text, differences })
    }

    fn operation(&self, operations: &Operations) -> Result<(&'static str, Impact), String> {
        let name = self.operation.clone().unwrap_or_default();
        let known = operations.find(&name);
        match (known, self.impact) {
            (Some((known, own)), impact) => Ok((known, impact.map_or(own, |word| word.0))),
            // Of another version's operations a case may still ask; there are no more of them than cases.
            (None, Some(impact)) => Ok((Box::leak(name.into_boxed_str()), impact.0)),
            (None, None) => Err(format!(
                "`{}` is no operation of this version; correct it, or name its `impact` as well",
                name.escape_default()
            )),
        }
    }

    fn statements(&self) -> Result<Statements, String> {
        let given = self.statements.as_deref().unwrap_or_default();
        let shows_text = given.iter().any(|statement| statement.text.is_some());
        let facts: Vec<StatementFacts> = given.iter().map(super::GivenStatement::facts).collect();
        let Some(text) = &self.sql else {
            let texts = given.iter().map(|statement| statement.text.clone().unwrap_or_default());
            let texts = if shows_text { texts.collect() } else { Vec::new() };
            return Ok(Statements { facts, texts, differences: Vec::new() });
        };
        let script = sql::read(text).map_err(|error| format!("`sql` cannot be read: {error}"))?;
        let read: Vec<StatementFacts> = script.statements.iter().map(|statement| statement.facts.clone()).collect();
        let own = |range: &std::ops::Range<usize>| text.get(range.clone()).unwrap_or_default().to_owned();
        let texts: Vec<String> = script.statements.iter().map(|statement| own(&statement.text)).collect();
        let mut differences = match self.statements {
            Some(_) => facts::differences(&read, &facts),
            None => Vec::new(),
        };
        for (index, (named, read)) in given.iter().zip(&texts).enumerate() {
            if named.text.as_ref().is_some_and(|named| named != read) {
                differences.push(format!("`statements[{index}].text` is not what stands in `sql`"));
            }
        }
        Ok(Statements { facts: read, texts: if shows_text { texts } else { Vec::new() }, differences })
    }
}

fn sandbox(given: &GivenSandbox, owner: &str, now: Timestamp) -> Result<SandboxFacts, String> {
    let id = match &given.id {
        Some(id) => id.parse().map_err(|_| format!("`sandbox.id` is no UUID, `{SANDBOX_ID}` for instance"))?,
        None => SandboxId::from(SANDBOX_ID),
    };
    let ms = |seconds: u64| seconds.saturating_mul(1000);
    let left = given.seconds_left.unwrap_or(SECONDS_LEFT);
    let expires_at = match u64::try_from(left) {
        Ok(left) => now.plus(Duration::from_millis(ms(left))),
        Err(_) => Timestamp::from_unix_ms(now.unix_ms().saturating_sub(ms(left.unsigned_abs()))),
    };
    Ok(SandboxFacts {
        id,
        name: given.name.clone().unwrap_or_else(|| SANDBOX_NAME.to_owned()),
        owner: given.owner.clone().unwrap_or_else(|| owner.to_owned()),
        group_owner: given.group_owner.clone(),
        labels: given.labels.clone().unwrap_or_default().into_iter().collect(),
        origin: given.origin.map_or(Origin::Empty, |word| word.0),
        created_at: Timestamp::from_unix_ms(now.unix_ms().saturating_sub(ms(given.age_seconds.unwrap_or(AGE_SECONDS)))),
        expires_at,
        bytes: given.bytes,
    })
}

fn usage(given: GivenUsage) -> Usage {
    Usage { live: given.live, bytes: given.bytes }
}

fn source(given: &GivenSource) -> CloneSource {
    let or = |value: &Option<String>, otherwise: &str| value.clone().unwrap_or_else(|| otherwise.to_owned());
    CloneSource {
        name: given.name.clone(),
        host: or(&given.host, "db.example.com"),
        port: given.port.unwrap_or(5432),
        database: or(&given.database, "app"),
        user: or(&given.user, "reader"),
        tls: given.tls.map_or(TlsMode::VerifyFull, |word| word.0),
        production: given.production,
        schema_only: given.schema_only,
        reason: given.reason.clone(),
    }
}

fn requested(given: &GivenRequested) -> Requested {
    Requested {
        ttl_minutes: given.ttl_minutes,
        rows: given.rows,
        timeout_ms: given.timeout_ms,
        read_only: given.read_only,
        credentials: given.credentials.map(|word| word.0),
        labels: given.labels.clone().into_iter().collect(),
        extensions: given.extensions.clone(),
        command: given.command.clone(),
    }
}

fn outcome(given: &GivenOutcome) -> OutcomeFacts {
    OutcomeFacts { rows: given.rows, bytes: given.bytes, elapsed_ms: given.elapsed_ms, columns: given.columns.clone() }
}
