//! What the source's roles may do in a copy: read, and given to the copy's roles.
//!
//! What a role owns keeps the owner's own rights when it changes hands; everything granted to the source's roles, or by
//! them to others, is granted again here.

use std::collections::BTreeMap;

use tokio_postgres::Transaction;
use tokio_postgres::types::{ToSql, Type};

use super::reown::Mapping;
use crate::engine::postgres::admin::ident;

/// Objects that one statement grants rights on.
const OBJECTS_AT_ONCE: usize = 500;

/// All that names the source's roles, apart from what they own.
#[derive(Default)]
pub(super) struct Rights {
    grants: Vec<Grant>,
    defaults: Vec<DefaultRight>,
    policies: Vec<PolicyRoles>,
}

/// One right on one object.
struct Grant {
    kind: String,
    name: String,
    /// ` (column)`, or nothing.
    column: String,
    right: String,
    /// `None` is PUBLIC.
    grantee: Option<String>,
    grantable: bool,
    /// Who granted it, where that is not the object's owner.
    grantor: Option<String>,
    /// Whose the object is.
    owner: String,
}

/// One right on what will be made; without `right`, only that there is such an entry.
struct DefaultRight {
    maker: String,
    schema: Option<String>,
    kind: &'static str,
    right: Option<String>,
    grantee: Option<String>,
    grantable: bool,
}

/// A policy and whom it is for.
struct PolicyRoles {
    policy: String,
    table: String,
    roles: Vec<Option<String>>,
}

/// What of a database names roles: in which catalogue, how, and whether it is the second of them, the reader.
const NAMED: &str = "
    SELECT DISTINCT c.relname::text, s.deptype::text, s.refobjid = ($1::oid[])[2] FROM pg_catalog.pg_shdepend s
    JOIN pg_catalog.pg_database b ON b.oid = s.dbid JOIN pg_catalog.pg_class c ON c.oid = s.classid
    WHERE b.datname = $2 AND s.refclassid = 'pg_catalog.pg_authid'::pg_catalog.regclass AND s.refobjid = ANY ($1)";

/// What a copy has that names the source's roles, by kinds. It is known from outside; what there is none of is not looked
/// for in a session that has just begun, and learns of each catalogue anew.
pub(super) struct Named {
    /// The catalogues with objects on which they were granted something.
    granted: Vec<String>,
    /// Whether there are rights on what will be made.
    defaults: bool,
    /// Whether there are policies for them.
    policies: bool,
    /// Whether there are user mappings.
    pub(super) user_mappings: bool,
    /// Whether the reader owns anything: it does only where its owner has let it create.
    pub(super) reader_owns: bool,
}

impl Named {
    /// Looks at the copy from outside.
    pub(super) async fn read(outside: &Transaction<'_>, mapping: &Mapping<'_>) -> Result<Self, tokio_postgres::Error> {
        let asked = [
            (&mapping.oids as &(dyn ToSql + Sync), Type::OID_ARRAY),
            (&mapping.copy.database as &(dyn ToSql + Sync), Type::NAME),
        ];
        let rows = outside.query_typed(NAMED, &asked).await?;
        let found: Vec<(&str, &str, bool)> = rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect();
        let any = |catalogue: &str| found.iter().any(|(class, ..)| *class == catalogue);
        let granted = found.iter().filter(|(_, how, _)| *how == "a").map(|(class, ..)| (*class).to_owned());
        Ok(Self {
            granted: granted.collect(),
            defaults: any("pg_default_acl"),
            policies: any("pg_policy"),
            user_mappings: any("pg_user_mapping"),
            reader_owns: found.iter().any(|(_, how, is_readers)| *how == "o" && *is_readers),
        })
    }
}

/// How the objects of each catalogue are read, by what `d` names of them.
const OBJECTS: [(&str, &str); 8] = [
    (
        "pg_class",
        "SELECT CASE c.relkind WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END,
            pg_catalog.format('%I.%I', n.nspname, c.relname), '', c.relacl, c.relowner
        FROM d JOIN pg_catalog.pg_class c ON c.oid = d.objid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        WHERE d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.objsubid = 0
        UNION ALL
        SELECT 'TABLE', pg_catalog.format('%I.%I', n.nspname, c.relname), pg_catalog.format(' (%I)', a.attname),
            a.attacl, c.relowner
        FROM d JOIN pg_catalog.pg_class c ON c.oid = d.objid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum = d.objsubid
        WHERE d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.objsubid <> 0",
    ),
    (
        "pg_proc",
        "SELECT 'ROUTINE', p.oid::pg_catalog.regprocedure::text, '', p.proacl, p.proowner
        FROM d JOIN pg_catalog.pg_proc p ON p.oid = d.objid AND d.classid = 'pg_catalog.pg_proc'::pg_catalog.regclass",
    ),
    (
        "pg_namespace",
        "SELECT 'SCHEMA', pg_catalog.quote_ident(n.nspname), '', n.nspacl, n.nspowner
        FROM d JOIN pg_catalog.pg_namespace n
            ON n.oid = d.objid AND d.classid = 'pg_catalog.pg_namespace'::pg_catalog.regclass",
    ),
    (
        "pg_type",
        "SELECT 'TYPE', pg_catalog.format('%I.%I', n.nspname, t.typname), '', t.typacl, t.typowner
        FROM d JOIN pg_catalog.pg_type t ON t.oid = d.objid AND d.classid = 'pg_catalog.pg_type'::pg_catalog.regclass
        JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace",
    ),
    (
        "pg_language",
        "SELECT 'LANGUAGE', pg_catalog.quote_ident(l.lanname), '', l.lanacl, l.lanowner
        FROM d JOIN pg_catalog.pg_language l
            ON l.oid = d.objid AND d.classid = 'pg_catalog.pg_language'::pg_catalog.regclass",
    ),
    (
        "pg_largeobject",
        "SELECT 'LARGE OBJECT', m.oid::text, '', m.lomacl, m.lomowner
        FROM d JOIN pg_catalog.pg_largeobject_metadata m
            ON m.oid = d.objid AND d.classid = 'pg_catalog.pg_largeobject'::pg_catalog.regclass",
    ),
    (
        "pg_foreign_data_wrapper",
        "SELECT 'FOREIGN DATA WRAPPER', pg_catalog.quote_ident(w.fdwname), '', w.fdwacl, w.fdwowner
        FROM d JOIN pg_catalog.pg_foreign_data_wrapper w
            ON w.oid = d.objid AND d.classid = 'pg_catalog.pg_foreign_data_wrapper'::pg_catalog.regclass",
    ),
    (
        "pg_foreign_server",
        "SELECT 'FOREIGN SERVER', pg_catalog.quote_ident(f.srvname), '', f.srvacl, f.srvowner
        FROM d JOIN pg_catalog.pg_foreign_server f
            ON f.oid = d.objid AND d.classid = 'pg_catalog.pg_foreign_server'::pg_catalog.regclass",
    ),
];

/// Returns the question for what was granted on objects of some catalogues: to plan it for all of them, most of which have
/// nothing, takes longer than all other questions together.
fn granted_on(classes: &[String]) -> Option<String> {
    let objects = OBJECTS.iter().filter(|(class, _)| classes.iter().any(|there| there == class));
    let objects: Vec<&str> = objects.map(|(_, sql)| *sql).collect();
    (!objects.is_empty()).then(|| {
        format!(
            "WITH d AS (SELECT DISTINCT s.classid, s.objid, s.objsubid FROM pg_catalog.pg_shdepend s
                JOIN pg_catalog.pg_database b ON b.oid = s.dbid
                WHERE b.datname = pg_catalog.current_database() AND s.deptype = 'a'
                AND s.refclassid = 'pg_catalog.pg_authid'::pg_catalog.regclass AND s.refobjid = ANY ($1)),
            o (kind, name, col, acl, owner) AS ({})
            SELECT o.kind, o.name, o.col, x.privilege_type,
                CASE x.grantee WHEN 0 THEN NULL ELSE pg_catalog.pg_get_userbyid(x.grantee)::text END, x.is_grantable,
                CASE x.grantor WHEN o.owner THEN NULL ELSE pg_catalog.pg_get_userbyid(x.grantor)::text END,
                pg_catalog.pg_get_userbyid(o.owner)::text
            FROM o, pg_catalog.aclexplode(o.acl) x
            WHERE x.grantee = ANY ($1) OR x.grantor = ANY ($1) AND x.grantor <> o.owner",
            objects.join(" UNION ALL ")
        )
    })
}

const DEFAULTS: &str = "
    SELECT pg_catalog.pg_get_userbyid(a.defaclrole)::text, pg_catalog.quote_ident(n.nspname), a.defaclobjtype::text,
        x.privilege_type, CASE x.grantee WHEN 0 THEN NULL ELSE pg_catalog.pg_get_userbyid(x.grantee)::text END,
        coalesce(x.is_grantable, false)
    FROM pg_catalog.pg_default_acl a LEFT JOIN pg_catalog.pg_namespace n ON n.oid = a.defaclnamespace
    LEFT JOIN LATERAL pg_catalog.aclexplode(a.defaclacl) x ON true
    WHERE a.defaclrole = ANY ($1) OR x.grantee = ANY ($1) ORDER BY a.oid";

const POLICIES: &str = "
    SELECT pg_catalog.quote_ident(p.polname), pg_catalog.format('%I.%I', n.nspname, c.relname),
        ARRAY(SELECT CASE r WHEN 0 THEN NULL ELSE pg_catalog.pg_get_userbyid(r)::text END
              FROM pg_catalog.unnest(p.polroles) r)
    FROM pg_catalog.pg_policy p JOIN pg_catalog.pg_class c ON c.oid = p.polrelid
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE p.polroles && $1";

impl Rights {
    /// Reads what is there.
    pub(super) async fn read(
        transaction: &Transaction<'_>,
        mapping: &Mapping<'_>,
        named: &Named,
    ) -> Result<Self, tokio_postgres::Error> {
        let oids = [(&mapping.oids as &(dyn ToSql + Sync), Type::OID_ARRAY)];
        let granted = granted_on(&named.granted);
        let ask = async |sql: Option<&str>| match sql {
            Some(sql) => transaction.query_typed(sql, &oids).await,
            None => Ok(Vec::new()),
        };
        let (grants, defaults, policies) = futures_util::try_join!(
            ask(granted.as_deref()),
            ask(named.defaults.then_some(DEFAULTS)),
            ask(named.policies.then_some(POLICIES))
        )?;
        let grant = |row: &tokio_postgres::Row| Grant {
            kind: row.get(0),
            name: row.get(1),
            column: row.get(2),
            right: row.get(3),
            grantee: row.get(4),
            grantable: row.get(5),
            grantor: row.get(6),
            owner: row.get(7),
        };
        let default = |row: &tokio_postgres::Row| DefaultRight {
            maker: row.get(0),
            schema: row.get(1),
            kind: kind_of(row.get(2)),
            right: row.get(3),
            grantee: row.get(4),
            grantable: row.get(5),
        };
        let policy =
            |row: &tokio_postgres::Row| PolicyRoles { policy: row.get(0), table: row.get(1), roles: row.get(2) };
        Ok(Self {
            grants: grants.iter().map(grant).collect(),
            defaults: defaults.iter().map(default).collect(),
            policies: policies.iter().map(policy).collect(),
        })
    }

    /// Returns the statements that give the copy's roles what the source's have.
    pub(super) fn statements(&self, mapping: &Mapping<'_>) -> Vec<String> {
        let mut statements: Vec<String> = self.policies.iter().map(|policy| policy.sql(mapping)).collect();
        statements.extend(grants(self.grants.iter(), mapping));
        statements.extend(self.default_rights(mapping));
        statements.extend(self.taken_by_owners(mapping));
        statements
    }

    /// What a source's role may pass on is taken from it as the owner: an admin that is no superuser would do that as any role
    /// that may pass it on, as that role itself among them, which takes nothing.
    fn taken_by_owners(&self, mapping: &Mapping<'_>) -> Vec<String> {
        let mut together: BTreeMap<_, Vec<&str>> = BTreeMap::new();
        for grant in self.grants.iter().filter(|grant| grant.grantable && mapping.is_new(&grant.owner)) {
            if let Some(grantee) = grant.grantee.as_deref().filter(|grantee| mapping.role(grantee) != *grantee) {
                let of = (&grant.owner, &grant.kind, &grant.right, &grant.column, grantee);
                together.entry(of).or_default().push(&grant.name);
            }
        }
        let mut statements = Vec::new();
        for ((owner, kind, right, column, grantee), names) in together {
            statements.push(format!("SET LOCAL ROLE {}", ident(owner)));
            statements.extend(names.chunks(OBJECTS_AT_ONCE).map(|names| {
                format!("REVOKE {right}{column} ON {kind} {} FROM {} CASCADE", names.join(", "), ident(grantee))
            }));
            statements.push("SET LOCAL ROLE NONE".to_owned());
        }
        statements
    }

    /// Returns those of them that are about schemas.
    pub(super) fn on_schemas(&self, mapping: &Mapping<'_>) -> Vec<String> {
        grants(self.grants.iter().filter(|grant| grant.kind == "SCHEMA"), mapping)
    }

    /// What one of the source's roles has set for what it will make is made whole for its counterpart; of what others
    /// have set, only what they give to the source's roles.
    fn default_rights(&self, mapping: &Mapping<'_>) -> Vec<String> {
        let mut statements = Vec::new();
        let mut entry = None;
        for right in &self.defaults {
            let maker = mapping.role(&right.maker);
            let theirs = maker != right.maker;
            let within = right.schema.as_ref().map(|schema| format!(" IN SCHEMA {schema}")).unwrap_or_default();
            let begin = format!("ALTER DEFAULT PRIVILEGES FOR ROLE {}{within}", ident(maker));
            if theirs && entry != Some((&right.maker, &right.schema, right.kind)) {
                entry = Some((&right.maker, &right.schema, right.kind));
                // What is kept for all schemas is whole; for one schema it is what comes on top.
                if right.schema.is_none() {
                    statements.push(format!("{begin} REVOKE ALL ON {} FROM PUBLIC, {}", right.kind, ident(maker)));
                }
            }
            let named = right.grantee.as_deref().is_some_and(|grantee| mapping.role(grantee) != grantee);
            if let Some(privilege) = right.right.as_ref().filter(|_| theirs || named) {
                let grantee = role_or_public(right.grantee.as_deref(), mapping);
                let option = option(right.grantable);
                statements.push(format!("{begin} GRANT {privilege} ON {} TO {grantee}{option}", right.kind));
            }
        }
        statements
    }
}

/// Returns the statements that grant, as few as there can be: what the owners gave, then what was passed on.
fn grants<'a>(grants: impl Iterator<Item = &'a Grant>, mapping: &Mapping<'_>) -> Vec<String> {
    let mut together: BTreeMap<_, Vec<&str>> = BTreeMap::new();
    for grant in grants {
        let passed_on = grant.grantor.as_deref().filter(|grantor| mapping.role(grantor) != *grantor);
        let turn = match passed_on {
            None => 0,
            Some(grantor) if grantor == mapping.source.owner_role => 1,
            Some(_) => 2,
        };
        // An admin that is no superuser grants as any role with the option: as one of the source's, it would not last.
        let acting = passed_on.map_or(Some(grant.owner.as_str()).filter(|owner| mapping.is_new(owner)), |grantor| {
            Some(mapping.role(grantor))
        });
        let of = (turn, acting, &grant.kind, &grant.right, &grant.column, &grant.grantee, grant.grantable);
        together.entry(of).or_default().push(&grant.name);
    }
    let mut statements = Vec::new();
    for ((_, acting, kind, right, column, grantee, grantable), names) in together {
        let grantee = role_or_public(grantee.as_deref(), mapping);
        for names in names.chunks(OBJECTS_AT_ONCE) {
            let names = names.join(", ");
            let grant = format!("GRANT {right}{column} ON {kind} {names} TO {grantee}{}", option(grantable));
            match acting {
                None => statements.push(grant),
                Some(role) => {
                    statements.push(format!("SET LOCAL ROLE {}", ident(role)));
                    statements.push(grant);
                    statements.push("SET LOCAL ROLE NONE".to_owned());
                }
            }
        }
    }
    statements
}

impl PolicyRoles {
    fn sql(&self, mapping: &Mapping<'_>) -> String {
        let roles: Vec<String> = self.roles.iter().map(|role| role_or_public(role.as_deref(), mapping)).collect();
        format!("ALTER POLICY {} ON {} TO {}", self.policy, self.table, roles.join(", "))
    }
}

fn role_or_public(role: Option<&str>, mapping: &Mapping<'_>) -> String {
    role.map_or_else(|| "PUBLIC".to_owned(), |role| ident(mapping.role(role)))
}

const fn option(grantable: bool) -> &'static str {
    if grantable { " WITH GRANT OPTION" } else { "" }
}

/// Returns the word for a kind of object to come, by the letter that the server keeps.
pub(super) fn kind_of(letter: &str) -> &'static str {
    match letter {
        "r" => "TABLES",
        "S" => "SEQUENCES",
        "f" => "FUNCTIONS",
        "T" => "TYPES",
        "n" => "SCHEMAS",
        _ => "LARGE OBJECTS",
    }
}
