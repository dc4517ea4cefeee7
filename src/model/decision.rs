//! What policies say, one by one and together.

use super::{Code, Failure, Obligation, Obligations};

/// One policy's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyDecision {
    pub verdict: Verdict,
    pub obligations: Vec<Obligation>,
    pub charges: Vec<Charge>,
    /// For the caller to read; never a reason to refuse.
    pub warnings: Vec<String>,
}

/// What a policy thinks of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It answers for the operation and has nothing against the request.
    Pass,
    /// It has no opinion; its obligations and charges still hold.
    Abstain,
    Deny(Denial),
}

impl Verdict {
    /// Returns the word used in records.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Abstain => "abstain",
            Self::Deny(_) => "deny",
        }
    }
}

/// Why a policy refuses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denial {
    /// One of the codes the policy declares.
    pub code: String,
    /// For the agent: what is refused, and what would be allowed.
    pub message: String,
    /// For auditors.
    pub audit: String,
    pub retry_after_ms: Option<u64>,
}

/// Tokens to take from one of the policy's own buckets.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Charge {
    pub bucket: String,
    pub cost: u32,
}

/// A token bucket as a policy declares it: holds `burst` tokens, gains `per_interval` every `interval_ms`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Bucket {
    pub name: String,
    pub burst: u32,
    pub per_interval: u32,
    pub interval_ms: u64,
}

/// A charge with everything needed to take it: the host's key is (policy, bucket, principal's owner, group owner).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyedCharge {
    pub policy: String,
    pub bucket: Bucket,
    pub cost: u32,
}

/// What is left in a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Balance {
    pub policy: String,
    pub bucket: String,
    pub remaining: u32,
}

/// Whether a policy's word counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// It decides.
    Enforce,
    /// It is asked and recorded, and changes nothing.
    Shadow,
}

impl Mode {
    /// Returns the word used in records and configuration.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Enforce => "enforce",
            Self::Shadow => "shadow",
        }
    }
}

/// What became of one policy in one decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyReport {
    pub policy: String,
    pub mode: Mode,
    pub said: Said,
    /// Time of the evaluation in microseconds; zero where none took place.
    pub elapsed_us: u64,
    /// Fuel spent; zero where none was.
    pub fuel: u64,
    /// False where the policy was shown text that records do not hold.
    pub replayable: bool,
}

/// What a policy said, or why it said nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    /// It does not declare an interest in the operation, and was not run.
    NotConcerned,
    Decided(PolicyDecision),
    /// It failed to answer as it must.
    Failed(PolicyFault),
}

/// A policy that did not answer as it must. Each kind refuses the request under a code of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyFault {
    /// One of the policy failure codes.
    pub code: Code,
    /// What happened, for people; holds nothing of the request.
    pub detail: String,
}

/// The identity of a loaded set of policies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generation {
    /// Counts reloads within a process, from 1.
    pub number: u64,
    /// Digest over every component, its settings and its mode, in lower-case hexadecimal.
    pub digest: String,
}

/// What all policies together say of a request. A value: nothing has been charged or applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// `None` if the request may go on, under the obligations and charges below.
    pub refusal: Option<Failure>,
    /// Of enforced policies only.
    pub obligations: Obligations,
    /// Of enforced policies only, sorted.
    pub charges: Vec<KeyedCharge>,
    /// (policy, text), of enforced policies only, sorted.
    pub warnings: Vec<(String, String)>,
    /// Every loaded policy, sorted by name, shadow ones too.
    pub reports: Vec<PolicyReport>,
    pub generation: Generation,
}
