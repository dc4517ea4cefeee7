//! Writes a template's dump to a file, and makes a template of one: the same programs as a copy, one end of it a file.
//!
//! A dump is written by the owner of a copy that is thrown away, and restored by the owner of what is new: whatever is in a
//! file, it is done as a role that owns nothing else, in a database that nobody else enters, and never as the admin. It is
//! filled and handed over as a copy of another server's is.
//! What is restored is what was compared with its checksum: it is copied to a private file while it is compared.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::archive::{self, Filter};
use super::job::{CloneJob, CloneOptions, ClonePlan, CloneReport};
use super::program::{self, Broken, Programs, Restore};
use super::relay::Relay;
use super::workdir::WorkDir;
use super::{
    RESTORES_MAX, SOURCE_SOCKET, TARGET_SOCKET, failure, known, preflight, report, size, stoppable, system, tools,
};
use crate::engine::postgres::admin::{refused, refused_unquoted};
use crate::engine::postgres::server::PostgresServer;
use crate::engine::postgres::steps::{DatabaseSetting, Door};
use crate::engine::postgres::{Credentials, PostgresUrl, access, catalog};
use crate::engine::{EngineError, SandboxSpec};
use crate::model::{
    Code, CredentialAccess, Failure, Progress, Schema, SchemaFilter, SchemaKind, SchemaObject, counted, fault,
};

/// What is copied at once.
const CHUNK_BYTES: usize = 1 << 20;

/// When a job must be done, and who listens.
#[derive(Clone)]
pub struct Wanted {
    /// What it is of, in messages.
    pub shown: String,
    /// How long it may take from now on.
    pub time: Duration,
    /// Set when the caller cancels.
    pub cancel: CancellationToken,
    /// Takes news.
    pub progress: Arc<dyn Progress>,
}

/// A template's dump that is to be written.
pub struct DumpJob {
    wanted: Wanted,
    deadline: Instant,
    /// Where it is written, from where it stands.
    file: File,
    /// The most bytes that it may have.
    bytes_max: u64,
    done: OnceLock<Dumped>,
}

/// What was written, and of what.
#[derive(Clone, Debug)]
pub struct Dumped {
    /// How many bytes.
    pub bytes: u64,
    /// Their SHA-256.
    pub sha256: [u8; 32],
    /// The server's version, and its major.
    pub server_version: String,
    /// The server's major version.
    pub server_major: u16,
    /// The version of `pg_dump`.
    pub tool_version: String,
    /// Encoding, collation and character classes of the database.
    pub locale: [String; 3],
    /// Name, version and schema of each extension.
    pub extensions: Vec<[String; 3]>,
    /// Name and value of each setting of the database.
    pub settings: Vec<(String, String)>,
    /// Its comment.
    pub comment: Option<String>,
    /// Its size.
    pub database_bytes: u64,
    /// Its schema.
    pub schema: Schema,
    /// Its tables and rows.
    pub report: CloneReport,
    /// What the dump does not hold, in words.
    pub left_out: Vec<String>,
}

/// A dump in a file.
#[derive(Debug)]
pub struct InFile {
    /// The file.
    pub file: File,
    /// Where in it the dump begins.
    pub at: u64,
    /// How long it is.
    pub bytes: u64,
    /// Its SHA-256, in hexadecimal digits.
    pub sha256: String,
    /// The major version of the server it is from.
    pub major: u16,
    /// Name and schema of each extension that it needs.
    pub extensions: Vec<(String, String)>,
    /// Extensions that may be made here.
    pub allowed_extensions: Vec<String>,
    /// Name and value of each setting that the database gets.
    pub settings: Vec<(String, String)>,
    /// The comment that it gets.
    pub comment: Option<String>,
    /// How large its database is said to be.
    pub database_bytes: u64,
    /// How large it may become.
    pub bytes_max: u64,
    /// Compares what was restored with what it should be.
    pub compare: Compare,
}

/// What is found in a copy, compared with what should be there.
type Comparison = dyn Fn(&Schema, &CloneReport) -> Result<(), Failure> + Send + Sync;

/// Compares what was restored with what it should be.
pub struct Compare(pub Box<Comparison>);

impl std::fmt::Debug for Compare {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Compare")
    }
}

/// A template that is to be made of a file.
#[derive(Debug)]
pub struct RestoreJob {
    pub(in crate::engine::postgres) clone: CloneJob,
    dump: InFile,
    done: OnceLock<Restored>,
}

/// What came of a restore.
#[derive(Clone, Debug)]
pub struct Restored {
    /// How large the database is.
    pub database_bytes: u64,
    /// Name and version of each extension.
    pub extensions: Vec<(String, String)>,
    /// Its schema.
    pub schema: Schema,
    /// Its tables and rows.
    pub report: CloneReport,
    /// Settings that could not be set.
    pub settings_left_out: Vec<String>,
}

impl std::fmt::Debug for DumpJob {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DumpJob").field("shown", &self.wanted.shown).finish_non_exhaustive()
    }
}

impl DumpJob {
    /// Begins a job that writes to `file`, from where it stands.
    pub fn new(wanted: Wanted, file: File, bytes_max: u64) -> Self {
        let deadline = Instant::now() + wanted.time;
        Self { wanted, deadline, file, bytes_max, done: OnceLock::new() }
    }

    /// Returns what was written, once it is.
    pub fn done(&self) -> Option<&Dumped> {
        self.done.get()
    }

    /// Returns how long is left.
    pub fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }
}

impl RestoreJob {
    /// Returns what was restored, once it is.
    pub fn done(&self) -> Option<&Restored> {
        self.done.get()
    }

    /// Returns how long is left.
    pub fn left(&self) -> Duration {
        self.clone.left()
    }
}

/// Returns the programs' job for a sandbox of the same server.
async fn job_of(
    server: &PostgresServer,
    spec: Option<&SandboxSpec>,
    wanted: &Wanted,
    deadline: Instant,
    options: CloneOptions,
) -> Result<CloneJob, EngineError> {
    let reach = server.reach().await?;
    let (user, password) = match spec {
        Some(spec) => (spec.names.owner_role.clone(), Some(spec.owner_password.clone())),
        None => (String::new(), None),
    };
    let url = PostgresUrl {
        endpoint: reach.endpoint.clone(),
        database: spec.map(|spec| spec.names.database.clone()).unwrap_or_default(),
        credentials: Credentials { user, password },
        connect_timeout: reach.connect_timeout,
    };
    let (cancel, progress) = (wanted.cancel.clone(), Arc::clone(&wanted.progress));
    let mut job = CloneJob::new(url, wanted.shown.clone(), options, wanted.time, cancel, progress);
    job.deadline = deadline;
    Ok(job)
}

/// Writes the dump of a sandbox that is a copy, made for this alone.
pub(in crate::engine::postgres) async fn write(
    server: &Arc<PostgresServer>,
    spec: &SandboxSpec,
    dump: &DumpJob,
) -> Result<(), EngineError> {
    let job = job_of(server, Some(spec), &dump.wanted, dump.deadline, CloneOptions::default()).await?;
    stoppable(&job, write_unbounded(server, spec, dump, &job)).await.map_err(of_export)
}

async fn write_unbounded(
    server: &Arc<PostgresServer>,
    spec: &SandboxSpec,
    dump: &DumpJob,
    job: &CloneJob,
) -> Result<(), EngineError> {
    let info = server.info().await?;
    let plan = preflight::look_at_own(server, &info, job).await?;
    let schema = catalog::read_once(server, spec, &SchemaFilter::default()).await?;
    if let Some(failure) = names_its_roles(&schema, &job.shown) {
        return Err(known(failure));
    }
    let session = access::catalogue_session(server, spec, CredentialAccess::Owner).await?;
    let bytes = size::bytes(server, spec).await?;
    report::check((session, None), bytes, &server.settings().profile, job).await?;
    let facts = facts(server, spec).await?;
    let user = tools::user(server)?;
    let work = WorkDir::make(&server.settings().work_dir, user.as_ref())?;
    let source = Relay::listen(&work, SOURCE_SOCKET, preflight::login(job, plan.source_major, plan.address), 1)?;
    let programs = Programs::prepare(&work, user, job, &plan, spec)?;
    work.give_away()?;
    let file = dump.file.try_clone().map_err(system("write a dump"))?;
    let written = programs.dump_within(file, dump.bytes_max, job).await;
    let (bytes, sha256) = written.map_err(|broken| failure::of(&broken, Some(&source), None, job))?;
    let mut left_out = plan.left_out.clone();
    let granted = schema.objects().iter().filter(|object| is_granted(object)).count();
    if granted > 0 {
        let objects = counted(granted, "object", "objects");
        left_out.push(format!("what is granted, or taken away, on {objects}"));
    }
    let dumped = Dumped {
        bytes,
        sha256,
        server_version: info.version.clone(),
        server_major: info.major,
        tool_version: plan.tools.as_ref().map(|tools| tools.version.clone()).unwrap_or_default(),
        locale: facts.locale,
        extensions: facts.extensions,
        settings: facts.settings,
        comment: facts.comment,
        database_bytes: facts.bytes,
        schema,
        report: job.report().cloned().unwrap_or_default(),
        left_out,
    };
    dump.done.set(dumped).unwrap_or_default();
    Ok(())
}

/// Returns whether rights on an object are not as they are from the start; a new database has those on `public`.
fn is_granted(object: &SchemaObject) -> bool {
    let from_the_start =
        |granted: &str| object.key.kind == SchemaKind::Schema && object.key.name == "public" && granted == ON_PUBLIC;
    object.attribute(GRANTS).is_some_and(|granted| !from_the_start(granted))
}

/// What is granted on schema `public` of a new database.
const ON_PUBLIC: &str = "PUBLIC: USAGE";
/// The attribute of an object that says what is granted on it.
const GRANTS: &str = "grants";
/// What stands for the sandbox's own roles in what is read of a schema begins so.
const PLACEHOLDER: char = '<';

/// Finds a policy for the sandbox's own roles: a dump names them, and where it is restored they are others.
fn names_its_roles(schema: &Schema, shown: &str) -> Option<Failure> {
    let of_roles = |object: &&SchemaObject| {
        object.key.kind == SchemaKind::Policy && object.attribute("roles").is_some_and(|r| r.contains(PLACEHOLDER))
    };
    let policy = schema.objects().iter().find(of_roles)?;
    let text = format!(
        "policy `{}` of {shown} is for roles of the sandbox, which are other ones elsewhere",
        policy.key.path()
    );
    Some(
        Failure::new(Code::RestoreIncompatible, text)
            .hint("make it a policy for PUBLIC, which says by its condition whom it is for"),
    )
}

/// What is known of a database beside its schema.
#[derive(Default)]
struct Facts {
    locale: [String; 3],
    extensions: Vec<[String; 3]>,
    settings: Vec<(String, String)>,
    comment: Option<String>,
    bytes: u64,
}

async fn facts(server: &Arc<PostgresServer>, spec: &SandboxSpec) -> Result<Facts, EngineError> {
    let session = access::catalogue_session(server, spec, CredentialAccess::Owner).await?;
    let failed = refused("read what is known of the database", &server.settings().profile);
    let row = session
        .query_one(
            "SELECT pg_catalog.pg_encoding_to_char(d.encoding)::text, d.datcollate::text, d.datctype::text, \
             pg_catalog.shobj_description(d.oid, 'pg_database'), pg_catalog.pg_database_size(d.oid) \
             FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database()",
            &[],
        )
        .await
        .map_err(&failed)?;
    let extensions = session
        .query(
            "SELECT e.extname::text, e.extversion, n.nspname::text FROM pg_catalog.pg_extension e \
             JOIN pg_catalog.pg_namespace n ON n.oid = e.extnamespace WHERE e.extname <> 'plpgsql' ORDER BY 1",
            &[],
        )
        .await
        .map_err(&failed)?;
    // Whose role it is to become is of no account elsewhere.
    let settings = session
        .query(
            "SELECT pg_catalog.split_part(c, '=', 1), pg_catalog.substr(c, pg_catalog.strpos(c, '=') + 1) \
             FROM pg_catalog.pg_db_role_setting s JOIN pg_catalog.pg_database d ON d.oid = s.setdatabase, \
             pg_catalog.unnest(s.setconfig) WITH ORDINALITY u (c, n) \
             WHERE d.datname = pg_catalog.current_database() AND s.setrole = 0 \
             AND pg_catalog.split_part(c, '=', 1) <> 'role' ORDER BY u.n",
            &[],
        )
        .await
        .map_err(&failed)?;
    Ok(Facts {
        locale: [row.get(0), row.get(1), row.get(2)],
        comment: row.get(3),
        bytes: u64::try_from(row.get::<_, i64>(4)).unwrap_or_default(),
        extensions: extensions.iter().map(|row| [row.get(0), row.get(1), row.get(2)]).collect(),
        settings: settings.iter().map(|row| (row.get(0), row.get(1))).collect(),
    })
}

/// Looks at what a dump needs here, before anything is made for it.
pub(in crate::engine::postgres) async fn examine(
    server: &Arc<PostgresServer>,
    wanted: Wanted,
    dump: InFile,
) -> Result<RestoreJob, EngineError> {
    let info = server.info().await?;
    let options = CloneOptions {
        allowed_extensions: dump.allowed_extensions.clone(),
        bytes_max: Some(dump.bytes_max),
        ..CloneOptions::default()
    };
    let plan = ClonePlan {
        source_major: dump.major,
        source_bytes: dump.database_bytes,
        extensions: dump.extensions.clone(),
        ..ClonePlan::default()
    };
    let clone = job_of(server, None, &wanted, Instant::now() + wanted.time, options).await?;
    let plan = stoppable(&clone, preflight::fit_kept(server, &info, &clone, plan)).await.map_err(of_import)?;
    clone.plan.set(plan).unwrap_or_default();
    Ok(RestoreJob { clone, dump, done: OnceLock::new() })
}

/// Restores a dump into the new database, and looks at what came of it.
pub(in crate::engine::postgres) async fn restore(
    server: &Arc<PostgresServer>,
    spec: &SandboxSpec,
    job: &RestoreJob,
) -> Result<(), EngineError> {
    let bounded = async {
        tokio::select! {
            biased;
            grown = size::outgrown(server, spec, &job.clone, 0) => Err(grown),
            done = restore_unbounded(server, spec, job) => done,
        }
    };
    stoppable(&job.clone, bounded).await.map_err(of_import)
}

async fn restore_unbounded(
    server: &Arc<PostgresServer>,
    spec: &SandboxSpec,
    job: &RestoreJob,
) -> Result<(), EngineError> {
    let (clone, dump) = (&job.clone, &job.dump);
    let plan = clone.plan()?;
    let user = tools::user(server)?;
    let work = WorkDir::make(&server.settings().work_dir, user.as_ref())?;
    let target = Relay::listen(&work, TARGET_SOCKET, access::owner_login(server, spec).await?, RESTORES_MAX)?;
    let door = Door::of(server, spec);
    target.guard(door.clone());
    let programs = Programs::prepare(&work, user, clone, plan, spec)?;
    let (archive, list) = (work.file("archive")?, work.file("list")?);
    work.give_away()?;
    let failed = |broken: &Broken| failure::of(broken, None, Some(&target), clone);
    let archive = bring(dump, archive, &clone.shown).await?;
    let entries = programs.list(&archive).await.map_err(|broken| failed(&broken))?;
    if let Some(name) = archive::extension_beside(&entries, &plan.extensions) {
        let text = format!("{} makes the extension `{name}`, which its manifest does not name", clone.shown);
        return Err(known(Failure::new(Code::RestoreIncompatible, text)));
    }
    program::write(&list, &Filter::of(plan).apply(entries))?;
    door.open().await?;
    programs.restore(&archive, Restore::All).await.map_err(|broken| failed(&broken))?;
    let bytes = size::bytes(server, spec).await?;
    report::check(door.enter_twice().await?, bytes, &server.settings().profile, clone).await?;
    size::check(server, spec, clone, 0).await
}

/// Sets what belongs to the database of a dump, which is its owner's by now, and compares what came of it.
pub(in crate::engine::postgres) async fn settle(
    server: &Arc<PostgresServer>,
    spec: &SandboxSpec,
    job: &RestoreJob,
) -> Result<(), EngineError> {
    stoppable(&job.clone, settle_unbounded(server, spec, job)).await.map_err(of_import)
}

async fn settle_unbounded(
    server: &Arc<PostgresServer>,
    spec: &SandboxSpec,
    job: &RestoreJob,
) -> Result<(), EngineError> {
    let (clone, dump) = (&job.clone, &job.dump);
    let settings_left_out = set_again(server, spec, dump).await?;
    let facts = facts(server, spec).await?;
    let named = |name: &String| dump.extensions.iter().any(|(known, _)| known == name);
    if let Some([name, ..]) = facts.extensions.iter().find(|[name, ..]| !named(name)) {
        let text =
            format!("{} made the extension `{}`, which its manifest does not name", clone.shown, name.escape_default());
        return Err(known(Failure::new(Code::RestoreIncompatible, text)));
    }
    let schema = catalog::read_once(server, spec, &SchemaFilter::default()).await?;
    let report = clone.report().cloned().unwrap_or_default();
    (dump.compare.0)(&schema, &report).map_err(known)?;
    let extensions = facts.extensions.into_iter().map(|[name, version, _]| (name, version)).collect();
    let done = Restored { database_bytes: facts.bytes, extensions, schema, report, settings_left_out };
    job.done.set(done).unwrap_or_default();
    Ok(())
}

/// Copies a dump to the private file that is restored from, and finds that it is the one that is meant.
async fn bring(dump: &InFile, into: File, shown: &str) -> Result<File, EngineError> {
    let from = dump.file.try_clone().map_err(system("read a dump"))?;
    let (at, bytes) = (dump.at, dump.bytes);
    let copied = tokio::task::spawn_blocking(move || copy(from, at, bytes, into)).await;
    let copied = copied
        .map_err(|error| known(Failure::new(Code::Internal, "a dump was not copied").audit(error.to_string())))?;
    let (into, hash) = copied.map_err(system("copy a dump"))?;
    if digits(&hash) == dump.sha256 {
        return Ok(into);
    }
    let text = format!("{shown} does not fit its checksum; nothing was restored");
    Err(known(Failure::new(Code::TemplateRestoreFailed, text)))
}

fn copy(mut from: File, at: u64, bytes: u64, mut into: File) -> io::Result<(File, [u8; 32])> {
    fault::reach("file.dump.copy")?;
    from.seek(SeekFrom::Start(at))?;
    let (mut hash, mut from) = (Sha256::new(), from.take(bytes));
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let read = from.read(&mut chunk)?;
        let part = chunk.get(..read).unwrap_or_default();
        if part.is_empty() {
            return Ok((into, hash.finalize().into()));
        }
        hash.update(part);
        into.write_all(part)?;
    }
}

fn digits(hash: &[u8]) -> String {
    hash.iter().flat_map(|byte| [byte >> 4, byte & 15]).filter_map(|n| char::from_digit(n.into(), 16)).collect()
}

/// Sets the database's own settings and its comment, as its owner. Returns the settings that this role may not set, or
/// that this server does not know.
async fn set_again(
    server: &Arc<PostgresServer>,
    spec: &SandboxSpec,
    dump: &InFile,
) -> Result<Vec<String>, EngineError> {
    let mut left_out = Vec::new();
    if dump.settings.is_empty() && dump.comment.is_none() {
        return Ok(left_out);
    }
    let session = access::catalogue_session(server, spec, CredentialAccess::Owner).await?;
    let failed = refused_unquoted("set the settings of the database again", &server.settings().profile);
    for (name, value) in &dump.settings {
        let setting = DatabaseSetting { name, value };
        match setting.set(&session, &spec.names.database).await {
            Ok(()) => {}
            Err(error) if error.code().is_some() => left_out.push(name.clone()),
            Err(error) => return Err(failed(error)),
        }
    }
    if let Some(comment) = &dump.comment {
        DatabaseSetting::comment(&session, &spec.names.database, comment).await.map_err(&failed)?;
    }
    Ok(left_out)
}

/// Says what stands in the way of an export.
fn of_export(error: EngineError) -> EngineError {
    let hidden = "a table with FORCE ROW LEVEL SECURITY hides rows from its own owner, and they cannot be exported: take that off \
                  in a sandbox made from the template, and keep that one";
    reworded(error, &[(Code::PermissionDenied, hidden), (Code::CommandTimeout, LONGER)])
}

/// Says what stands in the way of an import.
pub(in crate::engine::postgres) fn of_import(error: EngineError) -> EngineError {
    let mut error = error;
    if let EngineError::Known(failure) = &mut error
        && failure.code == Code::RestoreIncompatible
    {
        failure.code = Code::TemplateRestoreFailed;
    }
    let extension = "choose a profile that has the extension and allows it, or have an operator see to it";
    let hints = [
        (
            Code::TemplateRestoreFailed,
            "nothing of it is left; a profile of the version that it was exported from takes it, if it is whole",
        ),
        (Code::ExtensionNotAllowed, extension),
        (Code::ExtensionSetupRequired, extension),
        (Code::QuotaExceeded, "delete templates that are not needed; `list_templates` shows them"),
        (Code::DiskFull, "delete sandboxes and templates that are not needed, or have an operator free space"),
        (Code::CommandTimeout, LONGER),
    ];
    reworded(error, &hints)
}

/// What to do where time was over.
const LONGER: &str = "give it a higher `timeoutSeconds`";

/// Gives a failure the hint that its code has here.
fn reworded(error: EngineError, hints: &[(Code, &'static str)]) -> EngineError {
    let EngineError::Known(failure) = error else { return error };
    match hints.iter().find(|(code, _)| *code == failure.code) {
        Some((_, hint)) => known(failure.hint(*hint)),
        None => EngineError::Known(failure),
    }
}
