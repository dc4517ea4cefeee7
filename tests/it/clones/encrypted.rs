//! Sources and servers behind TLS, whose roles have passwords of Postgres' usual kind: by every `sslmode`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::json;

use super::{READER, READER_PASSWORD_ENCODED, Setup, rows, source};
use crate::harness::{self, Cluster};

/// A server that lets nobody but the superuser in without TLS. Its certificate is for `localhost`.
pub(super) fn encrypted() -> &'static Cluster {
    let files = harness::temp_dir().keep();
    for (name, text) in
        [("server.pem", include_str!("../wire/tls/server.pem")), ("server.key", include_str!("../wire/tls/server.key"))]
    {
        fs::write(files.join(name), text).unwrap();
        fs::set_permissions(files.join(name), fs::Permissions::from_mode(0o600)).unwrap();
    }
    harness::give_away(&files);
    let (certificate, key) = (files.join("server.pem"), files.join("server.key"));
    let settings = format!("-c ssl=on -c ssl_cert_file={} -c ssl_key_file={}", certificate.display(), key.display());
    let cluster = Box::leak(Box::new(harness::own_cluster_with(&settings)));
    let rules = "hostnossl all harness 127.0.0.1/32 scram-sha-256\nhostnossl all all all reject\n\
                 hostssl all all all scram-sha-256\n";
    fs::write(cluster.data.join("pg_hba.conf"), rules).unwrap();
    rows(cluster, "postgres", "SELECT pg_reload_conf()");
    cluster
}

/// The ways to the server that must work, as what follows `?` in a URL with its host.
fn ways() -> [(&'static str, String); 4] {
    let authority = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/wire/tls/ca.pem");
    let trusted = |mode: &str| format!("sslmode={mode}&sslrootcert={}", authority.display());
    [
        ("127.0.0.1", "sslmode=require".to_owned()),
        ("127.0.0.1", "sslmode=prefer".to_owned()),
        ("127.0.0.1", trusted("verify-ca")),
        ("localhost", trusted("verify-full")),
    ]
}

#[test]
fn a_source_behind_tls_is_cloned_by_every_sslmode() {
    let from = encrypted();
    source(from, "sealed", "", "CREATE TABLE t (v int); INSERT INTO t VALUES (7)");
    let ways = ways();
    let url = |host: &str, query: &str| {
        format!("postgresql://{READER}:{READER_PASSWORD_ENCODED}@{host}:{}/sealed?{query}", from.port)
    };
    let names = ["require", "prefer", "ca", "full"];
    let mut sources: Vec<_> =
        names.iter().zip(&ways).map(|(name, (host, query))| (*name, url(host, query), json!({}))).collect();
    sources.push(("bare", url("127.0.0.1", "sslmode=disable"), json!({})));
    sources.push(("stranger", url("127.0.0.1", &ways[3].1), json!({})));
    let setup = Setup::on(harness::cluster(), "clonetls", &sources);
    for name in names {
        let result = setup.cloned(json!({"source": name}));
        assert_eq!(setup.rows(&result["databaseName"], "SELECT v::text FROM t"), [["7"]], "{name}");
        // Kept as an archive meanwhile, and restored in two parts.
        let mask = json!([{"table": "t", "column": "v", "with": "constant", "value": "8"}]);
        let result = setup.cloned(json!({"source": name, "mask": mask}));
        assert_eq!(setup.rows(&result["databaseName"], "SELECT v::text FROM t"), [["8"]], "{name}");
    }
    for name in ["bare", "stranger"] {
        let reply = setup.clone(json!({"source": name}));
        let code = reply["errors"][0]["code"].as_str().unwrap();
        assert!(matches!(code, "postgres_auth_failed" | "postgres_connection_failed"), "{name}: {reply:#}");
    }
}

#[test]
fn a_sandbox_on_a_server_behind_tls_is_filled_by_every_sslmode() {
    let (from, into) = (harness::cluster(), encrypted());
    source(from, "for_sealed", "", "CREATE TABLE t (v int); INSERT INTO t VALUES (7)");
    for ((host, query), prefix) in ways().iter().zip(["ctlsrequire", "ctlsprefer", "ctlsca", "ctlsfull"]) {
        let setup = Setup::on(into, prefix, &[("plain", super::reader_url(from, "for_sealed"), json!({}))]);
        let path = setup.home.path().join("config.json");
        let there = into.superuser_url();
        let over = there.replace("127.0.0.1", host).replace("sslmode=disable", query);
        let text = fs::read_to_string(&path).unwrap().replace(&there, &over);
        assert!(text.contains(query.as_str()));
        fs::write(&path, text).unwrap();
        let result = setup.cloned(json!({"source": "plain"}));
        assert_eq!(setup.rows(&result["databaseName"], "SELECT v::text FROM t"), [["7"]], "{prefix}");
    }
}
