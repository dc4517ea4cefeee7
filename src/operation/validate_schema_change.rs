//! Runs a repository's migration against a sandbox, and says what it did to the schema.
//!
//! Where no sandbox is named, one is made for the call alone and removed with it.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::arguments::Whole;
use super::new_sandbox::{self, NewSandbox};
use super::repo_command::{CommandArguments, CommandResult};
use super::schema_diff::SchemaDiff;
use super::schema_part::{Told, change_limit};
use super::{About, Ahead, Asks, Call, Done, Operation, Spec, Toolset};
use crate::admission::{Admissible, Effective, Grant, Permit};
use crate::command::Repo;
use crate::command::project::Project;
use crate::command::survey::Survey;
use crate::engine::ConnectionInfo;
use crate::model::{Code, Failure, Impact, ObligationKind, Requested, SandboxId, Schema, SchemaFilter, Secret};
use crate::sandbox::schema::SchemaDigest;
use crate::sandbox::{Core, CreateRequest, Disposable, Selector, State, ttl_limit};

/// What a sandbox that is made for one call is called after.
const NAME_HINT: &str = "validation";
/// How much longer it may live than its command may run, in minutes: it is made, waited for and looked at twice besides.
const SPARE_MINUTES: u64 = 5;

/// Arguments of `validate_schema_change`. Without `databaseId` and `databaseName`, a sandbox is made for the call and removed
/// with it.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct ValidateSchemaChange {
    #[serde(flatten)]
    command: CommandArguments,
    /// Of a sandbox that is made for the call: a group of work beneath you that it counts for.
    owner: Option<String>,
    /// Of a sandbox that is made for the call: its labels, up to 32.
    labels: Option<BTreeMap<String, String>>,
    /// Differences to be told, 1 to 500; default 50.
    limit: Option<Whole>,
    /// The version of Postgres that the repository has recorded: read once, so that what was decided on is what is used.
    #[serde(skip)]
    recorded_version: OnceLock<Option<String>>,
}

/// What a command did to a schema.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Validated {
    #[serde(flatten)]
    command: CommandResult,
    /// The sandbox that was made for the call; absent where one was named.
    #[serde(skip_serializing_if = "Option::is_none")]
    disposable: Option<MadeForCall>,
    /// How the schema differs after the command from before it.
    schema_diff: SchemaDiff,
}

/// A sandbox that was made for one call.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct MadeForCall {
    profile: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    postgres_version: Option<String>,
    /// `deleted`, or `deleting` where it was not gone yet: it is being removed.
    state: String,
}

impl ValidateSchemaChange {
    fn new_sandbox(&self) -> NewSandbox<'_> {
        NewSandbox {
            name_hint: Some(NAME_HINT),
            owner: self.owner.as_deref(),
            labels: self.labels.as_ref(),
            ..NewSandbox::default()
        }
    }

    fn minutes(&self) -> Result<u64, Failure> {
        Ok(self.command.timeout()?.as_secs().div_ceil(60) + SPARE_MINUTES)
    }

    /// Returns where a sandbox is made: where the call says, or else where the repository's own version is.
    fn place(&self) -> Selector {
        let named = self.command.selector();
        let recorded = || self.recorded_version.get().cloned().flatten();
        let version =
            if named.profile.is_none() { named.postgres_version.or_else(recorded) } else { named.postgres_version };
        Selector { postgres_version: version, ..named }
    }

    /// Returns the sandbox to be made.
    fn request(&self, core: &Core, grant: &Grant) -> Result<CreateRequest, Failure> {
        let profile = core.profile(grant.profile.as_deref().unwrap_or_default())?;
        let (minutes, limit) = (self.minutes()?, ttl_limit(profile.settings(), &grant.obligations));
        if minutes > limit.value {
            let text = format!(
                "a sandbox for a command of {} s has to live for {minutes} minutes, over the limit of {} minutes set by `{}`",
                self.command.timeout()?.as_secs(),
                limit.value,
                limit.set_by
            );
            return Err(Failure::new(Code::InvalidTtl, text)
                .hint("ask for a shorter `timeoutSeconds`, or name a sandbox of yours with `databaseId`")
                .naming(&["timeoutSeconds", "databaseId"])
                .allowed(longest_command(limit.value)));
        }
        Ok(CreateRequest { ttl_minutes: Some(minutes), ..self.new_sandbox().request(grant)? })
    }
}

/// Returns for how long a command may run in a sandbox that may live for so many minutes, if one may.
fn longest_command(minutes: u64) -> Option<String> {
    let seconds = minutes.checked_sub(SPARE_MINUTES).filter(|minutes| *minutes > 0)? * 60;
    Some(format!("a `timeoutSeconds` of 1 to {seconds}"))
}

impl Admissible for ValidateSchemaChange {
    const MEETS: &'static [ObligationKind] = Self::SPEC.meets;

    fn apply(&mut self, effective: &Effective<'_>) -> Result<Vec<String>, Failure> {
        if !self.command.names_sandbox() {
            return new_sandbox::apply(&mut self.labels, None, effective);
        }
        // How long the named one lives and how many there are, such a call does not change.
        effective.no_label().map(|()| Vec::new())
    }
}

#[async_trait]
impl Operation for ValidateSchemaChange {
    const SPEC: Spec = Spec {
        name: "validate_schema_change",
        title: "Validate a schema change",
        help: "Reads a sandbox's schema, runs a repository's command as run_repo_command does, and says how the schema differs after it, \
               also where the command failed. Without command, the migrationCommand that prepare_for_repo recorded is run. Without a \
               sandbox, an empty one is made for the call and removed with it.",
        impact: Impact::ReachesOut,
        meets: new_sandbox::MEETS,
        toolset: Toolset::Repository,
        idempotent: false,
    };
    type Output = Validated;

    fn check(&self) -> Result<(), Failure> {
        change_limit(self.limit)?;
        self.command.check_migration()?;
        if self.command.names_sandbox() {
            let given = [("owner", self.owner.is_some()), ("labels", self.labels.is_some())];
            return match given.into_iter().find(|(_, given)| *given) {
                None => Ok(()),
                Some((name, _)) => {
                    let text = format!("`{name}` is of a sandbox that is made for the call, and the call names one");
                    Err(Failure::new(Code::InvalidArguments, text).hint(format!("leave `{name}` out")))
                }
            };
        }
        self.recorded_version.set(Project::at(self.command.repo_path()).postgres_version).ok();
        self.new_sandbox().check()
    }

    fn asks(&self) -> Asks {
        let of_command = self.command.asks();
        if self.command.names_sandbox() {
            return of_command;
        }
        Asks {
            about: About::Profile(self.place()),
            group_owner: self.owner.clone(),
            requested: Requested {
                ttl_minutes: self.minutes().ok(),
                labels: self.new_sandbox().requested().labels,
                ..of_command.requested
            },
            ..of_command
        }
    }

    async fn foresee(&self, ahead: &Ahead<'_>) -> Result<Vec<String>, Failure> {
        if ahead.grant.target.is_some() {
            return self.command.foresee(ahead).await.map(|()| Vec::new());
        }
        self.command.open(ahead.grant, ahead.commands)?;
        ahead.core.foresee_create(ahead.grant, self.request(ahead.core, ahead.grant)?).await
    }

    async fn run(permit: Permit<Self>, call: &Call) -> Result<Done<Validated>, Failure> {
        let (input, grant) = (permit.input(), permit.grant());
        let limit = change_limit(input.limit)?;
        // No sandbox is made for what would be refused with it.
        let repo = input.command.open(grant, &call.commands)?;
        let Some(id) = grant.target else {
            let request = grant.course.refusing(input.request(&call.core, grant))?;
            let made =
                call.core.create_disposable(&permit, request, call.progress.clone(), call.cancel.clone()).await?;
            return in_disposable(&permit, call, (repo, limit), made).await;
        };
        let place = Place::Named(&permit, id);
        let Seen { command, schema_diff, told } = place.validate(call, &input.command, grant, (repo, limit)).await?;
        let summary = format!("{}; {}", command.summary(), told.summary("before"));
        let warnings = command.warnings();
        Ok(Done::new(summary, Validated { command, disposable: None, schema_diff }).warn(warnings))
    }
}

/// Validates in a sandbox that was made for it, and removes that.
async fn in_disposable(
    permit: &Permit<ValidateSchemaChange>,
    call: &Call,
    wanted: (Repo, usize),
    made: Disposable,
) -> Result<Done<Validated>, Failure> {
    let sandbox = made.sandbox();
    let named = permit.input().command.selector();
    let is_chosen = named.profile.is_some() || named.postgres_version.is_some();
    let made_for = Survey::of(&wanted.0).major().filter(|_| !is_chosen);
    let (profile, major) = (sandbox.profile.clone(), call.core.profile(&sandbox.profile)?.known_major());
    let seen = Place::Made(&made).validate(call, &permit.input().command, permit.grant(), wanted).await;
    let removed = made.remove().await;
    let Seen { command, schema_diff, told } = seen?;
    let mut warnings = command.warnings();
    if let (Some(made_for), Some(major)) = (made_for, major)
        && made_for != major
    {
        warnings.push(format!(
            "the repository's files are made for Postgres {made_for}, and the change was validated on {major}; name the version \
             with `postgresVersion`, or have it recorded by prepare_for_repo"
        ));
    }
    let state = removed.unwrap_or_else(|failure| {
        warnings.push(format!("the sandbox that was made for the call is not removed yet: {}", failure.message));
        State::Deleting
    });
    let postgres_version = major.map(|major| major.to_string());
    let disposable = Some(MadeForCall { profile, postgres_version, state: state.as_str().to_owned() });
    let summary = format!("{}; {}", command.summary(), told.summary("before"));
    Ok(Done::new(summary, Validated { command, disposable, schema_diff }).warn(warnings))
}

/// The sandbox that a change is made in.
enum Place<'a> {
    Named(&'a Permit<ValidateSchemaChange>, SandboxId),
    Made(&'a Disposable),
}

/// What was seen of a change.
struct Seen {
    command: CommandResult,
    schema_diff: SchemaDiff,
    told: Told,
}

impl Place<'_> {
    async fn validate(
        &self,
        call: &Call,
        command: &CommandArguments,
        grant: &Grant,
        (repo, limit): (Repo, usize),
    ) -> Result<Seen, Failure> {
        let prepared = command.prepare(grant, repo, self.id(), self.credentials(&call.core).await?)?;
        let before = self.schema(&call.core).await?;
        let command = command.run(grant, call, &prepared).await?;
        let after = self.schema(&call.core).await?;
        let checksum = SchemaDigest::of(&before, &SchemaFilter::default()).checksum;
        let (schema_diff, told) = SchemaDiff::of("before", (&before, checksum), &after, limit);
        Ok(Seen { command, schema_diff, told })
    }

    fn id(&self) -> SandboxId {
        match self {
            Self::Named(_, id) => *id,
            Self::Made(made) => made.sandbox().id,
        }
    }

    async fn credentials(&self, core: &Core) -> Result<(ConnectionInfo, Secret), Failure> {
        match self {
            Self::Named(permit, id) => core.credentials_for_command(permit, *id).await,
            Self::Made(made) => made.credentials().await,
        }
    }

    async fn schema(&self, core: &Core) -> Result<Schema, Failure> {
        let all = SchemaFilter::default();
        let read = match self {
            Self::Named(permit, id) => core.schema(permit, *id, &all).await,
            Self::Made(made) => made.schema(&all).await,
        };
        read.map(|read| read.schema)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_may_run_as_long_as_a_sandbox_lives_but_for_what_is_spare() {
        let check = |minutes, said: Option<&str>| assert_eq!(longest_command(minutes).as_deref(), said, "{minutes}");
        check(SPARE_MINUTES, None);
        check(SPARE_MINUTES + 1, Some("a `timeoutSeconds` of 1 to 60"));
        check(0, None);
    }
}
