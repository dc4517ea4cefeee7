//! Keeps copies of sandboxes as templates: databases that nobody enters, which outlive what they were copied from.
//!
//! A template is its owner's alone, whatever a policy says of sandboxes: it is looked up by its owner, always.

use std::sync::Arc;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::bounds::check_template_name;
use super::copies::find_template;
use super::core::{bare_spec, require};
use super::create::{Beginning, CREATE_DEADLINE};
use super::work::{Work, first_stage};
use super::{Core, Profile, ProfileFailure, QuotaLimits};
use crate::admission::{Grant, Permit};
use crate::model::{Code, Failure, Impact, PlanId, Progress, SandboxId, SandboxKind, SandboxNames, Secret, fault};
use crate::store::{NewTemplate, Reservation, Template, TemplateLimits, TemplateRefused};

/// Templates that an owner may keep on one profile: a handful for each kind of work.
const TEMPLATES_MAX: u64 = 32;
/// What they may hold together: less than a small disk.
const TEMPLATE_BYTES_MAX: u64 = 16 << 30;
pub(super) const LIMITS: TemplateLimits = TemplateLimits { count: TEMPLATES_MAX, bytes: TEMPLATE_BYTES_MAX };
/// A template has no end: so many minutes are some thousand years.
const FOR_GOOD_MINUTES: u64 = 2_147_483_647;

/// A template as it is asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TemplateRequest {
    /// What it is to be called.
    pub name: String,
    /// Who makes it.
    pub created_by: Option<String>,
    /// What it is for.
    pub notes: Option<String>,
    /// Whether one of that name gives way to it.
    pub replace: bool,
}

/// An owner's templates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TemplateList {
    /// Profile by profile, by name.
    pub templates: Vec<Template>,
    /// The profiles that were looked at.
    pub profiles: Vec<String>,
    /// Profiles that could not be looked at.
    pub failures: Vec<ProfileFailure>,
}

impl Core {
    /// Keeps a copy of a sandbox as a template. One that it replaces is removed once it is ready, not before.
    ///
    /// # Errors
    /// `invalid_artifact_name`; there is one of that name; `quota_exceeded`; as [`Core::fork`] of the source.
    pub async fn create_template<T>(
        &self,
        permit: &Permit<T>,
        source: SandboxId,
        request: TemplateRequest,
        progress: Arc<dyn Progress>,
        cancel: CancellationToken,
    ) -> Result<Template, Failure> {
        let grant = permit.grant().clone();
        let looked = async {
            require(permit, Impact::Creates, Some(source))?;
            check_template_name(&request.name)?;
            let (profile, sandbox) = self.locate_usable(permit, source).await?;
            let spec = self.spec(&profile, &sandbox).await?;
            Ok((profile, sandbox, spec))
        };
        let (profile, sandbox, spec) = grant.course.refusing(looked.await)?;
        let core = self.clone();
        self.detached(async move {
            let course = &grant.course;
            let extensions = profile.engine.installed_extensions(&spec).await.map_err(Failure::from);
            let extensions = course.refusing(extensions)?;
            let _hold = course.refusing(core.hold_source(&profile, &sandbox).await)?;
            let bytes = course.refusing(profile.engine.measure(&spec).await.map_err(Failure::from))?;
            let beginning = Beginning::fork(&sandbox);
            let reservation = template_reservation(&profile, &grant, &beginning, &request, extensions);
            let replaced = profile.store.template(&grant.principal.owner, &request.name).await?;
            let _running = core.enter(reservation.plan);
            let reserved = profile.store.reserve_template(&reservation, request.replace, bytes, LIMITS).await;
            let (row, held) = match reserved {
                Ok(reserved) => reserved,
                Err(error @ TemplateRefused::Reserve(_)) => return Err(error.into()),
                Err(error) => return course.refusing(Err(error.into())),
            };
            course.acts();
            replaced.iter().for_each(|replaced| course.is_about(replaced.sandbox.id));
            course.is_about(row.id);
            let mut spec = bare_spec(&row, Secret::new(""), Secret::new(""));
            spec.contents = beginning.contents;
            let work = Work { profile: Arc::clone(&profile), held, spec, anew: false };
            let deadline = Instant::now() + fault::within(CREATE_DEADLINE);
            work.make(&*progress, &cancel, deadline).await?;
            if let Some(replaced) = replaced {
                // It is marked for removal with the new one's being ready; upkeep goes on where this does not.
                if let Err(failure) = core.remove(&profile, replaced.sandbox.id, &grant, false, || {}).await {
                    tracing::warn!(sandbox = %replaced.sandbox.id, %failure, "a replaced template could not be removed now");
                }
            }
            find_template(&profile, &grant.principal.owner, &request.name).await
        })
        .await
    }

    /// Says what [`Core::create_template`] would refuse with before its first act.
    ///
    /// # Errors
    /// Fails as the creation would.
    pub async fn foresee_template(
        &self,
        grant: &Grant,
        source: SandboxId,
        request: &TemplateRequest,
    ) -> Result<(), Failure> {
        check_template_name(&request.name)?;
        let (profile, sandbox) = self.locate_granted(grant, source).await?;
        sandbox.usable()?;
        let spec = self.spec(&profile, &sandbox).await?;
        profile.engine.check_copy(&spec).await.map_err(Failure::from)?;
        let bytes = profile.engine.measure(&spec).await.map_err(Failure::from)?;
        let beginning = Beginning::fork(&sandbox);
        let reservation = template_reservation(&profile, grant, &beginning, request, Vec::new());
        let rehearsed = profile.store.rehearse_template(&reservation, request.replace, bytes, LIMITS).await;
        rehearsed.map_err(Failure::from)
    }

    /// Returns the templates of the caller's, on one profile or on all.
    ///
    /// # Errors
    /// `unknown_profile` or a version that there is not.
    pub async fn templates<T>(
        &self,
        permit: &Permit<T>,
        profile: Option<&str>,
        version: Option<&str>,
    ) -> Result<TemplateList, Failure> {
        require(permit, Impact::Reads, None)?;
        self.templates_of(permit.grant(), profile, version).await
    }

    /// Returns the templates of whom a permit is for, on one profile or on all.
    ///
    /// # Errors
    /// `unknown_profile` or a version that there is not.
    pub async fn templates_of(
        &self,
        grant: &Grant,
        profile: Option<&str>,
        version: Option<&str>,
    ) -> Result<TemplateList, Failure> {
        let mut list = TemplateList::default();
        for profile in self.in_scope(profile, version)? {
            list.profiles.push(profile.name().to_owned());
            let listed = async {
                if self.sees_nothing_on(&profile).await? {
                    return Ok(Vec::new());
                }
                self.open(&profile).await?;
                Ok::<_, Failure>(profile.store.templates(&grant.principal.owner).await?)
            };
            match listed.await {
                Ok(templates) => list.templates.extend(templates),
                Err(failure) => list.failures.push(ProfileFailure { profile: profile.name().to_owned(), failure }),
            }
        }
        Ok(list)
    }

    /// Says what [`Core::templates`] would refuse with before it looks anywhere.
    ///
    /// # Errors
    /// Fails as the list would.
    pub fn foresee_templates(&self, profile: Option<&str>, version: Option<&str>) -> Result<(), Failure> {
        self.in_scope(profile, version).map(|_| ())
    }

    /// Removes a template of the caller's. What was made from it stays.
    ///
    /// # Errors
    /// `template_not_found`, or it could not be removed now: then it is tried again.
    pub async fn delete_template<T>(&self, permit: &Permit<T>, name: &str) -> Result<Template, Failure> {
        let grant = permit.grant().clone();
        let looked = async {
            require(permit, Impact::Destroys, None)?;
            self.find_granted_template(&grant, name).await
        };
        let (profile, template) = grant.course.refusing(looked.await)?;
        let (core, id) = (self.clone(), template.sandbox.id);
        grant.course.is_about(id);
        self.detached(async move { core.remove(&profile, id, &grant, false, || {}).await.map(drop) }).await?;
        Ok(template)
    }

    /// Says what [`Core::delete_template`] would refuse with.
    ///
    /// # Errors
    /// Fails as the deletion would.
    pub async fn foresee_delete_template(&self, grant: &Grant, name: &str) -> Result<(), Failure> {
        self.find_granted_template(grant, name).await.map(drop)
    }

    pub(super) async fn find_granted_template(
        &self,
        grant: &Grant,
        name: &str,
    ) -> Result<(Arc<Profile>, Template), Failure> {
        check_template_name(name)?;
        let profile = self.profile(grant.profile.as_deref().unwrap_or(self.default_profile()))?;
        if self.sees_nothing_on(&profile).await? {
            return Err(Failure::new(
                Code::TemplateNotFound,
                "there are no templates: the managed server is not there yet",
            ));
        }
        self.open(&profile).await?;
        let template = find_template(&profile, &grant.principal.owner, name).await?;
        Ok((profile, template))
    }
}

pub(super) fn template_reservation(
    profile: &Profile,
    grant: &Grant,
    beginning: &Beginning,
    request: &TemplateRequest,
    extensions: Vec<(String, String)>,
) -> Reservation {
    let id = SandboxId::fresh();
    Reservation {
        id,
        plan: PlanId::fresh(),
        first: first_stage(&profile.engine.create_steps(SandboxKind::Template, &beginning.contents)),
        request_id: grant.request_id,
        // Every role of the server may read the names of its databases, and what a template is called is its owner's alone.
        names: SandboxNames::new(&profile.settings.prefix, None, id),
        engine: profile.engine.kind().to_owned(),
        // Nobody logs in, so there are none.
        owner_sealed: Vec::new(),
        readonly_sealed: Vec::new(),
        owner: grant.principal.owner.clone(),
        subject: grant.principal.subject.clone(),
        group_owner: grant.group_owner.clone(),
        labels: beginning.labels.clone(),
        hint: None,
        origin: beginning.origin,
        source: beginning.source.clone(),
        template: Some(NewTemplate {
            name: request.name.clone(),
            created_by: request.created_by.clone(),
            notes: request.notes.clone(),
            major: profile.known_major().unwrap_or_default(),
            extensions,
        }),
        extensions: Vec::new(),
        ttl_minutes: FOR_GOOD_MINUTES,
        limits: QuotaLimits::default(),
        idempotency: None,
    }
}
