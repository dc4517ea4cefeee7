//! What policies say, one by one and together.

use super::{Code, Failure, Obligation, Obligations};

/// One policy's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyDecision {
    /// Yes, no, or no opinion.
    pub verdict: Verdict,
    /// What must hold if the request goes on.
    pub obligations: Vec<Obligation>,
    /// What it costs.
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
    /// It refuses.
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
    /// When the same request may succeed, in milliseconds.
    pub retry_after_ms: Option<u64>,
}

/// Tokens to take from one of the policy's own buckets.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Charge {
    /// The bucket's name.
    pub bucket: String,
    /// Tokens to take.
    pub cost: u32,
}

/// A token bucket as a policy declares it: holds `burst` tokens, gains `per_interval` every `interval_ms`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Bucket {
    /// Its name, unique within the policy.
    pub name: String,
    /// Tokens it holds when full.
    pub burst: u32,
    /// Tokens gained in each interval.
    pub per_interval: u32,
    /// The interval in milliseconds.
    pub interval_ms: u64,
}

/// A charge with everything needed to take it: the host's key is (policy, bucket, principal's owner, group owner).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyedCharge {
    /// The policy whose bucket it is.
    pub policy: String,
    /// The bucket as that policy declares it for this owner.
    pub bucket: Bucket,
    /// Tokens to take.
    pub cost: u32,
}

/// What is left in a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Balance {
    /// The policy whose bucket it is.
    pub policy: String,
    /// The bucket's name.
    pub bucket: String,
    /// Tokens left.
    pub remaining: u32,
}

/// Whether a policy's word counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// It decides.
    Enforce,
    /// It is asked and recorded, and changes nothing.
    Shadow,
    /// As in shadow, and compared with the policy that it may come to stand for.
    Candidate,
}

impl Mode {
    /// Returns the word used in records and configuration.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Enforce => "enforce",
            Self::Shadow => "shadow",
            Self::Candidate => "candidate",
        }
    }
}

/// What became of one policy in one decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyReport {
    /// The policy's name.
    pub policy: String,
    /// Whether its word counts.
    pub mode: Mode,
    /// Of a candidate: the policy that it may come to stand for.
    pub of: Option<String>,
    /// What it said.
    pub said: Said,
    /// Of a candidate: in what its answer is another than that policy's.
    pub differs: Vec<Difference>,
    /// Time of the evaluation in microseconds; zero where none took place.
    pub elapsed_us: u64,
    /// Fuel spent; zero where none was.
    pub fuel: u64,
    /// False where the policy was shown text that records do not hold.
    pub replayable: bool,
}

/// In what a candidate's answer is another than the answer of the policy that it may come to stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Difference {
    /// One passes, abstains, denies, fails or is not concerned, and the other does not.
    Verdict,
    /// Both deny, or both fail, under other codes.
    Code,
    /// They demand something else.
    Obligations,
    /// They cost something else.
    Charges,
}

impl Difference {
    /// Every kind.
    pub const ALL: [Self; 4] = [Self::Verdict, Self::Code, Self::Obligations, Self::Charges];

    /// Returns the word used in records.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Verdict => "verdict",
            Self::Code => "code",
            Self::Obligations => "obligations",
            Self::Charges => "charges",
        }
    }
}

/// What a policy said, or why it said nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    /// It does not declare an interest in the operation, and was not run.
    NotConcerned,
    /// It answered.
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

impl Decision {
    /// The decision for the one operation that may run without policies, to say why there are none: nothing is
    /// demanded, nothing charged, and no generation has decided.
    pub fn diagnosis() -> Self {
        Self {
            refusal: None,
            obligations: Obligations::default(),
            charges: Vec::new(),
            warnings: Vec::new(),
            reports: Vec::new(),
            generation: Generation { number: 0, digest: String::new() },
            would: None,
        }
    }
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
    /// The set of policies that decided.
    pub generation: Generation,
    /// What it would be if the policies in shadow were enforced and each candidate stood for its policy; only where that is
    /// something else.
    pub would: Option<Box<Would>>,
}

/// A decision that is not the one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Would {
    /// `None` if the request would go on.
    pub refusal: Option<Failure>,
    /// What would have to hold then.
    pub obligations: Obligations,
    /// What it would cost.
    pub charges: Vec<KeyedCharge>,
}
