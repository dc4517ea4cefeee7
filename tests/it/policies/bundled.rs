//! The bundled policies through the real host, as they apply without a file.

use std::path::Path;

use pgsandbox::admission::{Account, Book, MemoryBook};
use pgsandbox::config::policies::{defaults, load, parse};
use pgsandbox::model::{
    Code, Context, Impact, ObligationKind, Origin, Phase, SandboxFacts, SandboxId, ServerFacts, StatementClass,
    Timestamp, Usage,
};
use pgsandbox::policy::wasm::{Host, HostSettings};
use pgsandbox::policy::{Bundled, ConfigureError, Loader as _, Set};

use super::guest::context;
use super::statement;

/// Operations of the main job, with their impact.
const OPERATIONS: [(&str, Impact); 35] = [
    ("create_database", Impact::Creates),
    ("list_databases", Impact::Reads),
    ("get_connection_string", Impact::Discloses),
    ("run_sql", Impact::Writes),
    ("extend_database", Impact::Writes),
    ("fork_database", Impact::Creates),
    ("reset_database", Impact::Destroys),
    ("create_template_from_sandbox", Impact::Creates),
    ("create_sandbox_from_template", Impact::Creates),
    ("list_templates", Impact::Reads),
    ("delete_template", Impact::Destroys),
    ("export_template", Impact::Creates),
    ("import_template", Impact::Creates),
    ("delete_database", Impact::Destroys),
    ("cleanup_expired", Impact::Destroys),
    ("list_profiles", Impact::Reads),
    ("list_extensions", Impact::Reads),
    ("verify_sandbox", Impact::Reads),
    ("describe_schema", Impact::Reads),
    ("schema_digest", Impact::Reads),
    ("schema_diff", Impact::Reads),
    ("create_schema_snapshot", Impact::Creates),
    ("list_schema_snapshots", Impact::Reads),
    ("diff_schema_snapshot", Impact::Reads),
    ("delete_schema_snapshot", Impact::Destroys),
    ("explain_policy", Impact::Reads),
    ("doctor", Impact::Reads),
    ("list_prompts", Impact::Reads),
    ("get_prompt", Impact::Reads),
    ("list_resources", Impact::Reads),
    ("list_resource_templates", Impact::Reads),
    ("read_resource", Impact::Reads),
    ("complete", Impact::Reads),
    ("get_task", Impact::Reads),
    ("cancel_task", Impact::Writes),
];

/// Every bundled policy, as the program includes them.
static BUNDLED: &[Bundled] = include!("../../../policies/bundled.rs");

/// The bundled policies; each folder with a component is one of them.
fn bundled() -> &'static [Bundled] {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("policies");
    let names = std::fs::read_dir(&directory).unwrap().filter_map(|entry| {
        let name = entry.unwrap().file_name().into_string().unwrap();
        directory.join(&name).join(format!("{name}.wasm")).exists().then_some(name)
    });
    let mut names: Vec<String> = names.collect();
    names.sort();
    assert_eq!(names, BUNDLED.iter().map(|one| one.name).collect::<Vec<_>>(), "policies/bundled.rs");
    BUNDLED
}

fn about(operation: &'static str, impact: Impact, owner: &str) -> Context {
    let now = Timestamp::from_unix_ms(1_800_000_000_000);
    let existing = ![
        "create_database",
        "create_sandbox_from_template",
        "list_templates",
        "delete_template",
        "export_template",
        "import_template",
        "list_databases",
        "list_profiles",
        "doctor",
        "list_schema_snapshots",
        "delete_schema_snapshot",
    ]
    .contains(&operation);
    Context {
        operation,
        impact,
        server: Some(ServerFacts {
            profile: "local".into(),
            engine: "postgres".into(),
            major: Some(15),
            managed: true,
        }),
        sandbox: existing.then(|| SandboxFacts {
            id: SandboxId::fresh(),
            name: "pgsandbox_x".into(),
            owner: owner.into(),
            group_owner: None,
            labels: Vec::new(),
            origin: Origin::Empty,
            created_at: now,
            expires_at: now,
            bytes: Some(8 << 20),
        }),
        principal_usage: Some(Usage { live: 1, bytes: 8 << 20 }),
        ..context()
    }
}

#[test]
fn the_bundled_policies_cover_the_main_job_and_guard_it() {
    let specs = defaults(bundled()).unwrap();
    assert_eq!(specs.len(), 9, "{:?}", specs.iter().map(|spec| &spec.name).collect::<Vec<_>>());
    let set = Set::load(&Host::new(&HostSettings::default()).unwrap(), &specs, 1).unwrap();
    let book = MemoryBook::default();
    let book: &dyn Book = &book;
    for (operation, impact) in OPERATIONS {
        for phase in [Phase::Before, Phase::Visible] {
            let mut context = Context { phase, ..about(operation, impact, "me") };
            if operation == "run_sql" {
                context.statements = vec![statement(); 3];
            }
            let account = Account::new(&context.principal, None);
            let balances = book.balances(&account, &set.buckets(&context), context.now).unwrap();
            let decision = set.decide(&context, &balances);
            assert_eq!(decision.refusal, None, "{operation}: {:#?}", decision.reports);
            assert_eq!(
                decision.charges.is_empty(),
                phase == Phase::Visible,
                "{operation} costs something, lists nothing"
            );
            book.charge(&account, &decision.charges, context.now).unwrap();
        }
    }
    let mut sql = about("run_sql", Impact::Writes, "me");
    let limits = set.decide(&sql, &[]).obligations;
    assert_eq!(limits.max_rows.map(|limit| (limit.value, limit.set_by)), Some((1000, "row-limit".into())));
    sql.statements = vec![statement()];
    sql.statements[0].class = StatementClass::Cluster;
    sql.statements[0].tag = "CREATE ROLE".into();
    assert_eq!(set.decide(&sql, &[]).refusal.unwrap().code, Code::Denied);
    let others = about("run_sql", Impact::Writes, "somebody else");
    let refusal = set.decide(&others, &[]).refusal.unwrap();
    assert_eq!((refusal.code, refusal.policy), (Code::DatabaseNotFound, None));
}

/// Whoever fills a sandbox without being told of a limit would note that there is none.
#[test]
fn quota_holds_every_operation_to_the_bytes_that_can_be_held_to_them() {
    let mut policies = defaults(bundled()).unwrap();
    policies.retain(|policy| policy.name == "quota");
    policies[0].settings = r#"{"max_bytes":1000}"#.into();
    let set = Set::load(&Host::new(&HostSettings::default()).unwrap(), &policies, 1).unwrap();
    let specs = pgsandbox::operation::OPERATIONS
        .iter()
        .map(|entry| entry.spec)
        .filter(|spec| spec.meets.contains(&ObligationKind::MaxDatabaseBytes));
    let mut found = 0;
    for spec in specs {
        let limits = set.decide(&about(spec.name, spec.impact, "me"), &[]).obligations.max_database_bytes;
        assert_eq!(limits.values().map(|limit| limit.value).collect::<Vec<_>>(), [1000], "{}", spec.name);
        found += 1;
    }
    assert!(found > 5, "{found}");
}

#[test]
fn every_example_of_a_policy_file_loads_and_covers_the_main_job() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let files = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let mut found = 0;
    for file in files.filter(|path| path.extension().is_some_and(|ending| ending == "toml")) {
        let specs = load(&file, bundled()).unwrap_or_else(|error| panic!("{error}"));
        let set = Set::load(&Host::new(&HostSettings::default()).unwrap(), &specs, 1)
            .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        for (operation, impact) in [("run_sql", Impact::Writes), ("delete_database", Impact::Destroys)] {
            // A Friday.
            let refusal = set.decide(&about(operation, impact, "me"), &[]).refusal;
            assert_eq!(refusal, None, "{}: {operation}", file.display());
        }
        found += 1;
    }
    assert_eq!(found, 2);
}

/// A list shows what rules pass, and what others answer for; `rules` itself declares every operation.
#[test]
fn rules_cover_in_lists_what_they_pass_and_nothing_else() {
    let text = "[[policy]]\nsource = 'rules'\n[[policy.settings.rules]]\nname = 'reading'\n\
                when = { operations = ['list_*', 'run_sql'], groups = ['team'] }\nthen = { verdict = 'pass' }\n";
    let specs = parse(text, Path::new("p"), bundled()).unwrap();
    let set = Set::load(&Host::new(&HostSettings::default()).unwrap(), &specs, 1).unwrap();
    for phase in [Phase::Visible, Phase::Before] {
        for (operation, impact) in OPERATIONS {
            let mut context = Context { phase, ..about(operation, impact, "me") };
            let uncovered = set.decide(&context, &[]).refusal.map(|refusal| refusal.code);
            assert_eq!(uncovered, Some(Code::Uncovered), "{operation}");
            context.principal.groups = vec!["team".into()];
            let passes = operation.starts_with("list_") || operation == "run_sql";
            assert_eq!(set.decide(&context, &[]).refusal.is_none(), passes, "{operation}");
        }
    }
}

#[test]
fn settings_that_are_nested_as_deep_as_they_may_be_and_deeper_fit_the_stack_of_a_guest() {
    let specs = defaults(bundled()).unwrap();
    // The one with the most data, which shares a page with the stack.
    let spec = specs.iter().find(|spec| spec.name == "statement-guard").unwrap();
    let guest = Host::new(&HostSettings { slots: 1, ..HostSettings::default() }).unwrap().load(spec).unwrap();
    for depth in [30, 31, 32, 33, 3000] {
        for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
            let settings = format!("{}1{}", open.repeat(depth), close.repeat(depth));
            match guest.configure(&settings) {
                Err(ConfigureError::Problems(problems)) => assert!(!problems.is_empty()),
                Err(ConfigureError::Fault(fault)) => panic!("{depth} × {open}: {fault:?}"),
                Ok(_) => panic!("{depth} × {open}: taken"),
            }
        }
    }
}
