//! Says which extensions a profile offers and a sandbox has.

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::selector::PlaceSelector;
use super::{About, Ahead, Asks, Call, Done, Operation, Spec, Toolset};
use crate::admission::{Admissible, Permit};
use crate::model::{CredentialAccess, Failure, Impact, ObligationKind};
use crate::sandbox::Selector;

/// Arguments of `list_extensions`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct ListExtensions {
    #[serde(flatten)]
    place: PlaceSelector,
}

/// Extensions.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Extensions {
    /// `profile`, or `sandbox` where one was named.
    scope: String,
    profile: String,
    /// What can be asked for when a sandbox is made.
    available_extensions: Vec<Available>,
    /// What the named sandbox has.
    installed_extensions: Vec<Installed>,
}

/// An extension that can be had.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Available {
    name: String,
    default_version: String,
    /// Whether the sandbox's own role may install it with CREATE EXTENSION.
    trusted: bool,
    /// Extensions that must be asked for before it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    requires: Vec<String>,
    description: String,
}

/// An extension that is there.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Installed {
    name: String,
    version: String,
}

impl Admissible for ListExtensions {
    const MEETS: &'static [ObligationKind] = Self::SPEC.meets;
}

#[async_trait]
impl Operation for ListExtensions {
    const SPEC: Spec = Spec {
        name: "list_extensions",
        title: "List extensions",
        help: "Lists the extensions that can be asked for on a profile and, if a sandbox is named, those it has.",
        impact: Impact::Reads,
        meets: &[ObligationKind::ReadOnly],
        toolset: Toolset::Core,
        idempotent: true,
    };
    type Output = Extensions;

    fn asks(&self) -> Asks {
        let selector = Selector::from(&self.place);
        let named = self.place.database_id.is_some() || self.place.database_name.is_some();
        let about = if named { About::Sandbox(selector) } else { About::Profile(selector) };
        Asks { about, ..Asks::default() }
    }

    async fn foresee(&self, ahead: &Ahead<'_>) -> Result<Vec<String>, Failure> {
        if let Some(id) = ahead.grant.target {
            ahead.core.foresee_use(ahead.grant, id, CredentialAccess::ReadOnly).await?;
        }
        Ok(Vec::new())
    }

    async fn run(permit: Permit<Self>, call: &Call) -> Result<Done<Extensions>, Failure> {
        let profile = call.core.profile(permit.grant().profile.as_deref().unwrap_or_default())?;
        // The server first: what it cannot install is then not among the acceptable ones.
        let offered = call.core.available_extensions(profile.name()).await?;
        let allowed = call.preview.offered_extensions(&permit.grant().principal, profile.name()).await?;
        let available: Vec<Available> = offered
            .into_iter()
            .filter(|e| allowed.contains(&e.name))
            .map(|e| Available {
                name: e.name,
                default_version: e.default_version,
                trusted: e.trusted,
                requires: e.requires,
                description: e.comment,
            })
            .collect();
        let installed = match permit.grant().target {
            Some(id) => call.core.installed_extensions(&permit, id).await?,
            None => Vec::new(),
        };
        let installed: Vec<Installed> =
            installed.into_iter().map(|(name, version)| Installed { name, version }).collect();
        Ok(Done::new(
            format!("{} extensions available, {} installed", available.len(), installed.len()),
            Extensions {
                scope: if permit.grant().target.is_some() { "sandbox" } else { "profile" }.to_owned(),
                profile: profile.name().to_owned(),
                available_extensions: available,
                installed_extensions: installed,
            },
        ))
    }
}
