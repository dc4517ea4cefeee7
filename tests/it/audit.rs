//! The audit log against those who would change it, crashes, full disks and many writers.

mod record;
pub(crate) mod subjects;

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use pgsandbox::audit::{
    Audit, AuditError, AuditSettings, Beside, Closing, Filter, Opening, Outcome, Sync, Ticket, tail, verify,
};
use pgsandbox::model::{Code, Failure, Identity, Principal, RequestId, Timestamp, TraceIds, Transport};
use serde_json::Value;

fn settings(dir: &Path) -> AuditSettings {
    AuditSettings { dir: dir.join("audit"), sync: Sync::Every(Duration::from_millis(20)), rotate_bytes: 1 << 20 }
}

fn principal() -> Principal {
    Principal {
        subject: "ana".into(),
        owner: "ana".into(),
        groups: vec!["dev".into()],
        transport: Transport::Stdio,
        client: "editor".into(),
        identity: Identity::Certain,
    }
}

fn open(audit: &Arc<Audit>) -> Result<Ticket, AuditError> {
    let now = Timestamp::from_unix_ms(1_800_000_000_000);
    let trace = Some(TraceIds { trace: 0xabc, span: 0x12 });
    audit.open(Opening {
        id: RequestId::fresh(),
        principal: &principal(),
        operation: "run_sql",
        now,
        trace,
        frees: true,
    })
}

fn closing(outcome: Outcome<'_>) -> Closing<'_> {
    Closing {
        now: Timestamp::from_unix_ms(1_800_000_000_500),
        elapsed: Duration::from_micros(1234),
        context: None,
        decision: None,
        enforced: None,
        target: None,
        beside: Beside::default(),
        outcome,
    }
}

/// Writes some whole requests and lets go of the log, so that it is sealed.
fn write(settings: &AuditSettings, requests: usize) {
    let audit = Audit::open_log(settings.clone()).unwrap();
    for _ in 0..requests {
        let ticket = open(&audit).unwrap();
        audit.close(ticket, closing(Outcome::Ok)).unwrap();
    }
}

fn segments(dir: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.file_name().unwrap().to_str().unwrap().starts_with("segment-"));
    paths.sort();
    paths
}

fn lines(path: &Path) -> Vec<String> {
    fs::read_to_string(path).unwrap().lines().map(str::to_owned).collect()
}

fn rewrite(path: &Path, lines: &[String]) {
    fs::write(path, lines.iter().map(|line| format!("{line}\n")).collect::<String>()).unwrap();
}

fn faults(dir: &Path) -> Vec<String> {
    verify(dir).unwrap().faults.iter().map(ToString::to_string).collect()
}

/// Checks that a change of a sound log of two segments is found, and said with these words.
fn check_tampering(tamper: impl FnOnce(&Path, &[PathBuf]), expected: &str) {
    let dir = tempfile::tempdir().unwrap();
    let settings = settings(dir.path());
    write(&settings, 5);
    write(&settings, 5);
    assert_eq!(faults(&settings.dir), Vec::<String>::new());
    tamper(&settings.dir, &segments(&settings.dir));
    let faults = faults(&settings.dir);
    assert!(faults.iter().any(|fault| fault.contains(expected)), "expected `{expected}` in {faults:#?}");
}

fn change_lines(path: &Path, change: impl FnOnce(&mut Vec<String>)) {
    let mut all = lines(path);
    change(&mut all);
    rewrite(path, &all);
}

#[test]
fn an_edited_line_is_found() {
    check_tampering(
        |_, segments| change_lines(&segments[0], |lines| lines[3] = lines[3].replace("\"ana\"", "\"eve\"")),
        "line 4: it was changed",
    );
    check_tampering(
        |_, segments| change_lines(&segments[0], |lines| lines[4] = lines[4].replace("\"ok\"", "\"OK\"")),
        "line 5: it was changed",
    );
}

#[test]
fn a_deleted_line_is_found() {
    check_tampering(|_, segments| change_lines(&segments[0], |lines| drop(lines.remove(3))), "line 4: it was changed");
    check_tampering(|_, segments| change_lines(&segments[0], |lines| drop(lines.remove(0))), "line 1: it was changed");
}

#[test]
fn an_inserted_line_is_found() {
    check_tampering(
        |_, segments| change_lines(&segments[0], |lines| lines.insert(2, lines[1].clone())),
        "line 3: it was changed",
    );
    check_tampering(
        |_, segments| change_lines(&segments[0], |lines| lines.insert(2, "{}".into())),
        "line 3: it is not a line of the log",
    );
}

#[test]
fn reordered_lines_are_found() {
    check_tampering(|_, segments| change_lines(&segments[1], |lines| lines.swap(2, 3)), "line 3: it was changed");
}

#[test]
fn a_truncated_segment_is_found() {
    check_tampering(
        |_, segments| change_lines(&segments[0], |lines| lines.truncate(5)),
        "it has 5 lines and had 11 once",
    );
    check_tampering(|_, segments| fs::write(&segments[1], "").unwrap(), "it has 0 lines and had 11 once");
    check_tampering(
        |_, segments| {
            let text = fs::read(&segments[0]).unwrap();
            fs::write(&segments[0], &text[..text.len() - 10]).unwrap();
        },
        "it has 10 lines and had 11 once",
    );
}

#[test]
fn a_segment_that_goes_on_after_its_seal_is_found() {
    check_tampering(
        |_, segments| OpenOptions::new().append(true).open(&segments[0]).unwrap().write_all(b"{}").unwrap(),
        "it goes on after its seal",
    );
}

#[test]
fn a_missing_segment_is_found() {
    check_tampering(|_, segments| fs::remove_file(&segments[0]).unwrap(), "it is missing");
    check_tampering(|_, segments| fs::remove_file(&segments[1]).unwrap(), "it is missing");
}

#[test]
fn exchanged_segments_are_found() {
    check_tampering(
        |dir, segments| {
            fs::rename(&segments[0], dir.join("aside")).unwrap();
            fs::rename(&segments[1], &segments[0]).unwrap();
            fs::rename(dir.join("aside"), &segments[1]).unwrap();
        },
        "line 1: it was changed",
    );
}

#[test]
fn a_segment_that_nobody_listed_is_found() {
    check_tampering(
        |dir, segments| assert!(fs::copy(&segments[0], dir.join("segment-x.jsonl")).is_ok()),
        "the manifest does not list it",
    );
}

#[test]
fn a_changed_or_missing_manifest_is_found() {
    let manifest = |dir: &Path| dir.join("manifest.jsonl");
    check_tampering(|dir, _| fs::remove_file(manifest(dir)).unwrap(), "`manifest.jsonl`: it is missing");
    check_tampering(|dir, _| change_lines(&manifest(dir), |lines| drop(lines.remove(1))), "`manifest.jsonl` line 2");
    check_tampering(|dir, _| change_lines(&manifest(dir), |lines| lines.swap(0, 2)), "`manifest.jsonl` line 1");
    // Its end cut off: the segment of that end is there, and unlisted.
    check_tampering(|dir, _| change_lines(&manifest(dir), |lines| lines.truncate(2)), "does not list it");
    // One line cut off: the segment has no seal.
    check_tampering(|dir, _| change_lines(&manifest(dir), |lines| lines.truncate(3)), "without sealing it");
}

#[test]
fn the_manifests_last_hash_shows_that_its_end_was_removed() {
    let dir = tempfile::tempdir().unwrap();
    let settings = settings(dir.path());
    write(&settings, 1);
    let before = verify(&settings.dir).unwrap().head;
    write(&settings, 1);
    let after = verify(&settings.dir).unwrap().head;
    assert_ne!(before, after);
    assert!(lines(&settings.dir.join("manifest.jsonl")).iter().any(|line| line.contains(&before)));
}

#[test]
fn a_sound_log_says_what_happened() {
    let dir = tempfile::tempdir().unwrap();
    let settings = settings(dir.path());
    let audit = Audit::open_log(settings.clone()).unwrap();
    let ticket = open(&audit).unwrap();
    let report = verify(&settings.dir).unwrap();
    assert_eq!((report.open, report.segments, report.faults.len()), (1, 1, 0));
    let failure = Failure::new(Code::SyntaxError, "the message is for the caller").audit("SQLSTATE 42601");
    let id = ticket.id().to_string();
    audit.close(ticket, closing(Outcome::Failed(&failure))).unwrap();
    drop(audit);
    let found = tail(&settings.dir, 10, &Filter { id: Some(id.clone()), ..Filter::default() }).unwrap();
    let found: Vec<Value> = found.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((found[0]["kind"].as_str(), found[1]["kind"].as_str()), (Some("open"), Some("close")));
    assert_eq!((found[0]["id"].as_str(), found[1]["id"].as_str()), (Some(&*id), Some(&*id)));
    assert_eq!(found[0]["trace"], "00000000000000000000000000000abc");
    assert_eq!(found[0]["principal"]["transport"], "stdio");
    assert_eq!(found[0]["build"], env!("CARGO_PKG_VERSION"));
    assert_eq!(found[0]["at"], "2027-01-15T08:00:00.000Z");
    assert_eq!((found[1]["outcome"].as_str(), found[1]["code"].as_str()), (Some("failed"), Some("syntax_error")));
    assert_eq!(found[1]["elapsed_us"], 1234);
    assert_eq!(found[1]["cause"], "SQLSTATE 42601");
    let report = verify(&settings.dir).unwrap();
    assert!(report.is_sound() && report.open == 0 && report.lines == 5, "{report:?}");
}

#[test]
fn files_are_private_and_a_directory_open_to_others_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let settings = settings(dir.path());
    write(&settings, 1);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&settings.dir), 0o700);
    for entry in fs::read_dir(&settings.dir).unwrap() {
        assert_eq!(mode(&entry.unwrap().path()), 0o600);
    }
    fs::set_permissions(&settings.dir, fs::Permissions::from_mode(0o750)).unwrap();
    let error = Audit::open_log(settings).unwrap_err();
    assert!(error.to_string().contains("750"), "{error}");
}

#[test]
fn without_a_directory_nothing_is_accepted_and_with_one_again() {
    let dir = tempfile::tempdir().unwrap();
    let settings = settings(dir.path());
    fs::write(&settings.dir, "a file stands here").unwrap();
    assert!(Audit::open_log(settings.clone()).is_err());
    let audit = Audit::deferred(settings.clone());
    let error = open(&audit).unwrap_err();
    assert!(matches!(error, AuditError::Unavailable { .. }));
    let failure = Failure::from(error);
    assert_eq!(failure.code, Code::AuditUnavailable);
    assert!(failure.retryable && failure.hint.is_some());
    fs::remove_file(&settings.dir).unwrap();
    let ticket = open(&audit).unwrap();
    audit.close(ticket, closing(Outcome::Ok)).unwrap();
    drop(audit);
    assert_eq!(faults(&settings.dir), Vec::<String>::new());
}

#[test]
fn a_dropped_ticket_closes_as_abandoned() {
    let dir = tempfile::tempdir().unwrap();
    let settings = settings(dir.path());
    let audit = Audit::open_log(settings.clone()).unwrap();
    drop(open(&audit).unwrap());
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _ticket = open(&audit).unwrap();
        std::panic::resume_unwind(Box::new("work that goes wrong"));
    }));
    assert!(panicked.is_err());
    drop(audit);
    let closes = tail(&settings.dir, 10, &Filter { kind: Some("close".into()), ..Filter::default() }).unwrap();
    assert_eq!(closes.len(), 2);
    assert!(closes.iter().all(|line| line.contains("\"outcome\":\"abandoned\"")), "{closes:?}");
    assert_eq!(faults(&settings.dir), Vec::<String>::new());
}

#[test]
fn segments_follow_each_other_by_size_and_what_is_open_goes_along() {
    let dir = tempfile::tempdir().unwrap();
    let settings = AuditSettings { rotate_bytes: 2000, ..settings(dir.path()) };
    let audit = Audit::open_log(settings.clone()).unwrap();
    let early = open(&audit).unwrap();
    for _ in 0..40 {
        let ticket = open(&audit).unwrap();
        audit.close(ticket, closing(Outcome::Ok)).unwrap();
    }
    let count = segments(&settings.dir).len();
    assert!(count > 5, "{count} segments");
    let report = verify(&settings.dir).unwrap();
    assert!(report.is_sound() && report.open == 1, "{report:?}");
    audit.close(early, closing(Outcome::Ok)).unwrap();
    drop(audit);
    let report = verify(&settings.dir).unwrap();
    assert!(report.is_sound() && report.open == 0, "{report:?}");
}

/// Leaves a log as a process does that is killed: nothing is dropped, and the lock goes with the process.
/// The child is this test binary itself, running [`the_process_that_crashes`].
fn crash(dir: &Path, rotate_bytes: u64) {
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "audit::the_process_that_crashes", "--nocapture"])
        .env("PGSANDBOX_TEST_CRASH_DIR", dir)
        .env("PGSANDBOX_TEST_CRASH_ROTATE", rotate_bytes.to_string())
        .status()
        .unwrap();
    assert!(!status.success());
}

#[test]
fn the_process_that_crashes() {
    let Some(dir) = std::env::var_os("PGSANDBOX_TEST_CRASH_DIR") else { return };
    let rotate_bytes = std::env::var("PGSANDBOX_TEST_CRASH_ROTATE").unwrap().parse().unwrap();
    let audit = Audit::open_log(AuditSettings { rotate_bytes, ..settings(Path::new(&dir)) }).unwrap();
    let first = open(&audit).unwrap();
    for _ in 0..10 {
        let ticket = open(&audit).unwrap();
        audit.close(ticket, closing(Outcome::Ok)).unwrap();
    }
    let _second = open(&audit).unwrap();
    audit.close(first, closing(Outcome::Ok)).unwrap();
    std::process::abort();
}

fn check_recovery(rotate_bytes: u64) {
    let dir = tempfile::tempdir().unwrap();
    crash(dir.path(), rotate_bytes);
    let settings = settings(dir.path());
    let before = faults(&settings.dir);
    assert!(before.iter().any(|fault| fault.contains("never closed")), "{before:?}");
    let audit = Audit::open_log(settings.clone()).unwrap();
    let recovery = audit.recover().unwrap();
    assert_eq!((recovery.abandoned.len(), recovery.sealed.len(), recovery.faults.len()), (1, 1, 0), "{recovery:?}");
    assert_eq!(faults(&settings.dir), Vec::<String>::new());
    let again = audit.recover().unwrap();
    assert_eq!((again.abandoned.len(), again.sealed.len()), (0, 0));
    let id = recovery.abandoned[0].to_string();
    let closes = tail(&settings.dir, 9, &Filter { id: Some(id), kind: Some("close".into()), ..Filter::default() });
    assert!(closes.unwrap()[0].contains("\"cause\":\"the process ended\""));
}

#[test]
fn what_a_crash_left_open_is_closed_as_abandoned() {
    check_recovery(1 << 20);
}

#[test]
fn what_was_carried_to_another_segment_is_closed_once() {
    check_recovery(1500);
}

#[test]
fn a_line_that_a_crash_cut_in_two_is_cut_off_and_noted() {
    let dir = tempfile::tempdir().unwrap();
    crash(dir.path(), 1 << 20);
    let settings = settings(dir.path());
    let segment = segments(&settings.dir).remove(0);
    OpenOptions::new().append(true).open(&segment).unwrap().write_all(b"{\"hash\":\"abc").unwrap();
    assert!(faults(&settings.dir).iter().any(|fault| fault.contains("middle of a line")));
    let recovery = Audit::open_log(settings.clone()).unwrap().recover().unwrap();
    assert_eq!(recovery.sealed.len(), 1, "{recovery:?}");
    assert!(fs::read_to_string(&segment).unwrap().contains("\"torn_bytes\":12"));
    assert_eq!(faults(&settings.dir), Vec::<String>::new());
}

#[test]
fn a_damaged_segment_of_a_crashed_process_is_left_as_evidence() {
    let dir = tempfile::tempdir().unwrap();
    crash(dir.path(), 1 << 20);
    let settings = settings(dir.path());
    let segment = segments(&settings.dir).remove(0);
    change_lines(&segment, |lines| lines[3] = lines[3].replace("\"ok\"", "\"OK\""));
    let before = fs::read(&segment).unwrap();
    let audit = Audit::open_log(settings.clone()).unwrap();
    let recovery = audit.recover().unwrap();
    assert!(recovery.sealed.is_empty() && recovery.faults.len() == 1, "{recovery:?}");
    assert_eq!(fs::read(&segment).unwrap(), before);
    assert!(!faults(&settings.dir).is_empty());
    drop(open(&audit).unwrap());
}

#[test]
fn a_living_process_segment_is_not_recovered() {
    let dir = tempfile::tempdir().unwrap();
    let settings = settings(dir.path());
    let living = Audit::open_log(settings.clone()).unwrap();
    let ticket = open(&living).unwrap();
    let recovery = Audit::open_log(settings.clone()).unwrap().recover().unwrap();
    assert!(recovery.abandoned.is_empty() && recovery.sealed.is_empty() && recovery.faults.is_empty());
    living.close(ticket, closing(Outcome::Ok)).unwrap();
}

#[test]
fn eight_writers_at_once_verify() {
    let dir = tempfile::tempdir().unwrap();
    let settings = AuditSettings { rotate_bytes: 20_000, ..settings(dir.path()) };
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let audit = Audit::open_log(settings.clone()).unwrap();
                audit.recover().unwrap();
                std::thread::scope(|inner| {
                    for _ in 0..3 {
                        inner.spawn(|| {
                            for _ in 0..50 {
                                let ticket = open(&audit).unwrap();
                                audit.close(ticket, closing(Outcome::Ok)).unwrap();
                            }
                        });
                    }
                });
            });
        }
        scope.spawn(|| {
            for _ in 0..20 {
                if settings.dir.exists() {
                    assert_eq!(faults(&settings.dir), Vec::<String>::new());
                }
            }
        });
    });
    let report = verify(&settings.dir).unwrap();
    assert!(report.is_sound() && report.open == 0, "{report:?}");
    let opens = tail(&settings.dir, 10_000, &Filter { kind: Some("open".into()), ..Filter::default() }).unwrap();
    let ids: BTreeSet<String> =
        opens.iter().map(|line| serde_json::from_str::<Value>(line).unwrap()["id"].as_str().unwrap().into()).collect();
    assert_eq!(ids.len(), 8 * 3 * 50);
}

/// A tiny file system, where the tests run as root; `None` elsewhere, where a unit test covers the same.
struct TinyDisk(tempfile::TempDir);

impl TinyDisk {
    fn mount() -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let mount =
            Command::new("mount").args(["-t", "tmpfs", "-o", "size=64k,mode=700", "tmpfs"]).arg(dir.path()).output();
        mount.is_ok_and(|output| output.status.success()).then(|| Self(dir))
    }
}

impl Drop for TinyDisk {
    fn drop(&mut self) {
        Command::new("umount").arg("-l").arg(self.0.path()).status().unwrap();
    }
}

#[test]
fn a_full_disk_refuses_and_free_space_accepts_again() {
    let Some(disk) = TinyDisk::mount() else {
        eprintln!("not allowed to mount: covered by audit::log's unit test");
        return;
    };
    let settings = settings(disk.0.path());
    let audit = Audit::open_log(settings.clone()).unwrap();
    let ballast = disk.0.path().join("ballast");
    let open_ticket = open(&audit).unwrap();
    // Fills the disk; the write fails when it is full, which is what is wanted.
    drop(fs::write(&ballast, vec![0; 128 << 10]));
    let mut tickets = Vec::new();
    let error = loop {
        match open(&audit) {
            Ok(ticket) => tickets.push(ticket),
            Err(error) => break error,
        }
        assert!(tickets.len() < 1000, "the disk does not fill up");
    };
    assert!(Failure::from(error).hint.unwrap().starts_with("free space"));
    let unclosed = audit.close(open_ticket, closing(Outcome::Ok)).unwrap_err();
    assert!(matches!(unclosed, AuditError::Unclosed { .. }), "{unclosed}");
    assert!(open(&audit).is_err());
    fs::remove_file(&ballast).unwrap();
    let ticket = open(&audit).unwrap();
    audit.close(ticket, closing(Outcome::Ok)).unwrap();
    for ticket in tickets {
        audit.close(ticket, closing(Outcome::Ok)).unwrap();
    }
    drop(audit);
    assert_eq!(faults(&settings.dir), Vec::<String>::new());
}

#[test]
fn always_syncing_writes_the_same_log() {
    let dir = tempfile::tempdir().unwrap();
    let settings = AuditSettings { sync: Sync::Always, ..settings(dir.path()) };
    write(&settings, 3);
    assert_eq!(faults(&settings.dir), Vec::<String>::new());
}

#[test]
fn the_newest_lines_of_all_segments_come_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let settings = settings(dir.path());
    for n in 0..6 {
        let audit = Audit::open_log(settings.clone()).unwrap();
        let now = Timestamp::from_unix_ms(1_800_000_000_000 + n);
        let owner = if n % 2 == 0 { "even" } else { "odd" };
        let principal = Principal { owner: owner.into(), ..principal() };
        drop(audit.open(Opening {
            id: RequestId::fresh(),
            principal: &principal,
            operation: "doctor",
            now,
            trace: None,
            frees: false,
        }));
    }
    let filter = Filter { kind: Some("open".into()), owner: Some("even".into()), ..Filter::default() };
    let found = tail(&settings.dir, 2, &filter).unwrap();
    let times: Vec<_> = found
        .iter()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["at"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(times, ["2027-01-15T08:00:00.002Z", "2027-01-15T08:00:00.004Z"]);
    assert_eq!(tail(&settings.dir, 0, &filter).unwrap().len(), 0);
    assert_eq!(tail(&settings.dir, 100, &filter).unwrap().len(), 3);
}

#[test]
fn a_log_that_never_was_has_nothing_wrong() {
    let dir = tempfile::tempdir().unwrap();
    assert!(verify(dir.path()).unwrap().is_sound());
    assert!(verify(&dir.path().join("missing")).is_err());
    let settings = settings(dir.path());
    drop(Audit::open_log(settings.clone()).unwrap());
    assert_eq!(segments(&settings.dir).len(), 0);
    assert!(verify(&settings.dir).unwrap().is_sound());
}
