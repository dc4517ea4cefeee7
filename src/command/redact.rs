//! Takes secrets out of a stream of bytes, wherever reads happen to cut it.
//!
//! Output is passed on at once, but for an end that a secret could begin with: that waits for the next bytes.

/// What stands where a secret stood.
const INSTEAD: &[u8] = b"***";
/// Shorter ones are in too many words to be looked for.
const SECRET_BYTES_MIN: usize = 6;

/// Secrets in every form that they are looked for in.
#[derive(Clone, Default)]
pub struct Secrets(Vec<Vec<u8>>);

impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Secrets({})", self.0.len())
    }
}

impl Secrets {
    /// Takes secrets as they are, percent-encoded, and as JSON and shells write them.
    pub fn new<'a>(secrets: impl IntoIterator<Item = &'a str>) -> Self {
        let mut forms: Vec<Vec<u8>> = Vec::new();
        for secret in secrets.into_iter().filter(|secret| secret.len() >= SECRET_BYTES_MIN) {
            let everything: String = secret.bytes().map(|byte| format!("%{byte:02X}")).collect();
            let json = serde_json::to_string(secret).unwrap_or_default();
            let upper = percent_encoding::utf8_percent_encode(secret, percent_encoding::NON_ALPHANUMERIC).to_string();
            let lower = lower_escapes(&upper);
            forms.extend(
                [secret.to_owned(), upper, lower, everything, json.trim_matches('"').to_owned()]
                    .map(String::into_bytes),
            );
        }
        // A longer one may hold a shorter one.
        forms.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        forms.dedup();
        Self(forms)
    }

    /// Returns `text` without them.
    pub fn redact(&self, text: &str) -> String {
        let mut redactor = Redactor::new(self.clone());
        let mut out = redactor.take(text.as_bytes());
        out.extend(redactor.finish());
        String::from_utf8_lossy(&out).into_owned()
    }
}

/// Writes the digits of `%3A` as many libraries do: `%3a`.
fn lower_escapes(text: &str) -> String {
    let mut digits = 0;
    let mut lower = |c: char| match c {
        '%' => {
            digits = 2;
            c
        }
        _ if digits > 0 => {
            digits -= 1;
            c.to_ascii_lowercase()
        }
        _ => c,
    };
    text.chars().map(&mut lower).collect()
}

/// Takes secrets out of one stream.
#[derive(Debug)]
pub(super) struct Redactor {
    secrets: Secrets,
    /// Whether a secret begins with a byte.
    firsts: Vec<bool>,
    held: Vec<u8>,
}

impl Redactor {
    /// Begins a stream.
    pub(super) fn new(secrets: Secrets) -> Self {
        let firsts = (0..=u8::MAX).map(|byte| secrets.0.iter().any(|secret| secret.first() == Some(&byte))).collect();
        Self { secrets, firsts, held: Vec::new() }
    }

    /// Takes bytes, and returns those that may be shown now.
    pub(super) fn take(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.held.extend_from_slice(bytes);
        let held = std::mem::take(&mut self.held);
        let mut out = Vec::with_capacity(held.len());
        let mut at = 0;
        while let Some((rest, &first)) = held.get(at..).and_then(|rest| Some((rest, rest.first()?))) {
            if self.firsts.get(usize::from(first)) != Some(&true) {
                out.push(first);
                at += 1;
            } else if let Some(secret) = self.secrets.0.iter().find(|secret| rest.starts_with(secret)) {
                // A longer secret may begin here as well, and not be there as a whole yet.
                if self.secrets.0.iter().any(|longer| longer.len() > rest.len() && longer.starts_with(rest)) {
                    break;
                }
                out.extend_from_slice(INSTEAD);
                at += secret.len();
            } else if self.secrets.0.iter().any(|secret| secret.starts_with(rest)) {
                break;
            } else {
                out.push(first);
                at += 1;
            }
        }
        self.held = held.get(at..).unwrap_or_default().to_vec();
        out
    }

    /// Ends the stream, and returns what was held back.
    pub(super) fn finish(&mut self) -> Vec<u8> {
        let held = std::mem::take(&mut self.held);
        let mut out = Vec::new();
        let mut at = 0;
        while let Some(rest) = held.get(at..).filter(|rest| !rest.is_empty()) {
            match self.secrets.0.iter().find(|secret| rest.starts_with(secret)) {
                Some(secret) => {
                    out.extend_from_slice(INSTEAD);
                    at += secret.len();
                }
                None => {
                    out.extend(rest.first());
                    at += 1;
                }
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWORD: &str = "p@ss:w/rd%\"x";

    fn check(text: &str, expected: &str) {
        let secrets = Secrets::new([PASSWORD, "second-secret", "second-secret-longer"]);
        assert_eq!(secrets.redact(text), expected);
        for size in 1..text.len() {
            let mut redactor = Redactor::new(secrets.clone());
            let mut out: Vec<u8> = text.as_bytes().chunks(size).flat_map(|chunk| redactor.take(chunk)).collect();
            out.extend(redactor.finish());
            assert_eq!(String::from_utf8_lossy(&out), expected, "in pieces of {size}");
        }
    }

    #[test]
    fn a_secret_is_found_however_reads_cut_it() {
        check(&format!("x{PASSWORD}y{PASSWORD}"), "x***y***");
        check("p@ss:w/r is no secret, p@", "p@ss:w/r is no secret, p@");
        check("p@sp@ss:w/rd%\"x", "p@s***");
    }

    #[test]
    fn a_secret_is_found_in_urls_and_in_json() {
        check("postgresql://u:p%40ss%3Aw%2Frd%25%22x@h/d", "postgresql://u:***@h/d");
        check("postgresql://u:p%40ss%3aw%2frd%25%22x@h/d", "postgresql://u:***@h/d");
        check(r#"{"password":"p@ss:w/rd%\"x"}"#, r#"{"password":"***"}"#);
    }

    #[test]
    fn of_two_secrets_that_begin_alike_the_longer_goes_as_a_whole() {
        check("second-secret-longer second-secret second-secret-long", "*** *** ***-long");
    }

    #[test]
    fn what_stands_in_too_many_words_is_not_looked_for() {
        let short = "s".repeat(SECRET_BYTES_MIN - 1);
        assert_eq!(Secrets::new([short.as_str()]).redact(&short), short);
    }

    #[test]
    fn nothing_is_held_back_that_begins_no_secret() {
        let mut redactor = Redactor::new(Secrets::new([PASSWORD]));
        assert_eq!(redactor.take(b"progress 10%\r"), b"progress 10%\r");
    }
}
