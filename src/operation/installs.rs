//! What a statement may install in a sandbox: no more than the sandbox could have been made with.

use std::collections::BTreeMap;

use super::Call;
use crate::admission::Grant;
use crate::model::{Code, Failure, Preview};
use crate::sandbox::{BUILT_IN_EXTENSION, Core};
use crate::sql::Installs;

/// Names in each refusal of an extension those that a statement could really install there, as one of a whole call does.
pub(super) async fn name_acceptable_extensions(barred: &mut BTreeMap<u32, Failure>, call: &Call, grant: &Grant) {
    if !barred.values().any(is_of_an_extension) {
        return;
    }
    let profile = grant.profile.as_deref().unwrap_or_default();
    let Ok(acceptable) = call.preview.acceptable_extensions(&grant.principal, profile).await else { return };
    let acceptable = call.core.installable(profile, acceptable, true).await;
    for failure in barred.values_mut() {
        if is_of_an_extension(failure) {
            failure.allowed.clone_from(&acceptable);
        }
    }
}

fn is_of_an_extension(failure: &Failure) -> bool {
    matches!(failure.code, Code::ExtensionNotAllowed | Code::ExtensionSetupRequired)
}

/// What a call's statements install, each looked at before anything is sent.
pub(super) struct Installing<'a> {
    core: &'a Core,
    preview: &'a dyn Preview,
    grant: &'a Grant,
    /// What the policies said of an extension, which they are asked about once.
    asked: BTreeMap<String, Option<Failure>>,
}

impl<'a> Installing<'a> {
    pub(super) fn new(core: &'a Core, preview: &'a dyn Preview, grant: &'a Grant) -> Self {
        Self { core, preview, grant, asked: BTreeMap::new() }
    }

    /// Refuses an extension that a new sandbox could not be made with either: what profile and policies allow is one list.
    ///
    /// # Errors
    /// Fails as the statement does then; a policy that does not answer lets nothing through.
    pub(super) async fn check(&mut self, installs: &Installs) -> Result<(), Failure> {
        let refuse = |message: String| Failure::new(Code::ExtensionNotAllowed, message);
        let profile = self.core.profile(self.grant.profile.as_deref().unwrap_or_default())?;
        let Some(name) = &installs.name else {
            return Err(refuse("an extension's name is written in escapes".to_owned()).hint("write the name as it is"));
        };
        if name == BUILT_IN_EXTENSION {
            return Ok(());
        }
        profile.check_extension(name)?;
        if let Some(refusal) = self.refused_by_a_policy(profile.name(), name).await {
            return Err(refusal);
        }
        if installs.cascades {
            let message = format!("CASCADE would install whatever extension `{name}` requires, allowed or not");
            return Err(refuse(message).hint("create each by a statement of its own, what is required first"));
        }
        self.core.check_has_extension(profile.name(), name).await
    }

    /// Returns what a policy refuses the extension with, or that one has not answered.
    async fn refused_by_a_policy(&mut self, profile: &str, name: &str) -> Option<Failure> {
        if let Some(known) = self.asked.get(name) {
            return known.clone();
        }
        let said = self.preview.refused_extension(&self.grant.principal, profile, name).await;
        let said = said.unwrap_or_else(Some);
        self.asked.insert(name.to_owned(), said.clone());
        said
    }
}
