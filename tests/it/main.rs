//! The one integration-test binary.

mod policies;
