//! Masks that policies demand: made true on the copy, whatever the caller wants, or the clone refused.

use pgsandbox::model::Obligation;
use serde_json::{Value, json};

use super::{Setup, reader_url, source};
use crate::harness;
use crate::obligations::demanding;
use crate::program::{Cli, Transport};

const PEOPLE: &str = "
    CREATE TABLE people (id int PRIMARY KEY, mail varchar(40) NOT NULL UNIQUE, name text, phone text, note text, doc jsonb NOT NULL,
        born date NOT NULL, shout text GENERATED ALWAYS AS (upper(name)) STORED);
    INSERT INTO people SELECT n, 'secret' || n || '@example.com', 'secret', 'secret', 'secret', '{\"v\": \"secret\"}', '1980-05-06'
        FROM generate_series(1, 100) n;
    CREATE INDEX ON people (lower(name));
    CREATE VIEW seen AS SELECT name FROM public.people;
    CREATE MATERIALIZED VIEW kept AS SELECT name, mail FROM public.people;
";

fn mask(relation: &str, column: &str) -> Obligation {
    Obligation::Mask { relation: relation.into(), column: column.into() }
}

fn setup(prefix: &'static str, database: &str, demands: &[Obligation]) -> Setup {
    let cluster = harness::cluster();
    source(cluster, database, "", PEOPLE);
    let setup = Setup::on(cluster, prefix, &[("people", reader_url(cluster, database), json!({}))]);
    let mut guest = demanding(demands);
    guest.concerns = vec!["clone_database".into()];
    setup.beside(&guest)
}

fn own(column: &str, with: &str) -> Value {
    json!({"table": "people", "column": column, "with": with})
}

#[test]
fn what_policies_demand_is_masked_and_of_two_masks_the_stricter_holds() {
    let demands = [
        mask("public.people", "mail"),
        mask("people", "name"),
        mask("public.people", "phone"),
        mask("public.people", "note"),
        mask("public.people", "doc"),
        mask("public.people", "born"),
        mask("public.people", "no_such_column"),
        mask("elsewhere.people", "name"),
    ];
    let setup = setup("clonedemand", "demanded", &demands);
    let constant =
        |column: &str, value: &str| json!({"table": "people", "column": column, "with": "constant", "value": value});
    let input = json!({"source": "people", "mask": [
        own("mail", "fake"), own("phone", "hash"), constant("note", "gone"), constant("doc", "{}"),
    ]});
    let told =
        Cli::new(&setup.home).call("explain_policy", &json!({"operation": "clone_database", "arguments": input}));
    assert_eq!(told["result"]["allowed"], true, "{told:#}");
    let reply = setup.clone(input);
    assert_eq!(reply["ok"], true, "{reply:#}");
    let result = &reply["result"];
    let rows = |sql: &str| setup.rows(&result["databaseName"], sql);
    for table in ["people", "seen", "kept"] {
        for row in rows(&format!("SELECT t::text FROM {table} t")) {
            assert!(!row[0].to_lowercase().contains("secret"), "{table}: {row:?}");
        }
    }
    let statistics = "SELECT s::text FROM pg_stats s WHERE schemaname = 'public' AND s::text LIKE '%secret%'";
    assert_eq!(rows(statistics), Vec::<Vec<String>>::new());
    let counts = "SELECT count(*)::text, count(DISTINCT mail)::text, count(name)::text, count(phone)::text, count(*) FILTER (WHERE note = 'gone')::text, \
                  count(*) FILTER (WHERE doc = '{}')::text, count(*) FILTER (WHERE mail ~ '^[0-9a-f]{40}$')::text FROM people";
    assert_eq!(rows(counts), [["100", "100", "0", "0", "100", "100", "100"]]);
    let warnings = reply["warnings"].to_string();
    for said in [
        "column `mail` of `public.people` is masked by `hash` and not by `fake`, as `demanding` demands",
        "column `name` of `public.people` is masked by `null`, as `demanding` demands",
        "column `phone` of `public.people` is masked by `null` and not by `hash`",
        "column `born` of `public.people` is masked by `fake`",
    ] {
        assert!(warnings.contains(said), "`{said}` is not said: {warnings}");
    }
    assert!(!warnings.contains("`note`") && !warnings.contains("`doc`"), "{warnings}");
}

#[test]
fn what_cannot_be_masked_as_it_is_demanded_is_refused() {
    let check = |prefix: &'static str, demand: Obligation, says: &str| {
        let setup = setup(prefix, prefix, &[demand]);
        let error = setup.refused(json!({"source": "people"}), "obligation_unmet", says);
        assert_eq!((&error["policy"], &error["policyCode"]), (&json!("demanding"), &json!("mask")), "{error:#}");
        // Without rows nothing is there to be shown.
        setup.cloned(json!({"source": "people", "schemaOnly": true}));
    };
    check("demandjson", mask("public.people", "doc"), "by nothing but a constant");
    check("demandgen", mask("public.people", "shout"), "is computed by the server");
    check("demandview", mask("public.seen", "name"), "`public.seen` is a view");
    check("demandkept", mask("public.kept", "name"), "`public.kept` is a view");
}

#[test]
fn a_demand_that_names_no_table_is_refused_before_the_source_is_asked() {
    let setup = setup("demandname", "demand_name", &[mask("a.b.c", "x")]);
    let input = json!({"source": "people"});
    let told =
        Cli::new(&setup.home).call("explain_policy", &json!({"operation": "clone_database", "arguments": input}));
    assert_eq!(told["result"]["refusal"]["code"], "obligation_unmet", "{told:#}");
    setup.refused(input, "obligation_unmet", "which is no table's name");
}
