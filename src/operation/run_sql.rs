//! Runs the caller's SQL in a sandbox, as one of the sandbox's own roles.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use tokio::time::Instant;
use tracing::Instrument;

use super::arguments::Whole;
use super::extend_database::missing_target;
use super::installs::{Installing, name_acceptable_extensions};
use super::selector::DatabaseSelector;
use super::sql_results::{ResultSetEntry, SqlResults};
use super::time_limit::{Asked, TimeLimit, is_over};
use super::{About, Ahead, Asks, Call, Done, Operation, Spec, Toolset};
use crate::admission::{Admissible, Effective, Grant, Permit};
use crate::engine::postgres::{
    Param, Rest, ResultLimits, ResultSet, SandboxSession, StatementCall, TxStatus, WireError,
};
use crate::model::limits::{
    PARAMS_MAX, REPLY_BYTES_DEFAULT, REPLY_BYTES_MAX, ROWS_DEFAULT, ROWS_MAX, STATEMENT_TIMEOUT_MS_DEFAULT,
    STATEMENT_TIMEOUT_MS_MAX, STDIN_BYTES_MAX, VALUE_BYTES_MAX,
};
use crate::model::{
    Code, CredentialAccess, Failure, Impact, Limit, ObligationKind, Preview, Requested, StatementClass,
};
use crate::sandbox::Core;
use crate::sql::{Script, Statement};
use crate::telemetry::span;

/// What to do where a JSON array was taken for the text of a Postgres array.
const ARRAY_TEXT: &str = "a JSON array goes as JSON text; write a Postgres array as text, `\"{x,y}\"`, or take the JSON apart in SQL: \
     `array(select jsonb_array_elements_text($1::jsonb))`";
/// Told where statements gave something before one failed.
const ROWS_BEFORE: &str = "what the statements before it gave is not told; with continueOnError=true it is, and what comes after is tried as well";
/// Told with a result that was had once the read-only role had its rights again.
const RESTORED: &str =
    "the read-only role lacked rights on what the sandbox's owner has, and they were granted to it again";
/// How long a cancelled statement may take to end before its connection is dropped.
const CANCEL_GRACE: Duration = Duration::from_millis(900);

/// Arguments of `run_sql`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct RunSql {
    #[serde(flatten)]
    database: DatabaseSelector,
    /// One or more statements. Each commits by itself unless the text says BEGIN.
    sql: String,
    /// Run as the read-only role in a read-only transaction; only reads are let through. Default false.
    readonly: Option<bool>,
    /// Rows returned per statement, 0 to 1000; default 100. Nothing is rewritten; unless readonly, all runs to its end.
    row_limit: Option<Whole>,
    /// Values for $1, $2, … of a single statement: text, numbers digit for digit, true, false, null; arrays and objects go as JSON text.
    params: Option<Vec<Value>>,
    /// Time for the whole call, 1 to 300; default 30.
    timeout_seconds: Option<Whole>,
    /// Data for a single COPY … FROM STDIN.
    stdin: Option<String>,
    /// Go on after a statement that fails, as psql does, and list the failures. Default false: stop there.
    continue_on_error: Option<bool>,
    /// Set by policies.
    #[serde(skip)]
    demands: Demands,
}

/// What policies made of the call's limits.
#[derive(Debug, Default)]
struct Demands {
    rows_max: Option<u64>,
    bytes_max: Option<u64>,
    timeout_ms_max: Option<Limit>,
    /// Whose demand made the call read-only; the caller did not ask for it.
    read_only_by: Option<String>,
}

impl RunSql {
    fn read_only(&self) -> bool {
        self.readonly.unwrap_or(false)
    }

    /// Finds the statements, by their number, that are not sent: those that copy in what is not given, and those that
    /// install what the profile or a policy does not allow or the server does not have. What a function or a DO block installs is
    /// not seen here; there Postgres alone decides, which lets a database's owner make what it trusts.
    async fn barred(
        &self,
        script: &Script,
        core: &Core,
        preview: &dyn Preview,
        grant: &Grant,
    ) -> Result<BTreeMap<u32, Failure>, Failure> {
        let mut barred = BTreeMap::new();
        let mut installing = Installing::new(core, preview, grant);
        for (statement, index) in script.statements.iter().zip(1..) {
            let copies_in = statement.facts.class == StatementClass::CopyIn;
            if copies_in && statement.copy_data.is_none() && self.stdin.is_none() {
                barred.insert(index, self.on_line(WireError::CopyDataMissing.into_failure(index), statement));
            }
            let Some(installs) = &statement.installs else { continue };
            if let Err(mut failure) = installing.check(installs).await {
                failure.detail_mut().statement_index = Some(index);
                barred.insert(index, self.on_line(failure, statement));
            }
        }
        Ok(barred)
    }

    /// Says on which line a statement's failure is.
    fn on_line(&self, mut failure: Failure, statement: &Statement) -> Failure {
        let detail = failure.detail_mut();
        detail.line = statement.line_at(&self.sql, detail.position);
        failure
    }

    /// Refuses a call with a barred statement, unless it goes on after statements that fail.
    fn refuse_barred(&self, barred: &BTreeMap<u32, Failure>) -> Result<(), Failure> {
        let first = barred.values().next().filter(|_| !self.continue_on_error.unwrap_or(false));
        first.map_or(Ok(()), |failure| Err(failure.clone()))
    }

    fn credential(&self) -> CredentialAccess {
        if self.read_only() { CredentialAccess::ReadOnly } else { CredentialAccess::Owner }
    }

    fn rows_asked(&self) -> Result<u64, Failure> {
        let Some(rows) = self.row_limit else { return Ok(ROWS_DEFAULT) };
        rows.within(0, ROWS_MAX).ok_or_else(|| {
            Failure::new(Code::InvalidRowLimit, format!("row limit {} is not between 0 and {ROWS_MAX}", rows.shown()))
                .hint(format!("ask for {ROWS_MAX} rows or less, and page with LIMIT and OFFSET or a key"))
        })
    }

    fn timeout_ms_asked(&self) -> Result<u64, Failure> {
        let Some(seconds) = self.timeout_seconds else { return Ok(STATEMENT_TIMEOUT_MS_DEFAULT) };
        let max = STATEMENT_TIMEOUT_MS_MAX / 1000;
        seconds.within(1, max).map(|seconds| seconds * 1000).ok_or_else(|| {
            Failure::new(
                Code::InvalidArguments,
                format!("timeout of {} seconds is not between 1 and {max}", seconds.shown()),
            )
        })
    }

    fn limits(&self) -> Result<(ResultLimits, TimeLimit<'_>), Failure> {
        let rows = self.rows_asked()?.min(self.demands.rows_max.unwrap_or(u64::MAX));
        let bytes = self.demands.bytes_max.unwrap_or(REPLY_BYTES_DEFAULT).min(REPLY_BYTES_MAX);
        let asked = self.timeout_ms_asked()?;
        let asked = if self.timeout_seconds.is_some() { Asked::For(asked) } else { Asked::Default(asked) };
        let limits = ResultLimits { rows_max: rows, bytes_max: bytes, value_bytes_max: VALUE_BYTES_MAX };
        Ok((limits, TimeLimit::new(asked, self.demands.timeout_ms_max.as_ref())))
    }

    fn params(&self) -> Result<Vec<Param>, Failure> {
        let values = self.params.as_deref().unwrap_or_default();
        if values.len() > PARAMS_MAX {
            let message = format!("{} parameters are over the limit of {PARAMS_MAX}", values.len());
            return Err(Failure::new(Code::InvalidArguments, message));
        }
        Ok(values.iter().map(param).collect())
    }
}

/// Gives a JSON value the text form that Postgres reads for a parameter of any type.
fn param(value: &Value) -> Param {
    match value {
        Value::Null => Param::Null,
        Value::String(text) => Param::Text(text.clone()),
        Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => Param::Text(value.to_string()),
    }
}

impl Admissible for RunSql {
    const MEETS: &'static [ObligationKind] = Self::SPEC.meets;

    fn apply(&mut self, effective: &Effective<'_>) -> Result<Vec<String>, Failure> {
        let demands = effective.obligations();
        let mut warnings = Vec::new();
        if let Some(policy) = demands.read_only.first()
            && !self.read_only()
        {
            self.readonly = Some(true);
            self.demands.read_only_by = Some(policy.clone());
            warnings.push(format!("read-only, as policy `{policy}` demands"));
        }
        self.demands.rows_max = lowered(&demands.max_rows, self.rows_asked()?, "row limit", &mut warnings);
        lowered(&demands.statement_timeout_ms, self.timeout_ms_asked()?, "timeout in ms", &mut warnings);
        self.demands.timeout_ms_max.clone_from(&demands.statement_timeout_ms);
        self.demands.bytes_max = demands.max_result_bytes.as_ref().map(|limit| limit.value);
        Ok(warnings)
    }
}

/// Returns the limit; says so where it is lower than what was asked for.
pub(super) fn lowered(limit: &Option<Limit>, asked: u64, what: &str, warnings: &mut Vec<String>) -> Option<u64> {
    let limit = limit.as_ref()?;
    if limit.value < asked {
        warnings.push(format!("{what} {}, set by `{}`", limit.value, limit.set_by));
    }
    Some(limit.value)
}

#[async_trait]
impl Operation for RunSql {
    const SPEC: Spec = Spec {
        name: "run_sql",
        title: "Run SQL in a sandbox",
        help: "Runs SQL in your sandbox and returns bounded results. Use readonly=true to look; it runs as a role that cannot write. \
               Values are exact: bigint and numeric come as strings, and JSON that doubles would change as its text (`jsonAsText`).",
        impact: Impact::Writes,
        meets: &[
            ObligationKind::ReadOnly,
            ObligationKind::MaxRows,
            ObligationKind::MaxResultBytes,
            ObligationKind::StatementTimeoutMs,
            ObligationKind::MaxDatabaseBytes,
        ],
        toolset: Toolset::Core,
        idempotent: false,
    };
    type Output = SqlResults;

    fn check(&self) -> Result<(), Failure> {
        self.limits()?;
        self.params().map(|_| ())
    }

    fn asks(&self) -> Asks {
        Asks {
            about: About::Sandbox((&self.database).into()),
            requested: Requested {
                rows: self.rows_asked().ok(),
                timeout_ms: self.timeout_ms_asked().ok(),
                read_only: self.read_only(),
                ..Requested::default()
            },
            sql: Some(self.sql.clone()),
            usage: true,
            ..Asks::default()
        }
    }

    async fn foresee(&self, ahead: &Ahead<'_>) -> Result<Vec<String>, Failure> {
        let id = ahead.grant.target.ok_or_else(missing_target)?;
        let script = ahead.script.ok_or_else(|| Failure::new(Code::Internal, "the SQL was not read"))?;
        Work::new(self, script, "")?;
        let barred = self.barred(script, ahead.core, ahead.preview, ahead.grant).await?;
        self.refuse_barred(&barred)?;
        ahead.core.foresee_use(ahead.grant, id, self.credential()).await?;
        let refused = |(index, failure): (&u32, &Failure)| {
            format!("statement {index} would be refused: `{}`: {}", failure.code.as_str(), failure.message)
        };
        Ok(barred.iter().map(refused).collect())
    }

    async fn run(permit: Permit<Self>, call: &Call) -> Result<Done<SqlResults>, Failure> {
        let id = permit.grant().target.ok_or_else(missing_target)?;
        let script = call.script.clone().ok_or_else(|| Failure::new(Code::Internal, "the SQL was not read"))?;
        let input = permit.input();
        let looked = async {
            let mut work = Work::new(input, &script, &call.database)?;
            work.core = permit.grant().profile.as_deref().map(|profile| (&call.core, profile));
            work.barred = input.barred(&script, &call.core, &*call.preview, permit.grant()).await?;
            input.refuse_barred(&work.barred)?;
            name_acceptable_extensions(&mut work.barred, call, permit.grant()).await;
            Ok(work)
        };
        let work = permit.grant().course.refusing(looked.await)?;
        let access = input.credential();
        let started = Instant::now();
        // A session may have to be waited for: within the call's time, and cancelled like what follows.
        let session = tokio::time::timeout_at(started + work.time.time(), call.core.session(&permit, id, access));
        let Some(lent) = call.cancel.run_until_cancelled(session).await else {
            return Err(Failure::new(Code::Cancelled, "the call was cancelled by the caller"));
        };
        let in_time = lent.map_err(|_| work.time.no_session());
        // Refused only if it was still waited for; a login that was begun says that it was.
        let mut session = permit.grant().course.refusing(in_time)??;
        let handle = session.cancel_handle();
        let outcome = {
            let running = async {
                let outcome = work.run(&mut session, started).await;
                // Giving rights is writing, which a policy's demand rules out.
                let must_only_read = !permit.grant().obligations.read_only.is_empty();
                if !work.read_only || must_only_read || !lacks_a_right(&outcome) {
                    return outcome;
                }
                match call.core.restore_reads(&permit, id, started + work.time.time()).await {
                    Ok(true) => {
                        let mut again = work.run(&mut session, started).await;
                        if let Ok(results) = &mut again {
                            results.warnings.push(RESTORED.to_owned());
                        }
                        again
                    }
                    Ok(false) => outcome,
                    Err(failure) => {
                        // The caller is better served with what the statement met.
                        tracing::warn!(code = failure.code.as_str(), "the reader's rights could not be restored");
                        outcome
                    }
                }
            };
            tokio::pin!(running);
            tokio::select! {
                outcome = &mut running => outcome,
                () = call.cancel.cancelled() => {
                    // The backend must be idle within a second; if it does not obey, its connection goes.
                    let stopped = async {
                        handle.cancel().await.ok();
                        running.await.ok();
                    };
                    tokio::time::timeout(CANCEL_GRACE, stopped).await.ok();
                    Err(Failure::new(Code::Cancelled, "the call was cancelled by the caller"))
                }
            }
        };
        if outcome.as_ref().is_err_and(|failure| failure.code == Code::Cancelled) {
            session.close();
        }
        let mut results = outcome.map_err(|mut failure| {
            // Of every way to fail once there was a session.
            failure.detail_mut().earlier_committed = Some(work.committed.load(Ordering::Relaxed));
            failure
        })?;
        results.say_what_cut(&permit.grant().obligations);
        results.say_what_is_left_out();
        results.say_what_is_text();
        results.elapsed_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let warnings = std::mem::take(&mut results.warnings);
        Ok(Done::new(results.summary(), results).warn(warnings))
    }
}

/// A call's statements with everything needed to run them.
struct Work<'a> {
    database: &'a str,
    /// With the profile's name: knows what others have done. Absent where nothing is run.
    core: Option<(&'a Core, &'a str)>,
    input: &'a RunSql,
    script: &'a Script,
    params: Vec<Param>,
    stdin: Option<&'a str>,
    limits: ResultLimits,
    time: TimeLimit<'a>,
    read_only: bool,
    continue_on_error: bool,
    /// Statements that are not sent, by their number.
    barred: BTreeMap<u32, Failure>,
    /// Whether a statement may have made something last.
    committed: AtomicBool,
}

impl<'a> Work<'a> {
    fn new(input: &'a RunSql, script: &'a Script, database: &'a str) -> Result<Self, Failure> {
        let (limits, time) = input.limits()?;
        let params = input.params()?;
        let statements = &script.statements;
        if statements.is_empty() {
            return Err(Failure::new(Code::SyntaxError, "there is no statement in `sql`"));
        }
        if !params.is_empty() && statements.len() != 1 {
            let message = format!("parameters go with exactly one statement, and there are {}", statements.len());
            return Err(Failure::new(Code::SingleStatementRequired, message).hint("send one call per statement"));
        }
        let stdin = input.stdin.as_deref();
        if let Some(data) = stdin {
            let copies = statements.iter().filter(|s| s.facts.class == StatementClass::CopyIn).count();
            if copies != 1 {
                let message = format!("`stdin` goes with exactly one COPY … FROM STDIN, and there are {copies}");
                return Err(Failure::new(Code::SingleStatementRequired, message));
            }
            if statements.iter().any(|s| s.copy_data.is_some()) {
                let message = "the data of COPY … FROM STDIN is in `sql` already, and there is `stdin` as well";
                return Err(Failure::new(Code::InvalidArguments, message).hint("send the data in one of both"));
            }
            if data.len() > STDIN_BYTES_MAX {
                let message = format!("`stdin` of {} bytes is over the limit of {STDIN_BYTES_MAX}", data.len());
                return Err(Failure::new(Code::InvalidArguments, message).hint("copy in several calls"));
            }
        }
        if input.read_only() {
            let demanded_by = input.demands.read_only_by.as_deref();
            statements.iter().zip(1..).try_for_each(|(statement, index)| {
                check_read_only(statement, index, demanded_by).map_err(|f| input.on_line(f, statement))
            })?;
        }
        Ok(Self {
            database,
            core: None,
            input,
            script,
            params,
            stdin,
            limits,
            time,
            read_only: input.read_only(),
            continue_on_error: input.continue_on_error.unwrap_or(false),
            barred: BTreeMap::new(),
            committed: AtomicBool::new(false),
        })
    }

    async fn run(&self, session: &mut SandboxSession, started: Instant) -> Result<SqlResults, Failure> {
        let deadline = started + self.time.time();
        let mut results = SqlResults::default();
        let mut bytes_left = self.limits.bytes_max;
        for (statement, index) in self.script.statements.iter().zip(1..) {
            if let Some(failure) = self.barred.get(&index) {
                // It fails as a statement does: what is open then cannot be gone on with.
                if session.status() != TxStatus::Idle {
                    return Err(failure.clone());
                }
                results.add_failure(failure, &mut bytes_left);
                continue;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let limits = ResultLimits { bytes_max: bytes_left, ..self.limits };
            let span = span::statement(&statement.facts.tag, self.database);
            span.record(span::STATEMENT_CLASS, statement.facts.class.as_str());
            span.record(span::STATEMENT_FINGERPRINT, statement.facts.fingerprint.to_string());
            let would_stop = !self.read_only && statement.facts.read_only_safe;
            let outcome = match left.is_zero() {
                true => Err(self.time.not_begun()),
                false => self
                    .run_one(session, statement, limits, left)
                    .instrument(span.clone())
                    .await
                    .map_err(|error| self.time.failure(error, deadline, would_stop)),
            };
            match outcome {
                Ok(mut set) => {
                    if session.status() == TxStatus::Idle && !self.read_only && may_commit(statement, &set) {
                        self.committed.store(true, Ordering::Relaxed);
                    }
                    results.add_notices(std::mem::take(&mut set.notices), set.notices_dropped, &mut bytes_left);
                    let entry = ResultSetEntry::new(index, &set);
                    span.record(span::DB_RESPONSE_RETURNED_ROWS, set.rows.len());
                    bytes_left = bytes_left.saturating_sub(entry.kept_bytes());
                    results.add_set(entry);
                }
                Err(mut failure) => {
                    results.add_notices(session.take_notices(), 0, &mut bytes_left);
                    failure.detail_mut().statement_index = Some(index);
                    let mut failure = self.input.on_line(failure, statement);
                    if let Some((core, profile)) = self.core {
                        core.blame_others(profile, self.database, &mut failure).await;
                    }
                    span::failed(&span, &failure);
                    if failure.code == Code::PermissionDenied && self.read_only && failure.hint.is_none() {
                        failure.hint = Some(denied_to_reader(self.input.demands.read_only_by.as_deref()));
                    }
                    if failure.hint.is_none() && self.is_misread_array(&mut failure) {
                        failure.hint = Some(ARRAY_TEXT.to_owned());
                    }
                    failure.detail_mut().earlier_committed = Some(self.committed.load(Ordering::Relaxed));
                    if !self.continue_on_error || !session.is_usable() || is_over(deadline) {
                        if !results.result_sets.is_empty() && failure.hint.is_none() {
                            failure.hint = Some(ROWS_BEFORE.to_owned());
                        }
                        return Err(failure);
                    }
                    results.add_failure(&failure, &mut bytes_left);
                }
            }
        }
        if session.status() != TxStatus::Idle {
            session.rollback().await.map_err(Failure::from)?;
            results.warnings.push("the transaction left open at the end of the call was rolled back".to_owned());
        }
        results.total_up();
        Ok(results)
    }

    /// Returns whether a value could not be read (invalid_text_representation) where one of those given is a JSON array.
    fn is_misread_array(&self, failure: &mut Failure) -> bool {
        failure.detail_mut().sqlstate.as_deref() == Some("22P02")
            && self.input.params.iter().flatten().any(Value::is_array)
    }

    async fn run_one(
        &self,
        session: &mut SandboxSession,
        statement: &Statement,
        limits: ResultLimits,
        timeout: Duration,
    ) -> Result<ResultSet, WireError> {
        let inline = statement.copy_data.clone().and_then(|range| self.input.sql.get(range));
        let text = self.input.sql.get(statement.text.clone()).unwrap_or_default();
        let copies_in = statement.facts.class == StatementClass::CopyIn;
        let copy_in = if copies_in { inline.or(self.stdin).map(str::as_bytes) } else { None };
        // What writes is never stopped half-way, and what a statement calls through views, operators, casts and policies of
        // rows is not seen in it. What a read-only call does is taken back in any case.
        let rest = if self.read_only { Rest::Unfetched } else { Rest::Counted };
        let call = StatementCall { text, params: &self.params, limits, rest, timeout, copy_in };
        if self.read_only { session.execute_read_only(&call).await } else { session.execute(&call).await }
    }
}

/// Returns whether a statement after which no transaction is open may have made something last.
fn may_commit(statement: &Statement, set: &ResultSet) -> bool {
    // A COMMIT of a failed transaction is answered with ROLLBACK.
    !statement.facts.read_only_safe && set.command_tag.as_deref() != Some("ROLLBACK")
}

/// Says why the read-only role may be denied what the owner may do, and what to do about it.
fn denied_to_reader(demanded_by: Option<&str>) -> String {
    let why = "the read-only role owns nothing; nor can it pass by the row security of a table where the profile's admin is no \
               superuser, and is refused then";
    match demanded_by {
        None => format!("{why}; the sandbox's owner may: call without `readonly`"),
        Some(policy) => format!(
            "{why}; policy `{policy}` demands that the call reads only, so an operator has to change that, or make the admin a superuser"
        ),
    }
}

/// Returns whether a statement failed because its role may not do something.
fn lacks_a_right(outcome: &Result<SqlResults, Failure>) -> bool {
    match outcome {
        Ok(results) => results.has_failure(Code::PermissionDenied),
        Err(failure) => failure.code == Code::PermissionDenied,
    }
}

/// Lets only statements through that passed every test for read-only use.
///
/// `demanded_by` is the policy that makes the call read-only, where its caller did not.
pub(super) fn check_read_only(statement: &Statement, index: u32, demanded_by: Option<&str>) -> Result<(), Failure> {
    let facts = &statement.facts;
    if facts.read_only_safe {
        return Ok(());
    }
    let mut failure = if facts.class == StatementClass::Unparsed {
        let message = format!("statement {index} is of no known class, so it cannot run read-only");
        Failure::new(Code::UnparsedStatement, message)
    } else {
        let (tag, class) = (&facts.tag, facts.class.as_str());
        let message = format!("statement {index} (`{tag}`, class `{class}`) cannot run read-only");
        Failure::new(Code::ReadonlyViolation, message)
    };
    let reads = [StatementClass::Read, StatementClass::Show, StatementClass::Explain, StatementClass::CopyOut];
    failure.hint = Some(if reads.contains(&facts.class) && facts.functions.is_empty() {
        "the statement is in a form, or nested to a depth, that is not understood in full; write it more plainly"
            .to_owned()
    } else if reads.contains(&facts.class) {
        format!("only Postgres' own harmless functions are let through; seen: {}", facts.functions.join(", "))
    } else if let Some(policy) = demanded_by {
        format!(
            "policy `{policy}` demands that the call reads only; reads, SHOW, EXPLAIN and COPY … TO STDOUT run, and an \
             operator can change the policy's settings"
        )
    } else {
        "reads, SHOW, EXPLAIN and COPY … TO STDOUT run read-only; leave `readonly` away to write".to_owned()
    });
    failure.policy = demanded_by.map(|policy| (policy.to_owned(), ObligationKind::ReadOnly.as_str().to_owned()));
    failure.detail_mut().statement_index = Some(index);
    Err(failure)
}
