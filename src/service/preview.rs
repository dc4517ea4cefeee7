//! Says what would be decided about a call: the same facts, the same policies, and nothing is charged or done.

use async_trait::async_trait;
use serde_json::Value;

use super::Service;
use super::approvals::{Agreed, Use};
use super::facts::{self, Facts};
use crate::admission::{Account, Gate};
use crate::model::{
    Code, Context, Decision, Failure, Mode, PolicyDecision, Preview, Previewed, Principal, RequestId, Said, Timestamp,
    Verdict,
};
use crate::operation::{self, About, Asks};
use crate::sandbox::Selector;

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
        let (warnings, mut refusal) = match prepared.foresee(&gate, &core, script.as_deref(), &self.commands).await {
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
}

impl Service {
    /// Returns the extensions that profile and policies allow, whatever the server has.
    async fn extensions_allowed(&self, principal: &Principal, profile: &str) -> Result<Vec<String>, Failure> {
        let names = self.core.profile(profile)?.allowed_extensions();
        let entry = operation::find(MAKES_SANDBOXES)?;
        let selector = Selector { profile: Some(profile.to_owned()), ..Selector::default() };
        // Without what is used so far: nothing is to be opened or started for it.
        let asks = Asks { about: About::Profile(selector), ..Asks::default() };
        let facts = Facts { core: &self.core, spec: entry.spec, principal, asks: &asks };
        let mut context = facts.gather(RequestId::fresh(), Timestamp::now(), None).await?;
        let set = self.policies().await?.current()?;
        let account = Account::new(&context.principal, None);
        let balances = self.book.balances(&account, &set.buckets(&context), context.now)?;
        let mut acceptable = Vec::new();
        for name in names {
            context.requested.extensions = vec![name.clone()];
            if !refuses_the_extension(&set.decide(&context, &balances)) {
                acceptable.push(name);
            }
        }
        Ok(acceptable)
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

/// Returns whether a policy that counts refuses for the sake of the extension.
fn refuses_the_extension(decision: &Decision) -> bool {
    decision.reports.iter().filter(|report| report.mode == Mode::Enforce).any(|report| match &report.said {
        Said::Decided(PolicyDecision { verdict: Verdict::Deny(denial), .. }) => {
            denial.code == Code::ExtensionNotAllowed.as_str()
        }
        Said::Decided(_) | Said::NotConcerned | Said::Failed(_) => false,
    })
}
