//! Hands a database that another's code has run in over to its owner, as creation would have made it.
//!
//! What that code may have given away is taken back: rights on what the owner owns and on what it will make, logins and
//! settings. What is not as it should be then is not handed over.

use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Transaction};

use super::Work;
use super::guard::{Anew, lasting_later, patience, rename, verifier};
use super::rights::kind_of;
use crate::engine::EngineError;
use crate::engine::postgres::access;
use crate::engine::postgres::admin::{ident, refused};

/// Objects that one statement takes rights on away.
const OBJECTS_AT_ONCE: usize = 500;

/// Rights on what the owner ($1) owns that creation gives nobody: all but the owner's own, what the reader ($2) reads by, and
/// what the server and the extensions give to PUBLIC.
const GIVEN: &str = "
    WITH o (class, kind, name, col, acl, oid, sub) AS (
        SELECT 'pg_catalog.pg_class'::pg_catalog.regclass, CASE c.relkind WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END,
            pg_catalog.format('%I.%I', n.nspname, c.relname), '', c.relacl, c.oid, 0
        FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        WHERE c.relowner = $1 AND c.relacl IS NOT NULL
        UNION ALL
        SELECT 'pg_catalog.pg_class'::pg_catalog.regclass, 'TABLE', pg_catalog.format('%I.%I', n.nspname, c.relname),
            pg_catalog.format(' (%I)', a.attname), a.attacl, c.oid, a.attnum
        FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_class c ON c.oid = a.attrelid
        JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        WHERE a.attacl IS NOT NULL AND NOT a.attisdropped AND c.relowner = $1
        UNION ALL
        SELECT 'pg_catalog.pg_proc'::pg_catalog.regclass, 'ROUTINE', p.oid::pg_catalog.regprocedure::text, '', p.proacl,
            p.oid, 0
        FROM pg_catalog.pg_proc p WHERE p.proowner = $1 AND p.proacl IS NOT NULL
        UNION ALL
        SELECT 'pg_catalog.pg_namespace'::pg_catalog.regclass, 'SCHEMA', pg_catalog.quote_ident(n.nspname), '', n.nspacl,
            n.oid, 0
        FROM pg_catalog.pg_namespace n WHERE n.nspowner = $1 AND n.nspacl IS NOT NULL
        UNION ALL
        SELECT 'pg_catalog.pg_type'::pg_catalog.regclass, 'TYPE', pg_catalog.format('%I.%I', n.nspname, t.typname), '',
            t.typacl, t.oid, 0
        FROM pg_catalog.pg_type t JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace
        WHERE t.typowner = $1 AND t.typacl IS NOT NULL
        UNION ALL
        SELECT 'pg_catalog.pg_language'::pg_catalog.regclass, 'LANGUAGE', pg_catalog.quote_ident(l.lanname), '', l.lanacl,
            l.oid, 0
        FROM pg_catalog.pg_language l WHERE l.lanowner = $1 AND l.lanacl IS NOT NULL
        UNION ALL
        SELECT 'pg_catalog.pg_largeobject'::pg_catalog.regclass, 'LARGE OBJECT', m.oid::text, '', m.lomacl, m.oid, 0
        FROM pg_catalog.pg_largeobject_metadata m WHERE m.lomowner = $1 AND m.lomacl IS NOT NULL)
    SELECT o.kind, o.col, x.privilege_type, CASE x.grantee WHEN 0 THEN NULL ELSE pg_catalog.pg_get_userbyid(x.grantee)::text END,
        x.grantee = $2 AND o.col = '' AND (o.kind, x.privilege_type) IN (('TABLE', 'SELECT'), ('SEQUENCE', 'SELECT'), ('SCHEMA', 'USAGE')),
        o.name
    FROM o CROSS JOIN LATERAL pg_catalog.unnest(o.acl) i CROSS JOIN LATERAL pg_catalog.aclexplode(ARRAY[i]) x
    LEFT JOIN pg_catalog.pg_init_privs p ON p.classoid = o.class AND p.objoid = o.oid AND p.objsubid = o.sub
    WHERE x.grantee <> $1 AND NOT (i = ANY (coalesce(p.initprivs, '{}')))
        AND NOT (x.grantee = 0 AND (o.kind IN ('ROUTINE', 'TYPE', 'LANGUAGE') OR o.kind = 'SCHEMA' AND o.name = 'public' AND x.privilege_type = 'USAGE'))
        AND NOT (x.grantee = $2 AND NOT x.is_grantable AND o.col = ''
            AND (o.kind, x.privilege_type) IN (('TABLE', 'SELECT'), ('SEQUENCE', 'SELECT'), ('SCHEMA', 'USAGE')))
    ORDER BY 1, 2, 3, 4, 5";

/// The same of what the owner will make.
const DEFAULTS: &str = "
    SELECT a.defaclobjtype::text, pg_catalog.quote_ident(n.nspname), x.privilege_type,
        CASE x.grantee WHEN 0 THEN NULL ELSE pg_catalog.pg_get_userbyid(x.grantee)::text END
    FROM pg_catalog.pg_default_acl a LEFT JOIN pg_catalog.pg_namespace n ON n.oid = a.defaclnamespace
    CROSS JOIN LATERAL pg_catalog.aclexplode(a.defaclacl) x
    WHERE a.defaclrole = $1 AND x.grantee <> $1
        AND NOT (x.grantee = 0 AND a.defaclnamespace = 0 AND a.defaclobjtype IN ('f', 'T'))
        AND NOT (x.grantee = $2 AND NOT x.is_grantable AND (a.defaclobjtype::text, x.privilege_type)
            IN (('r', 'SELECT'), ('S', 'SELECT'), ('n', 'USAGE')))";

impl Work<'_> {
    /// Hands the filled database over to its owner.
    pub(super) async fn hand_over(&self) -> Result<(), EngineError> {
        let action = "hand the copy over to its owner";
        let failed = refused(action, self.profile());
        let names = &self.spec.names;
        let admin = self.server.admin_session().await?;
        self.nobody_is_in(&admin).await?;
        let [(owner, owner_password, _), (reader, reader_password, _)] = self.roles();
        let filled = self.owner_now();
        for role in [&filled, reader] {
            self.join(&admin, role).await?;
        }
        let (first, second, inside) =
            tokio::join!(verifier(owner_password), verifier(reader_password), self.server.session_in(&names.database));
        let roles = [
            Anew { before: &filled, after: owner, verifier: first? },
            Anew { before: reader, after: reader, verifier: second? },
        ];
        let mut inside = inside?;
        let roles = self.roles_anew(&admin, &roles).await?;
        let oids = self.owner_and_reader(&inside, [&filled, reader]).await?;
        let transaction = inside.transaction().await.map_err(&failed)?;
        let begin = [patience(), lasting_later(), rename(&filled, owner)];
        transaction.batch_execute(&begin.join("; ")).await.map_err(&failed)?;
        let taken = self.taken_back(&transaction, oids).await?;
        if !taken.is_empty() {
            tracing::warn!(sandbox = %self.spec.id, "code of the source gave rights away in the copy; they are taken back");
            transaction.batch_execute(&taken.join("; ")).await.map_err(&failed)?;
            if !self.taken_back(&transaction, oids).await?.is_empty() {
                return Err(self.tampered("gave rights away that cannot be taken back"));
            }
        }
        let (database, role) = (ident(&names.database), ident(owner));
        let mut statements = Vec::new();
        if self.info.major >= 15 && self.owns_public(&transaction, oids).await? {
            statements.push("ALTER SCHEMA public OWNER TO pg_database_owner".to_owned());
        }
        statements.push(format!("SET LOCAL ROLE {role}"));
        statements.extend(access::reads_to_come(&ident(reader)));
        statements.push("SET LOCAL ROLE NONE".to_owned());
        statements.push(format!("ALTER DATABASE {database} OWNER TO {role}"));
        statements.push(format!("REVOKE ALL ON DATABASE {database} FROM PUBLIC"));
        statements.push(format!("GRANT CONNECT ON DATABASE {database} TO {role}, {}", ident(reader)));
        statements.extend(roles);
        transaction.batch_execute(&statements.join("; ")).await.map_err(&failed)?;
        self.check_handed_over(&transaction, oids).await?;
        transaction.commit().await.map_err(&failed)?;
        drop(inside);
        self.terminate(&admin).await
    }

    async fn owner_and_reader(&self, session: &Client, roles: [&str; 2]) -> Result<[u32; 2], EngineError> {
        let mut oids = [0; 2];
        for (oid, role) in oids.iter_mut().zip(roles) {
            *oid = self.role_oid(session, role).await?.ok_or_else(|| access::gone(self.spec))?;
        }
        Ok(oids)
    }

    /// Returns what takes back what was given away.
    async fn taken_back(&self, transaction: &Transaction<'_>, oids: [u32; 2]) -> Result<Vec<String>, EngineError> {
        let params: [(&(dyn ToSql + Sync), Type); 2] = [(&oids[0], Type::OID), (&oids[1], Type::OID)];
        let given = transaction.query_typed(GIVEN, &params);
        let defaults = transaction.query_typed(DEFAULTS, &params);
        let failed = refused("look at the rights in the copy", self.profile());
        let (given, defaults) = futures_util::try_join!(given, defaults).map_err(failed)?;
        let grantee = |role: Option<&str>| role.map_or_else(|| "PUBLIC".to_owned(), ident);
        let mut statements = Vec::new();
        let alike = |a: &tokio_postgres::Row, b: &tokio_postgres::Row| {
            let key = |row: &tokio_postgres::Row| -> (String, String, String, Option<String>, bool) {
                (row.get(0), row.get(1), row.get(2), row.get(3), row.get(4))
            };
            key(a) == key(b)
        };
        for rows in given.chunk_by(alike).flat_map(|rows| rows.chunks(OBJECTS_AT_ONCE)) {
            let Some(row) = rows.first() else { continue };
            let (kind, column, right): (&str, &str, &str) = (row.get(0), row.get(1), row.get(2));
            let option = if row.get(4) { "GRANT OPTION FOR " } else { "" };
            let names: Vec<&str> = rows.iter().map(|row| row.get(5)).collect();
            let (names, whose) = (names.join(", "), grantee(row.get(3)));
            statements.push(format!("REVOKE {option}{right}{column} ON {kind} {names} FROM {whose} CASCADE"));
        }
        let owner = ident(&self.spec.names.owner_role);
        for row in defaults {
            let (kind, schema, right): (&str, Option<&str>, &str) = (kind_of(row.get(0)), row.get(1), row.get(2));
            let within = schema.map(|schema| format!(" IN SCHEMA {schema}")).unwrap_or_default();
            let whose = grantee(row.get(3));
            statements.push(format!(
                "ALTER DEFAULT PRIVILEGES FOR ROLE {owner}{within} REVOKE {right} ON {kind} FROM {whose} CASCADE"
            ));
        }
        Ok(statements)
    }

    /// Returns whether the schema `public` is there and the owner's.
    async fn owns_public(&self, transaction: &Transaction<'_>, oids: [u32; 2]) -> Result<bool, EngineError> {
        let found = transaction
            .query_typed_opt(
                "SELECT true FROM pg_catalog.pg_namespace WHERE nspname = 'public' AND nspowner = $1",
                &[(&oids[0], Type::OID)],
            )
            .await
            .map_err(refused("look at schema `public`", self.profile()))?;
        Ok(found.is_some())
    }

    /// Checks that the database and its roles are as creation makes them.
    async fn check_handed_over(&self, transaction: &Transaction<'_>, oids: [u32; 2]) -> Result<(), EngineError> {
        let row = transaction
            .query_typed_one(
                "SELECT d.datdba = $1 AND d.datallowconn AND d.datconnlimit = -1 AND NOT d.datistemplate \
                 AND NOT EXISTS (SELECT FROM pg_catalog.aclexplode(d.datacl) x WHERE x.grantee <> $1 \
                 AND (x.is_grantable OR x.privilege_type <> 'CONNECT' OR x.grantee <> $2 \
                 AND x.grantee <> (SELECT oid FROM pg_catalog.pg_roles WHERE rolname = current_user))) \
                 AND pg_catalog.has_database_privilege($1, d.oid, 'CONNECT') \
                 AND pg_catalog.has_database_privilege($2, d.oid, 'CONNECT'), \
                 NOT EXISTS (SELECT FROM pg_catalog.pg_db_role_setting s \
                 WHERE s.setdatabase = d.oid OR s.setrole IN ($1, $2) AND s.setdatabase <> 0) \
                 FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database()",
                &[(&oids[0], Type::OID), (&oids[1], Type::OID)],
            )
            .await
            .map_err(refused("look at what is handed over", self.profile()))?;
        let detail = match (row.get(0), row.get(1)) {
            (true, true) => return Ok(()),
            (true, false) => "it has settings that nobody made",
            (false, _) => "its rights are not as they were set",
        };
        Err(EngineError::Refused {
            action: "hand the copy over to its owner",
            sqlstate: SqlState::INSUFFICIENT_PRIVILEGE.code().to_owned(),
            detail: format!("{detail}; it stays closed"),
        })
    }
}
