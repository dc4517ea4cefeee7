//! Makes a sandbox: checked, reserved under the quotas, then a plan.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::core::{OWNER_FIELD, READONLY_FIELD, bare_spec, removal_spec, require};
use super::request::CheckedRequest;
use super::room::refuse_without_room;
use super::work::{Work, first_stage};
use super::{Core, CreateRequest, Profile, Sandbox, quota_limits};
use crate::admission::{Grant, Permit};
use crate::engine::Contents;
use crate::model::{
    Code, Failure, Impact, Origin, PlanId, Progress, SandboxId, SandboxKind, SandboxNames, Secret, fault,
};
use crate::secret::random_password;
use crate::store::{Find, Reservation, ReserveError, Reserved, Source, State, Whose};

/// The longest that making a sandbox may take, waiting for disk and catalogue locks included.
pub(super) const CREATE_DEADLINE: Duration = Duration::from_secs(120);
/// Ten digits of an id collide once in 10^12; a second collision in a row is something else.
const NAMES_TRIED_MAX: u32 = 3;
/// How often a replay looks whether the first call has come to its end.
const REPLAY_POLL: Duration = Duration::from_millis(50);

/// What a new sandbox begins with.
#[derive(Clone, Debug)]
pub(super) struct Beginning {
    /// What it is filled with.
    pub(super) contents: Contents,
    /// Where that comes from, for the record.
    pub(super) origin: Origin,
    /// The sandbox or template that it is a copy of, for the record.
    pub(super) source: Option<Source>,
    /// The labels of that: what policies know data by goes where the data goes.
    pub(super) labels: Vec<(String, String)>,
}

impl Beginning {
    /// Nothing but its extensions.
    pub(super) const EMPTY: Self =
        Self { contents: Contents::Empty, origin: Origin::Empty, source: None, labels: Vec::new() };
}

/// A sandbox that was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Created {
    /// The sandbox, ready.
    pub sandbox: Sandbox,
    /// Whether an earlier call with the same idempotency key made it.
    pub replayed: bool,
    /// The names of all extensions in it, where they were seen while it was made.
    pub installed: Option<Vec<String>>,
}

impl Core {
    /// Makes a sandbox. The work goes on if the caller stops waiting; `cancel` asks it to stop and take back.
    ///
    /// # Errors
    /// A bound or quota refuses it, the server cannot be had, or a step failed: then everything begun is removed.
    pub async fn create<T>(
        &self,
        permit: &Permit<T>,
        request: CreateRequest,
        progress: Arc<dyn Progress>,
        cancel: CancellationToken,
    ) -> Result<Created, Failure> {
        require(permit, Impact::Creates, None)?;
        let grant = permit.grant().clone();
        let (profile, request) = self.checked(&grant, request)?;
        let core = self.clone();
        self.detached(async move { core.create_asked(&profile, &grant, &request, &*progress, &cancel).await }).await
    }

    /// Checks what is asked for on the profile of a grant.
    pub(super) fn checked(
        &self,
        grant: &Grant,
        request: CreateRequest,
    ) -> Result<(Arc<Profile>, CheckedRequest), Failure> {
        let profile = grant.course.refusing(self.profile(&request.profile))?;
        if grant.profile.as_deref().is_some_and(|granted| granted != profile.name()) {
            return Err(Failure::new(Code::Internal, "the permit is for another profile"));
        }
        let request = grant.course.refusing(request.check(profile.settings(), grant))?;
        Ok((profile, request))
    }

    /// Makes what was asked for and checked, empty or from a template.
    pub(super) async fn create_asked(
        &self,
        profile: &Arc<Profile>,
        grant: &Grant,
        request: &CheckedRequest,
        progress: &dyn Progress,
        cancel: &CancellationToken,
    ) -> Result<Created, Failure> {
        grant.course.refusing(self.open(profile).await)?;
        grant.course.refusing(check_offered(profile, &request.extensions).await)?;
        let beginning = match &request.template {
            None => Beginning::EMPTY,
            Some(name) => grant.course.refusing(self.template_beginning(profile, grant, name).await)?,
        };
        self.create_checked(profile, grant, request, &beginning, progress, cancel).await
    }

    /// Says what [`Core::create`] would refuse with before its first act, on the same facts and in the same order. Returns
    /// what of it cannot be known yet.
    ///
    /// # Errors
    /// Fails as the creation would.
    pub async fn foresee_create(&self, grant: &Grant, request: CreateRequest) -> Result<Vec<String>, Failure> {
        let profile = self.profile(&request.profile)?;
        let request = request.check(profile.settings(), grant)?;
        if self.sees_nothing_on(&profile).await? {
            if let Some(name) = &request.template {
                return Err(no_templates(name));
            }
            let nothing = Secret::new("");
            let reservation = self.reservation(&profile, grant, &request, &Beginning::EMPTY, [&nothing, &nothing])?;
            profile.store.rehearse_on_none(&reservation).map_err(Failure::from)?;
            let extensions = if request.extensions.is_empty() { "" } else { ", nor what extensions it has" };
            return Ok(vec![format!(
                "the managed server of profile `{}` is not there yet, and is made by the first call that uses it: it is not \
                 known whether that succeeds{extensions}",
                profile.name()
            )]);
        }
        self.open(&profile).await?;
        check_offered(&profile, &request.extensions).await?;
        let beginning = match &request.template {
            None => Beginning::EMPTY,
            Some(name) => self.template_beginning(&profile, grant, name).await?,
        };
        self.rehearse(&profile, grant, &request, &beginning).await?;
        Ok(Vec::new())
    }

    /// Says what reserving a sandbox would refuse with.
    pub(super) async fn rehearse(
        &self,
        profile: &Profile,
        grant: &Grant,
        request: &CheckedRequest,
        beginning: &Beginning,
    ) -> Result<(), Failure> {
        refuse_without_room(profile)?;
        let nothing = Secret::new("");
        let reservation = self.reservation(profile, grant, request, beginning, [&nothing, &nothing])?;
        profile.store.rehearse(&reservation).await.map(drop).map_err(Failure::from)
    }

    /// Reserves a sandbox and makes it.
    pub(super) async fn create_checked(
        &self,
        profile: &Arc<Profile>,
        grant: &Grant,
        request: &CheckedRequest,
        beginning: &Beginning,
        progress: &dyn Progress,
        cancel: &CancellationToken,
    ) -> Result<Created, Failure> {
        grant.course.refusing(refuse_without_room(profile))?;
        let filling = match &beginning.contents {
            Contents::Empty | Contents::Copy { .. } => Duration::ZERO,
            Contents::Clone(job) => job.left(),
            Contents::Restore(job) => job.left(),
        };
        grant.course.refusing(request.labels_beside(&beginning.labels))?;
        let deadline = Instant::now() + fault::within(CREATE_DEADLINE) + filling;
        let mut tried = 0;
        loop {
            tried += 1;
            let (owner, readonly) = (random_password()?, random_password()?);
            let reservation = self.reservation(profile, grant, request, beginning, [&owner, &readonly])?;
            // Before the row is there, so that upkeep never takes it for one that nobody works on.
            let _running = self.enter(reservation.plan);
            let looked = profile.engine.look_ahead(&beginning.contents);
            let (reserved, ()) = tokio::join!(profile.store.reserve(&reservation), looked);
            return match reserved {
                Ok(Reserved::New(sandbox, held)) => {
                    grant.course.acts();
                    let mut spec = bare_spec(&sandbox, owner, readonly);
                    spec.contents = beginning.contents.clone();
                    let work = Work { profile: Arc::clone(profile), held, spec, anew: false };
                    let sandbox = work.make(progress, cancel, deadline).await?;
                    let seen = work.spec.contents.seen();
                    if seen.is_none() && !matches!(beginning.contents, Contents::Empty) {
                        note_size(profile, &sandbox).await;
                    }
                    // What is installed into a copy afterwards was not seen.
                    let installed = seen.filter(|_| sandbox.extensions.is_empty()).map(|seen| seen.extensions.clone());
                    Ok(Created { sandbox, replayed: false, installed })
                }
                Ok(Reserved::Replayed(id)) => {
                    match self.replayed(profile, id, grant, cancel, deadline).await? {
                        Some(sandbox) => Ok(Created { sandbox, replayed: true, installed: None }),
                        // It was never there for anybody to use, and its key is free again.
                        None if tried < NAMES_TRIED_MAX => continue,
                        None => grant.course.refusing(Err(made_and_gone())),
                    }
                }
                Err(ReserveError::NameTaken(_)) if tried < NAMES_TRIED_MAX => continue,
                // Rolled back, with nothing made.
                Err(
                    error @ (ReserveError::Quota(_) | ReserveError::IdempotencyConflict | ReserveError::NameTaken(_)),
                ) => grant.course.refusing(Err(error.into())),
                // Whether it was written is not known.
                Err(error) => {
                    grant.course.acts();
                    Err(error.into())
                }
            };
        }
    }

    /// Returns what is written of a new sandbox, with the passwords of its owner and its reader.
    pub(super) fn reservation(
        &self,
        profile: &Profile,
        grant: &Grant,
        request: &CheckedRequest,
        beginning: &Beginning,
        [owner, readonly]: [&Secret; 2],
    ) -> Result<Reservation, Failure> {
        let id = SandboxId::fresh();
        let keys = &self.inner().keys;
        Ok(Reservation {
            id,
            plan: PlanId::fresh(),
            first: first_stage(&profile.engine.create_steps(SandboxKind::Sandbox, &beginning.contents)),
            request_id: grant.request_id,
            names: SandboxNames::new(&profile.settings.prefix, request.name_hint.as_deref(), id),
            engine: profile.engine.kind().to_owned(),
            owner_sealed: keys.seal(id, OWNER_FIELD, owner)?.into_bytes(),
            readonly_sealed: keys.seal(id, READONLY_FIELD, readonly)?.into_bytes(),
            owner: grant.principal.owner.clone(),
            subject: grant.principal.subject.clone(),
            group_owner: grant.group_owner.clone(),
            labels: request.labels_beside(&beginning.labels)?,
            hint: request.name_hint.clone(),
            origin: beginning.origin,
            source: beginning.source.clone(),
            template: None,
            extensions: request.extensions.clone(),
            ttl_minutes: request.ttl_minutes,
            limits: quota_limits(&profile.settings, &grant.obligations),
            idempotency: request.idempotency.clone(),
        })
    }

    /// Returns the sandbox of an earlier call, once that call has come to its end; `None` if it ended without one. What
    /// nobody works on any more, as its server died or lost the connection that began it, is taken back here and now.
    pub(super) async fn replayed(
        &self,
        profile: &Arc<Profile>,
        id: SandboxId,
        grant: &Grant,
        cancel: &CancellationToken,
        deadline: Instant,
    ) -> Result<Option<Sandbox>, Failure> {
        loop {
            let sandbox = profile.store.find(&Find::Id(id)).await?;
            match sandbox {
                Some(sandbox) if sandbox.state == State::Ready => return Ok(Some(sandbox)),
                Some(sandbox) if sandbox.state == State::Failed => return Ok(None),
                Some(sandbox) if sandbox.state == State::Creating => {
                    if Instant::now() >= deadline {
                        let waits = Failure::new(Code::SandboxNotReady, "the first call has not come to its end");
                        return grant.course.refusing(Err(waits));
                    }
                    self.recover_sandbox(profile, Whose::Sandbox(id), grant).await?;
                    if cancel.run_until_cancelled(tokio::time::sleep(REPLAY_POLL)).await.is_none() {
                        return Err(Failure::new(Code::Cancelled, "the request was cancelled"));
                    }
                }
                Some(_) | None => return grant.course.refusing(Err(made_and_gone())),
            }
        }
    }
}

/// Notes the size of a sandbox that did not begin empty, so that it counts from the beginning.
async fn note_size(profile: &Profile, sandbox: &Sandbox) {
    let noted = async {
        let bytes = profile.engine.measure(&removal_spec(sandbox)).await.map_err(Failure::from)?;
        profile.store.measured(sandbox.id, Some(bytes)).await.map_err(Failure::from)
    };
    if let Err(failure) = noted.await {
        tracing::warn!(sandbox = %sandbox.id, %failure, "its size could not be noted; it is measured later");
    }
}

/// The failure of one who only looks, where no server is there that could have a template.
fn no_templates(name: &str) -> Failure {
    Failure::new(Code::TemplateNotFound, format!("you have no template `{}`", name.escape_default()))
        .hint("the managed server is not there yet; the first call that uses it makes it")
}

fn made_and_gone() -> Failure {
    Failure::new(Code::DatabaseNotFound, "the sandbox that was made under this idempotency key is gone")
        .hint("use another key to make a new one")
}

/// Checks that the server has the extensions, and that its admin can install them in this order.
pub(super) async fn check_offered(profile: &Profile, extensions: &[String]) -> Result<(), Failure> {
    if extensions.is_empty() {
        return Ok(());
    }
    let Err(error) = profile.engine.check_extensions(extensions).await else { return Ok(()) };
    let failure = Failure::from(error);
    if failure.code != Code::ExtensionSetupRequired {
        return Err(failure);
    }
    let offered = profile.engine.available_extensions().await.map_err(Failure::from)?;
    let allowed = profile.allowed_extensions();
    Err(failure.allowed(allowed.iter().filter(|name| offered.iter().any(|offer| offer.name == **name))))
}
