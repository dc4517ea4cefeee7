//! Lists sandboxes over profiles, in pages, and counts what owners use.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::find::Version;
use super::{Core, Profile, Sandbox};
use crate::model::limits::LIST_PAGE_MAX;
use crate::model::{Code, Failure, SandboxId, SandboxKind, Timestamp, Usage};
use crate::store::{After, ListQuery};

/// Which sandboxes are listed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListFilter {
    /// Only of this profile.
    pub profile: Option<String>,
    /// Only on this version; `*` or nothing for all.
    pub postgres_version: Option<String>,
    /// Only of this authenticated owner.
    pub owner: Option<String>,
    /// Only of this group owner.
    pub group_owner: Option<String>,
    /// Only those that bear all of these labels.
    pub labels: Vec<(String, String)>,
    /// Also those whose time is over.
    pub include_expired: bool,
    /// Where an earlier page ended.
    pub cursor: Option<String>,
    /// How many at most; a page's full length if absent.
    pub limit: Option<usize>,
}

/// A page of sandboxes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListReport {
    /// Profile by profile, oldest first.
    pub databases: Vec<Sandbox>,
    /// Whether there are more.
    pub truncated: bool,
    /// Where the next page begins.
    pub next_cursor: Option<String>,
    /// Profiles that could not be looked at.
    pub failures: Vec<ProfileFailure>,
    /// The profiles that were looked at.
    pub profiles: Vec<String>,
}

/// A profile that could not be looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProfileFailure {
    /// Its name.
    pub profile: String,
    /// Why.
    pub failure: Failure,
}

impl Core {
    /// Lists sandboxes that are being made or ready. A profile that is down is reported beside the others' sandboxes.
    ///
    /// # Errors
    /// `unknown_profile`, or a cursor that is none of ours.
    pub async fn list(&self, filter: &ListFilter) -> Result<ListReport, Failure> {
        let Scope { limit, cursor, profiles, from } = self.scope(filter)?;
        let mut report = ListReport::default();
        for (index, profile) in profiles.iter().enumerate().skip(from) {
            report.profiles.push(profile.name().to_owned());
            if report.databases.len() > limit {
                continue;
            }
            let query = ListQuery {
                owner: filter.owner.clone(),
                group_owner: filter.group_owner.clone(),
                labels: filter.labels.clone(),
                include_expired: filter.include_expired,
                kind: SandboxKind::Sandbox,
                after: cursor.as_ref().filter(|_| index == from).map(|cursor| cursor.after),
                // One more, so that a full page knows whether it is the last.
                limit: limit + 1 - report.databases.len(),
            };
            match self.list_profile(profile, &query, filter).await {
                Ok(page) => report.databases.extend(page),
                Err(failure) => {
                    report.failures.push(ProfileFailure { profile: profile.name().to_owned(), failure });
                }
            }
        }
        report.truncated = report.databases.len() > limit;
        report.databases.truncate(limit);
        if report.truncated {
            report.next_cursor = report.databases.last().map(|last| Cursor::at(last).to_text());
        }
        Ok(report)
    }

    /// Says what [`Core::list`] would refuse with before it looks anywhere.
    ///
    /// # Errors
    /// Fails as the list would.
    pub fn foresee_list(&self, filter: &ListFilter) -> Result<(), Failure> {
        self.scope(filter).map(|_| ())
    }

    /// Reads what a list is to cover; opens nothing.
    fn scope(&self, filter: &ListFilter) -> Result<Scope, Failure> {
        let limit = filter.limit.unwrap_or(LIST_PAGE_MAX);
        if limit == 0 || limit > LIST_PAGE_MAX {
            return Err(Failure::new(
                Code::InvalidArguments,
                format!("a limit of {limit} is not 1 to {LIST_PAGE_MAX}"),
            ));
        }
        let cursor = filter.cursor.as_deref().map(Cursor::parse).transpose()?;
        let profiles = self.in_scope(filter.profile.as_deref(), filter.postgres_version.as_deref())?;
        let from = match &cursor {
            Some(cursor) => {
                let at = profiles.iter().position(|profile| profile.name() == cursor.profile);
                at.ok_or_else(bad_cursor)?
            }
            None => 0,
        };
        Ok(Scope { limit, cursor, profiles, from })
    }

    async fn list_profile(
        &self,
        profile: &Profile,
        query: &ListQuery,
        filter: &ListFilter,
    ) -> Result<Vec<Sandbox>, Failure> {
        self.open(profile).await?;
        if !Version::parse(filter.postgres_version.as_deref())?.may_fit(profile) {
            return Ok(Vec::new());
        }
        Ok(profile.store.list(query).await?)
    }

    /// Returns what an owner, and a group owner if one is named, have live on a profile.
    ///
    /// # Errors
    /// `unknown_profile`, or its metadata cannot be read.
    pub async fn usage(
        &self,
        profile: &str,
        owner: &str,
        group_owner: Option<&str>,
    ) -> Result<(Usage, Option<Usage>), Failure> {
        let profile = self.profile(profile)?;
        if self.sees_nothing_on(&profile).await? {
            return Ok((Usage::default(), group_owner.map(|_| Usage::default())));
        }
        self.open(&profile).await?;
        Ok(profile.store.usage(owner, group_owner).await?)
    }
}

/// What a list covers.
struct Scope {
    limit: usize,
    cursor: Option<Cursor>,
    profiles: Vec<Arc<Profile>>,
    /// The first profile of the page, by its place.
    from: usize,
}

/// Where a page ended. Opaque to callers; holds nothing that they did not see.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Cursor {
    profile: String,
    after: After,
}

impl Cursor {
    fn at(last: &Sandbox) -> Self {
        Self { profile: last.profile.clone(), after: After { time: last.created_at, id: last.id } }
    }

    fn to_text(&self) -> String {
        let After { time, id } = self.after;
        URL_SAFE_NO_PAD.encode(format!("{} {id} {}", time.unix_ms(), self.profile))
    }

    fn parse(text: &str) -> Result<Self, Failure> {
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| bad_cursor())?;
        let text = String::from_utf8(bytes).map_err(|_| bad_cursor())?;
        let mut parts = text.splitn(3, ' ');
        let (Some(ms), Some(id), Some(profile)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(bad_cursor());
        };
        // What does not fit the column is none of ours.
        let ms: u64 = ms.parse().ok().filter(|ms| *ms < 1 << 47).ok_or_else(bad_cursor)?;
        let id: SandboxId = id.parse().map_err(|_| bad_cursor())?;
        Ok(Self { profile: profile.to_owned(), after: After { time: Timestamp::from_unix_ms(ms), id } })
    }
}

fn bad_cursor() -> Failure {
    Failure::new(Code::InvalidArguments, "`cursor` is not one that this list gave")
        .hint("give `nextCursor` of the page before, with the same filters")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_survives_its_text() {
        let after = After { time: Timestamp::from_unix_ms(1_700_000_000_123), id: SandboxId::fresh() };
        let cursor = Cursor { profile: "with space".to_owned(), after };
        assert_eq!(Cursor::parse(&cursor.to_text()).unwrap(), cursor);
    }

    #[test]
    fn other_texts_are_no_cursors() {
        let far = format!("{} {} local", u64::MAX, SandboxId::fresh());
        for text in ["", "x", "????", &URL_SAFE_NO_PAD.encode("1 2 3"), &URL_SAFE_NO_PAD.encode(far)] {
            assert_eq!(Cursor::parse(text).unwrap_err().code, Code::InvalidArguments, "{text}");
        }
    }
}
