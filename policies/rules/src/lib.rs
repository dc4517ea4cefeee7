//! Decides by rules that an operator writes: conditions, and what follows where they hold.
//!
//! `rules` is a list; each rule has a `name` of its own, `when` (conditions that must all hold), `unless` (a list of
//! further conditions; where one of them holds the rule does not) and `then`: a `verdict`, `pass` or `deny`, or none, with
//! `obligations`, `charges` and `warnings`.
//!
//! Their order says nothing. Every rule is looked at: one that refuses refuses the call, whatever others say; demands of all
//! that match hold together, of several limits of a kind the lowest; a `pass` answers for the request that it matches and
//! for no other. Where no rule passes, the policy abstains, and some other policy must answer for the operation.
//!
//! What cannot be told is never taken for harmless. A refusal and a demand hold where a match is possible: if any one
//! statement may match. A `pass`, and what stands in `unless` of a refusal, hold only where a match is sure: every statement
//! must match, with all its relations or functions. Statements that are of no known class or run what is not visible (`unparsed`,
//! `opaque-body`, `dynamic-sql`) may be any; where `relations-unknown` is set, they may touch any relation and call any function.
//!
//! `bare_names_are` is the schema that a relation written without one is judged by, as in `statement-guard`; without it such a
//! name may be in any. Who sets another `search_path` makes it untrue.
//!
//! `buckets` are what `charges` take tokens from: name → `burst`, `per_interval`, `interval_ms`, as in `rate-limit`.

mod conditions;
mod effects;
mod operations;
mod statements;

use std::borrow::Cow;
use std::collections::BTreeMap;

use pgsandbox_policy::statement::{check_schema, named, same_facts, with_schema};
use pgsandbox_policy::{
    Bucket, Decision, Description, Phase, Policy, Problem, Problems, Request, Statement, StatementClass,
};

use conditions::{ConditionSettings, Conditions, Fit, Need};
use effects::{BucketSettings, Effects, Gathered, Refusal, ThenSettings, Verdict};
use operations::{OPERATIONS, OperationSet, index_of};

/// The one code: what was refused by which rule is in the message and in the audit.
const RULE_DENIED: &str = "rule_denied";

/// The most rules: each that is for an operation is looked at on each of its calls.
const RULES_MAX: usize = 250;
/// The most exceptions of one rule.
const UNLESS_MAX: usize = 16;
/// The longest name of a rule, in bytes.
const NAME_BYTES_MAX: usize = 64;
/// The most names of rules that an audit text lists.
const NAMED_MAX: usize = 16;

/// The settings.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    rules: Vec<RuleSettings>,
    bare_names_are: Option<String>,
    buckets: BTreeMap<String, BucketSettings>,
}

/// One rule as it is written.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RuleSettings {
    name: String,
    when: ConditionSettings,
    unless: Vec<ConditionSettings>,
    then: ThenSettings,
}

/// The policy.
#[derive(Debug)]
pub struct Rules {
    /// Sorted by name, so that nothing hangs on the order in which they were written.
    rules: Vec<Rule>,
    /// The rules that are for an operation, by its place in the list.
    by_operation: Vec<Vec<u16>>,
    /// The schema of relations that are written without one, if that is known.
    bare_names_are: Option<String>,
}

#[derive(Debug)]
struct Rule {
    name: String,
    when: Conditions,
    unless: Vec<Conditions>,
    then: Effects,
}

impl Policy for Rules {
    type Settings = Settings;

    fn describe() -> Description {
        Description::new("rules", env!("CARGO_PKG_VERSION"), include_str!("../settings.schema.json"))
            .covers(["*"])
            .phases([Phase::Visible])
            .codes([RULE_DENIED])
    }

    fn configure(settings: Settings) -> Result<(Self, Vec<Bucket>), Vec<Problem>> {
        let mut problems = Problems::default();
        if settings.rules.len() > RULES_MAX {
            problems.add("rules", format!("at most {RULES_MAX} rules; these are {}", settings.rules.len()));
            return Err(problems.done(()).err().unwrap_or_default());
        }
        if let Some(schema) = &settings.bare_names_are {
            check_schema(schema, "bare_names_are", &mut problems);
        }
        let mut rules: Vec<Rule> = Vec::with_capacity(settings.rules.len());
        for (index, rule) in settings.rules.into_iter().enumerate() {
            let path = format!("rules[{index}]");
            if rules.iter().any(|other| other.name == rule.name) && !rule.name.is_empty() {
                problems.add(format!("{path}.name"), format!("another rule is named `{}` already", rule.name));
            }
            rules.push(Rule::read(rule, &path, &mut problems));
        }
        let charging = rules.iter().enumerate().map(|(index, rule)| (format!("rules[{index}].then"), &rule.then));
        let buckets = effects::read_buckets(settings.buckets, charging, &mut problems);
        effects::check_whole(rules.iter().map(|rule| &rule.then), &mut problems);
        rules.sort_by(|one, other| one.name.cmp(&other.name));
        let of = |operation: usize| {
            let with = (0_u16..).zip(&rules).filter(|(_, rule)| rule.when.operations.contains(operation));
            with.map(|(place, _)| place).collect()
        };
        let by_operation = (0..OPERATIONS.len()).map(of).collect();
        problems.done((Self { rules, by_operation, bare_names_are: settings.bare_names_are }, buckets))
    }

    fn evaluate(&self, request: &Request) -> Decision {
        let index = index_of(&request.operation);
        let places = index.and_then(|index| self.by_operation.get(index));
        let rules = self.rules_at(places.map(Vec::as_slice));
        match request.phase {
            Phase::Visible => visible(rules, request, index),
            Phase::Before | Phase::After => {
                decide(rules, request, index, &distinct(&request.statements, self.bare_names_are.as_deref()))
            }
        }
    }
}

impl Rules {
    /// Returns the rules at these places; without them all, as an operation that is not known may be any rule's.
    fn rules_at<'a>(&'a self, places: Option<&'a [u16]>) -> impl Iterator<Item = &'a Rule> {
        let known = places.into_iter().flatten().filter_map(|place| self.rules.get(usize::from(*place)));
        let all = if places.is_none() { self.rules.as_slice() } else { &[] };
        known.chain(all)
    }
}

/// Decides whether a list shows an operation: as far as it hangs on who asks, and over what.
fn visible<'a>(rules: impl Iterator<Item = &'a Rule>, request: &Request, index: Option<usize>) -> Decision {
    let mut passed = false;
    for rule in rules.filter(|rule| rule.when.fit_of_caller(request, index) == Fit::Yes) {
        let excepted = |unless: &Conditions| unless.is_of_caller() && unless.fit_of_caller(request, index) == Fit::Yes;
        match &rule.then.verdict {
            Verdict::Deny(refusal) => {
                if rule.when.is_of_caller() && rule.unless.iter().all(|u| u.is_of_caller() && !excepted(u)) {
                    return refuse(&[(rule, refusal, None)], request);
                }
            }
            Verdict::Pass => passed |= !rule.unless.iter().any(excepted),
            Verdict::Abstain => {}
        }
    }
    if passed { Decision::pass() } else { Decision::abstain() }
}

/// Decides on a request by the rules, which are sorted by name.
fn decide<'a>(
    rules: impl Iterator<Item = &'a Rule>,
    request: &Request,
    index: Option<usize>,
    statements: &[Numbered<'_>],
) -> Decision {
    let mut refusals = Vec::new();
    let mut passed = false;
    let mut gathered = Gathered::default();
    for rule in rules {
        let fit = rule.when.fit(request, index);
        if fit == Fit::No {
            continue;
        }
        let Some(statement) = rule.may_match(request, index, statements) else { continue };
        match &rule.then.verdict {
            Verdict::Deny(refusal) => refusals.push((rule, refusal, statement)),
            Verdict::Pass => {
                passed |= fit == Fit::Yes && rule.surely_matches(request, index, statements);
                gathered.add(&rule.then);
            }
            Verdict::Abstain => gathered.add(&rule.then),
        }
    }
    if !refusals.is_empty() {
        return refuse(&refusals, request);
    }
    let mut decision = if passed { Decision::pass() } else { Decision::abstain() };
    gathered.put_into(&mut decision);
    decision
}

/// A statement with its number, which counts from 1.
type Numbered<'a> = (usize, Cow<'a, Statement>);

/// A statement that may match, by which a rule does.
type Found<'a> = (&'a Numbered<'a>, Fit);

/// Returns the statements that do something, those that are like the one before left out: long scripts are thousands of one shape.
/// Relations are in the schema that names without one stand for.
fn distinct<'a>(statements: &'a [Statement], schema: Option<&str>) -> Vec<Numbered<'a>> {
    let mut kept: Vec<Numbered<'_>> = Vec::new();
    let mut before: Option<&Statement> = None;
    for (statement, number) in statements.iter().zip(1..) {
        if statement.class == StatementClass::Empty || before.is_some_and(|before| same_facts(before, statement)) {
            continue;
        }
        before = Some(statement);
        kept.push((number, schema.map_or(Cow::Borrowed(statement), |schema| in_schema(statement, schema))));
    }
    kept
}

fn in_schema<'a>(statement: &'a Statement, schema: &str) -> Cow<'a, Statement> {
    let mut statement = Cow::Borrowed(statement);
    for place in 0..statement.relations.len() {
        let Some(named) = statement.relations.get(place).and_then(|relation| with_schema(relation, schema)) else {
            continue;
        };
        if let Some(relation) = statement.to_mut().relations.get_mut(place) {
            *relation = named;
        }
    }
    statement
}

impl Rule {
    fn read(rule: RuleSettings, path: &str, problems: &mut Problems) -> Self {
        let RuleSettings { name, when, unless, then } = rule;
        if name.is_empty() || name.len() > NAME_BYTES_MAX || name.contains(|c: char| c.is_control() || c == '`') {
            let message =
                format!("a rule has a name of 1 to {NAME_BYTES_MAX} bytes, without backticks and control characters");
            problems.add(format!("{path}.name"), message);
        }
        let then = Effects::read(then, &format!("{path}.then"), problems);
        let passes = matches!(then.verdict, Verdict::Pass);
        let (need, exception) = if passes { (Need::Certain, Need::Possible) } else { (Need::Possible, Need::Certain) };
        if when == ConditionSettings::default() {
            let message = "the rule has no condition; write `operations = [\"*\"]` if it is for every request";
            problems.add(format!("{path}.when"), message);
        } else if passes && !when.names_operations() {
            let message = "a rule that passes names the operations it answers for; `*` is every one";
            problems.add(format!("{path}.when.operations"), message);
        }
        if unless.len() > UNLESS_MAX {
            problems
                .add(format!("{path}.unless"), format!("at most {UNLESS_MAX} exceptions; these are {}", unless.len()));
        }
        for (index, conditions) in unless.iter().enumerate() {
            if *conditions == ConditionSettings::default() {
                problems.add(
                    format!("{path}.unless[{index}]"),
                    "an exception without conditions always holds, so the rule never does",
                );
            } else if *conditions == when {
                problems.add(format!("{path}.unless[{index}]"), "it says what `when` says, so the rule never matches");
            }
        }
        let when = Conditions::read(when, OperationSet::ALL, need, &format!("{path}.when"), problems);
        let unless = unless.into_iter().enumerate().map(|(index, conditions)| {
            Conditions::read(conditions, when.operations, exception, &format!("{path}.unless[{index}]"), problems)
        });
        let unless = unless.collect();
        Self { name, when, unless, then }
    }

    /// Returns whether a match is possible, but for what `when` says of others than statements; with the statement that may
    /// match, where that is what it hangs on.
    fn may_match<'a>(
        &self,
        request: &Request,
        index: Option<usize>,
        statements: &'a [Numbered<'a>],
    ) -> Option<Option<Found<'a>>> {
        let mut excusing = Vec::new();
        for unless in &self.unless {
            match (unless.fit(request, index), &unless.statement) {
                (Fit::Yes, None) => return None,
                (Fit::Yes, Some(statement)) => excusing.push(statement),
                (Fit::Maybe | Fit::No, _) => {}
            }
        }
        if self.when.statement.is_none() && (excusing.is_empty() || statements.is_empty()) {
            return Some(None);
        }
        statements.iter().find_map(|found| {
            let fit = self.when.statement.as_ref().map_or(Fit::Yes, |when| when.fit(&found.1));
            let excused = || excusing.iter().any(|unless| unless.fit(&found.1) == Fit::Yes);
            (fit != Fit::No && !excused()).then_some(Some((found, fit)))
        })
    }

    /// Returns whether a match is sure, but for what `when` says of others than statements.
    fn surely_matches(&self, request: &Request, index: Option<usize>, statements: &[Numbered<'_>]) -> bool {
        let mut contrary = Vec::new();
        for unless in &self.unless {
            match (unless.fit(request, index), &unless.statement) {
                (Fit::No, _) => {}
                (Fit::Maybe | Fit::Yes, None) => return false,
                (Fit::Maybe | Fit::Yes, Some(statement)) => contrary.push(statement),
            }
        }
        if self.when.statement.is_some() && statements.is_empty() {
            return false;
        }
        statements.iter().all(|(_, statement)| {
            self.when.statement.as_ref().is_none_or(|when| when.fit(statement) == Fit::Yes)
                && !contrary.iter().any(|unless| unless.fit(statement) != Fit::No)
        })
    }
}

/// Words the refusal of some rules, the first of which by name speaks.
fn refuse(refusals: &[(&Rule, &Refusal, Option<Found<'_>>)], request: &Request) -> Decision {
    let Some((rule, refusal, statement)) = refusals.first() else { return Decision::abstain() };
    let what = match statement {
        Some(((number, statement), _)) => named(statement, *number),
        None => format!("`{}`", request.operation),
    };
    let unsure = match statement {
        Some((_, Fit::Maybe | Fit::No)) => {
            "; it cannot be told that it does not: write names with their schemas, and nothing that runs what is not visible"
        }
        Some((_, Fit::Yes)) | None => "",
    };
    let message = match &refusal.message {
        Some(message) => format!("{message} (rule `{}`, {what}){unsure}", rule.name),
        None => format!(
            "rule `{}` refuses {what}{unsure}; `explain_policy` tells whether another call would be let through",
            rule.name
        ),
    };
    let names: Vec<_> = refusals.iter().take(NAMED_MAX).map(|(rule, ..)| format!("`{}`", rule.name)).collect();
    let more = if refusals.len() > NAMED_MAX { " and others" } else { "" };
    let audit = format!("refused by {}{more}; {what}", names.join(", "));
    let mut decision = Decision::deny(RULE_DENIED, message, audit);
    // It is worth coming back only once none of them refuses.
    let waits: Option<Vec<u64>> = refusals.iter().map(|(_, refusal, _)| refusal.retry_after_ms).collect();
    if let pgsandbox_policy::Verdict::Deny(denial) = &mut decision.verdict {
        denial.retry_after_ms = waits.and_then(|waits| waits.into_iter().max());
    }
    decision
}

pgsandbox_policy::export!(Rules);

#[cfg(test)]
mod tests;
