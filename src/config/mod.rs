//! What an operator writes, read into values: raw first, then typed, with all faults reported together.

pub mod policies;
