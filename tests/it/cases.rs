//! The cases of the bundled policies, run by the components that are committed, in the real host.
//!
//! A case's `sql` is read by the real reader here; the `statements` beside it serve tests without one, and must be
//! what the reader says. `docs/reference/policy-cases.md` describes the format.

use std::path::Path;

use pgsandbox::author::cases::{self, Operations};
use pgsandbox::author::subject::{CASES_BYTES_MAX, Subject, find, host, read_text};
use pgsandbox::author::suite;
use pgsandbox::operation::OPERATIONS;

macro_rules! policies {
    ($($test:ident $name:literal,)+) => {$(
        #[test]
        fn $test() {
            check($name);
        }
    )+};
}

policies! {
    the_cases_of_clone_source_come_out "clone-source",
    the_cases_of_destructive_guard_come_out "destructive-guard",
    the_cases_of_extensions_come_out "extensions",
    the_cases_of_host_command_come_out "host-command",
    the_cases_of_maintenance_window_come_out "maintenance-window",
    the_cases_of_ownership_come_out "ownership",
    the_cases_of_quota_come_out "quota",
    the_cases_of_rate_limit_come_out "rate-limit",
    the_cases_of_readonly_come_out "readonly",
    the_cases_of_required_labels_come_out "required-labels",
    the_cases_of_row_limit_come_out "row-limit",
    the_cases_of_rules_come_out "rules",
    the_cases_of_statement_guard_come_out "statement-guard",
}

pub(crate) fn operations() -> Operations {
    Operations(OPERATIONS.iter().map(|entry| (entry.spec.name, entry.spec.impact)).collect())
}

fn check(name: &str) {
    let found = find(&Path::new(env!("CARGO_MANIFEST_DIR")).join("policies").join(name)).unwrap();
    let text = read_text(found.cases.as_ref().unwrap(), CASES_BYTES_MAX).unwrap();
    let entries = cases::read(&text).unwrap();
    let mut subject = Subject::load(&host().unwrap(), found, None).unwrap();
    let report = suite::run(&mut subject, &operations(), &entries);
    let wrong: Vec<_> =
        report.failed().map(|case| format!("line {}: {}: {:#?}", case.line, case.name, case.reasons)).collect();
    assert!(!entries.is_empty() && wrong.is_empty(), "policies/{name}/cases.toml\n{}", wrong.join("\n"));
    assert_eq!(report.unmet, [""; 0], "no case meets these codes");
}
