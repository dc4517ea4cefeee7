//! Gathers, once, what a request is decided on.

use std::sync::Arc;

use crate::model::{Code, Context, Decision, Failure, Phase, Principal, RequestId, Requested, ServerFacts, Timestamp};
use crate::operation::{About, Asks, Spec};
use crate::policy::Set;
use crate::sandbox::{self, Core, LiveUse, Profile, Resolved, Sandbox, Selector};
use crate::sql::{self, Reader, Script};
use crate::telemetry::span;

/// What the facts are gathered from.
pub(super) struct Facts<'a> {
    pub(super) core: &'a Core,
    pub(super) spec: &'static Spec,
    pub(super) principal: &'a Principal,
    pub(super) asks: &'a Asks,
}

/// Reads the request's SQL, once for everybody.
pub(super) fn read_sql(reader: &Reader, asks: &Asks) -> Result<Option<Arc<Script>>, Failure> {
    let Some(text) = asks.sql.as_deref() else { return Ok(None) };
    let here = span::classify();
    here.in_scope(|| {
        let read = reader.read(text).map_err(|error| sql::failure(error, text));
        match &read {
            Ok(script) => _ = here.record(span::STATEMENT_COUNT, script.statements.len()),
            Err(failure) => span::failed(&here, failure),
        }
        read.map(Some)
    })
}

/// Adds the statements' texts where a policy that will be asked is granted them: no other request holds any.
pub(super) fn show_texts(context: &mut Context, set: &Set, script: Option<&Script>, asks: &Asks) {
    let (Some(script), Some(text)) = (script, asks.sql.as_deref()) else { return };
    if set.sees_text(context) {
        let texts = script.statements.iter().map(|s| text.get(s.text.clone()).unwrap_or_default().to_owned());
        context.statement_texts = texts.collect();
    }
}

impl Facts<'_> {
    /// Gathers the facts. Starts nothing but a managed cluster that the request is about.
    pub(super) async fn gather(
        &self,
        id: RequestId,
        now: Timestamp,
        script: Option<&Script>,
    ) -> Result<Context, Failure> {
        let (profile, sandbox, counted) = self.resolve(id).await?;
        let group_owner =
            self.asks.group_owner.clone().or_else(|| sandbox.as_ref().and_then(|sandbox| sandbox.group_owner.clone()));
        let (principal_usage, group_usage) = match (&profile, counted) {
            (_, Some((principal, group))) if self.asks.group_owner.is_none() => (Some(principal), group),
            (Some(profile), _) if self.asks.usage => {
                // What a sandbox uses is charged to its owner, who for the caller's own is the caller.
                let owner = sandbox.as_ref().map_or(&self.principal.owner, |sandbox| &sandbox.owner);
                let (principal, group) = self.core.usage(profile.name(), owner, group_owner.as_deref()).await?;
                (Some(principal), group)
            }
            _ => (None, None),
        };
        let clone_source = self.asks.clone.as_ref().map(|asked| self.core.clone_source(asked)).transpose()?;
        let statements = script.map(|s| s.statements.iter().map(|s| s.facts.clone()).collect()).unwrap_or_default();
        Ok(Context {
            request_id: id,
            phase: Phase::Before,
            operation: self.spec.name,
            impact: self.spec.impact,
            principal: self.principal.clone(),
            group_owner,
            now,
            server: profile.as_deref().map(server_facts),
            sandbox: sandbox.as_ref().map(Sandbox::facts),
            principal_usage,
            group_usage,
            statements,
            statement_texts: Vec::new(),
            clone_source,
            requested: self.requested(script),
            outcome: None,
        })
    }

    /// Returns what is asked for, the extensions that statements install by name among it.
    fn requested(&self, script: Option<&Script>) -> Requested {
        let mut requested = self.asks.requested.clone();
        let installed = script.into_iter().flat_map(|script| &script.statements).filter_map(|s| s.installs.as_ref());
        for name in installed.filter_map(|installs| installs.name.as_ref()) {
            if !requested.extensions.contains(name) {
                requested.extensions.push(name.clone());
            }
        }
        requested
    }

    async fn resolve(
        &self,
        id: RequestId,
    ) -> Result<(Option<Arc<Profile>>, Option<Sandbox>, Option<LiveUse>), Failure> {
        match &self.asks.about {
            About::Program => Ok((None, None, None)),
            About::Profile(selector) => Ok((Some(self.core.resolve(selector).await?.profile), None, None)),
            About::Sandbox(selector) => {
                let resolved = self.core.resolve_for(id, selector, self.asks.usage).await;
                let Resolved { target, counted } = match resolved {
                    Err(failure) if failure.code == Code::DatabaseNotFound => {
                        return Err(self.id_and_name_differ(selector).await.unwrap_or(failure));
                    }
                    resolved => resolved?,
                };
                let sandbox = target.sandbox()?.clone();
                Ok((Some(target.profile), Some(sandbox), counted))
            }
        }
    }
}

impl Facts<'_> {
    /// Says which of an id and a name is wrong where one of them is of a sandbox of the caller's own. Of another's nothing is
    /// said: it is not there.
    async fn id_and_name_differ(&self, selector: &Selector) -> Option<Failure> {
        let (Some(_), Some(_)) = (&selector.database_id, &selector.database_name) else { return None };
        let by_id = Selector { database_name: None, ..selector.clone() };
        let by_name = Selector { database_id: None, ..selector.clone() };
        let differ = |text: String| Failure::new(Code::DatabaseNotFound, text).hint("leave one of the two out");
        if let Some(found) = self.own(&by_id).await {
            let text = format!(
                "the sandbox of this `databaseId` is named `{}`, and not as `databaseName` says",
                found.names.database
            );
            return Some(differ(text));
        }
        let found = self.own(&by_name).await?;
        Some(differ(format!(
            "the sandbox of this `databaseName` has the id `{}`, and not the `databaseId` that is given",
            found.id
        )))
    }

    async fn own(&self, selector: &Selector) -> Option<Sandbox> {
        let found = self.core.resolve(selector).await.ok()?.sandbox?;
        (found.owner == self.principal.owner).then_some(found)
    }
}

fn server_facts(profile: &Profile) -> ServerFacts {
    ServerFacts {
        profile: profile.name().to_owned(),
        engine: profile.engine_kind().to_owned(),
        major: profile.known_major(),
        managed: profile.managed(),
    }
}

/// Words a refusal that would reveal another owner's sandbox exactly as one for a sandbox that is not there.
pub(super) fn hide_what_is_not_the_callers(decision: &mut Decision, asks: &Asks) {
    let Some(refusal) = &mut decision.refusal else { return };
    if refusal.code == Code::DatabaseNotFound && matches!(asks.about, About::Sandbox(_)) {
        let detail = refusal.audit.take().unwrap_or_default();
        *refusal = sandbox::not_found().audit(format!("hidden by a policy: {detail}"));
    }
}
