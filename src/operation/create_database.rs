//! Makes a sandbox.

use std::collections::BTreeMap;

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::arguments::Whole;
use super::new_sandbox::{self, NewSandbox};
use super::selector::ProfileSelector;
use super::{About, Ahead, Asks, Call, Done, Operation, Spec, Toolset, connection};
use crate::admission::{Admissible, Effective, Grant, Permit};
use crate::model::{CredentialAccess, Failure, Impact, ObligationKind, Origin};
use crate::sandbox::{self, BUILT_IN_EXTENSION, CreateRequest, Idempotency, Sandbox};

/// Arguments of `create_database`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct CreateDatabase {
    #[serde(flatten)]
    pub(super) profile: ProfileSelector,
    /// What the sandbox is for; becomes part of its name.
    pub(super) name_hint: Option<String>,
    /// Minutes to live, from 1 to the profile's maximum; default: the profile's default. Never clamped.
    pub(super) ttl_minutes: Option<Whole>,
    /// A group of work beneath you, a task for instance; has a quota of its own.
    pub(super) owner: Option<String>,
    /// Labels, up to 32.
    pub(super) labels: Option<BTreeMap<String, String>>,
    /// Extensions to install, up to 25.
    pub(super) extensions: Option<Vec<String>>,
    /// A template of yours to copy; default: empty.
    pub(super) template_name: Option<String>,
    /// Repeating a call with the same key gives the same sandbox instead of a second one.
    pub(super) idempotency_key: Option<String>,
}

/// A sandbox as its maker sees it.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Created {
    database_id: String,
    profile: String,
    resolved_profile: String,
    resolved_postgres_version: String,
    database_name: String,
    role_name: String,
    expires_at: String,
    connection_string_redacted: String,
    connection_strings_redacted: ConnectionStrings,
    connection_usage: String,
    installed_extensions: Vec<String>,
}

/// Connection strings by where they are used from; the password is replaced by `***`.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct ConnectionStrings {
    pub(super) direct: String,
}

impl CreateDatabase {
    /// Returns the idempotency key with the digest of everything else that was asked for.
    fn idempotency(&self) -> Option<Idempotency> {
        let key = self.idempotency_key.clone()?;
        let asked = serde_json::json!([
            self.profile.profile,
            self.profile.postgres_version,
            self.name_hint,
            self.ttl_minutes.map(Whole::shown),
            self.owner,
            self.labels,
            self.extensions,
            self.template_name,
        ]);
        Some(Idempotency { key, digest: Sha256::digest(asked.to_string()).into() })
    }
}

impl CreateDatabase {
    fn new_sandbox(&self) -> NewSandbox<'_> {
        NewSandbox {
            name_hint: self.name_hint.as_deref(),
            ttl_minutes: self.ttl_minutes,
            owner: self.owner.as_deref(),
            labels: self.labels.as_ref(),
            extensions: self.extensions.as_deref(),
            template_name: self.template_name.as_deref(),
            idempotency_key: self.idempotency_key.as_deref(),
        }
    }

    pub(super) fn request(&self, grant: &Grant) -> Result<CreateRequest, Failure> {
        Ok(CreateRequest { idempotency: self.idempotency(), ..self.new_sandbox().request(grant)? })
    }
}

impl Admissible for CreateDatabase {
    const MEETS: &'static [ObligationKind] = Self::SPEC.meets;

    fn apply(&mut self, effective: &Effective<'_>) -> Result<Vec<String>, Failure> {
        new_sandbox::apply(&mut self.labels, self.ttl_minutes, effective)
    }
}

#[async_trait]
impl Operation for CreateDatabase {
    const SPEC: Spec = Spec {
        name: "create_database",
        title: "Create a sandbox database",
        help: "Creates a disposable Postgres database with a login role of its own and a time to live. Work on it with run_sql; \
               delete it with delete_database when done, else it is removed after its time.",
        impact: Impact::Creates,
        meets: new_sandbox::MEETS,
        toolset: Toolset::Core,
        idempotent: false,
    };
    type Output = Created;

    fn check(&self) -> Result<(), Failure> {
        self.new_sandbox().check()
    }

    fn asks(&self) -> Asks {
        Asks {
            about: About::Profile((&self.profile).into()),
            group_owner: self.owner.clone(),
            requested: self.new_sandbox().requested(),
            usage: true,
            ..Asks::default()
        }
    }

    async fn foresee(&self, ahead: &Ahead<'_>) -> Result<Vec<String>, Failure> {
        ahead.core.foresee_create(ahead.grant, self.request(ahead.grant)?).await
    }

    async fn run(permit: Permit<Self>, call: &Call) -> Result<Done<Created>, Failure> {
        let input = permit.input();
        let request = input.request(permit.grant())?;
        let created = call.core.create(&permit, request, call.progress.clone(), call.cancel.clone()).await?;
        let result = Created::new(&permit, call, &created).await?;
        let verb = if created.replayed { "found" } else { "created" };
        let warnings = lowered_ttl(&permit, call, &created.sandbox, input.ttl_minutes)?;
        Ok(Done::new(summary(verb, &created.sandbox), result).warn(warnings))
    }
}

impl Created {
    /// Describes a sandbox to who made it.
    pub(super) async fn new<T>(permit: &Permit<T>, call: &Call, created: &sandbox::Created) -> Result<Self, Failure> {
        let sandbox = &created.sandbox;
        let info = call.core.connection(sandbox, CredentialAccess::Owner).await?;
        let mut installed = sandbox.extensions.clone();
        if created.replayed || matches!(sandbox.origin, Origin::Fork | Origin::Template) {
            // Its owner may have had others installed since, and a copy has its source's.
            installed = match &created.installed {
                Some(seen) => seen.clone(),
                None => {
                    let found = call.core.installed_extensions(permit, sandbox.id).await?;
                    found.into_iter().map(|(name, _)| name).collect()
                }
            };
            installed.retain(|name| name != BUILT_IN_EXTENSION);
        }
        installed.sort();
        let server = call.core.ready(&sandbox.profile).await?;
        let redacted = connection::redacted(&info);
        Ok(Self {
            database_id: sandbox.id.to_string(),
            profile: sandbox.profile.clone(),
            resolved_profile: sandbox.profile.clone(),
            resolved_postgres_version: server.major.to_string(),
            database_name: sandbox.names.database.clone(),
            role_name: sandbox.names.owner_role.clone(),
            expires_at: sandbox.expires_at.to_string(),
            connection_string_redacted: redacted.clone(),
            connection_strings_redacted: ConnectionStrings { direct: redacted },
            connection_usage:
                "use run_sql with this databaseId; get_connection_string gives the full string on request".to_owned(),
            installed_extensions: installed,
        })
    }
}

/// Says whose limit made a time to live shorter than the profile's default, where none was asked for.
pub(super) fn lowered_ttl<T>(
    permit: &Permit<T>,
    call: &Call,
    sandbox: &Sandbox,
    asked: Option<Whole>,
) -> Result<Option<String>, Failure> {
    let default = call.core.profile(&sandbox.profile)?.settings().default_ttl_minutes;
    let limit = permit.grant().obligations.max_ttl_minutes.as_ref();
    let lowered = limit.filter(|limit| asked.is_none() && limit.value < default);
    Ok(lowered.map(|limit| format!("ttl {} minutes, set by `{}`", limit.value, limit.set_by)))
}

/// Says in a line what was done.
pub(super) fn summary(verb: &str, sandbox: &Sandbox) -> String {
    format!("{verb} `{}` on profile `{}`, expires at {}", sandbox.names.database, sandbox.profile, sandbox.expires_at)
}
