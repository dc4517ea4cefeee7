//! Who has taken most of what all share: told by owner, as one owner may have many sandboxes and spread over them what it takes.

use std::collections::{BTreeSet, HashMap};
use std::ops::AddAssign;

/// So many locks are no want of anybody's.
const LOCKS_MIN: u64 = 1_000;
/// Owners are near each other where one holds no more than so many times as much as the other.
const NEAR: u64 = 2;

/// What is held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Held {
    /// Locks, or memory where those are not known.
    pub(super) all: u64,
    /// Advisory locks among them: no work needs many.
    pub(super) advisory: u64,
}

impl AddAssign for Held {
    fn add_assign(&mut self, other: Self) {
        self.all += other.all;
        self.advisory += other.advisory;
    }
}

/// Who owns which sandbox, by its database's name, as far as it is known.
#[derive(Clone, Debug, Default)]
pub(super) struct Owners(HashMap<String, String>);

impl Owners {
    pub(super) fn new(owners: HashMap<String, String>) -> Self {
        Self(owners)
    }

    /// Returns the owner of a sandbox, or else the sandbox, which stands for itself.
    pub(super) fn of<'a>(&'a self, database: &'a str) -> Result<&'a str, &'a str> {
        self.0.get(database).map(String::as_str).ok_or(database)
    }

    /// Returns how many owners there are; `None` where they are not known.
    pub(super) fn count(&self) -> Option<u64> {
        let owners: BTreeSet<_> = self.0.values().collect();
        u64::try_from(owners.len()).ok().filter(|count| *count > 0)
    }

    /// Returns whether two sandboxes are of one owner.
    pub(super) fn are_ones(&self, one: &str, other: &str) -> bool {
        self.of(one) == self.of(other)
    }

    /// Returns the sandboxes that the owner who holds most locks holds them in, the greediest first: none if those are few. Of
    /// owners near each other that one whose locks are advisory.
    pub(super) fn greediest(&self, held: &HashMap<String, Held>) -> Vec<String> {
        let mut owners: HashMap<_, Held> = HashMap::new();
        for (database, of) in held {
            *owners.entry(self.of(database)).or_default() += *of;
        }
        let most = owners.values().map(|of| of.all).max().unwrap_or_default();
        let near = owners.iter().filter(|(_, of)| of.all >= LOCKS_MIN && of.all.saturating_mul(NEAR) >= most);
        let Some((owner, sum)) = near.max_by_key(|(_, of)| of.all + of.advisory) else { return Vec::new() };
        let mut its: Vec<_> = held.iter().filter(|(database, _)| self.of(database) == *owner).collect();
        // What is spread thinly is held where there is as much as in the mean.
        let count = its.len() as u64;
        its.retain(|(_, of)| of.all >= LOCKS_MIN || of.all * count >= sum.all);
        its.sort_by_key(|(_, of)| std::cmp::Reverse(of.all));
        its.into_iter().map(|(database, _)| database.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(of: &[(&str, u64, u64)]) -> HashMap<String, Held> {
        of.iter()
            .map(|(database, all, advisory)| ((*database).to_owned(), Held { all: *all, advisory: *advisory }))
            .collect()
    }

    fn check(owners: &[(&str, &str)], of: &[(&str, u64, u64)], expected: &[&str]) {
        let owners = owners.iter().map(|(database, owner)| ((*database).to_owned(), (*owner).to_owned())).collect();
        assert_eq!(Owners::new(owners).greediest(&held(of)), expected, "{of:?}");
    }

    #[test]
    fn locks_are_summed_by_owner_and_all_of_the_greediest_ones_sandboxes_are_told() {
        let owners = [("m1", "mallory"), ("m2", "mallory"), ("m3", "mallory"), ("a1", "alice")];
        check(
            &owners,
            &[("a1", 12_000, 0), ("m1", 11_900, 11_900), ("m2", 11_800, 11_800), ("m3", 3, 0)],
            &["m1", "m2"],
        );
        // Spread thinly, it is held all the same.
        check(&owners, &[("a1", 1_200, 0), ("m1", 990, 0), ("m2", 980, 0), ("m3", 1, 0)], &["m1", "m2"]);
    }

    #[test]
    fn whose_owner_is_not_known_counts_for_itself() {
        check(&[("a1", "alice")], &[("a1", 12_000, 0), ("m1", 30_000, 0), ("m2", 9_000, 0)], &["m1"]);
        check(&[], &[("a1", 999, 0), ("m1", 2, 2)], &[]);
        check(&[], &[], &[]);
    }

    #[test]
    fn of_owners_near_each_other_the_one_with_advisory_locks_is_told() {
        let owners = [("m1", "mallory"), ("a1", "alice")];
        check(&owners, &[("a1", 20_000, 10), ("m1", 15_000, 15_000)], &["m1"]);
        check(&owners, &[("a1", 40_000, 10), ("m1", 15_000, 15_000)], &["a1"]);
    }
}
