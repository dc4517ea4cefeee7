//! Looks at a source before anything is made for it: by one session that only reads, and that is closed before the copy.
//!
//! What the source says is another's: every value is bounded and may be missing, and none of its messages is shown.

mod columns;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::job::{CloneJob, ClonePlan, TableName};
use super::mask;
use super::{collation, identity, known, tools};
use crate::engine::postgres::managed;
use crate::engine::postgres::server::{PostgresServer, ServerSource};
use crate::engine::postgres::startup::{APPLICATION_NAME, Purpose, startup_options};
use crate::engine::postgres::{
    Auth, Cell, Endpoint, Param, Rest, ResultLimits, SandboxSession, SessionTarget, StatementCall, WireError,
    extensions, wire,
};
use crate::engine::{EngineError, ServerInfo, server_condition};
use crate::model::limits::REPLY_BYTES_MAX;
use crate::model::{Code, Failure, Secret, fault};

/// The oldest major that can be copied.
pub(super) const MAJOR_MIN: u16 = 13;
/// How long the source may take for one question.
const QUESTION_WAIT: Duration = Duration::from_secs(30);
/// How many things are named in a refusal.
const NAMED_MAX: usize = 10;
/// The most tables whose rows are left out, partitions among them: each is named to `pg_dump`.
const WITHOUT_ROWS_MAX: usize = 5_000;
/// What a copy needs on a disk beside the source's own size: indexes and log are written as well.
const DISK_FACTOR: u64 = 2;

/// What is no system object and belongs to no extension.
const OWN: &str = "n.nspname !~ '^pg_' AND n.nspname <> 'information_schema' AND NOT EXISTS (SELECT FROM pg_depend d \
     WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e')";

/// Looks at the source and at what its copy needs here, and keeps what was found in the job.
pub(in crate::engine::postgres) async fn preflight(
    server: &Arc<PostgresServer>,
    job: &CloneJob,
) -> Result<(), EngineError> {
    let info = server.info().await?;
    let plan = super::stoppable(job, look(server, &info, job)).await?;
    // Whoever looks twice finds the same.
    job.plan.set(plan).unwrap_or_default();
    Ok(())
}

async fn look(server: &Arc<PostgresServer>, info: &ServerInfo, job: &CloneJob) -> Result<ClonePlan, EngineError> {
    // Meanwhile the programs say their versions.
    let (plan, found) = tokio::join!(ask_source(info, job), managed::dump_tools(&server.settings().tools));
    let mut plan = plan?;
    if let Some(locale) = &plan.source_locale {
        let difference = collation::difference(server, locale).await?;
        plan.warnings.extend(difference);
    }
    choose_extensions(server, info, job, &mut plan).await?;
    fits(server, job, &plan)?;
    plan.tools = Some(tools::choose(&found, plan.source_major, info.major)?);
    Ok(plan)
}

/// Asks the source everything there is to know before its copy.
async fn ask_source(info: &ServerInfo, job: &CloneJob) -> Result<ClonePlan, EngineError> {
    let mut asking = Asking::open(job).await?;
    let mut plan = ClonePlan::default();
    asking.server(&mut plan, info).await?;
    plan.address = asking.session.address();
    identity::refuse_guarded(&mut asking.session, job).await?;
    asking.named_tables(&mut plan).await?;
    asking.readable(&plan).await?;
    asking.extensions(&mut plan).await?;
    asking.others(&mut plan).await?;
    let mut faults = Vec::new();
    for mask in &job.options.masks {
        asking.column(&mut plan, &mask.table, &mask.column).await?;
        faults.extend(match mask::column_of(&plan, mask) {
            Ok(column) => column.fault(&mask.with),
            Err(missing) => Some(missing),
        });
    }
    refuse_all(faults)?;
    plan.masks.clone_from(&job.options.masks);
    for demanded in &job.options.demanded {
        asking.demanded(&mut plan, demanded).await?;
    }
    Ok(plan)
}

/// Refuses for all that is wrong with what was asked for, so that it is mended at once.
fn refuse_all(faults: Vec<Failure>) -> Result<(), EngineError> {
    let messages: Vec<String> = faults.iter().map(|fault| fault.message.clone()).collect();
    match faults.into_iter().next() {
        None => Ok(()),
        Some(first) => Err(known(Failure { message: messages.join("; "), ..first })),
    }
}

/// Returns how a session with the source is opened: nothing can be changed there, and nothing is waited for long.
/// At `address`, where it was found before: a name may lead elsewhere in the next moment.
pub(super) fn login(job: &CloneJob, major: u16, address: Option<SocketAddr>) -> SessionTarget {
    SessionTarget {
        endpoint: Endpoint { address, ..job.source.endpoint.clone() },
        database: job.source.database.clone(),
        user: job.source.credentials.user.clone(),
        password: job.source.credentials.password.clone().unwrap_or_else(|| Secret::new("")),
        application_name: APPLICATION_NAME.to_owned(),
        options: startup_options(major, Purpose::Source),
        auth: Auth::AsServerAsks,
        connect_timeout: job.source.connect_timeout,
    }
}

/// Looks at a database of this server's that is to be dumped as its owner.
pub(super) async fn look_at_own(
    server: &Arc<PostgresServer>,
    info: &ServerInfo,
    job: &CloneJob,
) -> Result<ClonePlan, EngineError> {
    let mut asking = Asking::open(job).await?;
    let mut plan = ClonePlan::default();
    asking.server(&mut plan, info).await?;
    plan.address = asking.session.address();
    asking.readable(&plan).await?;
    asking.extensions(&mut plan).await?;
    asking.others(&mut plan).await?;
    drop(asking);
    plan.tools = Some(tools::find(server, info.major, info.major).await?);
    Ok(plan)
}

/// Looks at what a dump needs here of which `plan` says what it holds.
pub(super) async fn fit_kept(
    server: &Arc<PostgresServer>,
    info: &ServerInfo,
    job: &CloneJob,
    mut plan: ClonePlan,
) -> Result<ClonePlan, EngineError> {
    if !(MAJOR_MIN..=info.major).contains(&plan.source_major) {
        return Err(known(version_mismatch(job, plan.source_major, info.major)));
    }
    choose_extensions(server, info, job, &mut plan).await?;
    fits(server, job, &plan)?;
    plan.tools = Some(tools::find(server, plan.source_major, info.major).await?);
    Ok(plan)
}

/// The session with the source.
struct Asking<'a> {
    session: SandboxSession,
    job: &'a CloneJob,
}

impl<'a> Asking<'a> {
    async fn open(job: &'a CloneJob) -> Result<Self, EngineError> {
        fault::pass("socket.source-login").await.map_err(|injected| {
            known(of_wire(&WireError::Lost(std::io::Error::from(injected).to_string()), job, "open a session"))
        })?;
        let session = SandboxSession::connect(&login(job, MAJOR_MIN, None)).await;
        session.map(|session| Self { session, job }).map_err(|error| known(of_wire(&error, job, "open a session")))
    }

    /// Asks one question in a transaction that only reads.
    async fn ask(&mut self, text: &str, params: &[Param]) -> Result<Vec<Vec<Option<String>>>, EngineError> {
        let limits = ResultLimits { rows_max: u64::MAX, bytes_max: REPLY_BYTES_MAX, ..ResultLimits::default() };
        let timeout = fault::within(QUESTION_WAIT);
        let call = StatementCall { text, params, limits, rest: Rest::Unfetched, timeout, copy_in: None };
        let set = self
            .session
            .execute_read_only(&call)
            .await
            .map_err(|error| known(of_wire(&error, self.job, "be looked at")))?;
        if set.truncated {
            return Err(self.strange("its catalogue is larger than can be read"));
        }
        let text = |cell: &Cell| cell.text().map(str::to_owned);
        Ok(set.rows.iter().map(|row| row.iter().map(text).collect()).collect())
    }

    fn strange(&self, what: &str) -> EngineError {
        let text = format!("{} does not answer as a Postgres server does: {what}", self.job.shown);
        known(
            Failure::new(Code::PostgresConnectionFailed, text)
                .hint("see what listens at the source's address")
                .for_good(),
        )
    }

    /// Reads version, encoding and size, and refuses what cannot be copied here.
    async fn server(&mut self, plan: &mut ClonePlan, info: &ServerInfo) -> Result<(), EngineError> {
        let rows = self
            .ask(
                &format!(
                    "SELECT current_setting('server_version'), current_setting('server_encoding'), {}, \
                     pg_database_size(d.oid)::text, current_setting('default_transaction_read_only') = 'on' \
                     AND current_setting('search_path') = 'pg_catalog' AND current_setting('lock_timeout') <> '0' \
                     FROM pg_database d WHERE d.datname = current_database()",
                    collation::LOCALE
                ),
                &[],
            )
            .await?;
        let Some([Some(version), Some(encoding), locale, size, Some(pinned)]) = rows.first().map(Vec::as_slice) else {
            return Err(self.strange("it says nothing of itself"));
        };
        let major = crate::engine::postgres::admin::major_of(version);
        let Some(major) = major else { return Err(self.strange("its version is none")) };
        plan.source_version = version.chars().take(64).flat_map(char::escape_default).collect();
        plan.source_major = major;
        plan.source_bytes = size.as_deref().and_then(|size| size.parse().ok()).unwrap_or_default();
        if !(MAJOR_MIN..=info.major).contains(&major) {
            return Err(known(version_mismatch(self.job, major, info.major)));
        }
        if pinned != "t" {
            let text = format!(
                "{} is reached through something that drops start-up settings, a pooler perhaps",
                self.job.shown
            );
            return Err(known(
                Failure::new(Code::InvalidConfiguration, text)
                    .hint("give the address of the server itself: the settings are what keeps the copy from changing anything there"),
            ));
        }
        let shown: String = encoding.chars().take(32).flat_map(char::escape_default).collect();
        if encoding == "SQL_ASCII" {
            plan.warnings.push(
                "the source's encoding is SQL_ASCII, which says nothing of its text: it is taken for UTF-8".to_owned(),
            );
        } else if encoding != "UTF8" {
            plan.warnings.push(format!("the source's text is converted from {shown} to UTF-8"));
        }
        plan.source_locale.clone_from(locale);
        Ok(())
    }

    /// Refuses a source that the role cannot read whole, and names what it cannot.
    async fn readable(&mut self, plan: &ClonePlan) -> Result<(), EngineError> {
        let rows = self
            .ask(
                &format!(
                    "SELECT n.nspname, c.relname, has_table_privilege(c.oid, 'SELECT') AND has_schema_privilege(n.oid, 'USAGE'), \
                     c.relrowsecurity AND row_security_active(c.oid) \
                     FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
                     WHERE c.relkind IN ('r', 'p', 'S') AND {OWN} AND (NOT has_table_privilege(c.oid, 'SELECT') \
                     OR NOT has_schema_privilege(n.oid, 'USAGE') OR c.relrowsecurity AND row_security_active(c.oid)) \
                     ORDER BY 1, 2 LIMIT 1000"
                ),
                &[],
            )
            .await?;
        let (mut closed, mut hidden) = (Vec::new(), Vec::new());
        for row in &rows {
            let [Some(schema), Some(table), may, secured] = row.as_slice() else { continue };
            let name = TableName { schema: schema.clone(), table: table.clone() };
            if may.as_deref() != Some("t") {
                closed.push(name);
            } else if secured.as_deref() == Some("t")
                && !self.job.options.schema_only
                && !plan.without_rows.contains(&name)
            {
                hidden.push(name);
            }
        }
        let user = &self.job.source.credentials.user;
        if !closed.is_empty() {
            let text = format!("role `{user}` of {} may not read {}", self.job.shown, listed(&closed));
            return Err(known(
                Failure::new(Code::PermissionDenied, text)
                    .hint(
                        "grant it SELECT on them and USAGE on their schemas, or use another role; tables whose rows are left out \
                         need it as well",
                    ),
            ));
        }
        if !hidden.is_empty() {
            let text =
                format!("row security hides rows of {} from role `{user}` of {}", listed(&hidden), self.job.shown);
            return Err(known(
                Failure::new(Code::PermissionDenied, text)
                    .hint("use a role with BYPASSRLS, or leave their rows out by `excludeTableData` or `schemaOnly`")
                    .naming(&["excludeTableData", "schemaOnly"]),
            ));
        }
        Ok(())
    }

    async fn extensions(&mut self, plan: &mut ClonePlan) -> Result<(), EngineError> {
        let sql = "SELECT e.extname, n.nspname FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace \
                   WHERE e.extname <> 'plpgsql' ORDER BY 1 LIMIT 500";
        for row in self.ask(sql, &[]).await? {
            let [Some(name), Some(schema)] = row.as_slice() else { continue };
            if self.job.options.exclude_extensions.contains(name) {
                plan.excluded_extensions.push(name.clone());
            } else {
                plan.extensions.push((name.clone(), schema.clone()));
            }
        }
        let missing = |name: &&String| name.as_str() != "plpgsql" && !plan.excluded_extensions.contains(name);
        let Some(missing) = self.job.options.exclude_extensions.iter().find(missing) else { return Ok(()) };
        let shown: String = missing.chars().take(80).flat_map(char::escape_default).collect();
        let there = plan.excluded_extensions.iter().chain(plan.extensions.iter().map(|(name, _)| name)).cloned();
        Err(known(
            Failure::new(Code::InvalidExtensions, format!("the source has no extension `{shown}` to leave out"))
                .allowed(there),
        ))
    }

    /// Finds what is never copied, and how much there is.
    async fn others(&mut self, plan: &mut ClonePlan) -> Result<(), EngineError> {
        let rows = self
            .ask(
                &format!(
                    "SELECT (SELECT count(*) FROM pg_event_trigger)::text, (SELECT count(*) FROM pg_foreign_data_wrapper)::text, \
                     (SELECT count(*) FROM pg_subscription s JOIN pg_database b ON b.oid = s.subdbid WHERE b.datname = current_database())::text, \
                     (SELECT count(*) FROM pg_publication)::text, \
                     (SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind IN ('r', 'p') AND {OWN})::text, \
                     (SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind = 'r' \
                     AND c.relpersistence = 'u' AND pg_is_in_recovery() AND {OWN})::text"
                ),
                &[],
            )
            .await?;
        let count =
            |at: usize| rows.first().and_then(|row| row.get(at)?.as_deref()?.parse::<u64>().ok()).unwrap_or_default();
        plan.event_triggers = count(0) > 0;
        plan.foreign_servers = count(1) > 0;
        plan.tables = count(4);
        let foreign = format!(
            "SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
             WHERE c.relkind = 'f' AND {OWN} ORDER BY 1, 2 LIMIT 5000"
        );
        for row in self.ask(&foreign, &[]).await? {
            let [Some(schema), Some(table)] = row.as_slice() else { continue };
            plan.foreign_tables.push(TableName { schema: schema.clone(), table: table.clone() });
        }
        let counted = [
            (count(0), "event trigger", ""),
            (count(1), "foreign data wrapper", " with servers and user mappings"),
            (plan.foreign_tables.len() as u64, "foreign table", ""),
            (count(2), "subscription", ""),
            (count(3), "publication", ""),
        ];
        let left_out = counted
            .iter()
            .filter(|(count, ..)| *count > 0)
            .map(|(count, what, with)| format!("{}{with}", crate::model::counted(count, what, &format!("{what}s"))));
        plan.left_out.extend(left_out);
        if count(5) > 0 && !self.job.options.schema_only {
            let tables = crate::model::counted(count(5), "unlogged table", "unlogged tables");
            plan.left_out.push(format!("the rows of {tables}, which a standby does not have"));
        }
        Ok(())
    }

    /// Finds the tables whose rows are to be left out, with all that hold rows for them: partitions and tables that inherit.
    async fn named_tables(&mut self, plan: &mut ClonePlan) -> Result<(), EngineError> {
        let sql = format!(
            "WITH RECURSIVE t (oid) AS (SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
             WHERE n.nspname = $1 AND c.relname = $2 AND c.relkind IN ('r', 'p', 'm', 'S') \
             UNION SELECT i.inhrelid FROM pg_inherits i JOIN t ON i.inhparent = t.oid) \
             SELECT n.nspname, c.relname, pg_total_relation_size(c.oid)::text FROM t JOIN pg_class c ON c.oid = t.oid \
             JOIN pg_namespace n ON n.oid = c.relnamespace LIMIT {}",
            WITHOUT_ROWS_MAX + 1
        );
        let mut faults = Vec::new();
        for table in &self.job.options.exclude_table_data {
            let rows = self.ask(&sql, &[Param::Text(table.schema.clone()), Param::Text(table.table.clone())]).await?;
            if rows.is_empty() {
                let text = format!("the source has no table `{table}`");
                faults.push(Failure::new(Code::InvalidArguments, text).hint(
                    "names are written as the catalogue has them, in the same case; `schema.table`, or `table` in `public`",
                ));
            }
            for row in &rows {
                let [Some(schema), Some(name), size] = row.as_slice() else { continue };
                if plan.without_rows.insert(TableName { schema: schema.clone(), table: name.clone() }) {
                    let bytes = size.as_deref().and_then(|size| size.parse::<u64>().ok()).unwrap_or_default();
                    plan.source_bytes = plan.source_bytes.saturating_sub(bytes);
                }
            }
            refuse_too_many(plan.without_rows.len())?;
        }
        refuse_all(faults)
    }
}

/// Refuses a source that is newer than the server here, or too old.
fn version_mismatch(job: &CloneJob, source: u16, target: u16) -> Failure {
    let (text, hint) = if source > target {
        (
            format!("{} is Postgres {source}, newer than the sandbox's server, which is Postgres {target}", job.shown),
            format!("choose a profile of Postgres {source} or later"),
        )
    } else {
        (
            format!("{} is Postgres {source}, older than can be cloned", job.shown),
            format!("versions from {MAJOR_MIN} on can be cloned"),
        )
    };
    let mut failure = Failure::new(Code::VersionMismatch, text).hint(hint);
    let detail = failure.detail_mut();
    detail.source_version = Some(source.to_string());
    detail.target_version = Some(target.to_string());
    failure
}

/// Decides who makes the source's extensions here, and refuses those that cannot be had.
async fn choose_extensions(
    server: &Arc<PostgresServer>,
    info: &ServerInfo,
    job: &CloneJob,
    plan: &mut ClonePlan,
) -> Result<(), EngineError> {
    if plan.extensions.is_empty() {
        return Ok(());
    }
    let names: Vec<String> = plan.extensions.iter().map(|(name, _)| name.clone()).collect();
    let profile = &server.settings().profile;
    let without = |failure: Failure| {
        let hint = "leave out by `excludeSourceExtensions` what is named; what is built on it cannot be restored then";
        known(failure.hint(hint).naming(&["excludeSourceExtensions"]))
    };
    let session = server.admin_session().await?;
    let sorted = extensions::sorted(&session, profile, &names).await?;
    let planned = extensions::plan(&session, profile, &sorted, info.superuser).await;
    // What is not there and what is not allowed are told at once: each try may need somebody's approval.
    let allowed = &job.options.allowed_extensions;
    let may = |name: &&String| allowed.contains(name) || extensions::is_never(name);
    let closed: Vec<String> = names.iter().filter(|name| !may(name)).take(NAMED_MAX).cloned().collect();
    let closed = (!closed.is_empty()).then(|| not_allowed(job, profile, &closed));
    let planned = match (planned, closed) {
        (Ok(planned), None) => planned,
        (Ok(_), Some(text)) => return Err(without(Failure::new(Code::ExtensionNotAllowed, text))),
        (Err(EngineError::Known(mut failure)), closed) => {
            failure.message.extend(closed.iter().flat_map(|text| ["; ", text.as_str()]));
            return Err(without(*failure));
        }
        (Err(error), _) => return Err(error),
    };
    plan.by_admin = planned.by_admin.iter().map(|extension| extension.name().to_owned()).collect();
    Ok(())
}

fn not_allowed(job: &CloneJob, profile: &str, names: &[String]) -> String {
    let shown: Vec<String> = names.iter().map(|name| format!("`{}`", name.escape_default())).collect();
    let (what, shown) = (if shown.len() == 1 { "extension" } else { "extensions" }, shown.join(", "));
    format!("{} has the {what} {shown}, which profile `{profile}` or a policy does not allow", job.shown)
}

/// Refuses a copy that would not fit.
fn fits(server: &PostgresServer, job: &CloneJob, plan: &ClonePlan) -> Result<(), EngineError> {
    if job.options.schema_only {
        return Ok(());
    }
    let bytes = plan.source_bytes;
    if let Some(most) = job.options.bytes_max.filter(|most| bytes > *most) {
        let text = format!("{} has {bytes} bytes, and {most} are left of the quota of bytes", job.shown);
        return Err(known(
            Failure::new(Code::QuotaExceeded, text)
                .hint("delete sandboxes that are not needed, or leave rows out: `schemaOnly`, `excludeTableData`")
                .naming(&["schemaOnly", "excludeTableData"]),
        ));
    }
    let ServerSource::Managed(settings) = &server.settings().source else { return Ok(()) };
    let Ok(disk) = rustix::fs::statvfs(&settings.home) else { return Ok(()) };
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    let needed = bytes.saturating_mul(DISK_FACTOR);
    if needed > free {
        let text = format!(
            "{} has {bytes} bytes; its copy needs {needed} on the sandbox's disk, which has {free} free",
            job.shown
        );
        return Err(known(
            Failure::new(Code::DiskFull, text)
                .hint("delete sandboxes that are not needed, or leave rows out: `schemaOnly`, `excludeTableData`")
                .naming(&["schemaOnly", "excludeTableData"]),
        ));
    }
    Ok(())
}

/// Words what went wrong with the session; nothing that the source said is in it but a code.
pub(super) fn of_wire(error: &WireError, job: &CloneJob, action: &str) -> Failure {
    let (shown, user) = (&job.shown, &job.source.credentials.user);
    let unreachable =
        |text: String, hint: &str| Failure::new(Code::PostgresConnectionFailed, text).hint(hint.to_owned());
    let state = error.sqlstate().map(str::to_owned);
    let mut failure = match error {
        WireError::Auth(_) => {
            Failure::new(Code::PostgresAuthFailed, format!("{shown} does not accept the credentials of `{user}`"))
                .hint("see the source's user and password, and `pg_hba.conf` of its server")
        }
        WireError::AuthMethod(method) => Failure::new(
            Code::PostgresAuthFailed,
            format!("{shown} asks for the authentication method `{method}`, which is not used over this connection"),
        )
        .hint("let the server use `scram-sha-256`, or reach it with TLS"),
        WireError::Unbound => Failure::new(
            Code::PostgresAuthFailed,
            format!("{shown} does not bind the login to its certificate, which `channel_binding=require` demands"),
        )
        .hint(wire::UNBOUND_HINT),
        WireError::Impostor => Failure::new(
            Code::PostgresAuthFailed,
            format!("{shown} could not prove that it knows the password: it may be another server"),
        )
        .hint("see the source's address, and use `sslmode=verify-full`"),
        WireError::Refused(error) | WireError::Ended(error) => match error.sqlstate() {
            "3D000" => {
                Failure::new(Code::PostgresConnectionFailed, format!("{shown} names a database that is not there"))
                    .hint("correct the database's name")
                    .for_good()
            }
            "42501" => Failure::new(Code::PermissionDenied, format!("role `{user}` may not enter {shown}"))
                .hint("grant it CONNECT there"),
            "53300" => Failure::new(Code::Busy, format!("{shown} has no connection left")).hint("call again later"),
            // A server, or a pooler, that does not know a setting or takes none.
            "42704" | "08P01" => Failure::new(
                Code::InvalidConfiguration,
                format!("{shown} does not take the start-up settings that keep the copy from changing anything there"),
            )
            .hint("give the address of the server itself and not of a pooler; versions from 13 on can be cloned"),
            state => {
                let code = server_condition(state).map_or(Code::PostgresConnectionFailed, |(code, _)| code);
                Failure::new(code, format!("{shown} accepts no session (SQLSTATE {state})"))
                    .hint("see its server's log")
            }
        },
        WireError::Net(error) => {
            let hint = error.tls_remedy().unwrap_or("see that the server runs and is reached as configured");
            let failure = unreachable(format!("{shown} cannot be reached as it must be: {error}"), hint);
            if error.passes() { failure } else { failure.for_good() }
        }
        WireError::Timeout { .. } => unreachable(
            format!("{shown} did not answer in time"),
            "see that the server is well; the call may be repeated",
        ),
        WireError::Protocol(_) | WireError::Setting(_) | WireError::ReadOnlyViolated => unreachable(
            format!("{shown} does not answer as a Postgres server does"),
            "see what listens at the source's address",
        )
        .for_good(),
        WireError::Statement(error) => {
            let state = error.sqlstate();
            let code = if state == "42501" {
                Code::PermissionDenied
            } else {
                server_condition(state).map_or(Code::RestoreIncompatible, |(code, _)| code)
            };
            Failure::new(code, format!("{shown} could not {action} (SQLSTATE {state})"))
                .hint("see the rights of the source's role, and its server's log")
        }
        WireError::Lost(_)
        | WireError::Cancelled
        | WireError::CopyDataMissing
        | WireError::NotIdle
        | WireError::Unusable => unreachable(
            format!("the connection to {shown} was lost"),
            "see that the server is well; the call may be repeated",
        ),
        WireError::NotSendable(what) => {
            Failure::new(Code::InvalidArguments, format!("{shown} cannot be asked: {what}"))
        }
    };
    if let Some(state) = state {
        failure.detail_mut().sqlstate = Some(state);
    }
    failure
}

/// Refuses to leave out the rows of more tables than the programs can be told of.
fn refuse_too_many(tables: usize) -> Result<(), EngineError> {
    if tables <= WITHOUT_ROWS_MAX {
        return Ok(());
    }
    let text = format!("`excludeTableData` names more than {WITHOUT_ROWS_MAX} tables, partitions among them");
    Err(known(
        Failure::new(Code::InvalidArguments, text)
            .hint("name fewer, or copy no rows at all: `schemaOnly`")
            .naming(&["schemaOnly"]),
    ))
}

/// Names tables, the first of them.
fn listed(tables: &[TableName]) -> String {
    let mut names: Vec<String> = tables.iter().take(NAMED_MAX).map(|table| format!("`{table}`")).collect();
    if let Some(more) = tables.len().checked_sub(NAMED_MAX).filter(|more| *more > 0) {
        names.push(format!("{more} more"));
    }
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_more_tables_than_can_be_named_are_not_left_out() {
        for (tables, fits) in [(WITHOUT_ROWS_MAX, true), (WITHOUT_ROWS_MAX + 1, false)] {
            assert_eq!(refuse_too_many(tables).is_ok(), fits, "{tables}");
        }
    }

    #[test]
    fn no_more_tables_are_named_than_anybody_reads() {
        let tables = |count: usize| -> Vec<TableName> {
            (0..count).map(|n| TableName { schema: "s".into(), table: format!("t{n}") }).collect()
        };
        assert_eq!(listed(&tables(1)), "`s.t0`");
        for (count, more) in [(NAMED_MAX - 1, None), (NAMED_MAX, None), (NAMED_MAX + 3, Some("3 more"))] {
            let text = listed(&tables(count));
            assert_eq!(text.matches('`').count() / 2, count.min(NAMED_MAX));
            assert_eq!(text.contains("more"), more.is_some());
            assert!(more.is_none_or(|more| text.ends_with(more)), "{text}");
        }
    }
}
