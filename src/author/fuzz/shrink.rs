//! Makes a request small that breaks a rule: leaves away what the rule is broken without.

use crate::author::cases::{Case, GivenOutcome, GivenRequested, GivenStatement};

/// The most requests that are tried on the way to a small one.
pub const ATTEMPTS_MAX: u32 = 2_000;

/// Returns the smallest request found that `is_same` holds of. It holds of `case`.
pub(super) fn shrunk(case: Case, is_same: impl Fn(&Case) -> bool) -> Case {
    let mut smallest = case;
    let mut attempts = 0;
    loop {
        let smaller = smaller(&smallest);
        let found = smaller.into_iter().find(|case| {
            attempts += 1;
            attempts <= ATTEMPTS_MAX && is_same(case)
        });
        match found {
            Some(found) => smallest = found,
            None => return smallest,
        }
    }
}

/// Returns requests that lack a part each, the largest parts first.
fn smaller(case: &Case) -> Vec<Case> {
    let mut found = Vec::new();
    macro_rules! without {
        ($($key:ident),+) => {$(
            if case.$key.is_some() {
                found.push(Case { $key: None, ..case.clone() });
            }
        )+};
    }
    without!(
        statements,
        source,
        outcome,
        requested,
        sandbox,
        balances,
        usage,
        group_usage,
        groups,
        group_owner,
        client,
        subject,
        owner,
        transport,
        now_ms,
        profile,
        engine,
        major,
        managed,
        phase
    );
    if let Some(statements) = &case.statements {
        for fewer in fewer(statements) {
            found.push(Case { statements: Some(fewer), ..case.clone() });
        }
        for (index, statement) in statements.iter().enumerate().take(8) {
            let mut replace = |change: &dyn Fn(&mut GivenStatement)| {
                let mut statements = statements.clone();
                if let Some(slot) = statements.get_mut(index) {
                    change(slot);
                    if slot != statement {
                        found.push(Case { statements: Some(statements), ..case.clone() });
                    }
                }
            };
            replace(&|one| one.reads.clear());
            replace(&|one| one.writes.clear());
            replace(&|one| one.defines.clear());
            replace(&|one| one.functions.clear());
            replace(&|one| one.traits.clear());
            replace(&|one| one.tag.clear());
            replace(&|one| one.reads.truncate(one.reads.len() / 2));
            replace(&|one| one.writes.truncate(one.writes.len() / 2));
            replace(&|one| one.functions.truncate(one.functions.len() / 2));
        }
    }
    if let Some(requested) = &case.requested {
        for fewer in fewer(&requested.command) {
            let requested = GivenRequested { command: fewer, ..requested.clone() };
            found.push(Case { requested: Some(requested), ..case.clone() });
        }
        let plain = GivenRequested { command: requested.command.clone(), ..Default::default() };
        let other = GivenRequested { command: Vec::new(), ..requested.clone() };
        for part in [plain, other] {
            if part != *requested {
                found.push(Case { requested: Some(part), ..case.clone() });
            }
        }
    }
    if let Some(outcome) = &case.outcome {
        for columns in fewer(&outcome.columns) {
            let outcome = GivenOutcome { columns, ..outcome.clone() };
            found.push(Case { outcome: Some(outcome), ..case.clone() });
        }
    }
    found
}

/// Returns a list's halves, and it without its last.
fn fewer<T: Clone>(list: &[T]) -> Vec<Vec<T>> {
    match list.len() {
        0 | 1 => Vec::new(),
        length => {
            let (first, second) = list.split_at(length / 2);
            let mut found = vec![first.to_vec(), second.to_vec()];
            if length > 2 {
                found.push(list.iter().take(length - 1).cloned().collect());
                found.push(list.iter().skip(1).cloned().collect());
            }
            found
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::author::cases::Word;
    use crate::model::StatementClass;

    fn statement(tag: usize) -> GivenStatement {
        GivenStatement {
            class: Word(StatementClass::Read),
            tag: tag.to_string(),
            traits: Vec::new(),
            reads: Vec::new(),
            writes: Vec::new(),
            defines: Vec::new(),
            functions: Vec::new(),
            read_only_safe: true,
            text: None,
        }
    }

    fn case(statements: usize) -> Case {
        let statements = Some((0..statements).map(statement).collect());
        Case { client: Some("x".to_owned()), major: Some(1), statements, ..Case::default() }
    }

    #[test]
    fn what_does_not_matter_is_left_away() {
        let has_seven = |case: &Case| case.statements.iter().flatten().any(|one| one.tag == "7");
        let small = shrunk(case(20), has_seven);
        assert_eq!(small, Case { statements: Some(vec![statement(7)]), ..Case::default() });
        assert_eq!(shrunk(case(20), |case| case.major.is_some()), Case { major: Some(1), ..Case::default() });
    }

    #[test]
    fn so_many_requests_are_tried_and_no_more() {
        let (tried, length) = (Cell::new(0), Cell::new(450));
        // One can be left away at a time.
        let slowly = |case: &Case| {
            tried.set(tried.get() + 1);
            let is_next = case.statements.as_ref().is_some_and(|list| list.len() + 1 == length.get());
            if is_next {
                length.set(length.get() - 1);
            }
            is_next
        };
        let small = shrunk(case(450), slowly);
        assert_eq!(tried.get(), ATTEMPTS_MAX);
        assert_eq!(small.statements.map(|list| list.len()), Some(length.get()));
        assert!(length.get() > 10, "{}", length.get());
    }
}
