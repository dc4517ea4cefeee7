//! Policies that change while the real program runs: each way to have them read again, what becomes of a broken set, and
//! what is written down.

use std::collections::BTreeMap;
use std::fs;
use std::process::Stdio as Pipe;
use std::thread;
use std::time::{Duration, Instant};

use pgsandbox::model::{Mode, Verdict};
use serde_json::{Value, json};

use crate::hostile::code;
use crate::obligations::{home_with_policy_file, policies_with, write_policies, write_policies_but};
use crate::policies::guest::Guest;
use crate::program::{Home, Stdio, Transport};

/// How long a server may take to see something: it looks every two seconds, and may have to compile.
const SEEN: Duration = Duration::from_secs(60);

/// Makes a new file and puts it in the place of the old one, as editors do.
fn put(home: &Home, text: &str) {
    let file = home.path().join("policies.toml");
    fs::write(file.with_extension("new"), text).unwrap();
    fs::rename(file.with_extension("new"), file).unwrap();
}

fn hang_up(server: &Stdio) {
    let pid = rustix::process::Pid::from_raw(server.pid().try_into().unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::HUP).unwrap();
}

/// Returns the checks of `doctor` by name, each with its status and detail.
fn health(server: &mut Stdio) -> BTreeMap<String, (String, String)> {
    let reply = server.call("doctor", &json!({}));
    let checks = reply["result"]["checks"].as_array().unwrap_or_else(|| panic!("{reply:#}"));
    let text = |of: &Value| of.as_str().unwrap_or_default().to_owned();
    checks.iter().map(|one| (text(&one["name"]), (text(&one["status"]), text(&one["detail"])))).collect()
}

/// Waits until `doctor` says what is looked for.
fn wait_for(server: &mut Stdio, what: impl Fn(&BTreeMap<String, (String, String)>) -> bool) {
    let until = Instant::now() + SEEN;
    loop {
        let found = health(server);
        if what(&found) {
            return;
        }
        assert!(Instant::now() < until, "{found:#?}");
        thread::yield_now();
    }
}

fn serves(generation: u64) -> impl Fn(&BTreeMap<String, (String, String)>) -> bool {
    move |found| found["policies.loaded"].1.contains(&format!("generation {generation} "))
}

/// Returns the opening and closing lines of every reload.
fn reloads(home: &Home) -> Vec<(Value, Value)> {
    let output = home.run(&["audit", "tail", "--lines", "100000"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines: Vec<Value> =
        String::from_utf8(output.stdout).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let opened = lines.iter().filter(|line| line["operation"] == "policy-reload");
    opened
        .map(|open| {
            let close = lines.iter().find(|line| line["kind"] == "close" && line["id"] == open["id"]);
            (open.clone(), close.unwrap_or_else(|| panic!("not closed: {open:#}")).clone())
        })
        .collect()
}

fn reload(home: &Home) -> (Option<i32>, Value) {
    let output = home.run(&["policy", "reload", "--format", "json"]);
    let said = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)));
    (output.status.code(), said)
}

#[test]
fn a_signal_has_the_policies_read_again_and_a_weakening_is_audited() {
    let home = home_with_policy_file();
    let mut server = Stdio::start(&home);
    let tools = server.request("tools/list", json!({}))["result"]["tools"].clone();
    wait_for(&mut server, serves(1));
    put(&home, &policies_with("quota", "mode = \"shadow\"\n"));
    hang_up(&server);
    wait_for(&mut server, serves(2));
    assert_eq!(server.request("tools/list", json!({}))["result"]["tools"], tools);
    assert!(server.finish().success());
    let all = reloads(&home);
    let [(open, close)] = &all[..] else { panic!("{all:#?}") };
    let said = &open["reload"];
    assert_eq!(
        (&said["trigger"], &said["from"]["generation"], &said["to"]["generation"], &said["weakened"]),
        (&json!("signal"), &json!(1), &json!(2), &json!(["quota"])),
        "{open:#}"
    );
    let changes = json!([{"policy": "quota", "what": "mode", "from": "enforce", "to": "shadow"}]);
    assert_eq!((&said["changes"], &open["principal"]["subject"]), (&changes, &json!("system:policy-reload")));
    assert_ne!(said["from"]["digest"], said["to"]["digest"]);
    assert_eq!(close["outcome"], "ok");
    assert!(home.run(&["audit", "verify"]).status.success());
}

#[test]
fn a_file_that_changes_is_taken_and_one_that_is_broken_is_not() {
    let home = home_with_policy_file();
    let errors = home.path().join("errors");
    let mut server = Stdio::start_with(&home, &[], fs::File::create(&errors).unwrap().into());
    wait_for(&mut server, serves(1));
    // Written to in place, with a fault.
    let good = fs::read_to_string(home.path().join("policies.toml")).unwrap();
    fs::write(home.path().join("policies.toml"), format!("{good}[[policy]]\nsource = \"qouta\"\n")).unwrap();
    wait_for(&mut server, |found| found.contains_key("policies.reload"));
    let found = health(&mut server);
    let (status, detail) = &found["policies.reload"];
    assert!(status == "fail" && detail.contains("generation 1,") && detail.contains("is `quota` meant?"), "{detail}");
    assert!(serves(1)(&found), "{found:#?}");
    assert_eq!(code(&server.call("list_profiles", &json!({}))), "ok");
    let said = fs::read_to_string(&errors).unwrap();
    assert!(said.contains("ERROR") && said.contains("is `quota` meant?"), "{said}");
    // Another server would not serve at all.
    assert_eq!(home.run(&["policy", "list"]).status.code(), Some(1));
    // Mended, it is taken by itself, and nothing is said any more.
    put(&home, &policies_with("quota", "settings = { max_live = 3 }\n"));
    wait_for(&mut server, serves(2));
    assert!(!health(&mut server).contains_key("policies.reload"));
    assert!(server.finish().success());
    let all = reloads(&home);
    let [(refused, why), (taken, _)] = &all[..] else { panic!("{all:#?}") };
    assert_eq!((&refused["reload"]["trigger"], &refused["reload"]["to"]), (&json!("file"), &Value::Null));
    assert!(refused["reload"]["faults"].to_string().contains("is `quota` meant?"), "{refused:#}");
    assert_eq!((&why["outcome"], &why["code"]), (&json!("failed"), &json!("policy_not_ready")));
    assert_eq!(taken["reload"]["changes"][0]["what"], "settings", "{taken:#}");
    assert_eq!(taken["reload"]["weakened"], Value::Null);
}

#[test]
fn a_component_that_changes_is_taken_without_the_file() {
    let home = home_with_policy_file();
    let mut guest = Guest::new("mine");
    guest.covers = Vec::new();
    guest.concerns = vec!["*".to_owned()];
    guest.decision.verdict = Verdict::Abstain;
    guest.decision.warnings = vec!["the first".to_owned()];
    write_policies(&home, &[("mine", guest.component(), Mode::Enforce)]);
    let mut server = Stdio::start(&home);
    let warned = |server: &mut Stdio| server.call("list_profiles", &json!({}))["warnings"].to_string();
    assert!(warned(&mut server).contains("the first"));
    guest.decision.warnings = vec!["the second".to_owned()];
    fs::write(home.path().join("mine.wasm"), guest.component()).unwrap();
    wait_for(&mut server, serves(2));
    assert!(warned(&mut server).contains("the second"));
    // One that is gone is a broken set.
    fs::remove_file(home.path().join("mine.wasm")).unwrap();
    wait_for(&mut server, |found| found.contains_key("policies.reload"));
    assert!(warned(&mut server).contains("the second"));
    assert!(server.finish().success());
    let all = reloads(&home);
    assert_eq!(all[0].0["reload"]["changes"][0]["what"], "component", "{all:#?}");
}

#[test]
fn the_command_reaches_every_server_and_fails_if_one_does_not_take_it() {
    let home = home_with_policy_file();
    assert_eq!(reload(&home), (Some(0), json!({"ok": true, "servers": []})));
    let mut one = Stdio::start(&home);
    let mut two = Stdio::start(&home);
    let dead = Stdio::start(&home);
    for server in [&mut one, &mut two] {
        wait_for(server, serves(1));
    }
    // What a crash leaves is nobody's.
    dead.kill();
    let (status, said) = reload(&home);
    assert_eq!((status, &said["ok"]), (Some(0), &json!(true)), "{said:#}");
    let mut pids: Vec<_> = said["servers"].as_array().unwrap().iter().map(|one| one["pid"].clone()).collect();
    pids.sort_by_key(Value::as_u64);
    let mut expected = vec![json!(one.pid()), json!(two.pid())];
    expected.sort_by_key(Value::as_u64);
    assert_eq!(pids, expected);
    for server in said["servers"].as_array().unwrap() {
        assert_eq!((&server["taken"], &server["generation"]), (&json!(true), &json!(2)), "{server:#}");
        assert_eq!(server["digest"], said["servers"][0]["digest"]);
    }
    let listed = home.run(&["policy", "list", "--format", "json"]);
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert_eq!(listed["servers"].as_array().unwrap().len(), 2, "{listed:#}");
    assert_eq!(listed["servers"][0]["generation"], 2, "{listed:#}");
    assert!(listed["file"].as_str().unwrap().ends_with("policies.toml") && listed["servers"][0]["since"].is_string());

    put(&home, "[[policy]\n");
    let output = home.run(&["policy", "reload"]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert!(text.contains("generation 2 goes on serving") && text.contains("0 of 2 servers"), "{text}");
    assert_eq!(code(&one.call("list_profiles", &json!({}))), "ok");
    assert!(one.finish().success() && two.finish().success());
    assert_eq!(fs::read_dir(home.state().join("servers")).unwrap().count(), 0, "something was left");
    let triggers: Vec<_> = reloads(&home).into_iter().map(|(open, _)| open["reload"]["trigger"].clone()).collect();
    assert_eq!(triggers.iter().filter(|trigger| **trigger == "command").count(), 4, "{triggers:?}");
}

#[test]
fn a_server_that_does_not_answer_is_given_up() {
    let home = home_with_policy_file();
    let mut server = Stdio::start(&home);
    wait_for(&mut server, serves(1));
    let pid = rustix::process::Pid::from_raw(server.pid().try_into().unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    let mut command = home.command(&["policy", "reload"]);
    let output = command.env("PGSANDBOX_TEST_DEADLINE_MS", "1000").stdin(Pipe::null()).output().unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains(&format!("server {}: not taken; it did not answer", server.pid())), "{text}");
    assert_eq!(code(&server.call("list_profiles", &json!({}))), "ok");
}

#[test]
fn a_set_that_was_broken_at_start_is_cured() {
    let home = home_with_policy_file();
    let good = fs::read_to_string(home.path().join("policies.toml")).unwrap();
    put(&home, "[[policy]\n");
    let mut server = Stdio::start_with(&home, &[], Pipe::null());
    assert_eq!(code(&server.call("list_profiles", &json!({}))), "policy_not_ready");
    let (status, said) = reload(&home);
    assert_eq!((status, &said["servers"][0]["state"]), (Some(1), &json!("broken")), "{said:#}");
    put(&home, &good);
    let (status, said) = reload(&home);
    assert_eq!((status, &said["servers"][0]["state"]), (Some(0), &json!("serves")), "{said:#}");
    assert_eq!(code(&server.call("list_profiles", &json!({}))), "ok");
    assert!(server.finish().success());
    let all = reloads(&home);
    let (cured, _) = all.last().unwrap();
    assert_eq!((&cured["reload"]["from"], &cured["reload"]["to"]["generation"]), (&Value::Null, &json!(2)));
}

#[test]
fn what_cannot_be_recorded_does_not_serve() {
    let home = home_with_policy_file();
    let errors = home.path().join("errors");
    let faults = [("PGSANDBOX_TEST_FAULTS", "audit.open=fail@2")];
    let mut server = Stdio::start_with(&home, &faults, fs::File::create(&errors).unwrap().into());
    // The first entry that is opened is this call's, the second the reload's.
    assert_eq!(code(&server.call("list_profiles", &json!({}))), "ok");
    put(&home, &policies_with("quota", "mode = \"shadow\"\n"));
    let (status, said) = reload(&home);
    assert_eq!((status, &said["servers"][0]["generation"]), (Some(1), &json!(1)), "{said:#}");
    assert!(said["servers"][0]["faults"].to_string().contains("cannot be recorded"), "{said:#}");
    // It is tried again by itself.
    wait_for(&mut server, serves(2));
    assert!(server.finish().success());
    assert!(fs::read_to_string(&errors).unwrap().contains("cannot be recorded"));
    assert_eq!(reloads(&home).len(), 1);
}

#[test]
fn a_thousand_requests_during_reloads_are_each_decided_by_one_whole_set() {
    let home = home_with_policy_file();
    // Two policies that say the same word; each generation has another, in both or in none.
    let guests = |word: &str| {
        let guest = |name: &str| {
            let mut guest = Guest::new(name);
            guest.covers = Vec::new();
            guest.concerns = vec!["*".to_owned()];
            guest.decision.verdict = Verdict::Abstain;
            guest.decision.warnings = vec![word.to_owned()];
            guest.component()
        };
        [guest("first"), guest("second")]
    };
    let write = |round: usize| {
        let [first, second] = guests(&format!("word-{}", round % 2));
        write_policies_but(&home, "", &[]);
        let folder = home.path().join(format!("round-{}", round % 2));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("first.wasm"), first).unwrap();
        fs::write(folder.join("second.wasm"), second).unwrap();
        let own = |name: &str| format!("[[policy]]\nsource = \"{}/{name}.wasm\"\n", folder.display());
        put(&home, &format!("{}{}{}", policies_with("", ""), own("first"), own("second")));
    };
    write(0);
    let mut server = Stdio::start(&home);
    wait_for(&mut server, serves(1));
    let mut waiting = Vec::new();
    for n in 0..1000 {
        if n % 100 == 50 {
            write(n / 100 + 1);
            hang_up(&server);
        }
        waiting.push(server.begin("tools/call", json!({"name": "list_profiles", "arguments": {}})));
        // As many as may run at once, and no more: the others are told to wait.
        if waiting.len() >= 8 {
            check_whole(&mut server, waiting.remove(0));
        }
    }
    for id in waiting {
        check_whole(&mut server, id);
    }
    assert!(server.finish().success());
    let output = home.run(&["audit", "tail", "--lines", "100000", "--operation", "list_profiles"]);
    let lines = String::from_utf8(output.stdout).unwrap();
    let closes = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let mut words: BTreeMap<u64, String> = BTreeMap::new();
    let mut decided = 0;
    for line in closes.filter(|line| line["kind"] == "close") {
        let of = line["decision"]["generation"].as_u64().unwrap();
        let word = line["decision"]["warnings"][0][1].as_str().unwrap().to_owned();
        assert_eq!(words.entry(of).or_insert_with(|| word.clone()), &word, "generation {of} is mixed: {line:#}");
        decided += 1;
    }
    assert_eq!(decided, 1000);
    assert!(words.len() > 1, "no reload took place meanwhile");
}

#[test]
fn a_candidate_changes_nothing_and_what_it_would_change_is_told_and_counted() {
    let home = home_with_policy_file();
    let candidate = |settings: &str| {
        let of = "source = \"quota\"\nname = \"quota-next\"\nmode = \"candidate\"\nof = \"quota\"\n";
        format!("[[policy]]\n{of}settings = {settings}\n")
    };
    // One that loops is stopped by its own fuel.
    let looping = Guest::from_file("loop_evaluate").component();
    fs::write(home.path().join("looping.wasm"), looping).unwrap();
    let loops = "[[policy]]\nsource = \"./looping.wasm\"\nmode = \"candidate\"\nof = \"row-limit\"\n";
    put(&home, &format!("{}{}{loops}", policies_with("", ""), candidate("{ max_live = 1 }")));
    let mut server = Stdio::start(&home);
    for _ in 0..2 {
        assert_eq!(code(&server.call("create_database", &json!({}))), "ok");
    }
    let told = server.call("explain_policy", &json!({"operation": "create_database"}));
    let told = &told["result"];
    let word = told["policies"].as_array().unwrap().iter().find(|word| word["policy"] == "quota-next").unwrap();
    assert_eq!((&word["mode"], &word["of"]), (&json!("candidate"), &json!("quota")), "{word:#}");
    assert_eq!((&told["allowed"], &told["would"]["allowed"]), (&json!(true), &json!(false)), "{told:#}");

    let output = home.run(&["policy", "list", "--counts", "--format", "json"]);
    let counts: Value = serde_json::from_slice(&output.stdout).unwrap();
    let candidates = counts["servers"][0]["candidates"].as_array().unwrap().clone();
    let of = |name: &str| candidates.iter().find(|one| one["policy"] == name).unwrap().clone();
    // Two creations, and the explanation itself only if it concerns it: explaining another call counts nothing.
    assert!(of("quota-next")["different"].as_u64() >= Some(2), "{counts:#}");
    assert!(of("looping")["failed"].as_u64() >= Some(2), "{counts:#}");
    let text = String::from_utf8(home.run(&["policy", "list", "--counts"]).stdout).unwrap();
    assert!(text.contains("quota-next for `quota`: asked "), "{text}");
    assert!(server.finish().success());

    let output = home.run(&["audit", "tail", "--lines", "100000", "--operation", "create_database"]);
    let lines = String::from_utf8(output.stdout).unwrap();
    let closed = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let decided: Vec<Value> = closed.filter(|line| line["kind"] == "close").map(|l| l["decision"].clone()).collect();
    let [_, second] = &decided[..] else { panic!("{decided:#?}") };
    assert_eq!((&second["verdict"], &second["would"]["verdict"]), (&json!("allowed"), &json!("refused")), "{second:#}");
    let policies = second["policies"].as_array().unwrap();
    let next = policies.iter().find(|word| word["policy"] == "quota-next").unwrap();
    assert!(next["of"] == "quota" && next["differs"].as_array().is_some_and(|kinds| !kinds.is_empty()), "{next:#}");
}

/// Expects that a call was answered, under two policies of one generation.
fn check_whole(server: &mut Stdio, id: u64) {
    let reply = server.answer(id)["result"]["structuredContent"].clone();
    assert_eq!(code(&reply), "ok", "{reply:#}");
    let words: Vec<_> = reply["warnings"].as_array().unwrap().iter().map(Value::to_string).collect();
    let zeros = words.iter().filter(|word| word.contains("word-0")).count();
    let ones = words.iter().filter(|word| word.contains("word-1")).count();
    assert!((zeros, ones) == (2, 0) || (zeros, ones) == (0, 2), "{words:?}");
}
