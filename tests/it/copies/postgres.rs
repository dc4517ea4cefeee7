//! Copies over the Postgres engine: sessions of ours are no obstacle, those of others are told.

use std::sync::Arc;
use std::time::Duration;

use pgsandbox::model::{Check, CheckStatus, Code, CredentialAccess, Silent};
use pgsandbox::store::Inert;

use super::super::harness::cluster;
use super::super::lifecycle_postgres::{core, run};
use super::super::toy_engine::{any_permit, create};
use super::{fork, from_template, keep};

const WAIT: Duration = Duration::from_secs(60);

fn failed(checks: &[Check]) -> Vec<&Check> {
    checks.iter().filter(|check| check.status == CheckStatus::Fail).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_in_use_by_calls_is_forked_kept_and_reset() {
    let cluster = cluster();
    let keys = tempfile::tempdir().unwrap();
    let core = core(&cluster.superuser_url(), &keys, None, Arc::new(Inert)).await;
    let source = create(&core).await.unwrap();
    let session = async |id| core.session(&any_permit(), id, CredentialAccess::Owner).await.unwrap();
    let rows = async |id| {
        let mut session = session(id).await;
        let set = run(&mut session, "select count(*) from t").await;
        format!("{:?}", set.rows)
    };
    let mut writing = session(source.id).await;
    run(&mut writing, "create table t as select generate_series(1, 10) n").await;
    drop(writing);
    // The session waits for the next call, and is closed for the copy; two at once share that.
    let (one, two) = tokio::join!(fork(&core, &source), fork(&core, &source));
    let (one, two) = (one.unwrap().sandbox, two.unwrap().sandbox);
    let ten = rows(source.id).await;
    assert_eq!(rows(one.id).await, ten);
    assert_eq!(rows(two.id).await, ten);
    for id in [source.id, one.id, two.id] {
        let checks = core.verify(&any_permit(), id).await.unwrap();
        assert!(failed(&checks).is_empty(), "{:?}", failed(&checks));
    }
    let template = keep(&core, &source, "ten", false).await.unwrap();
    assert!(template.sandbox.bytes.is_some_and(|bytes| bytes > 1 << 20));
    assert!(template.extensions.iter().any(|(name, _)| name == "plpgsql"));
    let mut writing = session(one.id).await;
    run(&mut writing, "drop table t").await;
    drop(writing);
    let before = core.credentials(&any_permit(), one.id, CredentialAccess::Owner).await.unwrap();
    let reset = core.reset(&any_permit(), one.id, Arc::new(Silent)).await.unwrap();
    assert_eq!((reset.id, &reset.names, reset.expires_at), (one.id, &one.names, one.expires_at));
    let after = core.credentials(&any_permit(), one.id, CredentialAccess::Owner).await.unwrap();
    assert_eq!((before.0, before.1.expose()), (after.0, after.1.expose()));
    assert_eq!(rows(one.id).await, ten);
    // Sessions of others are told, and nothing is begun.
    let (info, password) = core.credentials(&any_permit(), source.id, CredentialAccess::Owner).await.unwrap();
    let foreign = cluster.connect(&info.user, password.expose(), &info.database).await.unwrap();
    let busy = fork(&core, &source).await.unwrap_err();
    assert_eq!(busy.code, Code::Busy, "{busy}");
    assert!(busy.message.contains("1 other session"), "{busy}");
    drop(foreign);
    // So is a call that does not end.
    let under_way = session(source.id).await;
    assert_eq!(fork(&core, &source).await.unwrap_err().code, Code::Busy);
    drop(under_way);
    core.delete(&any_permit(), source.id, Some(WAIT)).await.unwrap();
    let gone = core.reset(&any_permit(), two.id, Arc::new(Silent)).await.unwrap_err();
    assert_eq!(gone.code, Code::TemplateNotFound, "{gone}");
    assert_eq!(rows(two.id).await, ten, "it is as it was");
    let made = from_template(&core, "ten").await.unwrap().sandbox;
    assert_eq!(rows(made.id).await, ten);
    core.delete_template(&any_permit(), "ten").await.unwrap();
    for id in [one.id, two.id, made.id] {
        core.delete(&any_permit(), id, Some(WAIT)).await.unwrap();
    }
    assert!(core.drain(WAIT).await);
}
