use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::thread;

use crate::model::{Bucket, Code, Failure, KeyedCharge, Timestamp};

use super::super::Account;
use super::*;

const NOW: Timestamp = Timestamp::from_unix_ms(1_800_000_000_000);

fn fresh() -> (tempfile::TempDir, PathBuf) {
    let parent = tempfile::tempdir().unwrap();
    let directory = parent.path().join("rates");
    (parent, directory)
}

fn me() -> Account {
    Account { owner: "me".into(), group: None }
}

fn call(burst: u32) -> [KeyedCharge; 1] {
    let bucket = Bucket { name: "calls".into(), burst, per_interval: 1, interval_ms: 60_000 };
    [KeyedCharge { policy: "rate".into(), bucket, cost: 1 }]
}

fn charge(book: &FileBook, burst: u32) -> Result<(), BookError> {
    (book as &dyn Book).charge(&me(), &call(burst), NOW)
}

#[test]
fn several_books_on_one_directory_share_their_budgets() {
    let (_parent, directory) = fresh();
    FileBook::open(&directory).unwrap();
    let directory = Arc::new(directory);
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let directory = Arc::clone(&directory);
            thread::spawn(move || {
                let book = FileBook::open(directory.as_path()).unwrap();
                // On a busy machine a lock may be long in coming: that is no answer of the budget's.
                let taken = |_: &i32| loop {
                    match charge(&book, 20) {
                        Ok(()) => return true,
                        Err(BookError::Busy { .. }) => {}
                        Err(BookError::Used { .. }) => return false,
                        Err(error) => panic!("{error:?}"),
                    }
                };
                (0..10).filter(taken).count()
            })
        })
        .collect();
    let taken: usize = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
    assert_eq!(taken, 20, "eight books took eighty times from a bucket of twenty");
}

#[test]
fn a_book_outlives_its_process_and_full_accounts_are_forgotten() {
    let (_parent, directory) = fresh();
    charge(&FileBook::open(&directory).unwrap(), 2).unwrap();
    let book = FileBook::open(&directory).unwrap();
    charge(&book, 2).unwrap();
    assert!(charge(&book, 2).is_err());
    (&book as &dyn Book).refund(&me(), &call(2), NOW).unwrap();
    (&book as &dyn Book).refund(&me(), &call(2), NOW).unwrap();
    assert_eq!(book.read("me").unwrap(), Entries::default());
}

/// Damages the file of an account that was charged `charges` times.
fn damaged(charges: usize, damage: impl Fn(&mut Vec<u8>)) -> (Result<(), BookError>, Result<Entries, BookError>) {
    let (_parent, directory) = fresh();
    let book = FileBook::open(&directory).unwrap();
    for _ in 0..charges {
        charge(&book, 5).unwrap();
    }
    let path = book.path("me");
    let mut bytes = std::fs::read(&path).unwrap();
    damage(&mut bytes);
    std::fs::write(&path, &bytes).unwrap();
    let read = book.read("me");
    let charged = charge(&book, 5);
    if charged.is_err() {
        assert_eq!(std::fs::read(&path).unwrap(), bytes, "a damaged file is left for an operator to see");
    }
    (charged, read)
}

/// The places of the first and the second state.
const FIRST: usize = PLACE_BYTES;
const SECOND: usize = 0;

fn check_damaged(charges: usize, damage: impl Fn(&mut Vec<u8>)) {
    let (charged, read) = damaged(charges, damage);
    let error = charged.unwrap_err();
    assert!(matches!(error, BookError::Damaged { .. }), "{error:?}");
    assert_eq!(read, Err(error.clone()));
    let failure = Failure::from(error);
    assert_eq!(failure.code, Code::LimitsUnavailable);
    assert!(failure.audit.unwrap().contains(".book"), "the log names the file");
}

/// The size of a state with so many entries.
fn encoded_bytes(entries: usize) -> usize {
    HEADER_BYTES + entries * ENTRY_BYTES + DIGEST_BYTES
}

#[test]
fn a_damaged_file_refuses() {
    check_damaged(1, |bytes| bytes.truncate(FIRST + encoded_bytes(1) - 1));
    check_damaged(1, |bytes| bytes[FIRST + 40] ^= 1);
    check_damaged(1, |bytes| bytes[FIRST + 24..FIRST + 28].fill(0xff));
    check_damaged(2, |bytes| {
        bytes[FIRST] ^= 1;
        bytes[SECOND] ^= 1;
    });
    check_damaged(1, |bytes| {
        // Of another version, with a fitting digest.
        let mut other = encode(1, &Entries::default());
        other[15] = b'2';
        let body = other.len() - DIGEST_BYTES;
        let digest = Sha256::digest(&other[..body]);
        other[body..].copy_from_slice(&digest);
        bytes.truncate(FIRST);
        bytes.extend_from_slice(&other);
    });
}

#[test]
fn a_change_that_was_cut_short_leaves_the_state_before_it() {
    let (charged, read) = damaged(2, |bytes| bytes[SECOND + 30..SECOND + 60].fill(0));
    let (once, _) = damaged(1, |_| ());
    assert_eq!((charged, once), (Ok(()), Ok(())));
    let (_, before) = damaged(1, |_| ());
    assert_eq!(read, before, "what was charged once is charged once");
}

#[test]
fn a_file_that_was_made_and_never_written_holds_nothing() {
    let (charged, read) = damaged(1, Vec::clear);
    assert_eq!((charged, read), (Ok(()), Ok(Entries::default())));
}

#[test]
fn the_largest_account_fits_its_place() {
    let key = |n: usize| -> Key { Sha256::digest(n.to_be_bytes()).into() };
    let full = Entries((0..ACCOUNT_KEYS_MAX).map(|n| (key(n), u64::MAX)).collect());
    let (_parent, directory) = fresh();
    let book = FileBook::open(&directory).unwrap();
    for _ in 0..3 {
        book.update("me", &mut |entries| {
            *entries = full.clone();
            Ok(())
        })
        .unwrap();
        assert_eq!(book.read("me").unwrap(), full);
        book.update("me", &mut |entries| {
            entries.0.pop_last();
            Ok(())
        })
        .unwrap();
        assert_eq!(book.read("me").unwrap().0.len(), ACCOUNT_KEYS_MAX - 1);
    }
}

#[test]
fn an_account_has_the_room_of_its_next_states_before_the_disk_is_full() {
    let (_parent, directory) = fresh();
    let book = FileBook::open(&directory).unwrap();
    let blocks = || fs::metadata(book.path("me")).unwrap().blocks();
    charge(&book, 9).unwrap();
    let first = blocks();
    for _ in 0..3 {
        charge(&book, 9).unwrap();
    }
    assert_eq!(blocks(), first, "the second place was not set aside by the first charge");
    // An account that grows by a page has it set aside by then, as well.
    let grow = |count: u32| {
        let bucket = |n| Bucket { name: format!("calls-{n}"), burst: 9, per_interval: 1, interval_ms: 60_000 };
        let calls: Vec<_> =
            (0..count).map(|n| KeyedCharge { policy: "rate".into(), bucket: bucket(n), cost: 1 }).collect();
        (&book as &dyn Book).charge(&me(), &calls, NOW).unwrap();
    };
    grow(150);
    let grown = blocks();
    assert!(grown > first);
    grow(150);
    grow(151);
    assert_eq!(blocks(), grown);
}

#[test]
fn a_file_that_cannot_be_read_or_written_refuses() {
    let (_parent, directory) = fresh();
    let book = FileBook::open(&directory).unwrap();
    let path = book.path("me");
    std::fs::create_dir(&path).unwrap();
    let failure = Failure::from(charge(&book, 5).unwrap_err());
    assert_eq!((failure.code, failure.retryable), (Code::LimitsUnavailable, true));
    std::fs::remove_dir(&path).unwrap();
    std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
    assert!(matches!(charge(&book, 5), Err(BookError::Io { .. })), "links are not followed");
}

#[test]
fn an_account_in_use_is_busy_in_the_end() {
    let (_parent, directory) = fresh();
    let book = FileBook::open(&directory).unwrap();
    charge(&book, 5).unwrap();
    let held = File::open(book.path("me")).unwrap();
    lock(&held, Path::new("me")).unwrap();
    assert!(book.read("me").is_ok(), "readers do not wait");
    assert_eq!(charge(&book, 5), Err(BookError::Busy { waited_ms: BOOK_WAIT_MS_MAX }));
}

#[test]
fn a_directory_that_others_may_enter_is_refused() {
    let (_parent, directory) = fresh();
    FileBook::open(&directory).unwrap();
    assert_eq!(std::fs::metadata(&directory).unwrap().permissions().mode() & 0o777, 0o700);
    std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o755)).unwrap();
    assert!(matches!(FileBook::open(&directory), Err(BookError::Io { .. })));
}

#[test]
fn a_file_that_was_replaced_is_left_and_the_one_in_its_place_counts() {
    let (_parent, directory) = fresh();
    let (one, other) = (FileBook::open(&directory).unwrap(), FileBook::open(&directory).unwrap());
    for book in [&one, &other] {
        charge(book, 3).unwrap();
    }
    let path = one.path("me");
    // Moved away, so that the open file is as whole as ever.
    std::fs::rename(&path, path.with_extension("away")).unwrap();
    assert_eq!(one.read("me").unwrap(), Entries::default(), "a budget whose file is gone starts full");
    for book in [&one, &other, &one] {
        charge(book, 3).unwrap();
    }
    assert!(matches!(charge(&other, 3), Err(BookError::Used { .. })), "both count in the new file");
    std::fs::rename(path.with_extension("away"), &path).unwrap();
    charge(&other, 3).unwrap();
    assert!(matches!(charge(&one, 3), Err(BookError::Used { .. })), "put back, the old one counts again");
}

#[test]
fn calls_at_once_share_an_account_whatever_files_are_open() {
    let (_parent, directory) = fresh();
    let books = [FileBook::open(&directory).unwrap(), FileBook::open(&directory).unwrap()];
    let taken = thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|number| {
                let book = &books[number % 2];
                scope.spawn(move || {
                    let taken = |_: &i32| loop {
                        match charge(book, 50) {
                            Ok(()) => return true,
                            Err(BookError::Busy { .. }) => {}
                            Err(BookError::Used { .. }) => return false,
                            Err(error) => panic!("{error:?}"),
                        }
                    };
                    (0..40).filter(taken).count()
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum::<usize>()
    });
    assert_eq!(taken, 50, "eight threads took 320 times from a bucket of fifty");
    assert!(books[0].idle().values().map(Vec::len).sum::<usize>() <= 4, "no more files wait than calls were at once");
}

#[test]
fn files_that_wait_open_are_few() {
    let (_parent, directory) = fresh();
    let book = FileBook::open(&directory).unwrap();
    for owner in 0..IDLE_FILES_MAX * 2 + 3 {
        let account = Account { owner: owner.to_string(), group: None };
        (&book as &dyn Book).charge(&account, &call(5), NOW).unwrap();
        assert!(book.idle().values().map(Vec::len).sum::<usize>() <= IDLE_FILES_MAX);
    }
}

#[test]
fn files_that_waited_while_theirs_was_replaced_are_passed_over() {
    let (_parent, directory) = fresh();
    let book = FileBook::open(&directory).unwrap();
    charge(&book, 5).unwrap();
    let path = book.path("me");
    // As many as calls that were in the account at once.
    for _ in 0..2 * REPLACED_MAX {
        let file = options().read(true).write(true).open(&path).unwrap();
        book.leave("me", Opened::new(path.clone(), file).unwrap());
    }
    fs::remove_file(&path).unwrap();
    charge(&book, 5).unwrap();
    assert!(path.exists());
}

/// Opens the file that is to stand at `path` from now on, locked.
fn replace(path: &Path) -> File {
    let new = path.with_extension("new");
    let file = options().read(true).write(true).create_new(true).open(&new).unwrap();
    flock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
    fs::rename(&new, path).unwrap();
    file
}

/// Counts how often this process has the file open.
fn open_count(file: &File) -> usize {
    let of = |found: &fs::Metadata| (found.dev(), found.ino());
    let ours = of(&file.metadata().unwrap());
    let open = fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| entry.ok()?.path().metadata().ok());
    open.filter(|found| of(found) == ours).count()
}

#[test]
fn a_file_that_is_replaced_all_the_time_is_given_up() {
    /// Replaces the file so often, each time after it was opened and before it is locked.
    fn replaced(times: usize) -> Result<(), BookError> {
        let (_parent, directory) = fresh();
        let book = FileBook::open(&directory).unwrap();
        let path = book.path("me");
        thread::scope(|scope| {
            let mut standing = replace(&path);
            let charged = scope.spawn(|| charge(&book, 5));
            for _ in 0..times {
                while open_count(&standing) < 2 && !charged.is_finished() {
                    thread::yield_now();
                }
                standing = replace(&path);
            }
            drop(standing);
            charged.join().unwrap()
        })
    }
    for (times, fits) in [(REPLACED_MAX - 2, true), (REPLACED_MAX - 1, true), (REPLACED_MAX, false)] {
        // On a busy machine the lock may be long in coming: that is no answer to this.
        let outcome = loop {
            match replaced(times) {
                Err(BookError::Busy { .. }) => {}
                outcome => break outcome,
            }
        };
        match outcome {
            Ok(()) => assert!(fits, "replaced {times} times"),
            Err(BookError::Io { detail, .. }) => {
                assert!(!fits && detail == "it is replaced all the time", "replaced {times} times: {detail}");
            }
            Err(error) => panic!("replaced {times} times: {error:?}"),
        }
    }
}
