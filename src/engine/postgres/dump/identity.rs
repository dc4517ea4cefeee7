//! Tells whether two addresses lead to the same database.
//!
//! Names, aliases, tunnels and proxies make one server out of many addresses, so the server itself is asked. Its system
//! identifier is made with its data and kept by whatever is copied from its files: a standby is its primary here. Where a
//! server does not tell it, the moment at which it was started stands in: two servers do not share one to the microsecond.

use std::time::Duration;

use super::job::CloneJob;
use super::known;
use crate::engine::EngineError;
use crate::engine::postgres::startup::{APPLICATION_NAME, Purpose, startup_options};
use crate::engine::postgres::{
    Auth, PostgresUrl, Rest, ResultLimits, SandboxSession, SessionTarget, StatementCall, WireError,
};
use crate::model::{Code, Failure, Secret, fault};

/// How long a server may take to say who it is.
const ANSWER_WAIT: Duration = Duration::from_secs(10);

/// What every role may ask.
const STARTED: &str =
    "SELECT d.oid::text, pg_postmaster_start_time()::text FROM pg_database d WHERE d.datname = current_database()";
/// What most roles may ask.
const SYSTEM: &str = "SELECT system_identifier::text FROM pg_control_system()";

/// Which database of which server.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Identity {
    database: String,
    started: String,
    system: Option<String>,
}

impl Identity {
    fn is(&self, other: &Self) -> bool {
        let same_server = match (&self.system, &other.system) {
            (Some(ours), Some(theirs)) => ours == theirs,
            (None, _) | (_, None) => self.started == other.started,
        };
        same_server && self.database == other.database
    }
}

/// Refuses a source that is one of the databases which it must not be, and one of which that cannot be told.
pub(super) async fn refuse_guarded(session: &mut SandboxSession, job: &CloneJob) -> Result<(), EngineError> {
    if job.options.guarded.is_empty() {
        return Ok(());
    }
    let shown = &job.shown;
    let ours = ask(session).await.map_err(|error| {
        let text = format!("{shown} does not say which database it is: {error}");
        known(Failure::new(Code::SourceNotAllowed, text).hint("clone a configured source, by its name"))
    })?;
    for (name, url) in &job.options.guarded {
        let theirs = of(url).await.map_err(|error| {
            let text = format!("whether {shown} is production source `{name}` cannot be told, as that does not answer");
            let hint = format!("see that `{name}` is reached as configured, or clone a configured source, by its name");
            known(Failure::new(Code::SourceNotAllowed, text).hint(hint).audit(error.to_string()))
        })?;
        if ours.is(&theirs) {
            let text = format!("{shown} is the database of production source `{name}`, by another address");
            let hint = format!("ask for it by its name: `source` `{name}`, with a `reason`");
            return Err(known(Failure::new(Code::SourceNotAllowed, text).hint(hint)));
        }
    }
    Ok(())
}

/// Logs in, and asks a server which one it is.
async fn of(url: &PostgresUrl) -> Result<Identity, WireError> {
    fault::pass("socket.guarded-login").await.map_err(|e| WireError::Lost(std::io::Error::from(e).to_string()))?;
    let target = SessionTarget {
        endpoint: url.endpoint.clone(),
        database: url.database.clone(),
        user: url.credentials.user.clone(),
        password: url.credentials.password.clone().unwrap_or_else(|| Secret::new("")),
        application_name: APPLICATION_NAME.to_owned(),
        options: startup_options(super::preflight::MAJOR_MIN, Purpose::Source),
        auth: Auth::AsServerAsks,
        connect_timeout: url.connect_timeout,
    };
    ask(&mut SandboxSession::connect(&target).await?).await
}

async fn ask(session: &mut SandboxSession) -> Result<Identity, WireError> {
    let mut first = texts(session, STARTED).await?.into_iter();
    let (Some(database), Some(started)) = (first.next(), first.next()) else {
        return Err(WireError::Protocol("it says nothing of itself"));
    };
    let system = match texts(session, SYSTEM).await {
        Ok(row) => row.into_iter().next(),
        // It is not everybody's to know on some servers.
        Err(WireError::Statement(_)) => None,
        Err(error) => return Err(error),
    };
    Ok(Identity { database, started, system })
}

/// Returns the values of a row, as far as there are any.
async fn texts(session: &mut SandboxSession, text: &str) -> Result<Vec<String>, WireError> {
    let timeout = fault::within(ANSWER_WAIT);
    let limits = ResultLimits::default();
    let call = StatementCall { text, params: &[], limits, rest: Rest::Unfetched, timeout, copy_in: None };
    let set = session.execute_read_only(&call).await?;
    Ok(set.rows.first().into_iter().flatten().filter_map(|cell| cell.text().map(str::to_owned)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_standby_is_its_primary_and_another_database_is_none() {
        let of = |database: &str, started: &str, system: Option<&str>| Identity {
            database: database.into(),
            started: started.into(),
            system: system.map(str::to_owned),
        };
        let shop = of("5", "monday", Some("7"));
        for (other, same) in [
            (of("5", "tuesday", Some("7")), true),
            (of("6", "monday", Some("7")), false),
            (of("5", "monday", Some("8")), false),
            (of("5", "monday", None), true),
            (of("5", "tuesday", None), false),
        ] {
            assert_eq!((shop.is(&other), other.is(&shop)), (same, same), "{other:?}");
        }
    }
}
