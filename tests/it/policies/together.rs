//! Policies that decide together: what outweighs what, and that order and shadow change nothing.

use pgsandbox::admission::{Account, Admissible, Book, Effective, Entries, MemoryBook, NoConsents, admit};
use pgsandbox::model::{Charge, Code, Context, Decision, Failure, Mode, Obligation, ObligationKind, Verdict};
use pgsandbox::policy::wasm::{Host, HostSettings};
use pgsandbox::policy::{Set, Spec};
use proptest::prelude::*;

use super::guest::{Guest, context};
use super::{bucket, deny, load};

/// An operation that meets everything and keeps what it was given.
struct Anything;

impl Admissible for Anything {
    const MEETS: &'static [ObligationKind] = &ObligationKind::ALL;

    fn apply(&mut self, _effective: &Effective<'_>) -> Result<Vec<String>, Failure> {
        Ok(Vec::new())
    }
}

/// Policies of every kind, by number: they pass, abstain, deny, limit, charge, fail, and look elsewhere.
fn guests() -> Vec<Guest> {
    let mut guests = Vec::new();
    let mut add = |name: &str, change: &dyn Fn(&mut Guest)| {
        let mut guest = Guest::new(name);
        change(&mut guest);
        guests.push(guest);
    };
    add("pass", &|_| {});
    add("limit-a", &|g| {
        g.decision.verdict = Verdict::Abstain;
        g.decision.obligations = vec![Obligation::MaxRows(10), Obligation::ReadOnly];
        g.decision.warnings = vec!["a".into()];
    });
    add("limit-b", &|g| {
        g.decision.obligations = vec![Obligation::MaxRows(10), Obligation::MaxResultBytes(5)];
        g.decision.warnings = vec!["b".into()];
    });
    for (name, burst, cost) in [("rate-a", 100, 3), ("rate-b", 50, 2)] {
        add(name, &|g| {
            g.decision.verdict = Verdict::Abstain;
            g.configured = Ok(vec![bucket("calls", burst)]);
            g.decision.charges = vec![Charge { bucket: "calls".into(), cost }; 2];
        });
    }
    add("spent", &|g| {
        g.configured = Ok(vec![bucket("calls", 1)]);
        g.decision.charges = vec![Charge { bucket: "calls".into(), cost: 2 }];
    });
    add("deny-a", &|g| g.decision.verdict = deny("no", "a refuses"));
    add("deny-b", &|g| {
        g.codes = vec!["quota_exceeded".into()];
        g.decision.verdict = deny("quota_exceeded", "b refuses");
    });
    add("elsewhere", &|g| {
        g.covers = vec!["doctor".into()];
        g.concerns = vec!["doctor".into()];
        g.decision.verdict = deny("no", "never asked");
    });
    guests.push(Guest::from_file("trap"));
    guests.push(Guest::from_file("grow_memory"));
    guests
}

/// Takes out of a decision what may differ between two runs: times.
fn settled(mut decision: Decision) -> Decision {
    for report in &mut decision.reports {
        report.elapsed_us = 0;
    }
    decision
}

/// Decides and admits on a fresh book: what was decided, what the caller would hear, and the book afterwards.
fn outcome(set: &Set, context: &Context) -> (Decision, Option<Failure>, Entries) {
    let book = MemoryBook::default();
    let shared: &dyn Book = &book;
    let account = Account::new(&context.principal, None);
    let balances = shared.balances(&account, &set.buckets(context), context.now).unwrap();
    let decision = settled(set.decide(context, &balances));
    let failure = admit(Anything, context, &decision, &book, &NoConsents).err();
    (decision, failure, book.read("me").unwrap())
}

fn chosen() -> impl Strategy<Value = Vec<(usize, Mode)>> {
    let count = guests().len();
    let which = proptest::sample::subsequence((0..count).collect::<Vec<_>>(), 1..=5).prop_shuffle();
    which.prop_flat_map(|which| {
        let modes =
            proptest::collection::vec(prop_oneof![3 => Just(Mode::Enforce), 1 => Just(Mode::Shadow)], which.len());
        modes.prop_map(move |modes| which.iter().copied().zip(modes).collect())
    })
}

#[test]
fn order_never_changes_a_decision_and_refusals_cost_nothing() {
    // Each is compiled once, and taken from the cache for all further sets.
    let parent = tempfile::tempdir().unwrap();
    let settings = HostSettings { cache_directory: Some(parent.path().join("compiled")), ..HostSettings::default() };
    let host = Host::new(&settings).unwrap();
    let built: Vec<Spec> = guests().iter().map(Guest::spec).collect();
    let context = context();
    let config = ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(config, |(chosen in chosen(), rotation in 0usize..5, candidate in 0usize..5)| {
        let mut specs: Vec<Spec> = chosen
            .iter()
            .map(|(index, mode)| Spec { mode: *mode, ..built[*index].clone() })
            .collect();
        // One may be a candidate of the first.
        let first = specs[0].name.clone();
        if let Some(candidate) = specs.get_mut(candidate).filter(|_| candidate > 0) {
            (candidate.mode, candidate.of) = (Mode::Candidate, Some(first.clone()));
        }
        let mut turned = specs.clone();
        turned.rotate_left(rotation % specs.len());
        let mut backwards = specs.clone();
        backwards.reverse();
        let set = Set::load(&host, &specs, 1).unwrap();
        let expected = outcome(&set, &context);
        for other in [turned, backwards] {
            prop_assert_eq!(&outcome(&Set::load(&host, &other, 1).unwrap(), &context), &expected);
        }
        let (decision, failure, book) = expected;
        if failure.is_some() {
            prop_assert_eq!(&book, &Entries::default(), "a refused request was charged");
        } else {
            prop_assert_eq!(book == Entries::default(), decision.charges.is_empty());
        }
        prop_assert_eq!(decision.reports.len(), specs.len(), "every policy is in the record");

        // What would be decided is what the set decides in which shadow is enforced and the candidate is its policy.
        let candidate = specs.iter().find(|spec| spec.mode == Mode::Candidate);
        let standing = specs.iter().filter(|spec| spec.mode != Mode::Candidate);
        let changed: Vec<Spec> = standing
            .map(|spec| {
                let of = candidate.filter(|candidate| candidate.of.as_ref() == Some(&spec.name)).unwrap_or(spec);
                Spec { name: spec.name.clone(), mode: Mode::Enforce, of: None, ..of.clone() }
            })
            .collect();
        let changed = outcome(&Set::load(&host, &changed, 1).unwrap(), &context).0;
        let (refusal, obligations, charges) = match decision.would.as_deref() {
            Some(would) => (&would.refusal, &would.obligations, &would.charges),
            None => (&decision.refusal, &decision.obligations, &decision.charges),
        };
        let code = |refusal: &Option<Failure>| refusal.as_ref().map(|refusal| (refusal.code, refusal.policy.clone()));
        prop_assert_eq!(code(refusal), code(&changed.refusal));
        prop_assert_eq!((obligations, charges), (&changed.obligations, &changed.charges));

        // Without its shadow policies a set decides the same, and charges the same.
        let enforced: Vec<Spec> = specs.into_iter().filter(|spec| spec.mode == Mode::Enforce).collect();
        let (without, failure_without, book_without) = outcome(&Set::load(&host, &enforced, 1).unwrap(), &context);
        prop_assert_eq!(&without.refusal, &decision.refusal);
        prop_assert_eq!(&without.obligations, &decision.obligations);
        prop_assert_eq!(&without.charges, &decision.charges);
        prop_assert_eq!(&without.warnings, &decision.warnings);
        prop_assert_eq!((failure_without, book_without), (failure, book));
    });
}

/// Decides with some of the guests and expects a code.
fn check_set(names: &[&str], expected: Option<Code>) {
    let guests = guests();
    let spec = |name: &&str| guests.iter().find(|guest| guest.name == *name).unwrap().spec();
    let specs: Vec<Spec> = names.iter().map(spec).collect();
    let decision = load(&specs).unwrap().decide(&context(), &[]);
    assert_eq!(decision.refusal.map(|refusal| refusal.code), expected, "{names:?}");
}

#[test]
fn a_denial_outweighs_a_failure_and_a_failure_everything_else() {
    check_set(&["pass"], None);
    check_set(&["pass", "limit-a"], None);
    check_set(&["limit-a"], Some(Code::Uncovered));
    check_set(&["elsewhere"], Some(Code::Uncovered));
    check_set(&["pass", "elsewhere"], None);
    check_set(&["pass", "deny-a"], Some(Code::Denied));
    check_set(&["pass", "deny-b"], Some(Code::QuotaExceeded));
    check_set(&["pass", "trap"], Some(Code::PolicyTrapped));
    check_set(&["limit-a", "trap"], Some(Code::PolicyTrapped));
    check_set(&["trap", "grow_memory"], Some(Code::PolicyMemory));
    check_set(&["trap", "deny-b", "deny-a"], Some(Code::Denied));
}
