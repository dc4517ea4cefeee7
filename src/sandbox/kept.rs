//! What the pool keeps: sessions for the caller's SQL, and those that read catalogues for us.

use async_trait::async_trait;

use super::pool::Reusable;
use crate::engine::postgres::{CatalogueSession, SandboxSession};

/// A session that waits for the next call. Which of the two it is, its place in the pool says.
pub(super) enum Kept {
    /// For the caller's SQL.
    Sql(SandboxSession),
    /// For reading the catalogue.
    Catalogue(CatalogueSession),
}

impl Kept {
    pub(super) fn sql(self) -> Option<SandboxSession> {
        match self {
            Self::Sql(session) => Some(session),
            Self::Catalogue(_) => None,
        }
    }

    pub(super) fn catalogue(self) -> Option<CatalogueSession> {
        match self {
            Self::Catalogue(session) => Some(session),
            Self::Sql(_) => None,
        }
    }
}

#[async_trait]
impl Reusable for Kept {
    fn is_usable(&self) -> bool {
        match self {
            Self::Sql(session) => session.is_usable(),
            Self::Catalogue(session) => session.is_open(),
        }
    }

    fn is_quiet(&self) -> bool {
        match self {
            Self::Sql(session) => session.is_quiet(),
            Self::Catalogue(session) => session.is_open(),
        }
    }

    async fn reset(&mut self) -> bool {
        match self {
            Self::Sql(session) => session.reset().await.is_ok(),
            // Only statements of ours ran in it, in a transaction that is over, and none of them sets anything beyond that.
            Self::Catalogue(_) => true,
        }
    }
}
