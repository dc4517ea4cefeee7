//! Policies through the real host: what works, and what every limit stops.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod bundled;
pub(crate) mod guest;
mod looping;
mod together;

use std::time::{Duration, Instant};

use pgsandbox::model::{
    Bucket, Charge, Code, Denial, Obligation, PolicyDecision, Said, Scope, StatementClass, StatementFacts, Traits,
    Verdict,
};
use pgsandbox::policy::wasm::{Host, HostSettings, STANDBY_MAX};
use pgsandbox::policy::{
    FUEL_MAX, FUEL_MIN, LoadError, Loader as _, Problem, Section, Set, Spec, TIMEOUT_MS_DEFAULT, TIMEOUT_MS_MAX,
    TIMEOUT_MS_MIN,
};
use proptest::prelude::*;

use guest::{Guest, context, encode, spec, world};

fn host() -> Host {
    Host::new(&HostSettings { slots: 4, ..HostSettings::default() }).unwrap()
}

fn load(specs: &[Spec]) -> Result<Set, LoadError> {
    Set::load(&host(), specs, 1)
}

fn bucket(name: &str, burst: u32) -> Bucket {
    Bucket { name: name.into(), burst, per_interval: 1, interval_ms: 60_000 }
}

fn deny(code: &str, message: &str) -> Verdict {
    Verdict::Deny(Denial { code: code.into(), message: message.into(), audit: String::new(), retry_after_ms: None })
}

fn statement() -> StatementFacts {
    StatementFacts {
        class: StatementClass::Read,
        tag: "SELECT".into(),
        traits: Traits::default(),
        relations: Vec::new(),
        functions: Vec::new(),
        read_only_safe: true,
        fingerprint: pgsandbox::model::Fingerprint(1),
    }
}

/// Loads one guest, asks it, and expects its own kind of refusal; the host must serve others afterwards.
fn check_stopped(mut spec: Spec, expected: Code, says: &str) {
    let host = host();
    if spec.limits.timeout_ms == TIMEOUT_MS_DEFAULT {
        // Fuel decides, however busy the machine is.
        spec.limits.timeout_ms = TIMEOUT_MS_MAX;
    }
    let set = Set::load(&host, &[spec], 1).unwrap();
    let decision = set.decide(&context(), &[]);
    let refusal = decision.refusal.clone().expect("a policy that breaks its bounds let a request through");
    assert_eq!(refusal.code, expected, "{refusal}: {:?}", refusal.audit);
    let detail = refusal.audit.unwrap();
    assert!(detail.contains(says), "`{detail}` does not say `{says}`");
    let good = Set::load(&host, &[Guest::new("good").spec()], 2).unwrap();
    for _ in 0..5 {
        assert_eq!(set.decide(&context(), &[]).refusal.map(|refusal| refusal.code), Some(expected));
        assert_eq!(good.decide(&context(), &[]).refusal, None);
        // An instance that stood ready has the same bounds.
        [&set, &good].into_iter().for_each(|set| set.make_ready("run_sql", "me"));
    }
}

/// Expects that a policy cannot be loaded, and why.
fn check_refused_at_load(spec: Spec, path: &str, says: &str) {
    let error = load(&[spec]).unwrap_err();
    let fault = error.faults.iter().find(|fault| fault.path == path);
    let fault = fault.unwrap_or_else(|| panic!("nothing is wrong with `{path}` in: {error}"));
    assert!(fault.message.contains(says), "`{}` does not say `{says}`", fault.message);
}

#[test]
fn fuel_stops_a_loop_at_the_same_place_each_time() {
    check_stopped(Guest::from_file("loop_evaluate").spec(), Code::PolicyTimeout, "all fuel consumed");
    let decide = || load(&[Guest::from_file("loop_evaluate").spec()]).unwrap().decide(&context(), &[]);
    assert_eq!(decide().reports[0].fuel, decide().reports[0].fuel);
}

#[test]
fn loops_at_load_are_refused_at_load() {
    check_refused_at_load(Guest::from_file("loop_configure").spec(), "settings", "policy_timeout");
    check_refused_at_load(Guest::from_file("loop_describe").spec(), "source", "policy_timeout");
    check_refused_at_load(Guest::from_file("loop_start").spec(), "source", "policy_timeout");
}

#[test]
fn a_policy_cannot_sleep_in_its_start_function_or_anywhere() {
    // Fuel stands still while a thread waits, so whoever waits is not let in.
    check_refused_at_load(Guest::from_file("sleep_start").spec(), "source", "no component that can be compiled");
}

#[test]
fn the_clock_stops_what_fuel_does_not_see() {
    let host = host();
    let mut spec = Guest::from_file("slow").spec();
    spec.limits.fuel = FUEL_MAX;
    spec.limits.timeout_ms = TIMEOUT_MS_MIN;
    let slow = Set::load(&host, &[spec], 1).unwrap();
    let good = Set::load(&host, &[Guest::new("good").spec()], 2).unwrap();
    // The clock is a thread like any other: on a busy machine it may get its turn so late that all the fuel has burnt.
    // One that stops nothing never comes first.
    let by_the_clock = (0..50).any(|_| {
        let refusal = slow.decide(&context(), &[]).refusal.expect("it never answers");
        assert_eq!(refusal.code, Code::PolicyTimeout, "{refusal}: {:?}", refusal.audit);
        refusal.audit.unwrap().contains("interrupt")
    });
    assert!(by_the_clock, "fuel ended it each time");
    assert_eq!(good.decide(&context(), &[]).refusal, None);
}

/// Why there is a clock: all the fuel that can be configured burns for longer than the shortest time that can be. A slow
/// machine makes it longer still.
#[test]
fn the_most_fuel_burns_for_longer_than_the_shortest_time() {
    let mut spec = Guest::from_file("slow").spec();
    spec.limits.fuel = FUEL_MAX;
    spec.limits.timeout_ms = TIMEOUT_MS_MAX;
    let set = load(&[spec]).unwrap();
    let begun = Instant::now();
    assert_eq!(set.decide(&context(), &[]).refusal.map(|refusal| refusal.code), Some(Code::PolicyTimeout));
    assert!(begun.elapsed() > Duration::from_millis(TIMEOUT_MS_MIN), "{:?}", begun.elapsed());
}

#[test]
fn filling_memory_costs_fuel_by_the_byte() {
    check_stopped(Guest::from_file("flood").spec(), Code::PolicyTimeout, "all fuel consumed");
}

#[test]
fn memory_and_tables_have_bounds() {
    check_stopped(Guest::from_file("grow_memory").spec(), Code::PolicyMemory, "memory wanted");
    let mut small = Guest::from_file("grow_memory").spec();
    small.limits.memory_bytes = 256 << 10;
    check_stopped(small, Code::PolicyMemory, "over the limit of 262144");
    check_stopped(Guest::from_file("grow_table").spec(), Code::PolicyMemory, "a table wanted");
}

#[test]
fn the_stack_has_a_bound() {
    check_stopped(Guest::from_file("recurse").spec(), Code::PolicyTrapped, "call stack exhausted");
}

#[test]
fn a_trap_is_a_refusal_of_its_own() {
    check_stopped(Guest::from_file("trap").spec(), Code::PolicyTrapped, "unreachable");
    check_refused_at_load(Guest::from_file("trap_always").spec(), "settings", "policy_trapped");
}

#[test]
fn output_has_bounds() {
    let mut long = Guest::from_file("long_message").spec();
    long.limits.memory_bytes = 16 << 20;
    check_stopped(long, Code::PolicyOutputInvalid, "cannot be read");
    for file in ["many_obligations", "million_obligations", "same_text"] {
        check_stopped(Guest::from_file(file).spec(), Code::PolicyOutputInvalid, "cannot be read");
    }
}

#[test]
fn output_that_is_no_value_is_refused() {
    for file in ["not_utf8", "wild_pointer", "odd_pointer", "no_such_verdict"] {
        check_stopped(Guest::from_file(file).spec(), Code::PolicyOutputInvalid, "cannot be read");
    }
}

#[test]
fn memory_that_a_guest_does_not_have_is_not_written_to() {
    check_refused_at_load(Guest::from_file("wild_realloc").spec(), "settings", "policy_");
}

#[test]
fn words_that_were_not_declared_are_refused() {
    let mut code = Guest::new("code");
    code.decision.verdict = deny("other", "x");
    check_stopped(code.spec(), Code::PolicyOutputInvalid, "code `other`");
    let mut bucket = Guest::new("bucket");
    bucket.decision.charges = vec![Charge { bucket: "mine".into(), cost: 1 }];
    check_stopped(bucket.spec(), Code::PolicyOutputInvalid, "bucket `mine`");
}

#[test]
fn what_is_no_policy_is_refused_with_what_is_offered() {
    check_refused_at_load(spec("p", b"text".to_vec()), "source", "no component that can be compiled");
    let module = wat::parse_str(Guest::new("p").wat()).unwrap();
    check_refused_at_load(spec("p", module), "source", "core module");

    let empty = encode("(module (memory (export \"memory\") 1))", "package x:y; world w {}", "w");
    check_refused_at_load(spec("p", empty), "source", "does not export `describe`, `configure` and `evaluate`");

    let other = world("").replace("policy@0.1.0", "policy@0.2.0");
    let other = encode(&Guest::new("p").wat(), &other, "policy");
    let says =
        "built for another version: it wants `pgsandbox:policy/types@0.2.0`, and `pgsandbox:policy@0.1.0` is offered";
    check_refused_at_load(spec("p", other), "source", says);

    let clock = "(module (import \"wasi:clocks/wall-clock@0.2.0\" \"now\" (func $now (result i64)))";
    let clock = Guest::new("p").wat().replacen("(module", clock, 1);
    let wasi = encode(&clock, &world("import wasi:clocks/wall-clock@0.2.0;"), "policy");
    check_refused_at_load(spec("p", wasi.clone()), "source", "imports `wasi:clocks/wall-clock@0.2.0`");
    check_refused_at_load(spec("p", wasi), "source", "without WASI");
}

#[test]
fn what_no_slot_could_hold_is_refused_at_load() {
    let mut guest = Guest::new("p");
    guest.pages = 257;
    check_refused_at_load(guest.spec(), "source", "exceeds the limit of 0x1000000 bytes");
    guest.pages = 200;
    check_refused_at_load(guest.spec(), "source", "memory wanted 13107200 bytes, over the limit of 8388608");
}

#[test]
fn a_component_beyond_the_size_limit_is_not_compiled() {
    let component = vec![0; pgsandbox::policy::COMPONENT_BYTES_MAX + 1];
    check_refused_at_load(spec("p", component.clone()), "source", "over the limit of 25165824");
    let direct = host().load(&spec("p", component)).err().unwrap();
    assert!(direct.contains("over the limit"), "{direct}");
}

#[test]
fn every_fault_of_every_policy_is_reported() {
    let mut refuses = Guest::from_file("refuses_settings");
    let problem = |path: &str, message: &str| Problem { path: path.into(), message: message.into() };
    refuses.configured = Err(vec![problem("max", "is no number"), problem("", "is empty")]);
    let mut refuses = refuses.spec();
    refuses.sections = vec![Section { pattern: "team-*".into(), settings: "{\"a\":1}".into() }];
    let error = load(&[refuses, spec("text", b"text".to_vec()), Guest::new("good").spec()]).unwrap_err();
    let faults: Vec<_> = error.faults.iter().map(|fault| (fault.policy.as_str(), fault.path.as_str())).collect();
    let refuses = "refuses_settings";
    let expected = [
        (refuses, "owners.team-*"),
        (refuses, "owners.team-*.max"),
        (refuses, "settings"),
        (refuses, "settings.max"),
        ("text", "source"),
    ];
    assert_eq!(faults, expected);
}

#[test]
fn a_set_is_checked_before_anything_is_compiled() {
    let good = Guest::new("p").spec();
    let mut pinned = Guest::new("q").spec();
    pinned.pin = Some("00".repeat(32));
    pinned.limits.fuel = 0;
    pinned.limits.memory_bytes = usize::MAX;
    pinned.limits.timeout_ms = 0;
    pinned.settings = " ".repeat(pgsandbox::policy::SETTINGS_BYTES_MAX + 1);
    let error = load(&[good.clone(), good, pinned]).unwrap_err();
    let paths: Vec<_> = error.faults.iter().map(|fault| fault.path.as_str()).collect();
    assert_eq!(paths, ["name", "digest", "limits.fuel", "limits.memory_kib", "limits.timeout_ms", "settings"]);
    let many = vec![Guest::new("p").spec(); pgsandbox::policy::POLICIES_MAX + 1];
    assert!(load(&many).unwrap_err().to_string().contains("over the limit of 64"));
}

/// Loads a guest whose row limit is the length of its settings, and expects it.
fn check_settings(file: &str, owner: &str, expected_rows: u64) {
    let mut spec = Guest::from_file(file).spec();
    spec.settings = "{\"n\":1}".into();
    spec.sections = vec![
        Section { pattern: "team-*".into(), settings: "{\"n\":1000}".into() },
        Section { pattern: "team-a".into(), settings: "{}".into() },
        Section { pattern: "twin".into(), settings: "{}".into() },
    ];
    let set = load(&[spec]).unwrap();
    let mut context = context();
    context.principal.owner = owner.into();
    for _ in 0..3 {
        let decision = set.decide(&context, &[]);
        assert_eq!(decision.refusal, None);
        let limit = decision.obligations.max_rows.unwrap();
        assert_eq!((limit.value, limit.set_by.as_str()), (expected_rows, file), "{owner}");
        ["me", "team-a", "team-b", "twin"].into_iter().for_each(|owner| set.make_ready("run_sql", owner));
    }
}

#[test]
fn each_owner_gets_its_sections_settings() {
    // A snapshot holds the first guest's state; the second one's must be made anew in each instance.
    for file in ["settings_length", "settings_in_table"] {
        check_settings(file, "me", 7);
        check_settings(file, "team-b", 10);
        check_settings(file, "team-a", 2);
        check_settings(file, "twin", 2);
    }
}

#[test]
fn nothing_is_remembered_from_one_request_to_the_next() {
    let set = load(&[Guest::from_file("remembers").spec()]).unwrap();
    for times_readied in [0, 0, 1, 2, 0, 1] {
        (0..times_readied).for_each(|_| set.make_ready("run_sql", "me"));
        assert_eq!(set.decide(&context(), &[]).obligations.max_rows.unwrap().value, 1);
    }
}

#[test]
fn instances_that_stand_ready_take_no_slot_from_what_runs() {
    let host = Host::new(&HostSettings { slots: 1, slot_wait_ms: 60_000, cache_directory: None }).unwrap();
    let guests: Vec<_> = (0..=STANDBY_MAX).map(|n| Guest::new(&format!("p{n:02}")).spec()).collect();
    let set = Set::load(&host, &guests, 1).unwrap();
    for _ in 0..3 {
        assert_eq!(set.decide(&context(), &[]).refusal, None);
        set.make_ready("run_sql", "me");
        // Another generation beside it finds every place taken, and needs none.
        let next = Set::load(&host, &guests, 2).unwrap();
        next.make_ready("run_sql", "me");
        assert_eq!(next.decide(&context(), &[]).refusal, None);
    }
}

#[test]
fn a_snapshot_that_would_decide_otherwise_is_not_used() {
    let set = load(&[Guest::from_file("memory_size").spec()]).unwrap();
    assert_eq!(set.decide(&context(), &[]).obligations.max_rows.unwrap().value, 2);
}

#[test]
fn one_of_each_obligation_and_all_of_a_denial_come_through() {
    let all = vec![
        Obligation::ReadOnly,
        Obligation::MaxRows(1),
        Obligation::MaxResultBytes(2),
        Obligation::StatementTimeoutMs(3),
        Obligation::MaxTtlMinutes(4),
        Obligation::MaxLiveSandboxes { scope: Scope::Group, limit: 5 },
        Obligation::MaxDatabaseBytes { scope: Scope::Principal, limit: 6 },
        Obligation::Mask { relation: "r".into(), column: "c".into() },
        Obligation::RequireLabel("k".into()),
        Obligation::AddLabel { key: "a".into(), value: "v".into() },
        Obligation::Consent("really?".into()),
        Obligation::Approval("dba".into()),
    ];
    let mut guest = Guest::new("p");
    guest.configured = Ok(vec![bucket("b", 9)]);
    guest.decision = PolicyDecision {
        verdict: Verdict::Deny(Denial {
            code: "no".into(),
            message: "nö".into(),
            audit: "why".into(),
            retry_after_ms: Some(1 << 40),
        }),
        obligations: all,
        charges: vec![Charge { bucket: "b".into(), cost: 3 }],
        warnings: vec!["careful".into()],
    };
    let decision = load(&[guest.spec()]).unwrap().decide(&context(), &[]);
    assert_eq!(decision.reports[0].said, Said::Decided(guest.decision));
    let refusal = decision.refusal.unwrap();
    assert_eq!((refusal.code, refusal.message.as_str()), (Code::Denied, "nö"));
    assert_eq!(refusal.policy, Some(("p".into(), "no".into())));
    assert_eq!((refusal.audit.as_deref(), refusal.retry_after_ms), (Some("why"), Some(1 << 40)));
}

#[test]
fn long_requests_get_fuel_for_their_length() {
    let mut context = context();
    let mut spec = Guest::new("p").spec();
    spec.limits.fuel = FUEL_MIN;
    spec.limits.timeout_ms = TIMEOUT_MS_MAX;
    let set = load(&[spec]).unwrap();
    let short = set.decide(&context, &[]).reports[0].fuel;
    context.statements = vec![statement(); 10_000];
    let decision = set.decide(&context, &[]);
    assert_eq!(decision.refusal, None, "a long migration is no fault of the policy");
    let long = decision.reports[0].fuel;
    assert!(short < FUEL_MIN && long > FUEL_MIN, "{short} and {long}");
}

#[test]
fn the_same_request_takes_the_same_fuel_everywhere() {
    let fuel = || {
        let set = load(&[Guest::from_file("settings_length").spec()]).unwrap();
        let made_for_it = set.decide(&context(), &[]).reports[0].fuel;
        set.make_ready("run_sql", "me");
        [made_for_it, set.decide(&context(), &[]).reports[0].fuel]
    };
    let [first, second] = fuel();
    assert!(first > 0);
    assert_eq!(first, second);
    assert_eq!(fuel(), [first, second]);
}

#[test]
fn texts_are_shown_only_where_granted_and_then_not_replayable() {
    let with_text = |sees_text: bool| {
        let mut spec = Guest::new("p").spec();
        spec.sees_text = sees_text;
        let mut context = context();
        context.statements = vec![statement()];
        context.statement_texts = vec!["x".repeat(1 << 20)];
        // A text of a megabyte does not fit in half a one: that is how it is seen whether it was passed.
        spec.limits.memory_bytes = 512 << 10;
        let decision = load(&[spec]).unwrap().decide(&context, &[]);
        (decision.refusal.map(|refusal| refusal.code), decision.reports[0].replayable)
    };
    assert_eq!(with_text(false), (None, true));
    assert_eq!(with_text(true), (Some(Code::PolicyMemory), false));
}

#[test]
fn compiled_code_is_kept_and_what_was_touched_is_not_run() {
    let parent = tempfile::tempdir().unwrap();
    let directory = parent.path().join("compiled");
    let decide = || {
        let settings = HostSettings { slots: 2, cache_directory: Some(directory.clone()), ..HostSettings::default() };
        let set = Set::load(&Host::new(&settings).unwrap(), &[Guest::from_file("settings_length").spec()], 1);
        assert_eq!(set.unwrap().decide(&context(), &[]).obligations.max_rows.unwrap().value, 2);
    };
    let files = || {
        let mut files: Vec<_> = std::fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.retain(|path| path.extension().is_some_and(|extension| extension == "cwasm"));
        files.sort();
        let stamped = files.into_iter().map(|path| (path.metadata().unwrap().modified().unwrap(), path));
        stamped.collect::<Vec<_>>()
    };
    decide();
    let first = files();
    assert_eq!(first.len(), 3, "the policy, so that its state can be read, what it says of itself, and its snapshot");
    decide();
    assert_eq!(files(), first, "nothing was compiled again");
    for (_, path) in &first {
        let mut bytes = std::fs::read(path).unwrap();
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        std::fs::write(path, bytes).unwrap();
    }
    let touched = files();
    decide();
    assert!(files().iter().zip(&touched).all(|(now, then)| now.0 > then.0), "each was made and written again");
    // Another's in the place of each: `decide` would tell.
    for (number, (_, path)) in first.iter().enumerate() {
        let whole = std::fs::read(path).unwrap();
        std::fs::copy(&first[(number + 1) % first.len()].1, path).unwrap();
        decide();
        std::fs::write(path, whole).unwrap();
    }
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o750)).unwrap();
    let settings = HostSettings { cache_directory: Some(directory), ..HostSettings::default() };
    assert!(Host::new(&settings).unwrap_err().to_string().contains("only this user"));
}

#[test]
fn components_that_were_changed_at_random_never_bring_the_host_down() {
    let host = host();
    let good = Guest::from_file("settings_length").component();
    let config = ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() };
    let changes = proptest::collection::vec((0..good.len(), any::<u8>()), 1..4);
    proptest!(config, |(changes in changes, cut in prop_oneof![3 => Just(None), 1 => (0..good.len()).prop_map(Some)])| {
        let mut bytes = good.clone();
        for (at, byte) in changes {
            bytes[at] = byte;
        }
        bytes.truncate(cut.unwrap_or(good.len()));
        // Whether it loads is its own affair; whatever it then says is a decision.
        if let Ok(set) = Set::load(&host, &[spec("p", bytes)], 1) {
            prop_assert_eq!(set.decide(&context(), &[]).reports.len(), 1);
        }
    });
    let set = Set::load(&host, &[Guest::new("good").spec()], 2).unwrap();
    assert_eq!(set.decide(&context(), &[]).refusal, None);
}

/// The component that the scene `approvals` of `tests/proofs/faults` plays with.
#[test]
fn the_demanding_component_is_the_one_its_rules_make() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/guests/demands_approval.wasm");
    let mut guest = crate::obligations::demanding(&[pgsandbox::model::Obligation::Approval("nogroup".into())]);
    guest.concerns = vec!["extend_database".into()];
    let built = guest.component();
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(&path, &built).unwrap();
    }
    let kept = std::fs::read(&path).unwrap_or_default();
    assert!(kept == built, "make it anew: UPDATE_SNAPSHOTS=1 cargo test --test it the_demanding_component");
}

/// The component that `tests/proofs/neighbours` plays with, as the real program loads it from a file.
#[test]
fn the_looping_component_is_the_one_its_text_makes() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/guests/slow_if_told.wasm");
    let built = Guest::from_file("slow_if_told").component();
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(&path, &built).unwrap();
    }
    let kept = std::fs::read(&path).unwrap_or_default();
    assert!(kept == built, "make it anew: UPDATE_SNAPSHOTS=1 cargo test --test it the_looping_component");
}
