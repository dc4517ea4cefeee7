//! One case, typed. Every key may be absent: what every case begins with is of this type as well.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::expect::Expect;
use super::facts::GivenStatement;
use super::words::Word;
use crate::model::{CredentialAccess, Impact, Origin, Phase, TlsMode, Transport};

/// A request in short form, and what is expected of it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Case {
    /// The fact that it shows.
    pub name: Option<String>,
    /// The policy's settings, whole.
    pub settings: Option<Map<String, Value>>,
    /// The owner who asks.
    #[serde(rename = "as")]
    pub owner: Option<String>,
    /// The authenticated identity, where it is not the owner.
    pub subject: Option<String>,
    /// The principal's groups.
    pub groups: Option<Vec<String>>,
    /// How the request arrived.
    pub transport: Option<Word<Transport>>,
    /// What the client calls itself.
    pub client: Option<String>,
    /// What is asked.
    pub operation: Option<String>,
    /// When.
    pub phase: Option<Word<Phase>>,
    /// What the operation does, where it is not what this program's does.
    pub impact: Option<Word<Impact>>,
    /// The owner named beneath the principal.
    pub group_owner: Option<String>,
    /// The time.
    pub now_ms: Option<u64>,
    /// The profile.
    pub profile: Option<String>,
    /// The kind of engine.
    pub engine: Option<String>,
    /// The server's major version.
    pub major: Option<u16>,
    /// Whether the program manages the cluster.
    pub managed: Option<bool>,
    /// Text for the reader.
    pub sql: Option<String>,
    /// Tokens left, by bucket.
    pub balances: Option<BTreeMap<String, u32>>,
    /// The sandbox that is meant.
    pub sandbox: Option<GivenSandbox>,
    /// The principal's use.
    pub usage: Option<GivenUsage>,
    /// The group owner's use.
    pub group_usage: Option<GivenUsage>,
    /// What is known of the statements, where no reader is at hand.
    pub statements: Option<Vec<GivenStatement>>,
    /// The database to be cloned.
    pub source: Option<GivenSource>,
    /// What the caller asks for.
    pub requested: Option<GivenRequested>,
    /// Facts of the result.
    pub outcome: Option<GivenOutcome>,
    /// What the policy is to say.
    pub expect: Option<Expect>,
}

/// An existing sandbox; one of the caller's where nothing is said.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
#[expect(missing_docs, reason = "they are the request's own fields, as the world describes them")]
pub struct GivenSandbox {
    pub id: Option<String>,
    pub name: Option<String>,
    pub owner: Option<String>,
    pub group_owner: Option<String>,
    pub origin: Option<Word<Origin>>,
    pub age_seconds: Option<u64>,
    pub seconds_left: Option<i64>,
    pub bytes: Option<u64>,
    pub labels: Option<BTreeMap<String, String>>,
}

/// Live sandboxes and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
#[expect(missing_docs, reason = "they are the request's own fields, as the world describes them")]
pub struct GivenUsage {
    pub live: u32,
    pub bytes: u64,
}

/// A database to be cloned.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
#[expect(missing_docs, reason = "they are the request's own fields, as the world describes them")]
pub struct GivenSource {
    pub name: Option<String>,
    pub host: Option<String>,
    pub port: Option<u16>,
    pub database: Option<String>,
    pub user: Option<String>,
    pub tls: Option<Word<TlsMode>>,
    pub production: bool,
    pub schema_only: bool,
    pub reason: Option<String>,
}

/// What the caller asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
#[expect(missing_docs, reason = "they are the request's own fields, as the world describes them")]
pub struct GivenRequested {
    pub ttl_minutes: Option<u64>,
    pub rows: Option<u64>,
    pub timeout_ms: Option<u64>,
    pub read_only: bool,
    pub credentials: Option<Word<CredentialAccess>>,
    pub extensions: Vec<String>,
    pub command: Vec<String>,
    pub labels: BTreeMap<String, String>,
}

/// Facts of a result.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
#[expect(missing_docs, reason = "they are the request's own fields, as the world describes them")]
pub struct GivenOutcome {
    pub rows: u64,
    pub bytes: u64,
    pub elapsed_ms: u64,
    pub columns: Vec<String>,
}

impl Case {
    /// Lays a case over what every case begins with: each of its keys replaces that one.
    #[must_use]
    pub fn over(self, given: &Self) -> Self {
        macro_rules! laid {
            ($($key:ident),+ $(,)?) => {
                Self { $($key: self.$key.or_else(|| given.$key.clone())),+ }
            };
        }
        laid!(
            name,
            settings,
            owner,
            subject,
            groups,
            transport,
            client,
            operation,
            phase,
            impact,
            group_owner,
            now_ms,
            profile,
            engine,
            major,
            managed,
            sql,
            balances,
            sandbox,
            usage,
            group_usage,
            statements,
            source,
            requested,
            outcome,
            expect,
        )
    }
}
