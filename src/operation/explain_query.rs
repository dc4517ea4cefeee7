//! Asks the server how it would run a statement, or how it ran it in a transaction that is rolled back.
//!
//! What is sent is [`PLAIN`] or [`ANALYZE`] and then the caller's own bytes of one statement, as they are; it is sent only
//! where the whole reads as an EXPLAIN of just the statement that the policies decided on.

use std::time::Duration;

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::time::Instant;
use tracing::Instrument;

use super::extend_database::missing_target;
use super::query_plan::{self, PlanSummary};
use super::run_sql::{check_read_only, lowered};
use super::selector::DatabaseSelector;
use super::time_limit::{Asked, TimeLimit};
use super::{About, Ahead, Asks, Call, Done, Operation, Spec, Toolset};
use crate::admission::{Admissible, Effective, Permit};
use crate::engine::postgres::{Cell, Rest, ResultLimits, ResultSet, SandboxSession, StatementCall, WireError};
use crate::model::limits::{REPLY_BYTES_DEFAULT, REPLY_BYTES_MAX, STATEMENT_TIMEOUT_MS_DEFAULT, VALUE_BYTES_MAX};
use crate::model::{Code, CredentialAccess, Failure, Impact, Limit, ObligationKind, Requested, StatementClass};
use crate::sql::scanner::{self, TokenKind};
use crate::sql::{self, Script, Statement};
use crate::telemetry::span;

/// What stands before the statement. The parenthesis leaves no other reading of what follows it.
const PLAIN: &str = "EXPLAIN (FORMAT JSON, SETTINGS) ";
/// The same where the statement is run.
const ANALYZE: &str = "EXPLAIN (FORMAT JSON, ANALYZE, BUFFERS, WAL, SETTINGS) ";
/// Statements that have a plan, by their leading keyword.
const PLANNED: [&str; 8] = ["SELECT", "VALUES", "TABLE", "WITH", "INSERT", "UPDATE", "DELETE", "MERGE"];
/// How long a cancelled statement may take to end before its connection is dropped.
const CANCEL_GRACE: Duration = Duration::from_millis(900);
/// The plan is one row.
const ROWS_MAX: u64 = 1;

/// Arguments of `explain_query`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct ExplainQuery {
    #[serde(flatten)]
    database: DatabaseSelector,
    /// One SELECT, VALUES, TABLE, WITH, INSERT, UPDATE, DELETE or MERGE statement, without EXPLAIN and without $1.
    sql: String,
    /// Run the statement and measure it, in a transaction that is rolled back. Sequences stay advanced. Default false.
    analyze: Option<bool>,
    /// Set by policies.
    #[serde(skip)]
    demands: Demands,
}

/// What policies made of the call.
#[derive(Debug, Default)]
struct Demands {
    bytes_max: Option<u64>,
    timeout_ms_max: Option<Limit>,
    /// Whose demand makes the call read-only.
    read_only_by: Option<String>,
}

/// A statement's plan.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Explained {
    /// What stands out in it.
    summary: PlanSummary,
    /// The plan as Postgres' EXPLAIN (FORMAT JSON) gives it, a list with one entry per query that rules made of the statement; only
    /// what each step is and how many rows it has, or null, where the whole does not fit.
    plan: Value,
    /// Whether the plan is not whole.
    plan_truncated: bool,
    elapsed_ms: u64,
}

impl ExplainQuery {
    fn analyzes(&self) -> bool {
        self.analyze.unwrap_or(false)
    }

    fn credential(&self) -> CredentialAccess {
        match self.demands.read_only_by {
            Some(_) => CredentialAccess::ReadOnly,
            None => CredentialAccess::Owner,
        }
    }

    fn time(&self) -> TimeLimit<'_> {
        TimeLimit::new(Asked::Always(STATEMENT_TIMEOUT_MS_DEFAULT), self.demands.timeout_ms_max.as_ref())
    }

    fn bytes_max(&self) -> u64 {
        self.demands.bytes_max.unwrap_or(REPLY_BYTES_DEFAULT).min(REPLY_BYTES_MAX)
    }

    /// Returns the text that is sent: ours, and the caller's one statement as it is.
    fn composed(&self, script: &Script) -> Result<String, Failure> {
        let statement = the_one(script)?;
        if let Some(policy) = self.demands.read_only_by.as_deref() {
            check_read_only(statement, 1, Some(policy))?;
        }
        let text = self.sql.get(statement.text.clone()).unwrap_or_default();
        compose(if self.analyzes() { ANALYZE } else { PLAIN }, text, statement)
    }

    async fn explain(&self, session: &mut SandboxSession, text: &str, left: Duration) -> Result<ResultSet, WireError> {
        let limits = ResultLimits { rows_max: ROWS_MAX, bytes_max: REPLY_BYTES_MAX, value_bytes_max: VALUE_BYTES_MAX };
        let call = StatementCall { text, params: &[], limits, rest: Rest::Unfetched, timeout: left, copy_in: None };
        // Without ANALYZE nothing of the statement runs but what planning runs: functions that call themselves immutable.
        match self.analyzes() && self.demands.read_only_by.is_none() {
            true => session.execute_rolled_back(&call).await,
            false => session.execute_read_only(&call).await,
        }
    }
}

/// Returns the only statement, if it is one that has a plan.
fn the_one(script: &Script) -> Result<&Statement, Failure> {
    let [statement] = script.statements.as_slice() else {
        let message = match script.statements.len() {
            0 => "there is no statement in `sql`".to_owned(),
            many => format!("a plan is that of one statement, and there are {many}"),
        };
        return Err(Failure::new(Code::SingleStatementRequired, message).hint("send one call per statement"));
    };
    let facts = &statement.facts;
    let planned = matches!(facts.class, StatementClass::Read | StatementClass::ReadLock | StatementClass::Write)
        && PLANNED.contains(&facts.tag.as_str());
    if planned {
        return Ok(statement);
    }
    if facts.tag.starts_with("EXPLAIN") {
        let message = "the statement is an EXPLAIN already";
        return Err(Failure::new(Code::InvalidArguments, message)
            .hint("send the statement alone, with `analyze` where it is to be run"));
    }
    let what = if facts.tag.is_empty() { facts.class.as_str() } else { facts.tag.as_str() };
    Err(Failure::new(Code::InvalidArguments, format!("a statement of kind `{what}` has no plan to be explained"))
        .hint("send the query inside it; `run_sql` runs an EXPLAIN of your own wording")
        .allowed(PLANNED))
}

/// Puts `prefix` before a statement's text, and refuses what does not read as an EXPLAIN of that statement and of nothing else.
fn compose(prefix: &str, text: &str, statement: &Statement) -> Result<String, Failure> {
    let composed = format!("{prefix}{text}");
    let tokens = scanner::tokens(&composed).map_err(Failure::from)?;
    if tokens.iter().any(|token| token.kind == TokenKind::Parameter) {
        let message = "the statement has parameters, and its plan depends on their values";
        return Err(Failure::new(Code::InvalidArguments, message).hint("write the values in place of `$1`, `$2`, …"));
    }
    let script = sql::read(&composed).map_err(Failure::from)?;
    let same = |read: &Statement| {
        let (facts, decided) = (&read.facts, &statement.facts);
        let class = if prefix == ANALYZE { decided.class } else { StatementClass::Explain };
        let tag = if prefix == ANALYZE { "EXPLAIN ANALYZE" } else { "EXPLAIN" };
        read.text == (0..composed.len())
            && (facts.class, facts.tag.as_str()) == (class, tag)
            && (&facts.relations, &facts.functions) == (&decided.relations, &decided.functions)
    };
    match script.statements.as_slice() {
        [read] if same(read) => Ok(composed),
        _ => Err(Failure::new(Code::UnparsedStatement, "the statement reads otherwise behind EXPLAIN than alone")
            .hint("write it more plainly")),
    }
}

/// Says where in the caller's own text an error is.
fn moved(mut failure: Failure, prefix: &str) -> Failure {
    let ours = u32::try_from(prefix.len()).unwrap_or(u32::MAX);
    let detail = failure.detail_mut();
    detail.position = detail.position.and_then(|position| position.checked_sub(ours)).filter(|position| *position > 0);
    failure
}

impl Admissible for ExplainQuery {
    const MEETS: &'static [ObligationKind] = Self::SPEC.meets;

    fn apply(&mut self, effective: &Effective<'_>) -> Result<Vec<String>, Failure> {
        let demands = effective.obligations();
        let mut warnings = Vec::new();
        if let Some(policy) = demands.read_only.first() {
            self.demands.read_only_by = Some(policy.clone());
            warnings.push(format!("planned and run as the read-only role, as policy `{policy}` demands"));
        }
        lowered(&demands.statement_timeout_ms, STATEMENT_TIMEOUT_MS_DEFAULT, "timeout in ms", &mut warnings);
        self.demands.timeout_ms_max.clone_from(&demands.statement_timeout_ms);
        self.demands.bytes_max = demands.max_result_bytes.as_ref().map(|limit| limit.value);
        Ok(warnings)
    }
}

#[async_trait]
impl Operation for ExplainQuery {
    const SPEC: Spec = Spec {
        name: "explain_query",
        title: "Explain a query's plan",
        help: "Shows how Postgres would run one statement: cost, steps, and what stands out. With analyze it is run and measured, and \
               rolled back.",
        // With `analyze` what a transaction does not take back, sequences for one, stays.
        impact: Impact::Writes,
        meets: &[
            ObligationKind::ReadOnly,
            ObligationKind::MaxRows,
            ObligationKind::MaxResultBytes,
            ObligationKind::StatementTimeoutMs,
            ObligationKind::MaxDatabaseBytes,
        ],
        toolset: Toolset::Schema,
        idempotent: false,
    };
    type Output = Explained;

    fn asks(&self) -> Asks {
        Asks {
            about: About::Sandbox((&self.database).into()),
            requested: Requested { timeout_ms: Some(STATEMENT_TIMEOUT_MS_DEFAULT), ..Requested::default() },
            sql: Some(self.sql.clone()),
            usage: true,
            ..Asks::default()
        }
    }

    async fn foresee(&self, ahead: &Ahead<'_>) -> Result<Vec<String>, Failure> {
        let id = ahead.grant.target.ok_or_else(missing_target)?;
        self.composed(ahead.script.ok_or_else(not_read)?)?;
        ahead.core.foresee_use(ahead.grant, id, self.credential()).await?;
        Ok(Vec::new())
    }

    async fn run(permit: Permit<Self>, call: &Call) -> Result<Done<Explained>, Failure> {
        let id = permit.grant().target.ok_or_else(missing_target)?;
        let input = permit.input();
        let course = &permit.grant().course;
        let script = call.script.clone().ok_or_else(not_read)?;
        let text = course.refusing(input.composed(&script))?;
        let started = Instant::now();
        let deadline = started + input.time().time();
        let session = tokio::time::timeout_at(deadline, call.core.session(&permit, id, input.credential()));
        let Some(lent) = call.cancel.run_until_cancelled(session).await else {
            return Err(cancelled());
        };
        let in_time = lent.map_err(|_| input.time().no_session());
        let mut session = course.refusing(in_time)??;
        let handle = session.cancel_handle();
        let here = the_one(&script).map(|statement| {
            let here = span::statement(&statement.facts.tag, &call.database);
            here.record(span::STATEMENT_CLASS, statement.facts.class.as_str());
            here.record(span::STATEMENT_FINGERPRINT, statement.facts.fingerprint.to_string());
            here
        })?;
        let outcome = {
            let left = deadline.saturating_duration_since(Instant::now());
            let running = input.explain(&mut session, &text, left).instrument(here.clone());
            tokio::pin!(running);
            tokio::select! {
                outcome = &mut running => Some(outcome),
                () = call.cancel.cancelled() => {
                    // The backend must be idle within a second; if it does not obey, its connection goes.
                    let stopped = async {
                        handle.cancel().await.ok();
                        running.await.ok();
                    };
                    tokio::time::timeout(CANCEL_GRACE, stopped).await.ok();
                    None
                }
            }
        };
        let Some(outcome) = outcome else {
            session.close();
            return Err(cancelled());
        };
        let set = outcome.map_err(|error| {
            let mut failure = input.time().failure(error, deadline, false);
            failure.detail_mut().statement_index = Some(1);
            let mut failure = moved(failure, if input.analyzes() { ANALYZE } else { PLAIN });
            let detail = failure.detail_mut();
            detail.line = the_one(&script).ok().and_then(|statement| statement.line_at(&input.sql, detail.position));
            span::failed(&here, &failure);
            failure
        })?;
        let (plan, bytes) = match set.rows.first().and_then(|row| row.first()) {
            Some(Cell::Text(text)) => (query_plan::read(text), text.len() as u64),
            Some(Cell::Omitted { bytes }) => (Value::Null, *bytes),
            Some(Cell::Null | Cell::Bytes(_)) | None => {
                return Err(Failure::new(Code::Internal, "the server gave no plan"));
            }
        };
        let summary = PlanSummary::of(&plan);
        let line = summary.line();
        let (plan, plan_truncated) = query_plan::within(plan, input.bytes_max());
        let mut warnings = Vec::new();
        if plan_truncated {
            warnings.push(match permit.grant().obligations.max_result_bytes.as_ref() {
                Some(limit) => {
                    format!("the plan of {bytes} bytes is cut at {} bytes, set by `{}`", limit.value, limit.set_by)
                }
                None => format!("the plan of {bytes} bytes is too long, and is not shown whole"),
            });
        }
        let elapsed_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        Ok(Done::new(line, Explained { summary, plan, plan_truncated, elapsed_ms }).warn(warnings))
    }
}

fn cancelled() -> Failure {
    Failure::new(Code::Cancelled, "the call was cancelled by the caller")
}

fn not_read() -> Failure {
    Failure::new(Code::Internal, "the SQL was not read")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn composed(text: &str) -> Result<[String; 2], Code> {
        let script = sql::read(text).map_err(|error| Failure::from(error).code)?;
        let statement = the_one(&script).map_err(|failure| failure.code)?;
        let own = &text[statement.text.clone()];
        let one = |prefix| compose(prefix, own, statement).map_err(|failure| failure.code);
        Ok([one(PLAIN)?, one(ANALYZE)?])
    }

    #[test]
    fn the_callers_bytes_are_sent_as_they_are() {
        for text in [
            "SELECT 1",
            "  /* a */ select  'x;--' /* b */ , 2 ; -- end",
            "(SELECT 1)",
            "((VALUES (1), (2)))",
            "WITH w AS (DELETE FROM t RETURNING 1) SELECT * FROM w",
            "INSERT INTO t VALUES (1) ON CONFLICT DO NOTHING",
            "UPDATE t SET a = 1",
            "MERGE INTO t USING s ON true WHEN MATCHED THEN DELETE",
            "TABLE t",
            "SELECT * FROM t FOR UPDATE",
            "SELECT U&\"\\0061\" FROM t",
        ] {
            let [plain, analyze] = composed(text).unwrap_or_else(|code| panic!("{text}: {}", code.as_str()));
            let own = plain.strip_prefix(PLAIN).unwrap();
            assert!(text.contains(own) && analyze.strip_prefix(ANALYZE) == Some(own), "{text}: {plain}");
        }
    }

    #[test]
    fn what_is_not_one_statement_with_a_plan_is_not_sent() {
        for (text, code) in [
            ("", Code::SingleStatementRequired),
            ("-- nothing", Code::SingleStatementRequired),
            ("SELECT 1; DROP TABLE t", Code::SingleStatementRequired),
            ("EXPLAIN SELECT 1", Code::InvalidArguments),
            ("EXPLAIN ANALYZE DELETE FROM t", Code::InvalidArguments),
            ("ANALYZE SELECT 1", Code::InvalidArguments),
            ("VERBOSE SELECT 1", Code::InvalidArguments),
            ("(ANALYZE) SELECT 1", Code::InvalidArguments),
            ("(FORMAT TEXT) DELETE FROM t", Code::InvalidArguments),
            ("CREATE TABLE x AS SELECT 1", Code::InvalidArguments),
            ("SELECT 1 INTO x", Code::InvalidArguments),
            ("SELECT a AND INTO x FROM t", Code::InvalidArguments),
            ("EXECUTE p", Code::InvalidArguments),
            ("PREPARE p AS SELECT 1", Code::InvalidArguments),
            ("DECLARE c CURSOR FOR SELECT 1", Code::InvalidArguments),
            ("REFRESH MATERIALIZED VIEW v", Code::InvalidArguments),
            ("COPY (SELECT 1) TO STDOUT", Code::InvalidArguments),
            ("TRUNCATE t", Code::InvalidArguments),
            ("COMMIT", Code::InvalidArguments),
            ("DO $$ BEGIN END $$", Code::InvalidArguments),
            ("CALL p()", Code::InvalidArguments),
            ("SELECT $1", Code::InvalidArguments),
        ] {
            assert_eq!(composed(text), Err(code), "{text}");
        }
    }

    #[test]
    fn positions_are_those_of_the_callers_text() {
        use crate::model::FailureDetail;
        let at = |position| {
            let mut failure = Failure::new(Code::SyntaxError, "x");
            failure.detail = Some(Box::new(FailureDetail { position: Some(position), ..FailureDetail::default() }));
            moved(failure, PLAIN).detail.unwrap().position
        };
        let ours = PLAIN.len() as u32;
        assert_eq!([at(ours), at(ours + 1), at(3)], [None, Some(1), None]);
    }
}
