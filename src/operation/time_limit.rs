//! The time that the statements of one call have, whose limit it is, and how its end is told.
//!
//! Whether a limit ended a statement is seen by the clock, never by the server's words: a statement that is ended before
//! was ended by what the SQL itself has set, or by another session.

use std::time::Duration;

use tokio::time::Instant;

use crate::engine::postgres::WireError;
use crate::model::limits::STATEMENT_TIMEOUT_MS_MAX;
use crate::model::{Code, Failure, Limit, ObligationKind};

/// How long a call may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct TimeLimit<'a> {
    asked: Asked,
    /// What policies demand.
    demanded: Option<&'a Limit>,
}

/// What the time would be without policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// As the call's `timeoutSeconds` says.
    For(u64),
    /// The call could have said so, and has not.
    Default(u64),
    /// The same for every call of the operation.
    Always(u64),
}

impl Asked {
    fn ms(self) -> u64 {
        match self {
            Self::For(ms) | Self::Default(ms) | Self::Always(ms) => ms,
        }
    }
}

impl<'a> TimeLimit<'a> {
    pub(super) fn new(asked: Asked, demanded: Option<&'a Limit>) -> Self {
        Self { asked, demanded }
    }

    /// Returns the whole of it.
    pub(super) fn time(&self) -> Duration {
        Duration::from_millis(self.ms())
    }

    /// Says an error of a statement that had until `deadline`; `would_stop` if readonly=true had ended it at the row limit.
    pub(super) fn failure(&self, error: WireError, deadline: Instant, would_stop: bool) -> Failure {
        let deaf = matches!(error, WireError::Timeout { stopped: false, .. });
        let became = if deaf { "was left, as the server did not react," } else { "was stopped" };
        let failure = Failure::from(error);
        if failure.code != Code::StatementTimeout {
            return failure;
        }
        if !is_over(deadline) {
            let hint = format!(
                "it was not {}: the SQL's own `statement_timeout` ended it, or another session cancelled it",
                self.said()
            );
            return failure.hint(hint);
        }
        self.ended(failure, format!("the statement {became} at {}", self.said()), would_stop)
    }

    /// Says that the time was over before a statement could be begun.
    pub(super) fn not_begun(&self) -> Failure {
        let message = format!("the statement was not begun: {} was over", self.said());
        self.ended(Failure::new(Code::StatementTimeout, ""), message, false)
    }

    /// Says that nothing was begun for want of a session.
    pub(super) fn no_session(&self) -> Failure {
        let message = format!("no session with the sandbox could be had within {} ms, {}", self.ms(), self.set_by());
        Failure::new(Code::CommandTimeout, message)
            .hint("nothing was run; close other connections to it, or call again later")
    }

    fn ended(&self, mut failure: Failure, message: String, would_stop: bool) -> Failure {
        let more = self.more();
        let stop = if would_stop { "; with readonly=true a statement stops at the row limit" } else { "" };
        failure.message = message;
        failure.policy =
            self.policy().map(|limit| (limit.set_by.clone(), ObligationKind::StatementTimeoutMs.as_str().to_owned()));
        // The same call has the same time again.
        failure.hint(format!("{more}{stop}")).for_good()
    }

    fn ms(&self) -> u64 {
        self.demanded.map_or(u64::MAX, |limit| limit.value).min(self.asked.ms())
    }

    /// Returns the policy that gives less than would be had without.
    fn policy(&self) -> Option<&'a Limit> {
        self.demanded.filter(|limit| limit.value < self.asked.ms())
    }

    fn said(&self) -> String {
        format!("the limit of {} ms, {}", self.ms(), self.set_by())
    }

    fn set_by(&self) -> String {
        match (self.policy(), self.asked) {
            (Some(limit), _) => format!("set by policy `{}`", limit.set_by),
            (None, Asked::For(_)) => "set by the call's `timeoutSeconds`".to_owned(),
            (None, Asked::Default(_)) => "the default of `timeoutSeconds`".to_owned(),
            (None, Asked::Always(_)) => "set by the program".to_owned(),
        }
    }

    /// Says how more time is had.
    fn more(&self) -> String {
        let most = self.demanded.map_or(u64::MAX, |limit| limit.value).min(STATEMENT_TIMEOUT_MS_MAX);
        let may_ask = !matches!(self.asked, Asked::Always(_)) && most / 1000 * 1000 > self.ms();
        match self.demanded {
            _ if may_ask => format!("give more time by `timeoutSeconds`, up to {}, or ask for less work", most / 1000),
            Some(limit) if limit.value < STATEMENT_TIMEOUT_MS_MAX && limit.value == self.ms() => {
                format!("ask for less work; an operator can change the settings of policy `{}`", limit.set_by)
            }
            Some(_) | None => "ask for less work; there is no more time to be had".to_owned(),
        }
    }
}

/// Returns whether less than the millisecond is left that the server counts in.
pub(super) fn is_over(deadline: Instant) -> bool {
    deadline.saturating_duration_since(Instant::now()).as_millis() == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(asked: Asked, demanded: Option<u64>, said: &str, more: &str) {
        let demanded = demanded.map(|value| Limit { value, set_by: "row-limit".to_owned() });
        let limit = TimeLimit::new(asked, demanded.as_ref());
        let failure = limit.failure(WireError::Timeout { ms: 7, stopped: true }, Instant::now(), false);
        assert_eq!(failure.message, format!("the statement was stopped at the limit of {said}"));
        assert_eq!(failure.hint.as_deref(), Some(more));
        assert!(!failure.retryable, "the same call has the same time again");
    }

    #[test]
    fn a_limit_is_told_with_who_set_it_and_how_more_is_had() {
        let operator = "ask for less work; an operator can change the settings of policy `row-limit`";
        let more = |most: u64| format!("give more time by `timeoutSeconds`, up to {most}, or ask for less work");
        let none = "ask for less work; there is no more time to be had";
        check(Asked::For(60_000), Some(3000), "3000 ms, set by policy `row-limit`", operator);
        check(Asked::Default(30_000), Some(3000), "3000 ms, set by policy `row-limit`", operator);
        check(Asked::Always(30_000), Some(300), "300 ms, set by policy `row-limit`", operator);
        check(Asked::For(5000), None, "5000 ms, set by the call's `timeoutSeconds`", &more(300));
        check(Asked::For(5000), Some(10_900), "5000 ms, set by the call's `timeoutSeconds`", &more(10));
        check(Asked::For(10_000), Some(10_000), "10000 ms, set by the call's `timeoutSeconds`", operator);
        check(Asked::Default(30_000), Some(300_000), "30000 ms, the default of `timeoutSeconds`", &more(300));
        check(Asked::For(300_000), Some(300_000), "300000 ms, set by the call's `timeoutSeconds`", none);
        check(Asked::For(300_000), None, "300000 ms, set by the call's `timeoutSeconds`", none);
        check(Asked::Always(30_000), Some(60_000), "30000 ms, set by the program", none);
    }

    #[test]
    fn what_is_ended_before_its_time_was_ended_by_another() {
        let limit = TimeLimit::new(Asked::For(60_000), None);
        let error = WireError::Timeout { ms: 7, stopped: true };
        let failure = limit.failure(error, Instant::now() + limit.time(), true);
        assert!(failure.hint.as_deref().unwrap().contains("not the limit of 60000 ms"), "{failure:?}");
        assert!(failure.retryable);
    }
}
