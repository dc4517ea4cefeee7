//! Sealing and the key ring.
