//! What a policy answers, through the real host and converter: a guest whose memory is what the input says.
//!
//! What holds: nothing panics; every answer is either within every bound, or a refusal with a code of its own kind; and an
//! answer that was not changed arrives as it was meant.

use pgsandbox::model::{Bucket, Charge, Code, Context, Denial, Obligation, PolicyDecision, Said, Scope, Verdict};
use pgsandbox::policy::wasm::{Host, HostSettings};
use pgsandbox::policy::{CHARGES_MAX, OBLIGATIONS_MAX, Set, TEXT_BYTES_MAX, WARNINGS_MAX};

use crate::driver::{Checked, Target};
use crate::mutate;
use crate::rng::Rng;

#[allow(dead_code, clippy::all, reason = "shared with the tests, which use all of it")]
#[path = "../../../it/policies/guest.rs"]
mod guest;

/// What the guest has room for beneath what the host passes in.
const IMAGE_BYTES_MAX: usize = 4 << 10;

pub struct Policy {
    set: Set,
    context: Context,
}

impl Policy {
    pub fn new() -> Self {
        let host = Host::new(&HostSettings { slots: 4, ..HostSettings::default() }).expect("the host can be built");
        let mut told = guest::Guest::from_file("answers_as_told");
        told.configured = Ok(vec![Bucket { name: "b".into(), burst: 10, per_interval: 1, interval_ms: 1000 }]);
        told.decision.warnings = vec!["w".repeat(TEXT_BYTES_MAX); 2];
        told.functions = told.functions.replace("BASE", &guest::BASE.to_string());
        let mut spec = told.spec();
        // Fuel decides, however busy the machine is.
        spec.limits.timeout_ms = pgsandbox::policy::TIMEOUT_MS_MAX;
        let set = Set::load(&host, &[spec], 1).expect("the policy can be loaded");
        Self { set, context: guest::context() }
    }
}

/// Writes a decision as a guest's memory, after where in it the decision lies.
fn image(decision: &PolicyDecision) -> Vec<u8> {
    let mut image = guest::Image::default();
    let (at, _) = guest::decision(&mut image, decision);
    // The decision is put in last, and what is returned is its place.
    [at.to_le_bytes().to_vec(), image.bytes].concat()
}

impl Target for Policy {
    fn make(&mut self, rng: &mut Rng, kept: &[Vec<u8>]) -> Vec<u8> {
        let mut input = match rng.once_in(3) {
            true => image(&made(rng)),
            false => kept[rng.below(kept.len())].clone(),
        };
        let other = kept[rng.below(kept.len())].clone();
        if rng.once_in(2) && input.len() > 8 {
            // A number of the canonical form, which is little-endian: a place, a length, a case.
            for _ in 0..=rng.below(3) {
                let at = rng.below(input.len() - 4) & !3;
                let near = u32::try_from(rng.below(IMAGE_BYTES_MAX)).unwrap_or(0) + guest::BASE;
                let number = *rng.pick_of(&[
                    0,
                    1,
                    2,
                    3,
                    9,
                    11,
                    12,
                    64,
                    65,
                    0xff,
                    near,
                    0xffff_fff0,
                    0x8000_0000,
                    0x0001_0000,
                    near - guest::BASE,
                ]);
                input[at..at + 4].copy_from_slice(&number.to_le_bytes());
            }
        } else {
            mutate::bytes(rng, &mut input, &other);
        }
        input.truncate(IMAGE_BYTES_MAX);
        input
    }

    fn check(&mut self, input: &[u8]) -> Checked {
        let letters = input.iter().flat_map(|byte| [byte >> 4, byte & 15]).map(|half| char::from(b'a' + half));
        self.context.principal.subject = letters.collect();
        let decision = self.set.decide(&self.context, &[]);
        let Some(report) = decision.reports.first() else { return Err("no report: of the one policy".to_owned()) };
        match &report.said {
            Said::NotConcerned => Err("not concerned: a policy that wants to see everything".to_owned()),
            Said::Failed(fault) => {
                let own_code = matches!(
                    fault.code,
                    Code::PolicyTrapped | Code::PolicyOutputInvalid | Code::PolicyTimeout | Code::PolicyMemory
                );
                let refused = decision.refusal.as_ref().map(|refusal| refusal.code);
                if !own_code || refused != Some(fault.code) {
                    return Err(format!("code: {:?} was answered with {refused:?}", fault.code));
                }
                if fault.detail.len() > 2 * TEXT_BYTES_MAX || fault.detail.chars().any(|c| c.is_control() && c != '\n')
                {
                    return Err(format!("detail: of {} bytes, or with control characters", fault.detail.len()));
                }
                let words: Vec<_> =
                    fault.detail.split_whitespace().filter(|w| w.chars().all(char::is_alphabetic)).take(6).collect();
                Ok(format!("{:?} {words:?}", fault.code))
            }
            Said::Decided(answer) => {
                check_bounds(answer)?;
                // Taken back to a guest's memory and asked for once more, it is the same.
                let again = image(answer);
                let kinds: Vec<_> = answer.obligations.iter().map(|o| o.kind().as_str()).take(2).collect();
                let denied = matches!(answer.verdict, Verdict::Deny(_));
                if denied && decision.refusal.is_none() {
                    return Err("denied: a denial lets a request through".to_owned());
                }
                if again.len() <= 2 * IMAGE_BYTES_MAX {
                    let letters =
                        again.iter().flat_map(|byte| [byte >> 4, byte & 15]).map(|half| char::from(b'a' + half));
                    self.context.principal.subject = letters.collect();
                    let second = self.set.decide(&self.context, &[]);
                    if second.reports.first().map(|r| &r.said) != Some(&report.said) {
                        return Err(format!(
                            "changed: {answer:?} became {:?}",
                            second.reports.first().map(|r| &r.said)
                        ));
                    }
                }
                Ok(format!("{denied} {kinds:?} {} {}", answer.charges.len().min(2), answer.warnings.len().min(2)))
            }
        }
    }
}

fn check_bounds(answer: &PolicyDecision) -> Result<(), String> {
    if answer.obligations.len() > OBLIGATIONS_MAX
        || answer.charges.len() > CHARGES_MAX
        || answer.warnings.len() > WARNINGS_MAX
    {
        return Err("bounds: an answer with too many parts stands".to_owned());
    }
    let mut texts: Vec<&str> = answer.warnings.iter().map(String::as_str).collect();
    if let Verdict::Deny(denial) = &answer.verdict {
        texts.extend([denial.message.as_str(), denial.audit.as_str()]);
        if denial.code != "no" {
            return Err(format!("bounds: the undeclared code `{}` stands", denial.code));
        }
    }
    for obligation in &answer.obligations {
        match obligation {
            Obligation::Mask { relation, column } => texts.extend([relation.as_str(), column.as_str()]),
            Obligation::RequireLabel(text) | Obligation::Consent(text) | Obligation::Approval(text) => texts.push(text),
            Obligation::AddLabel { key, value } => texts.extend([key.as_str(), value.as_str()]),
            Obligation::StatementTimeoutMs(0) | Obligation::MaxTtlMinutes(0) => {
                return Err("bounds: a limit of zero stands".to_owned());
            }
            _ => {}
        }
    }
    if answer.charges.iter().any(|charge| charge.bucket != "b") {
        return Err("bounds: an undeclared bucket stands".to_owned());
    }
    let bad =
        |text: &&str| text.len() > TEXT_BYTES_MAX || text.chars().any(|c| c.is_control() && c != '\n' && c != '\t');
    if texts.iter().any(bad) {
        return Err("bounds: a text that is too long or steers terminals stands".to_owned());
    }
    Ok(())
}

fn made(rng: &mut Rng) -> PolicyDecision {
    let text = |rng: &mut Rng| rng.pick(&["no", "b", "", "not today", "größe\n", "\u{1b}[2J", "k", "x.y"]).to_owned();
    let number = |rng: &mut Rng| *rng.pick_of(&[0, 1, 1000, u64::MAX]);
    let verdict = match rng.below(4) {
        0 => Verdict::Abstain,
        1 => Verdict::Deny(Denial {
            code: rng.pick(&["no", "no", "other"]).to_owned(),
            message: text(rng),
            audit: text(rng),
            retry_after_ms: rng.once_in(2).then(|| number(rng)),
        }),
        _ => Verdict::Pass,
    };
    let scope = if rng.once_in(2) { Scope::Principal } else { Scope::Group };
    let mut obligations = Vec::new();
    for _ in 0..if rng.once_in(30) { 66 } else { rng.below(4) } {
        obligations.push(match rng.below(12) {
            0 => Obligation::ReadOnly,
            1 => Obligation::MaxRows(number(rng)),
            2 => Obligation::MaxResultBytes(number(rng)),
            3 => Obligation::StatementTimeoutMs(number(rng)),
            4 => Obligation::MaxTtlMinutes(number(rng)),
            5 => Obligation::MaxLiveSandboxes { scope, limit: number(rng) },
            6 => Obligation::MaxDatabaseBytes { scope, limit: number(rng) },
            7 => Obligation::Mask { relation: text(rng), column: text(rng) },
            8 => Obligation::RequireLabel(text(rng)),
            9 => Obligation::AddLabel { key: text(rng), value: text(rng) },
            10 => Obligation::Consent(text(rng)),
            _ => Obligation::Approval(text(rng)),
        });
    }
    let charges = (0..rng.below(3))
        .map(|_| Charge { bucket: rng.pick(&["b", "b", "c"]).to_owned(), cost: rng.next() as u32 })
        .collect();
    PolicyDecision { verdict, obligations, charges, warnings: (0..rng.below(3)).map(|_| text(rng)).collect() }
}
