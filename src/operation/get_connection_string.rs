//! Says how a sandbox is reached, with its password only on request.

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::create_database::ConnectionStrings;
use super::extend_database::missing_target;
use super::selector::DatabaseSelector;
use super::{About, Ahead, Asks, Call, Done, Operation, Spec, Toolset, connection};
use crate::admission::{Admissible, Effective, Permit};
use crate::model::{Code, CredentialAccess, Failure, Impact, ObligationKind, Requested};

/// Arguments of `get_connection_string`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct GetConnectionString {
    #[serde(flatten)]
    database: DatabaseSelector,
    /// Whether to include the password; default false.
    include_credentials: Option<bool>,
    /// Whose connection; default `owner`.
    access: Option<AccessInput>,
}

/// Which of the sandbox's roles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum AccessInput {
    /// The role that owns the database.
    Owner,
    /// The read-only role. It cannot write tables, but can call the owner's SECURITY DEFINER functions.
    ReadOnly,
}

impl From<AccessInput> for CredentialAccess {
    fn from(access: AccessInput) -> Self {
        match access {
            AccessInput::Owner => Self::Owner,
            AccessInput::ReadOnly => Self::ReadOnly,
        }
    }
}

/// How the sandbox is reached.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Connection {
    database_id: String,
    database_name: String,
    role_name: String,
    /// `owner` or `readonly`.
    access: AccessInput,
    connection_string_redacted: String,
    connection_strings_redacted: ConnectionStrings,
    /// The string with its password; only if it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    connection_string: Option<String>,
}

impl GetConnectionString {
    fn wants_credentials(&self) -> bool {
        self.include_credentials.unwrap_or(false)
    }

    fn access(&self) -> CredentialAccess {
        self.access.unwrap_or(AccessInput::Owner).into()
    }
}

impl Admissible for GetConnectionString {
    const MEETS: &'static [ObligationKind] = Self::SPEC.meets;

    fn apply(&mut self, effective: &Effective<'_>) -> Result<Vec<String>, Failure> {
        let demands = effective.obligations();
        let mut warnings = Vec::new();
        if let Some(policy) = demands.read_only.first()
            && self.access() == CredentialAccess::Owner
        {
            if self.access.is_some() && self.wants_credentials() {
                let message = format!("policy `{policy}` allows only read-only credentials");
                return Err(Failure::new(Code::ReadonlyViolation, message).hint("ask with access `readonly`"));
            }
            self.access = Some(AccessInput::ReadOnly);
            warnings.push(format!("read-only connection, as policy `{policy}` demands"));
        }
        // A direct connection is not under our row and byte limits, the reader's neither.
        let limit = demands.max_rows.as_ref().or(demands.max_result_bytes.as_ref());
        if let Some(limit) = limit
            && self.wants_credentials()
        {
            let message =
                format!("policy `{}` limits results, which a direct connection would not keep to", limit.set_by);
            return Err(Failure::new(Code::ObligationUnmet, message).hint("use run_sql"));
        }
        Ok(warnings)
    }
}

#[async_trait]
impl Operation for GetConnectionString {
    const SPEC: Spec = Spec {
        name: "get_connection_string",
        title: "Get a sandbox's connection string",
        help: "Returns how to connect to a sandbox. The password is replaced by *** unless includeCredentials is true; ask for it \
               only when a program must connect directly, and do not print it.",
        impact: Impact::Discloses,
        meets: &[ObligationKind::ReadOnly, ObligationKind::MaxRows, ObligationKind::MaxResultBytes],
        toolset: Toolset::Core,
        idempotent: true,
    };
    type Output = Connection;

    fn asks(&self) -> Asks {
        Asks {
            about: About::Sandbox((&self.database).into()),
            requested: Requested {
                credentials: self.wants_credentials().then(|| self.access()),
                read_only: self.access() == CredentialAccess::ReadOnly,
                ..Requested::default()
            },
            ..Asks::default()
        }
    }

    async fn foresee(&self, ahead: &Ahead<'_>) -> Result<Vec<String>, Failure> {
        let id = ahead.grant.target.ok_or_else(missing_target)?;
        ahead.core.foresee_credentials(ahead.grant, id, self.access(), self.wants_credentials()).await?;
        Ok(Vec::new())
    }

    async fn run(permit: Permit<Self>, call: &Call) -> Result<Done<Connection>, Failure> {
        let id = permit.grant().target.ok_or_else(missing_target)?;
        let input = permit.input();
        let (info, full) = if input.wants_credentials() {
            let (info, password) = call.core.credentials(&permit, id, input.access()).await?;
            let full = connection::with_password(&info, &password);
            (info, Some(full))
        } else {
            (call.core.whereabouts(&permit, id, input.access()).await?, None)
        };
        let redacted = connection::redacted(&info);
        Ok(Done::new(
            format!("`{}` is reached as `{}`", info.database, info.user),
            Connection {
                database_id: id.to_string(),
                database_name: info.database,
                role_name: info.user,
                access: input.access.unwrap_or(AccessInput::Owner),
                connection_string_redacted: redacted.clone(),
                connection_strings_redacted: ConnectionStrings { direct: redacted },
                connection_string: full.map(|secret| secret.expose().to_owned()),
            },
        ))
    }
}
