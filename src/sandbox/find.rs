//! Which profile, and which sandbox, a caller means.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::future::join_all;
use tokio::time::Instant;

use super::{Core, Profile, Sandbox, State, bounds};
use crate::engine::ServerInfo;
use crate::model::{Code, Failure, RequestId, SandboxId, SandboxKind};
use crate::store::{Find, LiveUse};

/// The four optional arguments that most operations take.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector {
    /// A profile's name.
    pub profile: Option<String>,
    /// A Postgres version; with a patch level, its major is meant.
    pub postgres_version: Option<String>,
    /// A sandbox's id.
    pub database_id: Option<String>,
    /// A sandbox's name.
    pub database_name: Option<String>,
}

/// What a selector selects.
#[derive(Clone, Debug)]
pub struct Target {
    /// The profile.
    pub profile: Arc<Profile>,
    /// The sandbox, where id or name was given. It may be expired, being made or being removed.
    pub sandbox: Option<Sandbox>,
}

impl Target {
    /// Returns the sandbox.
    ///
    /// # Errors
    /// `invalid_arguments` if neither id nor name was given.
    pub fn sandbox(&self) -> Result<&Sandbox, Failure> {
        self.sandbox.as_ref().ok_or_else(|| {
            Failure::new(Code::InvalidArguments, "neither `databaseId` nor `databaseName` is given")
                .hint("say which sandbox is meant; `list_databases` shows them")
        })
    }
}

/// What a request is about, and what the owners of its sandbox have live.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// What is meant.
    pub target: Target,
    /// What the sandbox's owner, and its group owner, have live; only where it was asked for and there is a sandbox.
    pub counted: Option<LiveUse>,
}

/// The failure for a sandbox that is not there; worded the same for one that is not the caller's.
pub fn not_found() -> Failure {
    Failure::new(Code::DatabaseNotFound, "there is no such sandbox")
        .hint("`list_databases` shows those there are; one that was removed stays so")
}

/// A version as callers write it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    Any,
    /// As it was written: there may be none such.
    Major(u64),
}

impl Version {
    /// Reads `16`, `16.3` or `*`.
    pub(super) fn parse(text: Option<&str>) -> Result<Self, Failure> {
        let Some(text) = text else { return Ok(Self::Any) };
        if text == "*" {
            return Ok(Self::Any);
        }
        let (major, rest) = text.split_once('.').unwrap_or((text, "0"));
        let digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit() || b == b'.');
        match major.parse() {
            Ok(number) if digits(major) && digits(rest) => Ok(Self::Major(number)),
            Ok(_) | Err(_) => {
                let shown: String = text.chars().take(40).flat_map(char::escape_default).collect();
                Err(Failure::new(Code::InvalidArguments, format!("`{shown}` is no Postgres version"))
                    .hint("give a major version, `16` for instance"))
            }
        }
    }

    /// Returns whether a profile has the version, as far as that is known without starting anything.
    pub(super) fn may_fit(self, profile: &Profile) -> bool {
        match (self, profile.known_major()) {
            (Self::Major(wanted), Some(major)) => wanted == u64::from(major),
            (Self::Any, _) | (Self::Major(_), None) => true,
        }
    }
}

impl Core {
    /// Finds what a selector means. Reads facts only, and needs no permit.
    ///
    /// Id or name alone searches every profile. An explicit argument is never overridden.
    ///
    /// # Errors
    /// `unknown_profile`, `version_mismatch`, `postgres_version_unavailable`, `database_not_found`, a name that is in
    /// two profiles, or a profile that could not be searched.
    pub async fn resolve(&self, selector: &Selector) -> Result<Target, Failure> {
        Ok(self.resolve_with(selector, None, false).await?.target)
    }

    /// As [`Core::resolve`], for a request that is about to be decided, with what the sandbox's owners have live if
    /// that is wanted. What is found stands for the act under the request's permit, if that follows at once.
    ///
    /// # Errors
    /// As [`Core::resolve`].
    pub async fn resolve_for(
        &self,
        request: RequestId,
        selector: &Selector,
        counted: bool,
    ) -> Result<Resolved, Failure> {
        self.resolve_with(selector, Some(request), counted).await
    }

    async fn resolve_with(
        &self,
        selector: &Selector,
        request: Option<RequestId>,
        counted: bool,
    ) -> Result<Resolved, Failure> {
        let version = Version::parse(selector.postgres_version.as_deref())?;
        bounds::check_text("databaseName", selector.database_name.as_deref())?;
        let id = match selector.database_id.as_deref() {
            Some(text) => Some(text.parse::<SandboxId>().map_err(|_| {
                let shown: String = text.chars().take(80).flat_map(char::escape_default).collect();
                Failure::new(Code::InvalidArguments, format!("`databaseId` `{shown}` is no id of a sandbox"))
                    .hint("`list_databases` shows the ids")
            })?),
            None => None,
        };
        if id.is_none() && selector.database_name.is_none() {
            let target = self.resolve_profile(selector.profile.as_deref(), version).await?;
            return Ok(Resolved { target, counted: None });
        }
        let candidates = self.candidates(selector.profile.as_deref(), version).await?;
        let asked = Instant::now();
        let name = selector.database_name.as_deref();
        let searched = join_all(candidates.iter().map(|profile| self.search(profile, id, name, counted))).await;
        let mut found: Vec<(Target, Option<LiveUse>)> = Vec::new();
        let mut failure = None;
        for (profile, result) in candidates.into_iter().zip(searched) {
            match result {
                Ok(Some((sandbox, counted))) => found.push((Target { profile, sandbox: Some(sandbox) }, counted)),
                Ok(None) => {}
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        // Two profiles with one server and prefix show the same sandbox; that is one place.
        found.dedup_by(|(a, _), (b, _)| a.sandbox.as_ref().map(|s| s.id) == b.sandbox.as_ref().map(|s| s.id));
        if found.len() > 1 {
            return Err(Failure::new(Code::InvalidArguments, "the sandbox's name is in several profiles")
                .hint("say which `profile` is meant")
                .allowed(found.iter().map(|(target, _)| target.profile.name())));
        }
        match found.pop() {
            Some((target, counted)) => {
                if let Version::Major(wanted) = version {
                    check_major(&target.profile, wanted)?;
                }
                if let (Some(request), Some(sandbox)) = (request, &target.sandbox) {
                    self.inner().decided.keep(request, &target.profile, sandbox, asked);
                }
                Ok(Resolved { target, counted })
            }
            None => Err(failure.unwrap_or_else(not_found)),
        }
    }

    async fn search(
        &self,
        profile: &Profile,
        id: Option<SandboxId>,
        name: Option<&str>,
        counted: bool,
    ) -> Result<Option<(Sandbox, Option<LiveUse>)>, Failure> {
        let find = match (id, name) {
            (Some(id), _) => Find::Id(id),
            (None, Some(name)) => Find::Name(name.to_owned()),
            (None, None) => return Ok(None),
        };
        if self.sees_nothing_on(profile).await? {
            return Ok(None);
        }
        self.open(profile).await?;
        let found = if counted {
            profile.store.find_counted(&find).await?.map(|(sandbox, counted)| (sandbox, Some(counted)))
        } else {
            profile.store.find(&find).await?.map(|sandbox| (sandbox, None))
        };
        Ok(found.filter(|(sandbox, _)| {
            let gone = matches!(sandbox.state, State::Deleted | State::Failed);
            sandbox.kind == SandboxKind::Sandbox && !gone && name.is_none_or(|name| sandbox.names.database == name)
        }))
    }

    async fn resolve_profile(&self, name: Option<&str>, version: Version) -> Result<Target, Failure> {
        let mut candidates = self.candidates(name, version).await?;
        // The default, if it is among them.
        let at = candidates.iter().position(|profile| profile.name() == self.default_profile()).unwrap_or(0);
        if name.is_none() && version == Version::Any {
            return Ok(Target { profile: self.profile(self.default_profile())?, sandbox: None });
        }
        Ok(Target { profile: candidates.swap_remove(at), sandbox: None })
    }

    /// Returns the profiles that a name and a version leave; at least one.
    async fn candidates(&self, name: Option<&str>, version: Version) -> Result<Vec<Arc<Profile>>, Failure> {
        if let Some(name) = name {
            let profile = self.profile(name)?;
            if let Version::Major(wanted) = version {
                // What is not there yet is not made to find out that it is not what was asked for.
                if let (true, Some(ahead)) = (profile.managed(), profile.major_ahead().await) {
                    check_is(&profile, ahead, wanted)?;
                } else if profile.known_major().is_none() {
                    self.open(&profile).await?;
                }
                check_major(&profile, wanted)?;
            }
            return Ok(vec![profile]);
        }
        let Version::Major(wanted) = version else { return Ok(self.profiles().to_vec()) };
        let mut fitting = Vec::new();
        let mut failure = None;
        let mut ahead = BTreeSet::new();
        for profile in self.profiles().iter().filter(|profile| version.may_fit(profile)) {
            if let (true, Some(major)) = (profile.managed(), profile.major_ahead().await) {
                ahead.insert(major);
                if u64::from(major) == wanted {
                    fitting.push(Arc::clone(profile));
                }
                continue;
            }
            if profile.known_major().is_none()
                && let Err(error) = self.open(profile).await
            {
                failure = failure.or(Some(error));
                continue;
            }
            if version.may_fit(profile) {
                fitting.push(Arc::clone(profile));
            }
        }
        if !fitting.is_empty() {
            return Ok(fitting);
        }
        ahead.extend(self.profiles().iter().filter_map(|profile| profile.known_major()));
        let majors = ahead.iter().map(u16::to_string);
        Err(failure.unwrap_or_else(|| self.no_such_version(wanted).allowed(majors)))
    }

    pub(super) fn no_such_version(&self, wanted: u64) -> Failure {
        let known: BTreeSet<u16> = self.profiles().iter().filter_map(|profile| profile.known_major()).collect();
        let mut failure = Failure::new(Code::PostgresVersionUnavailable, format!("no profile has Postgres {wanted}"))
            .allowed(known.into_iter().map(|major| major.to_string()))
            .hint(
                "`list_profiles` shows which there are; a call that names no version for a repository asks for the one that its \
                 `.pgsandbox/project.json` has",
            );
        failure.detail_mut().requested_version = Some(wanted.to_string());
        failure
    }

    /// Returns the profiles of a list or cleanup, without opening any.
    pub(super) fn in_scope(&self, name: Option<&str>, version: Option<&str>) -> Result<Vec<Arc<Profile>>, Failure> {
        let version = Version::parse(version)?;
        if let Some(name) = name {
            let profile = self.profile(name)?;
            if let (Version::Major(wanted), Some(_)) = (version, profile.known_major()) {
                check_major(&profile, wanted)?;
            }
            return Ok(vec![profile]);
        }
        let fitting: Vec<_> =
            self.profiles().iter().filter(|profile| version.may_fit(profile)).map(Arc::clone).collect();
        match version {
            Version::Major(wanted) if fitting.is_empty() => Err(self.no_such_version(wanted)),
            Version::Major(_) | Version::Any => Ok(fitting),
        }
    }

    /// Opens a profile and returns what its server says of itself.
    ///
    /// # Errors
    /// `unknown_profile`, or the server cannot be had.
    pub async fn ready(&self, profile: &str) -> Result<ServerInfo, Failure> {
        let profile = self.profile(profile)?;
        self.open(&profile).await?;
        let info = profile.server_info().cloned();
        info.ok_or_else(|| Failure::new(Code::Internal, "an open profile does not know its server"))
    }
}

fn check_major(profile: &Profile, wanted: u64) -> Result<(), Failure> {
    profile.known_major().map_or(Ok(()), |major| check_is(profile, major, wanted))
}

/// Checks that the major that a profile has, or would have, is the one that is wanted.
fn check_is(profile: &Profile, major: u16, wanted: u64) -> Result<(), Failure> {
    if u64::from(major) == wanted {
        return Ok(());
    }
    let mut failure =
        Failure::new(Code::VersionMismatch, format!("profile `{}` has Postgres {major}, not {wanted}", profile.name()))
            .hint("leave one of the two out");
    let detail = failure.detail_mut();
    detail.requested_version = Some(wanted.to_string());
    detail.resolved_profile = Some(profile.name().to_owned());
    detail.resolved_postgres_version = Some(major.to_string());
    Err(failure)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: Option<Version>) {
        assert_eq!(Version::parse(Some(text)).ok(), expected, "{text}");
    }

    #[test]
    fn a_version_with_a_patch_level_is_its_major() {
        check("16", Some(Version::Major(16)));
        check("16.3", Some(Version::Major(16)));
        check("9.6.24", Some(Version::Major(9)));
        check("*", Some(Version::Any));
        check("99999", Some(Version::Major(99_999)));
        for bad in ["", "x", "16x", "16.", "16.x", "-1", "+16", &"9".repeat(40)] {
            check(bad, None);
        }
    }
}
