//! SCRAM-SHA-256 verifiers (RFC 5803), so that no statement, log or `pg_stat_activity` line holds a password.
//!
//! A verifier lets a server check a password; it cannot be used to log in.

use postgres_protocol::password;

use crate::model::Secret;

/// Returns a fresh verifier for `password`: 4096 rounds, random salt of 16 bytes.
///
/// Made of letters, digits and `$+/:=-` only. 4096 is what Postgres itself uses; ours are random
/// passwords of 256 bits, for which more rounds would buy nothing.
pub(super) fn verifier(password: &Secret) -> String {
    password::scram_sha_256(password.expose().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verifier_has_the_form_postgres_stores() {
        let verifier = verifier(&Secret::new("correct horse"));
        let (head, tail) = verifier.strip_prefix("SCRAM-SHA-256$4096:").unwrap().split_once('$').unwrap();
        let (stored, server) = tail.split_once(':').unwrap();
        assert_eq!((head.len(), stored.len(), server.len()), (24, 44, 44), "{verifier}");
        assert!(verifier.bytes().all(|b| b.is_ascii_alphanumeric() || b"$+/:=-".contains(&b)));
    }

    #[test]
    fn every_verifier_has_its_own_salt() {
        let password = Secret::new("correct horse");
        assert_ne!(verifier(&password), verifier(&password));
    }
}
