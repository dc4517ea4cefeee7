//! Runs `pg_dump` and `pg_restore`: unprivileged, in a process group of their own, with an environment of our making.
//!
//! Nothing secret is in their arguments, their environment or their files. What they print to standard error is read to its end and
//! looked at for one line, the entry at which a restore stopped. Whatever runs when the work is given up is killed.

use std::fs::File;
use std::io::{self, Seek as _, SeekFrom, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::guests::{Expected, Guests};
use super::job::{CloneJob, ClonePlan};
use super::workdir::WorkDir;
use super::{NO_SOCKET, SOURCE_SOCKET, TARGET_SOCKET, system};
use crate::engine::postgres::managed::{self, RunAs};
use crate::engine::{EngineError, SandboxSpec};
use crate::model::{Code, Failure, fault};

/// What is moved at once.
const CHUNK_BYTES: usize = 64 << 10;
/// The most of a line of standard error that is looked at; the rest is read and forgotten.
const LINE_BYTES_MAX: usize = 1 << 10;
/// The longest list of an archive's entries: a hundred thousand objects with long names.
const LIST_BYTES_MAX: usize = 64 << 20;
/// How long `pg_dump` waits for a lock that somebody on the source holds.
const SOURCE_LOCK_WAIT_MS: u32 = 10_000;
/// How often news are told.
const NEWS_EVERY: Duration = Duration::from_millis(500);

/// Which program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Program {
    Dump,
    Restore,
}

impl Program {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Dump => "pg_dump",
            Self::Restore => "pg_restore",
        }
    }
}

/// What a dump is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// It goes into a restore at once.
    Stream,
    /// It is kept in a file meanwhile.
    Keep,
    /// It is taken elsewhere.
    Export,
}

/// Which part of an archive is restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Restore {
    All,
    /// Tables with their rows: no index, no constraint between tables, no trigger, no materialised view's rows.
    BeforeMasks,
    /// The rest.
    AfterMasks,
}

/// Why a program did not do its work.
#[derive(Debug)]
pub(super) enum Broken {
    /// It could not be started.
    Start(Program, io::Error),
    /// What it writes or reads could not be moved.
    Move(io::Error),
    /// It failed, at this entry if it said so.
    Failed { program: Program, status: ExitStatus, entry: Option<Entry> },
    /// Its list is longer than any real one.
    ListTooLong,
    /// A dump is longer than there is room for, in bytes.
    TooLarge(u64),
}

/// The entry of an archive at which a restore stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// What it is, in lower case.
    pub(super) class: &'static str,
    /// Its name.
    pub(super) name: String,
}

/// How the programs of one copy are started.
#[derive(Debug)]
pub(super) struct Programs {
    bin_dir: PathBuf,
    user: Option<RunAs>,
    source: Vec<(&'static str, String)>,
    target: Vec<(&'static str, String)>,
    dump_arguments: Vec<String>,
    database: String,
    list: PathBuf,
    bytes: u64,
    guests: Guests,
}

impl Programs {
    /// Puts together how the programs are started.
    pub(super) fn prepare(
        work: &WorkDir,
        user: Option<RunAs>,
        job: &CloneJob,
        plan: &ClonePlan,
        spec: &SandboxSpec,
    ) -> Result<Self, EngineError> {
        let tools = plan
            .tools
            .as_ref()
            .ok_or_else(|| super::known(Failure::new(Code::Internal, "no programs were chosen for the copy")))?;
        let host = super::relay::host(work);
        // Whatever libpq would look for in the home of who it runs as, it is told to look for where nothing is.
        let environment = |socket: u16, user: &str, database: &str| {
            vec![
                ("HOME", host.display().to_string()),
                ("PGHOST", host.display().to_string()),
                ("PGPORT", socket.to_string()),
                ("PGUSER", user.to_owned()),
                ("PGDATABASE", database.to_owned()),
                ("PGPASSFILE", host.join("none").display().to_string()),
                ("PGSSLMODE", "disable".to_owned()),
                ("PGGSSENCMODE", "disable".to_owned()),
            ]
        };
        let source = environment(SOURCE_SOCKET, &job.source.credentials.user, &job.source.database);
        let target = environment(TARGET_SOCKET, &spec.names.owner_role, &spec.names.database);
        Ok(Self {
            bin_dir: tools.bin_dir.clone(),
            user,
            list: host.join("list"),
            source,
            target,
            dump_arguments: dump_arguments(job, plan),
            database: spec.names.database.clone(),
            bytes: plan.source_bytes,
            guests: work.guests().clone(),
        })
    }

    /// Begins a dump, which reads the source and then waits until somebody takes what it writes.
    pub(super) async fn dump(&self, purpose: Purpose) -> Result<Running, Broken> {
        let mut command = self.command(Program::Dump, &self.source);
        let compressed = match purpose {
            Purpose::Stream => "--compress=0",
            Purpose::Keep => "--compress=1",
            Purpose::Export => "--compress=6",
        };
        command.args(&self.dump_arguments).arg(compressed).stdin(Stdio::null()).stdout(Stdio::piped());
        self.start(Program::Dump, SOURCE_SOCKET, command).await
    }

    /// Begins a restore of what it will be given.
    pub(super) async fn restore_streamed(&self) -> Result<Running, Broken> {
        self.restoring(Restore::All, Stdio::piped(), false).await
    }

    /// Lets a dump flow into a restore, through us.
    pub(super) async fn stream(&self, mut dump: Running, mut restore: Running, job: &CloneJob) -> Result<(), Broken> {
        let moved = match (dump.child.stdout.take(), restore.child.stdin.take()) {
            (Some(from), Some(to)) => self.pump(from, to, job, |_| Ok(())).await,
            (None, _) | (_, None) => Err(io::Error::other("a pipe is missing")),
        };
        if moved.is_err() {
            // The restore has ended before its input did, and says why.
            dump.kill();
            restore.end().await?;
            return Err(moved.map_err(Broken::Move).err().unwrap_or(Broken::ListTooLong));
        }
        let (dumped, restored) = tokio::join!(dump.end(), restore.end());
        dumped.and(restored)
    }

    /// Lets a dump flow into a file.
    pub(super) async fn keep(&self, mut dump: Running, archive: &File, job: &CloneJob) -> Result<(), Broken> {
        let file = archive.try_clone().map_err(Broken::Move)?;
        let moved = match dump.child.stdout.take() {
            Some(from) => {
                let (most, mut moved) = (super::size::archive_bytes_max(job), 0);
                let bounded = |part: &[u8]| {
                    moved += part.len() as u64;
                    if moved > most { Err(io::Error::from(io::ErrorKind::QuotaExceeded)) } else { Ok(()) }
                };
                self.pump(from, tokio::fs::File::from_std(file), job, bounded).await
            }
            None => Err(io::Error::other("a pipe is missing")),
        };
        if let Err(error) = moved {
            dump.kill();
            return Err(Broken::Move(error));
        }
        dump.end().await
    }

    /// Dumps into a file from where it stands, at most so many bytes. Returns how many there are, and their SHA-256.
    pub(super) async fn dump_within(
        &self,
        archive: File,
        bytes_max: u64,
        job: &CloneJob,
    ) -> Result<(u64, [u8; 32]), Broken> {
        let mut dump = self.dump(Purpose::Export).await?;
        let Some(from) = dump.child.stdout.take() else {
            return Err(Broken::Move(io::Error::other("a pipe is missing")));
        };
        let (mut bytes, mut hash) = (0_u64, Sha256::new());
        let count = |chunk: &[u8]| {
            bytes += chunk.len() as u64;
            hash.update(chunk);
            if bytes > bytes_max { Err(io::ErrorKind::FileTooLarge.into()) } else { Ok(()) }
        };
        if let Err(error) = self.pump(from, tokio::fs::File::from_std(archive), job, count).await {
            dump.kill();
            let too_large = error.kind() == io::ErrorKind::FileTooLarge;
            return Err(if too_large { Broken::TooLarge(bytes_max) } else { Broken::Move(error) });
        }
        dump.end().await?;
        Ok((bytes, hash.finalize().into()))
    }

    /// Returns the list of an archive's entries.
    pub(super) async fn list(&self, archive: &File) -> Result<Vec<u8>, Broken> {
        let mut command = self.command(Program::Restore, &[]);
        command.args(["--list", "--format=custom"]).stdin(rewound(archive)?).stdout(Stdio::piped());
        // It has no business at either.
        let mut running = self.start(Program::Restore, NO_SOCKET, command).await?;
        let Some(stdout) = running.child.stdout.take() else {
            return Err(Broken::Move(io::Error::other("a pipe is missing")));
        };
        let list = read_list(stdout).await?;
        running.end().await.map(|()| list)
    }

    /// Restores a part of a kept archive, without what is not on its list.
    pub(super) async fn restore(&self, archive: &File, part: Restore) -> Result<(), Broken> {
        self.restoring(part, rewound(archive)?, true).await?.end().await
    }

    async fn restoring(&self, part: Restore, input: Stdio, listed: bool) -> Result<Running, Broken> {
        let mut command = self.command(Program::Restore, &self.target);
        command.args(["--dbname", &self.database]).args(RESTORE_ARGUMENTS);
        if listed {
            command.arg("--use-list").arg(&self.list);
        }
        match part {
            Restore::All => {}
            Restore::BeforeMasks => _ = command.args(["--section=pre-data", "--section=data"]),
            Restore::AfterMasks => _ = command.arg("--section=post-data"),
        }
        command.stdin(input).stdout(Stdio::null());
        self.start(Program::Restore, TARGET_SOCKET, command).await
    }

    fn command(&self, program: Program, environment: &[(&'static str, String)]) -> Command {
        let mut command = managed::command(self.bin_dir.join(program.name()), self.user.as_ref());
        command.envs(environment.iter().map(|(name, value)| (name, value))).current_dir("/");
        let mut command = Command::from(command);
        command.process_group(0).kill_on_drop(true).stderr(Stdio::piped());
        command
    }

    /// Starts a program, which the socket answers from here on.
    async fn start(&self, program: Program, socket: u16, mut command: Command) -> Result<Running, Broken> {
        let passed = match program {
            Program::Dump => fault::pass("spawn.pg-dump").await,
            Program::Restore => fault::pass("spawn.pg-restore").await,
        };
        passed.map_err(|injected| Broken::Start(program, injected.into()))?;
        let started = self.guests.start(socket, &mut command);
        let (mut child, expected) = started.map_err(|error| Broken::Start(program, error))?;
        let group = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        let said = child.stderr.take().map(|stderr| tokio::spawn(named_entry(stderr)));
        Ok(Running { program, child, group, expected, said })
    }

    /// Moves an archive, and tells how far it is.
    async fn pump(
        &self,
        mut from: impl AsyncRead + Unpin,
        mut to: impl AsyncWrite + Unpin,
        job: &CloneJob,
        mut look: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut chunk = vec![0; CHUNK_BYTES];
        let (mut moved, mut told) = (0_u64, Instant::now());
        loop {
            let read = from.read(&mut chunk).await?;
            if read == 0 {
                to.flush().await?;
                return to.shutdown().await;
            }
            fault::pass("file.copy.move").await?;
            let part = chunk.get(..read).unwrap_or_default();
            look(part)?;
            to.write_all(part).await?;
            moved += read as u64;
            if told.elapsed() >= NEWS_EVERY {
                told = Instant::now();
                let part = (moved.saturating_mul(1000) / self.bytes.max(1)).min(999);
                let text = format!("copied {} MiB", moved >> 20);
                job.progress.report(u32::try_from(part).unwrap_or_default(), 1000, &text);
            }
        }
    }
}

/// What every restore is asked for.
const RESTORE_ARGUMENTS: [&str; 12] = [
    // what is read is of this kind, or is refused
    "--format=custom",
    // it names the entry at which it stops only so
    "--verbose",
    "--no-password",
    // where tables hide rows from their owner too, what is built on them is built as the owner sees it
    "--enable-row-security",
    "--no-owner",
    "--no-privileges",
    "--no-subscriptions",
    "--no-publications",
    "--no-security-labels",
    "--no-tablespaces",
    "--single-transaction",
    "--exit-on-error",
];

fn dump_arguments(job: &CloneJob, plan: &ClonePlan) -> Vec<String> {
    let mut arguments: Vec<String> = [
        "--no-password",
        "--format=custom",
        "--no-owner",
        "--no-privileges",
        "--no-subscriptions",
        "--no-publications",
        "--no-security-labels",
        "--no-tablespaces",
    ]
    .map(str::to_owned)
    .to_vec();
    arguments.push(format!("--lock-wait-timeout={SOURCE_LOCK_WAIT_MS}"));
    if job.options.schema_only {
        arguments.push("--schema-only".to_owned());
    }
    arguments.extend(plan.without_rows.iter().map(|table| format!("--exclude-table-data={}", table.pattern())));
    arguments.extend(plan.foreign_tables.iter().map(|table| format!("--exclude-table={}", table.pattern())));
    arguments
}

/// Writes a file of ours that is open.
pub(super) fn write(mut file: &File, content: &[u8]) -> Result<(), EngineError> {
    let mut write = || {
        fault::reach("file.copy-list.write")?;
        file.write_all(content)
    };
    write().map_err(system("write the list of what is restored"))
}

fn rewound(archive: &File) -> Result<Stdio, Broken> {
    let mut archive = archive.try_clone().map_err(Broken::Move)?;
    archive.seek(SeekFrom::Start(0)).map_err(Broken::Move)?;
    Ok(Stdio::from(archive))
}

/// A program that runs. It is killed, with whatever it has started, when this is dropped.
#[derive(Debug)]
pub(super) struct Running {
    program: Program,
    child: Child,
    group: Option<Pid>,
    expected: Option<Expected>,
    /// Reads its standard error from the beginning: a program whose words nobody takes waits for ever.
    said: Option<JoinHandle<Option<Entry>>>,
}

impl Running {
    /// Waits until it has ended.
    async fn end(mut self) -> Result<(), Broken> {
        let status = self.child.wait().await.map_err(Broken::Move)?;
        // Its number may be another's from here on.
        self.group = None;
        self.expected = None;
        if status.success() {
            return Ok(());
        }
        let entry = match self.said.take() {
            Some(said) => said.await.ok().flatten(),
            None => None,
        };
        Err(Broken::Failed { program: self.program, status, entry })
    }

    fn kill(&mut self) {
        if let Some(group) = self.group.take() {
            kill_process_group(group, Signal::KILL).unwrap_or_default();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
        if let Some(said) = &self.said {
            said.abort();
        }
    }
}

/// Reads a list to its end.
async fn read_list(from: impl AsyncRead + Unpin) -> Result<Vec<u8>, Broken> {
    let mut list = Vec::new();
    from.take(LIST_BYTES_MAX as u64 + 1).read_to_end(&mut list).await.map_err(Broken::Move)?;
    if list.len() > LIST_BYTES_MAX { Err(Broken::ListTooLong) } else { Ok(list) }
}

/// Reads to the end, and returns the entry that is named first.
async fn named_entry(mut stderr: impl AsyncRead + Unpin) -> Option<Entry> {
    let (mut entry, mut line) = (None, Vec::new());
    let mut chunk = vec![0; CHUNK_BYTES];
    while let Ok(read) = stderr.read(&mut chunk).await
        && read > 0
    {
        for part in chunk.get(..read).unwrap_or_default().split_inclusive(|byte| *byte == b'\n') {
            let room = LINE_BYTES_MAX.saturating_sub(line.len()).min(part.len());
            line.extend_from_slice(part.get(..room).unwrap_or_default());
            if part.ends_with(b"\n") {
                entry = entry.or_else(|| entry_of(&line));
                line.clear();
            }
        }
    }
    entry.or_else(|| entry_of(&line))
}

/// What entries of archives are, the longer words first where one begins another.
const CLASSES: [(&str, &str); 41] = [
    ("MATERIALIZED VIEW DATA", "rows of materialised view"),
    ("MATERIALIZED VIEW", "materialised view"),
    ("TABLE DATA", "rows of table"),
    ("TABLE ATTACH", "partition"),
    ("TABLE", "table"),
    ("VIEW", "view"),
    ("FUNCTION", "function"),
    ("PROCEDURE", "procedure"),
    ("AGGREGATE", "aggregate"),
    ("INDEX ATTACH", "index of partition"),
    ("INDEX", "index"),
    ("CHECK CONSTRAINT", "check constraint"),
    ("FK CONSTRAINT", "foreign key"),
    ("CONSTRAINT", "constraint"),
    ("TRIGGER", "trigger"),
    ("RULE", "rule"),
    ("POLICY", "policy"),
    ("ROW SECURITY", "row security of"),
    ("SHELL TYPE", "type"),
    ("TYPE", "type"),
    ("DOMAIN", "domain"),
    ("SEQUENCE SET", "value of sequence"),
    ("SEQUENCE OWNED BY", "owner of sequence"),
    ("SEQUENCE", "sequence"),
    ("DEFAULT", "default of"),
    ("SCHEMA", "schema"),
    ("EXTENSION", "extension"),
    ("COMMENT", "comment on"),
    ("CAST", "cast"),
    ("OPERATOR CLASS", "operator class"),
    ("OPERATOR FAMILY", "operator family"),
    ("OPERATOR", "operator"),
    ("COLLATION", "collation"),
    ("CONVERSION", "conversion"),
    ("PROCEDURAL LANGUAGE", "language"),
    ("TEXT SEARCH", "text search object"),
    ("TRANSFORM", "transform"),
    ("ACCESS METHOD", "access method"),
    ("STATISTICS", "statistics"),
    ("BLOB", "large object"),
    ("FOREIGN TABLE", "foreign table"),
];

/// Reads the entry at which a restore stopped, if a line names it.
fn entry_of(line: &[u8]) -> Option<Entry> {
    let line = String::from_utf8_lossy(line);
    let (_, entry) = line.trim_end().split_once("from TOC entry ")?;
    let entry = entry.splitn(4, ' ').nth(3)?;
    let (word, class) =
        CLASSES.iter().find(|(word, _)| entry.strip_prefix(word).is_some_and(|rest| rest.starts_with(' ')))?;
    let rest = entry.get(word.len() + 1..)?;
    let name = rest.rsplit_once(' ').map_or(rest, |(name, _owner)| name);
    let name: String = name.chars().flat_map(char::escape_default).collect();
    Some(Entry { class, name })
}

/// Says how a program ended.
pub(super) fn ended(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "an unknown status".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn of_a_line_of_standard_error_the_beginning_is_looked_at_and_all_is_read() {
        let line = "pg_restore: from TOC entry 215; 1259 16385 TABLE t ana\n";
        for (before, found) in [(0, true), (LINE_BYTES_MAX - line.len(), true), (LINE_BYTES_MAX, false)] {
            let mut said = vec![b'x'; before];
            said.extend_from_slice(line.as_bytes());
            assert_eq!(named_entry(said.as_slice()).await.is_some(), found, "{before}");
            let long = [vec![b'x'; 3 * CHUNK_BYTES], b"\n".to_vec(), line.as_bytes().to_vec()].concat();
            assert!(named_entry(long.as_slice()).await.is_some());
        }
    }

    #[tokio::test]
    async fn a_list_is_read_up_to_its_bound_and_no_further() {
        for (bytes, fits) in [(LIST_BYTES_MAX, true), (LIST_BYTES_MAX + 1, false)] {
            let list = read_list(tokio::io::repeat(b'x').take(bytes as u64)).await;
            assert_eq!(list.is_ok(), fits, "{bytes}");
        }
    }

    #[tokio::test]
    async fn the_entry_is_found_and_no_command_is_shown() {
        let said = b"pg_restore: while PROCESSING TOC:\n\
            pg_restore: from TOC entry 215; 1259 16385 MATERIALIZED VIEW DATA daily totals ana\n\
            pg_restore: error: could not execute query: ERROR:  function f() does not exist\n\
            Command was: REFRESH MATERIALIZED VIEW public.daily 'hunter2';\n";
        let entry = named_entry(said.as_slice()).await.unwrap();
        assert_eq!((entry.class, entry.name.as_str()), ("rows of materialised view", "daily totals"));
        assert_eq!(entry_of(b"pg_restore: error: hunter2"), None);
    }
}
