//! Changes of rows that others change all the time: databases' rows, and what lies in another sandbox's database.
//!
//! The server refuses a change of what has changed since it was read, so whoever changes it over and over leaves no moment for
//! it. Every second time it waits in line for databases' rows; and the owners of sandboxes whose rows are seen to change are
//! kept out until it is done, as nothing else helps where the line cannot be had or the row is another. That lasts for a moment, and
//! what is limited so is set back by the owner's next call, should this one not come to it.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;
use tokio_postgres::Client;
use tokio_postgres::types::Type;

use super::delete::{DROP_ATTEMPTS_MAX, DROP_LOCK_TIMEOUT, Other};
use super::{Work, contended, is_changed, is_contention};
use crate::engine::EngineError;
use crate::engine::postgres::admin::{AdminSession, literal, refused};
use crate::model::fault;

/// Nobody changes a database's row meanwhile, and we do: whoever does so over and over leaves no moment for it otherwise, as
/// the server refuses a change of what has changed since it was read. Who waits in line is in no such race, and it is seen
/// whom for. It is but for one short transaction, and who logs in or reads does not wait for it.
pub(super) const LOCK_DATABASES: &str = "LOCK TABLE pg_catalog.pg_database IN SHARE ROW EXCLUSIVE MODE";
/// For how long it is tried against others who change the same rows.
const PATIENT_FOR: Duration = Duration::from_secs(20);
/// The first pause before another try; each is twice the one before.
const PAUSE: Duration = Duration::from_millis(20);
/// The longest.
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// How long it is tried yet against others who change the same rows.
pub(super) struct Patience {
    until: Instant,
    pause: Duration,
}

impl Patience {
    pub(super) fn begin() -> Self {
        Self { until: Instant::now() + fault::within(PATIENT_FOR), pause: PAUSE }
    }

    /// Returns whether it is worth another try, of which there were so many of so many, after an error.
    pub(super) fn goes_on(&self, error: &EngineError, attempt: u32, attempts_max: u32) -> bool {
        let is_changed = matches!(error, EngineError::Refused { sqlstate, .. } if is_changed(sqlstate));
        is_contention(error) && (attempt < attempts_max || is_changed && Instant::now() < self.until)
    }

    pub(super) async fn pause(&mut self) {
        tokio::time::sleep(self.pause).await;
        self.pause = PAUSE_MAX.min(self.pause * 2);
    }
}

/// Who changes what is to be changed.
#[derive(Default)]
pub(super) struct Changers {
    /// The versions of databases' rows, at the last look.
    before: Option<HashMap<String, String>>,
    /// They are kept out.
    barred: Vec<Other>,
}

impl Work<'_> {
    /// Executes a statement that takes a role's rights and what it owns away, `within` another sandbox's database or where
    /// that is none.
    pub(super) async fn take_from(
        &self,
        session: &AdminSession,
        within: Option<&Other>,
        role: &str,
        (action, sql): (&'static str, String),
    ) -> Result<(), EngineError> {
        let inside = within.map(|other| other.database.as_str());
        let alone = vec![format!("SET LOCAL lock_timeout = {}", literal(DROP_LOCK_TIMEOUT)), sql];
        let mut in_line = alone.clone();
        if self.info.superuser {
            in_line.insert(1, LOCK_DATABASES.to_owned());
        }
        let mut changers = Changers::default();
        let mut patience = Patience::begin();
        let mut attempt = 0;
        let outcome = loop {
            attempt += 1;
            // As a database that somebody else makes meanwhile may be long in the making.
            let statements = if attempt % 2 == 0 { &in_line } else { &alone };
            let taken = self.together(session, action, statements);
            let outcome = if attempt == 1 {
                self.attended(taken).await
            } else {
                self.against_holders(session, inside, taken).await
            };
            match outcome {
                Err(error) if patience.goes_on(&error, attempt, DROP_ATTEMPTS_MAX) => {}
                outcome => break outcome.map_err(contended),
            }
            if let Err(error) = self.keep_out(session, &[role], within, &mut changers).await {
                break Err(error);
            }
            patience.pause().await;
        };
        self.let_in_again(session, changers).await;
        outcome
    }

    /// Keeps those out whose databases' rows name one of the roles and have changed since the last look, or else, where none
    /// has, who owns the database that it happens within.
    pub(super) async fn keep_out(
        &self,
        session: &Client,
        roles: &[&str],
        within: Option<&Other>,
        changers: &mut Changers,
    ) -> Result<(), EngineError> {
        let rows = session
            .query_typed(
                "SELECT d.datname::text, pg_catalog.pg_get_userbyid(d.datdba)::text, d.xmin::text \
                 FROM pg_catalog.pg_database d WHERE d.oid IN (SELECT s.objid FROM pg_catalog.pg_shdepend s \
                 JOIN pg_catalog.pg_roles r ON r.oid = s.refobjid WHERE r.rolname = ANY ($1) \
                 AND s.refclassid = 'pg_catalog.pg_authid'::pg_catalog.regclass \
                 AND s.classid = 'pg_catalog.pg_database'::pg_catalog.regclass)",
                &[(&roles, Type::NAME_ARRAY)],
            )
            .await
            .map_err(refused("look who changes what a role may do", self.profile()))?;
        let version = |row: &tokio_postgres::Row| (row.get(0), row.get(2));
        let Some(before) = changers.before.replace(rows.iter().map(version).collect()) else { return Ok(()) };
        let mut changing: Vec<(&str, &str)> = Vec::new();
        for row in &rows {
            let (database, owner, version): (&str, &str, &str) = (row.get(0), row.get(1), row.get(2));
            let is_others = self.is_sandbox(database, owner) && !self.is_its_own(owner) && !roles.contains(&owner);
            if is_others && before.get(database).is_some_and(|before| before != version) {
                changing.push((database, owner));
            }
        }
        if let Some(other) = within.filter(|other| changing.is_empty() && !other.is_barred()) {
            changing.push((&other.database, &other.owner));
        }
        for (database, owner) in changing {
            if changers.barred.iter().any(|other| other.database == database) {
                self.terminate_role(session, owner).await?;
                continue;
            }
            tracing::warn!(sandbox = %self.spec.id, database, "whose rows change all the time is kept out for a moment");
            let mut other = Other::new(database.to_owned(), owner.to_owned());
            let barred = self.bar(session, &mut other).await;
            changers.barred.push(other);
            barred?;
        }
        Ok(())
    }

    /// Lets those in again that were kept out.
    pub(super) async fn let_in_again(&self, session: &Client, changers: Changers) {
        for other in &changers.barred {
            if let Err(error) = self.unbar(session, other).await {
                tracing::warn!(database = other.database, %error, "who was kept out for a moment is let in by the next call");
            }
        }
    }
}
