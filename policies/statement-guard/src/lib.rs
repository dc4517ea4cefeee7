//! Decides which statements may run.
//!
//! It judges what the host read out of the SQL: class, leading keywords, traits, relations and functions of each
//! statement. One statement that is refused refuses the whole call, before any of it runs. What a role may do is
//! Postgres' to enforce; this is where an operator says what it should not even try.
//!
//! Every rule must allow a statement. `profiles` is a list of further sets of these rules, each with `match`, a list
//! of patterns: those that fit the request's profile must allow it as well.
//!
//! | rule | meaning | absent |
//! |---|---|---|
//! | `allow_classes`, `deny_classes` | classes of statements that may run, and that may not | every, none |
//! | `allow_tags` | leading keywords that may run whatever their class | none |
//! | `deny_tags` | leading keywords that may not: `DROP TABLE` is also `DROP TABLE AS …`, never `DROP TABLESPACE` | none |
//! | `deny_traits` | traits that a statement may not have | none |
//! | `allow_functions`, `deny_functions` | patterns of functions that may be called, and that may not | every, none |
//! | `allow_relations`, `deny_relations` | lists of `name` (pattern) and `access` (`reads`, `writes`, `defines`; absent: all) | every, none |
//! | `bare_names_are` | the schema that a relation written without one is judged by; a name that begins with `pg_` stays as it is | none: it may be in any |
//! | `unknown` | `allow` or `deny` statements whose relations and functions are not known, where there are rules for them | `deny` beside `allow_functions`, `allow_relations` or `deny_relations` |
//! | `unparsed` | `allow` or `deny` statements whose class is not known | `deny` beside `allow_classes` |
//!
//! So a list of what may run, or of what must not be touched, also refuses what cannot be told. `deny_functions` alone
//! does not: text can always hide a call, and Postgres is what stands behind it.
//!
//! Functions are matched as written and without their schema. A relation that is written without a schema is denied
//! by a pattern for any schema, and allowed only by a pattern that has none; unless `bare_names_are` says where it is. Who sets
//! another `search_path` makes that untrue: `deny_traits` with `session-setting` stands against it.

use pgsandbox_policy::statement::{
    RelationPattern, RelationSettings, bare_name, begins_with, check_schema, clean, named, read_tags, same_facts,
    with_schema,
};
use pgsandbox_policy::{
    Bucket, Decision, Description, Patterns, Phase, Policy, Problem, Problems, Relation, Request, Statement,
    StatementClass, StatementTraits,
};

/// It covers none of them: that a statement may run does not answer whose sandbox it may run in.
const CONCERNS: [&str; 2] = ["explain_query", "run_sql"];

const CLASS_NOT_ALLOWED: &str = "class_not_allowed";
const FUNCTION_NOT_ALLOWED: &str = "function_not_allowed";
const RELATION_NOT_ALLOWED: &str = "relation_not_allowed";
const STATEMENT_NOT_ALLOWED: &str = "statement_not_allowed";
const TRAIT_NOT_ALLOWED: &str = "trait_not_allowed";
const UNKNOWN_NOT_ALLOWED: &str = "unknown_not_allowed";
const UNPARSED_NOT_ALLOWED: &str = "unparsed_not_allowed";

/// The settings: a set of rules, and further sets for some profiles, which have `match` and no `profiles`.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    #[serde(rename = "match")]
    matches: Option<Vec<String>>,
    allow_classes: Option<Vec<String>>,
    deny_classes: Vec<String>,
    allow_tags: Vec<String>,
    deny_tags: Vec<String>,
    deny_traits: Vec<String>,
    allow_functions: Option<Vec<String>>,
    deny_functions: Vec<String>,
    allow_relations: Option<Vec<RelationSettings>>,
    deny_relations: Vec<RelationSettings>,
    bare_names_are: Option<String>,
    unknown: Option<String>,
    unparsed: Option<String>,
    profiles: Option<Vec<Settings>>,
}

/// The policy.
#[derive(Debug)]
pub struct StatementGuard {
    general: Rules,
    profiles: Vec<(Patterns, Rules)>,
}

#[derive(Debug)]
struct Rules {
    /// What may run.
    classes: Classes,
    allow_tags: Vec<String>,
    deny_tags: Vec<String>,
    deny_traits: StatementTraits,
    allow_functions: Option<Patterns>,
    deny_functions: Patterns,
    allow_relations: Option<Vec<RelationPattern>>,
    deny_relations: Vec<RelationPattern>,
    /// The schema of relations that are written without one, if that is known.
    bare_names_are: Option<String>,
    unknown: Answer,
    unparsed: Answer,
}

/// A set of classes, one bit each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Classes(u32);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Allow,
    Deny,
}

impl Answer {
    const WORDS: &[(Self, &str)] = &[(Self::Allow, "allow"), (Self::Deny, "deny")];
}

impl Policy for StatementGuard {
    type Settings = Settings;

    fn describe() -> Description {
        Description::new("statement-guard", env!("CARGO_PKG_VERSION"), include_str!("../settings.schema.json"))
            .concerns(CONCERNS)
            .phases([Phase::Visible])
            .codes([
                CLASS_NOT_ALLOWED,
                FUNCTION_NOT_ALLOWED,
                RELATION_NOT_ALLOWED,
                STATEMENT_NOT_ALLOWED,
                TRAIT_NOT_ALLOWED,
                UNKNOWN_NOT_ALLOWED,
                UNPARSED_NOT_ALLOWED,
            ])
    }

    fn configure(mut settings: Settings) -> Result<(Self, Vec<Bucket>), Vec<Problem>> {
        let mut problems = Problems::default();
        if settings.matches.is_some() {
            problems.add("match", "the general rules hold for every profile; rules for some go into `profiles`");
        }
        let sections = settings.profiles.take().unwrap_or_default();
        let general = Rules::read(settings, "", &mut problems);
        let mut profiles = Vec::with_capacity(sections.len());
        for (index, mut section) in sections.into_iter().enumerate() {
            let path = format!("profiles[{index}].");
            if section.profiles.is_some() {
                problems.add(format!("{path}profiles"), "rules for a profile hold no further ones");
            }
            let matches = section.matches.take().unwrap_or_default();
            if matches.is_empty() {
                problems.add(format!("{path}match"), "the rules are for no profile; name some, or `*` for every one");
            }
            let patterns = Patterns::read(&matches, &format!("{path}match"), &mut problems);
            profiles.push((patterns, Rules::read(section, &path, &mut problems)));
        }
        problems.done((Self { general, profiles }, Vec::new()))
    }

    fn evaluate(&self, request: &Request) -> Decision {
        // Rules for a profile hold where the profile is not known.
        let profile = request.server.as_ref().map(|server| server.profile.as_str());
        let special = self
            .profiles
            .iter()
            .filter(|(patterns, _)| profile.is_none_or(|profile| patterns.matches(profile)))
            .map(|(_, rules)| rules);
        let sets: Vec<&Rules> = std::iter::once(&self.general).chain(special).collect();
        let mut before: Option<&Statement> = None;
        for (index, statement) in request.statements.iter().enumerate() {
            // Long scripts are thousands of statements of one shape: what holds for one holds for the next.
            if before.is_some_and(|before| same_facts(before, statement)) {
                continue;
            }
            before = Some(statement);
            if let Some(refusal) = sets.iter().find_map(|rules| rules.refusal(statement, index + 1)) {
                return refusal;
            }
        }
        Decision::abstain()
    }
}

impl Rules {
    fn read(rules: Settings, path: &str, problems: &mut Problems) -> Self {
        let at = |name: &str| format!("{path}{name}");
        let mut classes = match &rules.allow_classes {
            Some(words) => Classes::read(words, &at("allow_classes"), problems),
            None => Classes::ALL,
        };
        classes.remove(Classes::read(&rules.deny_classes, &at("deny_classes"), problems));
        let mut deny_traits = StatementTraits::empty();
        for flag in problems.words(&at("deny_traits"), &rules.deny_traits, StatementTraits::WORDS) {
            deny_traits |= flag;
        }
        let mut answer = |name: &str, word: Option<String>, deny: bool| match word {
            Some(word) => problems.word(&at(name), &word, Answer::WORDS).unwrap_or(Answer::Deny),
            None if deny => Answer::Deny,
            None => Answer::Allow,
        };
        let names_matter =
            rules.allow_functions.is_some() || rules.allow_relations.is_some() || !rules.deny_relations.is_empty();
        let unknown = answer("unknown", rules.unknown, names_matter);
        let unparsed = answer("unparsed", rules.unparsed, rules.allow_classes.is_some());
        if let Some(schema) = &rules.bare_names_are {
            check_schema(schema, &at("bare_names_are"), problems);
        }
        Self {
            classes,
            allow_tags: read_tags(rules.allow_tags, &at("allow_tags"), problems),
            deny_tags: read_tags(rules.deny_tags, &at("deny_tags"), problems),
            deny_traits,
            allow_functions: rules.allow_functions.map(|list| Patterns::read(&list, &at("allow_functions"), problems)),
            deny_functions: Patterns::read(&rules.deny_functions, &at("deny_functions"), problems),
            allow_relations: rules
                .allow_relations
                .map(|list| RelationPattern::read_all(list, &at("allow_relations"), problems)),
            deny_relations: RelationPattern::read_all(rules.deny_relations, &at("deny_relations"), problems),
            bare_names_are: rules.bare_names_are,
            unknown,
            unparsed,
        }
    }

    /// Returns why the statement may not run, if it may not. `number` counts from 1.
    fn refusal(&self, statement: &Statement, number: usize) -> Option<Decision> {
        let allowed_by_tag = begins_with_any(&statement.tag, &self.allow_tags);
        self.class_refusal(statement, number, allowed_by_tag)
            .or_else(|| self.trait_refusal(statement, number))
            .or_else(|| self.function_refusal(statement, number))
            .or_else(|| self.relation_refusal(statement, number))
    }

    fn class_refusal(&self, statement: &Statement, number: usize, allowed_by_tag: bool) -> Option<Decision> {
        let class = statement.class;
        if class == StatementClass::Unparsed {
            return (self.unparsed == Answer::Deny).then(|| {
                refuse(
                    UNPARSED_NOT_ALLOWED,
                    statement,
                    number,
                    "is of no known class",
                    "only statements that can be told apart may run; write it in plain PostgreSQL",
                )
            });
        }
        if let Some(tag) = self.deny_tags.iter().find(|tag| begins_with(&statement.tag, tag)) {
            let what = format!("begins with `{tag}`, which may not run");
            return Some(refuse(STATEMENT_NOT_ALLOWED, statement, number, &what, "leave the statement out"));
        }
        if class == StatementClass::Empty || allowed_by_tag || self.classes.contains(class) {
            return None;
        }
        let what = format!("is of class `{}`, which may not run", class.as_str());
        let classes = self.classes.quoted();
        let instead = if class == StatementClass::Cluster {
            format!(
                "roles, databases and the server's settings are outside a sandbox (`create_database` makes another one); classes that may run are {classes}"
            )
        } else {
            format!("classes that may run are {classes}")
        };
        Some(refuse(CLASS_NOT_ALLOWED, statement, number, &what, &instead))
    }

    fn trait_refusal(&self, statement: &Statement, number: usize) -> Option<Decision> {
        let denied = statement.traits & self.deny_traits;
        let (flag, word) = StatementTraits::WORDS.iter().find(|(flag, _)| denied.contains(*flag))?;
        let what = format!("has the trait `{word}`: {}", meaning(*flag));
        let instead = format!("statements without `{word}` may run");
        Some(refuse(TRAIT_NOT_ALLOWED, statement, number, &what, &instead))
    }

    fn function_refusal(&self, statement: &Statement, number: usize) -> Option<Decision> {
        if self.asks_for_names() && statement.traits.contains(StatementTraits::RELATIONS_UNKNOWN) {
            return (self.unknown == Answer::Deny).then(|| {
                refuse(
                    UNKNOWN_NOT_ALLOWED,
                    statement,
                    number,
                    "touches relations and calls functions that cannot be told from its text",
                    "only statements whose relations and functions are known may run",
                )
            });
        }
        let denied = statement.functions.iter().find(|name| self.denies_function(name))?;
        let what = format!("calls `{}`, which may not be called", clean(denied));
        let instead = match &self.allow_functions {
            Some(list) => format!("functions that may be called are {}", list.quoted()),
            None => "other functions may be called".to_owned(),
        };
        Some(refuse(FUNCTION_NOT_ALLOWED, statement, number, &what, &instead))
    }

    fn denies_function(&self, name: &str) -> bool {
        let bare = name.rsplit_once('.').map(|(_, bare)| bare);
        let fits = |list: &Patterns| list.matches(name) || bare.is_some_and(|bare| list.matches(bare));
        fits(&self.deny_functions) || self.allow_functions.as_ref().is_some_and(|list| !fits(list))
    }

    fn relation_refusal(&self, statement: &Statement, number: usize) -> Option<Decision> {
        let denied = statement.relations.iter().find(|relation| self.denies_relation(relation))?;
        let (name, access) = (clean(&denied.name), denied.access.as_str());
        let what = format!("{access} `{name}`, which it may not");
        let mut instead = match &self.allow_relations {
            Some(list) => format!("relations that may be touched are {}", shown(list)),
            None => "other relations may be touched".to_owned(),
        };
        if self.asks_for_a_schema(denied) {
            let written =
                format!("; a name without its schema may be in any, with one (`public.{name}`) it is judged by that");
            instead.push_str(&written);
        }
        Some(refuse(RELATION_NOT_ALLOWED, statement, number, &what, &instead))
    }

    fn denies_relation(&self, relation: &Relation) -> bool {
        let named = self.with_schema(relation);
        let judged = named.as_ref().unwrap_or(relation);
        let allowed = |rule: &RelationPattern| rule.is(relation) || rule.is(judged);
        self.deny_relations.iter().any(|rule| rule.may_be(judged))
            || self.allow_relations.as_ref().is_some_and(|list| !list.iter().any(allowed))
    }

    /// Returns the relation with the schema that names without one stand for.
    fn with_schema(&self, relation: &Relation) -> Option<Relation> {
        self.bare_names_are.as_ref().and_then(|schema| with_schema(relation, schema))
    }

    /// Returns whether a refused name lacks a schema with which it might not be refused.
    fn asks_for_a_schema(&self, relation: &Relation) -> bool {
        bare_name(&relation.name).is_none()
            && self.with_schema(relation).is_none()
            && !self.deny_relations.iter().any(|rule| !rule.has_schema() && rule.may_be(relation))
    }

    /// Returns whether any rule needs to know relations or functions.
    fn asks_for_names(&self) -> bool {
        self.allow_functions.is_some()
            || !self.deny_functions.is_empty()
            || self.allow_relations.is_some()
            || !self.deny_relations.is_empty()
    }
}

fn refuse(code: &str, statement: &Statement, number: usize, what: &str, instead: &str) -> Decision {
    let subject = named(statement, number);
    Decision::deny(code, format!("{subject} {what}; {instead}"), format!("{subject} {what}"))
}

fn meaning(flag: StatementTraits) -> &'static str {
    const MEANINGS: [(StatementTraits, &str); 11] = [
        (StatementTraits::DATA_MODIFYING_CTE, "its WITH clause changes data"),
        (StatementTraits::DYNAMIC_SQL, "it executes text that is not visible"),
        (StatementTraits::VOLATILE_FUNCTION, "it calls a volatile function"),
        (StatementTraits::SERVER_FILE, "it reads or writes the server's files"),
        (StatementTraits::NETWORK, "it may contact other servers"),
        (StatementTraits::SESSION_SETTING, "it changes a setting of the session"),
        (StatementTraits::OPAQUE_BODY, "it has a body that was not looked into"),
        (StatementTraits::NO_WHERE, "it changes every row of a table"),
        (StatementTraits::UNQUALIFIED_RELATION, "it names a relation without its schema"),
        (StatementTraits::UNKNOWN_FUNCTION, "it calls a function that is not one of Postgres' own"),
        (StatementTraits::RELATIONS_UNKNOWN, "its relations and functions are not known"),
    ];
    MEANINGS.iter().find(|(one, _)| *one == flag).map_or("", |(_, text)| text)
}

fn begins_with_any(tag: &str, list: &[String]) -> bool {
    list.iter().any(|keywords| begins_with(tag, keywords))
}

impl Classes {
    const ALL: Self = Self(u32::MAX);

    fn read(words: &[String], path: &str, problems: &mut Problems) -> Self {
        let mut set = Self(0);
        for class in problems.words(path, words, StatementClass::WORDS) {
            if class == StatementClass::Unparsed {
                problems.add(path, "`unparsed` is no class to allow or deny here; set `unparsed` instead");
            }
            set.0 |= Self::bit(class);
        }
        set
    }

    fn bit(class: StatementClass) -> u32 {
        1 << class as u8
    }

    fn remove(&mut self, other: Self) {
        self.0 &= !other.0;
    }

    fn contains(self, class: StatementClass) -> bool {
        self.0 & Self::bit(class) != 0
    }

    /// Returns the classes in a sentence.
    fn quoted(self) -> String {
        let is_shown = |class: StatementClass| {
            self.contains(class) && class != StatementClass::Unparsed && class != StatementClass::Empty
        };
        let words: Vec<_> = StatementClass::WORDS
            .iter()
            .filter(|(class, _)| is_shown(*class))
            .map(|(_, word)| format!("`{word}`"))
            .collect();
        if words.is_empty() { "none".to_owned() } else { words.join(", ") }
    }
}

/// Names patterns of relations in a sentence.
fn shown(list: &[RelationPattern]) -> String {
    const SHOWN_MAX: usize = 8;
    let names: Vec<_> = list.iter().take(SHOWN_MAX).map(|pattern| format!("`{}`", pattern.as_str())).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

pgsandbox_policy::export!(StatementGuard);

#[cfg(test)]
mod tests {
    use pgsandbox_policy::{Access, Verdict, testing};

    use super::*;

    #[test]
    fn the_description_fits_the_settings() {
        testing::check_description::<StatementGuard>(include_str!("../default.json"));
    }

    #[test]
    fn the_cases_come_out_as_expected() {
        testing::check_cases::<StatementGuard>(include_str!("../cases.toml"), include_str!("../default.json"));
    }

    #[test]
    fn every_fault_is_reported() {
        let settings = r#"{"deny_classes":["cluster","dcl","unparsed"],"deny_tags":["drop table"],"deny_traits":["net"],
            "deny_relations":[{"name":"","access":["reading"]}],"bare_names_are":"a.b","unknown":"maybe","match":["x"],"profiles":[{"unparsed":"no","profiles":[]}]}"#;
        let paths: Vec<_> = testing::problems::<StatementGuard>(settings).into_iter().map(|(path, _)| path).collect();
        assert_eq!(
            paths,
            [
                "match",
                "deny_classes[1]",
                "deny_classes",
                "deny_traits[0]",
                "unknown",
                "bare_names_are",
                "deny_tags[0]",
                "deny_relations[0].access[0]",
                "deny_relations[0].name",
                "profiles[0].profiles",
                "profiles[0].match",
                "profiles[0].unparsed",
            ]
        );
    }

    #[test]
    fn every_class_has_a_bit_of_its_own() {
        let mut all = 0_u32;
        for (class, word) in StatementClass::WORDS {
            assert_eq!(all & Classes::bit(*class), 0, "{word}");
            all |= Classes::bit(*class);
        }
    }

    #[test]
    fn a_refusal_names_the_statement() {
        let policy: StatementGuard = testing::configured(r#"{"deny_tags":["DROP TABLE"]}"#);
        let statement = |tag: &str| Statement {
            class: StatementClass::Ddl,
            tag: tag.into(),
            traits: StatementTraits::empty(),
            relations: Vec::new(),
            functions: Vec::new(),
            read_only_safe: false,
            text: None,
        };
        let mut request = testing::request("run_sql");
        request.statements = vec![statement("CREATE TABLE"), statement("DROP TABLESPACE"), statement("DROP TABLE")];
        match policy.evaluate(&request).verdict {
            Verdict::Deny(denial) => assert!(denial.message.starts_with("statement 3 (`DROP TABLE`)"), "{denial:?}"),
            Verdict::Pass | Verdict::Abstain => panic!("not refused"),
        }
    }

    #[test]
    fn a_refused_name_without_a_schema_is_told_that_one_with_it_would_be_judged_by_that() {
        let told = |settings: &str, name: &str| {
            let policy: StatementGuard = testing::configured(settings);
            let mut request = testing::request("run_sql");
            request.statements = vec![Statement {
                class: StatementClass::Ddl,
                tag: "CREATE TABLE".into(),
                traits: StatementTraits::empty(),
                relations: vec![Relation { name: name.into(), access: Access::Defines }],
                functions: Vec::new(),
                read_only_safe: false,
                text: None,
            }];
            match policy.evaluate(&request).verdict {
                Verdict::Deny(denial) => denial.message.contains(&format!("(`public.{name}`) it is judged by that")),
                Verdict::Pass | Verdict::Abstain => panic!("not refused: {settings} {name}"),
            }
        };
        assert!(told(r#"{"deny_relations":[{"name":"audit.*"}]}"#, "t"));
        assert!(told(r#"{"deny_relations":[{"name":"audit.*"}]}"#, "\"a.b\""), "a dot in quotes makes no schema");
        assert!(told(r#"{"allow_relations":[{"name":"public.*"}]}"#, "t"));
        assert!(!told(r#"{"deny_relations":[{"name":"audit.*"}]}"#, "audit.t"));
        assert!(!told(r#"{"deny_relations":[{"name":"public.*"}],"bare_names_are":"public"}"#, "t"));
        assert!(!told(r#"{"deny_relations":[{"name":"audit.*"},{"name":"t"}]}"#, "t"), "it is denied with any schema");
    }

    #[test]
    fn a_bad_statement_among_many_alike_is_found() {
        let policy: StatementGuard = testing::configured(r#"{"deny_functions":["pg_read_file"]}"#);
        let statement = |function: &str| Statement {
            class: StatementClass::Read,
            tag: "SELECT".into(),
            traits: StatementTraits::empty(),
            relations: Vec::new(),
            functions: vec![function.into()],
            read_only_safe: false,
            text: None,
        };
        let mut request = testing::request("run_sql");
        request.statements = vec![statement("lower"); 1000];
        assert_eq!(policy.evaluate(&request), Decision::abstain());
        request.statements.insert(500, statement("pg_read_file"));
        match policy.evaluate(&request).verdict {
            Verdict::Deny(denial) => assert!(denial.message.starts_with("statement 501"), "{denial:?}"),
            Verdict::Pass | Verdict::Abstain => panic!("not refused"),
        }
    }

    #[test]
    fn rules_for_a_profile_hold_where_the_profile_is_not_known() {
        let policy: StatementGuard =
            testing::configured(r#"{"profiles":[{"match":["prod"],"allow_classes":["read"]}]}"#);
        let mut request = testing::request("run_sql");
        request.statements = vec![Statement {
            class: StatementClass::Write,
            tag: "DELETE".into(),
            traits: StatementTraits::empty(),
            relations: Vec::new(),
            functions: Vec::new(),
            read_only_safe: false,
            text: None,
        }];
        assert_eq!(policy.evaluate(&request), Decision::abstain());
        request.server = None;
        assert!(matches!(policy.evaluate(&request).verdict, Verdict::Deny(_)));
    }
}
