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

fn check_damaged(damage: impl Fn(&mut Vec<u8>)) {
    let (_parent, directory) = fresh();
    let book = FileBook::open(&directory).unwrap();
    charge(&book, 5).unwrap();
    let path = book.path(&digest("me"));
    let mut bytes = std::fs::read(&path).unwrap();
    damage(&mut bytes);
    std::fs::write(&path, &bytes).unwrap();
    let error = charge(&book, 5).unwrap_err();
    assert!(matches!(error, BookError::Damaged { .. }), "{error:?}");
    let failure = Failure::from(error);
    assert_eq!(failure.code, Code::LimitsUnavailable);
    assert!(failure.audit.unwrap().contains(".book"), "the log names the file");
    assert_eq!(std::fs::read(&path).unwrap(), bytes, "and the file is left for an operator to see");
}

#[test]
fn a_damaged_file_refuses() {
    check_damaged(Vec::clear);
    check_damaged(|bytes| bytes.truncate(bytes.len() - 1));
    check_damaged(|bytes| bytes[40] ^= 1);
    check_damaged(|bytes| bytes.push(0));
    check_damaged(|bytes| *bytes = vec![0; FILE_BYTES_MAX + 1]);
    check_damaged(|bytes| {
        // Of another version, with a fitting digest.
        let mut other = b"pgsandbox book 2".to_vec();
        let digest = Sha256::digest(&other);
        other.extend_from_slice(&digest);
        *bytes = other;
    });
}

#[test]
fn a_file_that_cannot_be_read_or_written_refuses() {
    let (_parent, directory) = fresh();
    let book = FileBook::open(&directory).unwrap();
    let path = book.path(&digest("me"));
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
    let _held = book.lock(&digest("me")).unwrap();
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
