//! Sources whose code does all that an owner may, as soon as it runs in the copy: what is handed over is as if it had not.

use serde_json::{Value, json};

use super::half_open::Thief;
use super::{Setup, reader_url, source};
use crate::harness::{self, Cluster, block_on};
use crate::program::{Cli, Transport};

/// What the code of the source sets as the owner's password.
const PLANTED: &str = "known-to-others";

/// A source whose constraint, index, statistics and materialised view call what gives everything away; an index takes its time.
const GIVES_AWAY: &str = r#"
    CREATE TABLE t (v text, n int); INSERT INTO t VALUES ('SecretValue', 1), ('SecretOther', 2);
    CREATE SCHEMA inner_one; CREATE TABLE inner_one.u (v text); INSERT INTO inner_one.u VALUES ('SecretThird');
    CREATE SEQUENCE s; CREATE TYPE pair AS (a int, b int); SELECT lo_from_bytea(4243, 'large'::bytea);
    GRANT SELECT ON LARGE OBJECT 4243 TO reader;
    CREATE TABLE did (what text);
    CREATE FUNCTION try(what text) RETURNS void LANGUAGE plpgsql AS $$ BEGIN EXECUTE what;
        INSERT INTO public.did VALUES ('done: ' || what);
        EXCEPTION WHEN OTHERS THEN INSERT INTO public.did VALUES (sqlstate || ': ' || what); END $$;
    CREATE FUNCTION give(n int) RETURNS bool IMMUTABLE LANGUAGE plpgsql AS $$ DECLARE d text := current_database(); o text := session_user; BEGIN
        IF session_user::text !~ '_(role|f[0-9]+)$' OR n <> 2 THEN RETURN true; END IF;
        PERFORM public.try(format('ALTER ROLE %I PASSWORD %L', o, 'known-to-others'));
        PERFORM public.try(format('ALTER ROLE %I SET work_mem = %L', o, '64kB'));
        PERFORM public.try(format('ALTER ROLE %I IN DATABASE %I SET work_mem = %L', o, d, '64kB'));
        PERFORM public.try(format('ALTER ROLE %I IN DATABASE postgres SET work_mem = %L', o, '64kB'));
        PERFORM public.try(format('GRANT ALL ON DATABASE %I TO PUBLIC', d));
        PERFORM public.try(format('ALTER DATABASE %I SET search_path = evil', d));
        PERFORM public.try(format('ALTER DATABASE %I CONNECTION LIMIT 99', d));
        PERFORM public.try(format('ALTER DATABASE %I IS_TEMPLATE true', d));
        PERFORM public.try('ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO PUBLIC');
        PERFORM public.try('ALTER DEFAULT PRIVILEGES IN SCHEMA inner_one GRANT ALL ON TABLES TO PUBLIC');
        PERFORM public.try('ALTER DEFAULT PRIVILEGES GRANT ALL ON SCHEMAS TO PUBLIC');
        PERFORM public.try(format('ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO %I WITH GRANT OPTION', d || '_ro'));
        PERFORM public.try('GRANT ALL ON SCHEMA public, inner_one TO PUBLIC');
        PERFORM public.try('GRANT ALL ON ALL TABLES IN SCHEMA public, inner_one TO PUBLIC');
        PERFORM public.try('GRANT SELECT (v) ON t TO PUBLIC');
        PERFORM public.try('GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO PUBLIC');
        PERFORM public.try('GRANT ALL ON LARGE OBJECT 4243 TO PUBLIC');
        PERFORM public.try('GRANT ALL ON ALL FUNCTIONS IN SCHEMA public TO reader WITH GRANT OPTION');
        PERFORM public.try('GRANT ALL ON TYPE public.pair TO reader');
        RETURN true; END $$;
    CREATE FUNCTION slow(n int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN
        IF session_user::text ~ '_(role|f[0-9]+)$' THEN PERFORM pg_sleep(0.3); END IF; RETURN n; END $$;
    CREATE INDEX ON t ((public.give(n))); CREATE INDEX ON t (public.slow(n));
    ALTER TABLE t ADD CHECK (public.give(n));
    CREATE MATERIALIZED VIEW m AS SELECT public.give(n) FROM public.t;
"#;

/// Whether another sandbox could get in by what the code has granted: tried until `over`.
async fn entered(
    cluster: &Cluster,
    prefix: &str,
    other: (&str, &str),
    over: &std::sync::atomic::AtomicBool,
) -> Vec<String> {
    let admin = cluster.superuser("postgres").await;
    let sql = "SELECT datname::text FROM pg_database WHERE datname LIKE $1 || '\\_%' AND datname <> $2";
    let mine = other.0.strip_suffix("_role").unwrap();
    let mut entered = Vec::new();
    while !over.load(std::sync::atomic::Ordering::Relaxed) {
        for row in admin.query(sql, &[&prefix, &mine]).await.unwrap() {
            let database: String = row.get(0);
            let (user, password) = other;
            if cluster.connect(user, password, &database).await.is_ok() {
                entered.push(user.to_owned());
            }
        }
    }
    entered
}

/// What creation sets: of the database, of its roles, and of what is in it; with the roles' names made alike.
fn as_created(setup: &Setup, database: &str) -> Vec<Vec<String>> {
    let owner = format!("{database}_role");
    let alike = |text: &str| format!("replace({text}, '{database}', 'DB')");
    let sql = format!(
        "SELECT 'database', {acl}, datconnlimit::text, datistemplate::text, datallowconn::text, {dba}
         FROM pg_database WHERE datname = '{database}'
         UNION ALL SELECT 'setting', setconfig::text, (setdatabase <> 0)::text, '', '', '' FROM pg_db_role_setting s
         LEFT JOIN pg_database d ON d.oid = setdatabase
         WHERE setrole IN (SELECT oid FROM pg_roles WHERE rolname IN ('{owner}', '{database}_ro')) OR d.datname = '{database}'
         UNION ALL SELECT 'role', {role}, rolcanlogin::text, rolconnlimit::text, (rolvaliduntil > now())::text, rolbypassrls::text
         FROM pg_roles WHERE rolname IN ('{owner}', '{database}_ro')
         UNION ALL SELECT 'default', defaclobjtype::text, {default}, defaclnamespace::regnamespace::text, '', '' FROM pg_default_acl
         UNION ALL SELECT 'member', {member}, count(*)::text, '', '', '' FROM pg_auth_members WHERE roleid::regrole::text ~ '{owner}' GROUP BY 2
         UNION ALL SELECT 'public', {public}, '', '', '', '' FROM pg_namespace WHERE nspname = 'public'
         ORDER BY 1, 2, 3",
        acl = alike("(SELECT string_agg(a::text, ' ' ORDER BY a::text) FROM unnest(datacl) a)"),
        dba = alike("datdba::regrole::text"),
        role = alike("rolname::text"),
        default = alike("(SELECT string_agg(a::text, ' ' ORDER BY a::text) FROM unnest(defaclacl) a)"),
        member = alike("roleid::regrole::text"),
        public = alike("nspowner::regrole::text || (SELECT string_agg(a::text, ' ' ORDER BY a::text) FROM unnest(nspacl) a)"),
    );
    setup.rows(&json!(database), &sql)
}

fn gives_away(cluster: &'static Cluster, admin_url: &str, prefix: &'static str, with: &Value) {
    let database = format!("{prefix}gives");
    source(cluster, &database, "", GIVES_AWAY);
    let sources = [("gives", reader_url(cluster, &database), json!({}))];
    let setup = Setup::by(cluster, admin_url, prefix, &sources);
    let other = Cli::new(&setup.home).call("create_database", &json!({}))["result"].clone();
    let asked = json!({"databaseId": other["databaseId"], "includeCredentials": true});
    let url = Cli::new(&setup.home).call("get_connection_string", &asked)["result"]["connectionString"].clone();
    let url = url.as_str().unwrap();
    let password = url.split_once("://").unwrap().1.split('@').next().unwrap().split_once(':').unwrap().1;
    let role = other["roleName"].as_str().unwrap();

    let over = std::sync::atomic::AtomicBool::new(false);
    let thief = Thief::new(cluster, PLANTED);
    let (result, entered, (became, held)) = std::thread::scope(|scope| {
        let watch = scope.spawn(|| block_on(entered(cluster, prefix, (role, password), &over)));
        let thief = scope.spawn(|| thief.tries(prefix, role, &over));
        let result = setup.clone(with.clone());
        over.store(true, std::sync::atomic::Ordering::Relaxed);
        (result, watch.join().unwrap(), thief.join().unwrap())
    });
    assert_eq!(result["ok"], true, "{result:#}");
    assert_eq!(entered, Vec::<String>::new(), "{prefix}");
    assert_eq!(became, Vec::<String>::new(), "{prefix}");
    assert!(held > 2, "{prefix}: the server held {held} logins");
    let result = &result["result"];
    let name = result["databaseName"].as_str().unwrap();
    let planted = block_on(cluster.connect(&format!("{name}_role"), PLANTED, name)).is_ok();
    assert!(!planted, "the planted password is the owner's");
    let did = setup.rows(&json!(name), "SELECT DISTINCT what FROM did ORDER BY 1");
    assert!(did.iter().any(|row| row[0].starts_with("done: ALTER ROLE")), "the code has not run: {did:?}");
    assert!(did.iter().any(|row| row[0].starts_with("done: ALTER DEFAULT")), "the code has not run: {did:?}");
    let empty = other["databaseName"].as_str().unwrap();
    assert_eq!(as_created(&setup, name), as_created(&setup, empty), "{did:?}");
    // Nothing in it is anybody's but the owner's and, to read, the reader's.
    let rights = format!(
        "WITH a (acl) AS (SELECT unnest(relacl) FROM pg_class WHERE relowner = '{name}_role'::regrole
         UNION ALL SELECT unnest(attacl) FROM pg_attribute JOIN pg_class c ON c.oid = attrelid WHERE relowner = '{name}_role'::regrole
         UNION ALL SELECT unnest(nspacl) FROM pg_namespace WHERE nspowner = '{name}_role'::regrole
         UNION ALL SELECT unnest(lomacl) FROM pg_largeobject_metadata
         UNION ALL SELECT a FROM pg_proc, unnest(proacl) a WHERE proowner = '{name}_role'::regrole AND a::text !~ '^=X/'
         UNION ALL SELECT a FROM pg_type, unnest(typacl) a WHERE typowner = '{name}_role'::regrole AND a::text !~ '^=U/')
         SELECT DISTINCT acl::text FROM a WHERE acl::text !~ '^{name}_role=' AND acl::text !~ '^{name}_ro=[rU]/'"
    );
    assert_eq!(setup.rows(&json!(name), &rights), Vec::<Vec<String>>::new());
    let id = json!({"databaseId": result["databaseId"]});
    let verified = Cli::new(&setup.home).call("verify_sandbox", &id);
    let failed: Vec<&Value> =
        verified["result"]["checks"].as_array().unwrap().iter().filter(|c| c["status"] == "fail").collect();
    assert!(failed.is_empty(), "{failed:#?}");
    let sql = json!({"databaseId": result["databaseId"], "sql": "CREATE SCHEMA more; CREATE TABLE public.mine (a int); SELECT count(*) FROM t"});
    let used = Cli::new(&setup.home).call("run_sql", &sql);
    assert_eq!(used["ok"], true, "{used:#}");
    let reads = json!({"databaseId": result["databaseId"], "sql": "SELECT * FROM mine, t", "readonly": true});
    assert_eq!(Cli::new(&setup.home).call("run_sql", &reads)["ok"], true);
    for id in [&result["databaseId"], &other["databaseId"]] {
        let gone = Cli::new(&setup.home).call("delete_database", &json!({"databaseId": id, "wait": true}));
        assert_eq!(gone["ok"], true, "{gone:#}");
    }
    setup.nothing_is_left();
}

#[test]
fn what_a_sources_code_gives_away_is_nobodys() {
    for (cluster, [big, limited]) in
        harness::clusters().into_iter().zip([["codebiga", "codelima"], ["codebigb", "codelimb"]])
    {
        for (prefix, url) in [(big, cluster.superuser_url()), (limited, cluster.limited_url())] {
            gives_away(cluster, &url, prefix, &json!({"source": "gives"}));
        }
    }
}

#[test]
fn what_a_sources_code_gives_away_of_a_masked_copy_is_nobodys() {
    let mask = json!({"source": "gives", "mask": [{"table": "t", "column": "v", "with": "fake"}]});
    for (cluster, [big, limited]) in
        harness::clusters().into_iter().zip([["maskbiga", "masklima"], ["maskbigb", "masklimb"]])
    {
        for (prefix, url) in [(big, cluster.superuser_url()), (limited, cluster.limited_url())] {
            gives_away(cluster, &url, prefix, &mask);
        }
    }
}

#[test]
fn a_source_whose_code_lets_others_be_the_owner_is_refused() {
    let script = "CREATE TABLE t (n int); INSERT INTO t VALUES (1);
        CREATE FUNCTION give(n int) RETURNS bool LANGUAGE plpgsql AS $$ BEGIN
        IF session_user::text ~ '_(role|f[0-9]+)$' THEN EXECUTE format('GRANT %I TO reader', session_user); END IF;
        RETURN true; EXCEPTION WHEN insufficient_privilege THEN RETURN true; END $$;
        ALTER TABLE t ADD CHECK (public.give(n))";
    for (cluster, prefix) in harness::clusters().into_iter().zip(["membera", "memberb"]) {
        let database = format!("{prefix}source");
        source(cluster, &database, "", script);
        let setup = Setup::on(cluster, prefix, &[("member", reader_url(cluster, &database), json!({}))]);
        if cluster.major < 15 {
            setup.refused(json!({"source": "member"}), "restore_incompatible", "made another role a member");
        } else {
            // No role may pass itself on any more.
            setup.cloned(json!({"source": "member"}));
        }
    }
}

#[test]
fn a_copy_larger_than_its_source_says_is_stopped_at_the_quota() {
    let cluster = harness::cluster();
    let script = "CREATE TABLE t AS SELECT repeat(md5(n::text), 6) v, n FROM generate_series(1, 150000) n;
        CREATE OR REPLACE FUNCTION pg_catalog.pg_database_size(oid) RETURNS bigint LANGUAGE sql AS 'SELECT 8000000::bigint'";
    source(cluster, "codelies", "", script);
    let setup = Setup::on(cluster, "codesize", &[("lies", reader_url(cluster, "codelies"), json!({}))]);
    let setup = setup.with_policy("quota", "{ max_bytes = 20000000 }");
    setup.refused(json!({"source": "lies"}), "quota_exceeded", "are left of the quota of bytes");
    let mask = json!([{"table": "t", "column": "v", "with": "null"}]);
    setup.refused(json!({"source": "lies", "mask": mask}), "quota_exceeded", "are left of the quota of bytes");
    // A copy counts from its beginning, and a fork of it is reckoned with.
    let small = setup.cloned(json!({"source": "lies", "schemaOnly": true}));
    let fork = |id: &Value| Cli::new(&setup.home).call("fork_database", &json!({"databaseId": id}));
    let forked = fork(&small["databaseId"]);
    assert_eq!(forked["ok"], true, "{forked:#}");
    let refused = fork(&small["databaseId"]);
    assert_eq!(refused["errors"][0]["code"], "quota_exceeded", "{refused:#}");
}
