//! Knows the functions of Postgres 15 by name: how volatile they are and what they may do.
//!
//! A name is all there is: an overload that a user made of a listed name passes for the listed function. Functions
//! that later versions added are unknown here.

use std::collections::HashMap;
use std::sync::LazyLock;

use crate::model::Traits;

/// What is known of a function's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Function {
    /// Whether any of the functions of this name is volatile.
    pub(super) volatile: bool,
    /// Whether all of them leave the database and the server as they are.
    pub(super) read_only: bool,
    /// What calling it says of a statement.
    pub(super) traits: Traits,
}

/// Looks a function of `pg_catalog` up by its folded name.
pub(super) fn built_in(name: &str) -> Option<Function> {
    BUILT_IN.get(name).copied()
}

/// Returns what is said of a statement by a call of a function outside `pg_catalog`, from its name.
pub(super) fn foreign_traits(name: &str) -> Traits {
    let mut traits = Traits::UNKNOWN_FUNCTION;
    if name.starts_with("dblink") {
        traits.insert(Traits::NETWORK);
        traits.insert(Traits::DYNAMIC_SQL);
    }
    if name.starts_with("postgres_fdw") {
        traits.insert(Traits::NETWORK);
    }
    traits
}

/// Returns whether an unquoted name before a parenthesis, or alone, is an expression of the grammar's own.
pub(super) fn is_construct(name: &str) -> bool {
    CONSTRUCTS.contains(&name)
}

/// Expressions that look like calls and are none of `pg_proc`, as long as their names are not quoted.
const CONSTRUCTS: &[&str] = &[
    "array",
    "cast",
    "coalesce",
    "collation",
    "current_catalog",
    "current_date",
    "current_role",
    "current_schema",
    "current_time",
    "current_timestamp",
    "current_user",
    "exists",
    "extract",
    "greatest",
    "grouping",
    "least",
    "localtime",
    "localtimestamp",
    "normalize",
    "nullif",
    "overlay",
    "position",
    "row",
    "session_user",
    "substring",
    "trim",
    "user",
    "xmlconcat",
    "xmlelement",
    "xmlexists",
    "xmlforest",
    "xmlparse",
    "xmlpi",
    "xmlroot",
    "xmlserialize",
];

/// One function a line: name, volatilities of its overloads (`i`, `s`, `v`), category; sorted by name.
const TABLE: &str = include_str!("functions-pg15.tsv");

static BUILT_IN: LazyLock<HashMap<&'static str, Function>> =
    LazyLock::new(|| TABLE.lines().filter_map(entry).collect());

fn entry(line: &'static str) -> Option<(&'static str, Function)> {
    let mut fields = line.split('\t');
    let (name, volatility, category) = (fields.next()?, fields.next()?, fields.next()?);
    let mut traits = Traits::default();
    let volatile = volatility.contains('v');
    if volatile {
        traits.insert(Traits::VOLATILE_FUNCTION);
    }
    match category {
        "file" => traits.insert(Traits::SERVER_FILE),
        "runs_sql_string" => traits.insert(Traits::DYNAMIC_SQL),
        _ => {}
    }
    match name {
        "set_config" => traits.insert(Traits::SESSION_SETTING),
        "lo_import" | "lo_export" => traits.insert(Traits::SERVER_FILE),
        _ => {}
    }
    Some((name, Function { volatile, read_only: matches!(category, "pure" | "safe_volatile"), traits }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted_and_every_line_is_read() {
        let names: Vec<_> = TABLE.lines().filter_map(|line| line.split('\t').next()).collect();
        assert!(names.is_sorted());
        assert_eq!(names.len(), BUILT_IN.len());
        assert_eq!(names.len(), 2646);
    }

    #[test]
    fn functions_with_side_effects_are_not_read_only() {
        for name in ["nextval", "set_config", "pg_notify", "lo_import", "pg_sleep", "pg_read_file", "query_to_xml"] {
            assert!(!built_in(name).unwrap().read_only, "{name}");
        }
        for name in ["lower", "count", "now", "random", "pg_typeof", "generate_series"] {
            assert!(built_in(name).unwrap().read_only, "{name}");
        }
    }
}
