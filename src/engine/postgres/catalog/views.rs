//! Writes a view's definition as later servers do, so that the same view has the same text on all.
//!
//! Until 15 every column in a view's query is written with its relation; since 16 those of a query with one relation are
//! written without, unless it is within another. So where the outermost query of an earlier server's text has one relation,
//! its name is taken from before its columns, and nothing else is touched.

/// The first major that writes so by itself.
pub(super) const UNQUALIFIED_SINCE: u16 = 16;

/// Words that end a list of relations.
const AFTER_FROM: [&str; 9] = ["WHERE", "GROUP", "HAVING", "WINDOW", "ORDER", "LIMIT", "OFFSET", "FETCH", "FOR"];
/// Words that put queries together.
const BETWEEN_QUERIES: [&str; 3] = ["UNION", "INTERSECT", "EXCEPT"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sort {
    /// A name, in quotes or not, or a keyword.
    Word,
    /// A character by itself.
    Sign,
    /// Anything else: blanks, strings, numbers.
    Other,
}

#[derive(Clone, Copy, Debug)]
struct Token<'a> {
    text: &'a str,
    sort: Sort,
    /// How many parentheses it is in.
    depth: usize,
    /// Whether it is in a query within the query.
    within: bool,
}

/// Returns the definition without its one relation's name before columns.
pub(super) fn unqualified(definition: &str) -> String {
    let tokens = tokens(definition);
    let Some(relation) = one_relation(&tokens) else { return definition.to_owned() };
    let from = from_clause(&tokens).unwrap_or(0..0);
    let mut out = String::with_capacity(definition.len());
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        let is = |ahead: usize, text: &str| tokens.get(at + ahead).is_some_and(|token| token.text == text);
        let column = tokens.get(at + 2).is_some_and(|token| token.sort == Sort::Word);
        let first = at == 0 || tokens.get(at - 1).is_none_or(|before| before.text != ".");
        let qualifies =
            token.sort == Sort::Word && token.text == relation && first && is(1, ".") && column && !is(3, "(");
        if qualifies && !token.within && !from.contains(&at) {
            at += 2;
        } else {
            out.push_str(token.text);
            at += 1;
        }
    }
    out
}

/// Returns the name by which the outermost query knows its relation, if it has one only.
fn one_relation<'a>(tokens: &[Token<'a>]) -> Option<&'a str> {
    if tokens.iter().any(|token| token.depth == 0 && BETWEEN_QUERIES.contains(&token.text)) {
        return None;
    }
    let clause = tokens.get(from_clause(tokens)?)?;
    let several = |token: &Token<'_>| !token.within && (token.text == "JOIN" || token.depth == 0 && token.text == ",");
    if clause.iter().any(several) {
        return None;
    }
    let named = clause.iter().take_while(|token| token.text != "TABLESAMPLE");
    named.filter(|token| token.depth == 0 && token.sort == Sort::Word).last().map(|token| token.text)
}

/// Returns where the outermost query's relations stand.
fn from_clause(tokens: &[Token<'_>]) -> Option<std::ops::Range<usize>> {
    let outermost = |token: &Token<'_>| token.depth == 0;
    let begin = tokens.iter().position(|token| outermost(token) && token.text == "FROM")? + 1;
    let ends = |token: &Token<'_>| outermost(token) && (token.text == ";" || AFTER_FROM.contains(&token.text));
    let length = tokens.get(begin..)?.iter().position(ends).unwrap_or(tokens.len() - begin);
    Some(begin..begin + length)
}

/// Cuts a definition into tokens that together are the whole of it.
fn tokens(text: &str) -> Vec<Token<'_>> {
    let mut tokens: Vec<Token<'_>> = Vec::new();
    // For each parenthesis that is open, whether there is a query in it or around it.
    let mut open: Vec<bool> = Vec::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let (length, sort) = match c {
            '\'' => (quoted(rest, '\''), Sort::Other),
            '"' => (quoted(rest, '"'), Sort::Word),
            c if is_name(c) && !c.is_ascii_digit() => (run(rest, is_name), Sort::Word),
            c if c.is_ascii_digit() => (run(rest, |c| is_name(c) || c == '.'), Sort::Other),
            c if c.is_whitespace() => (run(rest, char::is_whitespace), Sort::Other),
            c => (c.len_utf8(), Sort::Sign),
        };
        let (token, behind) = rest.split_at(length.min(rest.len()));
        rest = behind;
        if token == ")" {
            open.pop();
        }
        tokens.push(Token { text: token, sort, depth: open.len(), within: open.last().copied().unwrap_or(false) });
        if token == "(" {
            let first = rest.trim_start();
            let query = ["SELECT", "WITH", "VALUES"].iter().any(|word| first.starts_with(word));
            open.push(query || open.last().copied().unwrap_or(false));
        }
    }
    tokens
}

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '$'
}

fn run(text: &str, is: impl Fn(char) -> bool) -> usize {
    text.find(|c: char| !is(c)).unwrap_or(text.len())
}

/// Returns the length of what is in quotes, with them; a doubled quote is one within.
fn quoted(text: &str, quote: char) -> usize {
    let mut at = quote.len_utf8();
    while let Some(found) = text.get(at..).and_then(|rest| rest.find(quote)) {
        at += found + 1;
        if !text.get(at..).is_some_and(|rest| rest.starts_with(quote)) {
            return at;
        }
        at += 1;
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::unqualified;

    fn check(before: &str, after: &str) {
        assert_eq!(unqualified(before), after);
    }

    #[test]
    fn the_only_relation_is_not_named_before_its_columns() {
        check(
            " SELECT t.a,\n    upper(t.b) AS b\n   FROM public.t\n  WHERE (t.a > 1)\n  GROUP BY t.a;",
            " SELECT a,\n    upper(b) AS b\n   FROM public.t\n  WHERE (a > 1)\n  GROUP BY a;",
        );
        check(" SELECT x.\"A b\" FROM public.t x;", " SELECT \"A b\" FROM public.t x;");
        check(" SELECT \"a\"\"b\".c FROM s.\"a\"\"b\";", " SELECT c FROM s.\"a\"\"b\";");
    }

    #[test]
    fn strings_whole_rows_and_functions_are_left() {
        check(
            " SELECT 't.a'::text AS x,\n    t.*::t AS y,\n    t.f(t.a) AS z\n   FROM t;",
            " SELECT 't.a'::text AS x,\n    t.*::t AS y,\n    t.f(a) AS z\n   FROM t;",
        );
    }

    #[test]
    fn of_several_relations_each_stays() {
        for kept in [
            " SELECT a.x, b.y FROM (a JOIN b ON ((a.x = b.x)));",
            " SELECT a.x FROM a, b;",
            " SELECT a.x FROM a UNION SELECT b.x FROM b;",
        ] {
            check(kept, kept);
        }
    }

    #[test]
    fn a_query_within_names_its_own() {
        check(
            " SELECT q.n FROM ( SELECT t.n FROM public.t) q WHERE (EXISTS ( SELECT 1 FROM u WHERE (u.n = q.n)));",
            " SELECT n FROM ( SELECT t.n FROM public.t) q WHERE (EXISTS ( SELECT 1 FROM u WHERE (u.n = q.n)));",
        );
        check(
            " WITH q AS ( SELECT t.n FROM t ) SELECT q.n FROM q;",
            " WITH q AS ( SELECT t.n FROM t ) SELECT n FROM q;",
        );
    }
}
