//! Configurations that load, and configurations that must not, with every fault found at once.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pgsandbox::audit::Sync;
use pgsandbox::command::Confinement;
use pgsandbox::config::keys::{KEYS, Kind, VARIABLES, key_at, names_in};
use pgsandbox::config::{CommandsConfig, Config, Environment, Source, StateDir, StateDirError, load};
use pgsandbox::model::{Code, Failure, TlsMode};
use pgsandbox::secret::PasswordSource;
use pgsandbox::telemetry::OtlpProtocol;

/// Loads a file's text with further variables.
fn load_text(text: &str, variables: &[(&str, &str)]) -> Result<Config, Vec<String>> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pgsandbox.json");
    fs::write(&path, text).unwrap();
    let mut all = vec![("PGSANDBOX_CONFIG", path.to_str().unwrap()), ("PGSANDBOX_HOME", "/srv/state")];
    all.extend_from_slice(variables);
    loaded(&all)
}

fn loaded(variables: &[(&str, &str)]) -> Result<Config, Vec<String>> {
    let environment = Environment::of(variables.iter().copied(), false);
    load(&environment).map_err(|error| error.faults.iter().map(ToString::to_string).collect())
}

/// Checks that a file is refused for exactly these reasons: each a place and a piece of the text.
fn check_file(text: &str, expected: &[(&str, &str)]) {
    check(load_text(text, &[]), expected);
}

fn check_variables(variables: &[(&str, &str)], expected: &[(&str, &str)]) {
    let mut all = vec![("HOME", "/home/ana")];
    all.extend_from_slice(variables);
    check(loaded(&all), expected);
}

fn check(result: Result<Config, Vec<String>>, expected: &[(&str, &str)]) {
    let faults = result.expect_err("it loads");
    for (place, piece) in expected {
        let found = faults.iter().any(|fault| fault.starts_with(&format!("`{place}`")) && fault.contains(piece));
        assert!(found, "no fault at `{place}` saying `{piece}` in {faults:#?}");
    }
    assert_eq!(faults.len(), expected.len(), "{faults:#?}");
}

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(name)
}

/// Loads an example as a user would who copied it, with a policy file beside it where it names one.
fn load_example(name: &str) -> Config {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(name);
    fs::copy(example(name), &path).unwrap();
    fs::write(dir.path().join("policies.toml"), "").unwrap();
    let variables = [
        ("PGSANDBOX_CONFIG", path.to_str().unwrap()),
        ("HOME", "/home/ana"),
        ("COLLECTOR_AUTHORIZATION", "Bearer t0ken"),
        ("FIXTURES_DATABASE_URL", "postgresql://reader:s3cret@fixtures.internal/shop"),
        ("REPORTS_PASSWORD", "pw"),
    ];
    loaded(&variables).unwrap_or_else(|faults| panic!("{name}: {faults:#?}"))
}

#[test]
fn every_example_loads() {
    for entry in fs::read_dir(example("")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name.ends_with(".json") {
            load_example(&name);
        }
    }
}

#[test]
fn an_example_means_what_it_says() {
    let config = load_example("several-profiles.json");
    assert_eq!(config.default_profile, "local");
    let names: Vec<_> = config.profiles.iter().map(|profile| profile.name.as_str()).collect();
    assert_eq!(names, ["local", "socket", "team"]);
    assert!(matches!(config.profiles[0].source, Source::Managed { postgres_version: Some(16), .. }));
    let Source::External { allow_external, allowed_admin_hosts, .. } = &config.profiles[2].source else { panic!() };
    assert!(*allow_external);
    assert_eq!(allowed_admin_hosts, &["sandbox-db.internal"]);
    assert_eq!(config.profiles[2].max_active_databases_per_owner, Some(20));
    assert_eq!(config.profiles[2].allowed_extensions, None);

    let config = load_example("managed-with-policies.json");
    assert!(config.policies.unwrap().ends_with("policies.toml"));
    assert_eq!(config.commands.confinement, Confinement::Required);
    assert_eq!(config.commands.repositories, [Path::new("/home/ci/work")]);
    assert_eq!(config.commands.environment, ["CI"]);
    assert_eq!(config.audit.sync, Sync::Every(Duration::from_millis(250)));
    assert_eq!(config.audit.dir, Path::new("/var/log/pgsandbox/audit"));
    let export = config.telemetry.export.unwrap();
    assert_eq!((export.endpoint.as_str(), export.queue_spans), ("http://localhost:4318", 8192));
    assert_eq!(export.headers[0].1.expose(), "Bearer t0ken");
}

#[test]
fn what_commands_reach_is_named_by_absolute_paths_and_sound_names() {
    let text = r#"{"commands": {"confinement": "never", "readable": ["tools"], "writable": [7], "environment": ["LD_PRELOAD", "A B"]}}"#;
    let error = load_text(text, &[]).unwrap_err().join("; ");
    for place in ["commands.confinement", "commands.readable", "commands.writable", "commands.environment"] {
        assert!(error.contains(place), "{place}: {error}");
    }
    let text =
        r#"{"commands": {"confinement": "available", "writable": ["/var/cache/x"], "environment": ["APP_MODE"]}}"#;
    let commands = load_text(text, &[]).unwrap().commands;
    assert_eq!(commands.confinement, Confinement::WhenAvailable);
    assert_eq!(load_text("{}", &[]).unwrap().commands, CommandsConfig::default());
}

/// Whoever writes them is as good as the operator.
#[test]
fn a_file_or_program_that_others_may_write_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str, text: &str, mode: u32| {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path.display().to_string()
    };
    let (open, group) = (place("open", "#!/bin/sh\n", 0o777), place("group", "#!/bin/sh\n", 0o775));
    let text = |command: &str| {
        format!(
            r#"{{"keyCommand": ["{command}"], "sources": [
            {{"name": "a", "url": "postgresql://u@h/d", "passwordCommand": ["{command}", "s3cret"]}}]}}"#
        )
    };
    for (program, mode) in [(&open, "0777"), (&group, "0775")] {
        let faults = load_text(&text(program), &[]).unwrap_err();
        let says = format!("names the program `{program}`, which has mode {mode}, which lets others change it");
        assert!(faults.len() == 2 && faults.iter().all(|fault| fault.contains(&says)), "{faults:#?}");
        assert!(!faults.concat().contains("s3cret"), "{faults:#?}");
    }
    load_text(&text(&place("closed", "#!/bin/sh\n", 0o755)), &[]).unwrap();

    let config = place("conf.json", "{}", 0o666);
    let faults = loaded(&[("PGSANDBOX_CONFIG", &config), ("PGSANDBOX_HOME", "/srv/state")]).unwrap_err();
    let says = format!("`{config}` has mode 0666, which lets others change it; run `chmod go-w {config}`");
    assert_eq!(faults, [says]);
}

#[test]
fn with_nothing_configured_there_is_one_managed_profile() {
    let config = loaded(&[("HOME", "/home/ana")]).unwrap();
    assert_eq!(config.home.path(), Path::new("/home/ana/.pgsandbox"));
    assert_eq!(config.default_profile, "local");
    assert!(matches!(config.profiles[0].source, Source::Managed { postgres_version: None, .. }));
    assert_eq!((config.profiles[0].default_ttl_minutes, config.profiles[0].max_ttl_minutes), (240, 1440));
    assert_eq!(config.profiles[0].prefix, "pgsandbox");
    assert_eq!(config.telemetry.export, None);
    assert_eq!(config.audit.dir, Path::new("/home/ana/.pgsandbox/audit"));
    assert_eq!(load_text("{}", &[]).unwrap().profiles, config.profiles);
}

#[test]
fn as_root_state_is_kept_where_the_clusters_user_can_reach_it() {
    let config = load(&Environment::of([("HOME", "/root")], true)).unwrap();
    assert_eq!(config.home.path(), Path::new("/var/lib/pgsandbox"));
}

#[test]
fn variables_alone_make_one_profile() {
    let config = loaded(&[
        ("PGSANDBOX_HOME", "/srv/state"),
        ("PGSANDBOX_ADMIN_DATABASE_URL", "postgres://admin:pw@127.0.0.1/postgres"),
        ("PGSANDBOX_DATABASE_PREFIX", "team"),
        ("PGSANDBOX_DEFAULT_TTL_MINUTES", "30"),
        ("PGSANDBOX_MAX_TTL_MINUTES", "60"),
        ("PGSANDBOX_MAX_ACTIVE_DATABASES_PER_OWNER", "3"),
        ("PGSANDBOX_ALLOWED_EXTENSIONS", "pgcrypto, hstore"),
        ("PGSANDBOX_POSTGRES_VERSION", "16.3"),
        ("PGSANDBOX_POSTGRES_BIN_DIR", "/usr/bin"),
        ("PGSANDBOX_POSTGRES_16_BIN_DIR", "/bin"),
        ("PGSANDBOX_OWNER", "ana"),
        ("PGSANDBOX_LOG", "debug"),
        ("PGSANDBOX_TEST_ANYTHING", "x"),
        ("PGSANDBOX_DATABASE_URL", "set by with-database"),
    ])
    .unwrap();
    let profile = &config.profiles[0];
    assert_eq!((profile.name.as_str(), profile.prefix.as_str()), ("default", "team"));
    assert_eq!((profile.default_ttl_minutes, profile.max_ttl_minutes), (30, 60));
    assert_eq!(profile.max_active_databases_per_owner, Some(3));
    assert_eq!(profile.allowed_extensions.as_deref(), Some(&["pgcrypto".to_owned(), "hstore".to_owned()][..]));
    assert!(matches!(profile.source, Source::External { postgres_version: Some(16), .. }));
    assert_eq!(config.owner.as_deref(), Some("ana"));
}

#[test]
fn all_faults_of_a_file_are_reported_together_with_their_paths() {
    check_file(
        r#"{
            "defaultprofile": "a",
            "profiles": [
                {"name": "a", "managedLocal": true, "maxTtlMinutes": 0, "defaultTtlMinutes": "4h", "databaseprefix": "x"},
                {"name": "b c", "adminUrl": "postgres://u@localhost/d", "allowedExtensions": ["dblink", "UPPER"]},
                {"managedLocal": true, "adminUrl": "mysql://x"},
                7
            ],
            "sources": {},
            "audit": {"sync": "never", "rotateBytes": 1},
            "telemetry": {"endpoint": "localhost"}
        }"#,
        &[
            ("defaultprofile", "did you mean `defaultProfile`?"),
            ("defaultProfile", "is missing"),
            ("profiles[0].maxTtlMinutes", "is 0; expected a whole number from 1"),
            ("profiles[0].defaultTtlMinutes", "is text; expected a whole number"),
            ("profiles[0].databaseprefix", "did you mean `databasePrefix`?"),
            ("profiles[1].name", "is not 1 to 64 letters"),
            ("profiles[1].allowedExtensions", "`dblink`"),
            ("profiles[1].allowedExtensions", "no extension's name"),
            ("profiles[2].name", "is missing"),
            ("profiles[2].adminUrl", "stands beside `managedLocal`"),
            ("profiles[3]", "expected an object"),
            ("sources", "expected a list of objects"),
            ("audit.sync", "is none of the words it can be; expected `always` or `interval`"),
            ("audit.rotateBytes", "expected a whole number"),
            ("telemetry.enabled", "is missing"),
            ("telemetry.endpoint", "is not a URL"),
        ],
    );
}

#[test]
fn a_limit_that_cannot_be_read_never_becomes_no_limit() {
    for value in ["null", "-1", "0", "1.5", "1e3", "\"5\"", "99999999999999999999", "[]", "true"] {
        check_file(
            &format!(
                r#"{{"profiles": [{{"name": "a", "managedLocal": true, "maxActiveDatabasesPerOwner": {value}}}]}}"#
            ),
            &[("profiles[0].maxActiveDatabasesPerOwner", "expected a whole number from 1 to 10000")],
        );
    }
    for value in ["", "-1", "0", "1.5", "five", "99999999999999999999", "0x10", "+5", " 5"] {
        let piece = if value.is_empty() { "is set and empty" } else { "is not a whole number from 1 to 10000" };
        check_variables(
            &[("PGSANDBOX_MAX_ACTIVE_DATABASES_PER_OWNER", value)],
            &[("PGSANDBOX_MAX_ACTIVE_DATABASES_PER_OWNER", piece)],
        );
    }
    check_file(
        r#"{"profiles": [{"name": "a", "managedLocal": true, "allowedExtensions": "hstore"}]}"#,
        &[("profiles[0].allowedExtensions", "expected a list")],
    );
}

#[test]
fn what_stands_twice_is_refused() {
    check_file(
        r#"{"profiles": [{"name": "a", "managedLocal": true, "maxTtlMinutes": 5, "maxTtlMinutes": 500}]}"#,
        &[("profiles[0].maxTtlMinutes", "stands here twice")],
    );
    check_file(
        r#"{"defaultProfile": "a", "profiles": [{"name": "a", "managedLocal": true}, {"name": "a", "managedLocal": true}]}"#,
        &[("profiles[1].name", "second profile `a`")],
    );
}

#[test]
fn two_profiles_are_not_one_place() {
    let both = |first: &str, second: &str| {
        format!(r#"{{"defaultProfile": "a", "profiles": [{{"name": "a", {first}}}, {{"name": "b", {second}}}]}}"#)
    };
    let url = |host: &str, more: &str| format!(r#""adminUrl": "postgres://u:hunter2@{host}/d"{more}"#);
    let managed = r#""managedLocal": true"#;
    let of_16 = r#""managedLocal": true, "postgresVersion": 16"#;
    let is_one = |first: &str, second: &str| {
        let expected = [("profiles[1]", "makes profile `b` one with profile `a`")];
        check_file(&both(first, second), &expected);
    };
    is_one(managed, managed);
    is_one(managed, of_16);
    is_one(of_16, of_16);
    is_one(&url("localhost", ""), &url("localhost:5432", r#", "maxTtlMinutes": 60"#));
    is_one(&url("LOCALHOST", ""), r#""adminUrl": "postgresql://other@localhost/d""#);
    // And these are two.
    let is_two = |first: &str, second: &str| assert!(load_text(&both(first, second), &[]).is_ok(), "{first} {second}");
    is_two(managed, r#""managedLocal": true, "databasePrefix": "other""#);
    is_two(of_16, r#""managedLocal": true, "postgresVersion": 17"#);
    is_two(managed, &url("localhost", ""));
    is_two(&url("localhost", ""), &url("localhost:5433", ""));
    is_two(&url("localhost", ""), &url("localhost", r#", "databasePrefix": "other""#));
    is_two(&url("localhost", ""), r#""adminUrl": "postgresql://u@localhost/e""#);
}

#[test]
fn unknown_variables_are_refused_with_the_nearest_name() {
    check_variables(
        &[("PGSANDBOX_MAX_TTL_MINUTE", "5"), ("PGSANDBOX_POSTGRES_999_BIN_DIR", "/bin"), ("PGSANDBOX_ZZZZZZ", "1")],
        &[
            ("PGSANDBOX_MAX_TTL_MINUTE", "did you mean `PGSANDBOX_MAX_TTL_MINUTES`?"),
            ("PGSANDBOX_POSTGRES_999_BIN_DIR", "a major version from 13 to 99"),
            ("PGSANDBOX_ZZZZZZ", "is not known"),
        ],
    );
}

#[test]
fn a_variable_that_a_file_outranks_is_refused_and_not_ignored() {
    let result = load_text("{}", &[("PGSANDBOX_MAX_TTL_MINUTES", "5"), ("PGSANDBOX_OWNER", "ana")]);
    check(result, &[("PGSANDBOX_MAX_TTL_MINUTES", "say `profiles[].maxTtlMinutes` there")]);
}

#[test]
fn an_admin_url_stays_on_this_machine_unless_allowed() {
    let file = |url: &str, more: &str| format!(r#"{{"profiles": [{{"name": "a", "adminUrl": "{url}"{more}}}]}}"#);
    for url in [
        "postgres://u@localhost/d",
        "postgres://u@127.0.0.1/d",
        "postgres://u@127.9.9.9/d",
        "postgres://u@[::1]:5433/d",
        "postgres:///d?host=/run/pg&user=u",
    ] {
        load_text(&file(url, ""), &[]).unwrap_or_else(|faults| panic!("{url}: {faults:?}"));
    }
    for url in ["postgres://u@db.internal/d", "postgres://u@10.0.0.1/d", "postgres://u@/d?host=db.internal"] {
        check_file(&file(url, ""), &[("profiles[0].adminUrl", "which is not this machine")]);
        load_text(&file(url, r#", "allowExternalAdminUrl": true"#), &[]).unwrap();
    }
    let listed = r#", "allowExternalAdminUrl": true, "allowedAdminHosts": ["DB.internal"]"#;
    load_text(&file("postgres://u@db.internal/d", listed), &[]).unwrap();
    check_file(
        &file("postgres://u@other.internal/d", listed),
        &[("profiles[0].adminUrl", "which is not this machine")],
    );
    check_file(&file("postgres://u@localhost,evil/d", ""), &[("profiles[0].adminUrl", "several hosts")]);
}

#[test]
fn no_fault_shows_a_secret() {
    let secret = "hunter2hunter2";
    let url = format!("postgres://admin:{secret}@db.example/d");
    let odd = format!("postgres://admin:x?{secret}@localhost/d");
    let files = [
        format!(r#"{{"profiles": [{{"name": "{url}", "adminUrl": "{odd}", "databasePrefix": "{url}", "{url}": 1}}]}}"#),
        format!(
            r#"{{"defaultProfile": "{url}", "policies": "{url}", "audit": "{url}", "telemetry": {{"endpoint": "{url}"}}}}"#
        ),
        format!(r#"{{"profiles": [{{"name": "a", "adminUrl": "{odd}", "allowedAdminHosts": ["{url}"]}}]}}"#),
        format!(r#"{{"profiles": "{url}" oops"#),
        format!(r#"{{"profiles": [{{"name": "a", "adminUrl": "{url}"}}]}}"#),
    ];
    for file in files {
        let faults = load_text(&file, &[("PGSANDBOX_HOME", &url)]).expect_err("it loads");
        let text = faults.join("\n");
        assert!(!text.contains(secret), "{text}");
    }
    let config =
        load_text(r#"{"profiles": [{"name": "a", "adminUrl": "postgres://u:hunter2hunter2@localhost/d"}]}"#, &[]);
    assert!(!format!("{config:?}").contains(secret));
    assert!(!format!("{:?}", Environment::of([("PGSANDBOX_ADMIN_DATABASE_URL", &url)], false)).contains(secret));
}

#[test]
fn a_file_that_cannot_be_read_stops_the_start() {
    check(
        loaded(&[("HOME", "/h"), ("PGSANDBOX_CONFIG", "/nonexistent/x.json")]),
        &[("/nonexistent/x.json", "cannot be read")],
    );
    check(loaded(&[("HOME", "/h"), ("PGSANDBOX_CONFIG", "")]), &[("PGSANDBOX_CONFIG", "is set and empty")]);
    for (text, piece) in [("", "is not JSON"), ("{\"profiles\": [}", "line 1 column"), ("[]", "holds a list")] {
        let faults = load_text(text, &[]).expect_err("it loads");
        assert!(faults.len() == 1 && faults[0].contains(piece), "{faults:?}");
    }
    let deep = "[".repeat(100_000);
    assert!(load_text(&deep, &[]).is_err());
    check_variables(&[("PGSANDBOX_LOG", "=")], &[("PGSANDBOX_LOG", "is not a log filter")]);
    check_variables(&[("PGSANDBOX_OWNER", "system:reaper")], &[("PGSANDBOX_OWNER", "reserved")]);
    check_variables(&[("PGSANDBOX_HOME", "relative")], &[("PGSANDBOX_HOME", "is not an absolute path")]);
    for (path, fault) in [
        ("nope.toml", "is not an absolute path"),
        ("/no/such/place/nope.toml", "is the path of something that is not there"),
        ("/", "is the path of something else than a file"),
    ] {
        check_variables(&[("PGSANDBOX_POLICIES", path)], &[("PGSANDBOX_POLICIES", fault)]);
    }
    check(loaded(&[]), &[("HOME", "set `PGSANDBOX_HOME`")]);
}

#[test]
fn a_ttl_default_is_not_over_the_maximum() {
    let file = r#"{"profiles": [{"name": "a", "managedLocal": true, "maxTtlMinutes": 60}]}"#;
    assert_eq!(load_text(file, &[]).unwrap().profiles[0].default_ttl_minutes, 60);
    check_file(
        r#"{"profiles": [{"name": "a", "managedLocal": true, "maxTtlMinutes": 60, "defaultTtlMinutes": 61}]}"#,
        &[("profiles[0].defaultTtlMinutes", "over the longest life of 60 minutes")],
    );
}

#[test]
fn telemetry_goes_only_where_it_is_configured_to() {
    let collector = [("OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:4318")];
    assert_eq!(load_text("{}", &collector).unwrap().telemetry.export, None);
    assert_eq!(load_text(r#"{"telemetry": {"enabled": false}}"#, &collector).unwrap().telemetry.export, None);
    let export = load_text(r#"{"telemetry": {"enabled": true}}"#, &collector).unwrap().telemetry.export.unwrap();
    assert_eq!(export.endpoint, "http://localhost:4318");
    assert_eq!(export.protocol, OtlpProtocol::Http);
    check_file(r#"{"telemetry": {"enabled": true}}"#, &[("telemetry.endpoint", "is missing")]);
    check_file(
        r#"{"telemetry": {"enabled": true, "endpoint": "http://x", "headersFromEnv": {"authorization": "MISSING"}}}"#,
        &[("telemetry.headersFromEnv.authorization", "`MISSING`, which is not set")],
    );
}

#[test]
fn spans_are_sent_by_the_protocol_that_stands_beside_the_endpoint() {
    const ENDPOINT: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:4317");
    const GRPC: (&str, &str) = ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc");
    let protocol = |more: &str, variables: &[(&str, &str)]| {
        let text = format!(r#"{{"telemetry": {{"enabled": true{more}}}}}"#);
        load_text(&text, variables).unwrap().telemetry.export.unwrap().protocol
    };
    assert_eq!(protocol("", &[ENDPOINT, GRPC]), OtlpProtocol::Grpc);
    assert_eq!(protocol(r#", "protocol": "http/protobuf""#, &[ENDPOINT, GRPC]), OtlpProtocol::Http);
    assert_eq!(protocol(r#", "protocol": "grpc""#, &[ENDPOINT]), OtlpProtocol::Grpc);
    assert_eq!(protocol(r#", "endpoint": "http://x""#, &[ENDPOINT, GRPC]), OtlpProtocol::Http);
    let json = [ENDPOINT, ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")];
    let fault = load_text(r#"{"telemetry": {"enabled": true}}"#, &json).unwrap_err().join("; ");
    assert!(fault.contains("OTEL_EXPORTER_OTLP_PROTOCOL") && fault.contains("`grpc`"), "{fault}");
    check_file(
        r#"{"telemetry": {"enabled": true, "endpoint": "http://x", "protocol": "http/json"}}"#,
        &[("telemetry.protocol", "`http/protobuf` or `grpc`")],
    );
}

#[test]
fn a_source_whose_variable_is_not_set_is_unusable_and_stops_nothing_else() {
    let file = r#"{"sources": [
        {"name": "whole", "url": "postgresql://u@h/d"},
        {"name": "nowhere", "urlFromEnv": "NO_URL", "passwordFromEnv": "NO_PASSWORD", "production": true},
        {"name": "closed", "url": "postgresql://u@h/d", "passwordFromEnv": "EMPTY"}
    ]}"#;
    let config = load_text(file, &[("EMPTY", "")]).unwrap();
    assert_eq!(config.sources.iter().map(|source| source.name.as_str()).collect::<Vec<_>>(), ["whole"]);
    let unusable: Vec<_> = config.unusable_sources.iter().map(|s| (s.name.as_str(), s.production, s.why())).collect();
    let nowhere = "`sources[1].urlFromEnv` names `NO_URL`, which is not set; `sources[1].passwordFromEnv` names `NO_PASSWORD`, \
                   which is not set";
    let closed = "`sources[2].passwordFromEnv` names `EMPTY`, which is not set";
    assert_eq!(unusable, [("nowhere", true, nowhere.to_owned()), ("closed", false, closed.to_owned())]);
    assert_eq!(config.warnings.len(), 2, "{:?}", config.warnings);
    check_file(
        r#"{"sources": [{"name": "a", "urlFromEnv": "NOT_SET", "production": "yes"}, {"name": "a", "urlFromEnv": "NOT_SET"}]}"#,
        &[("sources[0].production", "expected `true` or `false`"), ("sources[1].name", "names a second source `a`")],
    );
}

#[test]
fn a_readable_file_with_an_admin_url_is_warned_of() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("c.json");
    fs::write(&path, r#"{"profiles": [{"name": "a", "adminUrl": "postgres://u:p@localhost/d"}]}"#).unwrap();
    let variables = [("PGSANDBOX_CONFIG", path.to_str().unwrap()), ("HOME", "/h")];
    for (mode, warnings) in [(0o644, 1), (0o600, 0)] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        assert_eq!(loaded(&variables).unwrap().warnings.len(), warnings);
    }
}

/// The table says of each key what it takes; here each is tried with something else.
#[test]
fn every_key_of_the_table_is_read() {
    for key in KEYS {
        let wrong = "[[]]";
        let mut text = wrong.to_owned();
        for part in key.path.rsplit('.') {
            text = match part.strip_suffix("[]") {
                Some(list) => format!(r#"{{"{list}": [{text}]}}"#),
                None => format!(r#"{{"{part}": {text}}}"#),
            };
        }
        let place = key.path.replace("[]", "[0]");
        let faults = load_text(&text, &[]).expect_err(key.path);
        let found = faults.iter().any(|fault| fault.starts_with(&format!("`{place}")));
        assert!(found, "`{}` with {wrong} gives {faults:#?}", key.path);
    }
}

#[test]
fn the_table_is_complete_and_in_order() {
    let paths: BTreeSet<_> = KEYS.iter().map(|key| key.path).collect();
    assert_eq!(paths.len(), KEYS.len());
    for key in KEYS {
        assert!(!key.help.is_empty(), "{}", key.path);
        assert_eq!(key.default.is_empty(), key.kind == Kind::Unavailable, "{}", key.path);
    }
    for variable in VARIABLES {
        assert!(variable.key.is_none_or(|key| key_at(key).is_some()), "{}", variable.name);
    }
    assert_eq!(names_in("telemetry").count(), 6);
    assert_eq!(names_in("profiles[]").count(), 11);
}

/// Every key that this version acts on stands in some example.
#[test]
fn the_examples_show_every_key() {
    let mut text = String::new();
    for entry in fs::read_dir(example("")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "json") {
            text += &fs::read_to_string(path).unwrap();
        }
    }
    for key in KEYS.iter().filter(|key| key.kind != Kind::Unavailable) {
        let name = key.path.rsplit('.').next().unwrap().trim_end_matches("[]");
        assert!(text.contains(&format!("\"{name}\":")), "no example has `{}`", key.path);
    }
}

#[test]
fn sources_are_read_with_their_passwords_from_four_places() {
    let config = load_example("with-sources.json");
    let names: Vec<_> = config.sources.iter().map(|source| source.name.as_str()).collect();
    assert_eq!(names, ["staging", "fixtures", "shop", "reports"]);
    let [staging, fixtures, shop, reports] = &config.sources[..] else { panic!() };
    assert_eq!(staging.password, Some(PasswordSource::File("/etc/pgsandbox/staging.password".into())));
    assert_eq!(staging.url.endpoint.tls, TlsMode::VerifyFull);
    assert_eq!(fixtures.url.credentials.password.as_ref().unwrap().expose(), "s3cret");
    assert_eq!(fixtures.profiles.as_deref(), Some(&["local".to_owned()][..]));
    assert!(matches!(&shop.password, Some(PasswordSource::Command(argv)) if argv[0] == "/usr/bin/vault"));
    assert_eq!((shop.production, reports.production), (true, false));
    assert_eq!(reports.url.credentials.password.as_ref().unwrap().expose(), "pw");
    assert!(!format!("{config:?}").contains("s3cret"));
}

#[test]
fn all_faults_of_sources_are_reported_together_and_no_password_is_shown() {
    let file = r#"{
        "profiles": [{"name": "local", "managedLocal": true}],
        "sources": [
            {"name": "a", "url": "postgresql://u:hunter2@h1,h2/d", "passwordFile": "relative", "prodution": true},
            {"name": "b b", "url": "postgresql://u:hunter2@h/d", "passwordCommand": ["pass"], "profiles": ["nope"]},
            {"name": "unset", "urlFromEnv": "NOT_SET"},
            {"name": "d", "url": "postgresql://u@h/d", "urlFromEnv": "X"},
            {"url": "postgresql://u@h/d?service=hunter2", "profiles": []},
            {"name": "c", "url": "postgresql://u@h/d", "passwordFile": "/a", "passwordCommand": ["/b"]},
            {"name": "c", "url": "postgresql://u@h/d"},
            {"name": "e"}
        ]
    }"#;
    let faults = load_text(file, &[]).unwrap_err();
    assert!(!faults.join(" ").contains("hunter2"), "{faults:#?}");
    check_file(
        file,
        &[
            ("sources[0].url", "several hosts"),
            ("sources[0].passwordFile", "is not an absolute path"),
            ("sources[0].prodution", "did you mean `production`?"),
            ("sources[1].name", "is not 1 to 64 letters"),
            ("sources[1].passwordCommand", "absolute path of a program"),
            ("sources[1].passwordCommand", "stands beside a password in the URL"),
            ("sources[1].profiles", "names `nope`, which is no profile"),
            ("sources[3].urlFromEnv", "stands beside `url`"),
            ("sources[4].name", "is missing"),
            ("sources[4].url", "the parameter `service`, which is not supported"),
            ("sources[4].profiles", "is empty"),
            ("sources[5].passwordCommand", "is a second place of the password"),
            ("sources[6].name", "names a second source `c`"),
            ("sources[7]", "has neither `url` nor `urlFromEnv`"),
        ],
    );
}

#[test]
fn a_readable_file_with_a_sources_password_is_warned_of() {
    for (url, warnings) in [("postgresql://u:p@h/d", 1), ("postgresql://u@h/d", 0)] {
        let text = format!(r#"{{"sources": [{{"name": "a", "url": "{url}"}}]}}"#);
        let config = load_text(&text, &[]).unwrap();
        assert_eq!(config.warnings.len(), warnings, "{:?}", config.warnings);
    }
}

#[test]
fn faults_become_one_failure() {
    let environment = Environment::of([("PGSANDBOX_HOME", "x"), ("PGSANDBOX_LOG", "=")], false);
    let failure = Failure::from(load(&environment).unwrap_err());
    assert_eq!(failure.code, Code::InvalidConfiguration);
    assert!(failure.message.contains("PGSANDBOX_HOME") && failure.message.contains("PGSANDBOX_LOG"));
}

fn mode_of(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn a_state_directory_is_made_private_and_known_again() {
    let dir = tempfile::tempdir().unwrap();
    let state = StateDir::at(dir.path().join("a/b"));
    state.open().unwrap();
    assert_eq!(mode_of(state.path()) & 0o066, 0);
    fs::write(state.path().join("cluster"), "ours").unwrap();
    state.open().unwrap();
}

#[test]
fn eight_processes_may_make_it_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let state = StateDir::at(dir.path().join("state"));
    std::thread::scope(|scope| {
        for n in 0..8 {
            let state = &state;
            scope.spawn(move || {
                state.open().unwrap();
                fs::write(state.path().join(n.to_string()), "").unwrap();
                state.open().unwrap();
            });
        }
    });
}

#[test]
fn what_another_program_wrote_is_refused_by_name_and_not_touched() {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700)).unwrap();
    fs::write(dir.path().join("config.json"), "{}").unwrap();
    let error = StateDir::at(dir.path()).open().unwrap_err();
    assert!(matches!(&error, StateDirError::Foreign { example, .. } if example == "config.json"), "{error}");
    assert!(error.to_string().contains(dir.path().to_str().unwrap()));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn a_later_format_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let state = StateDir::at(dir.path().join("s"));
    state.open().unwrap();
    fs::write(state.path().join("pgsandbox.state"), "pgsandbox state directory, format 2\n").unwrap();
    assert!(matches!(state.open(), Err(StateDirError::Format { found, .. }) if found == "2"));
}

#[test]
fn a_directory_that_others_can_look_into_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let state = StateDir::at(dir.path().join("s"));
    state.open().unwrap();
    fs::set_permissions(state.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let error = state.open().unwrap_err();
    assert!(matches!(error, StateDirError::TooOpen { mode: 0o755, .. }), "{error}");
    assert!(Failure::from(error).hint.unwrap().contains("chmod 7"));
}

#[test]
fn a_crash_while_marking_does_not_lock_the_directory_out() {
    let dir = tempfile::tempdir().unwrap();
    let state = StateDir::at(dir.path().join("s"));
    fs::create_dir(state.path()).unwrap();
    fs::set_permissions(state.path(), fs::Permissions::from_mode(0o700)).unwrap();
    fs::write(state.path().join("pgsandbox.state.new"), "pgsan").unwrap();
    state.open().unwrap();
    state.open().unwrap();
}

#[test]
fn a_file_in_the_directorys_place_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("s"), "").unwrap();
    assert!(matches!(StateDir::at(dir.path().join("s")).open(), Err(StateDirError::NotADirectory { .. })));
    assert!(matches!(StateDir::at(dir.path().join("s/t")).open(), Err(StateDirError::System { .. })));
}

#[test]
fn a_key_without_a_name_has_a_place_that_is_seen() {
    check_file(r#"{"": 1}"#, &[("\"\"", "is not known; there are `defaultProfile`, ")]);
}
