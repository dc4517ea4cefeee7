//! The prompts: workflows in which each step names a tool with its arguments.
//!
//! A step that calls a tool is a line of its own, indented by four blanks: the tool's name and its arguments in JSON. A
//! test reads every one of them as the tool would. `{{name}}` stands for an argument of the prompt.

use serde_json::Value;

use super::OPERATIONS;
use crate::model::{Code, Failure};

/// The longest argument of a prompt, in characters.
const ARGUMENT_CHARS_MAX: usize = 2000;

/// A prompt.
#[derive(Debug)]
pub struct Prompt {
    /// The name by which it is asked for.
    pub name: &'static str,
    /// A short title for people.
    pub title: &'static str,
    /// What it is for.
    pub description: &'static str,
    /// What it can be told.
    pub arguments: &'static [PromptArgument],
    /// What the agent is told.
    pub text: &'static str,
}

/// What a prompt can be told.
#[derive(Debug)]
pub struct PromptArgument {
    /// Its name.
    pub name: &'static str,
    /// What it means.
    pub description: &'static str,
    /// What stands in its place if it is not given; `None` if it must be.
    pub default: Option<&'static str>,
    /// What it names, where that can be completed.
    pub names: Names,
}

/// What a word names, of the things that are the caller's to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Names {
    /// Nothing in particular.
    Anything,
    /// One of the caller's sandboxes, by id.
    Sandbox,
    /// A profile.
    Profile,
    /// A source that the caller may clone.
    Source,
    /// A schema digest of the caller's that is kept, by handle.
    Digest,
    /// A snapshot of the caller's.
    Snapshot,
    /// A template of the caller's.
    Template,
}

const DATABASE: PromptArgument =
    PromptArgument { name: "databaseId", description: "The sandbox's id", default: None, names: Names::Sandbox };

/// Every prompt there is text for.
static PROMPTS: [Prompt; 3] = [
    Prompt {
        name: "safe_clone",
        title: "Clone a database safely",
        description: "Makes a disposable copy of a configured source, checks it, looks at it read-only, and deletes it.",
        arguments: &[
            PromptArgument {
                name: "source",
                description: "The name of a configured source",
                default: None,
                names: Names::Source,
            },
            PromptArgument {
                name: "purpose",
                description: "What the copy is for, in a few words; it becomes part of its name",
                default: Some("safe clone"),
                names: Names::Anything,
            },
        ],
        text: include_str!("prompts/safe_clone.txt"),
    },
    Prompt {
        name: "migrate_and_verify",
        title: "Try a migration and verify it",
        description: "Runs a migration in a fresh sandbox, verifies what it did, and says whether it can be repeated.",
        arguments: &[
            PromptArgument {
                name: "migration",
                description: "The migration: SQL, or where it is found",
                default: None,
                names: Names::Anything,
            },
            PromptArgument {
                name: "profile",
                description: "The profile to try it on",
                default: Some(""),
                names: Names::Profile,
            },
        ],
        text: include_str!("prompts/migrate_and_verify.txt"),
    },
    Prompt {
        name: "verify_roles",
        title: "Verify a sandbox's roles",
        description: "Shows that a sandbox's roles can do what they should and nothing else.",
        arguments: &[DATABASE],
        text: include_str!("prompts/verify_roles.txt"),
    },
];

/// Returns the prompts that can be followed: all of whose tools there are.
pub fn prompts() -> impl Iterator<Item = &'static Prompt> {
    PROMPTS.iter().filter(|prompt| prompt.steps().all(|(tool, _)| is_tool(tool)))
}

fn is_tool(name: &str) -> bool {
    OPERATIONS.iter().any(|entry| entry.spec.name == name && entry.is_tool())
}

/// Returns the prompt of that name.
///
/// # Errors
/// `invalid_arguments`, with the names there are.
pub fn find(name: &str) -> Result<&'static Prompt, Failure> {
    prompts().find(|prompt| prompt.name == name).ok_or_else(|| {
        Failure::new(Code::InvalidArguments, "there is no prompt of that name").allowed(prompts().map(|p| p.name))
    })
}

impl Prompt {
    /// Returns the tool and the arguments of every step that calls one.
    pub fn steps(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        self.text.lines().filter_map(|line| line.strip_prefix("    ")?.split_once(' '))
    }

    /// Returns the text with its arguments in their places.
    ///
    /// # Errors
    /// `invalid_arguments`, if one is missing, unknown or too long.
    pub fn fill(&self, given: &[(String, String)]) -> Result<String, Failure> {
        let known = || self.arguments.iter().map(|argument| argument.name);
        if given.iter().any(|(name, _)| !known().any(|of| of == name)) {
            return Err(Failure::new(Code::InvalidArguments, format!("prompt `{}` has no such argument", self.name))
                .allowed(known()));
        }
        let mut text = self.text.to_owned();
        for argument in self.arguments {
            let value = given.iter().find(|(name, _)| name == argument.name).map(|(_, value)| value.as_str());
            let value = value.filter(|value| !value.is_empty()).or(argument.default).ok_or_else(|| {
                Failure::new(Code::InvalidArguments, format!("argument `{}` is required", argument.name))
            })?;
            if value.chars().count() > ARGUMENT_CHARS_MAX {
                let what = format!("argument `{}` is longer than {ARGUMENT_CHARS_MAX} characters", argument.name);
                return Err(Failure::new(Code::InvalidArguments, what));
            }
            // As it stands inside of a JSON string: a value ends no line and no text.
            let quoted = Value::from(value).to_string();
            let inner = quoted.strip_prefix('"').and_then(|inner| inner.strip_suffix('"')).unwrap_or_default();
            // A member of a call that stands for nothing is left out of it.
            if value.is_empty() {
                text = text.replace(&format!(", \"{0}\": \"{{{{{0}}}}}\"", argument.name), "");
            }
            // A value's own braces name no argument.
            text = text.replace(&format!("{{{{{}}}}}", argument.name), &inner.replace("{{", "{\u{200b}{"));
        }
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation;

    fn sample(argument: &PromptArgument) -> (String, String) {
        let value = match argument.names {
            Names::Sandbox => "11111111-2222-4333-8444-555555555555",
            Names::Profile => "local",
            Names::Source | Names::Digest | Names::Snapshot | Names::Template => "staging",
            Names::Anything => "a \"b\" \\ {{profile}}",
        };
        (argument.name.to_owned(), value.to_owned())
    }

    #[test]
    fn every_step_is_a_call_that_its_tool_reads() {
        let mut steps = 0;
        for prompt in prompts() {
            let given: Vec<_> = prompt.arguments.iter().map(sample).collect();
            let filled = prompt.fill(&given).unwrap();
            assert!(!filled.contains("{{"), "{}: {filled}", prompt.name);
            for line in filled.lines().filter_map(|line| line.strip_prefix("    ")) {
                let (tool, arguments) = line.split_once(' ').unwrap();
                let entry = operation::find(tool).unwrap();
                let arguments =
                    serde_json::from_str(arguments).unwrap_or_else(|e| panic!("{}: {line}: {e}", prompt.name));
                let read = entry.read(arguments);
                assert!(read.is_ok(), "{}: {line}: {:?}", prompt.name, read.err());
                steps += 1;
            }
        }
        assert!(steps >= 8, "{steps} steps");
    }

    #[test]
    fn every_tool_and_argument_that_prose_names_is_one() {
        for prompt in prompts() {
            let words: Vec<&str> = prompt.text.split('`').skip(1).step_by(2).collect();
            for word in words {
                let is_known = OPERATIONS.iter().any(|entry| {
                    let has = |schema: &operation::schema::JsonObject| {
                        schema.get("properties").and_then(Value::as_object).is_some_and(|p| p.contains_key(word))
                    };
                    let result = entry.output_schema().get("properties").and_then(|p| p.get("result"));
                    let in_result = result.and_then(Value::as_object).is_some_and(has);
                    entry.spec.name == word || has(entry.input_schema()) || has(entry.output_schema()) || in_result
                });
                assert!(is_known || ["ok", "hint"].contains(&word), "{} names `{word}`", prompt.name);
            }
        }
    }

    #[test]
    fn arguments_are_known_there_and_short() {
        let prompt = find("verify_roles").unwrap();
        let fill = |name: &str, value: String| prompt.fill(&[(name.to_owned(), value)]);
        assert!(fill("databaseId", "x".repeat(ARGUMENT_CHARS_MAX)).is_ok());
        assert!(fill("databaseId", "x".repeat(ARGUMENT_CHARS_MAX + 1)).is_err());
        assert!(fill("nonsense", "x".to_owned()).is_err() && prompt.fill(&[]).is_err());
        assert!(find("nonsense").unwrap_err().allowed.contains(&"verify_roles".to_owned()));
    }

    #[test]
    fn a_profile_that_is_asked_for_is_in_the_call_that_makes_the_sandbox() {
        let prompt = find("migrate_and_verify").unwrap();
        let given = |profile: &str| {
            [("migration", "select 1"), ("profile", profile)].map(|(k, v)| (k.to_owned(), v.to_owned()))
        };
        let call = |profile| {
            let text = prompt.fill(&given(profile)).unwrap();
            text.lines().find(|line| line.contains("    create_database ")).unwrap().trim().to_owned()
        };
        assert_eq!(call("pg18"), r#"create_database {"nameHint": "migration", "ttlMinutes": 60, "profile": "pg18"}"#);
        assert_eq!(call(""), r#"create_database {"nameHint": "migration", "ttlMinutes": 60}"#);
    }

    #[test]
    fn a_prompt_whose_tools_are_not_there_is_not_offered() {
        let has = |tool| OPERATIONS.iter().any(|entry| entry.spec.name == tool);
        assert_eq!(find("safe_clone").is_ok(), has("clone_database"));
    }
}
