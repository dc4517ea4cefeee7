//! The only key to the lifecycle core.

use std::sync::atomic::{AtomicBool, Ordering};

use super::Course;
use crate::model::{Identity, Impact, Obligations, Principal, RequestId, SandboxId, Timestamp, Transport};

/// Proof that an operation was decided, its obligations applied to `T` and its charges taken.
#[derive(Debug)]
pub struct Permit<T> {
    input: T,
    grant: Grant,
}

/// What was granted to whom.
#[derive(Clone, Debug)]
pub struct Grant {
    /// The request that was decided.
    pub request_id: RequestId,
    /// Who asked.
    pub principal: Principal,
    /// The owner named beneath the principal; charged as well, never instead.
    pub group_owner: Option<String>,
    /// The operation's name.
    pub operation: &'static str,
    /// The operation's impact.
    pub impact: Impact,
    /// The profile that the request was resolved to.
    pub profile: Option<String>,
    /// The sandbox that the request was resolved to.
    pub target: Option<SandboxId>,
    /// The merged demands of the policies. Limits on arguments are applied already; quotas are the core's to enforce.
    pub obligations: Obligations,
    /// When the request was decided.
    pub now: Timestamp,
    /// What becomes of the call: whoever refuses it before its first act says so here.
    pub course: Course,
}

impl<T> Permit<T> {
    /// Makes a permit. Private to admission: this is where the gate is.
    pub(super) fn new(input: T, grant: Grant) -> Self {
        Self { input, grant }
    }

    /// Returns the operation's input as it may be carried out.
    pub fn input(&self) -> &T {
        &self.input
    }

    /// Returns what was granted.
    pub fn grant(&self) -> &Grant {
        &self.grant
    }

    /// Returns whether the permit is for an operation of `impact`, on `target` if one is given.
    ///
    /// The core asks this before every act, so that a permit for one thing cannot be used for another.
    pub fn allows(&self, impact: Impact, target: Option<SandboxId>) -> bool {
        let system = self.grant.principal.transport == Transport::Internal;
        system || (self.grant.impact == impact && (target.is_none() || self.grant.target == target))
    }
}

/// Why the program acts on its own account.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SystemReason {
    /// Removes sandboxes whose time is over.
    Reaper,
    /// Finishes or takes back what a crash left.
    Recovery,
    /// Takes the login of a sandbox away whose owner holds more bytes than allowed.
    WithholdLogin,
    /// Gives such a login back.
    RestoreLogin,
    /// Keeps the warm pool filled.
    Pool,
    /// Seals secrets with a new key.
    KeyRotation,
    /// An operator starts or stops the managed cluster.
    LocalCluster,
    /// An operator has Postgres installed.
    Installation,
    /// Other policies are to serve.
    PolicyReload,
    /// An operator brings an exported template to this machine, or takes one away from it.
    TemplateTransport,
}

impl SystemReason {
    /// Returns the word used in records.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Reaper => "reaper",
            Self::Recovery => "recovery",
            Self::WithholdLogin => "withhold-login",
            Self::RestoreLogin => "restore-login",
            Self::Pool => "pool",
            Self::KeyRotation => "key-rotation",
            Self::LocalCluster => "local-cluster",
            Self::Installation => "installation",
            Self::PolicyReload => "policy-reload",
            Self::TemplateTransport => "template-transport",
        }
    }
}

/// The right to act on the program's own account. There is one per process, and `app` takes it.
#[derive(Clone, Debug)]
pub struct SystemAuthority(());

static TAKEN: AtomicBool = AtomicBool::new(false);

impl SystemAuthority {
    /// Takes the authority; `None` if it has been taken before.
    pub fn take() -> Option<Self> {
        (!TAKEN.swap(true, Ordering::SeqCst)).then_some(Self(()))
    }

    /// Makes a permit for upkeep. The caller opens and closes an audit entry for it like for any other.
    pub fn permit(&self, reason: SystemReason, request_id: RequestId, now: Timestamp) -> Permit<()> {
        let name = format!("system:{}", reason.as_str());
        let grant = Grant {
            request_id,
            principal: Principal {
                subject: name.clone(),
                owner: name,
                groups: Vec::new(),
                transport: Transport::Internal,
                client: String::new(),
                identity: Identity::Certain,
            },
            group_owner: None,
            operation: reason.as_str(),
            impact: Impact::Destroys,
            profile: None,
            target: None,
            obligations: Obligations::default(),
            now,
            course: Course::default(),
        };
        Permit { input: (), grant }
    }
}
