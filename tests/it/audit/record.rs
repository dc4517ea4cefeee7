//! What a line says: the request as it was decided, the decision with the origin of each part, and nothing that is secret.

use pgsandbox::audit::{Audit, Beside, Closing, Filter, Opening, Outcome, canonical, tail};
use pgsandbox::model::{
    Access, Bucket, Code, Context, Decision, Denial, Fingerprint, Generation, Impact, KeyedCharge, Limit, Mode,
    Obligation, Obligations, Phase, PolicyDecision, PolicyFault, PolicyReport, Relation, RequestId, Requested, Said,
    SandboxId, StatementClass, StatementFacts, Timestamp, Traits, Verdict,
};
use serde_json::Value;

use super::{closing, open, principal, settings};

fn context() -> Context {
    Context {
        request_id: RequestId::fresh(),
        phase: Phase::Before,
        operation: "run_sql",
        impact: Impact::Writes,
        principal: principal(),
        group_owner: Some("team".into()),
        now: Timestamp::from_unix_ms(1_800_000_000_000),
        server: None,
        sandbox: None,
        principal_usage: None,
        group_usage: None,
        statements: vec![StatementFacts {
            class: StatementClass::Write,
            tag: "DELETE".into(),
            traits: Traits::NO_WHERE,
            relations: vec![Relation { name: "public.t".into(), access: Access::Writes }],
            functions: vec!["lower".into()],
            read_only_safe: false,
            fingerprint: Fingerprint(0xfeed),
        }],
        statement_texts: Vec::new(),
        clone_source: None,
        requested: Requested { rows: Some(50), ..Requested::default() },
        outcome: None,
    }
}

fn decision() -> Decision {
    let mut obligations = Obligations::default();
    obligations.add("row-limit", Obligation::MaxRows(50));
    obligations.add("readonly", Obligation::ReadOnly);
    let report = |policy: &str, mode, said| PolicyReport {
        policy: policy.into(),
        mode,
        said,
        elapsed_us: 7,
        fuel: 900,
        replayable: true,
        of: None,
        differs: Vec::new(),
    };
    let denial = Denial {
        code: "no_where".into(),
        message: "for the agent".into(),
        audit: "for auditors".into(),
        retry_after_ms: None,
    };
    let decided = |verdict| {
        Said::Decided(PolicyDecision { verdict, obligations: Vec::new(), charges: Vec::new(), warnings: Vec::new() })
    };
    Decision {
        refusal: None,
        obligations,
        charges: vec![KeyedCharge {
            policy: "rate-limit".into(),
            bucket: Bucket { name: "writes".into(), burst: 10, per_interval: 1, interval_ms: 1000 },
            cost: 2,
        }],
        warnings: Vec::new(),
        reports: vec![
            report("quota", Mode::Enforce, Said::NotConcerned),
            report("readonly", Mode::Enforce, decided(Verdict::Pass)),
            report("statement-guard", Mode::Shadow, decided(Verdict::Deny(denial))),
            report(
                "broken",
                Mode::Shadow,
                Said::Failed(PolicyFault { code: Code::PolicyTrapped, detail: "unreachable".into() }),
            ),
        ],
        generation: Generation { number: 3, digest: "d1ge57".into() },
        would: None,
    }
}

#[test]
fn a_line_names_the_origin_of_each_part_of_a_decision() {
    let dir = tempfile::tempdir().unwrap();
    let settings = settings(dir.path());
    let audit = Audit::open_log(settings.clone()).unwrap();
    let (context, decision) = (context(), decision());
    let mut enforced = decision.obligations.clone();
    enforced.max_ttl_minutes = Some(Limit { value: 1440, set_by: "profile".into() });
    let target = SandboxId::fresh();
    let ticket = open(&audit).unwrap();
    let closing = Closing {
        context: Some(&context),
        decision: Some(&decision),
        enforced: Some(&enforced),
        target: Some(target),
        beside: Beside::default(),
        ..closing(Outcome::Ok)
    };
    audit.close(ticket, closing).unwrap();
    let closes = tail(&settings.dir, 1, &Filter { kind: Some("close".into()), ..Filter::default() }).unwrap();
    let line: Value = serde_json::from_str(&closes[0]).unwrap();
    let of = &line["decision"];
    assert_eq!(
        (of["verdict"].as_str(), of["generation"].as_u64(), of["digest"].as_str()),
        (Some("allowed"), Some(3), Some("d1ge57"))
    );
    assert_eq!(of["obligations"][0], serde_json::json!({"kind": "read-only", "set_by": ["readonly"]}));
    assert_eq!(of["obligations"][1], serde_json::json!({"kind": "max-rows", "value": 50, "set_by": ["row-limit"]}));
    assert_eq!(of["charges"][0], serde_json::json!({"policy": "rate-limit", "bucket": "writes", "cost": 2}));
    let guard = &of["policies"][2];
    assert_eq!((guard["said"].as_str(), guard["mode"].as_str()), (Some("deny"), Some("shadow")));
    assert_eq!((guard["code"].as_str(), guard["detail"].as_str()), (Some("no_where"), Some("for auditors")));
    assert_eq!((guard["elapsed_us"].as_u64(), guard["fuel"].as_u64()), (Some(7), Some(900)));
    assert_eq!(
        (of["policies"][0]["said"].as_str(), of["policies"][3]["code"].as_str()),
        (Some("not-concerned"), Some("policy_trapped"))
    );
    assert!(line["enforced"].as_array().unwrap().iter().any(|o| o["set_by"][0] == "profile" && o["value"] == 1440));
    assert_eq!(line["target"], target.to_string());
    let statement = &line["request"]["statements"][0];
    assert_eq!((statement["class"].as_str(), statement["tag"].as_str()), (Some("write"), Some("DELETE")));
    assert_eq!(
        (statement["fingerprint"].as_str(), statement["traits"][0].as_str()),
        (Some("000000000000feed"), Some("no-where"))
    );
    assert_eq!(
        (line["request"]["group_owner"].as_str(), line["request"]["replayable"].as_bool()),
        (Some("team"), Some(true))
    );
}

#[test]
fn equal_requests_have_equal_records() {
    let one = context();
    let other = Context { request_id: RequestId::fresh(), ..one.clone() };
    assert_eq!(canonical(&one), canonical(&other));
    let later = Context { now: Timestamp::from_unix_ms(1), ..one.clone() };
    assert_ne!(canonical(&one), canonical(&later));
}

#[test]
fn statement_texts_and_commands_are_not_in_a_record() {
    let mut context = context();
    context.statement_texts = vec!["delete from t where secret = 'hunter2'".into()];
    context.requested.command = vec!["psql".into(), "postgres://u:hunter2@h/d".into()];
    let record = canonical(&context);
    assert!(!record.contains("hunter2"), "{record}");
    assert!(record.contains("\"command\":[\"psql\",1]") && record.contains("\"replayable\":false"), "{record}");
}

#[test]
fn a_record_is_bounded() {
    let mut context = context();
    let mut statement = context.statements.remove(0);
    statement.functions = vec!["漢".repeat(300); 150];
    statement.relations = vec![Relation { name: "\u{1}".repeat(600), access: Access::Reads }; 150];
    context.statements = vec![statement; 300];
    context.principal.client = "c".repeat(1 << 20);
    let record = canonical(&context);
    assert!(record.len() < 1 << 20, "{}", record.len());
    let value: Value = serde_json::from_str(&record).unwrap();
    assert_eq!((value["statement_count"].as_u64(), value["replayable"].as_bool()), (Some(300), Some(false)));
}

#[test]
fn an_operation_that_is_none_is_not_quoted() {
    let dir = tempfile::tempdir().unwrap();
    let settings = settings(dir.path());
    let audit = Audit::open_log(settings.clone()).unwrap();
    let now = Timestamp::now();
    for operation in ["postgres://u:hunter2@h", "", "Ünknown", &"x".repeat(1000)] {
        drop(
            audit
                .open(Opening {
                    id: RequestId::fresh(),
                    principal: &principal(),
                    operation,
                    now,
                    trace: None,
                    frees: false,
                })
                .unwrap(),
        );
    }
    let opens = tail(&settings.dir, 9, &Filter { operation: Some("(malformed)".into()), ..Filter::default() }).unwrap();
    assert_eq!(opens.len(), 4);
    assert!(!opens.join("").contains("hunter2"));
}
