//! What belongs to a database and is not inside it: the server leaves it behind when it copies one, so it is set again.
//!
//! Settings of the database and of its roles in it, its comment, and what operators' roles may do with it; and what is
//! inside but goes with the source's roles: user mappings. What PUBLIC
//! or another sandbox may do with the source, nobody may do with the copy.

use std::collections::BTreeMap;

use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, GenericClient, Transaction};

use super::Work;
use super::reown::Mapping;
use crate::engine::EngineError;
use crate::engine::postgres::admin::{ident, literal, refused, refused_unquoted};
use crate::model::role_pattern;

/// The parameters whose values are lists of names; quoted as a whole, one would be a single name.
const NAME_LISTS: [&str; 6] = [
    "local_preload_libraries",
    "search_path",
    "session_preload_libraries",
    "shared_preload_libraries",
    "temp_tablespaces",
    "unix_socket_directories",
];

/// One setting: of the database, or of a role in it.
struct Setting {
    role: Option<String>,
    name: String,
    value: String,
}

impl Work<'_> {
    /// Returns what sets again on the copy what the source has beside its contents.
    pub(super) async fn carried(
        &self,
        inside: &Transaction<'_>,
        mapping: &Mapping<'_>,
    ) -> Result<Vec<String>, EngineError> {
        let failed = refused("read the settings of the database", self.profile());
        let source: (&(dyn ToSql + Sync), Type) = (&mapping.source.database, Type::NAME);
        let with_roles: [(&(dyn ToSql + Sync), Type); 2] = [source.clone(), (&mapping.oids, Type::OID_ARRAY)];
        let pattern = role_pattern(&self.server.settings().prefix);
        let with_pattern = [source.clone(), (&mapping.oids, Type::OID_ARRAY), (&pattern, Type::TEXT)];
        let alone = [source];
        let settings = inside.query_typed(
            "SELECT CASE WHEN s.setrole = 0 THEN NULL ELSE pg_catalog.pg_get_userbyid(s.setrole)::text END, \
             pg_catalog.split_part(c, '=', 1), pg_catalog.substr(c, pg_catalog.strpos(c, '=') + 1) \
             FROM pg_catalog.pg_db_role_setting s JOIN pg_catalog.pg_database d ON d.oid = s.setdatabase, \
             pg_catalog.unnest(s.setconfig) WITH ORDINALITY u (c, n) \
             WHERE d.datname = $1 AND (s.setrole = 0 OR s.setrole = ANY ($2)) ORDER BY s.setrole, u.n",
            &with_roles,
        );
        let comment = inside.query_typed(
            "SELECT pg_catalog.shobj_description(oid, 'pg_database') FROM pg_catalog.pg_database WHERE datname = $1",
            &alone,
        );
        let rights = inside.query_typed(
            "SELECT x.privilege_type, pg_catalog.pg_get_userbyid(x.grantee)::text, x.is_grantable \
             FROM pg_catalog.pg_database d, pg_catalog.aclexplode(d.datacl) x WHERE d.datname = $1 \
             AND x.grantee <> 0 AND x.grantee <> d.datdba AND x.grantee <> ALL ($2) \
             AND pg_catalog.pg_get_userbyid(x.grantee)::text !~ $3 \
             AND pg_catalog.pg_get_userbyid(x.grantee) <> current_user ORDER BY 2, 1",
            &with_pattern,
        );
        let (settings, comment, rights) = futures_util::try_join!(settings, comment, rights).map_err(&failed)?;
        let database = ident(&self.spec.names.database);
        let mut statements: Vec<String> = settings
            .iter()
            .map(|row| Setting { role: row.get(0), name: row.get(1), value: row.get(2) }.sql(&database, mapping))
            .collect();
        if let Some(comment) = comment.first().and_then(|row| row.get::<_, Option<String>>(0)) {
            statements.push(format!("COMMENT ON DATABASE {database} IS {}", literal(&comment)));
        }
        for row in rights {
            let (right, role, grantable): (String, String, bool) = (row.get(0), row.get(1), row.get(2));
            let option = if grantable { " WITH GRANT OPTION" } else { "" };
            statements.push(format!("GRANT {right} ON DATABASE {database} TO {}{option}", ident(&role)));
        }
        Ok(statements)
    }

    /// Returns what makes for the copy's roles the user mappings that the source's have, which go with those. Only a
    /// superuser may read what is in them.
    pub(super) async fn user_mappings(
        &self,
        inside: &Transaction<'_>,
        mapping: &Mapping<'_>,
    ) -> Result<Vec<String>, EngineError> {
        if !self.info.superuser {
            return Ok(Vec::new());
        }
        let options = inside
            .query_typed(
                "SELECT m.oid, pg_catalog.pg_get_userbyid(m.umuser)::text, pg_catalog.quote_ident(s.srvname), \
                 o.option_name, o.option_value FROM pg_catalog.pg_user_mapping m \
                 JOIN pg_catalog.pg_foreign_server s ON s.oid = m.umserver \
                 LEFT JOIN LATERAL pg_catalog.pg_options_to_table(m.umoptions) WITH ORDINALITY \
                 o (option_name, option_value, n) ON true WHERE m.umuser = ANY ($1) ORDER BY m.oid, o.n",
                &[(&mapping.oids, Type::OID_ARRAY)],
            )
            .await
            .map_err(refused_unquoted("read the user mappings", self.profile()))?;
        let mut mappings: BTreeMap<u32, (String, Vec<String>)> = BTreeMap::new();
        for row in &options {
            let (role, server): (&str, &str) = (row.get(1), row.get(2));
            let (_, given) = mappings.entry(row.get(0)).or_insert_with(|| {
                let role = ident(mapping.role(role));
                (format!("CREATE USER MAPPING FOR {role} SERVER {server}"), Vec::new())
            });
            if let Some(name) = row.get::<_, Option<&str>>(3) {
                given.push(format!("{} {}", ident(name), literal(row.get::<_, Option<&str>>(4).unwrap_or_default())));
            }
        }
        let made = mappings.into_values().map(|(made, given)| {
            if given.is_empty() { made } else { format!("{made} OPTIONS ({})", given.join(", ")) }
        });
        Ok(made.collect())
    }

    /// Executes statements that hold a caller's texts, if there are any: they go as a parameter, so that whoever lists the
    /// server's sessions reads none of them.
    pub(super) async fn carry(
        &self,
        inside: &Transaction<'_>,
        action: &'static str,
        statements: &[String],
    ) -> Result<(), EngineError> {
        if statements.is_empty() {
            return Ok(());
        }
        unseen(inside, &statements.join("; ")).await.map_err(refused_unquoted(action, self.profile()))
    }
}

/// One setting of a database that was brought from elsewhere.
pub(in crate::engine::postgres) struct DatabaseSetting<'a> {
    /// The parameter.
    pub(in crate::engine::postgres) name: &'a str,
    /// Its value, as the catalogue had it.
    pub(in crate::engine::postgres) value: &'a str,
}

impl DatabaseSetting<'_> {
    /// Sets it, as who the session is.
    pub(in crate::engine::postgres) async fn set(
        &self,
        session: &Client,
        database: &str,
    ) -> Result<(), tokio_postgres::Error> {
        let value = written(self.name, self.value);
        unseen(session, &format!("ALTER DATABASE {} SET {} TO {value}", ident(database), ident(self.name))).await
    }

    /// Sets a database's comment.
    pub(in crate::engine::postgres) async fn comment(
        session: &Client,
        database: &str,
        comment: &str,
    ) -> Result<(), tokio_postgres::Error> {
        unseen(session, &format!("COMMENT ON DATABASE {} IS {}", ident(database), literal(comment))).await
    }
}

/// Executes statements that hold a caller's texts, in a transaction or without one: they go as a parameter, so that whoever
/// lists the server's sessions reads none of them, and are forgotten whatever comes of them.
pub(in crate::engine::postgres) async fn unseen(
    session: &impl GenericClient,
    sql: &str,
) -> Result<(), tokio_postgres::Error> {
    let sql: (&(dyn ToSql + Sync), Type) = (&sql, Type::TEXT);
    session.query_typed("SELECT pg_catalog.set_config('pgsandbox.carried', $1, false) IS NULL", &[sql]).await?;
    let execute = "DO $do$ BEGIN EXECUTE pg_catalog.current_setting('pgsandbox.carried'); \
                   PERFORM pg_catalog.set_config('pgsandbox.carried', '', false); END $do$";
    let done = session.batch_execute(execute).await;
    if done.is_err() {
        // Where a transaction failed, that has forgotten it.
        session.batch_execute("SELECT pg_catalog.set_config('pgsandbox.carried', '', false)").await.ok();
    }
    done
}

/// Returns a parameter's value as a statement has it.
fn written(name: &str, value: &str) -> String {
    if !NAME_LISTS.contains(&name) {
        return literal(value);
    }
    let names: Vec<String> = names(value).iter().map(|name| literal(name)).collect();
    if names.is_empty() { literal("") } else { names.join(", ") }
}

impl Setting {
    fn sql(&self, database: &str, mapping: &Mapping<'_>) -> String {
        let whose = match &self.role {
            None => format!("ALTER DATABASE {database}"),
            Some(role) => format!("ALTER ROLE {} IN DATABASE {database}", ident(mapping.role(role))),
        };
        let value = match self.name.as_str() {
            "role" => literal(mapping.role(&self.value)),
            name => written(name, &self.value),
        };
        format!("{whose} SET {} TO {value}", ident(&self.name))
    }
}

/// Splits a list of names as the server keeps it: by commas, some of the names in double quotes.
fn names(list: &str) -> Vec<String> {
    let mut names = Vec::new();
    let (mut name, mut quoted) = (String::new(), false);
    let mut chars = list.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '"' if quoted && chars.peek() == Some(&'"') => {
                name.push('"');
                chars.next();
            }
            '"' => quoted = !quoted,
            ',' if !quoted => names.push(std::mem::take(&mut name)),
            c if c.is_whitespace() && !quoted => {}
            c => name.push(c),
        }
    }
    if !name.is_empty() || !names.is_empty() {
        names.push(name);
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_names_is_split_where_the_server_would() {
        let split = |list: &str| names(list);
        assert_eq!(split(r#""$user", public"#), ["$user", "public"]);
        assert_eq!(split(r#""a, ""b""",c"#), [r#"a, "b""#, "c"]);
        assert_eq!(split("one"), ["one"]);
        assert!(split("").is_empty());
    }
}
