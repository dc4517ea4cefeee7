//! The arguments by which calls name a profile or a sandbox.

use schemars::JsonSchema;
use serde::Deserialize;

use crate::sandbox::Selector;

/// Names a profile. Neither argument: the default profile. A version alone: the default profile if it has that, or else the
/// first that does.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProfileSelector {
    /// Profile name; default: the default profile, or one that has postgresVersion.
    pub profile: Option<String>,
    /// Postgres major version, "15" for instance; a patch level is ignored.
    pub postgres_version: Option<String>,
}

/// Narrows a search over profiles. Neither argument: all profiles.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct ScopeSelector {
    /// Profile name; default: all profiles.
    pub profile: Option<String>,
    /// Only profiles of this Postgres major version; `*`, the default, is every version.
    pub postgres_version: Option<String>,
}

/// Names a sandbox, or a profile where none is named.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct PlaceSelector {
    /// Profile name; default: the named sandbox's, or else the default profile.
    pub profile: Option<String>,
    /// Postgres major version of the profile.
    pub postgres_version: Option<String>,
    /// A sandbox's id.
    pub database_id: Option<String>,
    /// A sandbox's database name.
    pub database_name: Option<String>,
}

/// Names a sandbox, by id or by name; both must match where both are given.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DatabaseSelector {
    /// Profile name; default: search all profiles.
    pub profile: Option<String>,
    /// Postgres major version of the sandbox's profile.
    pub postgres_version: Option<String>,
    /// The sandbox's id.
    pub database_id: Option<String>,
    /// The sandbox's database name.
    pub database_name: Option<String>,
}

impl From<&ProfileSelector> for Selector {
    fn from(input: &ProfileSelector) -> Self {
        Self {
            profile: input.profile.clone(),
            postgres_version: input.postgres_version.clone(),
            database_id: None,
            database_name: None,
        }
    }
}

impl From<&PlaceSelector> for Selector {
    fn from(input: &PlaceSelector) -> Self {
        Self {
            profile: input.profile.clone(),
            postgres_version: input.postgres_version.clone(),
            database_id: input.database_id.clone(),
            database_name: input.database_name.clone(),
        }
    }
}

impl From<&DatabaseSelector> for Selector {
    fn from(input: &DatabaseSelector) -> Self {
        Self {
            profile: input.profile.clone(),
            postgres_version: input.postgres_version.clone(),
            database_id: input.database_id.clone(),
            database_name: input.database_name.clone(),
        }
    }
}
