//! The operations that rules can be for, and what their requests can hold.
//!
//! A condition on what no request of an operation holds never matches there; a rule that is so for all of its operations
//! is refused when it is read. Where it depends on a call's arguments what a request holds, it counts as held.

use pgsandbox_policy::Impact;

/// Part of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part(u16);

impl Part {
    pub(crate) const SQL: Self = Self(1);
    pub(crate) const SOURCE: Self = Self(1 << 1);
    pub(crate) const COMMAND: Self = Self(1 << 2);
    pub(crate) const TTL: Self = Self(1 << 3);
    pub(crate) const LABELS: Self = Self(1 << 4);
    pub(crate) const EXTENSIONS: Self = Self(1 << 5);
    pub(crate) const CREDENTIALS: Self = Self(1 << 6);
    pub(crate) const SANDBOX: Self = Self(1 << 7);
    pub(crate) const READ_ONLY: Self = Self(1 << 8);
    pub(crate) const PROFILE: Self = Self(1 << 9);
    pub(crate) const GROUP_OWNER: Self = Self(1 << 10);

    const NOTHING: Self = Self(0);

    const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// An operation.
#[derive(Debug)]
pub(crate) struct Operation {
    pub(crate) name: &'static str,
    pub(crate) impact: Impact,
    holds: Part,
}

impl Operation {
    pub(crate) const fn holds(&self, part: Part) -> bool {
        self.holds.0 & part.0 != 0
    }
}

const fn operation(name: &'static str, impact: Impact, holds: Part) -> Operation {
    Operation { name, impact, holds }
}

const SANDBOX: Part = Part::SANDBOX.and(Part::PROFILE).and(Part::GROUP_OWNER);
const NEW: Part = Part::PROFILE.and(Part::TTL).and(Part::LABELS).and(Part::EXTENSIONS).and(Part::GROUP_OWNER);
const COMMAND: Part = SANDBOX.and(Part::COMMAND);
const NOTHING: Part = Part::NOTHING;

/// Every operation, sorted by name; at most 64, for [`OperationSet`].
pub(crate) const OPERATIONS: [Operation; 44] = [
    operation("approve", Impact::Writes, NOTHING),
    operation("cancel_task", Impact::Writes, NOTHING),
    operation("cleanup_expired", Impact::Destroys, Part::LABELS.and(Part::PROFILE).and(Part::GROUP_OWNER)),
    operation("clone_database", Impact::ReachesOut, NEW.and(Part::SOURCE)),
    operation("complete", Impact::Reads, NOTHING),
    operation("create_database", Impact::Creates, NEW),
    operation("create_sandbox_from_template", Impact::Creates, NEW),
    operation("create_schema_snapshot", Impact::Creates, SANDBOX),
    operation("create_template_from_sandbox", Impact::Creates, SANDBOX),
    operation("delete_database", Impact::Destroys, SANDBOX),
    operation("delete_schema_snapshot", Impact::Destroys, Part::PROFILE),
    operation("delete_template", Impact::Destroys, Part::PROFILE),
    operation("describe_schema", Impact::Reads, SANDBOX),
    operation("diff_schema_snapshot", Impact::Reads, SANDBOX),
    operation("doctor", Impact::Reads, NOTHING),
    operation("ensure_postgres", Impact::ReachesOut, Part::COMMAND.and(Part::PROFILE)),
    operation("explain_policy", Impact::Reads, NOTHING),
    operation("explain_query", Impact::Writes, SANDBOX.and(Part::SQL).and(Part::EXTENSIONS)),
    operation("export_template", Impact::Creates, Part::PROFILE),
    operation("extend_database", Impact::Writes, SANDBOX.and(Part::TTL)),
    operation("fork_database", Impact::Creates, SANDBOX.and(NEW)),
    operation("get_connection_string", Impact::Discloses, SANDBOX.and(Part::CREDENTIALS).and(Part::READ_ONLY)),
    operation("get_prompt", Impact::Reads, NOTHING),
    operation("get_task", Impact::Reads, NOTHING),
    operation("import_template", Impact::Creates, Part::PROFILE),
    operation("list_approvals", Impact::Reads, NOTHING),
    operation("list_databases", Impact::Reads, Part::LABELS.and(Part::PROFILE).and(Part::GROUP_OWNER)),
    operation("list_extensions", Impact::Reads, SANDBOX),
    operation("list_profiles", Impact::Reads, NOTHING),
    operation("list_prompts", Impact::Reads, NOTHING),
    operation("list_resource_templates", Impact::Reads, NOTHING),
    operation("list_resources", Impact::Reads, NOTHING),
    operation("list_schema_snapshots", Impact::Reads, Part::PROFILE),
    operation("list_templates", Impact::Reads, Part::PROFILE),
    operation("prepare_for_repo", Impact::ReachesOut, SANDBOX),
    operation("read_resource", Impact::Reads, SANDBOX),
    operation("reset_database", Impact::Destroys, SANDBOX),
    operation("run_repo_command", Impact::ReachesOut, COMMAND),
    operation("run_sql", Impact::Writes, SANDBOX.and(Part::SQL).and(Part::EXTENSIONS).and(Part::READ_ONLY)),
    operation("schema_diff", Impact::Reads, SANDBOX),
    operation("schema_digest", Impact::Reads, SANDBOX),
    operation("seed_database", Impact::ReachesOut, COMMAND),
    operation("validate_schema_change", Impact::ReachesOut, COMMAND.and(Part::TTL).and(Part::LABELS)),
    operation("verify_sandbox", Impact::Reads, SANDBOX),
];

/// Returns an operation's place in the list.
pub(crate) fn index_of(name: &str) -> Option<usize> {
    OPERATIONS.binary_search_by(|operation| operation.name.cmp(name)).ok()
}

/// A set of operations, one bit each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OperationSet(u64);

impl OperationSet {
    pub(crate) const ALL: Self = Self((1 << OPERATIONS.len()) - 1);

    /// Returns those of the set that `fits` names.
    pub(crate) fn filter(self, fits: impl Fn(&Operation) -> bool) -> Self {
        let kept = self.iter().filter(|(_, operation)| fits(operation));
        Self(kept.fold(0, |mask, (index, _)| mask | 1 << index))
    }

    pub(crate) const fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) const fn contains(self, index: usize) -> bool {
        self.0 & 1 << index != 0
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = (usize, &'static Operation)> {
        OPERATIONS.iter().enumerate().filter(move |(index, _)| self.contains(*index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_operations_are_those_that_policies_are_asked_about() {
        let own: Vec<_> = OPERATIONS.iter().map(|operation| (operation.name, operation.impact)).collect();
        assert_eq!(own, pgsandbox_policy::testing::OPERATIONS);
        assert!(own.is_sorted_by_key(|(name, _)| *name));
    }

    #[test]
    fn what_asks_for_something_is_taken_to_hold_it() {
        let of = |part: Part| -> Vec<_> {
            OperationSet::ALL.filter(|operation| operation.holds(part)).iter().map(|(_, o)| o.name).collect()
        };
        assert_eq!(of(Part::SQL), ["explain_query", "run_sql"]);
        assert_eq!(of(Part::SOURCE), ["clone_database"]);
        assert_eq!(of(Part::CREDENTIALS), ["get_connection_string"]);
        assert_eq!(
            of(Part::COMMAND),
            ["ensure_postgres", "run_repo_command", "seed_database", "validate_schema_change"]
        );
    }
}
