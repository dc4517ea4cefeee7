//! The one integration-test binary.

mod sql;
