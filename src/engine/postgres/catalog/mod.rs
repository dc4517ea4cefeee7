//! Reads a sandbox's schema from its catalogue: the one walker that describing, digesting, comparing and keeping share.
//!
//! It reads as the sandbox's own reader, in one repeatable-read, read-only transaction of a session whose `search_path` and
//! ways of writing are pinned, so nothing that a sandbox sets or defines changes what is read or is run by it. Each query
//! gives one row for each object, every column of it text: who and where first, and each other column is an attribute, left
//! out where it is null. What belongs to an extension is left out. Texts are cut short by the server, by their digest, and
//! a schema that is too large as a whole is refused while it is read.

mod behaviour;
mod code;
mod grants;
mod relations;
mod session;
mod types;
mod views;
mod whole;

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use tokio_postgres::types::ToSql;
use tokio_postgres::{IsolationLevel, Row, Transaction};

use self::grants::Grantable;
pub use self::session::CatalogueSession;
use self::session::Question;
use super::admin::refused;
use super::server::PostgresServer;
use crate::engine::{EngineError, SandboxSpec};
use crate::model::{
    Code, Failure, SandboxNames, Schema, SchemaFilter, SchemaKey, SchemaKind, SchemaObject, fault, schema_name,
};

/// The longest text of an attribute, in bytes; of a longer one the server sends its digest and its length.
const TEXT_BYTES_MAX: usize = 64 << 10;
/// The largest schema that is read as a whole, in bytes of names and attributes: it is held in memory, and compared there.
const SCHEMA_BYTES_MAX: usize = 64 << 20;
/// How long the server may take for one statement about the catalogue, in ms.
const STATEMENT_MS: u32 = 30_000;
/// How long reading may take in all.
const READING: Duration = Duration::from_secs(90);
/// Questions that are on their way at once.
const AHEAD: usize = 4;
/// How often a reading begins anew when what it reads was dropped meanwhile.
const ATTEMPTS_MAX: u32 = 3;

/// Columns that hold a name, a word or a number, and are never too long.
const SHORT: [&str; 24] = [
    "kind",
    "schema",
    "of",
    "name",
    "owner",
    "form",
    "type",
    "nullability",
    "identity",
    "collation",
    "storage",
    "compression",
    "statistics target",
    "inherited",
    "persistence",
    "primary key",
    "valid",
    "constraint",
    "fires",
    "start",
    "increment",
    "minimum",
    "maximum",
    "cache",
];

/// How the objects of a query are named.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Naming {
    /// By the name that the query gives.
    Alone,
    /// By it, behind the table's.
    BelowTable,
}

/// What part of a schema a query can be asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// The whole database.
    Database,
    /// A schema, `$1`.
    Schema,
    /// A table, `$2`.
    Table,
}

/// One question to the catalogue. Its columns are `kind`, `schema`, `of`, `name` or `object` (a name that needs no more
/// quotes), `owner` and `acl`, as far as there are any; each other is an attribute of its name.
struct Query {
    kind: SchemaKind,
    naming: Naming,
    reach: Reach,
    grants: Option<Grantable>,
    sql: String,
}

impl Query {
    fn new(kind: SchemaKind, reach: Reach, sql: String) -> Self {
        Self { kind, naming: Naming::Alone, reach, grants: None, sql }
    }

    fn below_table(self) -> Self {
        Self { naming: Naming::BelowTable, ..self }
    }

    fn granted_as(self, grants: Grantable) -> Self {
        Self { grants: Some(grants), ..self }
    }

    /// Returns whether the query has an answer within `filter`.
    fn reaches(&self, filter: &SchemaFilter) -> bool {
        match self.reach {
            Reach::Database => filter.schema.is_none() && filter.table.is_none(),
            Reach::Schema => filter.table.is_none(),
            Reach::Table => true,
        }
    }

    /// Returns the statement for filters that name as much as `filter` does, in which the server cuts what is too long: the
    /// aliases of the query's own columns are the only ones in quotes.
    fn bounded(&self, filter: &SchemaFilter) -> String {
        let column = |name: &str| {
            let text = format!("q.\"{name}\"::text");
            if SHORT.contains(&name) {
                return format!("{text} AS \"{name}\"");
            }
            format!(
                "CASE WHEN octet_length({text}) > {TEXT_BYTES_MAX} THEN 'sha256 ' || \
                 encode(sha256(convert_to({text}, 'UTF8')), 'hex') || ' of ' || octet_length({text}) || ' bytes' \
                 ELSE {text} END AS \"{name}\""
            )
        };
        let names = self.sql.split(" AS \"").skip(1).filter_map(|rest| rest.split('"').next());
        let columns = names.map(column).collect::<Vec<_>>().join(", ");
        let given = |value: &Option<String>| if value.is_some() { "false" } else { "true" };
        // What is not asked for is said in the text, so that the server can plan once for all questions like this one.
        let sql = self
            .sql
            .replace("$1::text IS NULL", given(&filter.schema))
            .replace("$2::text IS NULL", given(&filter.table));
        format!("SELECT {columns} FROM ({sql} OFFSET 0) q")
    }
}

/// Returns every query, as a server of `major` takes it.
fn queries(major: u16) -> Vec<Query> {
    let mut all = whole::queries();
    all.extend(relations::queries(major));
    all.extend(types::queries(major));
    all.extend(code::queries(major));
    all.extend(behaviour::queries(major));
    all
}

/// Returns the condition that namespace `n` is one of the sandbox's own, and within the filter.
fn own_schema(n: &str) -> String {
    format!("{n}.nspname !~ '^pg_' AND {n}.nspname <> 'information_schema' AND ($1::text IS NULL OR {n}.nspname = $1)")
}

/// Returns the condition that an object of catalogue `class` belongs to no extension.
fn no_extension(class: &str, oid: &str) -> String {
    format!(
        "NOT EXISTS (SELECT FROM pg_depend x WHERE x.classid = '{class}'::regclass AND x.objid = {oid} AND x.deptype = 'e')"
    )
}

/// Returns an object's comment, or that of a part of it.
fn comment(class: &str, oid: &str, part: &str) -> String {
    format!(
        "(SELECT d.description FROM pg_description d WHERE d.objoid = {oid} AND d.classoid = '{class}'::regclass \
         AND d.objsubid = {part})"
    )
}

/// Returns the join that gives `c` and `n` for the own relation whose oid is `oid`, and the filters on them.
fn of_relation(oid: &str) -> String {
    format!(
        "JOIN pg_class c ON c.oid = {oid} JOIN pg_namespace n ON n.oid = c.relnamespace AND {} \
         AND ($2::text IS NULL OR c.relname = $2) AND {}",
        own_schema("n"),
        no_extension("pg_class", "c.oid")
    )
}

/// Reads a sandbox's schema, or a part of it, over a session of its own.
pub(super) async fn read_once(
    server: &Arc<PostgresServer>,
    spec: &SandboxSpec,
    filter: &SchemaFilter,
) -> Result<Schema, EngineError> {
    let mut session = CatalogueSession::open(server, spec).await?;
    read(&mut session, &server.settings().profile, spec, filter).await
}

/// Reads a sandbox's schema, or a part of it, over a session that has read it before or not.
pub(super) async fn read(
    session: &mut CatalogueSession,
    profile: &str,
    spec: &SandboxSpec,
    filter: &SchemaFilter,
) -> Result<Schema, EngineError> {
    let late = |_| {
        let text = "the catalogue could not be read in time";
        let failure = Failure::new(Code::CommandTimeout, text).hint("narrow it with `schema` or `table`");
        EngineError::Known(Box::new(failure))
    };
    tokio::time::timeout(fault::within(READING), read_whole(session, profile, spec, filter))
        .await
        .unwrap_or_else(|e| Err(late(e)))
}

async fn read_whole(
    CatalogueSession { session, questions }: &mut CatalogueSession,
    profile: &str,
    spec: &SandboxSpec,
    filter: &SchemaFilter,
) -> Result<Schema, EngineError> {
    let major = session.major();
    let failed = refused("read the sandbox's catalogue", profile);
    let mut attempt = 0;
    loop {
        attempt += 1;
        let transaction = session.build_transaction().isolation_level(IsolationLevel::RepeatableRead).read_only(true);
        let transaction = transaction.start().await.map_err(&failed)?;
        let reading = Reading { transaction: &transaction, major, profile, spec, filter, bytes: AtomicUsize::new(0) };
        match reading.run(questions).await {
            // What was there when the reading began has been dropped; functions of the server look at what is there now.
            Err(EngineError::Refused { sqlstate, .. }) if attempt < ATTEMPTS_MAX && is_gone(&sqlstate) => {}
            Err(error) => return Err(error),
            Ok(objects) => {
                transaction.commit().await.map_err(&failed)?;
                return Ok(Schema::new(objects));
            }
        }
    }
}

fn is_gone(sqlstate: &str) -> bool {
    // internal_error ("cache lookup failed"), undefined_table, undefined_column, undefined_object, undefined_function
    matches!(sqlstate, "XX000" | "42P01" | "42703" | "42704" | "42883")
}

/// One reading, in one transaction.
struct Reading<'a> {
    transaction: &'a Transaction<'a>,
    major: u16,
    profile: &'a str,
    spec: &'a SandboxSpec,
    filter: &'a SchemaFilter,
    /// What has been read, by all questions together.
    bytes: AtomicUsize,
}

impl Reading<'_> {
    async fn run(&self, questions: &[Question]) -> Result<Vec<SchemaObject>, EngineError> {
        // Until the transaction's end. A plan that fits every value is made once, where one that fits this value is made anew.
        let settings = format!(
            "SELECT pg_catalog.set_config('statement_timeout', '{STATEMENT_MS}', true), \
             pg_catalog.set_config('plan_cache_mode', 'force_generic_plan', true)"
        );
        self.pass().await?;
        self.transaction.query_typed(&settings, &[]).await.map_err(refused("limit the time", self.profile))?;
        // The server finds the next question there when it is done with one; answers come, and are taken, in turn.
        let mut asked = Vec::new();
        for question in questions {
            if question.query.reaches(self.filter) {
                asked.push(self.ask(question));
            }
        }
        stream::iter(asked).buffered(AHEAD).try_concat().await
    }

    async fn pass(&self) -> Result<(), EngineError> {
        fault::pass("catalogue.statement").await.map_err(|injected| EngineError::injected(&injected, self.profile))
    }

    async fn ask(&self, question: &Question) -> Result<Vec<SchemaObject>, EngineError> {
        self.pass().await?;
        let failed = refused("read the sandbox's catalogue", self.profile);
        let filter: [&(dyn ToSql + Sync); 2] = [&self.filter.schema, &self.filter.table];
        let statement = question.statement(self.transaction, self.filter).await.map_err(&failed)?;
        let rows = self.transaction.query_raw(&statement, filter).await.map_err(&failed)?;
        let mut rows = pin!(rows);
        let mut objects = Vec::new();
        while let Some(row) = rows.try_next().await.map_err(&failed)? {
            let Some(object) = self.object(&question.query, &row) else { continue };
            let bytes = bytes_of(&object);
            if self.bytes.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes) > SCHEMA_BYTES_MAX {
                return Err(too_large(self.spec));
            }
            objects.push(object);
        }
        Ok(objects)
    }

    /// Makes an object of a row; `None` if there is nothing in it but what every sandbox has.
    fn object(&self, query: &Query, row: &Row) -> Option<SchemaObject> {
        let names = &self.spec.names;
        let (mut kind, mut schema, mut of, mut name) = (query.kind, String::new(), None, String::new());
        let mut attributes = Vec::new();
        for (at, column) in row.columns().iter().enumerate() {
            let Ok(value) = row.try_get::<_, Option<&str>>(at) else { continue };
            if column.name() == "acl" {
                let granted = query.grants.and_then(|on| on.describe(value, names, self.major));
                attributes.extend(granted.map(|text| ("grants".to_owned(), text)));
                continue;
            }
            let Some(value) = value else { continue };
            match column.name() {
                "kind" => kind = SchemaKind::parse(value).unwrap_or(kind),
                "schema" => schema = schema_name(&neutral(value, names)),
                "of" => of = Some(schema_name(&neutral(value, names))),
                "name" => name = schema_name(&neutral(value, names)),
                "object" => name = neutral(value, names),
                "owner" if role(value, names) == OWNER => {}
                "owner" => attributes.push(("owner".to_owned(), role(value, names))),
                "definition" if self.major < views::UNQUALIFIED_SINCE && is_view(kind) => {
                    attributes.push(("definition".to_owned(), neutral(&views::unqualified(value), names)));
                }
                attribute => attributes.push((attribute.to_owned(), neutral(value, names))),
            }
        }
        if let (Naming::BelowTable, Some(of)) = (query.naming, &of) {
            name = format!("{of}.{name}");
        }
        let bare = matches!(kind, SchemaKind::DefaultPrivileges | SchemaKind::Database) && attributes.is_empty();
        (!bare).then_some(SchemaObject { key: SchemaKey { kind, schema, name }, of, attributes })
    }
}

fn is_view(kind: SchemaKind) -> bool {
    matches!(kind, SchemaKind::View | SchemaKind::MaterializedView)
}

/// What stands for the sandbox's owner role.
const OWNER: &str = "<owner>";
/// What stands for its reader.
const READER: &str = "<reader>";
/// What stands for its database.
const DATABASE: &str = "<database>";
/// What stands for the superuser that the cluster was made with.
const SUPERUSER: &str = "<superuser>";

/// Returns a text without the sandbox's own names.
fn neutral(text: &str, names: &SandboxNames) -> String {
    // Both roles' names begin with the database's, the owner's with the reader's.
    if !text.contains(&names.database) {
        return text.to_owned();
    }
    text.replace(&names.owner_role, OWNER).replace(&names.readonly_role, READER).replace(&names.database, DATABASE)
}

/// Returns a role by what it is to the sandbox, or by its name.
fn role(name: &str, names: &SandboxNames) -> String {
    match name {
        // whoever owns the database
        "pg_database_owner" => OWNER.to_owned(),
        "" => SUPERUSER.to_owned(),
        name => neutral(&schema_name(name), names),
    }
}

fn bytes_of(object: &SchemaObject) -> usize {
    let attributes: usize = object.attributes.iter().map(|(name, value)| name.len() + value.len()).sum();
    object.key.schema.len() + object.key.name.len() + attributes
}

fn too_large(spec: &SandboxSpec) -> EngineError {
    let text = format!(
        "the schema of sandbox `{}` has more than {} MiB of definitions",
        spec.names.database,
        SCHEMA_BYTES_MAX >> 20
    );
    EngineError::Known(Box::new(
        Failure::new(Code::InvalidArguments, text).hint("look at a part of it: say which `schema` or `table`"),
    ))
}
