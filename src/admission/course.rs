//! Whether a call was refused before anything was done for it, which alone gives its charges back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::model::Failure;

/// Nobody has said anything: something may have been done.
const UNSAID: u8 = 0;
const REFUSED: u8 = 1;
const ACTED: u8 = 2;

/// What has become of a call, as those who carry it out say. All clones are one.
///
/// Only who knows that nothing was done says so, by [`Course::refusing`]; whoever says nothing has acted. A failure's
/// code tells nothing: many are raised before the first act and after it as well.
#[derive(Clone, Debug, Default)]
pub struct Course(Arc<AtomicU8>);

impl Course {
    /// Passes on what a look at the call came to, before anything was done for it: if it failed, the call was refused
    /// at no cost, unless it has acted before.
    ///
    /// # Errors
    /// Fails as the look did.
    pub fn refusing<R>(&self, looked: Result<R, Failure>) -> Result<R, Failure> {
        if looked.is_err() {
            self.0.compare_exchange(UNSAID, REFUSED, Ordering::SeqCst, Ordering::SeqCst).ok();
        }
        looked
    }

    /// Says that something is done for the call from here on, whatever it fails with later.
    pub fn acts(&self) {
        self.0.store(ACTED, Ordering::SeqCst);
    }

    /// Returns whether the call was refused before anything was done for it.
    pub(super) fn refused(&self) -> bool {
        self.0.load(Ordering::SeqCst) == REFUSED
    }
}

#[cfg(test)]
mod tests {
    use super::Course;
    use crate::model::{Code, Failure};

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
}
