//! Reads the few parts of a certificate (RFC 5280 § 4.1) that the libraries do not show.

use chrono::{DateTime, NaiveDate, Utc};

/// Tags of DER elements.
pub(super) const SEQUENCE: u8 = 0x30;
pub(super) const OBJECT_IDENTIFIER: u8 = 0x06;
const SET: u8 = 0x31;
const BOOLEAN: u8 = 0x01;
const INTEGER: u8 = 0x02;
const OCTET_STRING: u8 = 0x04;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const VERSION: u8 = 0xa0;
const UNIQUE_IDS: [u8; 2] = [0x81, 0x82];
const EXTENSIONS: u8 = 0xa3;

/// Object identifiers by their contents.
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
const SUBJECT_ALT_NAME: &[u8] = &[0x55, 0x1d, 0x11];
const EXTENDED_KEY_USAGE: &[u8] = &[0x55, 0x1d, 0x25];
const ANY_USAGE: &[u8] = &[0x55, 0x1d, 0x25, 0x00];
const SERVER_AUTH: &[u8] = &[0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x03, 0x01];

/// What a certificate says of itself.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Parts<'a> {
    pub(super) not_before: DateTime<Utc>,
    pub(super) not_after: DateTime<Utc>,
    /// The first common name of its subject.
    pub(super) common_name: Option<&'a [u8]>,
    /// Whether it has a subjectAltName, beside which the common name counts for nothing.
    pub(super) has_alt_names: bool,
    /// Whether a server may show it.
    pub(super) for_servers: bool,
}

impl<'a> Parts<'a> {
    /// Reads `certificate`; `None` if it is malformed.
    pub(super) fn of(certificate: &'a [u8]) -> Option<Self> {
        // TBSCertificate ::= SEQUENCE { version, serialNumber, signature, issuer, validity, subject, key, … }
        let (outer, _) = element(certificate, SEQUENCE)?;
        let (tbs, _) = element(outer, SEQUENCE)?;
        let rest = without(tbs, VERSION);
        let (_, rest) = element(rest, INTEGER)?;
        let (_, rest) = element(rest, SEQUENCE)?;
        let (_, rest) = element(rest, SEQUENCE)?;
        let (validity, rest) = element(rest, SEQUENCE)?;
        let (subject, rest) = element(rest, SEQUENCE)?;
        let (_, rest) = element(rest, SEQUENCE)?;
        let rest = UNIQUE_IDS.into_iter().fold(rest, without);
        let (not_before, after) = time(validity)?;
        let (not_after, _) = time(after)?;
        let mut parts =
            Self { not_before, not_after, common_name: common_name(subject)?, has_alt_names: false, for_servers: true };
        if !rest.is_empty() {
            let (extensions, _) = element(rest, EXTENSIONS)?;
            parts.read(element(extensions, SEQUENCE)?.0)?;
        }
        Some(parts)
    }

    fn read(&mut self, mut extensions: &[u8]) -> Option<()> {
        while !extensions.is_empty() {
            // Extension ::= SEQUENCE { extnID OID, critical BOOLEAN DEFAULT FALSE, extnValue OCTET STRING }
            let (extension, rest) = element(extensions, SEQUENCE)?;
            let (id, value) = element(extension, OBJECT_IDENTIFIER)?;
            let (value, _) = element(without(value, BOOLEAN), OCTET_STRING)?;
            self.has_alt_names |= id == SUBJECT_ALT_NAME;
            if id == EXTENDED_KEY_USAGE {
                let (mut usages, _) = element(value, SEQUENCE)?;
                self.for_servers = false;
                while !usages.is_empty() {
                    let (usage, others) = element(usages, OBJECT_IDENTIFIER)?;
                    self.for_servers |= usage == SERVER_AUTH || usage == ANY_USAGE;
                    usages = others;
                }
            }
            extensions = rest;
        }
        Some(())
    }
}

/// Returns the first common name; the outer `None` says that the name is malformed.
#[expect(clippy::option_option, reason = "a malformed name is not one without a common name")]
fn common_name(mut name: &[u8]) -> Option<Option<&[u8]>> {
    while !name.is_empty() {
        let (mut set, rest) = element(name, SET)?;
        while !set.is_empty() {
            let (attribute, others) = element(set, SEQUENCE)?;
            let (kind, value) = element(attribute, OBJECT_IDENTIFIER)?;
            if kind == COMMON_NAME {
                return any(value).map(|(_, text, _)| Some(text));
            }
            set = others;
        }
        name = rest;
    }
    Some(None)
}

/// Reads `YYMMDDHHMMSSZ` or `YYYYMMDDHHMMSSZ` off the front of `bytes`.
fn time(bytes: &[u8]) -> Option<(DateTime<Utc>, &[u8])> {
    let (tag, text, rest) = any(bytes)?;
    let digits = std::str::from_utf8(text.strip_suffix(b"Z")?).ok()?;
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let (year, digits) = match tag {
        UTC_TIME => {
            let (year, digits) = digits.split_at_checked(2)?;
            let year: i32 = year.parse().ok()?;
            // RFC 5280 § 4.1.2.5.1
            (if year < 50 { 2000 + year } else { 1900 + year }, digits)
        }
        GENERALIZED_TIME => {
            let (year, digits) = digits.split_at_checked(4)?;
            (year.parse().ok()?, digits)
        }
        _ => return None,
    };
    if digits.len() != 10 {
        return None;
    }
    let part = |at: usize| digits.get(at..at + 2)?.parse::<u32>().ok();
    let day = NaiveDate::from_ymd_opt(year, part(0)?, part(2)?)?;
    Some((day.and_hms_opt(part(4)?, part(6)?, part(8)?)?.and_utc(), rest))
}

fn without(bytes: &[u8], tag: u8) -> &[u8] {
    element(bytes, tag).map_or(bytes, |(_, rest)| rest)
}

/// Splits the DER element with `tag` off the front of `bytes`: its contents, and what follows.
pub(super) fn element(bytes: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    any(bytes).filter(|(found, ..)| *found == tag).map(|(_, contents, rest)| (contents, rest))
}

/// Splits a DER element off the front of `bytes`: its tag, its contents, and what follows.
fn any(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = bytes.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = if first < 0x80 {
        (usize::from(first), rest)
    } else {
        let (digits, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
        if digits.is_empty() || digits.len() > 4 {
            return None;
        }
        (digits.iter().fold(0usize, |n, &d| n << 8 | usize::from(d)), rest)
    };
    rest.split_at_checked(length).map(|(contents, rest)| (tag, contents, rest))
}

#[cfg(test)]
mod tests {
    use rustls_pki_types::CertificateDer;
    use rustls_pki_types::pem::PemObject;

    use super::*;

    fn der(pem: &[u8]) -> CertificateDer<'static> {
        CertificateDer::from_pem_slice(pem).unwrap()
    }

    #[test]
    fn a_certificate_says_when_and_for_whom_it_is() {
        let plain = der(include_bytes!("../../../../tests/it/wire/tls/self-signed.pem"));
        let parts = Parts::of(&plain).unwrap();
        assert_eq!(parts.common_name, Some(&b"localhost"[..]));
        assert!(!parts.has_alt_names && parts.for_servers, "{parts:?}");
        assert_eq!((parts.not_after - parts.not_before).num_days(), 36_500);

        let named = der(include_bytes!("../../../../tests/it/wire/tls/self-signed-names.pem"));
        assert!(Parts::of(&named).unwrap().has_alt_names);
        let client = der(include_bytes!("../../../../tests/it/wire/tls/self-signed-client.pem"));
        assert!(!Parts::of(&client).unwrap().for_servers);
    }

    #[test]
    fn no_certificate_that_is_cut_off_or_changed_brings_the_reader_down() {
        let whole = der(include_bytes!("../../../../tests/it/wire/tls/self-signed-names.pem"));
        for length in 0..whole.len() {
            assert_eq!(Parts::of(&whole[..length]), None, "{length}");
        }
        for at in 0..whole.len() {
            for byte in [0, 0x7f, 0x80, 0x84, 0xff] {
                let mut changed = whole.to_vec();
                changed[at] = byte;
                Parts::of(&changed);
            }
        }
    }

    #[test]
    fn both_kinds_of_time_are_read_and_no_others() {
        let read = |tag: u8, text: &str| {
            let length = u8::try_from(text.len()).unwrap();
            let bytes = [&[tag, length], text.as_bytes()].concat();
            time(&bytes).map(|(time, _)| time.to_rfc3339())
        };
        assert_eq!(read(UTC_TIME, "491231235959Z").as_deref(), Some("2049-12-31T23:59:59+00:00"));
        assert_eq!(read(UTC_TIME, "500101000000Z").as_deref(), Some("1950-01-01T00:00:00+00:00"));
        assert_eq!(read(GENERALIZED_TIME, "21261106183348Z").as_deref(), Some("2126-11-06T18:33:48+00:00"));
        for (tag, text) in [
            (UTC_TIME, "4912312359Z"),
            (UTC_TIME, "491231235959"),
            (UTC_TIME, "491331235959Z"),
            (UTC_TIME, "49123123595+Z"),
            (GENERALIZED_TIME, "20491231235959.5Z"),
            (INTEGER, "491231235959Z"),
        ] {
            assert_eq!(read(tag, text), None, "{text}");
        }
    }
}
