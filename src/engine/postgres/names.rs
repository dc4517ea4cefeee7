//! Makes sure that nothing but a sandbox's own database and roles is ever touched.

use crate::engine::{Contents, EngineError, SandboxSpec};
use crate::model::{SandboxId, SandboxNames};

/// Refuses a specification whose names are not those of its id under the profile's prefix.
///
/// INVARIANT: every statement that changes or drops something is built from names that passed here.
pub(super) fn check(prefix: &str, spec: &SandboxSpec) -> Result<(), EngineError> {
    let names = &spec.names;
    if names.belong_to(prefix, spec.id) {
        return match &spec.contents {
            Contents::Copy { id, names, .. } if !names.belong_to(prefix, *id) => Err(foreign(names, *id, prefix)),
            Contents::Empty | Contents::Copy { .. } | Contents::Clone(_) | Contents::Restore(_) => Ok(()),
        };
    }
    Err(foreign(names, spec.id, prefix))
}

fn foreign(names: &SandboxNames, id: SandboxId, prefix: &str) -> EngineError {
    EngineError::Unsupported(format!(
        "`{}` is not the name of sandbox {} under the prefix `{prefix}`; nothing was done",
        names.database.escape_default(),
        id
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{SandboxKind, Secret, Timestamp};

    fn spec(edit: impl FnOnce(&mut SandboxNames)) -> SandboxSpec {
        let id = SandboxId::fresh();
        let mut names = SandboxNames::new("pgsb", Some("hint"), id);
        edit(&mut names);
        SandboxSpec {
            id,
            names,
            owner_password: Secret::new("a"),
            readonly_password: Secret::new("b"),
            expires_at: Timestamp::from_unix_ms(0),
            extensions: Vec::new(),
            kind: SandboxKind::Sandbox,
            contents: Contents::Empty,
        }
    }

    #[test]
    fn only_a_sandboxs_own_names_pass() {
        check("pgsb", &spec(|_| {})).unwrap();
        for bad in [
            spec(|n| n.database = "postgres".into()),
            spec(|n| n.owner_role = "postgres".into()),
            spec(|n| n.readonly_role = "pg_read_all_data".into()),
            spec(|n| *n = SandboxNames::new("pgsb", None, SandboxId::fresh())),
            spec(|n| *n = SandboxNames::new("other", None, SandboxId::fresh())),
        ] {
            assert!(check("pgsb", &bad).is_err(), "{:?}", bad.names);
        }
        assert!(check("pgs", &spec(|_| {})).is_err());
        assert!(check("", &spec(|_| {})).is_err());
    }
}
