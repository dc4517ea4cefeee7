//! The same source, made by admins of every kind: a superuser, one that may make databases and roles, and the managed server's.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::{Value, json};

use super::{Setup, reader_url, source};
use crate::harness;
use crate::program::{Cli, Home, Transport};

const SHOP: &str = r#"
    CREATE SCHEMA app; CREATE SCHEMA ext;
    CREATE EXTENSION citext SCHEMA ext; CREATE EXTENSION hstore SCHEMA ext;
    CREATE SEQUENCE app.numbers START 100;
    CREATE TYPE app.state AS ENUM ('new', 'paid');
    CREATE TABLE app.orders (id bigint PRIMARY KEY DEFAULT nextval('app.numbers'), mail ext.citext, state app.state, more ext.hstore);
    CREATE TABLE app.lines (id serial PRIMARY KEY, order_id bigint REFERENCES app.orders, price numeric(10, 2) CHECK (price > 0));
    CREATE TABLE tenants (id int PRIMARY KEY, name text);
    ALTER TABLE tenants ENABLE ROW LEVEL SECURITY;
    CREATE POLICY own ON tenants FOR SELECT TO PUBLIC USING (name = current_user OR true);
    CREATE INDEX ON app.orders USING gin (more);
    CREATE VIEW app.paid AS SELECT id FROM app.orders WHERE state = 'paid';
    CREATE MATERIALIZED VIEW app.totals AS SELECT order_id, sum(price) AS total FROM app.lines GROUP BY order_id;
    CREATE FUNCTION app.total(bigint) RETURNS numeric LANGUAGE sql STABLE AS 'SELECT sum(price) FROM app.lines WHERE order_id = $1';
    CREATE FUNCTION app.touch() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN NEW.state := 'new'; RETURN NEW; END $$;
    INSERT INTO app.orders (mail, state, more) SELECT 'a' || n || '@example.com', 'paid', 'a=>1' FROM generate_series(1, 100) n;
    INSERT INTO app.lines (order_id, price) SELECT 99 + n, n FROM generate_series(1, 100) n;
    INSERT INTO tenants VALUES (1, 'one');
    REFRESH MATERIALIZED VIEW app.totals;
    CREATE TRIGGER touch BEFORE INSERT ON app.orders FOR EACH ROW EXECUTE FUNCTION app.touch();
    SELECT lo_from_bytea(777, 'large'::bytea);
    GRANT SELECT ON LARGE OBJECT 777 TO reader;
    CREATE ROLE NAME NOLOGIN; GRANT SELECT ON app.orders TO NAME; ALTER DEFAULT PRIVILEGES IN SCHEMA app GRANT SELECT ON TABLES TO NAME;
    COMMENT ON TABLE app.orders IS 'what was bought';
    ALTER ROLE reader BYPASSRLS;
"#;

/// What the owner sees of who owns what: everything is its own but what extensions made.
const OTHERS: &str = "SELECT 'class ' || relname FROM pg_class c WHERE relnamespace IN ('public'::regnamespace, 'app'::regnamespace) AND relowner <> current_user::regrole \
     UNION ALL SELECT 'function ' || proname FROM pg_proc WHERE pronamespace = 'app'::regnamespace AND proowner <> current_user::regrole \
     UNION ALL SELECT 'type ' || typname FROM pg_type WHERE typnamespace = 'app'::regnamespace AND typowner <> current_user::regrole \
     UNION ALL SELECT 'schema ' || nspname FROM pg_namespace WHERE nspname IN ('app', 'ext') AND nspowner <> current_user::regrole \
     UNION ALL SELECT 'extension ' || extname FROM pg_extension WHERE extname <> 'plpgsql' AND extowner <> current_user::regrole \
     UNION ALL SELECT 'large object ' || oid FROM pg_largeobject_metadata WHERE lomowner <> current_user::regrole \
     UNION ALL SELECT 'database' FROM pg_database WHERE datname = current_database() AND datdba <> current_user::regrole";

/// Looks at a clone as its owner does, and returns the checksum of its schema.
fn looked_at(home: &Home, result: &Value) -> String {
    let of = &result["databaseId"];
    let rows = |sql: &str| {
        let reply = Cli::new(home).call("run_sql", &json!({"databaseId": of, "sql": sql}));
        assert_eq!(reply["ok"], true, "{reply:#}");
        reply["result"]["resultSets"][0]["rows"].clone()
    };
    assert_eq!(rows(OTHERS), json!([]));
    assert_eq!(rows("SELECT convert_from(lo_get(777), 'UTF8')"), json!([["large"]]));
    assert_eq!(rows("SELECT nextval('app.numbers')"), json!([["200"]]));
    assert_eq!(
        rows("SELECT app.total(101), (SELECT count(*) FROM app.totals), (SELECT count(*) FROM tenants)"),
        json!([["2.00", "100", "1"]])
    );
    assert_eq!(
        rows("INSERT INTO app.orders (mail, state) VALUES ('X@example.com', 'paid') RETURNING state"),
        json!([["new"]])
    );
    let found = &result["verification"];
    assert_eq!((&found["tables"], &found["rows"]), (&json!(3), &json!(201)), "{found:#}");
    assert_eq!((&found["invalidObjects"], &found["unpopulatedMaterializedViews"]), (&json!([]), &json!([])));
    assert_eq!(found["extensions"], json!(["citext", "hstore"]));
    let reader = Cli::new(home)
        .call("run_sql", &json!({"databaseId": of, "sql": "SELECT count(*) FROM app.lines", "readonly": true}));
    assert_eq!(reader["result"]["resultSets"][0]["rows"], json!([["100"]]), "{reader:#}");
    let verified = Cli::new(home).call("verify_sandbox", &json!({"databaseId": of}));
    assert!(!verified["result"]["checks"].to_string().contains("\"fail"), "{verified:#}");
    let digest = Cli::new(home).call("schema_digest", &json!({"databaseId": of, "limit": 0}));
    digest["result"]["checksum"].as_str().unwrap_or_else(|| panic!("{digest:#}")).to_owned()
}

#[test]
fn a_clone_is_the_same_whoever_the_admin_is() {
    let cluster = harness::cluster();
    source(cluster, "shop_source", "", &SHOP.replace("NAME", "shop_clerk"));
    let url = reader_url(cluster, "shop_source");
    let sources = [("shop", url.clone(), json!({}))];
    let mut seen = Vec::new();
    for target in harness::clusters() {
        for (prefix, admin) in [("clonesu", target.superuser_url()), ("clonelim", target.limited_url())] {
            let setup = Setup::by(target, &admin, prefix, &sources);
            let result = setup.cloned(json!({"source": "shop", "ttlMinutes": 10}));
            seen.push((target.major, prefix, looked_at(&setup.home, &result)));
            setup.no_file_is_left();
            let of = json!({"databaseId": result["databaseId"], "wait": true});
            assert_eq!(Cli::new(&setup.home).call("delete_database", &of)["ok"], true);
            setup.nothing_is_left();
        }
    }
    let home = Home::fresh();
    let config = json!({
        "profiles": [{"name": "local", "managedLocal": true}],
        "sources": [{"name": "shop", "url": url}],
    });
    let path = home.path().join("config.json");
    fs::write(&path, config.to_string()).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    let path = path.to_str().unwrap().to_owned();
    let home = home.with("PGSANDBOX_CONFIG", &path);
    let reply = Cli::new(&home).call("clone_database", &json!({"source": "shop"}));
    assert_eq!(reply["ok"], true, "{reply:#}");
    let result = &reply["result"];
    let major = result["resolvedPostgresVersion"].as_str().unwrap().parse().unwrap();
    seen.push((major, "managed", looked_at(&home, result)));
    // Versions of extensions come with a server.
    for (major, admin, checksum) in &seen {
        let same = seen.iter().filter(|(other, ..)| other == major).all(|(.., other)| other == checksum);
        assert!(same, "by {admin} on {major}: {seen:#?}");
    }
}

#[test]
fn a_copy_that_an_admin_of_few_rights_cannot_finish_leaves_nothing() {
    let cluster = harness::cluster();
    let script =
        "CREATE TABLE t (v int); CREATE FUNCTION f(internal) RETURNS internal LANGUAGE internal AS 'btint4cmp'";
    source(cluster, "few_rights", "", script);
    source(cluster, "few_untrusted", "", "CREATE EXTENSION pg_buffercache; CREATE TABLE t (v int)");
    let url = |name| reader_url(cluster, name);
    let sources = [("f", url("few_rights"), json!({})), ("u", url("few_untrusted"), json!({}))];
    let setup = Setup::by(cluster, &cluster.limited_url(), "clonefew", &sources);
    setup.refused(json!({"source": "f"}), "restore_incompatible", "only a superuser may make it");
    setup.refused(json!({"source": "u"}), "extension_not_allowed", "only by a superuser");
}
