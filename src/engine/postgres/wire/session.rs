//! A session for the caller's SQL, and the timers around what it does.
//!
//! A call has the server's timer and, behind it, one of our own: it cancels, and if the server stays silent it
//! leaves. A call that is dropped cancels too. After any of these the session is not usable.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::cancel::{CancelOnDrop, Target};
use super::connection::{Connection, OWN_LIMITS};
use super::startup::{self, SessionTarget, Started};
use super::types::{LOOKUP, TypeCache};
use super::{CancelHandle, Notice, Rest, ResultLimits, ResultSet, WireError};
use crate::model::fault;
use crate::model::limits::{PARAMS_MAX, SQL_BYTES_MAX, STDIN_BYTES_MAX};

pub use super::connection::TxStatus;

/// Our own timer fires so much after the server's should have, so that the server's, which leaves the session
/// usable, comes first.
const TIMER_LAG: Duration = Duration::from_millis(250);
/// Time the server has to react to a cancel.
const CANCEL_GRACE: Duration = Duration::from_secs(2);
/// Time for statements of the session's own: rolling back, forgetting, looking types up.
const OWN_TIMEOUT: Duration = Duration::from_secs(10);
/// The most bytes of all parameters of a statement together: they come from one request, which is smaller.
const PARAM_BYTES_MAX: usize = 8 << 20;

/// A session as one of a sandbox's own roles; the only thing that can send a caller's SQL. It ends by being dropped: the
/// server notices the end of the connection by itself.
pub struct SandboxSession {
    connection: Connection,
    types: TypeCache,
    target: Arc<Target>,
}

/// One statement and what it may take.
#[derive(Clone, Copy)]
pub struct StatementCall<'a> {
    /// The text: exactly one statement, or none.
    pub text: &'a str,
    /// Its parameters, whose types the server infers.
    pub params: &'a [Param],
    /// What is kept of its result.
    pub limits: ResultLimits,
    /// What happens to rows over the limit. A read-only call fetches none of them.
    pub rest: Rest,
    /// How long it may run.
    pub timeout: Duration,
    /// Data for `COPY … FROM STDIN`.
    pub copy_in: Option<&'a [u8]>,
}

/// A parameter.
#[derive(Clone, PartialEq, Eq)]
pub enum Param {
    /// SQL's NULL.
    Null,
    /// A value in text form.
    Text(String),
}

impl SandboxSession {
    /// Connects and logs in.
    ///
    /// # Errors
    /// Fails when the server cannot be reached, refuses the role, or is not the one that knows the password.
    pub async fn connect(target: &SessionTarget) -> Result<Self, WireError> {
        let Started { channel, pinned, process_id, key } = startup::start(target).await?;
        let connection =
            Connection { channel, pinned, status: TxStatus::Idle, in_step: true, armed: false, notices: Vec::new() };
        let target = Target::new(target.endpoint.clone(), process_id, key, target.connect_timeout);
        Ok(Self { connection, types: TypeCache::default(), target: Arc::new(target) })
    }

    /// Returns the transaction that the session is in.
    pub fn status(&self) -> TxStatus {
        self.connection.status
    }

    /// Returns whether the session can be used further.
    pub fn is_usable(&self) -> bool {
        self.connection.in_step && self.connection.pinned.check().is_ok() && !self.target.is_cancelled()
    }

    /// Returns whether the server has said nothing since the last answer: it ends a session by a message, or by closing
    /// the connection. What it said is lost; a session that is not quiet is not usable further.
    pub fn is_quiet(&self) -> bool {
        self.connection.channel.is_quiet()
    }

    /// Returns the server's address, where it has one.
    pub fn address(&self) -> Option<SocketAddr> {
        self.connection.channel.stream().address()
    }

    /// Returns the process id of the server's backend, for an administrator to end it.
    pub fn process_id(&self) -> i32 {
        self.target.process_id()
    }

    /// Returns what stops this session's statements, until the next [`Self::reset`].
    pub fn cancel_handle(&self) -> CancelHandle {
        CancelHandle::new(&self.target)
    }

    /// Takes the notices of the statement that failed last.
    pub fn take_notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.connection.notices)
    }

    /// Runs one statement as it is, within the transaction that is open, if one is.
    ///
    /// The server's own timer is set to the call's time by the first statement after [`Self::connect`] or
    /// [`Self::reset`], and is the caller's to change from then on; ours holds for each statement.
    ///
    /// # Errors
    /// [`WireError::Statement`] leaves the session usable, and so do [`WireError::CopyDataMissing`] and
    /// [`WireError::NotSendable`].
    pub async fn execute(&mut self, call: &StatementCall<'_>) -> Result<ResultSet, WireError> {
        self.enter(call)?;
        let outcome = supervise(self.connection.write_call(call), &self.target, call.timeout).await;
        self.name_types(outcome?).await
    }

    /// Runs one statement in a read-only transaction of its own, which is rolled back.
    ///
    /// # Errors
    /// As [`Self::execute`]; [`WireError::NotIdle`] when a transaction is open, and
    /// [`WireError::ReadOnlyViolated`] when the statement got out of the one it was given.
    pub async fn execute_read_only(&mut self, call: &StatementCall<'_>) -> Result<ResultSet, WireError> {
        if self.connection.status != TxStatus::Idle {
            return Err(WireError::NotIdle);
        }
        self.enter(call)?;
        let outcome = supervise(self.connection.read_only_call(call), &self.target, call.timeout).await;
        self.name_types(outcome?).await
    }

    /// Runs one statement in a transaction of its own, which may write and is rolled back.
    ///
    /// # Errors
    /// As [`Self::execute_read_only`].
    pub async fn execute_rolled_back(&mut self, call: &StatementCall<'_>) -> Result<ResultSet, WireError> {
        if self.connection.status != TxStatus::Idle {
            return Err(WireError::NotIdle);
        }
        self.enter(call)?;
        let outcome = supervise(self.connection.rolled_back_call(call), &self.target, call.timeout).await;
        self.name_types(outcome?).await
    }

    /// Ends the transaction that is open, if one is, and takes back what it did.
    ///
    /// # Errors
    /// Fails when the session cannot be used further.
    pub async fn rollback(&mut self) -> Result<(), WireError> {
        match self.connection.status {
            TxStatus::Idle if self.is_usable() => Ok(()),
            TxStatus::Idle | TxStatus::InTransaction | TxStatus::Failed => self.own("ROLLBACK", "ROLLBACK").await,
        }
    }

    /// Makes the session as it was when it was new: nothing of one call is there for the next.
    ///
    /// # Errors
    /// Fails when anything may be left; the session is not usable then.
    pub async fn reset(&mut self) -> Result<(), WireError> {
        self.leave();
        if self.connection.status != TxStatus::Idle {
            self.own("ROLLBACK", "ROLLBACK").await?;
        }
        self.own("DISCARD ALL", "DISCARD ALL").await?;
        self.connection.pinned.check()
    }

    /// Forgets what belongs to who used the session until now.
    fn leave(&mut self) {
        self.target.next_lease();
        self.types.clear();
        self.connection.notices.clear();
        self.connection.armed = false;
    }

    /// Runs a statement of the session's own.
    async fn own(&mut self, text: &str, tag: &str) -> Result<(), WireError> {
        if !self.connection.in_step || self.target.is_cancelled() {
            return Err(WireError::Unusable);
        }
        self.connection.in_step = false;
        let statement = self.connection.own_statement(text, tag, TxStatus::Idle);
        supervise(statement, &self.target, fault::within(OWN_TIMEOUT)).await
    }

    /// Checks that a call can begin. From here on the session is unusable until the call has ended as it must.
    fn enter(&mut self, call: &StatementCall<'_>) -> Result<(), WireError> {
        if !self.connection.in_step || self.target.is_cancelled() {
            return Err(WireError::Unusable);
        }
        self.connection.pinned.check()?;
        call.check()?;
        self.connection.notices.clear();
        self.connection.in_step = false;
        Ok(())
    }

    /// Names the types of a result's columns, asking the server for those that are not known.
    async fn name_types(&mut self, mut set: ResultSet) -> Result<ResultSet, WireError> {
        let missing = set.name_types(&self.types);
        if missing.is_empty() || self.connection.status == TxStatus::Failed || !self.is_usable() {
            return Ok(set);
        }
        let oids: Vec<String> = missing.iter().map(u32::to_string).collect();
        let oids = [Param::Text(format!("{{{}}}", oids.join(",")))];
        let within = fault::within(OWN_TIMEOUT);
        let call = StatementCall {
            text: LOOKUP,
            params: &oids,
            limits: OWN_LIMITS,
            rest: Rest::Unfetched,
            timeout: within,
            copy_in: None,
        };
        self.connection.in_step = false;
        match supervise(self.connection.own_query(&call), &self.target, within).await {
            Ok(rows) => self.types.learn(&rows),
            // The statement has run: its result counts, and types may go by number.
            Err(error) => tracing::debug!(%error, "types could not be looked up"),
        }
        set.name_types(&self.types);
        Ok(set)
    }
}

impl StatementCall<'_> {
    fn check(&self) -> Result<(), WireError> {
        let param_bytes = |param: &Param| match param {
            Param::Null => 0,
            Param::Text(text) => text.len(),
        };
        let fault = if self.text.len() > SQL_BYTES_MAX {
            "its text is too long"
        } else if self.text.contains('\0') {
            "its text holds a NUL character"
        } else if self.params.len() > PARAMS_MAX {
            "it has too many parameters"
        } else if self.params.iter().map(param_bytes).sum::<usize>() > PARAM_BYTES_MAX {
            "its parameters are too long"
        } else if self.copy_in.is_some_and(|data| data.len() > STDIN_BYTES_MAX) {
            "the data for its COPY is too long"
        } else {
            return Ok(());
        };
        Err(WireError::NotSendable(fault))
    }
}

/// Waits for `exchange` under our own timer, and cancels it when that fires or this future is dropped.
async fn supervise<T>(
    exchange: impl Future<Output = Result<T, WireError>>,
    target: &Arc<Target>,
    time: Duration,
) -> Result<T, WireError> {
    let mut exchange = std::pin::pin!(exchange);
    let dropped = CancelOnDrop::armed(target);
    let in_time = timeout(time.saturating_add(TIMER_LAG), exchange.as_mut()).await;
    let outcome = match in_time {
        Ok(Err(_)) if target.is_cancelled() => Err(WireError::Cancelled),
        Ok(outcome) => outcome,
        Err(_) => {
            target.give_up();
            let stop = async {
                if let Err(error) = target.send().await {
                    tracing::debug!(process_id = target.process_id(), %error, "a cancel could not be sent");
                }
            };
            let both = async { tokio::join!(stop, exchange).1 };
            let ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
            match timeout(CANCEL_GRACE, both).await {
                Ok(Ok(value)) => Ok(value),
                // Whatever else a server says, it has not said that it stopped.
                Ok(Err(WireError::Protocol(_))) | Err(_) => Err(WireError::Timeout { ms, stopped: false }),
                Ok(Err(_)) => Err(WireError::Timeout { ms, stopped: true }),
            }
        }
    };
    dropped.disarm();
    outcome
}

impl fmt::Debug for SandboxSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SandboxSession")
            .field("process_id", &self.process_id())
            .field("status", &self.status())
            .field("usable", &self.is_usable())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for StatementCall<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StatementCall")
            .field("text_bytes", &self.text.len())
            .field("params", &self.params.len())
            .field("limits", &self.limits)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Param {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("Null"),
            Self::Text(text) => write!(f, "Text({} bytes)", text.len()),
        }
    }
}
