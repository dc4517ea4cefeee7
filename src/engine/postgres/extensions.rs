//! Which extensions a server offers, and who makes them in a sandbox.
//!
//! Whatever its owner may make the owner makes, so that restores may comment on it; the rest is made by a
//! superuser admin before anybody else can enter the database.

use std::collections::{BTreeMap, BTreeSet};

use tokio_postgres::Client;

use super::admin::{ident, refused};
use crate::engine::{EngineError, ExtensionInfo};
use crate::model::{Code, Failure};

/// Extensions that lead out of the sandbox: to other servers, to files, to arbitrary code.
const NEVER: [&str; 4] = ["dblink", "postgres_fdw", "file_fdw", "adminpack"];

/// The extension that is in every database from the start.
const BUILT_IN: &str = "plpgsql";

/// Who makes what, each list in the order of the request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) by_admin: Vec<Planned>,
    pub(super) by_owner: Vec<Planned>,
}

/// One extension to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Planned {
    name: String,
    /// Whether the extension says itself which schema it lives in.
    own_schema: bool,
}

impl Planned {
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the statement that makes it in a schema, unless it says itself where it lives.
    pub(super) fn sql_in(&self, schema: &str) -> String {
        let schema = if self.own_schema { String::new() } else { format!(" SCHEMA {}", ident(schema)) };
        format!("CREATE EXTENSION IF NOT EXISTS {}{schema}", ident(&self.name))
    }

    /// Returns the statement; extensions go to `public`, wherever `search_path` points.
    pub(super) fn sql(&self) -> String {
        let schema = if self.own_schema { "" } else { " SCHEMA public" };
        format!("CREATE EXTENSION IF NOT EXISTS {}{schema}", ident(&self.name))
    }
}

/// What a server says of an extension's default version.
#[derive(Clone, Debug)]
struct Offer {
    owner_may: bool,
    own_schema: bool,
    requires: Vec<String>,
    version: String,
    comment: String,
}

/// Returns whether no profile may ever have the extension.
pub(super) fn is_never(name: &str) -> bool {
    // the untrusted twins of languages, and what is built on them
    let untrusted = ["plperlu", "pltclu", "plpythonu", "plpython2u", "plpython3u"];
    NEVER.contains(&name)
        || untrusted.iter().any(|language| name == *language || name.ends_with(&format!("_{language}")))
}

/// Returns what the server offers and a profile with such an admin may have.
pub(super) async fn available(
    session: &Client,
    profile: &str,
    superuser: bool,
) -> Result<Vec<ExtensionInfo>, EngineError> {
    let offers = offers(session, profile).await?;
    Ok(offers
        .into_iter()
        .filter(|(name, offer)| !is_never(name) && (superuser || offer.owner_may))
        .map(|(name, offer)| ExtensionInfo {
            name,
            default_version: offer.version,
            trusted: offer.owner_may,
            requires: offer.requires.into_iter().filter(|name| name != BUILT_IN).collect(),
            comment: offer.comment,
        })
        .collect())
}

/// Returns extensions in an order in which each comes after those that it requires.
pub(super) async fn sorted(session: &Client, profile: &str, names: &[String]) -> Result<Vec<String>, EngineError> {
    Ok(in_order(&offers(session, profile).await?, names))
}

fn in_order(offers: &BTreeMap<String, Offer>, names: &[String]) -> Vec<String> {
    let mut left: Vec<&String> = names.iter().collect();
    let mut sorted: Vec<String> = Vec::with_capacity(names.len());
    while !left.is_empty() {
        let waits = |name: &&String| {
            let requires = offers.get(*name).map(|offer| offer.requires.as_slice()).unwrap_or_default();
            requires.iter().any(|required| left.iter().any(|other| *other == required && other != name))
        };
        // Of those that require each other the first goes first; making them says what is wrong.
        let next = left.iter().position(|name| !waits(name)).unwrap_or_default();
        sorted.push(left.remove(next).clone());
    }
    sorted
}

/// Decides who makes each of the `wanted` extensions.
pub(super) async fn plan(
    session: &Client,
    profile: &str,
    wanted: &[String],
    superuser: bool,
) -> Result<Plan, EngineError> {
    if wanted.is_empty() {
        return Ok(Plan::default());
    }
    arrange(&offers(session, profile).await?, wanted, superuser).map_err(EngineError::Known)
}

fn arrange(offers: &BTreeMap<String, Offer>, wanted: &[String], superuser: bool) -> Result<Plan, Box<Failure>> {
    let mut seen = BTreeSet::from([BUILT_IN]);
    let mut chosen = Vec::new();
    for name in wanted {
        if is_never(name) {
            let message =
                format!("extension `{}` leads out of a sandbox and is never installed", name.escape_default());
            return Err(Failure::new(Code::ExtensionNotAllowed, message).into());
        }
        let Some(offer) = offers.get(name) else {
            return Err(Failure::new(Code::ExtensionSetupRequired, absent(offers, wanted))
                .hint("`list_extensions` names what is there; others come with packages of the server's machine")
                .into());
        };
        if !offer.owner_may && !superuser {
            return Err(Failure::new(
                Code::ExtensionNotAllowed,
                format!("extension `{name}` can be installed only by a superuser, which the profile's admin is not"),
            )
            .into());
        }
        if let Some(missing) = offer.requires.iter().find(|r| !seen.contains(r.as_str())) {
            return Err(Failure::new(Code::InvalidExtensions, format!("extension `{name}` requires `{missing}`"))
                .hint(format!("name `{missing}` before `{name}`, if it is allowed"))
                .into());
        }
        seen.insert(name);
        chosen.push((name, offer));
    }
    // what an admin-made one is built on must be there before it
    let mut by_admin: BTreeSet<&str> = BTreeSet::new();
    for (name, offer) in chosen.iter().rev() {
        if !offer.owner_may || by_admin.contains(name.as_str()) {
            by_admin.insert(name);
            by_admin.extend(offer.requires.iter().map(String::as_str));
        }
    }
    let mut plan = Plan::default();
    for (name, offer) in chosen {
        let list = if by_admin.contains(name.as_str()) { &mut plan.by_admin } else { &mut plan.by_owner };
        list.push(Planned { name: name.clone(), own_schema: offer.own_schema });
    }
    Ok(plan)
}

/// Names all of the `wanted` that the server does not have.
fn absent(offers: &BTreeMap<String, Offer>, wanted: &[String]) -> String {
    let absent = wanted.iter().filter(|name| !is_never(name) && !offers.contains_key(*name));
    let names: Vec<String> = absent.map(|name| format!("`{}`", name.escape_default())).collect();
    match names.as_slice() {
        [name] => format!("extension {name} is not installed on the server"),
        names => format!("extensions {} are not installed on the server", names.join(", ")),
    }
}

async fn offers(session: &Client, profile: &str) -> Result<BTreeMap<String, Offer>, EngineError> {
    let rows = session
        .query(
            "SELECT e.name::text, v.version, coalesce(NOT v.superuser OR v.trusted, false), v.schema IS NOT NULL, \
             coalesce(v.requires::text[], '{}'), coalesce(e.comment, '') \
             FROM pg_catalog.pg_available_extensions e \
             JOIN pg_catalog.pg_available_extension_versions v ON v.name = e.name AND v.version = e.default_version \
             ORDER BY 1",
            &[],
        )
        .await
        .map_err(refused("list its extensions", profile))?;
    Ok(rows
        .iter()
        .map(|row| {
            let offer = Offer {
                version: row.get(1),
                owner_may: row.get(2),
                own_schema: row.get(3),
                requires: row.get(4),
                comment: row.get(5),
            };
            (row.get(0), offer)
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offers() -> BTreeMap<String, Offer> {
        [
            ("cube", true, vec![]),
            ("earthdistance", false, vec!["cube"]),
            ("citext", true, vec![]),
            ("pg_buffercache", false, vec![]),
            ("dblink", true, vec![]),
        ]
        .into_iter()
        .map(|(name, owner_may, requires)| {
            let requires = requires.into_iter().map(str::to_owned).collect();
            let offer = Offer { owner_may, own_schema: false, requires, version: "1".into(), comment: String::new() };
            (name.to_owned(), offer)
        })
        .collect()
    }

    fn check(wanted: &[&str], superuser: bool, expected: Result<(&[&str], &[&str]), Code>) {
        let wanted: Vec<String> = wanted.iter().map(|s| (*s).to_owned()).collect();
        let names = |list: &[Planned]| list.iter().map(|p| p.name.clone()).collect::<Vec<_>>();
        match (arrange(&offers(), &wanted, superuser), expected) {
            (Ok(plan), Ok((by_admin, by_owner))) => {
                assert_eq!(
                    (names(&plan.by_admin), names(&plan.by_owner)),
                    (
                        by_admin.iter().map(|s| (*s).to_owned()).collect(),
                        by_owner.iter().map(|s| (*s).to_owned()).collect()
                    )
                );
            }
            (Err(failure), Err(code)) => assert_eq!(failure.code, code, "{failure}"),
            (found, expected) => panic!("{found:?} instead of {expected:?}"),
        }
    }

    #[test]
    fn the_owner_makes_what_it_may_and_the_admin_the_rest() {
        check(&["citext", "pg_buffercache"], true, Ok((&["pg_buffercache"], &["citext"])));
        check(&["citext", "cube", "earthdistance"], true, Ok((&["cube", "earthdistance"], &["citext"])));
    }

    #[test]
    fn what_is_required_comes_first() {
        let names = ["earthdistance", "citext", "cube"].map(str::to_owned);
        assert_eq!(in_order(&offers(), &names), ["citext", "cube", "earthdistance"]);
    }

    #[test]
    fn what_cannot_be_had_is_refused_by_name() {
        check(&["pg_buffercache"], false, Err(Code::ExtensionNotAllowed));
        check(&["earthdistance"], true, Err(Code::InvalidExtensions));
        check(&["earthdistance"], false, Err(Code::ExtensionNotAllowed));
        check(&["nope"], true, Err(Code::ExtensionSetupRequired));
        for never in ["dblink", "postgres_fdw", "file_fdw", "plpython3u", "plperlu", "hstore_plpython3u"] {
            check(&[never], true, Err(Code::ExtensionNotAllowed));
        }
    }

    #[test]
    fn names_cannot_leave_their_quotes() {
        let planned = Planned { name: "x\"; DROP".into(), own_schema: false };
        assert_eq!(planned.sql(), "CREATE EXTENSION IF NOT EXISTS \"x\"\"; DROP\" SCHEMA public");
    }
}
