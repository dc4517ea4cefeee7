//! Named places where a build for tests can be made to fail, to wait, or to end.
//!
//! A place says its name before it acts (or, named so, after): [`reach`] where it stands, [`pass`] where it awaits,
//! [`poll`] where it is polled. What happens there is read once from `PGSANDBOX_TEST_FAULTS`, entries by `;`:
//!
//! ```text
//! store.find=fail            audit.append=fail:full@2          socket.read=delay:3000@1+
//! store.find=fail:53100      plan.create.open-database.after=crash
//! ```
//!
//! Each is a point, what it does, and at which firing (the first unless said; `+` for all from there on). `fail` gives the
//! error that a failing disk gives, a word another system's error, five characters a server's SQLSTATE; what becomes of it
//! is the business of whoever has the point, by its own conversion from [`Injected`]. `crash` ends the process at once, with no
//! destructor run. `PGSANDBOX_TEST_FAULTS_LOG` names a file to which every firing is appended, with `!` before it where
//! something was done; `PGSANDBOX_TEST_DEADLINE_MS` shortens what is bounded by [`within`], and
//! `PGSANDBOX_TEST_INTERVAL_MS` what comes round [`every`] so often.
//!
//! Without `debug_assertions` all of it is constant, [`Injected`] cannot exist, and neither a name nor a variable is in
//! the program. Every name is in `fault/points.txt`, which a test compares with the source.

use std::future::Future;
use std::io;
use std::task::{Context, Poll};
use std::time::Duration;

#[cfg(debug_assertions)]
mod armed;

#[cfg(debug_assertions)]
type Said = armed::Said;
#[cfg(not(debug_assertions))]
type Said = std::convert::Infallible;

/// A failure that a test asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Injected(Said);

impl Injected {
    /// Returns the SQLSTATE that a server is to have answered with; `None` where the connection is lost, or it is no
    /// server's failure.
    pub fn sqlstate(&self) -> Option<&str> {
        #[cfg(debug_assertions)]
        return self.0.sqlstate();
        #[cfg(not(debug_assertions))]
        match self.0 {}
    }
}

impl From<Injected> for io::Error {
    /// Becomes the system's error of the kind that was asked for.
    fn from(injected: Injected) -> Self {
        #[cfg(debug_assertions)]
        return Self::from_raw_os_error(injected.0.errno());
        #[cfg(not(debug_assertions))]
        match injected.0 {}
    }
}

/// Checks what is asked for, before anything is done.
///
/// # Errors
/// Says what of it cannot be understood.
pub fn check() -> Result<(), String> {
    #[cfg(debug_assertions)]
    return armed::check();
    #[cfg(not(debug_assertions))]
    Ok(())
}

/// Passes a point of code that blocks.
///
/// # Errors
/// Fails if the point is to fail now.
#[inline(always)]
pub fn reach(point: &str) -> Result<(), Injected> {
    #[cfg(debug_assertions)]
    return armed::reach(point);
    #[cfg(not(debug_assertions))]
    {
        let _ = point;
        Ok(())
    }
}

/// Passes a point of code that waits; a delay is awaited, so a deadline around it is kept.
///
/// # Errors
/// Fails if the point is to fail now.
#[inline(always)]
pub fn pass(point: &str) -> impl Future<Output = Result<(), Injected>> + Send + use<> {
    pass_of(&[point])
}

/// Passes a point whose name is put together of `parts`.
///
/// # Errors
/// Fails if the point is to fail now.
#[inline(always)]
pub fn pass_of(parts: &[&str]) -> impl Future<Output = Result<(), Injected>> + Send + use<> {
    #[cfg(debug_assertions)]
    return armed::pass(parts);
    #[cfg(not(debug_assertions))]
    {
        let _ = parts;
        std::future::ready(Ok(()))
    }
}

/// Passes a point of code that is polled. While it is delayed everybody who polls it waits.
///
/// # Errors
/// Fails if the point is to fail now.
#[inline(always)]
pub fn poll(point: &str, cx: &Context<'_>) -> Poll<Result<(), Injected>> {
    #[cfg(debug_assertions)]
    return armed::poll(point, cx);
    #[cfg(not(debug_assertions))]
    {
        let _ = (point, cx);
        Poll::Ready(Ok(()))
    }
}

/// Returns an interval, shortened where a test asks for it.
#[inline(always)]
pub fn every(time: Duration) -> Duration {
    #[cfg(debug_assertions)]
    return armed::every(time);
    #[cfg(not(debug_assertions))]
    time
}

/// Returns a deadline, shortened where a test asks for it.
#[inline(always)]
pub fn within(time: Duration) -> Duration {
    #[cfg(debug_assertions)]
    return armed::within(time);
    #[cfg(not(debug_assertions))]
    time
}
