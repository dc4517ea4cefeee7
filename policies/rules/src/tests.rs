//! Rules on requests that cases cannot show, and settings that are refused.

use pgsandbox_policy::{Relation, StatementTraits, Verdict as Said, testing};

use super::*;

#[test]
fn the_description_fits_the_settings() {
    testing::check_description::<Rules>(include_str!("../default.json"));
}

#[test]
fn the_cases_come_out_as_expected() {
    testing::check_cases::<Rules>(include_str!("../cases.toml"), include_str!("../default.json"));
}

#[test]
fn words_of_closed_sets_have_their_places_as_numbers() {
    use pgsandbox_policy::{Impact, Transport};
    assert!(Impact::WORDS.iter().enumerate().all(|(place, (impact, _))| *impact as usize == place));
    assert!(Transport::WORDS.iter().enumerate().all(|(place, (transport, _))| *transport as usize == place));
}

fn statement(class: StatementClass, traits: StatementTraits) -> Statement {
    Statement {
        class,
        tag: String::new(),
        traits,
        relations: Vec::new(),
        functions: Vec::new(),
        read_only_safe: false,
        text: None,
    }
}

fn denial(policy: &Rules, request: &Request) -> pgsandbox_policy::Denial {
    match policy.evaluate(request).verdict {
        Said::Deny(denial) => denial,
        Said::Pass | Said::Abstain => panic!("not refused"),
    }
}

/// Rules that match one another's requests in every way.
const MANY: [&str; 9] = [
    r#"{"name":"a","when":{"operations":["run_sql"]},"then":{"verdict":"pass","obligations":{"max_rows":10}}}"#,
    r#"{"name":"b","when":{"impacts":["writes"]},"then":{"obligations":{"max_rows":5,"add_labels":{"k":"v"}},"charges":{"x":1},"warnings":["w"]}}"#,
    r#"{"name":"c","when":{"owners":["ana"]},"then":{"obligations":{"read_only":true,"approvals":["g","h"]},"charges":{"x":2},"warnings":["v","w"]}}"#,
    r#"{"name":"d","when":{"statement":{"classes":["ddl"]}},"then":{"verdict":"deny","message":"no definitions"}}"#,
    r#"{"name":"e","when":{"statement":{"traits":["no-where"]}},"then":{"verdict":"deny","retry_after_minutes":2}}"#,
    r#"{"name":"f","when":{"operations":["list_*"]},"then":{"verdict":"pass"}}"#,
    r#"{"name":"g","when":{"operations":["*"],"groups":["dba"]},"then":{"verdict":"pass","obligations":{"max_rows":7}}}"#,
    r#"{"name":"h","when":{"operations":["*"]},"unless":[{"transports":["stdio"]}],"then":{"verdict":"deny","retry_after_minutes":1}}"#,
    r#"{"name":"i","when":{"operations":["run_sql"],"statement":{"classes":["read"]}},"then":{"verdict":"pass","obligations":{"max_result_bytes":9,"approvals":["h"]}}}"#,
];

fn settings(rules: &[&str]) -> String {
    format!(r#"{{"rules":[{}],"buckets":{{"x":{{"burst":9,"per_interval":1,"interval_ms":1000}}}}}}"#, rules.join(","))
}

fn requests() -> Vec<Request> {
    let mut all = Vec::new();
    for operation in ["run_sql", "list_profiles", "create_database", "no_such_operation"] {
        for (transport, groups) in
            [("stdio", vec![]), ("http", vec!["dba".to_owned()]), ("stdio", vec!["dba".to_owned()])]
        {
            for classes in [
                vec![],
                vec![StatementClass::Read],
                vec![StatementClass::Read, StatementClass::Ddl],
                vec![StatementClass::Unparsed],
            ] {
                for phase in [Phase::Visible, Phase::Before] {
                    for traits in [StatementTraits::empty(), StatementTraits::NO_WHERE, StatementTraits::OPAQUE_BODY] {
                        let mut request = testing::request(operation);
                        request.phase = phase;
                        request.principal.groups.clone_from(&groups);
                        request.principal.transport = pgsandbox_policy::Transport::from_word(transport).unwrap();
                        request.statements = classes.iter().map(|class| statement(*class, traits)).collect();
                        all.push(request);
                    }
                }
            }
        }
    }
    all
}

#[test]
fn the_order_of_rules_says_nothing() {
    let requests = requests();
    let policy: Rules = testing::configured(&settings(&MANY));
    let expected: Vec<Decision> = requests.iter().map(|request| policy.evaluate(request)).collect();
    // A shuffle that is the same each time.
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    for _ in 0..200 {
        let mut rules = MANY.to_vec();
        for place in (1..rules.len()).rev() {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            rules.swap(place, usize::try_from(state % (place as u64 + 1)).unwrap());
        }
        let shuffled: Rules = testing::configured(&settings(&rules));
        for (request, expected) in requests.iter().zip(&expected) {
            assert_eq!(shuffled.evaluate(request), *expected, "{rules:?} on {request:?}");
        }
    }
}

#[test]
fn a_further_rule_that_does_not_pass_never_opens_anything() {
    let strict = |decision: &Decision| match decision.verdict {
        Said::Deny(_) => 0,
        Said::Abstain => 1,
        Said::Pass => 2,
    };
    for (left_out, rule) in MANY.iter().enumerate() {
        if rule.contains(r#""pass""#) {
            continue;
        }
        let mut fewer: Vec<&str> = MANY.to_vec();
        fewer.remove(left_out);
        if !fewer.iter().any(|rule| rule.contains(r#""x""#)) {
            continue;
        }
        let (all, fewer): (Rules, Rules) =
            (testing::configured(&settings(&MANY)), testing::configured(&settings(&fewer)));
        for request in requests() {
            assert!(strict(&all.evaluate(&request)) <= strict(&fewer.evaluate(&request)), "{left_out} {request:?}");
        }
    }
}

#[test]
fn a_pass_for_one_operation_covers_no_other() {
    let policy: Rules = testing::configured(
        r#"{"rules":[{"name":"a","when":{"operations":["list_profiles"]},"then":{"verdict":"pass"}}]}"#,
    );
    for (operation, _) in testing::OPERATIONS {
        for phase in [Phase::Before, Phase::Visible] {
            let mut request = testing::request(operation);
            request.phase = phase;
            let expected = if *operation == "list_profiles" { Said::Pass } else { Said::Abstain };
            assert_eq!(policy.evaluate(&request).verdict, expected, "{operation}");
        }
    }
}

#[test]
fn all_that_refuse_are_told_to_auditors_and_the_longest_wait_to_the_caller() {
    let policy: Rules = testing::configured(
        r#"{"rules":[{"name":"b","when":{"operations":["run_sql"]},"then":{"verdict":"deny","retry_after_minutes":1}},
            {"name":"a","when":{"statement":{"classes":["ddl"]}},"then":{"verdict":"deny","message":"write a migration","retry_after_minutes":3}}]}"#,
    );
    let mut request = testing::request("run_sql");
    request.statements = vec![
        statement(StatementClass::Read, StatementTraits::empty()),
        statement(StatementClass::Ddl, StatementTraits::empty()),
    ];
    let told = denial(&policy, &request);
    assert_eq!(told.message, "write a migration (rule `a`, statement 2)");
    assert_eq!(told.audit, "refused by `a`, `b`; statement 2");
    assert_eq!(told.retry_after_ms, Some(180_000));
}

#[test]
fn an_operation_that_is_not_known_is_refused_by_rules_for_every_one() {
    let policy: Rules = testing::configured(
        r#"{"rules":[{"name":"a","when":{"operations":["*"],"transports":["stdio"]},"then":{"verdict":"deny"}}]}"#,
    );
    denial(&policy, &testing::request("no_such_operation"));
    let policy: Rules =
        testing::configured(r#"{"rules":[{"name":"a","when":{"impacts":["destroys"]},"then":{"verdict":"deny"}}]}"#);
    assert_eq!(policy.evaluate(&testing::request("no_such_operation")), Decision::abstain());
}

#[test]
fn a_profile_that_is_not_told_may_be_any_where_there_is_one() {
    let policy: Rules = testing::configured(
        r#"{"rules":[{"name":"a","when":{"profiles":["prod"]},"then":{"verdict":"deny"}},
            {"name":"b","when":{"operations":["*"],"profiles":["prod"]},"then":{"verdict":"pass"}}]}"#,
    );
    let mut request = testing::request("list_databases");
    request.server = None;
    denial(&policy, &request);
    let mut request = testing::request("doctor");
    request.server = None;
    assert_eq!(policy.evaluate(&request), Decision::abstain(), "it is about no profile");
}

#[test]
fn a_long_script_of_one_shape_is_looked_at_once_and_a_bad_statement_in_it_is_found() {
    let policy: Rules = testing::configured(
        r#"{"rules":[{"name":"a","when":{"statement":{"relations":[{"name":"audit.*","access":["writes"]}]}},"then":{"verdict":"deny"}}]}"#,
    );
    let touching = |name: &str| Statement {
        relations: vec![Relation { name: name.into(), access: pgsandbox_policy::Access::Writes }],
        ..statement(StatementClass::Write, StatementTraits::empty())
    };
    let mut request = testing::request("run_sql");
    request.statements = vec![touching("app.t"); 1000];
    assert_eq!(policy.evaluate(&request), Decision::abstain());
    request.statements.insert(700, touching("audit.log"));
    assert_eq!(denial(&policy, &request).audit, "refused by `a`; statement 701");
}

fn check(rules: &str, expected: &[&str]) {
    let found = testing::problems::<Rules>(&format!(r#"{{"rules":[{rules}]}}"#));
    let paths: Vec<_> = found.iter().map(|(path, _)| path.as_str()).collect();
    assert_eq!(paths, expected, "{rules}: {found:#?}");
}

fn when(conditions: &str) -> String {
    format!(r#"{{"name":"a","when":{conditions},"then":{{"verdict":"deny"}}}}"#)
}

#[test]
fn a_condition_that_can_never_match_is_refused() {
    check(&when("{}"), &["rules[0].when"]);
    check(&when(r#"{"operations":[]}"#), &["rules[0].when.operations"]);
    check(
        &when(r#"{"operations":["run_sq","list_*","x*"]}"#),
        &["rules[0].when.operations[0]", "rules[0].when.operations[2]"],
    );
    check(&when(r#"{"operations":["run_sql"],"impacts":["destroys"]}"#), &["rules[0].when"]);
    check(&when(r#"{"impacts":["breaks"]}"#), &["rules[0].when.impacts[0]"]);
    check(&when(r#"{"operations":["run_sql"],"source":{"production":true}}"#), &["rules[0].when.source"]);
    check(&when(r#"{"operations":["create_database"],"statement":{"classes":["ddl"]}}"#), &["rules[0].when.statement"]);
    check(&when(r#"{"statement":{"classes":["ddl"]},"source":{"production":true}}"#), &["rules[0].when.source"]);
    check(&when(r#"{"operations":["delete_database"],"ttl_over_minutes":5}"#), &["rules[0].when.ttl_over_minutes"]);
    check(&when(r#"{"statement":{}}"#), &["rules[0].when.statement"]);
    check(&when(r#"{"source":{}}"#), &["rules[0].when.source"]);
    check(&when(r#"{"labels":{}}"#), &["rules[0].when.labels"]);
    check(&when(r#"{"labels":{"":"x","k":""}}"#), &["rules[0].when.labels.", "rules[0].when.labels.k"]);
    check(
        &when(
            r#"{"statement":{"classes":["empty"],"traits":[],"tags":["drop"],"relations":[{"name":"","access":[]}],"functions":[]}}"#,
        ),
        &[
            "rules[0].when.statement.classes",
            "rules[0].when.statement.traits",
            "rules[0].when.statement.tags[0]",
            "rules[0].when.statement.relations[0].access",
            "rules[0].when.statement.relations[0].name",
            "rules[0].when.statement.functions",
        ],
    );
    check(
        &when(r#"{"time":{"days":[],"from":"08:00","to":"08:00"}}"#),
        &["rules[0].when.time.days", "rules[0].when.time"],
    );
    check(&when(r#"{"commands":[[]],"owners":[]}"#), &["rules[0].when.owners", "rules[0].when.commands[0]"]);
    check(
        &when(r#"{"sandbox":{},"credentials":["root"]}"#),
        &["rules[0].when.sandbox", "rules[0].when.credentials[0]"],
    );
}

#[test]
fn an_exception_that_says_nothing_is_refused() {
    let rule = |unless: &str| {
        format!(r#"{{"name":"a","when":{{"operations":["run_sql"]}},"unless":[{unless}],"then":{{"verdict":"deny"}}}}"#)
    };
    check(&rule("{}"), &["rules[0].unless[0]"]);
    check(&rule(r#"{"operations":["run_sql"]}"#), &["rules[0].unless[0]"]);
    check(&rule(r#"{"operations":["doctor"]}"#), &["rules[0].unless[0]"]);
    check(&rule(r#"{"source":{"production":true}}"#), &["rules[0].unless[0].source"]);
    check(&rule(r#"{"statement":{"traits":["opaque-body"]}}"#), &["rules[0].unless[0].statement.traits"]);
}

#[test]
fn every_fault_of_what_follows_is_reported() {
    let rule = |then: &str| format!(r#"{{"name":"a","when":{{"operations":["run_sql"]}},"then":{then}}}"#);
    check(&rule("{}"), &["rules[0].then"]);
    check(&rule(r#"{"verdict":"allow"}"#), &["rules[0].then.verdict"]);
    check(&rule(r#"{"verdict":"deny","obligations":{"read_only":true}}"#), &["rules[0].then"]);
    check(
        &rule(r#"{"verdict":"pass","message":"x","retry_after_minutes":0}"#),
        &["rules[0].then.message", "rules[0].then.retry_after_minutes", "rules[0].then.retry_after_minutes"],
    );
    check(&rule(r#"{"obligations":{}}"#), &["rules[0].then.obligations"]);
    check(
        &rule(r#"{"obligations":{"max_rows":0,"max_live_sandboxes":{},"require_labels":[""],"approvals":[""]}}"#),
        &[
            "rules[0].then.obligations.max_rows",
            "rules[0].then.obligations.max_live_sandboxes",
            "rules[0].then.obligations.require_labels[0]",
            "rules[0].then.obligations.approvals[0]",
        ],
    );
    check(&rule(r#"{"charges":{"x":1}}"#), &["rules[0].then.charges.x"]);
    check(r#"{"name":"a","when":{"impacts":["reads"]},"then":{"verdict":"pass"}}"#, &["rules[0].when.operations"]);
    check(r#"{"name":"","when":{"operations":["*"]},"then":{"verdict":"pass"}}"#, &["rules[0].name"]);
    let twice = [rule(r#"{"verdict":"pass"}"#), rule(r#"{"verdict":"pass"}"#)].join(",");
    check(&twice, &["rules[1].name"]);
    let never = r#"{"name":"a","when":{"operations":["run_sql"],"statement":{"classes":["unparsed"]}},"then":{"verdict":"pass"}}"#;
    check(never, &["rules[0].when.statement.classes"]);
}

#[test]
fn buckets_are_declared_and_charged() {
    let settings = r#"{"rules":[{"name":"a","when":{"operations":["run_sql"]},"then":{"charges":{"x":5}}}],
        "buckets":{"x":{"burst":4,"per_interval":1,"interval_ms":1000},"y":{"burst":0,"per_interval":1,"interval_ms":1000}}}"#;
    let paths: Vec<_> = testing::problems::<Rules>(settings).into_iter().map(|(path, _)| path).collect();
    assert_eq!(paths, ["rules[0].then.charges.x", "buckets.y.burst", "buckets.y"]);
}

#[test]
fn an_answer_holds_what_all_rules_together_demand() {
    let rule = |index: usize| {
        format!(
            r#"{{"name":"{index}","when":{{"operations":["create_database"]}},"then":{{"obligations":{{"require_labels":["l{index}"]}},"warnings":["w{}"]}}}}"#,
            index / 5
        )
    };
    let rules = |count: usize| (0..count).map(rule).collect::<Vec<_>>().join(",");
    check(&rules(64), &[]);
    check(&rules(81), &["rules", "rules"]);
}
