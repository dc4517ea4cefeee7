//! The kernel without Wasm: policies here are closures.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::model::{
    Balance, Bucket, Charge, Code, Context, Denial, Identity, Impact, Limit, Mode, Obligation, Phase, PolicyDecision,
    PolicyFault, Principal, RequestId, Requested, Said, Timestamp, Transport, Verdict,
};

use super::*;

type Answer = Result<PolicyDecision, PolicyFault>;

/// A policy that gives one answer.
#[derive(Clone)]
struct Fake {
    description: Description,
    buckets: Vec<Bucket>,
    answer: Answer,
}

fn fake(verdict: Verdict) -> Fake {
    Fake {
        description: Description {
            name: "fake".into(),
            version: "1".into(),
            covers: vec!["*".into()],
            concerns: vec!["*".into()],
            phases: vec![],
            codes: vec!["no".into(), "rate_limited".into(), "source_not_allowed".into()],
            settings_schema: "{}".into(),
        },
        buckets: vec![],
        answer: Ok(PolicyDecision { verdict, obligations: vec![], charges: vec![], warnings: vec![] }),
    }
}

fn failing(code: Code) -> Fake {
    Fake { answer: Err(PolicyFault { code, detail: "why".into() }), ..fake(Verdict::Pass) }
}

fn deny(code: &str) -> Verdict {
    let message = format!("refused with {code}");
    Verdict::Deny(Denial { code: code.into(), message, audit: "for auditors".into(), retry_after_ms: None })
}

impl Fake {
    fn with(mut self, change: impl FnOnce(&mut PolicyDecision)) -> Self {
        change(self.answer.as_mut().unwrap());
        self
    }

    fn describing(mut self, change: impl FnOnce(&mut Description)) -> Self {
        change(&mut self.description);
        self
    }

    fn with_bucket(mut self, name: &str) -> Self {
        self.buckets.push(Bucket { name: name.into(), burst: 10, per_interval: 1, interval_ms: 1000 });
        self
    }
}

impl Loaded for Fake {
    fn description(&self) -> &Description {
        &self.description
    }

    fn configure(&self, _settings: &str) -> Result<Configured, ConfigureError> {
        Ok(Configured { buckets: self.buckets.clone(), evaluator: Arc::new(self.clone()) })
    }
}

impl Evaluator for Fake {
    fn evaluate(&self, _request: &Request<'_>) -> Evaluation {
        Evaluation { answer: self.answer.clone(), elapsed_us: 1, fuel: 1, memory_bytes: 0 }
    }
}

/// Loads fakes by the names of their specs.
struct Fakes(Vec<(String, Fake)>);

impl Loader for Fakes {
    fn load(&self, spec: &Spec) -> Result<Box<dyn Loaded>, String> {
        let found = self.0.iter().find(|(name, _)| *name == spec.name);
        found.map(|(_, fake)| Box::new(fake.clone()) as Box<dyn Loaded>).ok_or_else(|| "is no policy".to_owned())
    }
}

fn spec(name: &str, mode: Mode) -> Spec {
    Spec {
        name: name.into(),
        component: Component::new(name.as_bytes().to_vec()),
        pin: None,
        mode,
        settings: "{}".into(),
        sections: vec![],
        limits: Limits::default(),
        sees_text: false,
        of: None,
    }
}

fn set(policies: &[(&str, Mode, Fake)]) -> Set {
    let fakes = Fakes(policies.iter().map(|(name, _, fake)| ((*name).to_owned(), fake.clone())).collect());
    let specs: Vec<_> = policies.iter().map(|(name, mode, _)| spec(name, *mode)).collect();
    Set::load(&fakes, &specs, 1).unwrap()
}

fn context(phase: Phase) -> Context {
    Context {
        request_id: RequestId::fresh(),
        phase,
        operation: "run_sql",
        impact: Impact::Writes,
        principal: Principal {
            subject: "me".into(),
            owner: "me".into(),
            groups: vec![],
            transport: Transport::Cli,
            client: String::new(),
            identity: Identity::Certain,
        },
        group_owner: None,
        now: Timestamp::from_unix_ms(0),
        server: None,
        sandbox: None,
        principal_usage: None,
        group_usage: None,
        statements: vec![],
        statement_texts: vec![],
        clone_source: None,
        requested: Requested::default(),
        outcome: None,
    }
}

const ENFORCE: Mode = Mode::Enforce;
const SHADOW: Mode = Mode::Shadow;

/// Expects the code of the refusal of a set's policies, and the policy it is told of.
fn check(policies: &[(&str, Mode, Fake)], phase: Phase, expected: Option<(Code, Option<&str>)>) {
    let decision = set(policies).decide(&context(phase), &[]);
    let refusal = decision.refusal.map(|refusal| (refusal.code, refusal.policy.map(|(policy, _)| policy)));
    assert_eq!(refusal, expected.map(|(code, policy)| (code, policy.map(str::to_owned))));
}

#[test]
fn the_chain_is_the_least_of_its_verdicts() {
    let (pass, abstain) = (fake(Verdict::Pass), fake(Verdict::Abstain));
    let no = fake(deny("no"));
    check(&[("a", ENFORCE, pass.clone())], Phase::Before, None);
    check(&[("a", ENFORCE, pass.clone()), ("b", ENFORCE, abstain.clone())], Phase::Before, None);
    let denied = Some((Code::Denied, Some("b")));
    check(&[("a", ENFORCE, pass.clone()), ("b", ENFORCE, no.clone())], Phase::Before, denied);
    check(&[("b", ENFORCE, no.clone()), ("c", ENFORCE, no.clone())], Phase::Before, denied);
    check(
        &[("b", ENFORCE, no), ("a", ENFORCE, failing(Code::PolicyTrapped)), ("c", ENFORCE, pass)],
        Phase::Before,
        denied,
    );
}

#[test]
fn an_operation_needs_a_pass_of_an_enforced_policy_that_covers_it() {
    let uncovered = Some((Code::Uncovered, None));
    let pass = || fake(Verdict::Pass);
    check(&[], Phase::Before, uncovered);
    check(&[("a", ENFORCE, fake(Verdict::Abstain))], Phase::Before, uncovered);
    check(&[("a", SHADOW, pass())], Phase::Before, uncovered);
    let sees = pass().describing(|d| d.covers = vec!["list_databases".into()]);
    check(&[("a", ENFORCE, sees)], Phase::Before, uncovered);
    let covers_unseen = pass().describing(|d| (d.covers, d.concerns) = (vec!["run_sql".into()], vec![]));
    check(&[("a", ENFORCE, covers_unseen)], Phase::Before, None);
}

#[test]
fn a_list_shows_what_could_be_covered_and_takes_nothing() {
    let uncovered = Some((Code::Uncovered, None));
    check(&[("a", ENFORCE, fake(Verdict::Abstain))], Phase::Visible, None);
    check(&[("a", SHADOW, fake(Verdict::Pass))], Phase::Visible, uncovered);
    let no = fake(deny("no"));
    check(&[("a", ENFORCE, no.clone())], Phase::Visible, None);
    let asked = no.describing(|d| d.phases = vec![Phase::Visible]);
    check(&[("a", ENFORCE, asked)], Phase::Visible, Some((Code::Denied, Some("a"))));
    let silent = fake(Verdict::Abstain).describing(|d| d.phases = vec![Phase::Visible]);
    check(&[("a", ENFORCE, silent)], Phase::Visible, uncovered);

    let charges = fake(Verdict::Pass)
        .with_bucket("b")
        .with(|d| d.charges = vec![Charge { bucket: "b".into(), cost: 1 }])
        .describing(|d| d.phases = vec![Phase::Visible]);
    let set = set(&[("a", ENFORCE, charges)]);
    assert_eq!(set.decide(&context(Phase::Visible), &[]).charges, []);
    assert_eq!(set.decide(&context(Phase::Before), &[]).charges.len(), 1);
}

#[test]
fn a_result_was_covered_before_it_was_made() {
    check(&[("a", ENFORCE, fake(Verdict::Pass))], Phase::After, None);
    let asked = fake(deny("no")).describing(|d| d.phases = vec![Phase::After]);
    check(&[("a", ENFORCE, asked)], Phase::After, Some((Code::Denied, Some("a"))));
}

#[test]
fn each_failure_refuses_under_its_own_code() {
    let codes = [
        Code::PolicyTrapped,
        Code::PolicyTimeout,
        Code::PolicyMemory,
        Code::PolicyOutputInvalid,
        Code::PolicyNotReady,
        Code::Busy,
    ];
    for code in codes {
        let policies = [("good", ENFORCE, fake(Verdict::Pass)), ("bad", ENFORCE, failing(code))];
        check(&policies, Phase::Before, Some((code, Some("bad"))));
        let shadow = [("good", ENFORCE, fake(Verdict::Pass)), ("bad", SHADOW, failing(code))];
        check(&shadow, Phase::Before, None);
    }
}

#[test]
fn the_contracts_words_keep_their_place_and_others_are_denied() {
    for (word, code) in
        [("rate_limited", Code::RateLimited), ("source_not_allowed", Code::SourceNotAllowed), ("no", Code::Denied)]
    {
        let refusal = set(&[("p", ENFORCE, fake(deny(word)))]).decide(&context(Phase::Before), &[]).refusal.unwrap();
        assert_eq!((refusal.code, refusal.policy), (code, Some(("p".into(), word.into()))));
        assert_eq!(refusal.audit.as_deref(), Some("for auditors"));
    }
    // A word of the contract that is not a policy's to use is no more than its own code.
    let sneaky = fake(deny("internal")).describing(|d| d.codes = vec!["internal".into()]);
    check(&[("p", ENFORCE, sneaky)], Phase::Before, Some((Code::Denied, Some("p"))));
}

#[test]
fn a_thing_that_must_not_be_seen_is_not_found() {
    let hides = fake(deny(NOT_FOUND)).describing(|d| d.codes = vec![NOT_FOUND.into()]);
    let refusal = set(&[("p", ENFORCE, hides)]).decide(&context(Phase::Before), &[]).refusal.unwrap();
    assert_eq!((refusal.code, refusal.policy), (Code::DatabaseNotFound, None));
    assert_eq!(refusal.audit.as_deref(), Some("for auditors"));
}

#[test]
fn texts_are_wanted_only_where_a_concerned_policy_sees_them() {
    let fakes = Fakes(vec![(
        "a".into(),
        fake(Verdict::Pass).describing(|d| {
            (d.covers, d.concerns) = (vec![], vec!["run_sql".into()]);
        }),
    )]);
    let sees = |sees_text: bool, operation: &'static str| {
        let spec = Spec { sees_text, ..spec("a", ENFORCE) };
        Set::load(&fakes, &[spec], 1).unwrap().sees_text(&Context { operation, ..context(Phase::Before) })
    };
    assert!(sees(true, "run_sql"));
    assert!(!sees(true, "doctor"));
    assert!(!sees(false, "run_sql"));
}

#[test]
fn demands_of_enforced_policies_are_merged_with_their_origin() {
    let limits = |rows: u64| {
        fake(Verdict::Pass).with(|d| {
            d.obligations = vec![Obligation::MaxRows(rows)];
            d.warnings = vec![format!("{rows} rows")];
        })
    };
    let policies = [("c", SHADOW, limits(1)), ("b", ENFORCE, limits(5)), ("a", ENFORCE, limits(9))];
    let decision = set(&policies).decide(&context(Phase::Before), &[]);
    assert_eq!(decision.obligations.max_rows, Some(Limit { value: 5, set_by: "b".into() }));
    assert_eq!(decision.warnings, [("a".into(), "9 rows".into()), ("b".into(), "5 rows".into())]);
    let reported: Vec<_> = decision.reports.iter().map(|report| (report.policy.as_str(), report.mode)).collect();
    assert_eq!(reported, [("a", ENFORCE), ("b", ENFORCE), ("c", SHADOW)]);
}

#[test]
fn charges_on_one_bucket_are_one_charge() {
    let charge = |cost: u32| Charge { bucket: "b".into(), cost };
    let policy = |charges: Vec<Charge>| fake(Verdict::Abstain).with_bucket("b").with(|d| d.charges = charges);
    let policies = [
        ("twice", ENFORCE, policy(vec![charge(2), charge(3)])),
        ("free", ENFORCE, policy(vec![charge(0)])),
        ("huge", ENFORCE, policy(vec![charge(u32::MAX), charge(1)])),
        ("shadow", SHADOW, policy(vec![charge(1)])),
    ];
    let decision = set(&policies).decide(&context(Phase::Before), &[]);
    let charges: Vec<_> = decision.charges.iter().map(|c| (c.policy.as_str(), c.cost)).collect();
    assert_eq!(charges, [("huge", u32::MAX), ("twice", 5)]);
}

#[test]
fn policies_see_their_own_balances_only() {
    struct Counts(AtomicUsize);
    impl Evaluator for Counts {
        fn evaluate(&self, request: &Request<'_>) -> Evaluation {
            assert!(request.balances.iter().all(|balance| balance.policy == "mine"));
            self.0.fetch_add(request.balances.len(), Ordering::SeqCst);
            fake(Verdict::Pass).evaluate(request)
        }
    }
    struct Mine(Arc<Counts>, Fake);
    impl Loaded for Mine {
        fn description(&self) -> &Description {
            self.1.description()
        }
        fn configure(&self, _settings: &str) -> Result<Configured, ConfigureError> {
            Ok(Configured { buckets: self.1.buckets.clone(), evaluator: Arc::clone(&self.0) as Arc<dyn Evaluator> })
        }
    }
    struct One(Arc<Counts>);
    impl Loader for One {
        fn load(&self, _spec: &Spec) -> Result<Box<dyn Loaded>, String> {
            Ok(Box::new(Mine(Arc::clone(&self.0), fake(Verdict::Pass).with_bucket("b"))))
        }
    }
    let counts = Arc::new(Counts(AtomicUsize::new(0)));
    let set = Set::load(&One(Arc::clone(&counts)), &[spec("mine", ENFORCE)], 1).unwrap();
    let context = context(Phase::Before);
    let wanted = set.buckets(&context);
    assert_eq!(
        wanted.iter().map(|(policy, bucket)| (policy.as_str(), bucket.name.as_str())).collect::<Vec<_>>(),
        [("mine", "b")]
    );
    let balance = |policy: &str| Balance { policy: policy.into(), bucket: "b".into(), remaining: 1 };
    set.decide(&context, &[balance("mine"), balance("other")]);
    assert_eq!(counts.0.load(Ordering::SeqCst), 1);
}

#[test]
fn who_is_not_concerned_is_recorded_and_not_run() {
    let elsewhere = fake(deny("no")).describing(|d| (d.covers, d.concerns) = (vec![], vec!["doctor".into()]));
    let decision = set(&[("a", ENFORCE, fake(Verdict::Pass)), ("b", ENFORCE, elsewhere.with_bucket("x"))]);
    assert_eq!(decision.buckets(&context(Phase::Before)), []);
    let decision = decision.decide(&context(Phase::Before), &[]);
    assert_eq!(decision.refusal, None);
    assert_eq!((&decision.reports[1].said, decision.reports[1].fuel), (&Said::NotConcerned, 0));
}

#[test]
fn a_generation_is_named_by_all_that_can_change_a_decision() {
    let fakes = Fakes(vec![("a".into(), fake(Verdict::Pass)), ("b".into(), fake(Verdict::Pass))]);
    let digest = |specs: &[Spec]| Set::load(&fakes, specs, 1).unwrap().generation().digest.clone();
    let (a, b) = (spec("a", ENFORCE), spec("b", ENFORCE));
    let first = digest(&[a.clone(), b.clone()]);
    assert_eq!(digest(&[b.clone(), a.clone()]), first);
    let section = Section { pattern: "x".into(), settings: "{}".into() };
    for changed in [
        Spec { mode: SHADOW, ..a.clone() },
        candidate("a", "b"),
        Spec { settings: "{\"a\":1}".into(), ..a.clone() },
        Spec { sections: vec![section], ..a.clone() },
        Spec { limits: Limits { fuel: FUEL_MIN, ..Limits::default() }, ..a.clone() },
        Spec { component: Component::new(vec![1]), ..a.clone() },
        Spec { sees_text: true, ..a.clone() },
    ] {
        assert_ne!(digest(&[changed.clone(), b.clone()]), first, "{changed:?}");
    }
}

#[test]
fn a_set_that_fails_to_load_leaves_the_old_one_serving() {
    let load = |specs: Vec<Spec>| {
        move |number: u64| {
            Set::load(
                &Fakes(vec![("a".into(), fake(Verdict::Pass)), ("b".into(), fake(Verdict::Pass))]),
                &specs,
                number,
            )
        }
    };
    let holder = Holder::new(load(vec![spec("a", ENFORCE), spec("b", ENFORCE)]));
    let begun = holder.current().unwrap();
    let error = holder.prepare(load(vec![spec("a", ENFORCE), spec("missing", ENFORCE)])).unwrap_err();
    assert_eq!(error.to_string(), "the policies cannot be loaded; policy `missing`, `source`: is no policy");
    assert_eq!(holder.current().unwrap().generation(), begun.generation());
    assert_eq!(holder.fault(), None);

    let prepared = holder.prepare(load(vec![spec("a", SHADOW)])).unwrap();
    assert_eq!(prepared.reloaded().to.number, 2);
    drop(prepared);
    assert_eq!(holder.current().unwrap().generation(), begun.generation(), "what is not let serve never does");

    let reloaded = holder.prepare(load(vec![spec("a", SHADOW)])).unwrap().serve();
    assert_eq!(reloaded.from.as_ref(), Some(begun.generation()));
    assert_eq!((reloaded.to.number, reloaded.weakened()), (2, vec!["a", "b"]));
    assert_eq!(holder.current().unwrap().generation(), &reloaded.to);
    assert_eq!(begun.generation().number, 1, "a request keeps the set it began with");
}

#[test]
fn what_a_generation_changes_is_told_and_what_weakens_is_told_apart() {
    let covering = |words: &[&str]| {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        fake(Verdict::Pass).describing(|d| d.covers = words)
    };
    let policies = || vec![("a".into(), covering(&["run_sql"])), ("b".into(), covering(&["run_sql", "doctor"]))];
    let load = |specs: Vec<Spec>| move |number: u64| Set::load(&Fakes(policies()), &specs, number);
    let (a, b) = (spec("a", ENFORCE), spec("b", ENFORCE));
    let check = |before: &[&Spec], after: &[&Spec], expected: &[&str]| {
        let own = |specs: &[&Spec]| specs.iter().map(|spec| (*spec).clone()).collect::<Vec<_>>();
        let holder = Holder::new(load(own(before)));
        let reloaded = holder.prepare(load(own(after))).unwrap().serve();
        let told = reloaded.changes.iter().map(|change| {
            let Change { policy, what, from, to, weakens } = change;
            let brief = |word: &Option<String>| match word.as_deref() {
                Some(word) if word.len() == 64 => "digest".to_owned(),
                Some(word) => word.to_owned(),
                None => "-".to_owned(),
            };
            format!("{policy} {}: {} → {}{}", what.as_str(), brief(from), brief(to), if *weakens { " !" } else { "" })
        });
        assert_eq!(told.collect::<Vec<_>>(), expected);
    };
    let shadow = Spec { mode: SHADOW, ..b.clone() };
    check(&[&a, &b], &[&b, &a], &[]);
    check(&[&a, &b], &[&a], &["b presence: enforce → - !"]);
    check(&[&a, &shadow], &[&a], &["b presence: shadow → -"]);
    check(&[&a, &b], &[&a, &shadow], &["b mode: enforce → shadow !"]);
    check(&[&a, &shadow], &[&a, &b], &["b mode: shadow → enforce", "b covers: - → doctor !"]);
    check(&[&b], &[&a, &b], &["a presence: - → enforce"]);
    check(&[&a], &[&a, &b], &["b presence: - → enforce", "b covers: - → doctor !"]);
    check(&[&a], &[&a, &shadow], &["b presence: - → shadow"]);
    let settings = Spec { settings: "{\"a\":1}".into(), ..a.clone() };
    check(&[&a], &[&settings], &["a settings: digest → digest"]);
    let component = Spec { component: Component::new(vec![1]), ..a.clone() };
    check(&[&a], &[&component], &["a component: digest → digest"]);
    let limits = Spec { limits: Limits { fuel: FUEL_MIN, ..Limits::default() }, ..a.clone() };
    check(
        &[&a],
        &[&limits],
        &["a limits: fuel 5000000, memory 8192 KiB, 250 ms → fuel 10000, memory 8192 KiB, 250 ms"],
    );
    check(&[&a], &[&Spec { sees_text: true, ..a.clone() }], &["a texts: hidden → shown"]);
}

#[test]
fn a_set_is_given_back_when_the_last_request_that_holds_it_ends() {
    let load = |number: u64| Set::load(&Fakes(vec![("a".into(), fake(Verdict::Pass))]), &[spec("a", ENFORCE)], number);
    let holder = Holder::new(load);
    let begun = holder.current().unwrap();
    let old = Arc::downgrade(&begun);
    holder.prepare(load).unwrap().serve();
    assert!(old.upgrade().is_some());
    drop(begun);
    assert!(old.upgrade().is_none());
    let unheld = Arc::downgrade(&holder.current().unwrap());
    holder.prepare(load).unwrap().serve();
    assert!(unheld.upgrade().is_none());
}

#[test]
fn while_sets_change_every_decision_is_one_whole_sets() {
    // Each generation's two policies demand the number of the generation: a mixture would demand two.
    struct Numbered(u64);
    impl Loader for Numbered {
        fn load(&self, _spec: &Spec) -> Result<Box<dyn Loaded>, String> {
            Ok(Box::new(fake(Verdict::Pass).with(|d| d.warnings = vec![self.0.to_string()])))
        }
    }
    let load = |number: u64| Set::load(&Numbered(number), &[spec("a", ENFORCE), spec("b", ENFORCE)], number);
    let holder = Holder::new(load);
    std::thread::scope(|scope| {
        let decide = || {
            let mut last = 0;
            for _ in 0..1000 {
                let set = holder.current().unwrap();
                let decision = set.decide(&context(Phase::Before), &[]);
                let number = decision.generation.number;
                assert!(decision.warnings.iter().all(|(_, of)| *of == number.to_string()), "{decision:?}");
                assert!(number >= last, "a generation came back");
                last = number;
            }
        };
        let deciding = [scope.spawn(decide), scope.spawn(decide)];
        for _ in 0..100 {
            holder.prepare(load).unwrap().serve();
        }
        deciding.into_iter().for_each(|thread| thread.join().unwrap());
    });
    assert_eq!(holder.current().unwrap().generation().number, 101);
}

#[test]
fn without_a_set_everything_is_refused_until_there_is_one() {
    let none = || Fakes(vec![]);
    let holder = Holder::new(|number| Set::load(&none(), &[spec("a", ENFORCE)], number));
    let refusal = holder.current().unwrap_err();
    assert_eq!(refusal.code, Code::PolicyNotReady);
    assert!(!refusal.retryable, "the file has to be mended: calling again never helps");
    assert!(refusal.audit.unwrap().contains("policy `a`"));
    holder.prepare(|number| Set::load(&none(), &[spec("b", ENFORCE)], number)).unwrap_err();
    assert!(holder.fault().unwrap().to_string().contains("policy `b`"), "the newest reason is told");
    let reloaded = holder
        .prepare(|number| Set::load(&Fakes(vec![("a".into(), fake(Verdict::Pass))]), &[spec("a", ENFORCE)], number))
        .unwrap()
        .serve();
    assert_eq!((reloaded.from, reloaded.to.number), (None, 2));
    assert!(holder.current().is_ok());
}

fn candidate(name: &str, of: &str) -> Spec {
    Spec { of: Some(of.into()), ..spec(name, Mode::Candidate) }
}

#[test]
fn a_candidate_names_one_policy_that_is_none_and_has_no_rival() {
    let fakes = || Fakes(["a", "b", "c", "d"].map(|name| (name.to_owned(), fake(Verdict::Pass))).into());
    let check = |specs: &[Spec], expected: &[(&str, &str)]| {
        let faults = Set::load(&fakes(), specs, 1).err().map_or(Vec::new(), |error| error.faults);
        let found: Vec<_> = faults.iter().map(|fault| (fault.policy.as_str(), fault.path.as_str())).collect();
        let said = faults.iter().zip(expected).all(|(fault, (_, says))| fault.message.contains(says));
        let policies: Vec<_> = expected.iter().map(|(policy, _)| *policy).collect();
        assert!(said && found.iter().map(|(policy, _)| *policy).eq(policies), "{faults:?}");
        assert!(found.iter().all(|(_, path)| *path == "of"), "{faults:?}");
    };
    let a = spec("a", ENFORCE);
    check(&[a.clone(), candidate("b", "a")], &[]);
    check(&[spec("a", SHADOW), candidate("b", "a")], &[]);
    check(&[a.clone(), candidate("b", "x")], &[("b", "no policy `x`")]);
    check(&[a.clone(), candidate("b", "b")], &[("b", "a candidate itself")]);
    check(&[a.clone(), candidate("b", "a"), candidate("c", "b")], &[("c", "a candidate itself")]);
    check(&[a.clone(), candidate("b", "a"), candidate("c", "a")], &[("c", "`b` is a candidate of `a` already")]);
    check(&[a.clone(), spec("b", Mode::Candidate)], &[("b", "names the policy")]);
    check(&[a.clone(), Spec { of: Some("a".into()), ..spec("b", SHADOW) }], &[("b", "only a policy of mode")]);
}

#[test]
fn a_candidate_changes_nothing_and_is_compared_and_counted() {
    use crate::model::Difference;
    let limited = |rows: u64| fake(Verdict::Pass).with(|d| d.obligations = vec![Obligation::MaxRows(rows)]);
    let costs = |cost: u32| {
        fake(Verdict::Pass).with_bucket("b").with(|d| d.charges = vec![Charge { bucket: "b".into(), cost }])
    };
    let elsewhere = fake(Verdict::Pass).describing(|d| (d.covers, d.concerns) = (vec![], vec!["doctor".into()]));
    let check = |live: Fake, candidate_says: Fake, expected: &[Difference]| {
        let fakes = || {
            Fakes(vec![
                ("live".into(), live.clone()),
                ("next".into(), candidate_says.clone()),
                ("other".into(), fake(Verdict::Pass)),
            ])
        };
        let others = [spec("live", ENFORCE), spec("other", ENFORCE)];
        let alone = Set::load(&fakes(), &others, 1).unwrap().decide(&context(Phase::Before), &[]);
        let specs = [&others[..], &[candidate("next", "live")]].concat();
        let set = Set::load(&fakes(), &specs, 1).unwrap();
        let decision = set.decide(&context(Phase::Before), &[]);
        assert_eq!(
            (&decision.refusal, &decision.obligations, &decision.charges, &decision.warnings),
            (&alone.refusal, &alone.obligations, &alone.charges, &alone.warnings)
        );
        let report = &decision.reports[1];
        assert_eq!((report.of.as_deref(), &report.differs[..]), (Some("live"), expected));
        set.count(&decision);
        let counts = &set.counts()[0];
        let asked = u64::from(!matches!(report.said, Said::NotConcerned));
        let same = u64::from(expected.is_empty()) * asked;
        assert_eq!((counts.policy.as_str(), counts.of.as_str()), ("next", "live"));
        assert_eq!((counts.asked, counts.same), (asked.max(u64::from(!expected.is_empty())), same));
        let differed = counts.differed.iter().filter(|(_, count)| *count > 0).map(|(kind, _)| *kind);
        assert_eq!(differed.collect::<Vec<_>>(), expected);
        assert_eq!(decision.would.is_some(), !expected.is_empty(), "{:?}", decision.would);
        decision.would
    };
    check(limited(5), limited(5), &[]);
    let would = check(limited(5), limited(3), &[Difference::Obligations]).unwrap();
    assert_eq!(would.obligations.max_rows, Some(Limit { value: 3, set_by: "live".into() }));
    check(costs(1), costs(2), &[Difference::Charges]);
    let would = check(limited(5), fake(deny("no")), &[Difference::Verdict, Difference::Obligations]).unwrap();
    assert_eq!(would.refusal.unwrap().policy, Some(("live".into(), "no".into())));
    check(fake(deny("no")), fake(deny("rate_limited")), &[Difference::Code]);
    let would = check(fake(deny("no")), fake(Verdict::Pass), &[Difference::Verdict]).unwrap();
    assert_eq!(would.refusal, None);
    let would = check(limited(5), failing(Code::PolicyTimeout), &[Difference::Verdict]).unwrap();
    assert_eq!(would.refusal.unwrap().code, Code::PolicyTimeout);
    check(limited(5), elsewhere, &[Difference::Verdict]);
}

#[test]
fn a_candidate_gives_no_coverage_and_is_shown_full_buckets() {
    struct Sees(AtomicUsize);
    impl Evaluator for Sees {
        fn evaluate(&self, request: &Request<'_>) -> Evaluation {
            let left: u32 = request.balances.iter().map(|balance| balance.remaining).sum();
            self.0.store(left as usize, Ordering::SeqCst);
            fake(Verdict::Pass).evaluate(request)
        }
    }
    struct One(Arc<Sees>, Fake);
    impl Loaded for One {
        fn description(&self) -> &Description {
            self.1.description()
        }
        fn configure(&self, _settings: &str) -> Result<Configured, ConfigureError> {
            Ok(Configured { buckets: self.1.buckets.clone(), evaluator: Arc::clone(&self.0) as Arc<dyn Evaluator> })
        }
    }
    struct Both(Arc<Sees>);
    impl Loader for Both {
        fn load(&self, spec: &Spec) -> Result<Box<dyn Loaded>, String> {
            let live = fake(Verdict::Abstain).with_bucket("b");
            match spec.mode {
                Mode::Candidate => Ok(Box::new(One(Arc::clone(&self.0), fake(Verdict::Pass).with_bucket("b")))),
                Mode::Enforce | Mode::Shadow => Ok(Box::new(live)),
            }
        }
    }
    let sees = Arc::new(Sees(AtomicUsize::new(0)));
    let set = Set::load(&Both(Arc::clone(&sees)), &[spec("a", ENFORCE), candidate("next", "a")], 1).unwrap();
    let context = context(Phase::Before);
    let kept: Vec<_> = set.buckets(&context).into_iter().map(|(policy, _)| policy).collect();
    assert_eq!(kept, ["a"], "none are kept for a candidate");
    let spent = Balance { policy: "a".into(), bucket: "b".into(), remaining: 0 };
    let decision = set.decide(&context, &[spent]);
    assert_eq!(decision.refusal.unwrap().code, Code::Uncovered);
    assert_eq!(decision.would.unwrap().refusal, None);
    assert_eq!(sees.0.load(Ordering::SeqCst), 10);
}

#[test]
fn a_policy_cannot_pass_for_the_core() {
    let error = Set::load(&Fakes(vec![]), &[spec("core", ENFORCE)], 1).unwrap_err();
    assert_eq!(error.faults[0].path, "name");
}

#[test]
fn a_fault_of_one_policy_hides_none_of_another_and_none_of_its_own_settings() {
    let fakes = || {
        Fakes(
            ["a", "b", "c"].map(|name| (name.to_owned(), fake(Verdict::Pass).with_bucket("x").with_bucket("x"))).into(),
        )
    };
    let starved = Spec { limits: Limits { fuel: 0, ..Limits::default() }, ..spec("a", ENFORCE) };
    let tied = ["t*", "t*u"].map(|pattern| Section { pattern: pattern.into(), settings: "{}".into() });
    let other = Spec { sections: tied.into(), ..spec("b", ENFORCE) };
    let pinned = Spec { pin: Some("another".into()), ..spec("c", ENFORCE) };
    let error = Set::load(&fakes(), &[starved, other, pinned], 1).unwrap_err();
    let mut found: Vec<_> = error.faults.iter().map(|fault| format!("{} {}", fault.policy, fault.path)).collect();
    found.dedup();
    // What is not the component that was meant is not asked.
    assert_eq!(found, ["a limits.fuel", "a settings", "b owners", "b settings", "c digest"]);
}

#[test]
fn descriptions_and_buckets_out_of_bounds_are_refused_at_load() {
    let load = |fake: Fake| {
        let error = Set::load(&Fakes(vec![("a".into(), fake)]), &[spec("a", ENFORCE)], 1).unwrap_err();
        (error.faults[0].path.clone(), error.faults[0].message.clone())
    };
    let (path, message) = load(fake(Verdict::Pass).describing(|d| d.version = String::new()));
    assert_eq!((path.as_str(), message.contains("empty version")), ("source", true));
    let (path, message) = load(fake(Verdict::Pass).with_bucket("b").with_bucket("b"));
    assert_eq!((path.as_str(), message.contains("declared twice")), ("settings", true));
}

#[test]
fn a_set_is_taken_at_its_bounds_and_no_further() {
    let faults = |specs: &[Spec]| {
        let fakes = Fakes(specs.iter().map(|spec| (spec.name.clone(), fake(Verdict::Pass))).collect());
        Set::load(&fakes, specs, 1).err().map_or(Vec::new(), |error| error.faults)
    };
    let check = |what: &str, value: u64, fits: bool, change: &dyn Fn(&mut Spec)| {
        let mut spec = spec("p", ENFORCE);
        change(&mut spec);
        let found = faults(&[spec]);
        if fits {
            assert!(found.is_empty(), "{what} of {value}: {found:?}");
        } else {
            assert!(found.len() == 1 && found[0].path == what, "{what} of {value}: {found:?}");
        }
    };
    let ranges = [
        ("limits.fuel", FUEL_MIN, FUEL_MAX, 1),
        ("limits.memory_kib", MEMORY_BYTES_MIN as u64, MEMORY_BYTES_MAX as u64, 1 << 10),
        ("limits.timeout_ms", TIMEOUT_MS_MIN, TIMEOUT_MS_MAX, 1),
    ];
    for (what, min, max, step) in ranges {
        let at = [
            (min - step, false),
            (min, true),
            (min + step, true),
            (max - step, true),
            (max, true),
            (max + step, false),
        ];
        for (value, fits) in at {
            check(what, value, fits, &|spec| match what {
                "limits.fuel" => spec.limits.fuel = value,
                "limits.timeout_ms" => spec.limits.timeout_ms = value,
                _ => spec.limits.memory_bytes = usize::try_from(value).unwrap(),
            });
        }
    }
    for (bytes, fits) in
        [(COMPONENT_BYTES_MAX - 1, true), (COMPONENT_BYTES_MAX, true), (COMPONENT_BYTES_MAX + 1, false)]
    {
        check("source", bytes as u64, fits, &|spec| spec.component = Component::new(vec![0; bytes]));
    }
    for (bytes, fits) in [(SETTINGS_BYTES_MAX - 1, true), (SETTINGS_BYTES_MAX, true), (SETTINGS_BYTES_MAX + 1, false)] {
        check("settings", bytes as u64, fits, &|spec| spec.settings = format!("{{}}{}", " ".repeat(bytes - 2)));
    }
    for (count, fits) in [(SECTIONS_MAX - 1, true), (SECTIONS_MAX, true), (SECTIONS_MAX + 1, false)] {
        let section = |n: usize| Section { pattern: format!("o{n}"), settings: "{}".into() };
        check("owners", count as u64, fits, &|spec| spec.sections = (0..count).map(section).collect());
    }
    for (count, fits) in [(POLICIES_MAX - 1, true), (POLICIES_MAX, true), (POLICIES_MAX + 1, false)] {
        let specs: Vec<_> = (0..count).map(|n| spec(&format!("p{n}"), ENFORCE)).collect();
        assert_eq!(faults(&specs).is_empty(), fits, "{count} policies");
    }
}
