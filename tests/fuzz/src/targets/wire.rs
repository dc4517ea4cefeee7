//! The client for the caller's SQL, against a server that says anything.
//!
//! What holds: nothing panics; a call ends within its time; what is kept stays within the call's limits, and the memory
//! of the process within a bound; and a call succeeds only if the server's words were a whole answer to it.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use pgsandbox::engine::postgres::{
    Auth, ChannelBinding, Endpoint, Host, Rest, ResultLimits, SandboxSession, SessionTarget, StatementCall, WireError,
};
use pgsandbox::model::{Secret, TlsMode};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixListener;
use tokio::runtime::Runtime;

use crate::driver::{Checked, Target};
use crate::mutate;
use crate::rng::Rng;

const CONNECT: Duration = Duration::from_millis(200);
const STATEMENT: Duration = Duration::from_millis(30);
/// The longest a call may take: its own time, the client's own timer, and the grace after a cancel; with room for a busy machine.
const CALL_MAX: Duration = Duration::from_secs(12);
const LIMITS: ResultLimits = ResultLimits { rows_max: 20, bytes_max: 10_000, value_bytes_max: 500 };
/// What the process may have held at most, in KiB.
const PEAK_KIB_MAX: u64 = 400 << 10;

/// Bits of an input's first byte: how the rest is said, and to what.
const READ_ONLY: u8 = 1;
const WITH_DATA: u8 = 2;
const STAYS: u8 = 4;
const IN_PIECES: u8 = 8;
const SCRAM_ONLY: u8 = 16;

pub struct Wire {
    runtime: Runtime,
    script: Arc<Mutex<(u8, Vec<u8>)>>,
    dir: TempDir,
    calls: u64,
    succeeded: u64,
}

impl Wire {
    pub fn new() -> Self {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime can be built");
        let dir = tempfile::tempdir().expect("a directory can be made");
        let script = Arc::new(Mutex::new((0, Vec::new())));
        let (path, told) = (dir.path().join(".s.PGSQL.5432"), Arc::clone(&script));
        runtime.block_on(async move {
            let listener = UnixListener::bind(path).expect("a socket can be made");
            tokio::spawn(serve(listener, told));
        });
        Self { runtime, script, dir, calls: 0, succeeded: 0 }
    }

    fn target(&self, how: u8) -> SessionTarget {
        let host = Host::Unix(PathBuf::from(self.dir.path()));
        SessionTarget {
            endpoint: Endpoint {
                host,
                port: 5432,
                tls: TlsMode::Disable,
                ca_file: None,
                address: None,
                binding: ChannelBinding::Prefer,
            },
            database: "box".into(),
            user: "owner".into(),
            password: Secret::new("hunter2hunter2"),
            application_name: "fuzz".into(),
            options: Vec::new(),
            auth: if how & SCRAM_ONLY == 0 { Auth::AsServerAsks } else { Auth::ScramOnly },
            connect_timeout: CONNECT,
        }
    }
}

/// Says the script to whoever comes, once something was asked.
async fn serve(listener: UnixListener, script: Arc<Mutex<(u8, Vec<u8>)>>) {
    while let Ok((mut stream, _)) = listener.accept().await {
        let (how, said) = script.lock().expect("nothing panics under it").clone();
        tokio::spawn(async move {
            let mut asked = vec![0; 4096];
            if stream.read(&mut asked).await.unwrap_or(0) == 0 {
                return;
            }
            let pieces = if how & IN_PIECES == 0 { said.len().max(1) } else { 7 };
            for piece in said.chunks(pieces) {
                if stream.write_all(piece).await.is_err() {
                    return;
                }
                if how & IN_PIECES != 0 {
                    tokio::task::yield_now().await;
                }
            }
            if how & STAYS == 0 {
                let _closed = stream.shutdown().await;
                return;
            }
            while stream.read(&mut asked).await.unwrap_or(0) > 0 {}
        });
    }
}

async fn call(target: SessionTarget, how: u8) -> Result<String, String> {
    let mut session = match SandboxSession::connect(&target).await {
        Ok(session) => session,
        Err(error) => return Ok(format!("connect {}", kind(&error)?)),
    };
    let call = StatementCall {
        text: "SELECT 1",
        params: &[],
        limits: LIMITS,
        rest: Rest::default(),
        timeout: STATEMENT,
        copy_in: (how & WITH_DATA != 0).then_some(b"1\t2\n".as_slice()),
    };
    let found =
        if how & READ_ONLY == 0 { session.execute(&call).await } else { session.execute_read_only(&call).await };
    match found {
        Ok(set) => {
            let bytes: usize = set.rows.iter().flatten().map(|cell| cell.text().map_or(0, str::len)).sum();
            if set.rows.len() as u64 > LIMITS.rows_max || bytes as u64 > LIMITS.bytes_max {
                return Err(format!("limits: {} rows of {bytes} bytes were kept", set.rows.len()));
            }
            if set.rows.iter().any(|row| row.len() != set.columns.len()) {
                return Err("shape: a row has not as many values as there are columns".to_owned());
            }
            Ok(format!(
                "ok {} {} {:?} {:?}",
                set.columns.len().min(3),
                set.rows.len().min(3),
                set.truncated_by,
                session.status()
            ))
        }
        Err(error) => Ok(format!("statement {} {}", kind(&error)?, session.is_usable())),
    }
}

fn kind(error: &WireError) -> Result<String, String> {
    let shown = format!("{error} {error:?}");
    if shown.contains("hunter2") {
        return Err(format!("leak: {shown}"));
    }
    Ok(shown.split(['(', '{', '0', '1']).next().unwrap_or_default().chars().take(60).collect())
}

/// Returns whether the words are a whole answer: a greeting, and one ending and one state for each statement.
fn is_answer(said: &[u8], how: u8) -> bool {
    let mut frames = Vec::new();
    let mut rest = said;
    while let Some((head, after)) = rest.split_first_chunk::<5>() {
        let [tag, length @ ..] = *head;
        let Some(bytes) = (u32::from_be_bytes(length) as usize).checked_sub(4) else { break };
        let Some((body, after)) = after.split_at_checked(bytes) else { break };
        frames.push((tag, body));
        rest = after;
    }
    // What may come at any time says nothing of a statement.
    frames.retain(|(tag, _)| !b"NAS".contains(tag));
    let mut frames = frames.into_iter().skip_while(|(tag, _)| *tag == b'R');
    let mut until_ready = || -> Option<Vec<(u8, &[u8])>> {
        let mut all = Vec::new();
        for frame in frames.by_ref() {
            if frame.0 == b'Z' {
                return (frame.1.len() == 1).then_some(all);
            }
            all.push(frame);
        }
        None
    };
    let Some(_greeting) = until_ready() else { return false };
    let ends_well = |part: &[(u8, &[u8])], endings: usize| {
        let ends = part.iter().filter(|(tag, _)| b"CsI".contains(tag)).count();
        let errors = part.iter().filter(|(tag, _)| *tag == b'E').count();
        ends == endings && errors == 0
    };
    let statement = if how & READ_ONLY == 0 {
        until_ready().is_some_and(|part| ends_well(&part, 1)) && until_ready().is_some_and(|part| ends_well(&part, 1))
    } else {
        until_ready().is_some_and(|part| ends_well(&part, 3)) && until_ready().is_some_and(|part| ends_well(&part, 1))
    };
    statement
}

fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|l| l.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
}

impl Target for Wire {
    fn make(&mut self, rng: &mut Rng, kept: &[Vec<u8>]) -> Vec<u8> {
        let mut input = kept[rng.below(kept.len())].clone();
        let other = kept[rng.below(kept.len())].clone();
        let how = match rng.once_in(6) {
            true => (rng.next() as u8) & !STAYS | if rng.once_in(40) { STAYS } else { 0 },
            false => input.first().copied().unwrap_or(0) & !STAYS,
        };
        let mut said = input.split_off(1.min(input.len()));
        let said_by_other = other.get(1..).unwrap_or_default();
        match rng.below(4) {
            0 => mutate::bytes(rng, &mut said, said_by_other),
            1 | 2 => messages(rng, &mut said, said_by_other),
            _ => {
                messages(rng, &mut said, said_by_other);
                mutate::bytes(rng, &mut said, said_by_other);
            }
        }
        said.truncate(64 << 10);
        said.insert(0, how);
        said
    }

    fn check(&mut self, input: &[u8]) -> Checked {
        let Some((how, said)) = input.split_first() else { return Ok("nothing".to_owned()) };
        *self.script.lock().expect("nothing panics under it") = (*how, said.to_vec());
        let target = self.target(*how);
        let began = Instant::now();
        let outcome = self.runtime.block_on(call(target, *how))?;
        if began.elapsed() > CALL_MAX {
            return Err(format!("late: a call took {} ms", began.elapsed().as_millis()));
        }
        if outcome.starts_with("ok") {
            self.succeeded += 1;
            if !is_answer(said, *how) {
                return Err(format!("garbage: a call succeeds on what is no answer: {outcome}"));
            }
        }
        self.calls += 1;
        if self.calls.is_multiple_of(512) && peak_kib() > PEAK_KIB_MAX {
            return Err(format!("memory: the process has held {} KiB", peak_kib()));
        }
        Ok(outcome)
    }

    fn time_max(&self) -> Duration {
        CALL_MAX
    }

    fn note(&self) -> String {
        format!("{} calls succeeded, peak {} MiB", self.succeeded, peak_kib() >> 10)
    }
}

/// Removes, repeats, exchanges or makes messages, whole, or puts some of another conversation in.
fn messages(rng: &mut Rng, said: &mut Vec<u8>, other: &[u8]) {
    let mut own = cut(said);
    let theirs = cut(other);
    for _ in 0..=rng.below(3) {
        let at = rng.below(own.len() + 1);
        let here = at.min(own.len().saturating_sub(1));
        match rng.below(7) {
            0 if !own.is_empty() => drop(own.remove(here)),
            1 if !own.is_empty() => {
                let message = own[here].clone();
                let times = if rng.once_in(10) { 60 } else { 1 };
                own.splice(here..here, std::iter::repeat_n(message, times));
            }
            2 if !own.is_empty() => {
                let with = rng.below(own.len());
                own.swap(here, with);
            }
            3 if !theirs.is_empty() => own.insert(at, rng.pick_of(&theirs).clone()),
            4 => {
                let tag = *rng.pick_of(b"123CDEGHIKNRSTVWZnstdcA");
                let body: Vec<u8> = (0..rng.below(12)).map(|_| rng.next() as u8).collect();
                let mut message = vec![tag];
                message.extend((body.len() as u32 + 4).to_be_bytes());
                message.extend(body);
                own.insert(at, message);
            }
            5 if !own.is_empty() => own[here][0] = *rng.pick_of(b"123CDEGHIKNRSTVWZnstdcA"),
            6 if !own.is_empty() && own[here].len() > 5 => {
                // The body changes, and the length with it.
                let mut body = own[here].split_off(5);
                mutate::bytes(rng, &mut body, other);
                let length = (body.len() as u32 + 4).to_be_bytes();
                own[here][1..5].copy_from_slice(&length);
                own[here].extend(body);
            }
            _ => {}
        }
    }
    *said = own.concat();
}

fn cut(said: &[u8]) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    let mut rest = said;
    while let Some(length) = rest.get(1..5) {
        let length = length.iter().fold(0usize, |n, b| n << 8 | usize::from(*b)) + 1;
        let (message, after) = rest.split_at(length.clamp(5, rest.len().max(5)).min(rest.len()));
        all.push(message.to_vec());
        rest = after;
    }
    all
}
