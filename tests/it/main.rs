//! The one integration-test binary.

#[cfg(test)]
mod engine;
#[cfg(test)]
mod harness;
#[cfg(test)]
mod wire;
