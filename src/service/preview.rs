//! Says what would be decided about a call: the same facts, the same policies, and nothing is charged or done.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::Value;

use super::Service;
use super::approvals::{Agreed, Use};
use super::facts::{self, Facts};
use crate::admission::{Account, Gate};
use crate::model::limits::EXTENSIONS_MAX;
use crate::model::{Balance, Code, Context, Failure, Preview, Previewed, Principal, RequestId, Timestamp};
use crate::operation::{self, About, Asks, Beside};
use crate::policy::{Set, refused_under};
use crate::sandbox::Selector;
use crate::telemetry::span;

#[async_trait]
impl Preview for Service {
    async fn preview(&self, principal: &Principal, operation: &str, arguments: &str) -> Result<Previewed, Failure> {
        let entry = operation::find(operation)?;
        let Ok(Value::Object(arguments)) = serde_json::from_str(arguments) else {
            return Err(Failure::new(Code::InvalidArguments, "the arguments are not a JSON object"));
        };
        let prepared = entry.read(arguments.clone())?;
        let asks = prepared.asks();
        let script = facts::read_sql(&self.reader, &asks)?;
        // An explanation starts no server.
        let core = self.core.looking();
        let facts = Facts { core: &core, spec: entry.spec, principal, asks: &asks };
        let mut context = facts.gather(RequestId::fresh(), Timestamp::now(), script.as_deref()).await?;
        let set = self.set(context.operation).await?;
        if let Some(set) = &set {
            facts::show_texts(&mut context, set, script.as_deref(), &asks);
        }
        let decision = self.decide(set.as_deref(), &context, &asks)?;
        // What is not the caller's is not there, also for an explanation.
        if let (Some(refusal), About::Sandbox(_)) = (&decision.refusal, &asks.about)
            && refusal.code == Code::DatabaseNotFound
        {
            return Err(refusal.clone());
        }
        let buckets: Vec<_> = decision.charges.iter().map(|c| (c.policy.clone(), c.bucket.clone())).collect();
        let account = Account::new(&context.principal, context.group_owner.as_deref());
        let balances = self.book.balances(&account, &buckets, context.now)?;
        let people = (&core, &*self.consents);
        let agreed = Agreed::to(&decision, &context, &arguments, people, Use::Look).await?;
        let gate = Gate { context: &context, decision: &decision, book: &*self.book, consents: &agreed };
        let beside = Beside { core: &core, script: script.as_deref(), commands: &self.commands, preview: self };
        let (warnings, mut refusal) = match prepared.foresee(&gate, &beside).await {
            Ok(warnings) => (warnings, None),
            Err(refusal) => (Vec::new(), Some(refusal)),
        };
        if let Some(refusal) = &mut refusal {
            self.name_acceptable_extensions(&context, refusal).await;
        }
        let obligations = decision.obligations.clone();
        let sandbox = context.sandbox.as_ref().map(|sandbox| sandbox.id);
        Ok(Previewed { decision, obligations, balances, refusal, warnings, sandbox })
    }

    async fn acceptable_extensions(&self, principal: &Principal, profile: &str) -> Result<Vec<String>, Failure> {
        let acceptable = self.extensions_allowed(principal, profile).await?;
        Ok(self.core.installable(profile, acceptable, false).await)
    }

    async fn offered_extensions(&self, principal: &Principal, profile: &str) -> Result<Vec<String>, Failure> {
        let names = self.core.profile(profile)?.allowed_extensions();
        let asked = self.making_of_sandboxes(principal, profile).await?;
        let takes_all = |names: &Vec<String>| names.len() <= EXTENSIONS_MAX && asked.refusal_of(names).is_none();
        let offered = span::extensions(names.len()).in_scope(|| match takes_all(&names) {
            true => names,
            false => asked.each_allowed(names),
        });
        Ok(self.core.installable(profile, offered, false).await)
    }

    async fn refused_extension(
        &self,
        principal: &Principal,
        profile: &str,
        name: &str,
    ) -> Result<Option<Failure>, Failure> {
        let asked = self.making_of_sandboxes(principal, profile).await?;
        match asked.refusal_of(&[name.to_owned()]) {
            Some(failure) if failure.code == Code::ExtensionNotAllowed => Ok(Some(failure)),
            Some(fault) => Err(fault),
            None => Ok(None),
        }
    }
}

/// The making of a sandbox, about which the policies are asked with one extension after another.
struct Asked {
    set: Arc<Set>,
    context: Context,
    balances: Vec<Balance>,
}

impl Asked {
    /// Returns what an enforced policy refuses the extensions with, or that it failed to answer.
    fn refusal_of(&self, names: &[String]) -> Option<Failure> {
        let mut context = self.context.clone();
        context.requested.extensions = names.to_vec();
        refused_under(&self.set.weigh(&context, &self.balances), Code::ExtensionNotAllowed)
    }

    /// Keeps the extensions that no policy refuses by themselves.
    fn each_allowed(&self, names: Vec<String>) -> Vec<String> {
        let refused = |name: &String| {
            let refusal = self.refusal_of(std::slice::from_ref(name));
            refusal.is_some_and(|failure| failure.code == Code::ExtensionNotAllowed)
        };
        names.into_iter().filter(|name| !refused(name)).collect()
    }
}

impl Service {
    /// Returns the extensions that profile and policies allow, whatever the server has.
    async fn extensions_allowed(&self, principal: &Principal, profile: &str) -> Result<Vec<String>, Failure> {
        let names = self.core.profile(profile)?.allowed_extensions();
        let asked = self.making_of_sandboxes(principal, profile).await?;
        Ok(span::extensions(names.len()).in_scope(|| asked.each_allowed(names)))
    }

    /// Gathers what the policies are asked about extensions on: all that a sandbox may be made with, a statement may install.
    async fn making_of_sandboxes(&self, principal: &Principal, profile: &str) -> Result<Asked, Failure> {
        let entry = operation::find(MAKES_SANDBOXES)?;
        let selector = Selector { profile: Some(profile.to_owned()), ..Selector::default() };
        // Without what is used so far: nothing is to be opened or started for it.
        let asks = Asks { about: About::Profile(selector), ..Asks::default() };
        let facts = Facts { core: &self.core, spec: entry.spec, principal, asks: &asks };
        let context = facts.gather(RequestId::fresh(), Timestamp::now(), None).await?;
        let set = self.policies().await?.current()?;
        let account = Account::new(&context.principal, None);
        let balances = self.book.balances(&account, &set.buckets(&context), context.now)?;
        Ok(Asked { set, context, balances })
    }

    /// Names in a refusal of an extension those that would really be had: that profile and policies both allow, and the
    /// server can install there, in a new sandbox or by a statement.
    pub(super) async fn name_acceptable_extensions(&self, context: &Context, failure: &mut Failure) {
        if !matches!(failure.code, Code::ExtensionNotAllowed | Code::ExtensionSetupRequired) {
            return;
        }
        let Some(server) = &context.server else { return };
        if let Ok(allowed) = self.extensions_allowed(&context.principal, &server.profile).await {
            failure.allowed = self.core.installable(&server.profile, allowed, context.sandbox.is_some()).await;
        }
    }
}

/// The operation that takes extensions.
const MAKES_SANDBOXES: &str = "create_database";
