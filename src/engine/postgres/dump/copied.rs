//! Which table a program has rows copied of, by the statement that it sends for it: a server that cannot write a row says
//! why, and not of which table.

/// Returns the table, as SQL names it, whose rows a message asks for; `None` if it asks for something else.
pub(super) fn table(message: &[u8]) -> Option<String> {
    const TAG_AND_LENGTH: usize = 5;
    let statement = message.strip_prefix(b"Q").and_then(|_| message.get(TAG_AND_LENGTH..))?;
    let named = String::from_utf8_lossy(statement.strip_prefix(b"COPY ")?);
    let mut is_quoted = false;
    let end = named.find(|c| {
        is_quoted ^= c == '"';
        c == ' ' && !is_quoted
    })?;
    let name = named.get(..end).filter(|name| !name.starts_with('('))?;
    // Two names of 63 bytes, with their quotes.
    Some(name.chars().take(131).flat_map(char::escape_default).collect::<String>().replace("\\\"", "\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_known_by_the_statement_that_copies_it() {
        let check = |tag: u8, text: &str, expected: Option<&str>| {
            let length = u32::try_from(text.len() + 5).unwrap().to_be_bytes();
            let message = [&[tag], length.as_slice(), text.as_bytes(), b"\0"].concat();
            assert_eq!(table(&message).as_deref(), expected, "{text}");
        };
        check(b'Q', "COPY public.t (a, b) TO stdout;", Some("public.t"));
        check(b'Q', "COPY public.\"My \"\"t\" (\"a b\") TO stdout;", Some("public.\"My \"\"t\""));
        check(b'Q', "COPY (SELECT a FROM public.t) TO stdout;", None);
        check(b'Q', "SELECT 1", None);
        check(b'd', "COPY public.t (a) TO stdout;", None);
        assert_eq!(table(b"Q"), None);
    }
}
