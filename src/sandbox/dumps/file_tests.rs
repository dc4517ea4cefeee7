//! What a file of an exported template is taken for, whatever was done to it.

use std::io::{Seek as _, SeekFrom, Write as _};

use super::*;

fn manifest(dump: &[u8]) -> Manifest {
    let sum = digits(&Sha256::digest(dump));
    Manifest {
        template_name: "base".into(),
        postgres_version: "15.14".into(),
        postgres_major: 15,
        dump_tool_version: "15.14".into(),
        encoding: "UTF8".into(),
        labels: BTreeMap::from([("data".into(), "production".into())]),
        schema_digest: sum.clone(),
        shape_digest: sum.clone(),
        dump_bytes: dump.len() as u64,
        dump_sha256: sum,
        ..Manifest::default()
    }
}

fn written(dump: &[u8], manifest: &Manifest) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.seek(SeekFrom::Start(DUMP_AT)).unwrap();
    file.write_all(dump).unwrap();
    write_manifest(&file, manifest).unwrap();
    file
}

/// Writes what `manifest` is, whatever it holds, with a checksum that fits.
fn forged(dump: &[u8], manifest: &str) -> File {
    let mut text = manifest.as_bytes().to_vec();
    text.resize(MANIFEST_BYTES_MAX, b' ');
    let file = written(dump, &self::manifest(dump));
    file.write_all_at(format!("{HEAD}{}\n", digits(&Sha256::digest(&text))).as_bytes(), 0).unwrap();
    file.write_all_at(&text, HEAD_BYTES as u64).unwrap();
    file
}

#[test]
fn a_file_is_read_as_it_was_written() {
    let dump = b"PGDMP and so on".repeat(100_000);
    let manifest = manifest(&dump);
    let file = written(&dump, &manifest);
    let read = read_manifest(&file).unwrap();
    assert_eq!(read, manifest);
    verify(&file, &read).unwrap();
}

#[test]
fn whatever_is_cut_added_or_changed_is_found() {
    let dump = b"PGDMP and so on".repeat(10);
    let manifest = manifest(&dump);
    let whole = DUMP_AT + dump.len() as u64;
    for length in [0, 1, HEAD_BYTES as u64, DUMP_AT - 1, DUMP_AT, whole - 1, whole + 1] {
        let file = written(&dump, &manifest);
        file.set_len(length).unwrap();
        assert!(read_manifest(&file).is_err(), "{length}");
    }
    for at in [0, 5, HEAD_BYTES as u64 - 1, HEAD_BYTES as u64, DUMP_AT - 1] {
        let file = written(&dump, &manifest);
        file.write_all_at(b"?", at).unwrap();
        assert!(read_manifest(&file).is_err(), "{at}");
    }
    let file = written(&dump, &manifest);
    file.write_all_at(b"?", DUMP_AT + 3).unwrap();
    let read = read_manifest(&file).unwrap();
    assert!(matches!(verify(&file, &read), Err(Unsound::Checksum)));
    file.set_len(whole - 3).unwrap();
    assert!(matches!(verify(&file, &read), Err(Unsound::Length { .. })), "cut while it is read");
}

#[test]
fn a_manifest_with_a_checksum_that_fits_is_still_only_what_is_written() {
    let dump = b"x";
    let sound = serde_json::to_value(manifest(dump)).unwrap();
    let check = |field: &str, value: serde_json::Value| {
        let mut edited = sound.clone();
        edited[field] = value.clone();
        let file = forged(dump, &edited.to_string());
        assert!(read_manifest(&file).is_err(), "{field}: {value}");
    };
    assert!(read_manifest(&forged(dump, &sound.to_string())).is_ok());
    check("templateName", "../../etc/passwd".into());
    check("templateName", 7.into());
    check("notes", "x".repeat(5000).into());
    check("createdBy", "x".repeat(NAME_BYTES_MAX + 1).into());
    check("labels", serde_json::json!({"": "x"}));
    check("labels", serde_json::json!([["a", "b"]]));
    check("postgresMajor", 0.into());
    check("postgresMajor", (MAJOR_MAX + 1).into());
    check("postgresVersion", "x".repeat(WORD_BYTES_MAX + 1).into());
    check("encoding", "a\nb".into());
    check("extensions", serde_json::json!([{"name": "", "version": "1", "schema": "public"}]));
    check("extensions", "citext".into());
    let many = vec![serde_json::json!({"name": "a", "version": "1", "schema": "p"}); NAMED_MAX + 1];
    check("extensions", many.into());
    check("settings", serde_json::json!([{"name": "a", "value": "x".repeat(VALUE_BYTES_MAX + 1)}]));
    check("comment", "a\0".into());
    check("schemaDigest", "x".into());
    check("dumpSha256", serde_json::Value::Null);
    check("dumpBytes", (-1).into());
    check("dumpBytes", 2.into());
    check("unknown", true.into());
    for text in ["", "null", "[]", "{", "\"x\""] {
        assert!(read_manifest(&forged(dump, text)).is_err(), "{text}");
    }
}

#[test]
fn a_manifest_that_is_larger_than_its_place_is_not_written() {
    let mut manifest = manifest(b"x");
    manifest.settings = vec![
        ManifestSetting { name: "a".into(), value: "x".repeat(VALUE_BYTES_MAX) };
        MANIFEST_BYTES_MAX / VALUE_BYTES_MAX + 1
    ];
    assert!(matches!(write_manifest(&tempfile::tempfile().unwrap(), &manifest), Err(Unsound::Field(_))));
}
