//! What an owner's folder of exported templates keeps, and what it does not let in.

use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use super::*;

fn manifest(dump: &[u8]) -> Manifest {
    let sum = hex(&Sha256::digest(dump), usize::MAX);
    Manifest {
        template_name: "base".into(),
        postgres_version: "15.14".into(),
        postgres_major: 15,
        dump_tool_version: "15.14".into(),
        schema_digest: sum.clone(),
        shape_digest: sum.clone(),
        dump_bytes: dump.len() as u64,
        dump_sha256: sum,
        ..Manifest::default()
    }
}

fn keep(shelf: &Shelf, name: &str, replace: bool) -> Result<()> {
    shelf.room(name, replace)?;
    let unfinished = shelf.begin()?;
    let mut file = unfinished.file().unwrap();
    io::Seek::seek(&mut file, io::SeekFrom::Start(DUMP_AT)).unwrap();
    file.write_all(b"PGDMP").unwrap();
    shelf.finish(&unfinished, name, &manifest(b"PGDMP"), replace)
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_file_is_private_its_owners_alone_and_replaced_only_on_request() {
    let root = tempfile::tempdir().unwrap();
    let (ana, bob) = (Shelf::new(&root.path().join("d"), "ana"), Shelf::new(&root.path().join("d"), "bob"));
    keep(&ana, "base", false).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&ana.path("base")), mode(&ana.home), mode(&ana.root)), (0o600, 0o700, 0o700));
    assert!(matches!(keep(&ana, "base", false), Err(ShelfError::Exists(_))));
    keep(&ana, "base", true).unwrap();
    assert_eq!(ana.list().unwrap().len(), 1);
    assert!(matches!(bob.open("base"), Err(ShelfError::Missing { known, .. }) if known.is_empty()));
    assert!(matches!(bob.remove("base"), Err(ShelfError::Missing { .. })));
    assert_eq!(names(&ana.home), [".lock", "base.template"], "nothing unfinished stays");
    ana.remove("base").unwrap();
    assert!(ana.list().unwrap().is_empty());
}

#[test]
fn what_others_could_have_put_there_is_not_opened() {
    let root = tempfile::tempdir().unwrap();
    let shelf = Shelf::new(&root.path().join("d"), "ana");
    keep(&shelf, "base", false).unwrap();
    let secret = root.path().join("secret");
    fs::write(&secret, "x").unwrap();
    symlink(&secret, shelf.path("link")).unwrap();
    fs::copy(shelf.path("base"), shelf.path("open")).unwrap();
    fs::set_permissions(shelf.path("open"), fs::Permissions::from_mode(0o644)).unwrap();
    fs::create_dir(shelf.path("folder")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        shelf.path("pipe"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    for name in ["link", "open", "folder", "pipe"] {
        assert!(matches!(shelf.open(name), Err(ShelfError::Exposed { .. })), "{name}");
    }
    assert_eq!(shelf.list().unwrap().len(), 1, "the rest is passed over");
    shelf.remove("link").unwrap();
    assert!(secret.exists());
}

#[test]
fn files_are_so_many_and_so_large_and_no_more() {
    let root = tempfile::tempdir().unwrap();
    let shelf = Shelf::new(&root.path().join("d"), "ana");
    for n in 0..DUMPS_MAX {
        keep(&shelf, &format!("n{n}"), false).unwrap();
    }
    assert!(matches!(keep(&shelf, "more", false), Err(ShelfError::Full(_))));
    keep(&shelf, "n0", true).unwrap();
    for n in 1..DUMPS_MAX {
        shelf.remove(&format!("n{n}")).unwrap();
    }
    let room = shelf.room("more", false).unwrap();
    let large = OpenOptions::new().write(true).open(shelf.path("n0")).unwrap();
    // Nothing but a length.
    large.set_len(DUMP_BYTES_MAX - DUMP_AT).unwrap();
    assert!(matches!(shelf.room("more", false), Err(ShelfError::Full(_))));
    assert!(room < DUMP_BYTES_MAX && shelf.room("n0", true).unwrap() == DUMP_BYTES_MAX - DUMP_AT);
}

#[test]
fn what_a_killed_process_left_is_swept_and_what_is_written_stays() {
    let root = tempfile::tempdir().unwrap();
    let shelf = Shelf::new(&root.path().join("d"), "ana");
    let mine = shelf.begin().unwrap();
    let left = shelf.home.join(".unfinished-left");
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(&left).unwrap();
    let other = shelf.begin().unwrap();
    assert!(!left.exists() && mine.path.exists() && other.path.exists());
    drop((mine, other));
    assert_eq!(names(&shelf.home), [".lock"]);
    assert!(shelf.list().unwrap().is_empty());
}
