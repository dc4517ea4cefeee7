//! Sources behind TLS: reached only as they prove who they are, with a CA of the operator's own.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};

use serde_json::json;

use super::{READER, READER_PASSWORD_ENCODED, Setup, rows, source};
use crate::harness::{self, Cluster};
use crate::program::{Cli, Transport};

/// Certificates for `localhost` with their keys: signed by `ca.pem`, and by itself.
const SIGNED: [&str; 2] = [include_str!("../wire/tls/server.pem"), include_str!("../wire/tls/server.key")];
const SELF_SIGNED: [&str; 2] =
    [include_str!("../wire/tls/self-signed.pem"), include_str!("../wire/tls/self-signed.key")];

/// Lets a server speak TLS with a certificate, and the reader in over TLS alone.
fn speak_tls(cluster: &Cluster, [certificate, key]: [&str; 2]) {
    let owner = fs::metadata(&cluster.data).unwrap();
    for (name, text) in [("server.crt", certificate), ("server.key", key)] {
        let path = cluster.data.join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        chown(&path, Some(owner.uid()), Some(owner.gid())).unwrap();
    }
    let rules = cluster.data.join("pg_hba.conf");
    let before = fs::read_to_string(&rules).unwrap();
    fs::write(&rules, format!("hostnossl all {READER} all reject\n{before}")).unwrap();
    rows(cluster, "postgres", "ALTER SYSTEM SET ssl = on");
    rows(cluster, "postgres", "SELECT pg_reload_conf()");
}

#[test]
fn a_source_behind_tls_is_cloned_if_its_certificate_is_the_right_one_and_not_otherwise() {
    let secured = harness::own_cluster();
    source(&secured, "guarded", "", "CREATE TABLE t (v int); INSERT INTO t SELECT generate_series(1, 10)");
    speak_tls(&secured, SIGNED);
    let files = harness::temp_dir();
    let file = |name: &str, text: &str| {
        let path = files.path().join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let right = file("ca.pem", include_str!("../wire/tls/ca.pem"));
    let wrong = file("other-ca.pem", include_str!("../wire/tls/other-ca.pem"));
    let url = |host: &str, tls: &str| {
        format!("postgresql://{READER}:{READER_PASSWORD_ENCODED}@{host}:{}/guarded?{tls}", secured.port)
    };
    let full = |host: &str, ca: &str| url(host, &format!("sslmode=verify-full&sslrootcert={ca}"));
    let sources = [
        ("right", full("localhost", &right), json!({})),
        ("wrong-ca", full("localhost", &wrong), json!({})),
        ("wrong-name", full("127.0.0.1", &right), json!({})),
        ("any-name", url("127.0.0.1", &format!("sslmode=verify-ca&sslrootcert={right}")), json!({})),
        ("no-file", full("localhost", "/nowhere/ca.pem"), json!({})),
        ("unchecked", url("localhost", "sslmode=require"), json!({})),
        ("clear", url("localhost", "sslmode=disable"), json!({})),
    ];
    let setup = Setup::on(harness::cluster(), "clonetls", &sources);
    let setup = setup.under("{ allow = [{ name = \"*\" }] }");
    let result = setup.cloned(json!({"source": "right"}));
    assert_eq!(result["verification"]["rows"], 10, "{result:#}");
    setup.cloned(json!({"source": "any-name"}));
    setup.cloned(json!({"source": "unchecked"}));
    for made in Cli::new(&setup.home).call("list_databases", &json!({}))["result"]["databases"].as_array().unwrap() {
        let of = json!({"databaseId": made["databaseId"], "wait": true});
        assert_eq!(Cli::new(&setup.home).call("delete_database", &of)["ok"], true);
    }
    let refused = |name: &str, says: &str| {
        setup.refused(json!({"source": name}), "postgres_connection_failed", says);
    };
    refused("wrong-ca", "signed by nobody who is trusted");
    refused("wrong-name", "not for this host, but for `localhost`");
    refused("no-file", "cannot be used");
    let error = setup.refused(json!({"source": "clear"}), "postgres_auth_failed", "does not accept the credentials");
    assert_eq!(error["sqlstate"], "28000", "{error:#}");

    // A policy that wants to know who answers does not take less.
    let setup = setup.under("{ allow = [{ name = \"*\", tls = \"verify-full\" }] }");
    for name in ["any-name", "unchecked", "clear"] {
        let error = setup.refused(json!({"source": name}), "denied", "verify-full");
        assert_eq!((&error["policy"], &error["policyCode"]), (&json!("clone-source"), &json!("tls_required")));
    }
    setup.cloned(json!({"source": "right"}));
}

#[test]
fn a_source_whose_certificate_signed_itself_is_cloned_where_sslrootcert_names_that_very_certificate() {
    let secured = harness::own_cluster();
    source(&secured, "selfsigned", "", "CREATE TABLE t (v int); INSERT INTO t VALUES (7)");
    speak_tls(&secured, SELF_SIGNED);
    let files = harness::temp_dir();
    let file = |name: &str, text: &str| {
        let path = files.path().join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let own = file("own.pem", SELF_SIGNED[0]);
    let another = file("another.pem", include_str!("../wire/tls/self-signed-other.pem"));
    let several = file("several.pem", &[include_str!("../wire/tls/ca.pem"), SELF_SIGNED[0]].concat());
    let url = |host: &str, mode: &str, ca: &str| {
        let port = secured.port;
        format!(
            "postgresql://{READER}:{READER_PASSWORD_ENCODED}@{host}:{port}/selfsigned?sslmode={mode}&sslrootcert={ca}"
        )
    };
    let sources = [
        ("full", url("localhost", "verify-full", &own), json!({})),
        ("ca", url("127.0.0.1", "verify-ca", &own), json!({})),
        ("require", url("127.0.0.1", "require", &several), json!({})),
        ("wrong-name", url("127.0.0.1", "verify-full", &own), json!({})),
        ("another", url("localhost", "verify-full", &another), json!({})),
        ("another-ca", url("localhost", "verify-ca", &another), json!({})),
    ];
    let setup = Setup::on(harness::cluster(), "cloneself", &sources);
    let refused = |name: &str, says: &str, hint: &str| {
        let error = setup.refused(json!({"source": name}), "postgres_connection_failed", says);
        assert_eq!(error["retryable"], false, "{error:#}");
        assert!(error["hint"].as_str().unwrap().contains(hint), "{error:#}");
    };
    refused("wrong-name", "not for this host", "verify-ca");
    refused("another", "authority's own", "sslrootcert");
    refused("another-ca", "authority's own", "sslrootcert");
    for name in ["full", "ca", "require"] {
        let result = setup.cloned(json!({"source": name}));
        assert_eq!(setup.rows(&result["databaseName"], "SELECT v::text FROM t"), [["7"]], "{name}");
    }
}
