//! Plans of queries through the real program: what is sent, what it leaves, and who it runs as.

use std::fs;
use std::time::{Duration, Instant};

use pgsandbox::model::Obligation;
use serde_json::{Value, json};

use crate::hostile::{Session, code, wait};
use crate::obligations::{demanding, home_with_policy_file, with, write_policies};
use crate::program::{Home, Stdio, Transport};

impl Session {
    fn explain(&mut self, sql: &str, analyze: bool) -> Value {
        let input = json!({"databaseId": self.id, "sql": sql, "analyze": analyze});
        self.stdio.call("explain_query", &input)
    }

    fn value(&mut self, sql: &str) -> String {
        let reply = self.sql(sql, json!({}));
        let cell = &reply["result"]["resultSets"][0]["rows"][0][0];
        cell.as_str().map_or_else(|| cell.to_string(), str::to_owned)
    }
}

/// A plan's topmost step.
fn top(reply: &Value) -> &Value {
    assert_eq!(code(reply), "ok", "{reply:#}");
    &reply["result"]["plan"][0]["Plan"]
}

fn with_tables(home: &Home) -> Session {
    let mut it = Session::start(home);
    let setup = "create table t (id serial primary key, n int);
        insert into t (n) select g % 10 from generate_series(1, 20000) g; analyze t;
        create table log (at text);
        create function noted() returns trigger language plpgsql as
            $$ begin insert into log values (tg_op); return null; end $$;
        create trigger noted after insert or delete on t for each statement execute function noted();
        create function writes() returns int language plpgsql as
            $$ begin insert into log values ('planned'); return 1; end $$;
        create function liar() returns int language plpgsql immutable as $$ begin return writes(); end $$;";
    assert_eq!(code(&it.sql(setup, json!({}))), "ok");
    it
}

#[test]
fn a_plan_runs_nothing_and_a_measured_run_is_taken_back() {
    let home = Home::with_cluster();
    let mut it = with_tables(&home);
    let reply = it.explain("select * from t where n = 3 -- the third", false);
    assert_eq!(top(&reply)["Node Type"], "Seq Scan");
    assert!(reply["summary"].as_str().unwrap().starts_with("Seq Scan: cost "), "{reply:#}");
    let reply = it.explain("/* few */ (select count(*) from t where n = 3);", true);
    assert_eq!(top(&reply)["Actual Rows"].as_f64(), Some(1.0));
    let findings = reply["result"]["summary"]["findings"].to_string();
    assert!(findings.contains("`Seq Scan` on `t` read 20000 rows"), "{findings}");
    assert!(reply["result"]["summary"]["executionMs"].as_f64().unwrap() > 0.0, "{reply:#}");

    for write in ["insert into t (n) values (1) returning id", "delete from t where n = 2", "update t set n = 0"] {
        assert_eq!(top(&it.explain(write, false))["Node Type"], "ModifyTable");
        let reply = it.explain(write, true);
        assert_eq!(top(&reply)["Node Type"], "ModifyTable");
        assert!(reply["result"]["plan"][0]["Execution Time"].is_number(), "{reply:#}");
        assert_eq!(it.value("select count(*) || ' ' || sum(n) from t"), "20000 90000", "{write}");
    }
    let cte = "with gone as (delete from t returning n) select count(*) from gone";
    assert_eq!(top(&it.explain(cte, true))["Actual Rows"].as_f64(), Some(1.0));
    assert_eq!(it.value("select (select count(*) from t) || ' ' || (select count(*) from log)"), "20000 0");
    let triggers = it.explain("insert into t (n) values (1)", true)["result"]["summary"]["findings"].to_string();
    assert!(triggers.contains("trigger `noted` took"), "{triggers}");

    // What planning runs can write nothing.
    let reply = it.explain("select liar()", false);
    assert_eq!((code(&reply), &reply["errors"][0]["sqlstate"]), ("readonly_violation", &json!("25006")), "{reply:#}");
    assert_eq!(code(&it.explain("select liar()", true)), "ok");
    assert_eq!(it.value("select count(*) from log where at = 'planned'"), "0");
    // What a transaction does not take back stays, as the documentation says.
    assert_eq!(code(&it.explain("select nextval('t_id_seq')", true)), "ok");
    assert_ne!(it.value("select last_value from t_id_seq"), "20000");
    // A setting and a lock of the session's do not.
    assert_eq!(code(&it.explain("select set_config('work_mem', '70MB', false), pg_advisory_lock(7)", true)), "ok");
    assert_eq!(it.value("select current_setting('work_mem') <> '70MB'"), "true");
    assert_eq!(it.value("select count(*) from pg_locks where locktype = 'advisory' and objid = 7"), "0");
}

#[test]
fn what_is_not_one_statement_with_a_plan_is_refused_by_name() {
    let home = Home::with_cluster();
    let mut it = with_tables(&home);
    for (sql, expected) in [
        ("", "single_statement_required"),
        ("select 1; drop table t", "single_statement_required"),
        ("select 1 >--\n1; drop table t", "single_statement_required"),
        ("explain delete from t", "invalid_arguments"),
        ("analyze select 1", "invalid_arguments"),
        ("(analyze) delete from t", "invalid_arguments"),
        ("create table x as select 1", "invalid_arguments"),
        ("select a and into x from (select true a) s", "invalid_arguments"),
        ("commit", "invalid_arguments"),
        ("do $$ begin commit; end $$", "invalid_arguments"),
        ("select $1", "invalid_arguments"),
        ("select 'a", "syntax_error"),
        ("select 1 end; drop table t", "single_statement_required"),
        ("select 1 end", "ok"),
        ("select nothing from t", "undefined_column"),
        ("select * from nothing", "undefined_table"),
        ("select 1/0", "sql_failed"),
        ("select from where", "syntax_error"),
    ] {
        for analyze in [false, true] {
            let reply = it.explain(sql, analyze);
            assert_eq!(code(&reply), expected, "{sql}: {reply:#}");
            let told = json!({"operation": "explain_query", "arguments": {"databaseId": it.id, "sql": sql}});
            let told = it.stdio.call("explain_policy", &told);
            if expected == "single_statement_required" || expected == "invalid_arguments" {
                assert_eq!(told["result"]["refusal"]["code"], expected, "{sql}: {told:#}");
            }
        }
    }
    let reply = it.explain("  select nothing from t", true);
    assert_eq!(reply["errors"][0]["position"], 8, "{reply:#}");
    let reply = it.explain("-- one\nselect 1,\n  nothing from t", false);
    assert_eq!((&reply["errors"][0]["line"], &reply["errors"][0]["position"]), (&json!(3), &json!(13)), "{reply:#}");
    assert_eq!(it.value("select count(*) from t"), "20000");
    assert_eq!(it.value("select count(*) from pg_tables where schemaname = 'public'"), "2");
}

#[test]
fn under_a_read_only_demand_a_plan_is_the_readers() {
    let home = home_with_policy_file();
    let mut it = with_tables(&home);
    let view = "create function who() returns text language sql as 'select current_user::text'; create view w as select who() as me";
    assert_eq!(code(&it.sql(view, json!({}))), "ok");
    assert!(it.stdio.finish().success());
    let mut it = Session { stdio: with(&home, &demanding(&[Obligation::ReadOnly])), id: it.id };
    for analyze in [false, true] {
        assert_eq!(code(&it.explain("select count(*) from t", analyze)), "ok");
        for sql in
            ["insert into t (n) values (1)", "with x as (delete from t returning 1) select 1 from x", "select liar()"]
        {
            assert_eq!(code(&it.explain(sql, analyze)), "readonly_violation", "{sql}");
        }
        // A view hides a call from every reading; the role and the transaction stand.
        assert_eq!(code(&it.sql("select me from w", json!({}))), "ok");
        assert_eq!(code(&it.explain("select me from w", analyze)), "ok");
    }
    assert!(it.stdio.finish().success());

    let mut it = Session { stdio: with(&home, &demanding(&[Obligation::StatementTimeoutMs(300)])), id: it.id };
    let reply = it.explain("select pg_sleep(60)", true);
    assert_eq!(code(&reply), "statement_timeout", "{reply:#}");
    assert_eq!(code(&it.explain("select pg_sleep(60)", false)), "ok");
    assert!(it.stdio.finish().success());

    let mut it = Session { stdio: with(&home, &demanding(&[Obligation::MaxResultBytes(300)])), id: it.id };
    let reply = it.explain("select * from t a join t b using (n) where a.id < b.id order by b.id", false);
    assert_eq!((code(&reply), &reply["result"]["planTruncated"]), ("ok", &json!(true)), "{reply:#}");
    assert!(reply["result"]["plan"].to_string().len() <= 300, "{reply:#}");
    assert!(reply["warnings"].to_string().contains("set by `demanding`"), "{reply:#}");
    assert!(it.stdio.finish().success());

    let mask = Obligation::Mask { relation: "public.t".into(), column: "n".into() };
    let mut it = Session { stdio: with(&home, &demanding(&[mask])), id: it.id };
    assert_eq!(code(&it.explain("select 1", false)), "obligation_unmet");
}

#[test]
fn the_guard_decides_on_the_statement_and_not_on_its_explanation() {
    let home = home_with_policy_file();
    let it = with_tables(&home);
    assert!(it.stdio.finish().success());
    write_policies(&home, &[]);
    let file = home.path().join("policies.toml");
    let text = fs::read_to_string(&file).unwrap();
    let guard = "source = \"statement-guard\"\n";
    let ruled =
        format!("{guard}settings = {{ deny_classes = [\"write\"], deny_relations = [{{ name = \"log\" }}] }}\n");
    fs::write(&file, text.replace(guard, &ruled)).unwrap();
    let mut it = Session { stdio: Stdio::start(&home), id: it.id };
    for analyze in [false, true] {
        assert_eq!(code(&it.explain("select * from t", analyze)), "ok");
        assert_eq!(code(&it.explain("delete from t", analyze)), "denied");
        assert_eq!(code(&it.explain("select * from log", analyze)), "denied");
    }
}

#[test]
fn a_cancelled_explanation_leaves_nothing_running() {
    let home = Home::with_cluster();
    let mut it = Session::start(&home);
    let mut other = Stdio::spawn_and_shake_hands_by_string_id(&home);
    let arguments = json!({"databaseId": it.id, "sql": "select pg_sleep(600)", "analyze": true});
    other.send(&json!({"jsonrpc": "2.0", "id": 0, "method": "tools/call",
        "params": {"name": "explain_query", "arguments": arguments}}));
    let sleepers = "select count(*) from pg_stat_activity where state = 'active' and query ~ 'pg_sleep' \
                    and pid <> pg_backend_pid()";
    wait(Duration::from_secs(30), || it.value(sleepers) == "1");
    other.send(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 0}}));
    let cancelled = Instant::now();
    wait(Duration::from_secs(5), || it.value(sleepers) == "0");
    assert!(cancelled.elapsed() < Duration::from_secs(2), "the backend was busy for {:?}", cancelled.elapsed());
}
