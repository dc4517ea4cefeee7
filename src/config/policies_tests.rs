use crate::policy::{
    FUEL_DEFAULT, FUEL_MAX, FUEL_MIN, MEMORY_BYTES_DEFAULT, MEMORY_BYTES_MAX, MEMORY_BYTES_MIN, TIMEOUT_MS_DEFAULT,
    TIMEOUT_MS_MAX, TIMEOUT_MS_MIN, sha256_hex,
};

use super::*;

fn bundled() -> [Bundled; 2] {
    let sha256 = |bytes: &[u8]| -> &'static str { Box::leak(sha256_hex(bytes).into_boxed_str()) };
    [
        Bundled {
            name: "quota",
            component: b"quota's bytes",
            sha256: sha256(b"quota's bytes"),
            default_settings: "{\"max_live\": 5, \"max_bytes\": 100}",
            by_default: true,
        },
        Bundled {
            name: "row-limit",
            component: b"row-limit's",
            sha256: sha256(b"row-limit's"),
            default_settings: "{}",
            by_default: true,
        },
    ]
}

fn specs(text: &str) -> Vec<Spec> {
    parse(text, Path::new("/etc/policies.toml"), &bundled()).unwrap()
}

/// Expects exactly these faults, as (path, a part of the message).
fn check_faults(text: &str, expected: &[(&str, &str)]) {
    let error = parse(text, Path::new("/nowhere/policies.toml"), &bundled()).unwrap_err();
    let found: Vec<_> = error.faults.iter().map(|fault| fault.path.as_str()).collect();
    let paths: Vec<_> = expected.iter().map(|(path, _)| *path).collect();
    assert_eq!(found, paths, "{error}");
    for (fault, (_, says)) in error.faults.iter().zip(expected) {
        assert!(fault.message.contains(says), "`{}` does not say `{says}`", fault.message);
    }
}

#[test]
fn the_reference_page_has_every_key_with_its_bounds() {
    let page = include_str!("../../docs/reference/policy-file.md");
    let limits = LIMIT_KEYS.map(|key| format!("limits.{key}"));
    for key in POLICY_KEYS.into_iter().filter(|key| *key != "limits").chain(limits.iter().map(String::as_str)) {
        assert!(page.contains(&format!("| `{key}")), "{key}");
    }
    let kib = |bytes: usize| format!("{}", bytes >> 10);
    let rows = [
        ("limits.fuel", [FUEL_MIN, FUEL_MAX, FUEL_DEFAULT].map(|number| number.to_string())),
        ("limits.memory_kib", [MEMORY_BYTES_MIN, MEMORY_BYTES_MAX, MEMORY_BYTES_DEFAULT].map(kib)),
        ("limits.timeout_ms", [TIMEOUT_MS_MIN, TIMEOUT_MS_MAX, TIMEOUT_MS_DEFAULT].map(|number| number.to_string())),
    ];
    for (key, numbers) in rows {
        let row = page.lines().find(|line| line.starts_with(&format!("| `{key}`"))).unwrap();
        assert!(numbers.iter().all(|number| row.contains(number.as_str())), "{row}: {numbers:?}");
    }
}

#[test]
fn a_short_file_is_enough() {
    let specs = specs("[[policy]]\nsource = \"quota\"");
    assert_eq!(specs.len(), 1);
    assert_eq!((specs[0].name.as_str(), specs[0].mode), ("quota", Mode::Enforce));
    assert_eq!(specs[0].settings, "{\"max_bytes\":100,\"max_live\":5}");
    assert_eq!(specs[0].limits, Limits::default());
    assert_eq!(specs[0].pin.as_deref(), Some(bundled()[0].sha256));
    assert!(!specs[0].sees_text);
}

#[test]
fn layers_replace_whole_keys_of_those_beneath() {
    let specs = specs(
        r#"
        [[policy]]
        source = "quota"
        name = "mine"
        mode = "shadow"
        sees_text = true
        settings = { max_live = 3, nested = { z = 1, a = [1.5, true, "x"] } }
        owners."team-*" = { max_live = 10 }
        owners.solo = { nested = { b = 2 } }
        limits = { fuel = 20000, memory_kib = 256, timeout_ms = 100 }
        "#,
    );
    let spec = &specs[0];
    assert_eq!((spec.name.as_str(), spec.mode, spec.sees_text), ("mine", Mode::Shadow, true));
    assert_eq!(spec.settings, r#"{"max_bytes":100,"max_live":3,"nested":{"a":[1.5,true,"x"],"z":1}}"#);
    let section = |pattern: &str, settings: &str| Section { pattern: pattern.into(), settings: settings.into() };
    assert_eq!(
        spec.sections,
        [
            section("solo", r#"{"max_bytes":100,"max_live":3,"nested":{"b":2}}"#),
            section("team-*", r#"{"max_bytes":100,"max_live":10,"nested":{"a":[1.5,true,"x"],"z":1}}"#),
        ]
    );
    assert_eq!(spec.limits, Limits { fuel: 20_000, memory_bytes: 256 << 10, timeout_ms: 100 });
}

#[test]
fn a_candidate_says_what_it_is_for() {
    let specs = specs(
        "[[policy]]\nsource = 'quota'\n[[policy]]\nsource = 'quota'\nname = 'next'\nmode = 'candidate'\nof = 'quota'",
    );
    assert_eq!((specs[1].mode, specs[1].of.as_deref()), (Mode::Candidate, Some("quota")));
    assert_eq!(specs[0].of, None);
}

#[test]
fn the_files_that_are_looked_at_are_those_that_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("policies.toml");
    let check = |text: &str, expected: &[&str]| {
        std::fs::write(&path, text).unwrap();
        let expected: Vec<_> = expected.iter().map(|name| directory.path().join(name)).collect();
        assert_eq!(files(&path), expected, "{text}");
    };
    check(
        "[[policy]]\nsource = 'quota'\n[[policy]]\nsource = './own.wasm'\nmode = 'nope'",
        &["policies.toml", "own.wasm"],
    );
    check("[[policy]", &["policies.toml"]);
    check("policy = 1", &["policies.toml"]);
    std::fs::remove_file(&path).unwrap();
    assert_eq!(files(&path), [path.clone()]);
}

#[test]
fn equal_settings_have_equal_texts() {
    let one = specs("[[policy]]\nsource = 'row-limit'\nsettings = { a = { x = 1, y = 2 }, b = 1 }");
    let two = specs("[[policy]]\nsource = 'row-limit'\n[policy.settings]\nb = 1\na.y = 2\na.x = 1");
    assert_eq!(one, two);
}

#[test]
fn a_file_is_found_beside_the_toml_and_must_have_its_digest() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("own.wasm"), "own").unwrap();
    let path = directory.path().join("policies.toml");
    let digest = sha256_hex(b"own");
    std::fs::write(&path, format!("[[policy]]\nsource = \"own.wasm\"\ndigest = \"sha256:{digest}\"")).unwrap();
    let specs = load(&path, &bundled()).unwrap();
    assert_eq!((specs[0].name.as_str(), specs[0].component.bytes()), ("own", b"own".as_slice()));
    assert_eq!((specs[0].settings.as_str(), specs[0].pin.as_ref()), ("{}", Some(&digest)));
    std::fs::write(directory.path().join("own.wasm"), "other").unwrap();
    let error = load(&path, &bundled()).unwrap_err();
    assert_eq!(error.faults[0].path, "policy[0].digest");
    assert_eq!(Failure::from(error).code, Code::InvalidConfiguration);
}

#[test]
fn every_fault_is_reported_with_its_path() {
    check_faults(
        r#"
        polices = 1
        [[policy]]
        source = "quotta"
        mod = "shadow"
        mode = "shadwo"
        digest = "abc"
        sees_text = "yes"
        settings = { since = 2026-01-01, ratio = nan }
        owners."" = { max_live = 1 }
        owners.x = 3
        limits = { fule = 1, fuel = -1, timeout_ms = "1s" }
        [[policy]]
        name = "No Name"
        [[policy]]
        source = "oci://registry/quota"
        [[policy]]
        source = "./missing.wasm"
        "#,
        &[
            ("", "no key `polices`; is `policy` meant?"),
            ("policy[0]", "no key `mod`; is `mode` meant?"),
            ("policy[0].source", "no bundled policy `quotta`; is `quota` meant?"),
            ("policy[0].mode", "it is no mode; is `shadow` meant?"),
            ("policy[0].sees_text", "`true` or `false` is wanted here, and it is string"),
            ("policy[0].digest", "64 lower-case hexadecimal digits"),
            ("policy[0].limits", "no key `fule`; is `fuel` meant?"),
            ("policy[0].limits.fuel", "a whole number"),
            ("policy[0].limits.timeout_ms", "a whole number"),
            ("policy[0].settings.ratio", "no `nan`"),
            ("policy[0].settings.since", "no dates"),
            ("policy[0].owners.\"\"", "has no name"),
            ("policy[0].owners.\"x\"", "a table is wanted here, and it is integer"),
            ("policy[1]", "`source` is missing"),
            ("policy[1].name", "lower-case letters"),
            ("policy[2].source", "not supported yet"),
            ("policy[3].source", "/nowhere/./missing.wasm"),
        ],
    );
}

#[test]
fn equal_names_are_told_beside_other_faults_and_hide_no_settings() {
    let text = r#"
        [[policy]]
        source = "quota"
        mode = "shadwo"
        settings = { max_live = 1 }
        [[policy]]
        source = "quota"
        settings = { max_live = 2 }
        [[policy]]
        name = "quota"
        source = "./missing.wasm"
        "#;
    check_faults(
        text,
        &[
            ("policy[0].mode", "it is no mode"),
            ("policy[2].source", "missing.wasm"),
            ("policy", "two policies have the name `quota`"),
        ],
    );
    let legible = parse(text, Path::new("/nowhere/policies.toml"), &bundled()).unwrap_err().legible;
    let settings: Vec<_> = legible.iter().map(|spec| spec.settings.contains("\"max_live\":2")).collect();
    assert_eq!(settings, [false, true]);
}

#[test]
fn files_that_say_nothing_or_too_much_are_refused() {
    check_faults("", &[("", "no policy is named")]);
    check_faults("policy = 1", &[("policy", "a list of tables")]);
    check_faults("policy = [1]", &[("policy[0]", "a table is wanted")]);
    check_faults("[[policy]]\nsource = \"quota\"\nsource = \"x\"", &[("", "line 3: duplicate key")]);
    check_faults(
        "[[policy]]\nsource = 'quota'\n[[policy]]\nsource = 'quota'",
        &[("policy", "two policies have the name `quota`")],
    );
    let deep = format!("[[policy]]\nsource = 'quota'\nsettings.a = {}1{}", "[".repeat(20), "]".repeat(20));
    let error = parse(&deep, Path::new("p"), &bundled()).unwrap_err();
    assert!(error.to_string().contains("nested deeper than 16"), "{error}");
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("p.toml");
    std::fs::write(&path, " ".repeat(POLICY_FILE_BYTES_MAX as usize + 1)).unwrap();
    assert!(load(&path, &bundled()).unwrap_err().to_string().contains("more than 1048576 bytes"));
    std::fs::write(&path, [0xff]).unwrap();
    assert!(load(&path, &bundled()).unwrap_err().to_string().contains("no UTF-8"));
    assert!(load(&directory.path().join("none"), &bundled()).unwrap_err().to_string().contains("cannot be read"));
}

#[test]
fn a_fault_of_syntax_does_not_quote_the_line() {
    let error = parse("[[policy]]\nsource = 'quota' s3cret", Path::new("p"), &bundled()).unwrap_err();
    assert!(error.faults[0].message.starts_with("line 2: "), "{error}");
    assert!(!error.to_string().contains("s3cret"), "{error}");
}

#[test]
fn without_a_file_the_bundled_policies_apply() {
    let specs = defaults(&bundled()).unwrap();
    let names: Vec<_> = specs.iter().map(|spec| spec.name.as_str()).collect();
    assert_eq!(names, ["quota", "row-limit"]);
    assert_eq!(specs[0].settings, "{\"max_bytes\":100,\"max_live\":5}");
    let chosen = Bundled { by_default: false, ..bundled()[0] };
    assert_eq!(defaults(&[chosen, bundled()[1]]).unwrap().len(), 1, "what is not of the default set waits for a file");
    assert_eq!(parse("[[policy]]\nsource = 'quota'", Path::new("p"), &[chosen]).unwrap().len(), 1);
    let other = Bundled { component: b"other", ..bundled()[0] };
    assert!(defaults(&[other]).unwrap_err().to_string().contains("not the one this program was built for"));
    assert!(parse("[[policy]]\nsource = 'quota'", Path::new("p"), &[other]).is_err());
    let broken = Bundled { default_settings: "[]", ..bundled()[0] };
    assert!(defaults(&[broken]).unwrap_err().to_string().contains("default settings"));
}

#[test]
fn settings_are_nested_up_to_their_bound_and_no_further() {
    // The table of the settings is the first level, and what stands at the bottom the last.
    let nested = |levels: usize| {
        let lists = levels - 2;
        let text = format!("[[policy]]\nsource = 'quota'\nsettings.a = {}1{}", "[".repeat(lists), "]".repeat(lists));
        parse(&text, Path::new("p"), &bundled())
    };
    for levels in [SETTINGS_DEPTH_MAX - 1, SETTINGS_DEPTH_MAX] {
        assert!(nested(levels).is_ok(), "{levels} levels");
    }
    assert!(nested(SETTINGS_DEPTH_MAX + 1).unwrap_err().to_string().contains("nested deeper than 16"));
}
