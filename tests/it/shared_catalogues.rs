//! The catalogues that all databases of a managed server share: what sandboxes write there counts for none of them, and is held
//! small all the same.

use std::time::Instant;

use serde_json::{Value, json};
use tokio_postgres::Client;

use super::harness::block_on;
use super::pressure::{WAIT, admin, log_in, made, url_of};
use super::program::{Home, Stdio, Transport as _};

/// More than lies there on any server of honest sandboxes.
const SMALL: i64 = 4 << 20;
/// What lies in all shared catalogues and beside them.
const SIZE: &str = "SELECT sum(pg_relation_size(oid) + CASE WHEN reltoastrelid = 0 THEN 0 ELSE pg_relation_size(reltoastrelid) END)::int8 \
    FROM pg_class WHERE relisshared AND relkind = 'r'";

/// Writes some MB of text that cannot be packed by a statement that is put together of it.
fn writes(statement: &str) -> String {
    format!(
        "DO $$ DECLARE t text; BEGIN SELECT string_agg(md5(random()::text), '') INTO t FROM generate_series(1, 350000); \
         FOR i IN 1..2 LOOP EXECUTE format({statement}, i || t); COMMIT; END LOOP; END $$"
    )
}

async fn size(admin: &Client) -> i64 {
    admin.query_one(SIZE, &[]).await.unwrap().get(0)
}

async fn settings(admin: &Client) -> Vec<String> {
    let sql = "SELECT s::text FROM pg_db_role_setting s ORDER BY 1";
    admin.query(sql, &[]).await.unwrap().iter().map(|row| row.get(0)).collect()
}

#[test]
fn what_a_sandbox_writes_to_shared_catalogues_is_held_small_and_honest_words_stay() {
    let home = Home::fresh().with("PGSANDBOX_TEST_INTERVAL_MS", "1000");
    let mut server = Stdio::start(&home);
    let mut make = |name: &str| {
        let reply = server.call("create_database", &json!({"nameHint": name}));
        made(&reply);
        let result = reply["result"].clone();
        let url = url_of(&mut server, &result["databaseId"]);
        (result["databaseId"].clone(), result["databaseName"].as_str().unwrap().to_owned(), url)
    };
    let (commenter, setter, honest) = (make("commenter"), make("setter"), make("honest"));
    block_on(async {
        let admin = admin(&home).await;
        let works = log_in(&honest.2).await.unwrap();
        let words =
            format!("COMMENT ON DATABASE {0} IS 'what it is for'; ALTER DATABASE {0} SET work_mem = '5MB'", honest.1);
        works.batch_execute(&words).await.unwrap();
        works.batch_execute("CREATE TEMPORARY TABLE work (n int)").await.unwrap();
        let before = settings(&admin).await;

        // Whoever looks at it all the while keeps what is gone.
        let looks = log_in(&commenter.2).await.unwrap();
        looks.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1").await.unwrap();
        let comments = log_in(&commenter.2).await.unwrap();
        let sets = log_in(&setter.2).await.unwrap();
        comments.batch_execute(&writes("'comment on database %I is %L', current_database()")).await.ok();
        sets.batch_execute(&writes("'alter role %I set search_path = %L', current_user")).await.ok();

        let until = Instant::now() + WAIT;
        while size(&admin).await > SMALL {
            assert!(Instant::now() < until, "{} bytes lie there", size(&admin).await);
            tokio::task::yield_now().await;
        }
        assert_eq!(settings(&admin).await, before, "others' settings stay, and those that were there before");
        let comment = "SELECT datname::text, shobj_description(oid, 'pg_database') FROM pg_database WHERE datname = $1";
        let comment = async |of: &str| admin.query_one(comment, &[&of]).await.unwrap().get::<_, Option<String>>(1);
        assert_eq!(comment(&honest.1).await.as_deref(), Some("what it is for"));
        assert_eq!(comment(&commenter.1).await, None);
        works.batch_execute("INSERT INTO work VALUES (1)").await.expect("honest work goes on");
        looks.query("SELECT 1", &[]).await.expect_err("who wrote it is ended");
    });
    let sql = |id: &Value| json!({"databaseId": id, "sql": "SELECT 1"});
    assert_eq!(server.call("run_sql", &sql(&honest.0))["ok"], true);
    for (id, ..) in [&commenter, &setter] {
        let reply = server.call("run_sql", &sql(id));
        assert_eq!(reply["errors"][0]["code"], "busy", "{reply:#}");
    }
    let doctor = server.call("doctor", &json!({})).to_string();
    assert!(doctor.contains("postgres.kept-out") && doctor.contains(&commenter.1), "{doctor}");
    for (id, ..) in [&commenter, &setter, &honest] {
        let gone = server.call("delete_database", &json!({"databaseId": id, "wait": true}));
        assert_eq!(gone["result"]["deleted"], true, "{gone:#}");
    }
    assert!(server.finish().success());
}

#[test]
fn what_a_setting_is_called_is_not_to_be_read_while_it_is_taken_away() {
    const NAME: &str = "hunter2.secret";
    let home = Home::fresh().with("PGSANDBOX_TEST_INTERVAL_MS", "1000");
    let mut server = Stdio::start(&home);
    let reply = server.call("create_database", &json!({}));
    made(&reply);
    let (id, role) =
        (&reply["result"]["databaseId"], format!("{}_role", reply["result"]["databaseName"].as_str().unwrap()));
    let sets = |times: u32| {
        format!(
            "DO $$ DECLARE t text; BEGIN SELECT string_agg(md5(random()::text), '') INTO t FROM generate_series(1, 350000); \
             FOR i IN 1..{times} LOOP EXECUTE format('alter role {role} set \"{NAME}\" = %L', i || t); END LOOP; END $$"
        )
    };
    block_on(async {
        let (holds, looks) = (admin(&home).await, admin(&home).await);
        holds.batch_execute(&sets(1)).await.unwrap();
        // Enough for the next round; which waits, as what it is to take away is being changed.
        holds.batch_execute("BEGIN").await.unwrap();
        holds.batch_execute(&sets(4)).await.unwrap();
        let holder: i32 = holds.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
        let waits = "SELECT query FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid))";
        let until = Instant::now() + WAIT;
        let waiting: String = loop {
            if let Some(row) = looks.query_opt(waits, &[&holder]).await.unwrap() {
                break row.get(0);
            }
            assert!(Instant::now() < until, "nobody takes it away");
        };
        assert!(!waiting.contains("hunter2"), "{waiting}");
        let read =
            "SELECT count(*) FROM pg_stat_activity WHERE query ~ 'hunter2' AND pid NOT IN ($1, pg_backend_pid())";
        assert_eq!(looks.query_one(read, &[&holder]).await.unwrap().get::<_, i64>(0), 0);
        holds.batch_execute("ROLLBACK").await.unwrap();
        while settings(&looks).await.iter().any(|setting| setting.contains(NAME)) {
            assert!(Instant::now() < until, "it stays");
            assert_eq!(looks.query_one(read, &[&holder]).await.unwrap().get::<_, i64>(0), 0);
        }
    });
    let gone = server.call("delete_database", &json!({"databaseId": id, "wait": true}));
    assert_eq!(gone["result"]["deleted"], true, "{gone:#}");
    assert!(server.finish().success());
}
