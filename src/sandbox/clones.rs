//! Makes a sandbox that begins as a copy of another server's database.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::core::require;
use super::create::{Beginning, CREATE_DEADLINE, check_offered};
use super::sources::SourceSettings;
use super::{CloneAsked, Core, CreateRequest, Created, Profile, quota_limits};
use crate::admission::{Grant, Permit};
use crate::engine::Contents;
use crate::engine::postgres::{CloneJob, CloneOptions};
use crate::model::{Code, Failure, Impact, Origin, Progress, Scope, Secret, Usage, fault};

/// A copy as it is asked for.
#[derive(Clone, Debug)]
pub struct CloneRequest {
    /// The sandbox.
    pub create: CreateRequest,
    /// The source.
    pub asked: CloneAsked,
    /// What is wanted of it.
    pub options: CloneOptions,
    /// How long it may take.
    pub time: Duration,
}

/// A copy that was made.
#[derive(Debug)]
pub struct Cloned {
    /// The sandbox.
    pub created: Created,
    /// What was found out about the source, and what came of the copy; `None` where an earlier call made it.
    pub job: Option<Arc<CloneJob>>,
}

impl Core {
    /// Makes a sandbox that is a copy of a source. The work goes on if the caller stops waiting; `cancel` stops it, also
    /// while it copies, and everything begun is taken back.
    ///
    /// # Errors
    /// A bound or quota refuses it, the source cannot be read or not be copied here, or a step failed: then nothing is left.
    pub async fn copy_source<T>(
        &self,
        permit: &Permit<T>,
        request: CloneRequest,
        progress: Arc<dyn Progress>,
        cancel: CancellationToken,
    ) -> Result<Cloned, Failure> {
        require(permit, Impact::ReachesOut, None)?;
        let grant = permit.grant().clone();
        let profile = grant.course.refusing(self.profile(&request.create.profile))?;
        if grant.profile.as_deref().is_some_and(|granted| granted != profile.name()) {
            return Err(Failure::new(Code::Internal, "the permit is for another profile"));
        }
        let source = grant.course.refusing(self.permitted_source(&request.asked, &profile))?;
        let mut checked = grant.course.refusing(request.create.check(profile.settings(), &grant))?;
        let (asked, mut options, time) = (request.asked, request.options, request.time);
        let core = self.clone();
        self.detached(async move {
            grant.course.refusing(core.open(&profile).await)?;
            grant.course.refusing(check_offered(&profile, &checked.extensions).await)?;
            let nothing = Secret::new("");
            let beginning = Beginning { origin: Origin::Clone, ..Beginning::EMPTY };
            let rehearsed = core.reservation(&profile, &grant, &checked, &beginning, [&nothing, &nothing])?;
            // Nobody is asked for what a full quota would refuse.
            let earlier = grant.course.refusing(profile.store.rehearse(&rehearsed).await.map_err(Failure::from))?;
            // What an earlier call made is there whatever became of its source.
            if let Some(id) = earlier {
                let deadline = Instant::now() + fault::within(CREATE_DEADLINE) + time;
                if let Some(sandbox) = core.replayed(&profile, id, &grant, &cancel, deadline).await? {
                    return Ok(Cloned { created: Created { sandbox, replayed: true, installed: None }, job: None });
                }
            }
            options.bytes_max = core.bytes_left(&profile, &grant).await?;
            grant.course.looks();
            options.guarded = core.guarded_from(&asked.source, &source).await?;
            let mut url = source.url.clone();
            if let Some(password) = &source.password {
                url.credentials.password = Some(password.read().await?);
            }
            let shown = match &asked.source {
                super::SourceRef::Name(name) => format!("source `{name}`"),
                super::SourceRef::Url(_) => format!("`{}`", url.redacted()),
            };
            let (steps, within) = parted(progress);
            within.report(0, PARTS, "looking at the source");
            let job = Arc::new(CloneJob::new(url, shown, options, time, cancel.clone(), within));
            profile.engine.examine_source(&job).await.map_err(Failure::from)?;
            let copied = job.plan().map_err(Failure::from)?.extensions.iter().map(|(name, _)| name.clone());
            let known: BTreeSet<String> = checked.extensions.iter().cloned().collect();
            checked.extensions.extend(copied.filter(|name| !known.contains(name)));
            let contents = Contents::Clone(Arc::clone(&job));
            let beginning = Beginning { contents, origin: Origin::Clone, ..Beginning::EMPTY };
            let created = core.create_checked(&profile, &grant, &checked, &beginning, &*steps, &cancel).await?;
            let job = (!created.replayed).then_some(job);
            Ok(Cloned { created, job })
        })
        .await
    }

    /// Says what [`Core::copy_source`] would refuse with before it asks the source, in the same order.
    ///
    /// # Errors
    /// Fails as the copy would.
    pub async fn foresee_copy(&self, grant: &Grant, request: CloneRequest) -> Result<Vec<String>, Failure> {
        let profile = self.profile(&request.create.profile)?;
        self.permitted_source(&request.asked, &profile)?;
        let mut warnings = self.foresee_create(grant, request.create).await?;
        warnings.push("the source was not asked: whether it can be reached and copied is not known".to_owned());
        if !profile.engine.managed() {
            let name = profile.name();
            warnings.push(format!(
                "the disk of profile `{name}`'s server cannot be seen from here: whether a copy fits on it is not known"
            ));
        }
        Ok(warnings)
    }

    /// Finds the source, and refuses what holds whatever policies say.
    fn permitted_source(&self, asked: &CloneAsked, profile: &Profile) -> Result<SourceSettings, Failure> {
        let source = self.find_source(&asked.source)?;
        if source.profiles.as_ref().is_some_and(|names| names.iter().all(|name| name != profile.name())) {
            let text = format!("source `{}` may not be cloned into profile `{}`", source.name, profile.name());
            return Err(Failure::new(Code::SourceNotAllowed, text)
                .allowed(source.profiles.unwrap_or_default())
                .hint("choose one of the profiles that the source is configured for"));
        }
        if source.production && asked.reason.as_deref().is_none_or(|reason| reason.trim().is_empty()) {
            let text = format!("source `{}` is a production database, and no reason was given", source.name);
            return Err(Failure::new(Code::SourceNotAllowed, text).hint("say in `reason` what it is needed for"));
        }
        Ok(source)
    }

    /// Returns how many bytes the caller's quotas leave.
    pub(super) async fn bytes_left(&self, profile: &Profile, grant: &Grant) -> Result<Option<u64>, Failure> {
        let limits = quota_limits(profile.settings(), &grant.obligations).bytes;
        if limits.is_empty() {
            return Ok(None);
        }
        let (principal, group) =
            self.usage(profile.name(), &grant.principal.owner, grant.group_owner.as_deref()).await?;
        let used = |scope: &Scope| match scope {
            Scope::Principal => principal,
            Scope::Group => group.unwrap_or(Usage::default()),
        };
        Ok(limits.iter().map(|(scope, limit)| limit.value.saturating_sub(used(scope).bytes)).min())
    }
}

/// Into how many parts each step is divided for news.
const PARTS: u32 = 1_000;

/// Returns who tells of steps, and who tells of what goes on within one.
pub(super) fn parted(progress: Arc<dyn Progress>) -> (Arc<dyn Progress>, Arc<dyn Progress>) {
    let steps = Arc::new(Steps::new(progress));
    let within = Arc::new(Within(Arc::clone(&steps)));
    (steps, within)
}

/// Tells of steps in parts, so that news from within a step stand between those of its neighbours.
struct Steps {
    to: Arc<dyn Progress>,
    done: AtomicU32,
    total: AtomicU32,
    last: AtomicU32,
}

impl Steps {
    fn new(to: Arc<dyn Progress>) -> Self {
        Self { to, done: AtomicU32::new(0), total: AtomicU32::new(1), last: AtomicU32::new(0) }
    }

    fn tell(&self, part: u32, message: &str) {
        let (done, total) = (self.done.load(Ordering::Relaxed), self.total.load(Ordering::Relaxed));
        let now = done.saturating_mul(PARTS).saturating_add(part.min(PARTS));
        // Whoever listens is promised that it only grows.
        let next = |last: u32| Some(now.max(last).saturating_add(1));
        let before = self.last.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).unwrap_or_default();
        let told = now.max(before);
        self.to.report(told, total.saturating_mul(PARTS).max(told), message);
    }
}

impl Progress for Steps {
    fn report(&self, done: u32, total: u32, message: &str) {
        self.done.store(done, Ordering::Relaxed);
        self.total.store(total, Ordering::Relaxed);
        self.tell(0, message);
    }
}

/// Tells of what goes on within the step that was told of last.
struct Within(Arc<Steps>);

impl Progress for Within {
    fn report(&self, done: u32, total: u32, message: &str) {
        let part = u64::from(done) * u64::from(PARTS) / u64::from(total.max(1));
        self.0.tell(u32::try_from(part).unwrap_or(PARTS), message);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[derive(Default)]
    struct Heard(Mutex<Vec<(u32, u32)>>);

    impl Progress for Heard {
        fn report(&self, done: u32, total: u32, _message: &str) {
            self.0.lock().unwrap().push((done, total));
        }
    }

    #[test]
    fn news_only_grow() {
        let heard = Arc::new(Heard::default());
        let steps = Arc::new(Steps::new(Arc::clone(&heard) as Arc<dyn Progress>));
        let within = Within(Arc::clone(&steps));
        within.report(0, 1000, "looking");
        steps.report(0, 2, "first");
        within.report(250, 1000, "a quarter");
        within.report(250, 1000, "still");
        steps.report(1, 2, "second");
        steps.report(2, 2, "ready");
        let heard = heard.0.lock().unwrap().clone();
        assert!(heard.windows(2).all(|pair| pair[0].0 < pair[1].0), "{heard:?}");
        assert!(heard.iter().all(|(done, total)| done <= total), "{heard:?}");
    }
}
