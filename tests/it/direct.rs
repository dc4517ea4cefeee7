//! Direct logins to a managed cluster: those get in over TCP whose credentials were given out, and while they may.

use std::fs;

use serde_json::{Value, json};
use tokio_postgres::{Client, NoTls};

use crate::crash::{cluster, query, settle};
use crate::harness::{self, block_on};
use crate::hostile::code;
use crate::obligations::policies_with;
use crate::program::{Cli, Home, Transport};

/// A server whose rules refuse a login says so.
const NOT_ADMITTED: &str = "28000";

/// A home for each major there is to test with, of the bundled policies, one with more to it.
fn homes(policy: &str, more: &str) -> Vec<(u16, Home)> {
    let made = harness::clusters().into_iter().map(|found| {
        let home = Home::fresh();
        let file = home.path().join("policies.toml");
        fs::write(&file, policies_with(policy, more)).unwrap();
        let bin_dir = found.bin_dir.to_str().unwrap();
        let home = home
            .with("PGSANDBOX_POLICIES", file.to_str().unwrap())
            .with("PGSANDBOX_POSTGRES_VERSION", &found.major.to_string())
            .with(&format!("PGSANDBOX_POSTGRES_{}_BIN_DIR", found.major), bin_dir);
        (found.major, home)
    });
    made.collect()
}

fn allow(home: &Home, policy: &str, more: &str) {
    fs::write(home.path().join("policies.toml"), policies_with(policy, more)).unwrap();
}

fn made(home: &Home) -> Value {
    let made = Cli::new(home).call("create_database", &json!({}));
    assert_eq!(code(&made), "ok", "{made:#}");
    made["result"]["databaseId"].clone()
}

fn sql(home: &Home, id: &Value, sql: &str) -> Value {
    Cli::new(home).call("run_sql", &json!({"databaseId": id, "sql": sql}))
}

fn read(home: &Home, id: &Value, sql: &str) -> Value {
    Cli::new(home).call("run_sql", &json!({"databaseId": id, "sql": sql, "readonly": true}))
}

fn asked(home: &Home, id: &Value, access: &str, with_credentials: bool) -> Value {
    let input = json!({"databaseId": id, "access": access, "includeCredentials": with_credentials});
    Cli::new(home).call("get_connection_string", &input)
}

fn url(reply: &Value) -> String {
    reply["result"]["connectionString"].as_str().unwrap_or_else(|| panic!("{reply:#}")).to_owned()
}

/// Logs in over TCP, or says the code of the refusal.
async fn enter(url: &str) -> Result<Client, String> {
    match tokio_postgres::connect(url, NoTls).await {
        Ok((client, connection)) => {
            tokio::spawn(connection);
            Ok(client)
        }
        Err(error) => Err(error.code().map_or_else(|| error.to_string(), |code| code.code().to_owned())),
    }
}

fn entered(url: &str) -> Result<(), String> {
    block_on(async { enter(url).await.map(drop) })
}

/// The login that a caller makes up: the owner of a sandbox, by a password that its role has set itself.
fn made_up(home: &Home, id: &Value, password: &str) -> String {
    let shown = asked(home, id, "owner", false);
    let shown = shown["result"]["connectionStringRedacted"].as_str().unwrap_or_else(|| panic!("{shown:#}"));
    shown.replace("***", password)
}

fn members(home: &Home) -> Vec<Vec<String>> {
    query(
        home,
        "select pg_get_userbyid(roleid), pg_get_userbyid(member), admin_option from pg_auth_members
         where pg_get_userbyid(roleid) in ('pgsandbox_direct', 'pgsandbox_withheld') order by 1, 2",
    )
}

const PLANT: &str = "do $$ begin execute format('alter role %I password %L', current_user, 'mine'); end $$";

#[test]
fn a_password_that_a_role_has_set_itself_opens_nothing_while_its_credentials_are_withheld() {
    for (major, home) in homes("ownership", "settings = { credentials = \"read-only\" }\n") {
        let id = made(&home);
        assert_eq!(code(&asked(&home, &id, "owner", true)), "denied", "{major}");
        assert_eq!(code(&sql(&home, &id, PLANT)), "ok", "{major}");
        let planted = made_up(&home, &id, "mine");
        assert_eq!(entered(&planted), Err(NOT_ADMITTED.to_owned()), "{major}");
        // What the reader is given lets the reader in, and nobody else.
        let reader = url(&asked(&home, &id, "readonly", true));
        assert_eq!(entered(&reader), Ok(()), "{major}");
        assert_eq!(entered(&planted), Err(NOT_ADMITTED.to_owned()), "{major}");
        // The next call of ours sets the password back.
        assert_eq!(code(&sql(&home, &id, "select 1")), "ok", "{major}");

        allow(&home, "ownership", "");
        let given = url(&asked(&home, &id, "owner", true));
        assert_eq!(entered(&given), Ok(()), "{major}");
        // What is made anew keeps the roles, and so who may log in.
        let reset = Cli::new(&home).call("reset_database", &json!({"databaseId": id}));
        assert_eq!(code(&reset), "ok", "{reset:#}");
        assert_eq!((entered(&given), entered(&reader)), (Ok(()), Ok(())), "{major}");
        let verified = Cli::new(&home).call("verify_sandbox", &json!({"databaseId": id}));
        assert_eq!(code(&verified), "ok", "{verified:#}");
        // A copy has roles of its own, whose credentials nobody was given.
        let fork = Cli::new(&home).call("fork_database", &json!({"databaseId": id}));
        let fork = fork["result"]["databaseId"].clone();
        assert_eq!(code(&sql(&home, &fork, PLANT)), "ok", "{major}");
        assert_eq!(entered(&made_up(&home, &fork, "mine")), Err(NOT_ADMITTED.to_owned()), "{major}");
        let let_in = members(&home);
        assert!(let_in.iter().all(|row| row[0] == "pgsandbox_direct" && row[2] == "f"), "{major}: {let_in:?}");
        assert_eq!(let_in.len(), 2, "{major}: {let_in:?}");

        for id in [&id, &fork] {
            let gone = Cli::new(&home).call("delete_database", &json!({"databaseId": id, "wait": true}));
            assert_eq!(code(&gone), "ok", "{gone:#}");
        }
        settle(&home);
        assert_eq!(members(&home), Vec::<Vec<String>>::new(), "{major}");
        let roles = "select rolname from pg_roles where rolname like 'pgsandbox%' order by 1";
        let kept = ["pgsandbox_admin", "pgsandbox_direct", "pgsandbox_withheld"].map(|name| vec![name.to_owned()]);
        assert_eq!(query(&home, roles), kept, "{major}");
        let doctor = Cli::new(&home).call("doctor", &json!({}));
        assert!(!doctor.to_string().contains("has no row"), "{doctor:#}");
    }
}

#[test]
fn no_role_of_a_sandboxs_lets_another_in_or_itself() {
    for (major, home) in homes("ownership", "") {
        let (id, other) = (made(&home), made(&home));
        let given = url(&asked(&home, &id, "owner", true));
        let name = |id: &Value, role: &str| {
            let found = query(&home, &format!("select {role} from pgsandbox.sandboxes where id = {}", quoted(id)));
            found[0][0].clone()
        };
        let (owner, stranger) = (name(&id, "owner_role"), name(&other, "owner_role"));
        block_on(async {
            let client = enter(&given).await.unwrap();
            for attempt in [
                format!("grant pgsandbox_direct to {stranger}"),
                format!("grant pgsandbox_direct to {stranger} granted by pgsandbox_admin"),
                format!("revoke pgsandbox_direct from {owner}"),
                format!("revoke pgsandbox_withheld from {owner}"),
                format!("grant pgsandbox_withheld to {stranger}"),
                format!("grant {owner} to {stranger}"),
                "alter role pgsandbox_direct login".to_owned(),
                "drop role pgsandbox_direct".to_owned(),
                "drop role pgsandbox_withheld".to_owned(),
                "reassign owned by pgsandbox_direct to current_user".to_owned(),
                "set session authorization pgsandbox_direct".to_owned(),
                "alter role pgsandbox_direct rename to gone".to_owned(),
            ] {
                let done = client.batch_execute(&attempt).await;
                let harmless = attempt.starts_with("reassign") && major < 16;
                assert!(done.is_err() || harmless, "{major}: {attempt}");
            }
            // Before 16 a member may act as the role, which helps it to nothing.
            let acts = client.batch_execute("set role pgsandbox_direct").await;
            assert_eq!(acts.is_ok(), major < 16, "{major}: {acts:?}");
            let granted = client.batch_execute(&format!("grant pgsandbox_direct to {stranger}")).await;
            assert!(granted.is_err(), "{major}");
        });
        assert_eq!(members(&home).len(), 1, "{major}: {:?}", members(&home));
        assert_eq!(code(&sql(&home, &other, PLANT)), "ok", "{major}");
        assert_eq!(entered(&made_up(&home, &other, "mine")), Err(NOT_ADMITTED.to_owned()), "{major}");
        assert_eq!(entered(&given), Ok(()), "{major}");
    }
}

fn quoted(id: &Value) -> String {
    format!("'{}'", id.as_str().unwrap())
}

const BOUND: &str = "settings = { max_bytes = 12000000 }\n";
const WRITER: &str = "create table b (x text);
    create function w(n int) returns void language sql security definer as
        'insert into public.b select repeat(md5(g::text), 40) from generate_series(1, n) g'";

#[test]
fn over_the_byte_quota_the_readers_direct_logins_go_and_come_back() {
    for (major, home) in homes("quota", BOUND) {
        let id = made(&home);
        assert_eq!(code(&sql(&home, &id, WRITER)), "ok", "{major}");
        let reader = url(&asked(&home, &id, "readonly", true));
        let rows =
            |home: &Home| read(home, &id, "select count(*) from b")["result"]["resultSets"][0]["rows"][0][0].clone();
        block_on(async {
            let client = enter(&reader).await.unwrap();
            client.batch_execute("select w(8000)").await.unwrap();
            let long_ago = "update pgsandbox.sandboxes set measured_at = now() - interval '2 minutes' returning 1";
            assert_eq!(query(&home, long_ago).len(), 1);
            // Measured at the end of a call, as it was not measured lately; the reader's own calls go on.
            assert_eq!(code(&read(&home, &id, "select 1")), "ok", "{major}");
            let ended = client.batch_execute("select w(1)").await;
            assert!(ended.is_err() && client.is_closed(), "{major}: {ended:?}");
        });
        assert_eq!(entered(&reader), Err(NOT_ADMITTED.to_owned()), "{major}");
        assert_eq!(rows(&home), "8000", "{major}");
        assert_eq!(code(&read(&home, &id, "select w(1)")), "readonly_violation", "{major}");
        for (access, with_credentials, expected) in
            [("readonly", true, "quota_exceeded"), ("owner", true, "quota_exceeded"), ("readonly", false, "ok")]
        {
            let reply = asked(&home, &id, access, with_credentials);
            assert_eq!(code(&reply), expected, "{major} {access} {with_credentials}: {reply:#}");
        }
        assert_eq!(entered(&reader), Err(NOT_ADMITTED.to_owned()), "{major}");

        allow(&home, "quota", "settings = { max_bytes = 400000000 }\n");
        assert_eq!(code(&sql(&home, &id, "truncate b")), "ok", "{major}");
        assert_eq!(entered(&reader), Ok(()), "{major}: what was given out works again");
        let shown: Vec<String> = members(&home).into_iter().map(|row| row[0].clone()).collect();
        assert_eq!(shown, ["pgsandbox_direct"], "{major}");
    }
}

#[test]
fn what_is_made_anew_over_its_quota_lets_the_reader_in_again() {
    let (_, home) = homes("quota", BOUND).swap_remove(0);
    let id = made(&home);
    let reader = url(&asked(&home, &id, "readonly", true));
    // Measured at its end, as it wrote.
    assert_eq!(code(&sql(&home, &id, &format!("{WRITER}; select w(8000)"))), "ok");
    assert_eq!(code(&read(&home, &id, "select 1")), "ok");
    assert_eq!(entered(&reader), Err(NOT_ADMITTED.to_owned()));
    let reset = Cli::new(&home).call("reset_database", &json!({"databaseId": id}));
    assert_eq!(code(&reset), "ok", "{reset:#}");
    assert_eq!(entered(&reader), Ok(()));
}

#[test]
fn a_cluster_that_an_earlier_version_has_started_gets_its_rules_anew() {
    let (_, home) = homes("ownership", "").swap_remove(0);
    let id = made(&home);
    let rules = cluster(&home).join("data/pg_hba.conf");
    let ours = fs::read_to_string(&rules).unwrap();
    fs::write(&rules, "local all all scram-sha-256\nhost all all 127.0.0.1/32 scram-sha-256\n").unwrap();
    query(&home, "drop role pgsandbox_direct, pgsandbox_withheld; select pg_reload_conf()");
    assert_eq!(code(&sql(&home, &id, PLANT)), "ok");
    assert_eq!(fs::read_to_string(&rules).unwrap(), ours);
    assert_eq!(entered(&made_up(&home, &id, "mine")), Err(NOT_ADMITTED.to_owned()));
    // The next call of ours sets the password back.
    assert_eq!(code(&sql(&home, &id, "select 1")), "ok");
    assert_eq!(entered(&url(&asked(&home, &id, "owner", true))), Ok(()));
}
