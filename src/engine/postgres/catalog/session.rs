//! A session that reads one sandbox's catalogue more than once: the server keeps what it has made of each question.
//!
//! It is the sandbox's reader's, with `search_path` and ways of writing pinned, and runs nothing but the walker's questions.

use std::sync::{Arc, OnceLock};

use tokio_postgres::types::Type;
use tokio_postgres::{Statement, Transaction};

use super::{Query, queries};
use crate::engine::postgres::access::catalogue_session;
use crate::engine::postgres::admin::AdminSession;
use crate::engine::postgres::server::PostgresServer;
use crate::engine::{EngineError, SandboxSpec};
use crate::model::{CredentialAccess, SchemaFilter};

/// A session that reads one sandbox's catalogue. Never for a caller's SQL.
pub struct CatalogueSession {
    pub(super) session: AdminSession,
    pub(super) questions: Vec<Question>,
}

/// A question, and what the server knows it by once it has been asked for the whole, a schema, a table, or a table in a
/// schema: each has its own best way to be answered.
pub(super) struct Question {
    pub(super) query: Query,
    known: [OnceLock<Statement>; 4],
}

impl CatalogueSession {
    /// Logs in.
    pub(in crate::engine::postgres) async fn open(
        server: &Arc<PostgresServer>,
        spec: &SandboxSpec,
    ) -> Result<Self, EngineError> {
        let session = catalogue_session(server, spec, CredentialAccess::ReadOnly).await?;
        let question = |query| Question { query, known: Default::default() };
        let questions = queries(session.major()).into_iter().map(question).collect();
        Ok(Self { session, questions })
    }

    /// Returns whether the connection stands, as far as is known.
    pub fn is_open(&self) -> bool {
        !self.session.is_closed()
    }
}

impl Question {
    /// Returns the statement for such a filter, which the server reads the first time.
    pub(super) async fn statement(
        &self,
        transaction: &Transaction<'_>,
        filter: &SchemaFilter,
    ) -> Result<Statement, tokio_postgres::Error> {
        let [whole, schema, table, both] = &self.known;
        let known = match (&filter.schema, &filter.table) {
            (None, None) => whole,
            (Some(_), None) => schema,
            (None, Some(_)) => table,
            (Some(_), Some(_)) => both,
        };
        if let Some(statement) = known.get() {
            return Ok(statement.clone());
        }
        let statement = transaction.prepare_typed(&self.query.bounded(filter), &[Type::TEXT, Type::TEXT]).await?;
        Ok(known.get_or_init(|| statement).clone())
    }
}
