use std::sync::Mutex;

use crate::model::{
    Bucket, Generation, Identity, Impact, Obligation, Phase, Principal, RequestId, Requested, Transport,
};

use super::super::MemoryBook;
use super::*;

/// An operation that meets row limits and labels.
#[derive(Debug, Default)]
struct Make {
    rows: Option<u64>,
    ttl: Option<u64>,
    labels: Vec<(String, String)>,
}

impl Admissible for Make {
    const MEETS: &'static [ObligationKind] = &[
        ObligationKind::MaxRows,
        ObligationKind::MaxTtlMinutes,
        ObligationKind::MaxLiveSandboxes,
        ObligationKind::RequireLabel,
        ObligationKind::AddLabel,
    ];

    fn apply(&mut self, effective: &Effective<'_>) -> Result<Vec<String>, Failure> {
        let obligations = effective.obligations();
        let rows = Effective::lowered(ObligationKind::MaxRows, obligations.max_rows.as_ref(), self.rows, 100);
        self.rows = Some(rows.value);
        let limit = obligations.max_ttl_minutes.as_ref();
        let ttl = Effective::within(ObligationKind::MaxTtlMinutes, limit, self.ttl, 240, Code::InvalidTtl)?;
        self.ttl = Some(ttl.value);
        effective.label(&mut self.labels)?;
        Ok(rows.warning.into_iter().collect())
    }
}

fn context() -> Context {
    Context {
        request_id: RequestId::fresh(),
        phase: Phase::Before,
        operation: "create_database",
        impact: Impact::Creates,
        principal: Principal {
            subject: "me".into(),
            owner: "me".into(),
            groups: Vec::new(),
            transport: Transport::Cli,
            client: String::new(),
            identity: Identity::Certain,
        },
        group_owner: None,
        now: Timestamp::from_unix_ms(1_800_000_000_000),
        server: None,
        sandbox: None,
        principal_usage: None,
        group_usage: None,
        statements: Vec::new(),
        statement_texts: Vec::new(),
        clone_source: None,
        requested: Requested::default(),
        outcome: None,
    }
}

fn decision(obligations: &[(&str, Obligation)]) -> Decision {
    let mut merged = Obligations::default();
    for (policy, obligation) in obligations {
        merged.add(policy, obligation.clone());
    }
    let bucket = Bucket { name: "calls".into(), burst: 1, per_interval: 1, interval_ms: 1000 };
    Decision {
        refusal: None,
        obligations: merged,
        charges: vec![KeyedCharge { policy: "rate".into(), bucket, cost: 1 }],
        warnings: vec![("quota".into(), "one left".into())],
        reports: Vec::new(),
        generation: Generation { number: 1, digest: String::new() },
        would: None,
    }
}

fn label(key: &str, value: &str) -> (String, String) {
    (key.into(), value.into())
}

/// Expects a refusal, and that it was foreseen and cost nothing.
fn check_refused(input: impl Fn() -> Make, decision: &Decision, expected: Code, says: &str) {
    let (book, context) = (MemoryBook::default(), context());
    let failure = admit(input(), &context, decision, &book, &NoConsents).unwrap_err();
    assert_eq!(failure.code, expected, "{failure}");
    assert!(failure.message.contains(says), "`{}` does not say `{says}`", failure.message);
    assert_eq!(foresee(input(), &context, decision, &book, &NoConsents).err(), Some(failure));
    assert_eq!(book.read("me").unwrap(), Default::default(), "a refused request was charged");
}

#[test]
fn an_admitted_operation_has_its_obligations_applied_and_is_charged() {
    let (book, context) = (MemoryBook::default(), context());
    let decision = decision(&[
        ("row-limit", Obligation::MaxRows(10)),
        ("quota", Obligation::MaxLiveSandboxes { scope: Scope::Group, limit: 3 }),
        ("tags", Obligation::AddLabel { key: "by".into(), value: "agent".into() }),
    ]);
    let input = Make { rows: Some(50), labels: vec![label("x", "1")], ..Make::default() };
    let admitted = admit(input, &context, &decision, &book, &NoConsents).unwrap();
    assert_eq!(admitted.permit.input().rows, Some(10));
    assert_eq!(admitted.permit.input().labels, [label("by", "agent"), label("x", "1")]);
    assert_eq!(admitted.permit.grant().request_id, context.request_id);
    assert_eq!(admitted.permit.grant().obligations, decision.obligations);
    assert_eq!(admitted.warnings, ["policy `quota`: one left", "`max-rows` is 10, set by `row-limit`"]);
    let limits: Vec<_> =
        admitted.limits.iter().map(|l| (l.kind.as_str(), l.scope, l.value, l.set_by.as_str())).collect();
    assert_eq!(limits, [("max-rows", None, 10, "row-limit"), ("max-live-sandboxes", Some(Scope::Group), 3, "quota")]);

    let again = admit(Make::default(), &context, &decision, &book, &NoConsents).unwrap_err();
    assert_eq!((again.code, again.retry_after_ms), (Code::RateLimited, Some(1000)));
    assert_eq!(foresee(Make::default(), &context, &decision, &book, &NoConsents).err(), Some(again.clone()));
    refund(&admitted.receipt, &book, context.now).unwrap();
    let charged = admit(Make::default(), &context, &decision, &book, &NoConsents).unwrap_err();
    assert_eq!(charged, again, "nobody said that nothing was done");
    let refused = admitted.permit.grant().course.refusing(Err::<(), _>(again.clone()));
    assert_eq!(refused, Err(again));
    refund(&admitted.receipt, &book, context.now).unwrap();
    assert!(admit(Make::default(), &context, &decision, &book, &NoConsents).is_ok());
}

#[test]
fn a_refusal_of_the_policies_stands() {
    let refused = Decision { refusal: Some(Failure::new(Code::Denied, "no")), ..decision(&[]) };
    check_refused(Make::default, &refused, Code::Denied, "no");
}

#[test]
fn only_a_decision_made_before_the_call_admits_it() {
    for phase in [Phase::Visible, Phase::After] {
        let context = Context { phase, ..context() };
        let failure = admit(Make::default(), &context, &decision(&[]), &MemoryBook::default(), &NoConsents);
        assert_eq!(failure.unwrap_err().code, Code::Internal);
    }
}

#[test]
fn an_obligation_the_operation_cannot_meet_is_named() {
    for (obligation, word) in [
        (Obligation::ReadOnly, "`read-only`"),
        (Obligation::MaxResultBytes(1), "`max-result-bytes`"),
        (Obligation::StatementTimeoutMs(1), "`statement-timeout-ms`"),
        (Obligation::MaxDatabaseBytes { scope: Scope::Principal, limit: 1 }, "`max-database-bytes`"),
        (Obligation::Mask { relation: "r".into(), column: "c".into() }, "`mask`"),
    ] {
        let says = format!("policy `p` demands {word}, which `create_database` cannot do");
        check_refused(Make::default, &decision(&[("p", obligation)]), Code::ObligationUnmet, &says);
    }
}

#[test]
fn times_to_live_are_refused_and_not_cut_short() {
    let decision = decision(&[("quota", Obligation::MaxTtlMinutes(60))]);
    let asked = || Make { ttl: Some(61), ..Make::default() };
    check_refused(asked, &decision, Code::InvalidTtl, "61 is over the limit `max-ttl-minutes` of 60, set by `quota`");
    let left_open = admit(Make::default(), &context(), &decision, &MemoryBook::default(), &NoConsents).unwrap();
    assert_eq!(left_open.permit.input().ttl, Some(60));
}

#[test]
fn labels_that_conflict_are_refused() {
    let add = |value: &str| Obligation::AddLabel { key: "env".into(), value: value.into() };
    check_refused(Make::default, &decision(&[("a", add("ci")), ("b", add("dev"))]), Code::ObligationUnmet, "`ci`");
    let given = || Make { labels: vec![label("env", "prod")], ..Make::default() };
    check_refused(given, &decision(&[("a", add("ci"))]), Code::ObligationUnmet, "`env` is set to `ci`");
    let required = decision(&[("a", Obligation::RequireLabel("ticket".into()))]);
    check_refused(given, &required, Code::ObligationUnmet, "label `ticket` is missing");
    let full = || Make { labels: (0..32).map(|n| label(&n.to_string(), "")).collect(), ..Make::default() };
    check_refused(full, &decision(&[("a", add("ci"))]), Code::InvalidArguments, "33");
}

#[test]
fn a_required_label_may_be_an_added_one() {
    let decision = decision(&[
        ("a", Obligation::RequireLabel("env".into())),
        ("b", Obligation::AddLabel { key: "env".into(), value: "ci".into() }),
    ]);
    assert!(admit(Make::default(), &context(), &decision, &MemoryBook::default(), &NoConsents).is_ok());
}

/// Says yes to everything, and remembers what was asked.
#[derive(Default)]
struct Yes(Mutex<Vec<String>>);

impl Consents for Yes {
    fn given(&self, _context: &Context, demand: Demand<'_>) -> bool {
        self.0.lock().unwrap().push(format!("{demand:?}"));
        true
    }
}

#[test]
fn consent_and_approval_are_all_needed() {
    let consent = ("a", Obligation::Consent("really?".into()));
    let approval = ("b", Obligation::Approval("dba".into()));
    check_refused(Make::default, &decision(std::slice::from_ref(&consent)), Code::ConsentRequired, "really?");
    check_refused(Make::default, &decision(std::slice::from_ref(&approval)), Code::ApprovalRequired, "group `dba`");
    let yes = Yes::default();
    let decision = decision(&[consent, approval]);
    assert!(admit(Make::default(), &context(), &decision, &MemoryBook::default(), &yes).is_ok());
    let asked = yes.0.lock().unwrap();
    assert_eq!(*asked, ["Consent(\"really?\")", "Approval(\"dba\")"]);
}
