//! Small traits for what would otherwise call upward. `app` wires them.

use std::os::fd::OwnedFd;

use async_trait::async_trait;

use super::{Balance, Decision, Failure, Obligations, Principal, SandboxId, Timestamp};

/// Takes news of long work. Implementations must not block.
pub trait Progress: Send + Sync {
    /// Says that `done` of `total` parts are finished. `message` holds no secret and no SQL literal.
    fn report(&self, done: u32, total: u32, message: &str);
}

/// Progress that nobody listens to.
pub struct Silent;

impl Progress for Silent {
    fn report(&self, _done: u32, _total: u32, _message: &str) {}
}

/// Which output of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputStream {
    /// Standard output.
    Out,
    /// The error output.
    Error,
}

/// A person's terminal, or what stands for it, that a command is run for.
pub trait Console: Send + Sync {
    /// Shows what the command wrote, secrets taken out.
    fn wrote(&self, stream: OutputStream, bytes: &[u8]);

    /// Returns what the command is to read; none for nothing.
    fn input(&self) -> Option<OwnedFd>;
}

/// One check of the program's or a sandbox's health.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// A stable machine-readable name, `postgres.reachable` for instance.
    pub name: String,
    /// How it came out.
    pub status: CheckStatus,
    /// What was seen.
    pub detail: String,
    /// What to do about it.
    pub remedy: Option<String>,
}

/// How a check came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CheckStatus {
    /// As it should be.
    Ok,
    /// Works, and somebody should look.
    Warn,
    /// Broken.
    Fail,
    /// Could not be had here, or nothing to check.
    Skipped,
}

impl CheckStatus {
    /// Returns the word used in results.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "fail",
            Self::Skipped => "skipped",
        }
    }
}

/// The health of a part that the lifecycle core does not know. Looks; starts nothing.
#[async_trait]
pub trait Health: Send + Sync {
    /// Returns the part's checks.
    async fn checks(&self) -> Vec<Check>;
}

/// Says what would be decided about a call, without running or charging it.
#[async_trait]
pub trait Preview: Send + Sync {
    /// Decides `operation` with `arguments` (JSON text of an object) for `principal`.
    ///
    /// # Errors
    /// Fails as the call itself would before a decision: unknown operation, bad arguments, no such sandbox.
    async fn preview(&self, principal: &Principal, operation: &str, arguments: &str) -> Result<Previewed, Failure>;

    /// Returns those of a profile's allowed extensions that no policy would refuse to `principal`. Starts nothing.
    ///
    /// # Errors
    /// Fails if there is no such profile, or the policies are not loaded.
    async fn acceptable_extensions(&self, principal: &Principal, profile: &str) -> Result<Vec<String>, Failure>;

    /// The same for being told: asked about together, and by itself only where the policies do not take them together.
    ///
    /// # Errors
    /// As [`Self::acceptable_extensions`].
    async fn offered_extensions(&self, principal: &Principal, profile: &str) -> Result<Vec<String>, Failure>;

    /// Returns what a policy would refuse an extension to `principal` with, if one would. Starts nothing.
    ///
    /// # Errors
    /// Fails if there is no such profile, the policies are not loaded, or one of them does not answer as it must.
    async fn refused_extension(
        &self,
        principal: &Principal,
        profile: &str,
        name: &str,
    ) -> Result<Option<Failure>, Failure>;
}

/// A decision that was not carried out.
#[derive(Clone, Debug)]
pub struct Previewed {
    /// What the policies say.
    pub decision: Decision,
    /// Effective limits, the core's and the profile's among them.
    pub obligations: Obligations,
    /// What is left in the buckets that the call would draw on, before it.
    pub balances: Vec<Balance>,
    /// The failure the call would get from policies or admission, if any.
    pub refusal: Option<Failure>,
    /// What would be refused of the call while the rest is done.
    pub warnings: Vec<String>,
    /// The sandbox that it was decided on.
    pub sandbox: Option<SandboxId>,
}

/// A call that goes on after it was answered with a handle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// The handle.
    pub id: String,
    /// How it stands.
    pub status: TaskStatus,
    /// When it was begun.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
    /// How long after its begin it may be forgotten, in milliseconds.
    pub ttl_ms: u64,
    /// How long to wait before asking again, in milliseconds.
    pub poll_interval_ms: u64,
    /// What the call would have answered, in JSON; only once it is completed.
    pub result: Option<String>,
}

/// How a task stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskStatus {
    /// It goes on.
    Working,
    /// It has ended, in whichever way its result says.
    Completed,
    /// It was cancelled, and has ended.
    Cancelled,
}

impl TaskStatus {
    /// Returns the protocol's word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Working => "working",
            Self::Completed => "completed",
            Self::Cancelled => "cancelled",
        }
    }
}

/// The tasks of one connection. One that is another owner's is not there.
pub trait Tasks: Send + Sync {
    /// Returns how one of `owner`'s tasks stands.
    fn look(&self, owner: &str, id: &str) -> Option<Task>;

    /// Tells one of `owner`'s tasks to end. Returns whether it is there.
    fn cancel(&self, owner: &str, id: &str) -> bool;
}

/// An edge that has no tasks.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoTasks;

impl Tasks for NoTasks {
    fn look(&self, _owner: &str, _id: &str) -> Option<Task> {
        None
    }

    fn cancel(&self, _owner: &str, _id: &str) -> bool {
        false
    }
}
