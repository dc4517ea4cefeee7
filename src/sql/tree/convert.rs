//! Turns our tokens into the parser's, and mends what the parser's grammar lacks.
//!
//! Every change leaves the meaning for relations and functions as it is. Literals become `x` or `1`: the parser
//! decides nothing by them, and no tree or error of its can then hold one.

use sqlparser::tokenizer::Token as P;

use super::super::scanner::TokenKind;
use super::super::words::{Words, unquote};

/// Converts a statement, or `None` if it has what no statement has.
pub(super) fn tokens(words: &Words<'_>) -> Option<Vec<P>> {
    let mut out = Vec::with_capacity(words.len() + 8);
    let mut index = 0;
    while index < words.len() {
        if let Some(next) = mend(words, index, &mut out) {
            index = next;
            continue;
        }
        out.push(token(words, index)?);
        index += 1;
    }
    Some(out)
}

/// Replaces what stands at `index` if the parser would not understand it; returns where to go on.
fn mend(words: &Words<'_>, index: usize, out: &mut Vec<P>) -> Option<usize> {
    let initial = words.word(index).as_bytes().first()?.to_ascii_uppercase();
    match initial {
        // `TABLE t` is `SELECT * FROM t`.
        b'T' if words.is(index, "TABLE") && begins_query(words, index) => {
            out.extend([P::make_keyword("SELECT"), P::Mul, P::make_keyword("FROM")]);
            Some(index + 1)
        }
        // The ends of a range in either order.
        b'S' | b'A'
            if words.is_any(index, &["SYMMETRIC", "ASYMMETRIC"]) && index > 0 && words.is(index - 1, "BETWEEN") =>
        {
            Some(index + 1)
        }
        // The escape character of a Unicode literal.
        b'U' if words.is(index, "UESCAPE") && words.has(index + 1, TokenKind::String) => Some(index + 2),
        // Columns that are computed when they are read, and keys over time.
        b'V' if words.is(index, "VIRTUAL") && index > 0 && words.has(index - 1, TokenKind::CloseParen) => {
            out.push(P::make_keyword("STORED"));
            Some(index + 1)
        }
        // Whether a new table or view is filled at once.
        b'W' if words.is(0, "CREATE")
            && (words.are(index, &["WITH", "NO", "DATA"]) && index + 3 == words.len()
                || words.are(index, &["WITH", "DATA"]) && index + 2 == words.len()) =>
        {
            Some(words.len())
        }
        b'W' if words.are(index, &["WITHOUT", "OVERLAPS"]) && words.has(index + 2, TokenKind::CloseParen) => {
            Some(index + 2)
        }
        b'P' if words.is(index, "PERIOD")
            && index > 0
            && words.has(index - 1, TokenKind::Comma)
            && words.is_name(index + 1)
            && words.has(index + 2, TokenKind::CloseParen) =>
        {
            Some(index + 1)
        }
        // The order in which a recursive query is walked names columns only.
        b'S' if words.is(index, "SEARCH")
            && words.is_any(index + 1, &["DEPTH", "BREADTH"])
            && words.are(index + 2, &["FIRST", "BY"])
            && index > 0
            && words.has(index - 1, TokenKind::CloseParen) =>
        {
            let set = (index + 4..words.len())
                .take_while(|at| words.is_name(*at) || words.has(*at, TokenKind::Comma))
                .find(|at| words.is(*at, "SET"))?;
            words.is_name(set + 1).then_some(set + 2)
        }
        // So does what stops it at a circle, besides constants.
        b'C' if words.is(index, "CYCLE")
            && index > 1
            && (words.has(index - 1, TokenKind::CloseParen) || words.is(index - 2, "SET")) =>
        {
            after_cycle(words, index + 1)
        }
        // The last argument is a list of arguments; a reserved word.
        b'V' if words.is(index, "VARIADIC")
            && index > 0
            && matches!(words.kind(index - 1), Some(TokenKind::OpenParen | TokenKind::Comma))
            && !matches!(words.kind(index + 1), Some(TokenKind::CloseParen | TokenKind::Comma) | None) =>
        {
            Some(index + 1)
        }
        // Rows that a window leaves out.
        b'E' if words.is(index, "EXCLUDE")
            && index > 0
            && words.is_any(index - 1, &["ROW", "PRECEDING", "FOLLOWING"]) =>
        {
            let excluded: [&[&str]; 4] = [&["CURRENT", "ROW"], &["GROUP"], &["TIES"], &["NO", "OTHERS"]];
            let excluded = excluded.iter().find(|excluded| words.are(index + 1, excluded))?;
            let after = index + 1 + excluded.len();
            words.has(after, TokenKind::CloseParen).then_some(after)
        }
        // A name in XML is no column.
        b'N' if words.is(index, "NAME")
            && index > 1
            && words.has(index - 1, TokenKind::OpenParen)
            && words.is_any(index - 2, &["XMLELEMENT", "XMLPI"])
            && words.is_name(index + 1)
            && matches!(words.kind(index + 2), Some(TokenKind::CloseParen | TokenKind::Comma)) =>
        {
            out.push(P::SingleQuotedString("x".to_owned()));
            Some(index + 2)
        }
        b'D' if words.is(index, "DOCUMENT")
            && index > 0
            && (words.is(index - 1, "IS") || (index > 1 && words.are(index - 2, &["IS", "NOT"]))) =>
        {
            out.push(P::make_keyword("NULL"));
            Some(index + 1)
        }
        _ => None,
    }
}

/// Returns where `CYCLE columns SET column [TO constant DEFAULT constant] USING column` ends.
fn after_cycle(words: &Words<'_>, columns: usize) -> Option<usize> {
    let is_list = |at: &usize| words.is_name(*at) || words.has(*at, TokenKind::Comma);
    let set = (columns..words.len()).take_while(is_list).find(|at| words.is(*at, "SET"))?;
    let constant = |at: usize| match words.kind(at)? {
        TokenKind::String | TokenKind::Number => Some(at + 1),
        TokenKind::Word if words.is_any(at, &["TRUE", "FALSE", "NULL"]) => Some(at + 1),
        _ => None,
    };
    let mut using = set + 2;
    if words.is(using, "TO") {
        let default = constant(using + 1)?;
        if !words.is(default, "DEFAULT") {
            return None;
        }
        using = constant(default + 1)?;
    }
    (words.is_name(set + 1) && words.is(using, "USING") && words.is_name(using + 1)).then_some(using + 2)
}

fn begins_query(words: &Words<'_>, index: usize) -> bool {
    if !words.is_name(index + 1) {
        return false;
    }
    let Some(before) = index.checked_sub(1) else { return true };
    match words.kind(before) {
        Some(TokenKind::OpenParen | TokenKind::CloseParen) => true,
        Some(TokenKind::Word) => {
            words.is_any(before, &["UNION", "EXCEPT", "INTERSECT", "AS"])
                || (words.is_any(before, &["ALL", "DISTINCT"])
                    && before > 0
                    && words.is_any(before - 1, &["UNION", "EXCEPT", "INTERSECT"]))
        }
        _ => false,
    }
}

fn token(words: &Words<'_>, index: usize) -> Option<P> {
    let text = words.text(index);
    let blank = || "x".to_owned();
    Some(match words.kind(index)? {
        TokenKind::Word => P::make_word(text, None),
        TokenKind::QuotedName => P::make_word(&unquote(text), Some('"')),
        // Its name is not known; the verdict never trusts a statement that has one.
        TokenKind::UnicodeName => P::make_word(text, Some('"')),
        TokenKind::String => match text.as_bytes().first() {
            Some(b'e' | b'E') => P::EscapedStringLiteral(blank()),
            Some(b'b' | b'B') => P::SingleQuotedByteStringLiteral(blank()),
            Some(b'x' | b'X') => P::HexStringLiteral(blank()),
            Some(b'n' | b'N') => P::NationalStringLiteral(blank()),
            _ => P::SingleQuotedString(blank()),
        },
        TokenKind::UnicodeString => P::UnicodeStringLiteral(blank()),
        TokenKind::DollarString => P::SingleQuotedString(blank()),
        TokenKind::Number => P::Number("1".to_owned(), false),
        TokenKind::Parameter => P::Placeholder("$1".to_owned()),
        TokenKind::Operator => operator(text),
        TokenKind::OpenParen => P::LParen,
        TokenKind::CloseParen => P::RParen,
        TokenKind::OpenBracket => P::LBracket,
        TokenKind::CloseBracket => P::RBracket,
        TokenKind::Comma => P::Comma,
        TokenKind::Semicolon => P::SemiColon,
        TokenKind::Dot => P::Period,
        TokenKind::Colon => P::Colon,
        TokenKind::Cast => P::DoubleColon,
        TokenKind::Assign => P::Assignment,
        TokenKind::Arrow => P::RArrow,
        TokenKind::DotDot | TokenKind::Backslash | TokenKind::Other | TokenKind::Space | TokenKind::Comment => {
            return None;
        }
    })
}

fn operator(text: &str) -> P {
    match text {
        "=" => P::Eq,
        "<>" | "!=" => P::Neq,
        "<" => P::Lt,
        ">" => P::Gt,
        "<=" => P::LtEq,
        ">=" => P::GtEq,
        "<=>" => P::Spaceship,
        "+" => P::Plus,
        "-" => P::Minus,
        "*" => P::Mul,
        "/" => P::Div,
        "%" => P::Mod,
        "||" => P::StringConcat,
        "&" => P::Ampersand,
        "|" => P::Pipe,
        "^" => P::Caret,
        "#" => P::Sharp,
        "##" => P::DoubleSharp,
        "~" => P::Tilde,
        "~*" => P::TildeAsterisk,
        "!~" => P::ExclamationMarkTilde,
        "!~*" => P::ExclamationMarkTildeAsterisk,
        "~~" => P::DoubleTilde,
        "~~*" => P::DoubleTildeAsterisk,
        "!~~" => P::ExclamationMarkDoubleTilde,
        "!~~*" => P::ExclamationMarkDoubleTildeAsterisk,
        "<<" => P::ShiftLeft,
        ">>" => P::ShiftRight,
        "&&" => P::Overlap,
        "!" => P::ExclamationMark,
        "!!" => P::DoubleExclamationMark,
        "@" => P::AtSign,
        "^@" => P::CaretAt,
        "|/" => P::PGSquareRoot,
        "||/" => P::PGCubeRoot,
        "->" => P::Arrow,
        "->>" => P::LongArrow,
        "#>" => P::HashArrow,
        "#>>" => P::HashLongArrow,
        "@-@" => P::AtDashAt,
        "?-" => P::QuestionMarkDash,
        "&<" => P::AmpersandLeftAngleBracket,
        "&>" => P::AmpersandRightAngleBracket,
        "&<|" => P::AmpersandLeftAngleBracketVerticalBar,
        "|&>" => P::VerticalBarAmpersandRightAngleBracket,
        "<->" => P::TwoWayArrow,
        "<^" => P::LeftAngleBracketCaret,
        ">^" => P::RightAngleBracketCaret,
        "?#" => P::QuestionMarkSharp,
        "?-|" => P::QuestionMarkDashVerticalBar,
        "?||" => P::QuestionMarkDoubleVerticalBar,
        "~=" => P::TildeEqual,
        "<<|" => P::ShiftLeftVerticalBar,
        "|>>" => P::VerticalBarShiftRight,
        "@>" => P::AtArrow,
        "<@" => P::ArrowAt,
        "#-" => P::HashMinus,
        "@?" => P::AtQuestion,
        "@@" => P::AtAt,
        "?" => P::Question,
        "?&" => P::QuestionAnd,
        "?|" => P::QuestionPipe,
        _ => P::CustomBinaryOperator(text.to_owned()),
    }
}
