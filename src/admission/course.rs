//! What becomes of a call: whether it was refused before anything was done for it, which alone gives its charges back, and
//! which further sandboxes it came to be about, for the audit.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::model::{Failure, SandboxId};

/// Nobody has said anything: something may have been done.
const UNSAID: u8 = 0;
const REFUSED: u8 = 1;
const ACTED: u8 = 2;
/// Something was asked of another server, and nothing is made yet.
const LOOKED: u8 = 3;
/// The most further sandboxes that are kept of one call: as many as the audit names. Most are about one or two.
const OTHERS_MAX: usize = 100;

/// What has become of a call, as those who carry it out say. All clones are one.
///
/// Only who knows that nothing was done says so, by [`Course::refusing`]; whoever says nothing has acted. A failure's
/// code tells nothing: many are raised before the first act and after it as well.
#[derive(Clone, Debug, Default)]
pub struct Course(Arc<State>);

#[derive(Debug, Default)]
struct State {
    said: AtomicU8,
    others: Mutex<Vec<SandboxId>>,
}

impl Course {
    /// Passes on what a look at the call came to, before anything was done for it: if it failed, the call was refused
    /// at no cost, unless it has acted before.
    ///
    /// # Errors
    /// Fails as the look did.
    pub fn refusing<R>(&self, looked: Result<R, Failure>) -> Result<R, Failure> {
        if looked.is_err() {
            self.0.said.compare_exchange(UNSAID, REFUSED, Ordering::SeqCst, Ordering::SeqCst).ok();
        }
        looked
    }

    /// Says that another server is asked from here on, and nothing is made yet: what that costs stays charged, and what
    /// people have agreed to is still to be done.
    pub fn looks(&self) {
        self.0.said.compare_exchange(UNSAID, LOOKED, Ordering::SeqCst, Ordering::SeqCst).ok();
    }

    /// Says that something is done for the call from here on, whatever it fails with later.
    pub fn acts(&self) {
        self.0.said.store(ACTED, Ordering::SeqCst);
    }

    /// Names a sandbox or template that the call is about beside the one that it was decided on, or that is made for it:
    /// whoever finds it says so, before anything is done with it.
    pub fn is_about(&self, other: SandboxId) {
        let mut others = self.0.others.lock().unwrap_or_else(PoisonError::into_inner);
        if others.len() < OTHERS_MAX && !others.contains(&other) {
            others.push(other);
        }
    }

    /// Returns the further sandboxes that the call came to be about.
    pub(super) fn others(&self) -> Vec<SandboxId> {
        self.0.others.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns whether the call was refused before anything was done for it.
    pub(super) fn refused(&self) -> bool {
        self.0.said.load(Ordering::SeqCst) == REFUSED
    }

    /// Returns whether nothing was made for the call, if something was looked at.
    pub(super) fn made_nothing(&self) -> bool {
        matches!(self.0.said.load(Ordering::SeqCst), REFUSED | LOOKED)
    }
}

#[cfg(test)]
mod tests {
    use super::{Course, OTHERS_MAX};
    use crate::model::{Code, Failure, SandboxId};

    fn failure() -> Result<(), Failure> {
        Err(Failure::new(Code::InvalidArguments, "no"))
    }

    #[test]
    fn only_what_was_said_to_be_refused_before_any_act_was() {
        assert!(!Course::default().refused(), "nobody has said so");
        let course = Course::default();
        course.refusing(Ok(())).unwrap();
        assert!(!course.refused(), "it was not refused");
        assert_eq!(course.clone().refusing(failure()), failure());
        assert!(course.refused(), "all clones are one");
        course.acts();
        assert!(!course.refused(), "it has acted after all");
        assert_eq!(course.refusing(failure()), failure());
        assert!(!course.refused(), "it had acted before");
    }

    #[test]
    fn what_was_only_looked_at_is_charged_and_made_nothing() {
        assert!(!Course::default().made_nothing(), "nobody has said so");
        let course = Course::default();
        course.looks();
        assert!(course.made_nothing() && !course.refused());
        assert_eq!(course.refusing(failure()), failure());
        assert!(course.made_nothing() && !course.refused(), "a refusal after the look gives no charges back");
        course.acts();
        assert!(!course.made_nothing());
        course.looks();
        assert!(!course.made_nothing(), "it had acted before");
    }

    #[test]
    fn further_sandboxes_are_named_once_each_and_not_without_end() {
        let course = Course::default();
        let first = SandboxId::fresh();
        course.is_about(first);
        course.clone().is_about(first);
        assert_eq!(course.others(), [first]);
        (0..OTHERS_MAX).for_each(|_| course.is_about(SandboxId::fresh()));
        assert_eq!(course.others().len(), OTHERS_MAX);
    }
}
