//! Brings the metadata schema to this program's version, at start-up.
//!
//! One transaction under an advisory lock: servers that start together take turns, and a migration is there
//! whole or not at all. A schema that this program did not write, or a newer one, is refused and not touched.

use sha2::{Digest, Sha256};
use tokio_postgres::{GenericClient, Transaction};

use super::{StoreError, StoreSession};
use crate::model::fault;

/// The migrations, in order; the number is the place in the list, from 1. None is ever changed.
const MIGRATIONS: &[(&str, &str)] = &[
    ("lifecycle", include_str!("migrations/0001_lifecycle.sql")),
    ("login_turning", include_str!("migrations/0002_login_turning.sql")),
    ("copies", include_str!("migrations/0003_copies.sql")),
    ("approvals", include_str!("migrations/0004_approvals.sql")),
];

/// Serialises migrations of servers that start together. Any number that nobody else uses will do.
const MIGRATION_LOCK: i64 = 0x7067_7362_6d69_6772;

/// What this program's schema says of itself, so that it can be told from another's of the same name.
const SIGNATURE: &str = "pgsandbox metadata; written by pgsandbox, see pgsandbox.migrations";

/// The newest version this program knows.
fn known_version() -> i32 {
    i32::try_from(MIGRATIONS.len()).unwrap_or(i32::MAX)
}

/// Checks the schema without changing anything. Returns whether it is there in this program's version.
pub(super) async fn look(session: &StoreSession) -> Result<bool, StoreError> {
    Ok(installed(&**session).await?.version() == Some(known_version()))
}

/// Checks the schema, and migrates it where it is missing or older.
pub(super) async fn migrate(session: &mut StoreSession) -> Result<(), StoreError> {
    if installed(&**session).await?.version() == Some(known_version()) {
        return Ok(());
    }
    let transaction = session.transaction().await.map_err(StoreError::from_driver("begin migrating"))?;
    transaction
        .query("select pg_catalog.pg_advisory_xact_lock($1)", &[&MIGRATION_LOCK])
        .await
        .map_err(StoreError::from_driver("take turns migrating"))?;
    // Again, now that nobody else migrates.
    let installed = installed(&transaction).await?;
    match installed {
        Installed::Nothing => found_schema(&transaction, "create schema pgsandbox").await?,
        Installed::Empty => found_schema(&transaction, "").await?,
        Installed::Version(_) => {}
    }
    let done = usize::try_from(installed.version().unwrap_or(0)).unwrap_or(0);
    for (number, (name, sql)) in (1i32..).zip(MIGRATIONS).skip(done) {
        transaction.batch_execute(sql).await.map_err(StoreError::from_driver("migrate the metadata"))?;
        transaction
            .execute(
                "insert into pgsandbox.migrations (number, name, sha256) values ($1, $2, $3)",
                &[&number, name, &digest(sql)],
            )
            .await
            .map_err(StoreError::from_driver("record a migration"))?;
    }
    fault::pass("store.migrate-commit").await.map_err(|injected| StoreError::injected(&injected))?;
    transaction.commit().await.map_err(StoreError::from_driver("commit the migration"))?;
    fault::pass("store.migrate-commit.written").await.map_err(|injected| StoreError::injected(&injected))
}

/// What is there of our schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Installed {
    /// No schema of our name, and the right to make it.
    Nothing,
    /// One with nothing in it, ours to use: made beforehand, for an admin that may make none.
    Empty,
    /// Our own, of this version.
    Version(i32),
}

impl Installed {
    fn version(self) -> Option<i32> {
        match self {
            Self::Nothing | Self::Empty => None,
            Self::Version(version) => Some(version),
        }
    }
}

async fn found_schema(transaction: &Transaction<'_>, create: &str) -> Result<(), StoreError> {
    let sql = format!(
        "{create};
         comment on schema pgsandbox is '{SIGNATURE}';
         create table pgsandbox.migrations (
             number integer primary key, name text not null, sha256 bytea not null,
             applied_at timestamptz not null default pg_catalog.now())"
    );
    transaction.batch_execute(&sql).await.map_err(StoreError::from_driver("create the metadata schema"))
}

/// Looks what is there.
async fn installed(client: &impl GenericClient) -> Result<Installed, StoreError> {
    let typed = StoreError::from_driver("read the metadata's version");
    let row = client
        .query_one(
            "select pg_catalog.current_database()::text, n.oid is not null,
                    coalesce(pg_catalog.obj_description(n.oid, 'pg_namespace'), ''), current_user::text,
                    case when n.oid is null
                         then pg_catalog.has_database_privilege(pg_catalog.current_database(), 'CREATE')
                         else pg_catalog.pg_has_role(n.nspowner, 'USAGE') end,
                    coalesce(pg_catalog.has_schema_privilege(n.oid, 'USAGE'), false),
                    not exists (select from pg_catalog.pg_depend d
                                where d.refclassid = 'pg_catalog.pg_namespace'::regclass and d.refobjid = n.oid)
             from (values (1)) one left join pg_catalog.pg_namespace n on n.nspname = 'pgsandbox'",
            &[],
        )
        .await
        .map_err(&typed)?;
    let (database, exists, comment): (String, bool, String) = (row.get(0), row.get(1), row.get(2));
    let (role, may, usable, empty): (String, bool, bool, bool) = (row.get(3), row.get(4), row.get(5), row.get(6));
    if !exists {
        return if may { Ok(Installed::Nothing) } else { Err(StoreError::NoRight { database, role }) };
    }
    // Whoever owns it may have let others use it once it was made.
    let made_beforehand = comment.is_empty() && empty;
    if !may && (made_beforehand || !usable) {
        return Err(StoreError::NotOwned { database, role });
    }
    if made_beforehand {
        return Ok(Installed::Empty);
    }
    if comment != SIGNATURE {
        return Err(StoreError::Foreign { database, fault: "it does not bear our comment".to_owned() });
    }
    let rows =
        client.query("select number, sha256 from pgsandbox.migrations order by number", &[]).await.map_err(&typed)?;
    let found = i32::try_from(rows.len()).unwrap_or(i32::MAX);
    if found > known_version() {
        return Err(StoreError::Newer { database, found, known: known_version() });
    }
    for ((row, expected), (name, sql)) in rows.iter().zip(1i32..).zip(MIGRATIONS) {
        let (number, sha256): (i32, Vec<u8>) = (row.get(0), row.get(1));
        if number != expected || sha256 != digest(sql) {
            return Err(StoreError::Foreign { database, fault: format!("migration `{name}` is not the one we know") });
        }
    }
    Ok(Installed::Version(found))
}

fn digest(sql: &str) -> Vec<u8> {
    Sha256::digest(sql.as_bytes()).to_vec()
}
