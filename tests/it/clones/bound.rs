//! `channel_binding` in the URLs of sources and servers: a login that is bound to the server's certificate, or none.

use std::fs;
use std::sync::Arc;

use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use super::encrypted::encrypted;
use super::{READER, READER_PASSWORD_ENCODED, Setup, rows, source};
use crate::harness::{self, Cluster};
use crate::program::{Cli, Transport as _};

/// Stands before a server with a certificate of its own, and passes on what is said: a server over TLS that offers no
/// binding. Returns its port.
fn stands_before(port: u16) -> u16 {
    let certificates = CertificateDer::pem_slice_iter(include_bytes!("../wire/tls/server.pem"));
    let certificates: Vec<_> = certificates.map(|certificate| certificate.unwrap().into_owned()).collect();
    let key = PrivateKeyDer::from_pem_slice(include_bytes!("../wire/tls/server.key")).unwrap();
    let config = rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(certificates, key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let own = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let listener = TcpListener::from_std(listener).unwrap();
            while let Ok((mut client, _)) = listener.accept().await {
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    client.read_exact(&mut [0; 8]).await?;
                    client.write_all(b"S").await?;
                    let mut client = acceptor.accept(client).await?;
                    let mut server = TcpStream::connect(("127.0.0.1", port)).await?;
                    copy_bidirectional(&mut client, &mut server).await
                });
            }
        });
    });
    own
}

/// Puts rules before those of a server's.
fn with_rules(cluster: &Cluster, rules: &str) {
    let path = cluster.data.join("pg_hba.conf");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, format!("{rules}{text}")).unwrap();
    rows(cluster, "postgres", "SELECT pg_reload_conf()");
}

#[test]
fn a_login_at_a_source_is_bound_to_its_certificate_or_there_is_none() {
    let from = encrypted();
    for database in ["bound", "weak", "older", "trusting"] {
        source(from, database, "", "CREATE TABLE t (v int); INSERT INTO t VALUES (7)");
    }
    rows(from, "postgres", "SET password_encryption = 'md5'; CREATE ROLE older LOGIN SUPERUSER PASSWORD 'p'");
    with_rules(
        from,
        "hostssl weak reader all password\nhostssl older older all md5\nhostssl trusting reader all trust\n",
    );
    let plain = harness::cluster();
    source(plain, "behind", "", "CREATE TABLE t (v int); INSERT INTO t VALUES (7)");
    let proxy = stands_before(plain.port);
    let url = |port: u16, database: &str, query: &str| {
        let who =
            if database == "older" { "older:p".to_owned() } else { format!("{READER}:{READER_PASSWORD_ENCODED}") };
        format!("postgresql://{who}@127.0.0.1:{port}/{database}?{query}")
    };
    let required = "sslmode=require&channel_binding=require";
    let preferred = "sslmode=require&channel_binding=prefer";
    let sources = [
        ("required", url(from.port, "bound", required), json!({})),
        ("where-tls-is", url(from.port, "bound", "channel_binding=require"), json!({})),
        ("preferred", url(from.port, "bound", preferred), json!({})),
        ("disabled", url(from.port, "bound", "sslmode=require&channel_binding=disable"), json!({})),
        ("weak-preferred", url(from.port, "weak", preferred), json!({})),
        ("older-preferred", url(from.port, "older", preferred), json!({})),
        ("trusting-preferred", url(from.port, "trusting", preferred), json!({})),
        ("proxy-preferred", url(proxy, "behind", preferred), json!({})),
        ("weak", url(from.port, "weak", required), json!({})),
        ("older", url(from.port, "older", required), json!({})),
        ("trusting", url(from.port, "trusting", required), json!({})),
        ("proxy", url(proxy, "behind", required), json!({})),
        ("bare", url(plain.port, "behind", "channel_binding=require"), json!({})),
    ];
    let (bound, unbound) = sources.split_at(8);
    let refusing = Setup::on(plain, "clonebindno", unbound);
    for (name, ..) in unbound {
        refusing.refused(json!({"source": name}), "postgres_auth_failed", "channel_binding=require");
    }
    let setup = Setup::on(plain, "clonebind", bound);
    for (name, ..) in bound {
        let result = setup.cloned(json!({"source": name}));
        assert_eq!(setup.rows(&result["databaseName"], "SELECT v::text FROM t"), [["7"]], "{name}");
    }
}

#[test]
fn a_server_of_sandboxes_is_entered_by_bound_logins_alone_where_its_url_says_so() {
    let (from, into) = (harness::cluster(), encrypted());
    source(from, "for_bound", "", "CREATE TABLE t (v int); INSERT INTO t VALUES (7)");
    let sources = [("plain", super::reader_url(from, "for_bound"), json!({}))];
    let by = |cluster: &'static Cluster, port: u16, query: &str, prefix: &'static str| {
        let there = cluster.superuser_url();
        let over =
            there.replace(&format!(":{}/", cluster.port), &format!(":{port}/")).replace("sslmode=disable", query);
        Setup::by(cluster, &over, prefix, &sources)
    };
    for (query, prefix) in [
        ("sslmode=require&channel_binding=require", "bindrequire"),
        ("channel_binding=require", "bindwheretls"),
        ("sslmode=require&channel_binding=disable", "binddisable"),
    ] {
        let setup = by(into, into.port, query, prefix);
        let mask = json!([{"table": "t", "column": "v", "with": "constant", "value": "8"}]);
        let result = setup.cloned(json!({"source": "plain", "mask": mask}));
        let read = json!({"databaseId": result["databaseId"], "sql": "SELECT v FROM t", "readonly": true});
        let reply = Cli::new(&setup.home).call("run_sql", &read);
        assert_eq!(reply["result"]["resultSets"][0]["rows"], json!([[8]]), "{prefix}: {reply:#}");
        let asked = json!({"databaseId": result["databaseId"], "includeCredentials": true});
        let reply = Cli::new(&setup.home).call("get_connection_string", &asked);
        let url = reply["result"]["connectionString"].as_str().unwrap();
        let word = query.rsplit_once('=').unwrap().1;
        assert!(url.contains(&format!("channel_binding={word}")), "{prefix}");
    }
    // What stands before a server has another certificate than that, or the server has none.
    let proxy = stands_before(from.port);
    for (port, prefix) in [(proxy, "bindproxy"), (from.port, "bindbare")] {
        let setup = by(from, port, "channel_binding=require", prefix);
        let reply = Cli::new(&setup.home).call("create_database", &json!({}));
        let error = &reply["errors"][0];
        assert_eq!(error["code"], "postgres_auth_failed", "{prefix}: {reply:#}");
        assert!(error["message"].as_str().unwrap().contains("channel_binding=require"), "{prefix}: {reply:#}");
    }
    let setup = by(from, proxy, "sslmode=require", "bindoffered");
    let reply = Cli::new(&setup.home).call("create_database", &json!({}));
    assert_eq!(reply["ok"], true, "{reply:#}");
}
