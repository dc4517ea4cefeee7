//! What the lifecycle core lists, tries and reads at most. Rows are written by hand where making them would take all day.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pgsandbox::model::{Code, Failure, SandboxId};
use pgsandbox::sandbox::{CleanupFilter, Profile, ProfileSettings};
use pgsandbox::store::{Find, Inert, Sessions as _, StoreError};

use crate::toy_engine::{Ground, Setup, Toy, any_permit, create, settings, upkeep};

/// Writes rows of sandboxes that nobody has made, with names that fit their ids; returns what selects their ids.
async fn write(ground: &Ground, count: usize, state: &str, labels: &str, expires: &str) {
    ground
        .sql(&format!(
            "with ids as (select gen_random_uuid() as id, g from generate_series(1, {count}) g),
                  named as (select id, g, 'toy_x_' || left(replace(id::text, '-', ''), 10) as name from ids)
             insert into pgsandbox.sandboxes
                 (id, prefix, engine, database_name, owner_role, readonly_role, owner_sealed, readonly_sealed, owner,
                  subject, labels, origin, extensions, state, created_at, expires_at)
             select id, 'toy', 'toy', name, name || '_role', name || '_ro', '', '', 'by hand', 'by hand', '{labels}',
                 'empty', '{{}}', '{state}', now() - interval '1 day' + g * interval '1 ms',
                 now() + interval '{expires}' + g * interval '1 ms'
             from named"
        ))
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damage_and_stuck_removals_are_shown_up_to_their_bounds() {
    const SHOWN: usize = 50;
    let ground = Ground::new();
    let core = ground.core().await;
    upkeep(&core).await.unwrap();
    for (more, shown) in [(SHOWN - 1, SHOWN - 1), (1, SHOWN), (1, SHOWN)] {
        // Rows that cannot be read, rows whose state has no plan, and removals that were tried in vain.
        write(&ground, more, "ready", "[]", "1 hour").await;
        write(&ground, more, "creating", "{}", "1 hour").await;
        write(&ground, more, "deleting", "{\"stuck\": \"x\"}", "1 hour").await;
        ground
            .sql(
                "insert into pgsandbox.plans (id, sandbox_id, kind, state, request_id, attempts, next_attempt_at)
                 select gen_random_uuid(), id, 'delete', 'running', gen_random_uuid(), 3, 'infinity'
                 from pgsandbox.sandboxes b where state = 'deleting'
                   and not exists (select from pgsandbox.plans p where p.sandbox_id = b.id)",
            )
            .await;
        let orphans = core.orphans("local").await.unwrap();
        let astray = orphans.damaged.iter().filter(|row| row.fault.contains("no plan")).count();
        assert_eq!((astray, orphans.damaged.len(), orphans.stuck.len()), (shown, 2 * shown, shown));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_cleanup_takes_up_ten_thousand_and_the_next_goes_on() {
    const TAKEN: usize = 100 * 100;
    let ground = Ground::new();
    let core = ground.core().await;
    upkeep(&core).await.unwrap();
    for (more, taken) in [(TAKEN - 1, TAKEN - 1), (1, TAKEN), (1, TAKEN)] {
        write(&ground, more, "ready", "{}", "-1 hour").await;
        let report = core.cleanup(&any_permit(), &CleanupFilter::default(), true).await.unwrap();
        assert_eq!(report.selected.len(), taken);
    }
    // All of them but the ones that were made last, which are the next one's.
    ground
        .sql("delete from pgsandbox.sandboxes where created_at < now() - interval '1 day' + interval '9995 ms'")
        .await;
    let left = ground.count("select count(*) from pgsandbox.sandboxes").await;
    let report = core.cleanup(&any_permit(), &CleanupFilter::default(), true).await.unwrap();
    assert_eq!(i64::try_from(report.selected.len()).unwrap(), left);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_that_is_taken_is_tried_anew_twice() {
    for (taken, expected) in [(1, None), (2, None), (3, Some(Code::Internal))] {
        let ground = Ground::new();
        let core = ground.core().await;
        upkeep(&core).await.unwrap();
        ground
            .sql(&format!(
                "create sequence pgsandbox.tries;
                 create function pgsandbox.taken() returns trigger language plpgsql as $$ begin
                     if nextval('pgsandbox.tries') <= {taken} then raise unique_violation; end if;
                     return new; end $$;
                 create trigger taken before insert on pgsandbox.sandboxes for each row execute function pgsandbox.taken()"
            ))
            .await;
        let made = create(&core).await;
        assert_eq!(made.as_ref().err().map(|failure| failure.code), expected, "{taken}: {made:?}");
        ground.check_settled(usize::from(made.is_ok()), &format!("{taken} names were taken")).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn times_are_read_up_to_the_end_of_the_year_9999() {
    let ground = Ground::new();
    let core = ground.core().await;
    let made = create(&core).await.unwrap();
    let store = ground.store();
    for (end, fits) in [
        ("9999-12-31 23:59:59.998Z", true),
        ("9999-12-31 23:59:59.999Z", true),
        ("10000-01-01 00:00:00Z", false),
        ("10000-01-01 00:00:00.001Z", false),
    ] {
        ground.sql(&format!("update pgsandbox.sandboxes set expires_at = '{end}'")).await;
        let found = store.find(&Find::Id(made.id)).await;
        match &found {
            Ok(found) => assert_eq!((found.as_ref().map(|found| found.id), fits), (Some(made.id), true), "{end}"),
            Err(StoreError::Damaged { sandbox, .. }) => assert_eq!((*sandbox, fits), (made.id, false), "{end}"),
            Err(error) => panic!("{end}: {error}"),
        }
        // What is read is listed, and what is not is told as damaged: never both, and never neither.
        let listed: Vec<SandboxId> =
            core.list(&Default::default()).await.unwrap().databases.into_iter().map(|sandbox| sandbox.id).collect();
        let damaged = store.damage().await.unwrap().len();
        assert_eq!((listed, damaged), if fits { (vec![made.id], 0) } else { (Vec::new(), 1) }, "{end}");
    }
}

#[test]
fn no_profile_lets_live_for_longer_than_a_hundred_years() {
    const CEILING: u64 = 100 * 366 * 24 * 60;
    let profile = |max_ttl_minutes| -> Result<Profile, Failure> {
        let ground = Ground::new();
        let engine = Toy { world: ground.world.clone(), points: Arc::new(Inert) };
        let settings = ProfileSettings { max_ttl_minutes, default_ttl_minutes: 1, ..settings() };
        let sessions = Arc::new(ground.sessions());
        Profile::with_points("local", settings, Arc::new(engine), sessions, Setup::default().points)
    };
    for (minutes, fits) in [(0, false), (1, true), (CEILING - 1, true), (CEILING, true), (CEILING + 1, false)] {
        let code = profile(minutes).err().map(|failure| failure.code);
        assert_eq!(code, (!fits).then_some(Code::InvalidConfiguration), "{minutes}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_that_nobody_uses_are_kept_up_to_a_bound() {
    const KEPT: i64 = 4;
    for (used, kept) in [(KEPT - 1, KEPT - 1), (KEPT, KEPT), (KEPT + 1, KEPT)] {
        let ground = Ground::new();
        let sessions = ground.sessions();
        let mut out = Vec::new();
        for _ in 0..used {
            out.push(sessions.session().await.unwrap());
        }
        drop(out);
        check_open(&ground, kept, &format!("of {used}")).await;
        let again = sessions.session().await.unwrap();
        check_open(&ground, kept, "one is used again").await;
        drop(again);
    }
}

/// Expects that so many sessions are open once those have gone that are closed, and those that counted.
async fn check_open(ground: &Ground, expected: i64, what: &str) {
    let open = "select count(*) from pg_stat_activity
                where datname = current_database() and backend_type = 'client backend' and pid <> pg_backend_pid()";
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let seen = ground.count(open).await;
        if seen == expected {
            return;
        }
        assert!(Instant::now() < until, "{what}: {seen} are open, not {expected}");
    }
}
