//! The gate that a call goes through: everything admission needs, in one value.
//!
//! An operation's input goes in; a permit, or the reason there is none, comes out.

use crate::model::{Context, Decision, Failure};

use super::admit::{Admissible, Admitted, Consents, admit, foresee};
use super::book::Book;
use super::permit::Grant;

/// One decided request at the gate.
#[derive(Clone, Copy)]
pub struct Gate<'a> {
    /// The facts on which it was decided.
    pub context: &'a Context,
    /// What the policies say together.
    pub decision: &'a Decision,
    /// Where rate limits are kept.
    pub book: &'a dyn Book,
    /// What people have agreed to.
    pub consents: &'a dyn Consents,
}

impl Gate<'_> {
    /// Lets `input` through, or says why not.
    ///
    /// # Errors
    /// Fails as [`admit`] does.
    pub fn admit<T: Admissible>(&self, input: T) -> Result<Admitted<T>, Failure> {
        admit(input, self.context, self.decision, self.book, self.consents)
    }

    /// Says what [`Gate::admit`] would, without charging.
    ///
    /// # Errors
    /// Fails as [`foresee`] does.
    pub fn foresee<T: Admissible>(&self, input: T) -> Result<(T, Grant), Failure> {
        foresee(input, self.context, self.decision, self.book, self.consents)
    }
}
