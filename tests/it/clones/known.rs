//! Production databases are known by whatever address they are reached.

use std::io::{Read, Write, copy};
use std::net::{TcpListener, TcpStream};
use std::thread;

use serde_json::json;

use super::hostile::{greeting, hang, server, startup};
use super::{READER, READER_PASSWORD_ENCODED, Setup, reader_url, source};
use crate::harness;

/// Lets everything through to a port of this machine, as a tunnel does.
fn tunnel(to: u16) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let server = TcpStream::connect(("127.0.0.1", to)).unwrap();
            let ends = [
                (client.try_clone().unwrap(), server.try_clone().unwrap()),
                (server.try_clone().unwrap(), client.try_clone().unwrap()),
            ];
            for (mut from, mut into) in ends {
                thread::spawn(move || {
                    copy(&mut from, &mut into).ok();
                    into.shutdown(std::net::Shutdown::Write).ok();
                });
            }
        }
    });
    port
}

const OPEN: &str = "{ allow = [{ name = \"*\" }, { host = \"*\" }], production = {} }";

#[test]
fn production_is_known_by_any_address() {
    let cluster = harness::cluster();
    source(cluster, "known_shop", "", "CREATE TABLE t (v int)");
    source(cluster, "known_other", "", "CREATE TABLE t (v int); INSERT INTO t VALUES (7)");
    let shop = [("shop", reader_url(cluster, "known_shop"), json!({"production": true}))];
    let setup = Setup::on(cluster, "cloneknown", &shop).under(OPEN);
    let url = |host: &str, port: u16, database: &str| {
        format!("postgresql://{READER}:{READER_PASSWORD_ENCODED}@{host}:{port}/{database}?sslmode=disable")
    };
    let tunnel = tunnel(cluster.port);
    for (host, port) in [("localhost", cluster.port), ("127.0.0.1", tunnel), ("localhost", tunnel)] {
        let input = json!({"sourceDatabaseUrl": url(host, port, "known_shop"), "reason": "bug 17"});
        setup.refused(input, "source_not_allowed", "is the database of production source `shop`");
    }
    // Another spelling of the same address is the same address.
    for host in ["127.0.0.1", "[::ffff:127.0.0.1]", "[0::ffff:7f00:1]"] {
        let input = json!({"sourceDatabaseUrl": url(host, cluster.port, "known_shop")});
        setup.refused(input, "source_not_allowed", "is a production database, and no reason was given");
    }
    for host in ["127.1", "2130706433", "0", "0.0.0.0", "0x7f.1", "0177.0.0.1", "[::]"] {
        let input = json!({"sourceDatabaseUrl": url(host, cluster.port, "known_shop"), "reason": "bug 17"});
        setup.refused(input, "invalid_arguments", "is not a name, an address");
    }
    // What is no production is cloned, and production on its terms.
    let result = setup.cloned(json!({"sourceDatabaseUrl": url("localhost", tunnel, "known_other")}));
    assert_eq!(setup.rows(&result["databaseName"], "SELECT v::text FROM t"), [["7"]]);
    setup.cloned(json!({"sourceDatabaseUrl": url("127.0.0.1", cluster.port, "known_shop"), "reason": "bug 17"}));
}

#[test]
fn a_production_source_that_does_not_say_who_it_is_ends_the_clone() {
    let cluster = harness::cluster();
    source(cluster, "known_any", "", "CREATE TABLE t (v int)");
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let silent = server(|mut stream| {
        startup(&mut stream);
        stream.write_all(&greeting()).ok();
        hang(stream);
    });
    let strange = server(|mut stream| {
        stream.read_exact(&mut [0; 8]).ok();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").ok();
        hang(stream);
    });
    for port in [closed, silent, strange] {
        let url = format!("postgresql://reader:s3cret@127.0.0.1:{port}/d?sslmode=disable");
        let mut setup = Setup::on(cluster, "cloneunknown", &[("shop", url, json!({"production": true}))]).under(OPEN);
        setup.home = setup.home.with("PGSANDBOX_TEST_DEADLINE_MS", "5000");
        let input = json!({"sourceDatabaseUrl": reader_url(cluster, "known_any")});
        setup.refused(input, "source_not_allowed", "is production source `shop` cannot be told");
    }
}

#[test]
fn a_standby_is_cloned_with_what_it_has_and_is_its_primary() {
    let primary = harness::own_cluster();
    let script = "CREATE TABLE t (v int); INSERT INTO t VALUES (7); CREATE UNLOGGED TABLE fleeting AS SELECT 1 AS v";
    source(&primary, "standing", "", script);
    let standby = harness::standby_of(&primary);
    let sources = [
        ("standby", reader_url(&standby, "standing"), json!({})),
        ("primary", reader_url(&primary, "standing"), json!({"production": true})),
    ];
    let setup = Setup::on(harness::cluster(), "clonestandby", &sources).under(OPEN);
    let input = json!({"sourceDatabaseUrl": reader_url(&standby, "standing"), "reason": "bug 17"});
    setup.refused(input, "source_not_allowed", "is the database of production source `primary`");
    let result = setup.cloned(json!({"source": "standby"}));
    assert_eq!(setup.rows(&result["databaseName"], "SELECT v::text FROM t"), [["7"]]);
    let left_out = json!(["the rows of 1 unlogged table, which a standby does not have"]);
    assert_eq!(result["leftOut"], left_out, "{result:#}");
}
