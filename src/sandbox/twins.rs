//! Finds profiles that keep their sandboxes in one place, though their addresses differ.

use super::Profile;
use crate::model::{Check, CheckStatus};

/// The profiles that were looked at, each with what its server says of itself.
#[derive(Default)]
pub(super) struct Twins<'a>(Vec<(&'a Profile, String)>);

impl<'a> Twins<'a> {
    /// Looks at one more profile, whose server answers; says so if it is one with an earlier profile.
    pub(super) async fn meet(&mut self, profile: &'a Profile) -> Option<Check> {
        // What a server does not say of itself is not compared.
        let identity = profile.engine.identity().await.ok().flatten()?;
        let same =
            |(other, of): &&(&Profile, String)| *of == identity && other.settings.prefix == profile.settings.prefix;
        let found = self.0.iter().find(same).map(|(other, _)| {
            let detail = format!(
                "its server is that of profile `{}`, under another address or with its records in another database, and the \
                 prefix `{}` is the same: each takes the other's sandboxes for its own or for leftovers",
                other.name, profile.settings.prefix
            );
            let remedy = "give one of the two profiles another `databasePrefix`, or leave one away".to_owned();
            Check { name: "profiles.distinct".to_owned(), status: CheckStatus::Warn, detail, remedy: Some(remedy) }
        });
        self.0.push((profile, identity));
        found
    }
}
