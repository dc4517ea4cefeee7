//! Makes sandboxes that are copies: of a sandbox that its owner works in, or of a template.
//!
//! A source has no sessions while it is copied: those that wait for the next call are closed, calls that want one wait
//! until the copy is made, and what others have open there is told to the caller.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::core::{removal_spec, require};
use super::create::{Beginning, Created};
use super::pool::Hold;
use super::{Core, CreateRequest, Profile, Sandbox, State, not_found};
use crate::admission::{Grant, Permit};
use crate::engine::Contents;
use crate::model::{Code, Failure, Impact, Origin, Progress, SandboxId, fault};
use crate::store::{Find, Source, Template};

/// How long calls that are under way in a source are given to end.
pub(super) const HOLD_WAIT: Duration = Duration::from_secs(5);
/// Templates that are named where one was not found.
const NAMED_MAX: usize = 20;

impl Beginning {
    /// A copy of a sandbox.
    pub(super) fn fork(source: &Sandbox) -> Self {
        Self {
            contents: Contents::copy(source.id, source.names.clone()),
            origin: Origin::Fork,
            source: Some(Source { id: source.id, name: source.names.database.clone() }),
            labels: source.labels.clone(),
        }
    }

    /// A copy of a template.
    pub(super) fn template(template: &Template) -> Self {
        let sandbox = &template.sandbox;
        Self {
            contents: Contents::copy(sandbox.id, sandbox.names.clone()),
            origin: Origin::Template,
            source: Some(Source { id: sandbox.id, name: template.name.clone() }),
            labels: sandbox.labels.clone(),
        }
    }
}

impl Core {
    /// Makes a sandbox that is a copy of another on the same server. The other is as it was afterwards.
    ///
    /// # Errors
    /// As [`Core::create`]; `sandbox_not_ready` or `sandbox_expired` of the source, `busy` if it is in use.
    pub async fn fork<T>(
        &self,
        permit: &Permit<T>,
        source: SandboxId,
        request: CreateRequest,
        progress: Arc<dyn Progress>,
        cancel: CancellationToken,
    ) -> Result<Created, Failure> {
        let grant = permit.grant().clone();
        let looked = async {
            require(permit, Impact::Creates, Some(source))?;
            let (profile, sandbox) = self.locate_usable(permit, source).await?;
            let request = request.check(profile.settings(), &grant)?;
            Ok((profile, sandbox, request))
        };
        let (profile, sandbox, request) = grant.course.refusing(looked.await)?;
        let core = self.clone();
        self.detached(async move {
            let _hold = grant.course.refusing(core.hold_source(&profile, &sandbox).await)?;
            grant.course.refusing(core.has_room(&profile, &grant, &sandbox).await)?;
            let beginning = Beginning::fork(&sandbox);
            core.create_checked(&profile, &grant, &request, &beginning, &*progress, &cancel).await
        })
        .await
    }

    /// Says what [`Core::fork`] would refuse with before its first act.
    ///
    /// # Errors
    /// Fails as the fork would.
    pub async fn foresee_fork(&self, grant: &Grant, source: SandboxId, request: CreateRequest) -> Result<(), Failure> {
        let (profile, sandbox) = self.locate_granted(grant, source).await?;
        sandbox.usable()?;
        let request = request.check(profile.settings(), grant)?;
        profile.engine.check_copy(&removal_spec(&sandbox)).await.map_err(Failure::from)?;
        self.has_room(&profile, grant, &sandbox).await?;
        self.rehearse(&profile, grant, &request, &Beginning::fork(&sandbox)).await
    }

    /// Keeps sessions out of a source until what is returned is dropped, and checks that it can be copied.
    pub(super) async fn hold_source(&self, profile: &Profile, source: &Sandbox) -> Result<Arc<Hold>, Failure> {
        let pool = &self.inner().pool;
        let hold = pool.hold(source.id, Instant::now() + fault::within(HOLD_WAIT)).await?;
        pool.close(source.id);
        let (find, spec) = (Find::Id(source.id), removal_spec(source));
        let engine = &profile.engine;
        let (found, checked, unused) =
            tokio::join!(profile.store.find(&find), engine.check_copy(&spec), engine.await_unused(&spec));
        // Meanwhile it may have been removed, or its time may have come.
        found?.ok_or_else(not_found)?.usable()?;
        checked.map_err(Failure::from)?;
        unused.map_err(Failure::from)?;
        Ok(hold)
    }

    /// Refuses a copy for which the caller's quotas of bytes leave no room.
    async fn has_room(&self, profile: &Profile, grant: &Grant, source: &Sandbox) -> Result<(), Failure> {
        let Some(left) = self.bytes_left(profile, grant).await? else { return Ok(()) };
        let bytes = profile.engine.measure(&removal_spec(source)).await.map_err(Failure::from)?;
        if bytes <= left {
            return Ok(());
        }
        let text = format!("a copy would have {bytes} bytes, and {left} are left of the quota of bytes");
        Err(Failure::new(Code::QuotaExceeded, text).hint("delete sandboxes that are not needed, or make an empty one"))
    }

    /// Returns what a sandbox begins with that is made from a template of the caller's.
    pub(super) async fn template_beginning(
        &self,
        profile: &Profile,
        grant: &Grant,
        name: &str,
    ) -> Result<Beginning, Failure> {
        let template = find_template(profile, &grant.principal.owner, name).await?;
        grant.course.is_about(template.sandbox.id);
        profile.engine.check_copy(&removal_spec(&template.sandbox)).await.map_err(Failure::from)?;
        self.has_room(profile, grant, &template.sandbox).await?;
        Ok(Beginning::template(&template))
    }

    /// Returns what a sandbox began with, to make it anew.
    pub(super) async fn beginning_of(&self, profile: &Profile, sandbox: &Sandbox) -> Result<Beginning, Failure> {
        let source = match (sandbox.origin, &sandbox.source) {
            (Origin::Empty, _) => return Ok(Beginning::EMPTY),
            (Origin::Fork | Origin::Template, Some(source)) => source,
            (Origin::Fork | Origin::Template | Origin::Clone, _) => {
                let text = format!("sandbox `{}` was copied from another server", sandbox.names.database);
                return Err(Failure::new(Code::InvalidArguments, text)
                    .hint("clone it again; a fork, or a sandbox made from a template or empty, can be reset"));
            }
        };
        let found = profile.store.find(&Find::Id(source.id)).await?;
        let there = found.filter(|found| found.owner == sandbox.owner && found.state == State::Ready);
        match (sandbox.origin, there) {
            (Origin::Template, Some(template)) => Ok(Beginning {
                contents: Contents::copy(template.id, template.names),
                origin: Origin::Template,
                source: Some(source.clone()),
                labels: template.labels,
            }),
            (Origin::Template, None) => Err(Failure::new(
                Code::TemplateNotFound,
                format!("template `{}`, as it was when the sandbox was made from it, is gone", source.name),
            )
            .hint("make another sandbox, from a template that `list_templates` shows")),
            (_, Some(fork)) => Ok(Beginning::fork(&fork)),
            (_, None) => Err(Failure::new(
                Code::TemplateNotFound,
                format!("sandbox `{}`, of which this one is a copy, is gone", source.name),
            )
            .hint("a copy goes back to its source only while that is there; make another sandbox")),
        }
    }
}

/// Finds a template of an owner's.
pub(super) async fn find_template(profile: &Profile, owner: &str, name: &str) -> Result<Template, Failure> {
    if let Some(template) = profile.store.template(owner, name).await? {
        return Ok(template);
    }
    let known = profile.store.templates(owner).await?;
    let shown: String = name.chars().flat_map(char::escape_default).collect();
    let text = format!("you have no template `{shown}` on profile `{}`", profile.name());
    Err(Failure::new(Code::TemplateNotFound, text)
        .hint("`list_templates` shows yours")
        .allowed(known.into_iter().take(NAMED_MAX).map(|template| template.name)))
}
