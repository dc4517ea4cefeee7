//! What a statement may install in a sandbox: no more than the sandbox could have been made with.

use std::collections::BTreeMap;

use super::Call;
use crate::admission::Grant;
use crate::model::{Code, Failure, Preview, Principal};
use crate::sandbox::{BUILT_IN_EXTENSION, Core, Profile};
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

/// Refuses an extension that a new sandbox could not be made with either: what profile and policies allow is one list.
pub(super) async fn check_installs(
    installs: &Installs,
    profile: &Profile,
    core: &Core,
    (preview, principal): (&dyn Preview, &Principal),
) -> Result<(), Failure> {
    let refuse = |message: String| Failure::new(Code::ExtensionNotAllowed, message);
    let Some(name) = &installs.name else {
        return Err(refuse("an extension's name is written in escapes".to_owned()).hint("write the name as it is"));
    };
    if name == BUILT_IN_EXTENSION {
        return Ok(());
    }
    profile.check_extension(name)?;
    // A policy that does not answer lets nothing through: then the statement fails as it says.
    if let Some(refusal) = preview.refused_extension(principal, profile.name(), name).await? {
        return Err(refusal);
    }
    if installs.cascades {
        let message = format!("CASCADE would install whatever extension `{name}` requires, allowed or not");
        return Err(refuse(message).hint("create each by a statement of its own, what is required first"));
    }
    core.check_has_extension(profile.name(), name).await
}
