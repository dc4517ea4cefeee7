//! What a rule does where it matches: a verdict, demands, charges, warnings.

use std::collections::{BTreeMap, BTreeSet};

use pgsandbox_policy::{Bucket, Charge, Decision, Label, Mask, Obligation, Problems, Scope, TEXT_BYTES_MAX};

/// The most demands, charges and warnings of one answer, as the host takes them.
const OBLIGATIONS_MAX: usize = 64;
const CHARGES_MAX: usize = 16;
const WARNINGS_MAX: usize = 16;
/// The longest name of a group, or key or value of a label, in bytes, as the host takes them.
const WORD_BYTES_MAX: usize = 128;
/// The longest part of a column's name, in bytes, as Postgres and the host take them.
const NAME_BYTES_MAX: usize = 63;
/// The longest time to wait that can be told: a week, in minutes.
const RETRY_MINUTES_MAX: u64 = 7 * 24 * 60;
/// The longest interval of a bucket: a day.
const INTERVAL_MS_MAX: u64 = 86_400_000;
/// The longest time an empty bucket may take to fill: what the host can count.
const FILL_MS_MAX: u64 = 366 * 86_400_000;

/// What a rule does, as settings write it.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ThenSettings {
    verdict: Option<String>,
    message: Option<String>,
    retry_after_minutes: Option<u64>,
    obligations: Option<ObligationSettings>,
    charges: BTreeMap<String, u32>,
    warnings: Vec<String>,
}

/// Demands as settings write them.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ObligationSettings {
    read_only: bool,
    max_rows: Option<u64>,
    max_result_bytes: Option<u64>,
    statement_timeout_ms: Option<u64>,
    max_ttl_minutes: Option<u64>,
    max_live_sandboxes: Option<QuotaSettings>,
    max_database_bytes: Option<QuotaSettings>,
    masks: Vec<MaskSettings>,
    require_labels: Vec<String>,
    add_labels: BTreeMap<String, String>,
    consent: Option<String>,
    approvals: Vec<String>,
}

/// A limit on the principal, on the group owner, or on both.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct QuotaSettings {
    principal: Option<u64>,
    group: Option<u64>,
}

/// A column that is masked.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MaskSettings {
    relation: String,
    column: String,
}

/// A bucket as settings write it.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct BucketSettings {
    burst: u32,
    per_interval: u32,
    interval_ms: u64,
}

/// What a rule says of a request.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// It answers for it.
    Pass,
    /// It has no opinion.
    Abstain,
    Deny(Refusal),
}

/// What is told of a refusal.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) message: Option<String>,
    pub(crate) retry_after_ms: Option<u64>,
}

/// What a rule does.
#[derive(Debug)]
pub(crate) struct Effects {
    pub(crate) verdict: Verdict,
    obligations: Vec<Obligation>,
    charges: Vec<(String, u32)>,
    warnings: Vec<String>,
}

/// What all rules that match do, gathered: the same whatever their order.
#[derive(Debug, Default)]
pub(crate) struct Gathered<'a> {
    obligations: Vec<&'a Obligation>,
    charges: BTreeMap<&'a str, u32>,
    warnings: BTreeSet<&'a str>,
}

impl Effects {
    pub(crate) fn read(then: ThenSettings, path: &str, problems: &mut Problems) -> Self {
        let does_nothing = then == ThenSettings::default();
        let demands = then.obligations.is_some() || !then.charges.is_empty() || !then.warnings.is_empty();
        let verdict = match then.verdict.as_deref() {
            None => Verdict::Abstain,
            Some("pass") => Verdict::Pass,
            Some("deny") => Verdict::Deny(Refusal {
                message: then.message.clone(),
                retry_after_ms: then.retry_after_minutes.map(|minutes| minutes.saturating_mul(60_000)),
            }),
            Some(other) => {
                problems.add(
                    format!("{path}.verdict"),
                    format!("`{other}` is not one of `pass`, `deny`; leave it out for neither"),
                );
                Verdict::Abstain
            }
        };
        if does_nothing {
            problems.add(path, "the rule does nothing; give it a `verdict`, `obligations`, `charges` or `warnings`");
        }
        let denies = matches!(verdict, Verdict::Deny(_));
        if denies && demands {
            problems.add(path, "a call that is refused has no `obligations`, `charges` or `warnings`; leave them out");
        }
        if !denies && then.verdict.as_deref() != Some("deny") {
            for (name, is_there) in
                [("message", then.message.is_some()), ("retry_after_minutes", then.retry_after_minutes.is_some())]
            {
                if is_there {
                    problems.add(format!("{path}.{name}"), "only a rule with the verdict `deny` tells this");
                }
            }
        }
        if let Some(minutes) = then.retry_after_minutes {
            problems.check_range(&format!("{path}.retry_after_minutes"), minutes, 1, RETRY_MINUTES_MAX);
        }
        for (at, text) in
            then.message.iter().map(|message| (format!("{path}.message"), message)).chain(
                then.warnings.iter().enumerate().map(|(index, text)| (format!("{path}.warnings[{index}]"), text)),
            )
        {
            check_text(&at, text, TEXT_BYTES_MAX / 2, problems);
        }
        let obligations = then
            .obligations
            .map_or_else(Vec::new, |settings| read_obligations(settings, &format!("{path}.obligations"), problems));
        for (bucket, cost) in &then.charges {
            if *cost == 0 {
                problems.add(format!("{path}.charges.{bucket}"), "a charge takes 1 token or more");
            }
        }
        Self { verdict, obligations, charges: then.charges.into_iter().collect(), warnings: then.warnings }
    }
}

fn read_obligations(settings: ObligationSettings, path: &str, problems: &mut Problems) -> Vec<Obligation> {
    if settings == ObligationSettings::default() {
        problems.add(path, "an empty table demands nothing; leave it out");
    }
    let mut list = Vec::new();
    if settings.read_only {
        list.push(Obligation::ReadOnly);
    }
    let limits = [
        ("max_rows", settings.max_rows, Obligation::MaxRows as fn(u64) -> Obligation),
        ("max_result_bytes", settings.max_result_bytes, Obligation::MaxResultBytes),
        ("statement_timeout_ms", settings.statement_timeout_ms, Obligation::StatementTimeoutMs),
        ("max_ttl_minutes", settings.max_ttl_minutes, Obligation::MaxTtlMinutes),
    ];
    for (name, limit, make) in limits {
        let Some(limit) = limit else { continue };
        if limit == 0 {
            problems.add(
                format!("{path}.{name}"),
                "a limit of 0 lets nothing through; refuse with the verdict `deny` instead",
            );
        }
        list.push(make(limit));
    }
    for (name, quota, make) in [
        ("max_live_sandboxes", settings.max_live_sandboxes, Obligation::live_sandboxes as fn(Scope, u64) -> Obligation),
        ("max_database_bytes", settings.max_database_bytes, Obligation::database_bytes),
    ] {
        let Some(quota) = quota else { continue };
        if quota == QuotaSettings::default() {
            problems.add(format!("{path}.{name}"), "an empty table is no limit; name `principal` or `group`");
        }
        let limits = [(Scope::Principal, quota.principal), (Scope::Group, quota.group)];
        list.extend(limits.into_iter().filter_map(|(scope, limit)| limit.map(|limit| make(scope, limit))));
    }
    for (index, mask) in settings.masks.into_iter().enumerate() {
        let at = format!("{path}.masks[{index}]");
        check_text(&format!("{at}.relation"), &mask.relation, 2 * NAME_BYTES_MAX + 1, problems);
        check_text(&format!("{at}.column"), &mask.column, NAME_BYTES_MAX, problems);
        list.push(Obligation::Mask(Mask { relation: mask.relation, column: mask.column }));
    }
    for (index, key) in settings.require_labels.into_iter().enumerate() {
        check_text(&format!("{path}.require_labels[{index}]"), &key, WORD_BYTES_MAX, problems);
        list.push(Obligation::RequireLabel(key));
    }
    for (key, value) in settings.add_labels {
        let at = format!("{path}.add_labels.{key}");
        check_text(&at, &key, WORD_BYTES_MAX, problems);
        if value.len() > WORD_BYTES_MAX || value.chars().any(char::is_control) {
            problems.add(at, format!("a label's value has at most {WORD_BYTES_MAX} bytes and no control characters"));
        }
        list.push(Obligation::AddLabel(Label { key, value }));
    }
    if let Some(question) = settings.consent {
        check_text(&format!("{path}.consent"), &question, TEXT_BYTES_MAX, problems);
        list.push(Obligation::Consent(question));
    }
    for (index, group) in settings.approvals.into_iter().enumerate() {
        check_text(&format!("{path}.approvals[{index}]"), &group, WORD_BYTES_MAX, problems);
        list.push(Obligation::Approval(group));
    }
    list
}

/// Reads the buckets, and checks the charges of all rules against them.
pub(crate) fn read_buckets<'a>(
    settings: BTreeMap<String, BucketSettings>,
    rules: impl Iterator<Item = (String, &'a Effects)>,
    problems: &mut Problems,
) -> Vec<Bucket> {
    let mut charged = BTreeSet::new();
    for (path, effects) in rules {
        for (name, cost) in &effects.charges {
            charged.insert(name.clone());
            let at = format!("{path}.charges.{name}");
            match settings.get(name) {
                None => problems.add(at, format!("there is no bucket `{name}`; declare it in `buckets`")),
                Some(bucket) if *cost > bucket.burst => {
                    problems.add(
                        at,
                        format!(
                            "{cost} tokens are more than the bucket holds ({}); such a call could never run",
                            bucket.burst
                        ),
                    );
                }
                Some(_) => {}
            }
        }
    }
    if settings.len() > CHARGES_MAX {
        problems.add("buckets", format!("at most {CHARGES_MAX} buckets; this has {}", settings.len()));
    }
    let mut buckets = Vec::with_capacity(settings.len());
    for (name, rate) in settings {
        let path = format!("buckets.{name}");
        check_text(&path, &name, WORD_BYTES_MAX, problems);
        problems.check_range(&format!("{path}.burst"), rate.burst.into(), 1, u32::MAX.into());
        problems.check_range(&format!("{path}.per_interval"), rate.per_interval.into(), 1, u32::MAX.into());
        problems.check_range(&format!("{path}.interval_ms"), rate.interval_ms, 1, INTERVAL_MS_MAX);
        let fill_ms = u128::from(rate.interval_ms) * u128::from(rate.burst) / u128::from(rate.per_interval.max(1));
        if fill_ms > u128::from(FILL_MS_MAX) {
            problems.add(&path, "an empty bucket would take more than 366 days to fill; lower `burst`");
        }
        if !charged.contains(&name) {
            problems.add(&path, "no rule charges it; name it in a rule's `then.charges`");
        }
        buckets.push(Bucket {
            name,
            burst: rate.burst,
            per_interval: rate.per_interval,
            interval_ms: rate.interval_ms,
        });
    }
    buckets
}

/// Reports more demands and warnings than one answer may hold, were every rule to match.
pub(crate) fn check_whole<'a>(rules: impl Iterator<Item = &'a Effects> + Clone, problems: &mut Problems) {
    let mut all = Gathered::default();
    rules.for_each(|effects| all.add(effects));
    let counts =
        [("obligations", all.obligations.len(), OBLIGATIONS_MAX), ("warnings", all.warnings.len(), WARNINGS_MAX)];
    for (what, count, most) in counts {
        if count > most {
            problems.add(
                "rules",
                format!("together the rules have {count} {what}; an answer holds {most}: split them over two policies"),
            );
        }
    }
}

fn check_text(path: &str, text: &str, bytes_max: usize, problems: &mut Problems) {
    if text.is_empty() || text.len() > bytes_max || text.chars().any(char::is_control) {
        problems.add(path, format!("it must have 1 to {bytes_max} bytes and no control characters"));
    }
}

impl<'a> Gathered<'a> {
    pub(crate) fn add(&mut self, effects: &'a Effects) {
        for obligation in &effects.obligations {
            self.demand(obligation);
        }
        for (bucket, cost) in &effects.charges {
            let all = self.charges.entry(bucket).or_default();
            *all = all.saturating_add(*cost);
        }
        self.warnings.extend(effects.warnings.iter().map(String::as_str));
    }

    /// Adds a demand: of two limits of one kind and scope the lower is kept, of equal demands one.
    fn demand(&mut self, obligation: &'a Obligation) {
        for kept in &mut self.obligations {
            if let Some(lower) = lower(kept, obligation) {
                *kept = lower;
                return;
            }
        }
        self.obligations.push(obligation);
    }

    pub(crate) fn put_into(self, decision: &mut Decision) {
        let mut obligations: Vec<Obligation> = self.obligations.into_iter().cloned().collect();
        obligations.sort_by_cached_key(|obligation| format!("{obligation:?}"));
        decision.obligations = obligations;
        let charges = self.charges.into_iter().map(|(bucket, cost)| Charge { bucket: bucket.to_owned(), cost });
        decision.charges.extend(charges);
        decision.warnings.extend(self.warnings.into_iter().map(str::to_owned));
    }
}

/// Returns what stands for both demands, if one can.
fn lower<'a>(one: &'a Obligation, other: &'a Obligation) -> Option<&'a Obligation> {
    use Obligation as O;
    let less = |a: u64, b: u64| if a <= b { one } else { other };
    match (one, other) {
        (O::MaxRows(a), O::MaxRows(b))
        | (O::MaxResultBytes(a), O::MaxResultBytes(b))
        | (O::StatementTimeoutMs(a), O::StatementTimeoutMs(b))
        | (O::MaxTtlMinutes(a), O::MaxTtlMinutes(b)) => Some(less(*a, *b)),
        (O::MaxLiveSandboxes(a), O::MaxLiveSandboxes(b)) | (O::MaxDatabaseBytes(a), O::MaxDatabaseBytes(b))
            if a.scope == b.scope =>
        {
            Some(less(a.limit, b.limit))
        }
        _ => (one == other).then_some(one),
    }
}
