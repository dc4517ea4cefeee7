//! Forks, templates and resets as plans that fail or crash anywhere, and over real sandboxes.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use pgsandbox::admission::SystemReason;
use pgsandbox::model::{Code, Failure, Silent};
use pgsandbox::sandbox::{Core, CreateRequest, Created, Sandbox, Template, TemplateRequest};
use tokio_util::sync::CancellationToken;

use super::harness::block_on;
use super::toy_engine::{Ground, Script, any_permit, create, create_as, permit, request, upkeep};

mod postgres;
mod servers;

/// Long enough for any removal here; a removal that takes it is a failure.
const WAIT: Duration = Duration::from_secs(20);
/// More points than any scenario passes.
const POINTS_MAX: u64 = 200;

pub async fn fork(core: &Core, source: &Sandbox) -> Result<Created, Failure> {
    core.fork(&any_permit(), source.id, request(), Arc::new(Silent), CancellationToken::new()).await
}

pub async fn keep(core: &Core, source: &Sandbox, name: &str, replace: bool) -> Result<Template, Failure> {
    let request = TemplateRequest { name: name.to_owned(), replace, ..TemplateRequest::default() };
    core.create_template(&any_permit(), source.id, request, Arc::new(Silent), CancellationToken::new()).await
}

pub async fn from_template(core: &Core, name: &str) -> Result<Created, Failure> {
    let wish = CreateRequest { template: Some(name.to_owned()), ..request() };
    create_as(core, SystemReason::Recovery, wish).await
}

async fn only(core: &Core) -> Option<Sandbox> {
    core.list(&Default::default()).await.ok()?.databases.into_iter().next()
}

/// What policies know data by goes where the data goes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_keeps_the_labels_of_what_it_is_a_copy_of() {
    let ground = Ground::new();
    let core = ground.core().await;
    let labelled = |labels: &[(&str, &str)], template: Option<&str>| CreateRequest {
        labels: labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
        template: template.map(str::to_owned),
        ..request()
    };
    let shown = |sandbox: &Sandbox| sandbox.labels.iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>();
    let make = async |wish| create_as(&core, SystemReason::Recovery, wish).await;
    let copy = async |source: &Sandbox, wish| {
        core.fork(&any_permit(), source.id, wish, Arc::new(Silent), CancellationToken::new()).await
    };
    let source = make(labelled(&[("data", "production"), ("task", "a")], None)).await.unwrap().sandbox;
    let forked = copy(&source, labelled(&[("more", "x"), ("task", "a")], None)).await.unwrap().sandbox;
    assert_eq!(shown(&forked), ["data=production", "more=x", "task=a"]);
    let refused = copy(&source, labelled(&[("data", "mine")], None)).await.unwrap_err();
    assert_eq!(refused.code, Code::InvalidArguments);
    assert!(refused.message.contains("label `data` of what is copied is `production`"), "{}", refused.message);
    assert!(core.foresee_fork(any_permit().grant(), source.id, labelled(&[("data", "mine")], None)).await.is_err());

    keep(&core, &forked, "base", false).await.unwrap();
    let again = make(labelled(&[("last", "y")], Some("base"))).await.unwrap().sandbox;
    assert_eq!(shown(&again), ["data=production", "last=y", "more=x", "task=a"]);
    let refused = make(labelled(&[("more", "z")], Some("base"))).await.unwrap_err();
    assert_eq!(refused.code, Code::InvalidArguments);
    // With those of the source there are too many.
    let many: Vec<String> = (0..30).map(|n| format!("k{n}")).collect();
    let many: Vec<(&str, &str)> = many.iter().map(|key| (key.as_str(), "")).collect();
    assert_eq!(copy(&source, labelled(&many, None)).await.unwrap().sandbox.labels.len(), 32);
    assert_eq!(copy(&forked, labelled(&many, None)).await.unwrap_err().code, Code::InvalidArguments);
}

/// Lives without faults, tidying up; nothing may be left unfinished then.
fn recover(ground: &Arc<Ground>) {
    let ended = ground.live(Script::fail_at(u64::MAX), |ground, core| async move {
        ground.time_passes().await;
        upkeep(&core).await.unwrap();
        upkeep(&core).await.unwrap();
    });
    assert!(ended);
}

fn clear(ground: &Arc<Ground>) {
    assert!(ground.live(Script::fail_at(u64::MAX), |_, core| async move {
        for template in core.templates(&any_permit(), None, None).await.unwrap().templates {
            core.delete_template(&any_permit(), &template.name).await.unwrap();
        }
        for sandbox in core.list(&Default::default()).await.unwrap().databases {
            core.delete(&any_permit(), sandbox.id, Some(WAIT)).await.unwrap();
        }
    }));
    block_on(ground.check_settled(0, "cleared"));
}

/// Plays an act after a sandbox and, if wanted, a template of it were made: with each point failing, or crashing, in turn.
/// It succeeds with `made` sandboxes and templates; if it does not, there are so many as `left` has.
fn everywhere<F: Future<Output = bool> + Send + 'static>(
    templates: bool,
    act: fn(Core) -> F,
    made: usize,
    left: &[usize],
) {
    let ground = Arc::new(Ground::new());
    for crash in [false, true] {
        for at in 0..=POINTS_MAX {
            assert!(at < POINTS_MAX, "the act passes more than {POINTS_MAX} points");
            assert!(ground.live(Script::fail_at(u64::MAX), move |_, core| async move {
                let sandbox = create(&core).await.unwrap();
                if templates {
                    keep(&core, &sandbox, "base", false).await.unwrap();
                }
            }));
            let script = if crash { Script::crash_at(at) } else { Script::fail_at(at) };
            let outcome = Arc::new(Mutex::new(None));
            let for_act = Arc::clone(&outcome);
            ground.live(script.clone(), move |_, core| async move {
                let done = act(core).await;
                *for_act.lock().unwrap() = Some(done);
            });
            let context =
                format!("{} at {at}: {:?}", if crash { "crashed" } else { "failed" }, script.point.lock().unwrap());
            recover(&ground);
            let live = block_on(ground.count("select count(*) from pgsandbox.sandboxes where state = 'ready'"));
            let live = usize::try_from(live).unwrap();
            let succeeded = *outcome.lock().unwrap() == Some(true);
            assert!(
                if succeeded { live == made } else { left.contains(&live) || live == made },
                "{live} live: {context}"
            );
            block_on(ground.check_settled(live, &context));
            clear(&ground);
            if !script.fired() {
                assert!(succeeded && at > 5, "{context}");
                break;
            }
        }
    }
}

#[test]
fn a_fork_that_fails_or_crashes_anywhere_leaves_its_source_alone() {
    everywhere(
        false,
        |core| async move {
            let Some(source) = only(&core).await else { return false };
            fork(&core, &source).await.is_ok()
        },
        2,
        &[1],
    );
}

#[test]
fn a_template_that_fails_or_crashes_anywhere_leaves_nothing() {
    everywhere(
        false,
        |core| async move {
            let Some(source) = only(&core).await else { return false };
            keep(&core, &source, "base", false).await.is_ok()
        },
        2,
        &[1],
    );
}

#[test]
fn a_template_is_there_until_the_one_that_replaces_it_is_ready() {
    everywhere(
        true,
        |core| async move {
            let Some(source) = only(&core).await else { return false };
            keep(&core, &source, "base", true).await.is_ok()
        },
        2,
        &[2],
    );
}

#[test]
fn a_sandbox_from_a_template_that_fails_or_crashes_anywhere_leaves_the_template_alone() {
    everywhere(true, |core| async move { from_template(&core, "base").await.is_ok() }, 3, &[2]);
}

#[test]
fn a_reset_that_fails_or_crashes_anywhere_leaves_a_whole_sandbox_or_none() {
    everywhere(
        false,
        |core| async move {
            let Some(sandbox) = only(&core).await else { return false };
            core.reset(&any_permit(), sandbox.id, Arc::new(Silent)).await.is_ok()
        },
        1,
        &[0, 1],
    );
}

#[test]
fn a_template_is_its_owners_alone_and_no_sandbox() {
    let ground = Arc::new(Ground::new());
    assert!(ground.live(Script::fail_at(u64::MAX), |ground, core| async move {
        let sandbox = create(&core).await.unwrap();
        let template = keep(&core, &sandbox, "base", false).await.unwrap();
        assert_eq!(keep(&core, &sandbox, "base", false).await.unwrap_err().code, Code::InvalidArguments);
        for bad in ["", "a b", "x'; drop", &"n".repeat(81)] {
            assert_eq!(keep(&core, &sandbox, bad, false).await.unwrap_err().code, Code::InvalidArtifactName, "{bad}");
        }
        // Every role of the server sees what its databases are called, and not what a template is.
        for name in [&template.sandbox.names.database, &template.sandbox.names.owner_role] {
            assert!(!name.contains("base") && name.contains(&template.sandbox.id.short()), "{name}");
        }
        // As a sandbox it is not there.
        let row = &template.sandbox;
        let by_name =
            pgsandbox::sandbox::Selector { database_name: Some(row.names.database.clone()), ..Default::default() };
        let by_id = pgsandbox::sandbox::Selector { database_id: Some(row.id.to_string()), ..Default::default() };
        for selector in [by_name, by_id] {
            assert_eq!(core.resolve(&selector).await.unwrap_err().code, Code::DatabaseNotFound);
        }
        let databases = core.list(&Default::default()).await.unwrap().databases;
        assert_eq!(databases.iter().map(|s| s.id).collect::<Vec<_>>(), [sandbox.id]);
        let (usage, _) = core.usage("local", &sandbox.owner, None).await.unwrap();
        assert_eq!(usage.live, 1);
        // Time does not end it.
        ground.all_expire().await;
        ground
            .sql("update pgsandbox.sandboxes set expires_at = now() + interval '1 day' where kind = 'template'")
            .await;
        upkeep(&core).await.unwrap();
        assert_eq!(core.templates(&any_permit(), None, None).await.unwrap().templates.len(), 1);
        // Another's is another's.
        let stranger = permit(SystemReason::Pool);
        assert!(core.templates(&stranger, None, None).await.unwrap().templates.is_empty());
        let gone = core.delete_template(&stranger, "base").await.unwrap_err();
        assert_eq!((gone.code, gone.allowed), (Code::TemplateNotFound, Vec::new()));
        // Its source is gone, and it can be used.
        let made = from_template(&core, "base").await.unwrap().sandbox;
        assert_eq!(made.source.as_ref().map(|source| source.name.as_str()), Some("base"));
        core.reset(&any_permit(), made.id, Arc::new(Silent)).await.unwrap();
        core.delete_template(&any_permit(), "base").await.unwrap();
        let gone = core.reset(&any_permit(), made.id, Arc::new(Silent)).await.unwrap_err();
        assert_eq!(gone.code, Code::TemplateNotFound, "{gone}");
        assert_eq!(from_template(&core, "base").await.unwrap_err().code, Code::TemplateNotFound);
    }));
}

#[test]
fn templates_are_counted_and_their_bytes_too() {
    let ground = Arc::new(Ground::new());
    assert!(ground.live(Script::fail_at(u64::MAX), |ground, core| async move {
        let sandbox = create(&core).await.unwrap();
        for n in 0..32 {
            keep(&core, &sandbox, &format!("n{n}"), false).await.unwrap();
        }
        assert_eq!(keep(&core, &sandbox, "more", false).await.unwrap_err().code, Code::QuotaExceeded);
        keep(&core, &sandbox, "n0", true).await.unwrap();
        core.delete_template(&any_permit(), "n1").await.unwrap();
        // A toy's database holds 1000 bytes; there are 31 templates.
        let held = |bytes: i64| format!("update pgsandbox.sandboxes set bytes = {bytes} where template_name = 'n2'");
        ground.sql(&held((16 << 30) - 31_000 + 1)).await;
        assert_eq!(keep(&core, &sandbox, "n1", false).await.unwrap_err().code, Code::QuotaExceeded);
        ground.sql(&held((16 << 30) - 31_000)).await;
        keep(&core, &sandbox, "n1", false).await.unwrap();
    }));
}
