//! Policies that are broken in every way, beside the bundled ones: nothing that they are asked about runs.

use std::fs;

use pgsandbox::model::{Charge, Denial, Mode, Verdict};
use serde_json::{Value, json};

use crate::hostile::{Session, code};
use crate::obligations::{home_with_policy_file, write_policies, write_policies_but};
use crate::policies::guest::{Guest, encode, world};
use crate::program::{Home, Stdio, Transport};

/// Guests that load and then break a rule when they are asked, each with the code of its refusal.
fn misbehaving() -> Vec<(String, Vec<u8>, &'static str)> {
    let mut code = Guest::new("undeclared-code");
    code.decision.verdict =
        Verdict::Deny(Denial { code: "other".into(), message: "x".into(), audit: String::new(), retry_after_ms: None });
    let mut bucket = Guest::new("undeclared-bucket");
    bucket.decision.charges = vec![Charge { bucket: "mine".into(), cost: 1 }];
    let files = [
        ("loop_evaluate", "policy_timeout"),
        ("flood", "policy_timeout"),
        ("grow_memory", "policy_memory"),
        ("grow_table", "policy_memory"),
        ("recurse", "policy_trapped"),
        ("trap", "policy_trapped"),
        ("long_message", "policy_memory"),
        ("many_obligations", "policy_output_invalid"),
        ("million_obligations", "policy_output_invalid"),
        ("not_utf8", "policy_output_invalid"),
        ("wild_pointer", "policy_output_invalid"),
        ("no_such_verdict", "policy_output_invalid"),
    ];
    let built = [&code, &bucket].map(|guest| (guest.name.clone(), guest.component(), "policy_output_invalid"));
    let files = files.map(|(file, code)| (file.replace('_', "-"), Guest::from_file(file).component(), code));
    built.into_iter().chain(files).collect()
}

fn rows(it: &mut Session) -> Value {
    let reply = it.sql("select count(*) from t", json!({}));
    assert_eq!(code(&reply), "ok", "{reply:#}");
    reply["result"]["resultSets"][0]["rows"][0][0].clone()
}

#[test]
fn a_policy_that_breaks_its_bounds_refuses_under_its_own_code_and_in_shadow_changes_nothing() {
    let home = home_with_policy_file();
    let mut it = Session::start(&home);
    assert_eq!(code(&it.sql("create table t (a int)", json!({}))), "ok");
    let before = it.sql("select 1 as a", json!({}));
    assert!(it.stdio.finish().success());
    for (name, component, expected) in misbehaving() {
        write_policies(&home, &[(&name, component, Mode::Enforce)]);
        it.stdio = Stdio::start(&home);
        for _ in 0..2 {
            let reply = it.sql("insert into t values (1)", json!({}));
            assert_eq!(code(&reply), expected, "{name}: {reply:#}");
            assert_eq!(reply["errors"][0]["policy"], json!(name), "{reply:#}");
        }
        let told = json!({"operation": "run_sql", "arguments": {"databaseId": it.id, "sql": "select 1"}});
        assert_eq!(code(&it.stdio.call("explain_policy", &told)), expected, "{name}");
        assert!(it.stdio.finish().success(), "{name}");
    }
    // All of them at once, in shadow.
    let all = misbehaving();
    let shadow: Vec<_> =
        all.iter().map(|(name, component, _)| (name.as_str(), component.clone(), Mode::Shadow)).collect();
    write_policies(&home, &shadow);
    it.stdio = Stdio::start(&home);
    assert_eq!(rows(&mut it), "0", "something that was refused ran");
    let after = it.sql("select 1 as a", json!({}));
    assert_eq!(after["result"]["resultSets"], before["result"]["resultSets"]);
    assert_eq!((&after["warnings"], &after["policy"]["limits"]), (&before["warnings"], &before["policy"]["limits"]));
    let told = json!({"operation": "run_sql", "arguments": {"databaseId": it.id, "sql": "select 1"}});
    let told = it.stdio.call("explain_policy", &told);
    assert_eq!(told["result"]["allowed"], true, "{told:#}");
    let words = told["result"]["policies"].as_array().unwrap();
    for (name, _, expected) in &all {
        let word = words.iter().find(|word| word["policy"] == json!(name)).unwrap();
        assert_eq!((&word["mode"], &word["verdict"]), (&json!("shadow"), &json!(expected)), "{word:#}");
    }
}

/// Expects that the program starts, refuses everything, and says why in `doctor`, on the command line and nowhere else.
fn check_refuses_to_serve(home: &Home, what: &str, says: &[&str]) {
    let mut stdio = Stdio::start(home);
    for (operation, input) in [
        ("list_profiles", json!({})),
        ("create_database", json!({})),
        ("list_databases", json!({})),
        ("explain_policy", json!({"operation": "doctor"})),
    ] {
        let reply = stdio.call(operation, &input);
        assert_eq!(code(&reply), "policy_not_ready", "{what}: {operation}: {reply:#}");
    }
    assert_eq!(stdio.request("tools/list", json!({}))["result"]["tools"].as_array().unwrap().len(), 12);
    let reply = stdio.call("doctor", &json!({}));
    assert_eq!((&reply["ok"], &reply["result"]["ok"]), (&json!(true), &json!(false)), "{what}: {reply:#}");
    let failed = reply["result"]["checks"].as_array().unwrap().iter();
    let said: String = failed.filter(|c| c["status"] == "fail").map(|c| c["detail"].to_string()).collect();
    for words in says {
        assert!(said.contains(words), "{what}: `{words}` is not in: {said}");
    }
    assert!(stdio.finish().success());
    let listed = home.run(&["policy", "list"]);
    assert!(!listed.status.success(), "{what}");
    let said = String::from_utf8(listed.stderr).unwrap().replace('"', "\\\"");
    for words in says {
        assert!(said.contains(words), "{what}: `{words}` is not in: {said}");
    }
    assert!(!home.run(&["list-profiles"]).status.success(), "{what}");
}

#[test]
fn a_policy_that_cannot_be_loaded_stops_everything_but_the_diagnosis() {
    let home = home_with_policy_file();
    for (file, says) in
        [("loop_configure", "policy_timeout"), ("loop_describe", "policy_timeout"), ("trap_always", "policy_trapped")]
    {
        let name = file.replace('_', "-");
        write_policies(&home, &[(&name, Guest::from_file(file).component(), Mode::Enforce)]);
        check_refuses_to_serve(&home, file, &[&name, says]);
    }
    let other = world("").replace("policy@0.1.0", "policy@0.2.0");
    let other = encode(&Guest::new("p").wat(), &other, "policy");
    write_policies(&home, &[("other-world", other, Mode::Enforce)]);
    let wants = "it wants `pgsandbox:policy/types@0.2.0`, and `pgsandbox:policy@0.1.0` is offered";
    check_refuses_to_serve(&home, "another world", &["other-world", wants]);

    let clock = "(module (import \"wasi:clocks/wall-clock@0.2.0\" \"now\" (func $now (result i64)))";
    let clock = Guest::new("p").wat().replacen("(module", clock, 1);
    let wasi = encode(&clock, &world("import wasi:clocks/wall-clock@0.2.0;"), "policy");
    // Shadow does not help: what cannot be loaded is not there to be asked.
    write_policies(&home, &[("clock", wasi, Mode::Shadow)]);
    check_refuses_to_serve(&home, "WASI", &["clock", "wasi:clocks/wall-clock"]);

    write_policies(&home, &[("text", b"no component".to_vec(), Mode::Enforce)]);
    check_refuses_to_serve(&home, "no component", &["text", "no component that can be compiled"]);
}

#[test]
fn a_policy_file_with_a_mistake_is_refused_whole_with_the_nearest_word() {
    let home = home_with_policy_file();
    let file = home.path().join("policies.toml");
    let good = fs::read_to_string(&file).unwrap();
    for (what, text, says) in [
        ("a misspelt key", "[[policy]]\nname = \"x\"\nsuorce = \"quota\"\n", "`suorce`; is `source` meant?"),
        (
            "a misspelt setting",
            "[[policy]]\nname = \"x\"\nsource = \"quota\"\nsettings = { max_lives = 1 }\n",
            "max_live",
        ),
        ("a misspelt policy", "[[policy]]\nname = \"x\"\nsource = \"qouta\"\n", "is `quota` meant?"),
        ("a misspelt mode", "[[policy]]\nname = \"x\"\nsource = \"quota\"\nmode = \"shaddow\"\n", "is `shadow` meant?"),
        (
            "a limit that is none",
            "[[policy]]\nname = \"x\"\nsource = \"quota\"\nsettings = { max_live = \"many\" }\n",
            "max_live",
        ),
        ("no file", "[[policy]]\nsource = \"./none.wasm\"\n", "none.wasm"),
        ("a directory", "[[policy]]\nsource = \"./state/cache/x.wasm/../\"\nname = \"x\"\n", "cannot be read"),
        ("no TOML", "[[policy]\n", "line"),
    ] {
        fs::write(&file, format!("{good}\n{text}")).unwrap();
        check_refuses_to_serve(&home, what, &[says]);
    }
    fs::write(&file, "").unwrap();
    check_refuses_to_serve(&home, "an empty file", &["no policy is named"]);
    fs::remove_file(&file).unwrap();
    let started = home.command(&["mcp"]).stdin(std::process::Stdio::null()).output().unwrap();
    assert!(!started.status.success() && started.stdout.is_empty(), "{started:?}");
    assert!(String::from_utf8_lossy(&started.stderr).contains("PGSANDBOX_POLICIES"), "{started:?}");
}

#[test]
fn without_the_policy_that_answers_everything_is_uncovered() {
    let home = home_with_policy_file();
    write_policies_but(&home, "ownership", &[]);
    let mut stdio = Stdio::start(&home);
    for (operation, input) in [
        ("list_profiles", json!({})),
        ("create_database", json!({})),
        ("list_databases", json!({})),
        ("cleanup_expired", json!({})),
        ("doctor", json!({})),
    ] {
        assert_eq!(code(&stdio.call(operation, &input)), "uncovered", "{operation}");
    }
    assert!(stdio.finish().success());
    // In shadow it gives no coverage.
    let text = fs::read_to_string(home.path().join("policies.toml")).unwrap();
    fs::write(
        home.path().join("policies.toml"),
        format!("{text}[[policy]]\nsource = \"ownership\"\nmode = \"shadow\"\n"),
    )
    .unwrap();
    assert_eq!(code(&Stdio::start(&home).call("list_profiles", &json!({}))), "uncovered");
}
