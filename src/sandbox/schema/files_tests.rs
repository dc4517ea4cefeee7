//! Bounds and damage of what is kept.

use std::os::unix::fs::PermissionsExt as _;

use super::*;

const OWNER: &str = "ann";

fn kept(name: &str, text: &str) -> KeptSchema {
    let key = SchemaKey { kind: SchemaKind::Function, schema: "s".to_owned(), name: "f()".to_owned() };
    let object = SchemaObject { key, of: None, attributes: vec![("body".to_owned(), text.to_owned())] };
    let schema = Schema::new(vec![object]);
    let digest = SchemaDigest::of(&schema, &SchemaFilter::default());
    let origin = Origin {
        sandbox_id: "id".to_owned(),
        sandbox_name: "p_x".to_owned(),
        profile: "local".to_owned(),
        postgres_version: Some(18),
        at_ms: 0,
    };
    KeptSchema::new(OWNER, name, &origin, &digest, schema, None)
}

fn handle(n: usize) -> String {
    format!("digest-{n:024x}")
}

fn shelf(dir: &tempfile::TempDir) -> Shelf {
    Shelf::new(&dir.path().join("schemas"), OWNER)
}

#[test]
fn what_is_kept_comes_back_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let strange = kept("a", "line\nbreak \"quoted\" \\ é \u{2028}");
    shelf(&dir).add_snapshot(&strange).unwrap();
    assert_eq!(shelf(&dir).snapshot("a").unwrap(), strange);
    let other = Shelf::new(&dir.path().join("schemas"), "bob");
    assert!(matches!(other.snapshot("a"), Err(FilesError::Missing { .. })));
    // A file that was carried over says whose it is.
    other
        .add_snapshot(&KeptSchema {
            facts: SchemaFacts { owner: "bob".to_owned(), ..strange.facts.clone() },
            ..strange
        })
        .unwrap();
    fs::copy(shelf(&dir).path(SNAPSHOTS, "a"), other.path(SNAPSHOTS, "a")).unwrap();
    assert!(matches!(other.snapshot("a"), Err(FilesError::Damaged { .. })));
}

#[test]
fn snapshots_are_so_many_and_no_more() {
    let dir = tempfile::tempdir().unwrap();
    for n in 0..SNAPSHOTS_MAX {
        shelf(&dir).add_snapshot(&kept(&n.to_string(), "")).unwrap();
    }
    let error = shelf(&dir).add_snapshot(&kept("more", "")).unwrap_err();
    assert!(matches!(&error, FilesError::Full(_)), "{error}");
    assert_eq!(Failure::from(error).code, Code::QuotaExceeded);
    let missing = Failure::from(shelf(&dir).snapshot("nothing").unwrap_err());
    assert_eq!((missing.code, missing.allowed.len()), (Code::SnapshotNotFound, MISSING_SHOWN_MAX));
    shelf(&dir).remove_snapshot("0").unwrap();
    shelf(&dir).add_snapshot(&kept("more", "")).unwrap();
}

#[test]
fn snapshots_are_so_large_together_and_no_larger() {
    let dir = tempfile::tempdir().unwrap();
    shelf(&dir).add_snapshot(&kept("first", "")).unwrap();
    // Large on disk, without its bytes.
    let file = OpenOptions::new().write(true).open(shelf(&dir).path(SNAPSHOTS, "first")).unwrap();
    let room = length(&kept("next", "x").text().unwrap());
    file.set_len(SNAPSHOT_BYTES_MAX - room + 1).unwrap();
    assert!(matches!(shelf(&dir).add_snapshot(&kept("next", "x")), Err(FilesError::Full(_))));
    file.set_len(SNAPSHOT_BYTES_MAX - room).unwrap();
    shelf(&dir).add_snapshot(&kept("next", "x")).unwrap();
}

#[test]
fn of_digests_the_oldest_goes_first() {
    let dir = tempfile::tempdir().unwrap();
    let age = |n: usize, seconds: u64| {
        let file = OpenOptions::new().append(true).open(shelf(&dir).path(KEPT, &handle(n))).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(seconds)).unwrap();
    };
    for n in 0..KEPT_MAX {
        assert!(shelf(&dir).keep(&kept(&handle(n), "")).unwrap());
        age(n, 1000 - u64::try_from(n).unwrap());
    }
    // One that is asked for again is the newest.
    shelf(&dir).keep(&kept(&handle(0), "")).unwrap();
    shelf(&dir).keep(&kept(&handle(KEPT_MAX), "")).unwrap();
    assert!(shelf(&dir).kept(&handle(0)).unwrap().is_some());
    assert!(shelf(&dir).kept(&handle(1)).unwrap().is_none());
    assert_eq!(shelf(&dir).files(KEPT).unwrap().len(), KEPT_MAX);

    age(2, KEPT_FOR.as_secs() + 1);
    assert!(shelf(&dir).kept(&handle(2)).unwrap().is_none(), "its time is over");
    shelf(&dir).keep(&kept(&handle(3), "")).unwrap();
    assert!(shelf(&dir).kept("../../etc/passwd").unwrap().is_none());
}

#[test]
fn digests_are_so_large_together_and_no_larger() {
    let dir = tempfile::tempdir().unwrap();
    for n in 0..3 {
        shelf(&dir).keep(&kept(&handle(n), "")).unwrap();
    }
    let path = shelf(&dir).path(KEPT, &handle(0));
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(KEPT_BYTES_MAX).unwrap();
    file.set_modified(SystemTime::now() - Duration::from_secs(60)).unwrap();
    shelf(&dir).keep(&kept(&handle(4), "")).unwrap();
    assert!(!path.exists() && shelf(&dir).kept(&handle(2)).unwrap().is_some());
    let large = "x".repeat(usize::try_from(KEPT_BYTES_MAX).unwrap());
    assert!(!shelf(&dir).keep(&kept(&handle(5), &large)).unwrap(), "one that is too large is not kept");
}

#[test]
fn a_file_is_read_up_to_its_bound_and_no_further() {
    let dir = tempfile::tempdir().unwrap();
    shelf(&dir).add_snapshot(&kept("a", "")).unwrap();
    let path = shelf(&dir).path(SNAPSHOTS, "a");
    let length = fs::metadata(&path).unwrap().len();
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(FILE_BYTES_MAX + 1).unwrap();
    assert!(matches!(shelf(&dir).snapshot("a"), Err(FilesError::Damaged { .. })));
    file.set_len(length).unwrap();
    assert!(shelf(&dir).snapshot("a").is_ok());
}

#[test]
fn a_name_is_so_long_and_no_longer_and_notes_too() {
    assert!(snapshot_name_fault(&"x".repeat(SNAPSHOT_NAME_CHARS_MAX)).is_none());
    assert!(
        snapshot_name_fault(&"x".repeat(SNAPSHOT_NAME_CHARS_MAX + 1)).is_some() && snapshot_name_fault("").is_some()
    );
}

#[test]
fn what_others_could_have_made_is_not_used() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("schemas");
    fs::create_dir(&root).unwrap();
    fs::set_permissions(&root, fs::Permissions::from_mode(0o755)).unwrap();
    assert!(matches!(shelf(&dir).add_snapshot(&kept("a", "")), Err(FilesError::Damaged { .. })));
    fs::set_permissions(&root, fs::Permissions::from_mode(0o700)).unwrap();
    shelf(&dir).add_snapshot(&kept("a", "")).unwrap();
    let path = shelf(&dir).path(SNAPSHOTS, "a");
    std::os::unix::fs::symlink(&path, shelf(&dir).path(SNAPSHOTS, "link")).unwrap();
    assert!(shelf(&dir).snapshot("link").is_err());
    assert!(!path.with_file_name(UNFINISHED).exists(), "nothing unfinished lies about");
}
