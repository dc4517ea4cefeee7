//! Places where tests make the program fail or stop.
//!
//! Every metadata statement, journal line and step passes a point before it acts. The program's own points
//! let everything through; there is no setting that changes that.

use std::fmt;

use async_trait::async_trait;

/// A place that work passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Point {
    /// Before a statement, or the commit of a transaction, on the metadata.
    Statement(&'static str),
    /// Before a step of a plan.
    Step(&'static str),
    /// Before a step is taken back.
    Undo(&'static str),
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Statement(name) => write!(f, "statement:{name}"),
            Self::Step(name) => write!(f, "step:{name}"),
            Self::Undo(name) => write!(f, "undo:{name}"),
        }
    }
}

/// Says what happens at each point.
#[async_trait]
pub trait FailPoints: Send + Sync + 'static {
    /// Returns whether the work fails here. A test that simulates a crash never returns.
    async fn fails_at(&self, point: Point) -> bool;
}

/// Points that let everything through.
#[derive(Clone, Copy, Debug, Default)]
pub struct Inert;

#[async_trait]
impl FailPoints for Inert {
    async fn fails_at(&self, _point: Point) -> bool {
        false
    }
}
