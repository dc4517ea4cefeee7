//! Logging in: roles, passwords, TLS.

use std::path::{Path, PathBuf};

use pgsandbox::engine::postgres::{
    Auth, ChannelBinding, Endpoint, Host, NetError, SandboxSession, SessionTarget, StatementCall, WireError,
};
use pgsandbox::model::{Code, Failure, Secret, TlsMode};

use super::cluster::{Cluster, call, run, target, value};

async fn refused(target: &SessionTarget) -> WireError {
    match SandboxSession::connect(target).await {
        Ok(session) => panic!("{session:?}"),
        Err(error) => error,
    }
}

#[tokio::test]
async fn a_refusal_says_why() {
    let cluster = Cluster::start().await;
    let owner = cluster.target("owner");

    let error = refused(&SessionTarget { password: Secret::new("wrong"), ..owner.clone() }).await;
    assert!(matches!(&error, WireError::Auth(e) if e.sqlstate() == "28P01"), "{error}");
    assert_eq!(Failure::from(error).code, Code::PostgresAuthFailed);

    let error = refused(&SessionTarget { user: "nobody".into(), ..owner.clone() }).await;
    assert!(matches!(&error, WireError::Auth(e) if e.sqlstate() == "28P01"), "{error}");

    let error = refused(&SessionTarget { database: "nowhere".into(), ..owner.clone() }).await;
    assert!(matches!(&error, WireError::Refused(e) if e.sqlstate() == "3D000"), "{error}");

    let options = vec![("no_such_setting".into(), "1".into())];
    let error = refused(&SessionTarget { options, ..owner.clone() }).await;
    assert!(matches!(&error, WireError::Refused(e) if e.sqlstate() == "42704"), "{error}");

    let mut admin = cluster.session("postgres").await;
    run(&mut admin, "ALTER ROLE owner CONNECTION LIMIT 1").await;
    let _held = cluster.session("owner").await;
    let error = refused(&owner).await;
    assert!(matches!(&error, WireError::Refused(e) if e.sqlstate() == "53300"), "{error}");
    assert_eq!(Failure::from(error).code, Code::Busy);

    run(&mut admin, "REVOKE CONNECT ON DATABASE box FROM PUBLIC").await;
    let error = refused(&cluster.target("reader")).await;
    assert!(matches!(&error, WireError::Refused(e) if e.sqlstate() == "42501"), "{error}");
}

#[tokio::test]
async fn a_nul_in_a_name_is_refused_before_anything_is_sent() {
    let cluster = Cluster::start().await;
    let error = refused(&SessionTarget { user: "owner\0database\0postgres".into(), ..cluster.target("owner") }).await;
    assert!(matches!(error, WireError::NotSendable(_)), "{error}");
}

#[tokio::test]
async fn a_server_that_trusts_anyone_proves_nothing() {
    let cluster = Cluster::start_with(&[], "local all reader trust\nlocal all owner password").await;
    // `start_with` waits for `owner`, which logs in by password: say so.
    let error = refused(&cluster.target("reader")).await;
    assert_eq!(error, WireError::AuthMethod("trust"));
    let reader = SessionTarget { auth: Auth::AsServerAsks, ..cluster.target("reader") };
    let mut session = SandboxSession::connect(&reader).await.unwrap();
    assert_eq!(value(&mut session, "SELECT current_user").await, "reader");

    let error = refused(&cluster.target("owner")).await;
    assert_eq!(error, WireError::AuthMethod("password"));
    let owner = SessionTarget { auth: Auth::AsServerAsks, ..cluster.target("owner") };
    let mut session = SandboxSession::connect(&owner).await.unwrap();
    assert_eq!(value(&mut session, "SELECT current_user").await, "owner", "over a socket nobody listens");
}

/// Files to trust. The certificates are valid for a hundred years, and their authorities' keys are gone.
struct Certificates {
    directory: tempfile::TempDir,
}

impl Certificates {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("ca"), include_str!("tls/ca.pem")).unwrap();
        std::fs::write(directory.path().join("other"), include_str!("tls/other-ca.pem")).unwrap();
        Self { directory }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}

fn over_tls(cluster: &Cluster, host: &str, tls: TlsMode, ca_file: Option<&Path>) -> SessionTarget {
    let port = cluster.tcp_port.unwrap();
    let ca_file = ca_file.map(Path::to_owned);
    let endpoint =
        Endpoint { host: Host::Tcp(host.into()), port, tls, ca_file, address: None, binding: ChannelBinding::Prefer };
    target(endpoint, "owner")
}

#[tokio::test]
async fn certificates_are_checked_as_the_mode_says() {
    let cluster = Cluster::start_with_tls().await;
    let certificates = Certificates::new();
    let (ca, other) = (certificates.path("ca"), certificates.path("other"));
    // The certificate is for `localhost`, signed by `ca`.
    let trusted = [
        ("127.0.0.1", TlsMode::Prefer, None),
        ("127.0.0.1", TlsMode::Prefer, Some(&other)),
        ("127.0.0.1", TlsMode::Require, None),
        ("127.0.0.1", TlsMode::Require, Some(&ca)),
        ("127.0.0.1", TlsMode::VerifyCa, Some(&ca)),
        ("localhost", TlsMode::VerifyFull, Some(&ca)),
    ];
    for (host, tls, ca_file) in trusted {
        let target = over_tls(&cluster, host, tls, ca_file.map(PathBuf::as_path));
        let mut session = SandboxSession::connect(&target).await.unwrap_or_else(|e| panic!("{host} {tls:?}: {e}"));
        let encrypted = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
        assert_eq!(value(&mut session, encrypted).await, "t", "{host} {tls:?}");
    }
    let distrusted = [
        ("127.0.0.1", TlsMode::Require, Some(&other)),
        ("127.0.0.1", TlsMode::VerifyCa, Some(&other)),
        ("127.0.0.1", TlsMode::VerifyFull, Some(&ca)),
        ("localhost", TlsMode::VerifyFull, Some(&other)),
        ("localhost", TlsMode::VerifyFull, None),
        ("localhost", TlsMode::VerifyCa, None),
    ];
    for (host, tls, ca_file) in distrusted {
        let error = refused(&over_tls(&cluster, host, tls, ca_file.map(PathBuf::as_path))).await;
        assert!(matches!(error, WireError::Net(NetError::Tls(_))), "{host} {tls:?}: {error}");
    }
    let error = refused(&over_tls(&cluster, "127.0.0.1", TlsMode::Disable, None)).await;
    assert!(matches!(&error, WireError::Auth(e) if e.sqlstate() == "28000"), "{error}");
}

#[tokio::test]
async fn calls_and_cancels_go_over_tls() {
    let cluster = Cluster::start_with_tls().await;
    let certificates = Certificates::new();
    let target = over_tls(&cluster, "localhost", TlsMode::VerifyFull, Some(&certificates.path("ca")));
    let mut session = SandboxSession::connect(&target).await.unwrap();
    let long = "x".repeat(900_000);
    let text = format!("SELECT length('{long}'), repeat('y', 1000) FROM generate_series(1, 200)");
    let set = session.execute(&call(&text)).await.unwrap();
    assert_eq!((set.rows.len(), set.rows[0][0].text()), (100, Some("900000")));
    run(&mut session, "CREATE TABLE t (n int)").await;
    let data = "1\n".repeat(500_000);
    let set = session.execute(&StatementCall { copy_in: Some(data.as_bytes()), ..call("COPY t FROM STDIN") }).await;
    assert_eq!(set.unwrap().affected, Some(500_000));

    run(&mut session, "SET statement_timeout = 0").await;
    let timeout = std::time::Duration::from_millis(100);
    let found = session.execute(&StatementCall { timeout, ..call("SELECT pg_sleep(600)") }).await;
    assert_eq!(found, Err(WireError::Timeout { ms: 100, stopped: true }));
}
