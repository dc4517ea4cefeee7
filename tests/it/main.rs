//! The one integration-test binary.

#[cfg(test)]
mod audit;
#[cfg(test)]
mod config;
