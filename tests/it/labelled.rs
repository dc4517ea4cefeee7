//! The labelled statements, executed read-only by the real program on their fixture: what must be refused does not run,
//! nothing changes, and reads run.
//!
//! That each is read as its label says is shown beside the reader; here is what comes of it on a server.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::program::{Home, Stdio, Transport};

const FIXTURE: &str = include_str!("../cases/sql-fixture.sql");
const LABELLED: &str = include_str!("../cases/sql-labelled.jsonl");

/// Labelled unsafe, and only the server can find the harm: what it answers, and why no reader can.
const STOPPED_BY_POSTGRES: &[(&str, &str, &str)] = &[
    ("SELECT * FROM noisy_view", "25006", "a view's query is not in the text"),
    ("SELECT a.touch FROM accounts a", "25006", "a function written as a column"),
    ("SELECT ROW(1)::money_pair::int", "25006", "a cast with a function behind it"),
    ("SELECT * FROM accounts WHERE id = $1", "08P01", "a read, once it has its parameter"),
    ("SHOW TABLES", "42704", "a setting of this name could exist"),
];

/// Labelled as reads to allow, and not run: the code of the answer, and why.
const READS_NOT_RUN: &[(&str, &str, &str)] = &[
    (r#"SELECT 1 AS U&"d\0061ta""#, "readonly_violation", "names in escapes are not read"),
    (
        "EXPLAIN (VERBOSE) INSERT INTO audit(msg) VALUES (1)",
        "permission_denied",
        "the read-only role may not even plan a write",
    ),
];

/// Reads that run, in percent of those labelled as such.
const READS_RUN_MIN: f64 = 95.0;

/// What a statement could change and catalogues show, but for the tables' contents.
const CATALOGUES: &str = "
    select 'relations' as what, md5(string_agg((oid, relname, relkind, relowner, relacl, relfilenode, reltoastrelid,
        relpersistence, relrowsecurity, relhasrules, relhastriggers, reloptions)::text, ',' order by oid)) as state from pg_class
    union all select 'columns', md5(string_agg((attrelid, attname, atttypid, attacl)::text, ',' order by attrelid, attnum))
        from pg_attribute
    union all select 'functions', md5(string_agg((oid, proname, prosrc, proconfig, provolatile, proacl)::text, ',' order by oid))
        from pg_proc
    union all select 'types', md5(string_agg((oid, typname)::text, ',' order by oid)) from pg_type
    union all select 'schemas', md5(string_agg((oid, nspname, nspacl)::text, ',' order by oid)) from pg_namespace
    union all select 'default rights', md5(string_agg(d::text, ',' order by oid)) from pg_default_acl d
    union all select 'roles', md5(string_agg(r::text, ',' order by oid)) from pg_roles r
    union all select 'memberships', md5(string_agg(m::text, ',' order by m::text)) from pg_auth_members m
    union all select 'settings of roles', md5(string_agg(s::text, ',' order by s::text)) from pg_db_role_setting s
    union all select 'databases', md5(string_agg((oid, datname, datacl)::text, ',' order by oid)) from pg_database
    union all select 'comments', md5(string_agg(d::text, ',' order by d::text)) from pg_description d
    union all select 'relations, counted', count(*)::text from pg_class
    union all select 'functions, counted', count(*)::text from pg_proc
    union all select 'operators', count(*)::text from pg_operator
    union all select 'casts', count(*)::text from pg_cast
    union all select 'constraints', count(*)::text from pg_constraint
    union all select 'rules', count(*)::text from pg_rewrite
    union all select 'policies', count(*)::text from pg_policy
    union all select 'extensions', count(*)::text from pg_extension
    union all select 'languages', count(*)::text from pg_language
    union all select 'tablespaces', count(*)::text from pg_tablespace
    union all select 'large objects', count(*)::text from pg_largeobject_metadata
    union all select 'prepared transactions', count(*)::text from pg_prepared_xacts
    union all select 'replication slots', count(*)::text from pg_replication_slots
    union all select 'replication origins', count(*)::text from pg_replication_origin
    union all select 'advisory locks', count(*)::text from pg_locks where locktype = 'advisory'
    union all select 'sequence ' || sequencename, coalesce(last_value::text, 'unused') from pg_sequences";

/// The contents of one relation.
const CONTENTS: &str = "select 'contents of {}' as what, coalesce(md5(string_agg(t::text, ',' order by t::text)), 'empty') as state from {} t";

struct Label {
    sql: String,
    expect: String,
    safe: bool,
    empty: bool,
}

fn labels() -> Vec<Label> {
    let label = |line: &str| {
        let label: Value = serde_json::from_str(line).unwrap();
        Label {
            sql: label["sql"].as_str().unwrap().to_owned(),
            expect: label["expect"].as_str().unwrap().to_owned(),
            safe: label["readonly_safe"].as_bool().unwrap(),
            empty: label["class"] == "empty",
        }
    };
    LABELLED.lines().map(label).collect()
}

/// A sandbox with the fixture in it.
struct Place {
    stdio: Stdio,
    id: String,
}

impl Place {
    fn new(home: &Home) -> Self {
        let mut stdio = Stdio::start(home);
        let made = stdio.call("create_database", &json!({"nameHint": "labelled", "ttlMinutes": 30}));
        let id = made["result"]["databaseId"].as_str().unwrap_or_else(|| panic!("{made:#}")).to_owned();
        let mut place = Self { stdio, id };
        // What its comments ask of a superuser is not had: the owner has its schema already, and nobody `dblink`.
        place.write(FIXTURE);
        place
    }

    fn run(&mut self, sql: &str, readonly: bool) -> Value {
        let input =
            json!({"databaseId": self.id, "sql": sql, "readonly": readonly, "rowLimit": 1000, "timeoutSeconds": 20});
        self.stdio.call("run_sql", &input)
    }

    fn write(&mut self, sql: &str) -> Value {
        let envelope = self.run(sql, false);
        assert_eq!(envelope["ok"], true, "{sql}: {envelope:#}");
        envelope["result"]["resultSets"].clone()
    }

    /// Returns all that a statement could have changed, by name, as the owner sees it.
    fn state(&mut self) -> BTreeMap<String, String> {
        let names =
            "select oid::regclass from pg_class where relkind in ('r', 'm') and relnamespace = 'public'::regnamespace";
        let names = self.write(names)[0]["rows"].clone();
        let names = names.as_array().unwrap().iter().map(|row| row[0].as_str().unwrap());
        let contents = names.map(|name| CONTENTS.replace("{}", name)).collect::<Vec<_>>().join(";");
        let sets = self.write(&format!("{CATALOGUES}; {contents}"));
        let rows = sets.as_array().unwrap().iter().flat_map(|set| set["rows"].as_array().unwrap());
        rows.map(|row| (row[0].as_str().unwrap().to_owned(), row[1].as_str().unwrap().to_owned())).collect()
    }
}

/// Names what differs.
fn changes(before: &BTreeMap<String, String>, after: &BTreeMap<String, String>) -> Vec<String> {
    let names = before.keys().chain(after.keys()).filter(|name| before.get(*name) != after.get(*name));
    names.map(|name| format!("{name}: {:?} became {:?}", before.get(name), after.get(name))).collect()
}

#[test]
fn what_must_be_refused_read_only_changes_nothing_and_reads_run() {
    let home = Home::with_cluster();
    let mut place = Place::new(&home);
    let before = place.state();
    assert!(before.len() > 30, "{before:#?}");

    let mut stopped = BTreeMap::new();
    let mut not_run = BTreeMap::new();
    let (mut unsafe_ones, mut refused, mut reads, mut reads_run, mut others, mut others_run) = (0, 0, 0, 0, 0, 0);
    for label in labels() {
        let envelope = place.run(&label.sql, true);
        let (ran, error) = (envelope["ok"] == true, &envelope["errors"][0]);
        if !label.safe {
            unsafe_ones += 1;
            assert!(!ran, "{:?} must not run: {envelope:#}", label.sql);
            match error["sqlstate"].as_str() {
                // No Postgres reads it: that is said as Postgres would, without asking it.
                None | Some("42601") => refused += 1,
                Some(sqlstate) => {
                    stopped.insert(label.sql.clone(), sqlstate.to_owned());
                    let changes = changes(&before, &place.state());
                    assert!(changes.is_empty(), "{:?} changed {changes:#?}", label.sql);
                }
            }
        } else if label.empty {
            assert_eq!(error["code"], "syntax_error", "{:?}: {envelope:#}", label.sql);
        } else if label.expect == "allow" {
            reads += 1;
            reads_run += u32::from(ran);
            if !ran {
                not_run.insert(label.sql.clone(), error["code"].as_str().unwrap_or_default().to_owned());
            }
        } else {
            others += 1;
            others_run += u32::from(ran);
        }
    }
    let changes = changes(&before, &place.state());
    assert!(changes.is_empty(), "{changes:#?}");

    let share = f64::from(reads_run) * 100.0 / f64::from(reads);
    println!("{unsafe_ones} unsafe: 0 ran, {refused} refused unsent, {} stopped by Postgres", stopped.len());
    println!("{reads} reads: {reads_run} ran ({share:.1} %), not {not_run:#?}");
    println!("{others} of which either is accepted: {others_run} ran");
    assert_eq!(stopped, table(STOPPED_BY_POSTGRES), "what reaches the server is listed with its reason");
    assert_eq!(not_run, table(READS_NOT_RUN), "reads that do not run are listed with their reason");
    assert!(share >= READS_RUN_MIN, "{share:.1} % of the reads ran");
}

fn table(rows: &[(&str, &str, &str)]) -> BTreeMap<String, String> {
    rows.iter().map(|(sql, answer, _)| ((*sql).to_owned(), (*answer).to_owned())).collect()
}

#[test]
fn the_state_that_is_compared_shows_every_kind_of_change() {
    let home = Home::with_cluster();
    let mut place = Place::new(&home);
    let mut before = place.state();
    let writes = [
        "insert into audit(id, msg) values (7, 'x')",
        "update accounts set balance = balance + 1 where id = 1",
        "select nextval('ticket_seq')",
        "refresh materialized view order_totals; truncate orders; refresh materialized view order_totals",
        "select lo_create(0)",
        "create table other (a int)",
        "alter function bump_audit() stable",
        "grant select on accounts to public",
        "comment on table audit is 'x'",
        "alter table audit enable row level security",
        "drop view noisy_view",
        "reindex table accounts",
    ];
    for write in writes {
        place.write(write);
        let after = place.state();
        assert_ne!(changes(&before, &after), [""; 0], "{write}");
        before = after;
    }
}
