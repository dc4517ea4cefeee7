//! What the sandboxes of a managed cluster share and one of them could take from all: who has it, and how it is taken back.

use std::collections::HashMap;

use super::greed::Owners;
use super::relief::{self, Watch, Why};
use super::{ADMIN_DATABASE, LOGIN_WAIT, ManagedCluster, Paths, check_serves, crowd, open_admitted};
use crate::engine::postgres::admin::{AdminSession, Login};

impl ManagedCluster {
    /// Makes room in a server that lets nobody in, by ending sessions. Returns whether it is worth another try.
    pub(in crate::engine::postgres) async fn relieve(&self) -> bool {
        let asked = tokio::time::Instant::now();
        let Some(paths) = self.existing() else { return false };
        self.relief.lock().await.relieve(&paths, asked).await
    }

    /// Makes room where sandboxes other than that of `database` have taken what all share. Returns whether they had.
    pub(in crate::engine::postgres) async fn relieve_of_others(&self, database: &str) -> bool {
        let Some(paths) = self.existing() else { return false };
        self.see_to_a_session(&paths).await;
        let asked = tokio::time::Instant::now();
        self.relief.lock().await.relieve_of_others(&paths, asked, database).await
    }

    /// Keeps those out for a while that took all again as soon as they had lost it: what a relief calls for once a session is
    /// there.
    pub(in crate::engine::postgres) async fn hold_off(&self, session: &AdminSession) {
        let mut relief = self.relief.lock().await;
        if relief.calls_for_more()
            && let Some(paths) = self.existing()
        {
            relief.hold_off(&paths, session).await;
        }
    }

    /// Makes room for programs that cannot tell who took all, where this one can; sees to it that it can as soon as the server
    /// runs. Starts nothing.
    pub(in crate::engine::postgres) async fn relieve_others(&self) {
        let Some(paths) = self.existing() else { return };
        self.see_to_a_session(&paths).await;
        self.relief.lock().await.relieve_others(&paths).await;
    }

    /// Returns whether few connections are left; `false` where it cannot be told. Starts nothing.
    pub(in crate::engine::postgres) async fn is_crowded(&self) -> bool {
        let Some(paths) = self.existing() else { return false };
        self.see_to_a_session(&paths).await;
        let relief = self.relief.lock().await;
        match relief.session() {
            Some(session) => crowd::is_crowded(session).await,
            None => false,
        }
    }

    /// Ends direct sessions of the owner who has taken more than its share of the connections, where few are left, and keeps
    /// out who does so again. `owners` are those of the sandboxes, where they are known better than before. Returns whether any
    /// were ended.
    pub(in crate::engine::postgres) async fn part_crowd(&self, owners: Option<HashMap<String, String>>) -> bool {
        let Some(paths) = self.existing() else { return false };
        let mut relief = self.relief.lock().await;
        if let Some(owners) = owners {
            relief.know(Owners::new(owners));
        }
        match relief.session() {
            Some(session) => crowd::part(&paths, session, relief.owners()).await,
            None => false,
        }
    }

    /// Keeps a sandbox out for a while that has taken what all share, by one of its roles, and ends its sessions.
    pub(in crate::engine::postgres) async fn keep_out(&self, session: &AdminSession, role: &str, why: Why) {
        if let Some(paths) = self.existing() {
            relief::keep_out(&paths, session, relief::database_of(role), why).await;
        }
    }

    /// Returns the databases of the sandboxes that are kept out for what they took, and what that is.
    pub(in crate::engine::postgres) fn held_off(&self) -> Vec<(String, Why)> {
        self.existing().map(|paths| relief::held_off(&paths)).unwrap_or_default()
    }

    /// Returns what a sandbox is kept out for, if it is, by its database's name.
    pub(in crate::engine::postgres) fn is_held_off(&self, database: &str) -> Option<Why> {
        self.existing().and_then(|paths| relief::is_held_off(&paths, database))
    }

    /// Returns the databases of the sandboxes that were kept out and need not be any more; none is told twice.
    pub(in crate::engine::postgres) fn let_in_again(&self) -> Vec<String> {
        self.existing().map(|paths| relief::let_in_again(&paths)).unwrap_or_default()
    }

    /// Sees that a session is there, and answers, which can tell who holds the locks on the day when none can be opened; and
    /// notes the owner of each sandbox, by its database's name.
    pub(in crate::engine::postgres) async fn keep_watch(&self, owners: HashMap<String, String>) {
        let Some(paths) = self.existing() else { return };
        let mut relief = self.relief.lock().await;
        relief.know(Owners::new(owners));
        relief.forget_a_silent_session().await;
        drop(relief);
        self.see_to_a_session(&paths).await;
    }

    /// Opens that session where there is none, if the server runs and lets the admin in.
    async fn see_to_a_session(&self, paths: &Paths) {
        if self.relief.lock().await.has_session() {
            return;
        }
        // Not under the lock: a server that does not answer would keep those waiting who want it relieved.
        if let Some(session) = self.watching_session(paths).await {
            let mut relief: tokio::sync::MutexGuard<'_, Watch> = self.relief.lock().await;
            if !relief.has_session() {
                relief.watch_by(session).await;
            }
        }
    }

    async fn watching_session(&self, paths: &Paths) -> Option<AdminSession> {
        let running = self.address(paths).ok()??;
        let login = Login {
            endpoint: &running.endpoint,
            credentials: &running.admin,
            database: ADMIN_DATABASE,
            timeout: LOGIN_WAIT,
            answer: LOGIN_WAIT,
        };
        let session = open_admitted(&login, paths.major).await.ok()?;
        check_serves(paths, &session).await.ok()?;
        Some(session)
    }
}
