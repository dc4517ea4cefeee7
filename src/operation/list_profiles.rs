//! Says which profiles there are.

use std::collections::BTreeSet;

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Asks, Call, Done, Operation, Spec, Toolset};
use crate::admission::{Admissible, Permit};
use crate::model::{Failure, Impact, ObligationKind, counted};

/// The most sources that are named.
const SOURCES_SHOWN_MAX: usize = 50;

/// Arguments of `list_profiles`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct ListProfiles {
    /// Whether to name the Postgres versions installed on this machine, too; default true.
    include_discovered_local: Option<bool>,
}

/// The profiles.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Profiles {
    /// This program's version.
    server_version: String,
    /// How many tools there are.
    tool_count: usize,
    /// Major versions that a call can ask for: those that profiles have, or would have at their first use.
    available_postgres_versions: Vec<String>,
    /// Major versions installed on this machine, of which a managed cluster can be made; absent unless asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    installed_postgres_versions: Option<Vec<String>>,
    /// What to know when choosing.
    hints: Vec<String>,
    profiles: Vec<ProfileEntry>,
}

/// One profile.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct ProfileEntry {
    name: String,
    is_default: bool,
    engine: String,
    /// Whether this program manages the cluster itself.
    managed: bool,
    /// The major version, where it is known without starting anything; of a cluster that is not there yet, the one that
    /// it would have.
    #[serde(skip_serializing_if = "Option::is_none")]
    postgres_version: Option<String>,
    database_prefix: String,
    default_ttl_minutes: u64,
    max_ttl_minutes: u64,
    /// Extensions that profile and policies both allow you.
    allowed_extensions: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_active_databases_per_owner: Option<u64>,
}

impl Admissible for ListProfiles {
    const MEETS: &'static [ObligationKind] = Self::SPEC.meets;
}

#[async_trait]
impl Operation for ListProfiles {
    const SPEC: Spec = Spec {
        name: "list_profiles",
        title: "List profiles",
        help: "Lists the Postgres servers (profiles) on which sandboxes can be made, with their limits. Starts nothing.",
        impact: Impact::Reads,
        meets: &[ObligationKind::ReadOnly],
        toolset: Toolset::Core,
        idempotent: true,
    };
    type Output = Profiles;

    fn asks(&self) -> Asks {
        Asks::default()
    }

    async fn run(permit: Permit<Self>, call: &Call) -> Result<Done<Profiles>, Failure> {
        let discovers = permit.input().include_discovered_local.unwrap_or(true);
        let managed = call.core.profiles().iter().find(|profile| profile.managed());
        // Every managed cluster is made of what is installed here.
        let installed = match managed {
            Some(profile) => profile.majors_installed().await,
            None => Vec::new(),
        };
        let mut profiles = Vec::new();
        let mut available = BTreeSet::new();
        for profile in call.core.profiles() {
            let major = profile.major_ahead().await;
            available.extend(major.filter(|major| !profile.managed() || installed.contains(major)));
            let settings = profile.settings();
            profiles.push(ProfileEntry {
                name: profile.name().to_owned(),
                is_default: profile.name() == call.core.default_profile(),
                engine: profile.engine_kind().to_owned(),
                managed: profile.managed(),
                postgres_version: major.map(|major| major.to_string()),
                database_prefix: settings.prefix.clone(),
                default_ttl_minutes: settings.default_ttl_minutes,
                max_ttl_minutes: settings.max_ttl_minutes,
                allowed_extensions: call.preview.offered_extensions(&permit.grant().principal, profile.name()).await?,
                max_active_databases_per_owner: settings.max_active_per_owner,
            });
        }
        let mut hints = vec![format!("calls that name no profile use `{}`", call.core.default_profile())];
        if profiles.iter().any(|profile| profile.managed) {
            hints.push("a managed cluster starts when it is first needed".to_owned());
        }
        let unused: Vec<_> = installed.iter().filter(|major| !available.contains(major)).map(u16::to_string).collect();
        if discovers && !unused.is_empty() {
            hints.push(format!(
                "installed and used by no profile: Postgres {}; an operator can add a profile with `managedLocal` and \
                 `postgresVersion`",
                unused.join(", ")
            ));
        }
        hints.extend(told_sources(&call.core.source_names()));
        let unusable = call.core.unusable_sources().iter().take(SOURCES_SHOWN_MAX);
        hints.extend(unusable.map(|source| format!("source `{}` cannot be used: {}", source.name, source.why)));
        Ok(Done::new(
            counted(profiles.len(), "profile", "profiles"),
            Profiles {
                server_version: env!("CARGO_PKG_VERSION").to_owned(),
                tool_count: call.tool_count,
                available_postgres_versions: available.iter().map(u16::to_string).collect(),
                installed_postgres_versions: (discovers && managed.is_some())
                    .then(|| installed.iter().map(u16::to_string).collect()),
                hints,
                profiles,
            },
        ))
    }
}

/// Says which sources there are, by the names that calls give them.
fn told_sources(names: &[String]) -> Option<String> {
    let shown: Vec<_> = names.iter().take(SOURCES_SHOWN_MAX).map(|name| format!("`{name}`")).collect();
    let more = if names.len() > shown.len() { ", …" } else { "" };
    (!shown.is_empty()).then(|| {
        let list = shown.join(", ");
        format!("configured sources for `clone_database`: {list}{more}; `explain_policy` says which you may clone")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_sources_are_named_and_no_more() {
        let names = |count| (0..count).map(|n| format!("s{n}")).collect::<Vec<_>>();
        assert_eq!(told_sources(&[]), None);
        assert!(told_sources(&names(1)).unwrap().contains("`clone_database`: `s0`; "));
        for (count, cut) in [(SOURCES_SHOWN_MAX, false), (SOURCES_SHOWN_MAX + 1, true)] {
            let told = told_sources(&names(count)).unwrap();
            assert_eq!((told.matches("`s").count(), told.contains('…')), (SOURCES_SHOWN_MAX, cut), "{told}");
        }
    }
}
