//! Sources behind TLS: reached only as they prove who they are, with a CA of the operator's own.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};

use serde_json::json;

use super::{READER, READER_PASSWORD_ENCODED, Setup, rows, source};
use crate::harness::{self, Cluster};
use crate::program::{Cli, Transport};

/// Lets a server speak TLS with a certificate for `localhost`, and the reader in over TLS alone.
fn speak_tls(cluster: &Cluster) {
    let owner = fs::metadata(&cluster.data).unwrap();
    for (name, text) in
        [("server.crt", include_str!("../wire/tls/server.pem")), ("server.key", include_str!("../wire/tls/server.key"))]
    {
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
    speak_tls(&secured);
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
    refused("wrong-ca", "TLS handshake failed");
    refused("wrong-name", "TLS handshake failed");
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
