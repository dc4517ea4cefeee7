//! Conditions on a single statement.

use pgsandbox_policy::statement::{RelationPattern, RelationSettings, begins_with, read_tags};
use pgsandbox_policy::{Patterns, Problems, Statement, StatementClass, StatementTraits};

use crate::conditions::{Fit, Need};

/// Statements that run what is not visible in them: what else they do cannot be told.
const OPAQUE: StatementTraits = StatementTraits::OPAQUE_BODY.union(StatementTraits::DYNAMIC_SQL);

/// What a statement must be, as settings write it; each part must hold of the same statement.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct StatementSettings {
    classes: Option<Vec<String>>,
    tags: Option<Vec<String>>,
    traits: Option<Vec<String>>,
    relations: Option<Vec<RelationSettings>>,
    functions: Option<Vec<String>>,
    read_only_safe: Option<bool>,
}

/// What a statement must be.
#[derive(Debug)]
pub(crate) struct StatementConditions {
    /// A bit for each class.
    classes: Option<u32>,
    tags: Option<Vec<String>>,
    traits: Option<StatementTraits>,
    relations: Option<Vec<RelationPattern>>,
    functions: Option<Patterns>,
    read_only_safe: Option<bool>,
}

impl StatementConditions {
    pub(crate) fn read(settings: StatementSettings, need: Need, path: &str, problems: &mut Problems) -> Self {
        if settings == StatementSettings::default() {
            problems.add(path, "an empty condition says nothing; name `classes`, `tags`, `traits`, `relations`, `functions` or `read_only_safe`");
        }
        let empty = "an empty list matches nothing; leave it out to match everything";
        let classes = settings.classes.map(|words| {
            let at = format!("{path}.classes");
            if words.is_empty() {
                problems.add(&at, empty);
            }
            let classes = problems.words(&at, &words, StatementClass::WORDS);
            if classes.contains(&StatementClass::Empty) {
                problems.add(&at, "an `empty` statement does nothing and is never looked at");
            }
            if need == Need::Certain && !classes.is_empty() && classes.iter().all(|c| *c == StatementClass::Unparsed) {
                problems.add(&at, "a statement of no known class is never sure to match; only a rule that refuses or demands can name it");
            }
            classes.into_iter().fold(0, |mask, class| mask | bit(class))
        });
        let traits = settings.traits.map(|words| {
            let at = format!("{path}.traits");
            if words.is_empty() {
                problems.add(&at, empty);
            }
            let traits = problems.words(&at, &words, StatementTraits::WORDS);
            let traits = traits.into_iter().fold(StatementTraits::empty(), |all, one| all | one);
            if need == Need::Certain && !traits.is_empty() && OPAQUE.contains(traits) {
                problems.add(&at, "a statement that runs what is not visible is never sure to match; only a rule that refuses or demands can name it");
            }
            traits
        });
        let tags = settings.tags.map(|tags| {
            let at = format!("{path}.tags");
            if tags.is_empty() {
                problems.add(&at, empty);
            }
            read_tags(tags, &at, problems)
        });
        let relations = settings.relations.map(|list| {
            let at = format!("{path}.relations");
            if list.is_empty() {
                problems.add(&at, empty);
            }
            RelationPattern::read_all(list, &at, problems)
        });
        let functions = settings.functions.map(|list| {
            let at = format!("{path}.functions");
            if list.is_empty() {
                problems.add(&at, empty);
            }
            Patterns::read(&list, &at, problems)
        });
        Self { classes, tags, traits, relations, functions, read_only_safe: settings.read_only_safe }
    }

    pub(crate) fn fit(&self, statement: &Statement) -> Fit {
        let opaque = statement.class == StatementClass::Unparsed || statement.traits.intersects(OPAQUE);
        let unknown = opaque || statement.traits.contains(StatementTraits::RELATIONS_UNKNOWN);
        let known = |holds: bool| match (holds, opaque) {
            (true, _) => Fit::Yes,
            (false, true) => Fit::Maybe,
            (false, false) => Fit::No,
        };
        let mut fit = if opaque { Fit::Maybe } else { Fit::Yes };
        if let Some(classes) = self.classes {
            fit = fit.min(known(classes & bit(statement.class) != 0));
        }
        if let Some(traits) = self.traits {
            fit = fit.min(known(statement.traits.intersects(traits)));
        }
        if let Some(safe) = self.read_only_safe {
            fit = fit.min(Fit::of(statement.read_only_safe == safe));
        }
        if fit == Fit::No {
            return fit;
        }
        if let Some(tags) = &self.tags {
            fit = fit.min(known(tags.iter().any(|tag| begins_with(&statement.tag, tag))));
        }
        if let Some(relations) = &self.relations {
            let is = |relation| relations.iter().any(|pattern| pattern.is(relation));
            let may_be = |relation| relations.iter().any(|pattern| pattern.may_be(relation));
            let list = &statement.relations;
            fit = fit.min(names(unknown, list.is_empty(), || list.iter().all(is), || list.iter().any(may_be)));
        }
        if let Some(patterns) = &self.functions {
            let fits = |name: &String| {
                let bare = name.rsplit_once('.').map(|(_, bare)| bare);
                patterns.matches(name) || bare.is_some_and(|bare| patterns.matches(bare))
            };
            let list = &statement.functions;
            let is = |name: &String| patterns.matches(name);
            fit = fit.min(names(unknown, list.is_empty(), || list.iter().all(is), || list.iter().any(fits)));
        }
        fit
    }
}

/// Judges names: all of a statement's must fit to be sure, one is enough to be possible.
fn names(unknown: bool, none: bool, all: impl Fn() -> bool, any: impl Fn() -> bool) -> Fit {
    if unknown {
        Fit::Maybe
    } else if none {
        Fit::No
    } else if all() {
        Fit::Yes
    } else if any() {
        Fit::Maybe
    } else {
        Fit::No
    }
}

fn bit(class: StatementClass) -> u32 {
    1 << class as u8
}
