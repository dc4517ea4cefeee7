//! Checks what is asked for against the core's, the profile's and the policies' bounds. Nothing is clamped.

use std::collections::BTreeMap;

use super::ProfileSettings;
use super::bounds::{check_extension_names, check_labels, check_template_name, check_text};
use crate::admission::Grant;
use crate::model::{Code, Failure, Limit, Obligations, Scope};
use crate::store::{Idempotency, QuotaLimits};

/// Extensions of a profile whose operator names none: of Postgres' own those that it trusts a database's owner with, none
/// of them a language.
pub(super) const ALLOWED_BY_DEFAULT: [&str; 20] = [
    "btree_gin",
    "btree_gist",
    "citext",
    "cube",
    "dict_int",
    "fuzzystrmatch",
    "hstore",
    "intarray",
    "isn",
    "lo",
    "ltree",
    "pg_trgm",
    "pgcrypto",
    "seg",
    "tablefunc",
    "tcn",
    "tsm_system_rows",
    "tsm_system_time",
    "unaccent",
    "uuid-ossp",
];
/// Extensions that reach out of the database or run untrusted code; no profile can allow them.
pub(super) const NEVER_ALLOWED: [&str; 8] =
    ["adminpack", "dblink", "file_fdw", "plperlu", "plpython2u", "plpython3u", "pltclu", "postgres_fdw"];

/// The extension that every database has from the start.
pub const BUILT_IN_EXTENSION: &str = "plpgsql";

/// A sandbox as it is asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CreateRequest {
    /// The profile, resolved.
    pub profile: String,
    /// What the name is made from.
    pub name_hint: Option<String>,
    /// Time to live; the profile's default if absent.
    pub ttl_minutes: Option<u64>,
    /// Labels, those that policies add included.
    pub labels: Vec<(String, String)>,
    /// Extensions to install.
    pub extensions: Vec<String>,
    /// The template of the caller's that it is made from.
    pub template: Option<String>,
    /// The caller's idempotency key, with the digest of the whole request.
    pub idempotency: Option<Idempotency>,
}

/// Returns the longest life of a sandbox and who set it.
pub fn ttl_limit(settings: &ProfileSettings, obligations: &Obligations) -> Limit {
    let profile = Limit { value: settings.max_ttl_minutes, set_by: "profile".to_owned() };
    match &obligations.max_ttl_minutes {
        Some(limit) if limit.value < profile.value => limit.clone(),
        Some(_) | None => profile,
    }
}

/// Returns the quotas a new sandbox must fit: the policies', and the profile's where it is lower.
pub fn quota_limits(settings: &ProfileSettings, obligations: &Obligations) -> QuotaLimits {
    let mut live: BTreeMap<Scope, Limit> = obligations.max_live_sandboxes.clone();
    if let Some(value) = settings.max_active_per_owner {
        for scope in [Scope::Principal, Scope::Group] {
            let profile = || Limit { value, set_by: "profile".to_owned() };
            live.entry(scope)
                .and_modify(|limit| {
                    if value < limit.value {
                        *limit = profile();
                    }
                })
                .or_insert_with(profile);
        }
    }
    QuotaLimits { live, bytes: obligations.max_database_bytes.clone() }
}

/// Checks a time to live, and chooses one if none is asked for: the profile's default, or the limit where that is lower.
pub(super) fn check_ttl(
    profile: &str,
    asked: Option<u64>,
    settings: &ProfileSettings,
    obligations: &Obligations,
) -> Result<u64, Failure> {
    let limit = ttl_limit(settings, obligations);
    let Some(minutes) = asked else {
        let minutes = settings.default_ttl_minutes.min(limit.value);
        // A policy that allows no minute at all leaves nothing to choose.
        return if minutes == 0 { Err(over_ttl(profile, 1, &limit)) } else { Ok(minutes) };
    };
    if minutes == 0 {
        return Err(Failure::new(Code::InvalidTtl, "a ttl of 0 minutes is none")
            .hint(format!("ask for 1 to {} minutes", limit.value))
            .allowed_minutes(limit.value));
    }
    if minutes > limit.value { Err(over_ttl(profile, minutes, &limit)) } else { Ok(minutes) }
}

pub(super) fn over_ttl(profile: &str, minutes: u64, limit: &Limit) -> Failure {
    let value = limit.value;
    let text = if limit.set_by == "profile" {
        format!("ttl of {minutes} minutes is over profile `{profile}`'s limit of {value} minutes")
    } else {
        format!("ttl of {minutes} minutes is over the limit of {value} minutes set by `{}`", limit.set_by)
    };
    Failure::new(Code::InvalidTtl, text).hint(format!("ask for {value} minutes or less")).allowed_minutes(value)
}

impl CreateRequest {
    /// Checks everything that can be checked without asking the server. Labels come out sorted, extensions once each.
    pub(super) fn check(mut self, settings: &ProfileSettings, grant: &Grant) -> Result<CheckedRequest, Failure> {
        let ttl_minutes = check_ttl(&self.profile, self.ttl_minutes, settings, &grant.obligations)?;
        check_text("nameHint", self.name_hint.as_deref())?;
        check_text("owner", grant.group_owner.as_deref())?;
        check_text("idempotencyKey", self.idempotency.as_ref().map(|idempotency| idempotency.key.as_str()))?;
        if let Some(name) = &self.template {
            check_template_name(name)?;
        }
        check_labels(&self.labels)?;
        self.labels.sort();
        let extensions = check_extensions(&self.profile, &self.extensions, &settings.allowed_extensions)?;
        Ok(CheckedRequest {
            ttl_minutes,
            name_hint: self.name_hint,
            labels: self.labels,
            extensions,
            template: self.template,
            idempotency: self.idempotency,
        })
    }
}

/// A request that passed every check but the server's.
#[derive(Clone, Debug)]
pub(super) struct CheckedRequest {
    pub(super) ttl_minutes: u64,
    pub(super) name_hint: Option<String>,
    pub(super) labels: Vec<(String, String)>,
    pub(super) extensions: Vec<String>,
    pub(super) template: Option<String>,
    pub(super) idempotency: Option<Idempotency>,
}

impl CheckedRequest {
    /// Returns the labels of a copy: those of what is copied, and those asked for beside them.
    pub(super) fn labels_beside(&self, inherited: &[(String, String)]) -> Result<Vec<(String, String)>, Failure> {
        let mut labels = self.labels.clone();
        for (key, value) in inherited {
            match labels.iter().find(|(given, _)| given == key) {
                None => labels.push((key.clone(), value.clone())),
                Some((_, given)) if given == value => {}
                Some(_) => {
                    let text =
                        format!("label `{key}` of what is copied is `{value}`, and the call gives it another value");
                    return Err(Failure::new(Code::InvalidArguments, text).hint(format!(
                        "a copy keeps the labels of its source: leave label `{key}` out, and give others"
                    )));
                }
            }
        }
        check_labels(&labels)?;
        labels.sort();
        Ok(labels)
    }
}

/// Returns the extensions once each, in the order given.
pub(super) fn check_extensions(profile: &str, asked: &[String], allowed: &[String]) -> Result<Vec<String>, Failure> {
    check_extension_names(asked)?;
    let mut extensions: Vec<String> = Vec::with_capacity(asked.len());
    for name in asked {
        let permitted = allowed.iter().filter(|allowed| !NEVER_ALLOWED.contains(&allowed.as_str()));
        if NEVER_ALLOWED.contains(&name.as_str()) || !allowed.contains(name) {
            return Err(Failure::new(
                Code::ExtensionNotAllowed,
                format!("extension `{name}` is not allowed on profile `{profile}`"),
            )
            .allowed(permitted));
        }
        if !extensions.contains(name) {
            extensions.push(name.clone());
        }
    }
    Ok(extensions)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Obligation;

    fn settings() -> ProfileSettings {
        ProfileSettings { default_ttl_minutes: 60, max_ttl_minutes: 120, ..ProfileSettings::default() }
    }

    fn obliged(demands: &[Obligation]) -> Obligations {
        let mut all = Obligations::default();
        for demand in demands {
            all.add("some-policy", demand.clone());
        }
        all
    }

    fn check_ttl_of(asked: Option<u64>, demands: &[Obligation], expected: Result<u64, &str>) {
        let got = check_ttl("local", asked, &settings(), &obliged(demands));
        match (got, expected) {
            (Ok(got), Ok(expected)) => assert_eq!(got, expected),
            (Err(got), Err(expected)) => {
                assert_eq!(got.code, Code::InvalidTtl);
                assert_eq!(got.message, expected);
                let most = ttl_limit(&settings(), &obliged(demands)).value;
                let range = if most == 1 { "1 minute".to_owned() } else { format!("1 to {most} minutes") };
                assert_eq!(got.allowed, if most == 0 { Vec::new() } else { vec![range] });
            }
            (got, expected) => panic!("{got:?} instead of {expected:?}"),
        }
    }

    #[test]
    fn a_ttl_is_checked_and_never_clamped() {
        check_ttl_of(None, &[], Ok(60));
        check_ttl_of(Some(1), &[], Ok(1));
        check_ttl_of(Some(120), &[], Ok(120));
        check_ttl_of(Some(0), &[], Err("a ttl of 0 minutes is none"));
        check_ttl_of(Some(121), &[], Err("ttl of 121 minutes is over profile `local`'s limit of 120 minutes"));
        let huge = format!("ttl of {} minutes is over profile `local`'s limit of 120 minutes", u64::MAX);
        check_ttl_of(Some(u64::MAX), &[], Err(&huge));
    }

    #[test]
    fn a_policy_lowers_the_ttl_and_is_named() {
        let lower = [Obligation::MaxTtlMinutes(30)];
        check_ttl_of(None, &lower, Ok(30));
        check_ttl_of(Some(31), &lower, Err("ttl of 31 minutes is over the limit of 30 minutes set by `some-policy`"));
        check_ttl_of(Some(120), &[Obligation::MaxTtlMinutes(9999)], Ok(120));
        check_ttl_of(
            Some(121),
            &[Obligation::MaxTtlMinutes(9999)],
            Err("ttl of 121 minutes is over profile `local`'s limit of 120 minutes"),
        );
    }

    #[test]
    fn the_lower_of_profile_and_policy_is_the_quota() {
        let mut settings = settings();
        settings.max_active_per_owner = Some(5);
        let demands = obliged(&[
            Obligation::MaxLiveSandboxes { scope: Scope::Principal, limit: 3 },
            Obligation::MaxLiveSandboxes { scope: Scope::Group, limit: 9 },
        ]);
        let quotas = quota_limits(&settings, &demands);
        assert_eq!(quotas.live[&Scope::Principal], Limit { value: 3, set_by: "some-policy".into() });
        assert_eq!(quotas.live[&Scope::Group], Limit { value: 5, set_by: "profile".into() });
    }

    fn check_extensions_of(asked: &[&str], expected: Result<&[&str], Code>) {
        let asked: Vec<String> = asked.iter().map(|&name| name.to_owned()).collect();
        let allowed = ["citext", "dblink", "pg_trgm"].map(str::to_owned);
        let got = check_extensions("local", &asked, &allowed).map_err(|failure| failure.code);
        assert_eq!(got, expected.map(|names| names.iter().map(|&name| name.to_owned()).collect()));
    }

    #[test]
    fn extensions_are_those_the_profile_allows() {
        check_extensions_of(&["pg_trgm", "citext", "pg_trgm"], Ok(&["pg_trgm", "citext"]));
        check_extensions_of(&["postgis"], Err(Code::ExtensionNotAllowed));
        check_extensions_of(&["dblink"], Err(Code::ExtensionNotAllowed));
        check_extensions_of(&["x\"; drop"], Err(Code::InvalidExtensions));
        check_extensions_of(&[""], Err(Code::InvalidExtensions));
        check_extensions_of(&["citext"; 26], Err(Code::InvalidExtensions));
    }
}
