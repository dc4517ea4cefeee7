//! Sources that are no servers, or servers that mean ill: each gets a typed error in time.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

use serde_json::json;

use super::{Setup, files_with, reader_url, source};
use crate::harness;

/// A server on this machine that does the same with everybody who connects; never ends.
pub(super) fn server(act: impl Fn(TcpStream) + Send + Sync + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let act = std::sync::Arc::new(act);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let act = act.clone();
            thread::spawn(move || act(stream));
        }
    });
    port
}

fn message(tag: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len() + 4).unwrap().to_be_bytes();
    [&[tag], length.as_slice(), body].concat()
}

/// Reads the startup message.
pub(super) fn startup(stream: &mut TcpStream) {
    let mut length = [0; 4];
    stream.read_exact(&mut length).ok();
    let mut rest = vec![0; (u32::from_be_bytes(length) as usize).saturating_sub(4).min(65_536)];
    stream.read_exact(&mut rest).ok();
}

/// What a server says that accepts anybody, up to the first time it is ready.
pub(super) fn greeting() -> Vec<u8> {
    let parameter = |name: &str, value: &str| message(b'S', format!("{name}\0{value}\0").as_bytes());
    [
        message(b'R', &0_u32.to_be_bytes()),
        parameter("client_encoding", "UTF8"),
        parameter("standard_conforming_strings", "on"),
        parameter("server_version", "15.1"),
        message(b'K', &[0, 0, 0, 1, 0, 0, 0, 2]),
        message(b'Z', b"I"),
    ]
    .concat()
}

/// Waits until the other end has gone.
pub(super) fn hang(mut stream: TcpStream) {
    while stream.read(&mut [0; 1024]).is_ok_and(|read| read > 0) {}
}

#[test]
fn what_a_sources_own_code_says_of_its_rows_is_kept_nowhere() {
    let cluster = harness::cluster();
    let script = "CREATE TABLE t (v text); INSERT INTO t VALUES ('planted-value');
        CREATE FUNCTION f(v text) RETURNS text IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN
        IF current_query() LIKE 'ANALYZE%' THEN RAISE EXCEPTION 'here is %', v; END IF; RETURN v; END $$;
        CREATE INDEX ON t (f(v))";
    source(cluster, "talks", "", script);
    let setup = Setup::on(cluster, "clonetalks", &[("talks", reader_url(cluster, "talks"), json!({}))]);
    let setup = setup.under("{ allow = [{ name = \"talks\" }] }");
    let says = "table `public.t` of source `talks` cannot be analysed in the copy (SQLSTATE P0001)";
    let error = setup.refused(json!({"source": "talks"}), "restore_incompatible", says);
    assert_eq!(error["sqlstate"], "P0001", "{error:#}");
    assert!(!error.to_string().contains("planted-value"), "{error:#}");
    assert_eq!(files_with(&setup.home, "planted-value"), "");
}

#[test]
fn whoever_is_no_server_or_means_ill_gets_a_typed_error_in_time() {
    let silent = server(hang);
    let after_handshake = server(|mut stream| {
        startup(&mut stream);
        stream.write_all(&greeting()).ok();
        hang(stream);
    });
    let babbling = server(|mut stream| {
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").ok();
        hang(stream);
    });
    let huge = server(|mut stream| {
        startup(&mut stream);
        stream.write_all(&[b'R', 0x7f, 0xff, 0xff, 0xff]).ok();
        hang(stream);
    });
    let in_the_clear = server(|mut stream| {
        startup(&mut stream);
        stream.write_all(&message(b'R', &3_u32.to_be_bytes())).ok();
        hang(stream);
    });
    let laborious = server(|mut stream| {
        startup(&mut stream);
        stream.write_all(&message(b'R', &[10_u32.to_be_bytes().as_slice(), b"SCRAM-SHA-256\0\0"].concat())).ok();
        let mut answer = [0; 1024];
        let read = stream.read(&mut answer).unwrap_or_default();
        let said = String::from_utf8_lossy(&answer[..read]).into_owned();
        let nonce = said.rsplit("r=").next().unwrap_or_default().to_owned();
        let challenge = format!("r={nonce}x,s=c2FsdA==,i=4000000000");
        stream.write_all(&message(b'R', &[11_u32.to_be_bytes().as_slice(), challenge.as_bytes()].concat())).ok();
        hang(stream);
    });
    let refusing = server(|mut stream| {
        startup(&mut stream);
        let error = b"SFATAL\0VFATAL\0C53300\0Mgive me s3cret hunter2\0\0";
        stream.write_all(&message(b'E', error)).ok();
        hang(stream);
    });
    let cases = [
        ("silent", silent, "postgres_connection_failed", "did not answer"),
        ("after", after_handshake, "command_timeout", "was not done within"),
        ("babbling", babbling, "postgres_connection_failed", "does not answer as a Postgres server does"),
        ("huge", huge, "postgres_connection_failed", "does not answer as a Postgres server does"),
        ("clear", in_the_clear, "postgres_auth_failed", "`password`, which is not used over this connection"),
        ("laborious", laborious, "postgres_connection_failed", "does not answer as a Postgres server does"),
        ("refusing", refusing, "busy", "has no connection left"),
    ];
    let url = |port: u16| format!("postgresql://reader:s3cret@127.0.0.1:{port}/d?sslmode=disable&connect_timeout=2");
    let sources: Vec<_> = cases.iter().map(|(name, port, ..)| (*name, url(*port), json!({}))).collect();
    let setup = Setup::on(harness::cluster(), "clonehost", &sources);
    for (name, _, code, says) in cases {
        let error = setup.refused(json!({"source": name, "timeoutSeconds": 4}), code, says);
        assert!(!error.to_string().contains("hunter2"), "{error:#}");
    }
}

#[test]
fn a_source_that_answers_no_question_is_given_up() {
    let port = server(|mut stream| {
        startup(&mut stream);
        stream.write_all(&greeting()).ok();
        hang(stream);
    });
    let url = format!("postgresql://reader:s3cret@127.0.0.1:{port}/d?sslmode=disable");
    let mut setup = Setup::on(harness::cluster(), "clonequiet", &[("quiet", url, json!({}))]);
    setup.home = setup.home.with("PGSANDBOX_TEST_DEADLINE_MS", "5000");
    setup.refused(json!({"source": "quiet"}), "postgres_connection_failed", "did not answer in time");
}

/// Answers a question as a server does: a row of texts to each execution.
fn answer(stream: &mut TcpStream, row: &[&str]) {
    let mut description = u16::try_from(row.len()).unwrap().to_be_bytes().to_vec();
    let mut data = description.clone();
    for (at, value) in row.iter().enumerate() {
        description.extend_from_slice(format!("c{at}\0").as_bytes());
        let (table, column, oid, size, modifier, format) = (0_u32, 0_u16, 25_u32, -1_i16, -1_i32, 0_u16);
        description.extend_from_slice(&table.to_be_bytes());
        description.extend_from_slice(&column.to_be_bytes());
        description.extend_from_slice(&oid.to_be_bytes());
        description.extend_from_slice(&size.to_be_bytes());
        description.extend_from_slice(&modifier.to_be_bytes());
        description.extend_from_slice(&format.to_be_bytes());
        data.extend_from_slice(&u32::try_from(value.len()).unwrap().to_be_bytes());
        data.extend_from_slice(value.as_bytes());
    }
    let mut status = b'I';
    let mut head = [0; 5];
    let (mut text, mut described) = (String::new(), false);
    while stream.read_exact(&mut head).is_ok() {
        let mut body = vec![0; u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize - 4];
        stream.read_exact(&mut body).ok();
        let reply = match head[0] {
            b'P' => {
                let mut parts = body.split(|byte| *byte == 0);
                parts.next();
                text = String::from_utf8_lossy(parts.next().unwrap_or_default()).to_lowercase();
                message(b'1', b"")
            }
            b'B' => message(b'2', b""),
            b'C' => message(b'3', b""),
            b'D' if text.contains("server_version") => {
                described = true;
                let parameters = if body[0] == b'S' { message(b't', &[0, 0]) } else { Vec::new() };
                [parameters, message(b'T', &description)].concat()
            }
            b'D' => {
                let parameters = if body[0] == b'S' { message(b't', &[0, 0]) } else { Vec::new() };
                [parameters, message(b'n', b"")].concat()
            }
            b'E' if text.contains("server_version") && described => {
                [message(b'D', &data), message(b'C', b"SELECT 1\0")].concat()
            }
            b'E' => {
                status = if text.starts_with("begin") || text.starts_with("start") {
                    b'T'
                } else if text.starts_with("rollback") {
                    b'I'
                } else {
                    status
                };
                let tag = text.split([' ', ';']).next().unwrap_or_default().to_uppercase();
                let tag = if tag == "SELECT" { "SELECT 1".to_owned() } else { tag };
                message(b'C', format!("{tag}\0").as_bytes())
            }
            b'S' => message(b'Z', &[status]),
            b'X' => return,
            _ => Vec::new(),
        };
        stream.write_all(&reply).ok();
    }
}

#[test]
fn a_source_older_than_can_be_cloned_is_refused() {
    let port = server(|mut stream| {
        startup(&mut stream);
        stream.write_all(&greeting()).ok();
        answer(&mut stream, &["12.22", "UTF8", "C", "1", "t"]);
    });
    let url = format!("postgresql://reader:s3cret@127.0.0.1:{port}/d?sslmode=disable");
    let setup = Setup::on(harness::cluster(), "cloneold", &[("old", url, json!({}))]);
    let error = setup.refused(json!({"source": "old"}), "version_mismatch", "is Postgres 12, older than can be cloned");
    assert_eq!(error["sourceVersion"], "12");
}

#[test]
fn a_login_that_is_refused_once_the_dump_begins_is_told_as_one() {
    let refusing: &[u8] = b"SFATAL\0VFATAL\0C28P01\0Mgive me s3cret hunter2\0\0";
    let cases = [
        (b'E', refusing.to_vec(), "does not accept the credentials of `reader`"),
        (b'R', 3_u32.to_be_bytes().to_vec(), "`password`, which is not used over this connection"),
    ];
    for (tag, body, says) in cases {
        let before = std::sync::atomic::AtomicBool::new(false);
        let port = server(move |mut stream| {
            startup(&mut stream);
            if before.swap(true, std::sync::atomic::Ordering::Relaxed) {
                stream.write_all(&message(tag, &body)).ok();
                return hang(stream);
            }
            stream.write_all(&greeting()).ok();
            answer(&mut stream, &["15.1", "UTF8", "C", "1", "t"]);
        });
        let url = format!("postgresql://reader:s3cret@127.0.0.1:{port}/d?sslmode=disable");
        let setup = Setup::on(harness::cluster(), "clonelate", &[("late", url, json!({}))]);
        let error = setup.refused(json!({"source": "late"}), "postgres_auth_failed", says);
        assert!(!error.to_string().contains("hunter2"), "{error:#}");
    }
}
