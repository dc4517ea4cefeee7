//! Compares how texts are sorted at a source with how a sandbox's server sorts them.

use std::sync::Arc;

use crate::engine::EngineError;
use crate::engine::postgres::admin::refused;
use crate::engine::postgres::server::PostgresServer;

/// The longest name of a locale that is shown.
const SHOWN_CHARS_MAX: usize = 32;

/// The locale of a database `d`. Where it is in the catalogue changed from major to major.
pub(super) const LOCALE: &str = "CASE WHEN pg_catalog.to_jsonb(d) ->> 'datlocprovider' = 'i' THEN 'icu:' ELSE '' END || \
     coalesce(pg_catalog.to_jsonb(d) ->> 'datlocale', pg_catalog.to_jsonb(d) ->> 'daticulocale', d.datcollate::text)";

/// Says that a source sorts otherwise than a sandbox will.
pub(super) async fn difference(server: &Arc<PostgresServer>, source: &str) -> Result<Option<String>, EngineError> {
    // What sandboxes are made of, in UTF-8 or else in the one locale that fits it.
    let sql = format!(
        "SELECT CASE WHEN d.encoding = pg_catalog.pg_char_to_encoding('UTF8') THEN {LOCALE} ELSE 'C' END \
         FROM pg_catalog.pg_database d WHERE d.datname = 'template0'"
    );
    let session = server.admin_session().await?;
    let row = session.query_one(sql.as_str(), &[]).await;
    let ours: String = row.map_err(refused("describe template0", &server.settings().profile))?.get(0);
    if sorted_by(source) == sorted_by(&ours) {
        return Ok(None);
    }
    let shown = |locale: &str| locale.chars().take(SHOWN_CHARS_MAX).flat_map(char::escape_default).collect::<String>();
    Ok(Some(format!(
        "the source's default collation is `{}`, the sandbox's is `{}`: texts may sort otherwise",
        shown(source),
        shown(&ours)
    )))
}

/// Returns a locale without what says nothing of the order: `C.UTF-8` sorts as `C` does, `en_US.UTF-8` is `en_US.utf8`.
fn sorted_by(locale: &str) -> String {
    let locale = locale.to_ascii_lowercase().replace("utf-8", "utf8");
    match locale.as_str() {
        "posix" | "c" | "c.utf8" => "c".to_owned(),
        _ => locale,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locales_are_compared_by_how_they_sort() {
        for (one, other, same) in [
            ("C.UTF-8", "C.UTF-8", true),
            ("C.UTF-8", "C.utf8", true),
            ("C", "POSIX", true),
            ("C", "C.UTF-8", true),
            ("en_US.UTF-8", "en_US.utf8", true),
            ("en_US.UTF-8", "de_DE.UTF-8", false),
            ("en-US", "icu:en-US", false),
            ("C", "en_US.UTF-8", false),
        ] {
            assert_eq!(sorted_by(one) == sorted_by(other), same, "{one} {other}");
        }
    }
}
