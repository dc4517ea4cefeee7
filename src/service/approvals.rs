//! What people have agreed to, for one request: their approvals are taken before it is let through, and given back where
//! it fails before anything was made for it.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use crate::admission::{Consents, Demand};
use crate::model::{Code, Context, Decision, Failure, Identity};
use crate::sandbox::{Approved, Asked, Core, Demanded};

/// Whether approvals are taken or only looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    Take,
    Look,
}

/// What was agreed to of one request.
pub(super) struct Agreed<'a> {
    consents: &'a dyn Consents,
    core: &'a Core,
    context: &'a Context,
    arguments: &'a Map<String, Value>,
    /// The groups whose approval is demanded.
    demanded: BTreeSet<String>,
    /// Who demands it, and what was said.
    by: Demanded,
    approved: Approved,
    taken: bool,
}

impl<'a> Agreed<'a> {
    /// Finds, and takes if it is to be used, what a decision demands. Nothing is looked for where nothing is demanded.
    ///
    /// # Errors
    /// Fails if the metadata cannot be had.
    pub(super) async fn to(
        decision: &Decision,
        context: &'a Context,
        arguments: &'a Map<String, Value>,
        (core, consents): (&'a Core, &'a dyn Consents),
        of_use: Use,
    ) -> Result<Self, Failure> {
        let demanded: BTreeSet<String> = match decision.refusal {
            Some(_) => BTreeSet::new(),
            None => decision.obligations.approvals.keys().cloned().collect(),
        };
        let by = match demanded.is_empty() {
            true => Demanded::default(),
            false => Demanded { policies: decision.obligations.approvals.clone(), said: decision.warnings.clone() },
        };
        let mut agreed =
            Self { consents, core, context, arguments, demanded, by, approved: Approved::default(), taken: false };
        // What was approved of somebody is of no use to who only calls itself that.
        if agreed.demanded.is_empty() || context.principal.identity == Identity::Chosen {
            return Ok(agreed);
        }
        agreed.approved = core.approved(&agreed.asked()).await?;
        if of_use == Use::Take && agreed.demanded.is_subset(&agreed.approved.groups) {
            agreed.taken = core.take_approvals(&agreed.approved, &agreed.asked()).await?;
            if !agreed.taken {
                // Another request was faster.
                agreed.approved.groups.clear();
            }
        }
        Ok(agreed)
    }

    fn asked(&self) -> Asked<'_> {
        Asked { context: self.context, arguments: self.arguments, groups: &self.demanded, demanded: &self.by }
    }

    /// Notes a request that was refused for want of an approval, so that it can be had; gives back what another that was
    /// refused has taken.
    ///
    /// # Errors
    /// Fails if it cannot be noted: then nobody can approve it.
    pub(super) async fn refused(&self, failure: &Failure) -> Result<(), Failure> {
        if self.taken {
            self.give_back().await;
        } else if failure.code == Code::ApprovalRequired && !self.demanded.is_empty() {
            self.core.ask_for_approval(&self.asked()).await?;
        }
        Ok(())
    }

    /// Gives back what was taken, if anything was.
    pub(super) async fn give_back(&self) {
        if self.taken
            && let Err(failure) = self.core.give_approvals_back(&self.approved, self.context).await
        {
            tracing::warn!(code = failure.code.as_str(), "an approval could not be given back");
        }
    }
}

impl Consents for Agreed<'_> {
    fn given(&self, context: &Context, demand: Demand<'_>) -> bool {
        match demand {
            Demand::Approval(group) => self.approved.groups.contains(group),
            Demand::Consent(_) => self.consents.given(context, demand),
        }
    }

    fn digest(&self) -> Option<&str> {
        Some(self.approved.digest.as_str()).filter(|digest| !digest.is_empty())
    }
}
