//! Says what would be decided about a call: the same facts, the same policies, and nothing is charged or done.

use async_trait::async_trait;
use serde_json::Value;

use super::Service;
use super::facts::{self, Facts};
use crate::admission::{Account, Gate};
use crate::model::{Code, Failure, Preview, Previewed, Principal, RequestId, Timestamp};
use crate::operation::{self, About};

#[async_trait]
impl Preview for Service {
    async fn preview(&self, principal: &Principal, operation: &str, arguments: &str) -> Result<Previewed, Failure> {
        let entry = operation::find(operation)?;
        let Ok(Value::Object(arguments)) = serde_json::from_str(arguments) else {
            return Err(Failure::new(Code::InvalidArguments, "the arguments are not a JSON object"));
        };
        let prepared = entry.read(arguments)?;
        let asks = prepared.asks();
        let script = facts::read_sql(&self.reader, &asks)?;
        let facts = Facts { core: &self.core, spec: entry.spec, principal, asks: &asks };
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
        let gate = Gate { context: &context, decision: &decision, book: &*self.book, consents: &*self.consents };
        let refusal = prepared.foresee(&gate);
        let obligations = decision.obligations.clone();
        Ok(Previewed { decision, obligations, balances, refusal })
    }
}
