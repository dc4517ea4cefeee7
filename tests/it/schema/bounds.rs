//! Schemas of any size are answered within bounds, and readings that cannot be done say so.

use serde_json::{Value, json};

use super::{digest, home, made, ok, refused, run};
use crate::harness::cluster;
use crate::program::{Stdio, Transport};

/// The largest reply that a client is sent, in bytes, whatever there is.
const REPLY_BYTES: usize = 512 << 10;

fn profile() -> String {
    format!("on{}", cluster().major)
}

fn many(server: &mut Stdio, id: &str, tables: usize) {
    // A transaction of the server's holds so many locks.
    for from in (0..tables).step_by(500) {
        let text = format!(
            "do $$ begin for n in {from}..{} loop execute format('create table many.t%s (id int primary key, v text)', n); \
             end loop; end $$",
            (from + 500).min(tables) - 1
        );
        run(server, id, &text);
    }
}

#[test]
fn of_five_thousand_tables_a_page_is_told_and_all_are_counted() {
    let home = home(&[cluster()], "many");
    let mut server = Stdio::start(&home);
    let id = made(
        &mut server,
        &profile(),
        "",
        "create schema many; create table public.alone (n int); create view public.v as select n from public.alone",
    );
    many(&mut server, &id, 5000);
    let base = server.call("schema_digest", &json!({"databaseId": id}));
    assert!(base.to_string().len() < REPLY_BYTES, "{}", base.to_string().len());
    let base = &base["result"];
    assert_eq!((&base["counts"]["table"], &base["truncated"]), (&json!(5001), &json!(true)));
    let page = server.call("describe_schema", &json!({"databaseId": id}));
    assert!(page.to_string().len() < REPLY_BYTES);
    assert_eq!((&page["result"]["counts"]["column"], &page["result"]["truncated"]), (&json!(10_002), &json!(true)));

    // Page by page each entry is told once.
    let (mut cursor, mut seen) = (Value::Null, Vec::new());
    loop {
        let page = ok(
            &mut server,
            "describe_schema",
            &json!({"databaseId": id, "schema": "public", "limit": 1, "cursor": cursor}),
        );
        seen.extend(page["entries"].as_array().unwrap().iter().map(|entry| entry["name"].as_str().unwrap().to_owned()));
        cursor = page["nextCursor"].clone();
        if cursor.is_null() {
            break;
        }
    }
    assert_eq!(seen, ["public.alone", "public.v", "public"]);
    let one = ok(&mut server, "describe_schema", &json!({"databaseId": id, "schema": "many", "table": "t17"}));
    assert_eq!(
        (&one["entryCount"], &one["entries"][0]["primaryKey"]),
        (&json!(1), &json!("PRIMARY KEY (id)")),
        "{one:#}"
    );

    run(
        &mut server,
        &id,
        "do $$ begin for n in 0..999 loop execute format('alter table many.t%s alter v set default 1', n); end loop; end $$",
    );
    let diff = server.call("schema_diff", &json!({"databaseId": id, "baseDigest": base["handle"], "limit": 500}));
    assert!(diff.to_string().len() < REPLY_BYTES);
    let diff = &diff["result"];
    assert_eq!((&diff["changeCount"], &diff["counts"]["column"]["changed"]), (&json!(1000), &json!(1000)));
    assert_eq!((diff["changes"].as_array().unwrap().len(), &diff["truncated"]), (500, &json!(true)));
    for (operation, more) in [
        ("describe_schema", json!({"limit": 201})),
        ("describe_schema", json!({"cursor": "x"})),
        ("schema_digest", json!({"limit": 5001})),
    ] {
        let mut input = more;
        input["databaseId"] = json!(id);
        refused(&mut server, operation, &input, "invalid_arguments");
    }
    // What is not there is no empty success; of what may be there later a digest can be made.
    let error =
        refused(&mut server, "describe_schema", &json!({"databaseId": id, "table": "many.t17"}), "undefined_table");
    assert!(error["hint"].as_str().unwrap().contains("give its schema in `schema`"), "{error:#}");
    for (operation, part) in
        [("schema_digest", json!({"table": "later"})), ("describe_schema", json!({"schema": "later"}))]
    {
        let mut input = part;
        input["databaseId"] = json!(id);
        let reply = server.call(operation, &input);
        assert!(reply["warnings"].to_string().contains("nothing is there of"), "{reply:#}");
    }
    let unkept = json!({"databaseId": id, "baseDigest": "digest-nosuch"});
    let error = refused(&mut server, "schema_diff", &unkept, "invalid_base_digest");
    assert!(error["message"].as_str().unwrap().contains("no digest is kept"), "{error:#}");
}

#[test]
fn a_page_has_so_much_text_and_no_more() {
    let home = home(&[cluster()], "wide");
    let mut server = Stdio::start(&home);
    let id = made(&mut server, &profile(), "", "create schema wide");
    let columns = "(select string_agg(format('a_column_with_a_long_name_%s text default %L', c, repeat('x', 200)), ', ') \
                   from generate_series(1, 100) as c (c))";
    let fill = format!(
        "do $$ begin for n in 1..30 loop execute format('create table wide.t%s (%s)', n, {columns}); end loop; end $$"
    );
    run(&mut server, &id, &fill);
    let page = server.call("describe_schema", &json!({"databaseId": id, "limit": 200}));
    let told = page["result"]["entries"].as_array().unwrap().len();
    assert!((2..10).contains(&told) && page.to_string().len() < 200 << 10, "{told} in {}", page.to_string().len());
    assert_eq!((&page["result"]["truncated"], page["result"]["nextCursor"].is_string()), (&json!(true), true));
}

#[test]
fn a_text_of_any_length_is_seen_to_change_and_not_sent() {
    let home = home(&[cluster()], "long");
    let mut server = Stdio::start(&home);
    let body = |words: usize, last: &str| {
        format!(
            "do $$ begin execute format('create or replace function f() returns text language sql as %L', \
             'select ''' || repeat('x ', {words}) || '{last}'''); end $$"
        )
    };
    let id = made(&mut server, &profile(), "", &body(2_000_000, "a"));
    let before = digest(&mut server, &id);
    run(&mut server, &id, &body(2_000_000, "b"));
    let diff = ok(&mut server, "schema_diff", &json!({"databaseId": id, "baseDigest": before["handle"]}));
    let told = &diff["changes"][0]["attributes"][0];
    for side in ["before", "after"] {
        let text = told[side].as_str().unwrap();
        assert!(text.starts_with("sha256 ") && text.ends_with(" of 4000010 bytes"), "{text}");
    }
    // A text that is told is told from where it begins to differ.
    run(&mut server, &id, &body(2_000, "a"));
    let before = digest(&mut server, &id);
    run(&mut server, &id, &body(2_000, "b"));
    let diff = ok(&mut server, "schema_diff", &json!({"databaseId": id, "baseDigest": before["handle"]}));
    let after = diff["changes"][0]["attributes"][0]["after"].as_str().unwrap();
    assert!(after.contains("characters, the same, then …") && after.ends_with("b'") && after.len() < 300, "{after}");
}

#[test]
fn a_schema_that_is_too_large_as_a_whole_is_refused_with_the_way_on() {
    let home = home(&[cluster()], "large");
    let mut server = Stdio::start(&home);
    let fill = "create schema small; create table small.t (); \
                do $$ begin for n in 1..1100 loop execute format('create function f%s() returns text language sql as %L', n, \
                'select ''' || repeat('x', 62000) || ''''); end loop; end $$";
    let id = made(&mut server, &profile(), "", fill);
    let error = refused(&mut server, "schema_digest", &json!({"databaseId": id}), "invalid_arguments");
    assert!(
        error["message"].as_str().unwrap().contains("64 MiB") && error["hint"].as_str().unwrap().contains("schema"),
        "{error:#}"
    );
    let part = ok(&mut server, "schema_digest", &json!({"databaseId": id, "schema": "small"}));
    assert_eq!(part["counts"]["table"], 1);
}

#[test]
fn a_reading_that_fails_is_told_and_one_that_was_overtaken_begins_anew() {
    let home = home(&[cluster()], "fails");
    let mut server = Stdio::start(&home);
    let id = made(&mut server, &profile(), "", "create table t ()");
    assert!(server.finish().success());
    let of = json!({"databaseId": id});
    for (faults, expected) in [
        ("catalogue.statement=fail", "postgres_connection_failed"),
        // Postgres ends it when its time is over.
        ("catalogue.statement=fail:57014@4", "busy"),
        ("catalogue.statement=fail:XX000@3;catalogue.statement=fail:42P01@5", "none"),
        ("catalogue.statement=fail:XX000@1+", "internal"),
    ] {
        let mut server = Stdio::start_with(&home, &[("PGSANDBOX_TEST_FAULTS", faults)], std::process::Stdio::inherit());
        let reply = server.call("schema_digest", &of);
        assert_eq!(reply["errors"][0]["code"].as_str().unwrap_or("none"), expected, "{faults}: {reply:#}");
        // It passes, or is foretold to fail alike.
        assert_eq!(server.call("list_schema_snapshots", &json!({}))["ok"], true);
    }
    let late = [("PGSANDBOX_TEST_FAULTS", "catalogue.statement=delay:60000@2"), ("PGSANDBOX_TEST_DEADLINE_MS", "3000")];
    let mut server = Stdio::start_with(&home, &late, std::process::Stdio::inherit());
    refused(&mut server, "describe_schema", &of, "command_timeout");
}

#[test]
fn a_snapshot_that_cannot_be_written_leaves_nothing() {
    let home = home(&[cluster()], "unwritten");
    let mut server = Stdio::start(&home);
    let id = made(&mut server, &profile(), "", "");
    assert!(server.finish().success());
    let with = json!({"databaseId": id, "snapshotName": "s"});
    for point in ["dir", "lock", "list", "open", "write", "link"] {
        let fault = format!("file.schemas.{point}=fail:full@1+");
        let mut server = Stdio::start_with(&home, &[("PGSANDBOX_TEST_FAULTS", &fault)], std::process::Stdio::inherit());
        let reply = server.call("create_schema_snapshot", &with);
        assert_eq!(reply["errors"][0]["code"], "disk_full", "{point}: {reply:#}");
        // A digest is answered all the same, and says that it is not kept.
        let digest = server.call("schema_digest", &json!({"databaseId": id}));
        assert!(digest["ok"] == true && digest["result"].get("handle").is_none(), "{point}: {digest:#}");
        assert!(digest["warnings"].to_string().contains("could not be kept"), "{digest:#}");
        assert!(server.finish().success());
    }
    let mut server = Stdio::start(&home);
    assert_eq!(ok(&mut server, "list_schema_snapshots", &json!({}))["snapshots"], json!([]));
    ok(&mut server, "create_schema_snapshot", &with);
}
