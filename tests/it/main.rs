//! The one integration-test binary.

mod cases;
