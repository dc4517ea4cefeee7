//! Databases that may be cloned: those that the operator configured, and those that a caller gives by URL.
//!
//! What policies are shown of a source and what is connected to come from the same parsed URL. A password is in neither
//! facts nor messages; one that is kept elsewhere is read when it is needed.

use super::Core;
use crate::engine::postgres::{Host, PostgresUrl, UrlOrigin};
use crate::model::{CloneSource, Code, Failure, Secret};
use crate::secret::PasswordSource;

/// A database that the operator configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceSettings {
    /// Unique among the sources.
    pub name: String,
    /// Where it is, and who reads it.
    pub url: PostgresUrl,
    /// Where the password is kept, if the URL has none.
    pub password: Option<PasswordSource>,
    /// Whether it is a production database.
    pub production: bool,
    /// The profiles into which it may be cloned; `None` for all.
    pub profiles: Option<Vec<String>>,
}

/// A database that the operator configured in part: a variable that holds the rest is not set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnusableSource {
    /// Unique among all sources.
    pub name: String,
    /// Whether it is a production database.
    pub production: bool,
    /// What is not set.
    pub why: String,
}

/// All that are configured.
#[derive(Debug, Default)]
pub(super) struct Sources {
    usable: Vec<SourceSettings>,
    unusable: Vec<UnusableSource>,
}

/// A source as a caller names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceRef {
    /// A configured one.
    Name(String),
    /// Any, by a URL that may hold a password.
    Url(Secret),
}

/// What a caller wants of a source, as far as policies decide about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloneAsked {
    /// The source.
    pub source: SourceRef,
    /// Whether only the schema is wanted.
    pub schema_only: bool,
    /// Why.
    pub reason: Option<String>,
}

impl CloneAsked {
    /// Checks what can be checked without knowing the sources.
    ///
    /// # Errors
    /// Says what is wrong with a URL.
    pub fn check(&self) -> Result<(), Failure> {
        match &self.source {
            SourceRef::Name(_) => Ok(()),
            SourceRef::Url(url) => PostgresUrl::parse(url.expose(), UrlOrigin::Caller).map(drop).map_err(Failure::from),
        }
    }

    /// Returns what the source is called, without a password.
    pub fn shown(&self) -> String {
        match &self.source {
            SourceRef::Name(name) => name.clone(),
            SourceRef::Url(url) => {
                PostgresUrl::parse(url.expose(), UrlOrigin::Caller).map(|url| url.redacted()).unwrap_or_default()
            }
        }
    }
}

impl SourceSettings {
    /// Returns whether a URL leads to the same database.
    fn is_at(&self, url: &PostgresUrl) -> bool {
        let (ours, theirs) = (&self.url.endpoint, &url.endpoint);
        host_name(&ours.host) == host_name(&theirs.host)
            && ours.port == theirs.port
            && self.url.database == url.database
    }
}

/// A host as it is compared: a name's case and its last dot say nothing.
fn host_name(host: &Host) -> String {
    match host {
        Host::Tcp(host) => host.trim_end_matches('.').to_ascii_lowercase(),
        Host::Unix(directory) => directory.display().to_string(),
    }
}

impl Core {
    /// Says which databases the operator configured, once, before calls are answered.
    pub fn set_sources(&self, usable: Vec<SourceSettings>, unusable: Vec<UnusableSource>) {
        // A second list would be another configuration's.
        self.inner().sources.set(Sources { usable, unusable }).unwrap_or_default();
    }

    /// Returns the names of the sources that can be used, in their order.
    pub fn source_names(&self) -> Vec<String> {
        self.usable_sources().iter().map(|source| source.name.clone()).collect()
    }

    /// Returns the sources that cannot be used, in their order.
    pub fn unusable_sources(&self) -> &[UnusableSource] {
        self.inner().sources.get().map(|sources| sources.unusable.as_slice()).unwrap_or_default()
    }

    fn usable_sources(&self) -> &[SourceSettings] {
        self.inner().sources.get().map(|sources| sources.usable.as_slice()).unwrap_or_default()
    }

    /// Returns what policies are shown of a source.
    ///
    /// # Errors
    /// Fails if there is no such source, or a URL cannot be used.
    pub fn clone_source(&self, asked: &CloneAsked) -> Result<CloneSource, Failure> {
        let found = self.find_source(&asked.source)?;
        let named = matches!(asked.source, SourceRef::Name(_));
        let host = match &found.url.endpoint.host {
            Host::Tcp(host) => host.clone(),
            Host::Unix(directory) => directory.display().to_string(),
        };
        Ok(CloneSource {
            name: named.then(|| found.name.clone()),
            host,
            port: found.url.endpoint.port,
            database: found.url.database.clone(),
            user: found.url.credentials.user.clone(),
            tls: found.url.endpoint.tls,
            production: found.production,
            schema_only: asked.schema_only,
            reason: asked.reason.clone(),
        })
    }

    /// Returns the production databases that a source given by URL must not be by another address, each with its password. One
    /// that is known to be production already is on its terms, and a configured one is what the operator says it is.
    pub(super) async fn guarded_from(
        &self,
        asked: &SourceRef,
        found: &SourceSettings,
    ) -> Result<Vec<(String, PostgresUrl)>, Failure> {
        if matches!(asked, SourceRef::Name(_)) || found.production {
            return Ok(Vec::new());
        }
        let known = self.usable_sources();
        let mut guarded = Vec::new();
        for source in known.iter().filter(|source| source.production) {
            let mut url = source.url.clone();
            if let Some(password) = &source.password {
                url.credentials.password = Some(password.read().await?);
            }
            guarded.push((source.name.clone(), url));
        }
        Ok(guarded)
    }

    /// Finds a source. A URL that leads to a database marked as production is to such a one; while it is not known where one
    /// such is, no URL is taken.
    pub(super) fn find_source(&self, source: &SourceRef) -> Result<SourceSettings, Failure> {
        let known = self.usable_sources();
        match source {
            SourceRef::Name(name) => known.iter().find(|source| source.name == *name).cloned().ok_or_else(|| {
                if let Some(source) = self.unusable_sources().iter().find(|source| source.name == *name) {
                    return not_usable(format!("source `{name}` cannot be used: {}", source.why));
                }
                let shown: String = name.chars().take(80).flat_map(char::escape_default).collect();
                let failure = Failure::new(Code::SourceNotAllowed, format!("there is no source `{shown}`"))
                    .allowed(known.iter().map(|source| source.name.clone()));
                failure.hint("an operator names sources in the configuration, under `sources`")
            }),
            SourceRef::Url(text) => {
                let url = PostgresUrl::parse(text.expose(), UrlOrigin::Caller)?;
                if let Some(source) = self.unusable_sources().iter().find(|source| source.production) {
                    let (name, why) = (&source.name, &source.why);
                    let text =
                        format!("it is not known whether the URL leads to the production source `{name}`: {why}");
                    return Err(not_usable(text));
                }
                let production = known.iter().any(|source| source.production && source.is_at(&url));
                Ok(SourceSettings { name: url.redacted(), url, password: None, production, profiles: None })
            }
        }
    }
}

fn not_usable(message: String) -> Failure {
    Failure::new(Code::InvalidConfiguration, message).hint(
        "an operator sets the variable where this program is started, or takes the source out, and starts it again",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(url: &str) -> SourceSettings {
        let url = PostgresUrl::parse(url, UrlOrigin::Operator).unwrap();
        SourceSettings { name: "shop".into(), url, password: None, production: true, profiles: None }
    }

    #[test]
    fn a_url_to_a_configured_database_is_known_whoever_logs_in() {
        let shop = source("postgresql://reader@Shop.internal./shop");
        let at = |text: &str| shop.is_at(&PostgresUrl::parse(text, UrlOrigin::Caller).unwrap());
        assert!(at("postgresql://me:pw@shop.INTERNAL:5432/shop?sslmode=disable"));
        assert!(!at("postgresql://me@shop.internal:5433/shop"));
        assert!(!at("postgresql://me@shop.internal/other"));
    }
}
