//! Facts that every call asks for: which sandbox is meant, and what its owners have live.
//!
//! They are read over the session whose lock says that we live. It is there anyway, so a call neither waits for
//! another's session nor makes one of its own, and its few statements are prepared once. Calls read over it side by
//! side, each answered in turn: nothing here takes a lock, opens a transaction or changes anything. Where that session
//! is lost, one out of the pool answers.

use std::ops::Deref;
use std::sync::Arc;

use tokio::sync::OnceCell;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Row, Statement};
use uuid::Uuid;

use super::record::{self, SANDBOX_COLUMNS, SANDBOX_COLUMNS_COUNT as MORE};
use super::{Find, Sandbox, Store, StoreError, StoreSession};
use crate::model::{Usage, fault};

/// The session whose lock says that we live, and what is prepared on it.
pub(super) struct Presence {
    session: StoreSession,
    by_id: OnceCell<Statement>,
    by_name: OnceCell<Statement>,
    counted_by_id: OnceCell<Statement>,
    counted_by_name: OnceCell<Statement>,
}

/// What is asked in every call's way.
#[derive(Clone, Copy)]
enum Question {
    /// A sandbox by id.
    ById,
    /// A sandbox by its database's name.
    ByName,
    /// The same, with what its owner and its group owner have live.
    CountedById,
    CountedByName,
}

/// What an owner, and the group owner that is named, have live.
pub type LiveUse = (Usage, Option<Usage>);

/// What the owner and the group owner of sandbox `b` have live, counted like a reservation counts.
const COUNTS: &str = "
    cross join lateral (
        select count(*) as live, coalesce(sum(u.bytes), 0)::bigint as bytes from pgsandbox.sandboxes u
        where u.prefix = b.prefix and u.owner = b.owner and u.kind = 'sandbox'
          and u.state in ('creating', 'ready') and u.state not in ('deleted', 'failed')) o
    cross join lateral (
        select count(*) as live, coalesce(sum(u.bytes), 0)::bigint as bytes from pgsandbox.sandboxes u
        where b.group_owner is not null and u.prefix = b.prefix and u.owner = b.owner and u.group_owner = b.group_owner
          and u.kind = 'sandbox' and u.state in ('creating', 'ready') and u.state not in ('deleted', 'failed')) g";

impl Question {
    fn sql(self) -> String {
        let condition = match self {
            Self::ById | Self::CountedById => "b.id = $2",
            Self::ByName | Self::CountedByName => "b.database_name = $2",
        };
        let (columns, counts) = match self {
            Self::ById | Self::ByName => ("", ""),
            Self::CountedById | Self::CountedByName => (", o.live, o.bytes, g.live, g.bytes", COUNTS),
        };
        format!(
            "select {SANDBOX_COLUMNS}{columns} from pgsandbox.sandboxes b{counts} where b.prefix = $1 and {condition}"
        )
    }

    fn types(self) -> [Type; 2] {
        match self {
            Self::ById | Self::CountedById => [Type::TEXT, Type::UUID],
            Self::ByName | Self::CountedByName => [Type::TEXT, Type::TEXT],
        }
    }
}

impl Presence {
    pub(super) fn new(session: StoreSession) -> Self {
        let cell = OnceCell::new;
        Self { session, by_id: cell(), by_name: cell(), counted_by_id: cell(), counted_by_name: cell() }
    }

    fn prepared(&self, question: Question) -> &OnceCell<Statement> {
        match question {
            Question::ById => &self.by_id,
            Question::ByName => &self.by_name,
            Question::CountedById => &self.counted_by_id,
            Question::CountedByName => &self.counted_by_name,
        }
    }

    async fn ask(
        &self,
        question: Question,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Option<Row>, tokio_postgres::Error> {
        let prepare = || async { self.session.prepare_typed(&question.sql(), &question.types()).await };
        let statement = self.prepared(question).get_or_try_init(prepare).await?;
        self.session.query_opt(statement, params).await
    }
}

impl Deref for Presence {
    type Target = StoreSession;

    fn deref(&self) -> &StoreSession {
        &self.session
    }
}

impl Store {
    /// Returns a sandbox in any state.
    ///
    /// # Errors
    /// Fails if the metadata cannot be read.
    pub async fn find(&self, find: &Find) -> Result<Option<Sandbox>, StoreError> {
        self.pass("find").await?;
        let row = match find {
            Find::Id(id) => self.ask(Question::ById, &Uuid::from(*id)).await,
            Find::Name(name) => self.ask(Question::ByName, name).await,
        };
        row?.map(|row| record::sandbox(&self.profile, &row)).transpose()
    }

    /// Returns a sandbox in any state, and what its owner and its group owner have live: one question, and so of one
    /// moment.
    ///
    /// # Errors
    /// Fails if the metadata cannot be read.
    pub async fn find_counted(&self, find: &Find) -> Result<Option<(Sandbox, LiveUse)>, StoreError> {
        self.pass("find-counted").await?;
        let row = match find {
            Find::Id(id) => self.ask(Question::CountedById, &Uuid::from(*id)).await,
            Find::Name(name) => self.ask(Question::CountedByName, name).await,
        };
        let Some(row) = row? else { return Ok(None) };
        let sandbox = record::sandbox(&self.profile, &row)?;
        let usage = |at: usize| Usage {
            live: u32::try_from(row.get::<_, i64>(MORE + at)).unwrap_or(u32::MAX),
            bytes: u64::try_from(row.get::<_, i64>(MORE + at + 1)).unwrap_or(0),
        };
        let grouped = sandbox.group_owner.is_some().then(|| usage(2));
        Ok(Some((sandbox, (usage(0), grouped))))
    }

    async fn ask(&self, question: Question, which: &(dyn ToSql + Sync)) -> Result<Option<Row>, StoreError> {
        if let Some(presence) = self.to_read().await {
            match presence.ask(question, &[&self.prefix, which]).await {
                Err(error) if another_may_answer(&error) => log_lost(&error),
                answer => return answer.map_err(self.typed("find a sandbox")),
            }
        }
        let session = self.sessions.session().await.map_err(|error| error.of_profile(&self.profile))?;
        let [of_prefix, of_which] = question.types();
        let params: [(&(dyn ToSql + Sync), Type); 2] = [(&self.prefix, of_prefix), (which, of_which)];
        session.query_typed_opt(&question.sql(), &params).await.map_err(self.typed("find a sandbox"))
    }

    /// Asks what the first call after a start, or after a pause, asks as well: the same way, but not prepared. `sql` only
    /// reads, and needs nothing that is not there once the store is open.
    pub(super) async fn read(
        &self,
        what: &'static str,
        sql: &str,
        params: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Vec<Row>, StoreError> {
        if let Some(presence) = self.to_read().await {
            match presence.query_typed(sql, params).await {
                Err(error) if another_may_answer(&error) => log_lost(&error),
                answer => return answer.map_err(self.typed(what)),
            }
        }
        let session = self.sessions.session().await.map_err(|error| error.of_profile(&self.profile))?;
        session.query_typed(sql, params).await.map_err(self.typed(what))
    }

    /// Returns the session that says that we live, to read over.
    async fn to_read(&self) -> Option<Arc<Presence>> {
        let presence = self.present().await?;
        fault::pass("store.present").await.ok().map(|()| presence)
    }
}

fn log_lost(error: &tokio_postgres::Error) {
    tracing::debug!(%error, "the session that says that we live does not answer");
}

/// Returns whether an error is the session's own: it was lost, or what was prepared on it is of no more use.
fn another_may_answer(error: &tokio_postgres::Error) -> bool {
    // admin_shutdown, crash_shutdown, cannot_connect_now; a plan whose table was changed, a statement that is gone
    let codes = ["57P01", "57P02", "57P03", "0A000", "26000"];
    error.as_db_error().is_none_or(|db| codes.contains(&db.code().code()))
}
