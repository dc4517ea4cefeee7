//! What a server says: the fields of errors and notices, and the pieces messages are made of.
//!
//! Bodies that were cut at a limit are read as far as they go.

use std::fmt;

/// The longest field of an error or notice that is kept, in bytes: a page of text; the rest says nothing new.
pub(super) const FIELD_BYTES_MAX: usize = 8 << 10;

/// Text that belongs to the caller: readable on purpose, never by accident.
///
/// It may hold literals of the caller's SQL, so `Debug` shows only its length.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct CallerText(String);

impl CallerText {
    /// Wraps a text of the caller's.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Returns the text, to be given to the caller and nobody else.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for CallerText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CallerText({} bytes)", self.0.len())
    }
}

/// A notice that a statement raised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// `NOTICE`, `WARNING` and so on.
    pub severity: String,
    /// The five-character code.
    pub sqlstate: String,
    /// What it says.
    pub message: CallerText,
    /// Details, where there are any.
    pub detail: Option<CallerText>,
    /// What the server advises.
    pub hint: Option<CallerText>,
}

/// The fields of an error or notice (protocol, "Error and Notice Message Fields").
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Fields {
    pub(super) severity: String,
    pub(super) sqlstate: String,
    pub(super) message: CallerText,
    pub(super) detail: Option<CallerText>,
    pub(super) hint: Option<CallerText>,
    pub(super) context: Option<CallerText>,
    pub(super) position: Option<u32>,
    pub(super) schema: Option<CallerText>,
    pub(super) table: Option<CallerText>,
    pub(super) column: Option<CallerText>,
    pub(super) data_type: Option<CallerText>,
    pub(super) constraint: Option<CallerText>,
}

impl Fields {
    /// Reads the fields in `body`, which may be cut off anywhere.
    pub(super) fn read(body: &[u8]) -> Self {
        let mut fields = Self { sqlstate: "XX000".into(), ..Self::default() };
        let mut rest = Pieces(body);
        while let Some(kind @ 1..) = rest.u8() {
            // A field without an end is the last: the body was cut in it.
            let value = rest.cstr().unwrap_or_else(|| std::mem::take(&mut rest.0));
            let text = || Some(CallerText(lossy(value, FIELD_BYTES_MAX)));
            match kind {
                b'S' if fields.severity.is_empty() => fields.severity = word(value),
                b'V' => fields.severity = word(value),
                b'C' => fields.sqlstate = word(value),
                b'M' => fields.message = text().unwrap_or_default(),
                b'D' => fields.detail = text(),
                b'H' => fields.hint = text(),
                b'W' => fields.context = text(),
                b'P' => fields.position = std::str::from_utf8(value).ok().and_then(|p| p.parse().ok()),
                b's' => fields.schema = text(),
                b't' => fields.table = text(),
                b'c' => fields.column = text(),
                b'd' => fields.data_type = text(),
                b'n' => fields.constraint = text(),
                _ => {}
            }
        }
        fields
    }
}

impl From<Fields> for Notice {
    fn from(fields: Fields) -> Self {
        let Fields { severity, sqlstate, message, detail, hint, .. } = fields;
        Self { severity, sqlstate, message, detail, hint }
    }
}

/// Keeps the letters and digits of a code or severity, which is all they may have.
fn word(value: &[u8]) -> String {
    value.iter().filter(|b| b.is_ascii_alphanumeric()).take(16).map(|&b| char::from(b)).collect()
}

/// Decodes at most `bytes_max` bytes, cut on a character border; what is not UTF-8 is replaced.
pub(super) fn lossy(value: &[u8], bytes_max: usize) -> String {
    let cut = value.get(..bytes_max).unwrap_or(value);
    let mut text = String::from_utf8_lossy(cut).into_owned();
    if cut.len() < value.len() {
        text.truncate(text.trim_end_matches('\u{fffd}').len());
        text.push('…');
    }
    text
}

/// Takes pieces off the front of a message; `None` where it is too short.
pub(super) struct Pieces<'a>(pub(super) &'a [u8]);

impl<'a> Pieces<'a> {
    pub(super) fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[b]| b)
    }

    pub(super) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    pub(super) fn i16(&mut self) -> Option<i16> {
        self.array().map(i16::from_be_bytes)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    pub(super) fn i32(&mut self) -> Option<i32> {
        self.array().map(i32::from_be_bytes)
    }

    /// Takes a text that ends in a zero byte, and the zero byte.
    pub(super) fn cstr(&mut self) -> Option<&'a [u8]> {
        let end = self.0.iter().position(|&b| b == 0)?;
        let (text, rest) = self.0.split_at_checked(end)?;
        self.0 = rest.get(1..)?;
        Some(text)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (piece, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*piece)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_of_an_error_are_read() {
        let fields = Fields::read(b"SFEHLER\0VERROR\0C23505\0Mdoppelt\0DKey (id)=(1)\0P17\0nt_pkey\0\0");
        assert_eq!((fields.severity.as_str(), fields.sqlstate.as_str()), ("ERROR", "23505"));
        assert_eq!(fields.message.expose(), "doppelt");
        assert_eq!(fields.position, Some(17));
        assert_eq!(fields.constraint, Some(CallerText::new("t_pkey")));
        assert_eq!(fields.hint, None);
    }

    #[test]
    fn a_body_that_is_cut_is_read_as_far_as_it_goes() {
        let fields = Fields::read(b"VERROR\0C22001\0Mvalue too lo");
        assert_eq!((fields.sqlstate.as_str(), fields.message.expose()), ("22001", "value too lo"));
        assert_eq!(Fields::read(b"").sqlstate, "XX000");
        let endless = vec![b'M'; super::super::connection::TEXT_BYTES_MAX];
        assert_eq!(Fields::read(&endless).message.expose().len(), FIELD_BYTES_MAX + '…'.len_utf8(), "read once");
    }

    #[test]
    fn a_code_cannot_carry_text() {
        assert_eq!(Fields::read(b"C42\n\x1b[31m; DROP TABLE everything\0\0").sqlstate, "4231mDROPTABLEev");
    }

    #[test]
    fn a_long_field_is_cut_on_a_character_border() {
        let text = lossy("漢".repeat(10).as_bytes(), 8);
        assert_eq!(text, "漢漢…");
    }

    #[test]
    fn the_callers_text_is_not_printed() {
        let notice = Notice::from(Fields::read(b"VNOTICE\0C00000\0Mpassword hunter2\0\0"));
        assert!(!format!("{notice:?}").contains("hunter2"));
    }
}
