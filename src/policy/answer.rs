//! What a policy may answer: every bound of a decision and of the buckets it declares.
//!
//! An answer outside these bounds is a fault of the policy, never cut to fit: half an answer would be
//! a decision nobody made.

use crate::model::limits::{LABEL_BYTES_MAX, NAME_BYTES_MAX};
use crate::model::{Bucket, Code, Obligation, PolicyDecision, PolicyFault, Verdict};

use super::Description;

/// The most obligations of one answer: every kind several times over.
pub const OBLIGATIONS_MAX: usize = 64;
/// The most charges of one answer: each is a look into the book under a lock.
pub const CHARGES_MAX: usize = 16;
/// The most warnings of one answer: people read them.
pub const WARNINGS_MAX: usize = 16;
/// The longest message, audit text, warning or question, in bytes: they go into replies and records.
pub const TEXT_BYTES_MAX: usize = 4 << 10;
/// The longest code, bucket name, group or operation name, in bytes.
pub const WORD_BYTES_MAX: usize = 128;
/// The most buckets of one policy for one section.
pub const BUCKETS_MAX: usize = 32;
/// The most operations, codes or phases of a description.
const DESCRIPTION_WORDS_MAX: usize = 256;
/// The longest settings schema, in bytes.
const SCHEMA_BYTES_MAX: usize = 64 << 10;
/// The longest time an empty bucket may take to fill, in milliseconds (366 days): arrival times are kept in 64 bits of
/// nanoseconds.
pub const BUCKET_FILL_MS_MAX: u64 = 366 * 24 * 3600 * 1000;

/// Checks an answer against what its policy declares.
pub(super) fn check(description: &Description, buckets: &[Bucket], answer: &PolicyDecision) -> Result<(), PolicyFault> {
    fault(answer_fault(description, buckets, answer))
}

/// Checks the buckets that a configured policy declares.
pub(super) fn check_buckets(buckets: &[Bucket]) -> Result<(), PolicyFault> {
    fault(buckets_fault(buckets))
}

/// Checks a description.
pub(super) fn check_description(description: &Description) -> Result<(), PolicyFault> {
    fault(description_fault(description))
}

fn fault(detail: Option<String>) -> Result<(), PolicyFault> {
    match detail {
        None => Ok(()),
        Some(detail) => Err(PolicyFault { code: Code::PolicyOutputInvalid, detail }),
    }
}

fn answer_fault(description: &Description, buckets: &[Bucket], answer: &PolicyDecision) -> Option<String> {
    let counts = [
        ("obligations", answer.obligations.len(), OBLIGATIONS_MAX),
        ("charges", answer.charges.len(), CHARGES_MAX),
        ("warnings", answer.warnings.len(), WARNINGS_MAX),
    ];
    for (what, count, count_max) in counts {
        if count > count_max {
            return Some(format!("{count} {what}, over the limit of {count_max}"));
        }
    }
    if let Verdict::Deny(denial) = &answer.verdict {
        if !description.codes.contains(&denial.code) {
            return Some(format!("code `{}` is not one the policy declares", shown(&denial.code)));
        }
        let text = text_fault("message", &denial.message).or_else(|| text_fault("audit text", &denial.audit));
        if text.is_some() {
            return text;
        }
        if denial.message.is_empty() {
            return Some("a denial without a message".to_owned());
        }
    }
    for charge in &answer.charges {
        if !buckets.iter().any(|bucket| bucket.name == charge.bucket) {
            return Some(format!("bucket `{}` is not one the policy declared", shown(&charge.bucket)));
        }
    }
    let obligation = answer.obligations.iter().find_map(obligation_fault);
    obligation.or_else(|| answer.warnings.iter().find_map(|warning| text_fault("warning", warning)))
}

fn obligation_fault(obligation: &Obligation) -> Option<String> {
    match obligation {
        Obligation::ReadOnly
        | Obligation::MaxRows(_)
        | Obligation::MaxResultBytes(_)
        | Obligation::MaxLiveSandboxes { .. }
        | Obligation::MaxDatabaseBytes { .. } => None,
        // Zero would mean "no timeout" to Postgres, and a sandbox that is over before it began.
        Obligation::StatementTimeoutMs(value) | Obligation::MaxTtlMinutes(value) => {
            (*value == 0).then(|| format!("obligation `{}` of zero", obligation.kind().as_str()))
        }
        Obligation::Mask { relation, column } => word_fault("mask relation", relation, NAME_BYTES_MAX)
            .or_else(|| word_fault("mask column", column, NAME_BYTES_MAX)),
        Obligation::RequireLabel(key) => word_fault("label key", key, LABEL_BYTES_MAX),
        Obligation::AddLabel { key, value } => word_fault("label key", key, LABEL_BYTES_MAX).or_else(|| {
            (value.len() > LABEL_BYTES_MAX || value.chars().any(char::is_control))
                .then(|| "a label value that is too long or holds control characters".to_owned())
        }),
        Obligation::Consent(question) => word_fault("question", question, TEXT_BYTES_MAX),
        Obligation::Approval(group) => word_fault("group", group, WORD_BYTES_MAX),
    }
}

fn buckets_fault(buckets: &[Bucket]) -> Option<String> {
    if buckets.len() > BUCKETS_MAX {
        return Some(format!("{} buckets, over the limit of {BUCKETS_MAX}", buckets.len()));
    }
    for (index, bucket) in buckets.iter().enumerate() {
        let word = word_fault("bucket name", &bucket.name, WORD_BYTES_MAX);
        if word.is_some() {
            return word;
        }
        if buckets.iter().take(index).any(|other| other.name == bucket.name) {
            return Some(format!("bucket `{}` is declared twice", shown(&bucket.name)));
        }
        if bucket.burst == 0 || bucket.per_interval == 0 || bucket.interval_ms == 0 {
            return Some(format!("bucket `{}` has a burst, gain or interval of zero", shown(&bucket.name)));
        }
        let fill_ms = u128::from(bucket.interval_ms) * u128::from(bucket.burst) / u128::from(bucket.per_interval);
        if fill_ms > u128::from(BUCKET_FILL_MS_MAX) || bucket.interval_ms > BUCKET_FILL_MS_MAX {
            return Some(format!("bucket `{}` takes more than 366 days to fill", shown(&bucket.name)));
        }
    }
    None
}

fn description_fault(description: &Description) -> Option<String> {
    let named = [("name", &description.name), ("version", &description.version)];
    for (what, word) in named {
        let found = word_fault(what, word, WORD_BYTES_MAX);
        if found.is_some() {
            return found;
        }
    }
    let lists = [
        ("covered operation", &description.covers),
        ("operation", &description.concerns),
        ("code", &description.codes),
    ];
    for (what, words) in lists {
        if words.len() > DESCRIPTION_WORDS_MAX {
            return Some(format!("{} entries of {what}, over the limit of {DESCRIPTION_WORDS_MAX}", words.len()));
        }
        let found = words.iter().find_map(|word| word_fault(what, word, WORD_BYTES_MAX));
        if found.is_some() {
            return found;
        }
    }
    if description.settings_schema.len() > SCHEMA_BYTES_MAX {
        return Some(format!("a settings schema of more than {SCHEMA_BYTES_MAX} bytes"));
    }
    None
}

/// Finds fault with text for people: too long, or with characters that could steer a terminal.
fn text_fault(what: &str, text: &str) -> Option<String> {
    if text.len() > TEXT_BYTES_MAX {
        return Some(format!("a {what} of {} bytes, over the limit of {TEXT_BYTES_MAX}", text.len()));
    }
    text.chars().any(|c| c.is_control() && c != '\n' && c != '\t').then(|| format!("a {what} with control characters"))
}

fn word_fault(what: &str, word: &str, bytes_max: usize) -> Option<String> {
    if word.is_empty() {
        return Some(format!("an empty {what}"));
    }
    if word.len() > bytes_max {
        return Some(format!("a {what} of {} bytes, over the limit of {bytes_max}", word.len()));
    }
    word.chars().any(char::is_control).then(|| format!("a {what} with control characters"))
}

/// Makes a guest's word fit for a message: short, and without characters that could steer a terminal.
fn shown(word: &str) -> String {
    word.chars().take(64).flat_map(char::escape_default).collect()
}

#[cfg(test)]
mod tests {
    use crate::model::{Charge, Denial};

    use super::*;

    fn description() -> Description {
        Description {
            name: "p".into(),
            version: "1".into(),
            covers: vec!["*".into()],
            concerns: vec!["*".into()],
            phases: Vec::new(),
            codes: vec!["no".into()],
            settings_schema: "{}".into(),
        }
    }

    fn bucket(name: &str) -> Bucket {
        Bucket { name: name.into(), burst: 1, per_interval: 1, interval_ms: 1000 }
    }

    fn answer() -> PolicyDecision {
        PolicyDecision { verdict: Verdict::Pass, obligations: vec![], charges: vec![], warnings: vec![] }
    }

    fn deny(code: &str, message: &str) -> PolicyDecision {
        let denial = Denial { code: code.into(), message: message.into(), audit: String::new(), retry_after_ms: None };
        PolicyDecision { verdict: Verdict::Deny(denial), ..answer() }
    }

    fn check_fault(answer: &PolicyDecision, expected: &str) {
        let fault = check(&description(), &[bucket("b")], answer).unwrap_err();
        assert_eq!(fault.code, Code::PolicyOutputInvalid);
        assert!(fault.detail.contains(expected), "`{}` does not say `{expected}`", fault.detail);
    }

    #[test]
    fn an_answer_within_bounds_stands() {
        let mut full = deny("no", "not today");
        full.charges = vec![Charge { bucket: "b".into(), cost: 1 }];
        full.obligations = vec![Obligation::MaxRows(0); OBLIGATIONS_MAX];
        full.warnings = vec!["w".repeat(TEXT_BYTES_MAX)];
        assert_eq!(check(&description(), &[bucket("b")], &full), Ok(()));
    }

    #[test]
    fn answers_out_of_bounds_are_faults() {
        check_fault(&deny("other", "x"), "code `other`");
        check_fault(&deny("no", ""), "without a message");
        check_fault(&deny("no", &"x".repeat(TEXT_BYTES_MAX + 1)), "message of 4097 bytes");
        check_fault(&deny("no", "\x1b[2J"), "control characters");
        let charge = |bucket: &str| Charge { bucket: bucket.into(), cost: 1 };
        check_fault(&PolicyDecision { charges: vec![charge("z\n")], ..answer() }, "bucket `z\\n`");
        check_fault(&PolicyDecision { charges: vec![charge("b"); CHARGES_MAX + 1], ..answer() }, "17 charges");
        let many = vec![Obligation::ReadOnly; OBLIGATIONS_MAX + 1];
        check_fault(&PolicyDecision { obligations: many, ..answer() }, "65 obligations");
        check_fault(&PolicyDecision { warnings: vec![String::new(); WARNINGS_MAX + 1], ..answer() }, "17 warnings");
        check_fault(&PolicyDecision { warnings: vec!["\0".into()], ..answer() }, "warning with control");
        let bad = [
            (Obligation::StatementTimeoutMs(0), "statement-timeout-ms"),
            (Obligation::MaxTtlMinutes(0), "max-ttl-minutes"),
            (Obligation::RequireLabel(String::new()), "empty label key"),
            (Obligation::AddLabel { key: "k".into(), value: "v".repeat(LABEL_BYTES_MAX + 1) }, "label value"),
            (Obligation::Mask { relation: "r".into(), column: String::new() }, "empty mask column"),
            (Obligation::Consent("q".repeat(TEXT_BYTES_MAX + 1)), "question of"),
            (Obligation::Approval("g".repeat(WORD_BYTES_MAX + 1)), "group of"),
        ];
        for (obligation, expected) in bad {
            check_fault(&PolicyDecision { obligations: vec![obligation], ..answer() }, expected);
        }
    }

    #[test]
    fn buckets_that_cannot_be_kept_are_faults() {
        let bad = [
            vec![Bucket { burst: 0, ..bucket("a") }],
            vec![Bucket { per_interval: 0, ..bucket("a") }],
            vec![Bucket { interval_ms: 0, ..bucket("a") }],
            vec![Bucket { interval_ms: BUCKET_FILL_MS_MAX, burst: 2, ..bucket("a") }],
            vec![bucket("a"), bucket("a")],
            vec![bucket("")],
            (0..=BUCKETS_MAX).map(|n| bucket(&n.to_string())).collect(),
        ];
        for buckets in bad {
            assert!(check_buckets(&buckets).is_err(), "{buckets:?}");
        }
        assert_eq!(
            check_buckets(&[bucket("a"), Bucket { burst: u32::MAX, per_interval: u32::MAX, ..bucket("b") }]),
            Ok(())
        );
    }

    #[test]
    fn descriptions_out_of_bounds_are_faults() {
        assert_eq!(check_description(&description()), Ok(()));
        let bad = [
            Description { name: String::new(), ..description() },
            Description { codes: vec!["c".repeat(WORD_BYTES_MAX + 1)], ..description() },
            Description { covers: vec!["o".into(); DESCRIPTION_WORDS_MAX + 1], ..description() },
            Description { settings_schema: " ".repeat(SCHEMA_BYTES_MAX + 1), ..description() },
        ];
        for description in bad {
            assert!(check_description(&description).is_err());
        }
    }
}
