//! Decides whether commands may run on the host: a repository's, and those that install Postgres.
//!
//! | setting | meaning | absent |
//! |---|---|---|
//! | `allow` | commands that may run: each a list of patterns, one for each argument, the program first; a last `**` stands for any further arguments | none |
//! | `deny` | commands that may not, whatever `allow` says: the program, and words that may not stand together after it | none |
//! | `unlisted_over` | transports over which commands of a repository may run that `allow` does not name, unless `deny` does | none |
//! | `transports` | how a request may have come: `stdio`, `cli`, `http` | `stdio`, `cli` |
//!
//! Patterns are for whole arguments; no shell reads them. The program is matched as it was given, so `npm` does not
//! allow `./npm`. An operation that would run a command and does not say which is refused.
//!
//! `deny` is read the stronger way, as one more word must not lead around it: each of its patterns has to fit some argument,
//! in whatever order and whatever else stands there, and the program is also known by the last part of its path.

use pgsandbox_policy::{Bucket, Decision, Description, Pattern, Phase, Policy, Problem, Problems, Request, Transport};

/// Operations that run a command of the repository.
const RUNNING: [&str; 3] = ["run_repo_command", "seed_database", "validate_schema_change"];
/// Looks into a repository, and may run a command.
const PREPARING: &str = "prepare_for_repo";
/// Starts Postgres; where it has a command, that one installs it.
const STARTING: &str = "ensure_postgres";

const COMMAND_NOT_ALLOWED: &str = "command_not_allowed";
const TRANSPORT_NOT_ALLOWED: &str = "transport_not_allowed";

/// The settings.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    allow: Vec<Vec<String>>,
    deny: Vec<Vec<String>>,
    unlisted_over: Vec<String>,
    transports: Option<Vec<String>>,
}

/// The policy.
#[derive(Debug)]
pub struct HostCommand {
    allow: Vec<Argv>,
    deny: Vec<Words>,
    unlisted_over: Vec<Transport>,
    transports: Vec<Transport>,
}

/// A program, and words that may not stand together after it.
#[derive(Debug)]
struct Words {
    program: Option<Pattern>,
    words: Vec<Pattern>,
}

/// A command by patterns.
#[derive(Debug)]
struct Argv {
    arguments: Vec<Pattern>,
    /// Whether any further arguments may follow.
    open: bool,
}

impl Policy for HostCommand {
    type Settings = Settings;

    fn describe() -> Description {
        Description::new("host-command", env!("CARGO_PKG_VERSION"), include_str!("../settings.schema.json"))
            .covers(RUNNING)
            .covers([PREPARING, STARTING])
            .phases([Phase::Visible])
            .codes([COMMAND_NOT_ALLOWED, TRANSPORT_NOT_ALLOWED])
    }

    fn configure(settings: Settings) -> Result<(Self, Vec<Bucket>), Vec<Problem>> {
        let mut problems = Problems::default();
        let transports = match &settings.transports {
            Some(words) => problems.words("transports", words, Transport::WORDS),
            None => vec![Transport::Stdio, Transport::Cli],
        };
        let policy = Self {
            allow: Argv::read_all(&settings.allow, "allow", &mut problems),
            deny: Words::read_all(&settings.deny, "deny", &mut problems),
            unlisted_over: problems.words("unlisted_over", &settings.unlisted_over, Transport::WORDS),
            transports,
        };
        problems.done((policy, Vec::new()))
    }

    fn evaluate(&self, request: &Request) -> Decision {
        let operation = request.operation.as_str();
        let transport = request.principal.transport;
        if !self.transports.contains(&transport) {
            let transports: Vec<_> = self.transports.iter().map(|t| format!("`{}`", t.as_str())).collect();
            let allowed = if transports.is_empty() { "no transport".into() } else { transports.join(", ") };
            return Decision::deny(
                TRANSPORT_NOT_ALLOWED,
                format!("`{operation}` is not available over `{}`; it is over {allowed}", transport.as_str()),
                format!("`{operation}` refused over `{}`: `transports` does not name it", transport.as_str()),
            );
        }
        let command = request.requested.command.as_slice();
        // What installs Postgres is no command of a repository, and is always named.
        let unlisted = operation != STARTING && self.unlisted_over.contains(&transport);
        let some = unlisted || !self.allow.is_empty();
        let may_run = match request.phase {
            Phase::Visible => operation == STARTING || some,
            Phase::Before | Phase::After if command.is_empty() => {
                operation == STARTING || operation == PREPARING && some
            }
            Phase::Before | Phase::After => self.allows(command, unlisted),
        };
        if may_run { Decision::pass() } else { self.refusal(operation, command) }
    }
}

impl HostCommand {
    fn allows(&self, command: &[String], unlisted: bool) -> bool {
        let denied = self.deny.iter().any(|words| words.stand_in(command));
        !denied && (unlisted || self.allow.iter().any(|argv| argv.matches(command)))
    }

    /// The arguments are not repeated: they may hold secrets, and the audit has the request.
    fn refusal(&self, operation: &str, command: &[String]) -> Decision {
        let allowed = if self.allow.is_empty() {
            "no command may run on this host unless the policy's setting `allow` names it".to_owned()
        } else {
            let shown: Vec<_> = self.allow.iter().take(8).map(|argv| format!("`{}`", argv.shown())).collect();
            format!("allowed are {}", shown.join(", "))
        };
        let (message, audit) = match command.first() {
            Some(program) => {
                let program = program.chars().filter(|c| !c.is_control()).take(80).collect::<String>();
                let with = match command.len() - 1 {
                    0 => "without arguments".to_owned(),
                    1 => "with this one argument".to_owned(),
                    count => format!("with these {count} arguments"),
                };
                (
                    format!("`{operation}` may not run `{program}` {with}; {allowed}"),
                    format!("command `{program}` {with} refused"),
                )
            }
            None => (
                format!("`{operation}` may not run; {allowed}"),
                format!("`{operation}` refused: it names no command, or no command is allowed"),
            ),
        };
        Decision::deny(COMMAND_NOT_ALLOWED, message, audit)
    }
}

impl Argv {
    fn read_all(lists: &[Vec<String>], path: &str, problems: &mut Problems) -> Vec<Self> {
        lists.iter().enumerate().map(|(index, list)| Self::read(list, &format!("{path}[{index}]"), problems)).collect()
    }

    fn read(list: &[String], path: &str, problems: &mut Problems) -> Self {
        let (open, fixed) = match list.split_last() {
            Some((last, fixed)) if last == "**" => (true, fixed),
            Some(_) | None => (false, list),
        };
        if fixed.is_empty() {
            problems.add(path, "a command begins with its program; write `*` for any program");
        }
        let mut arguments = Vec::with_capacity(fixed.len());
        for (index, text) in fixed.iter().enumerate() {
            match Pattern::new(text) {
                Ok(pattern) => arguments.push(pattern),
                Err(message) => problems.add(format!("{path}[{index}]"), message),
            }
        }
        Self { arguments, open }
    }

    fn matches(&self, command: &[String]) -> bool {
        let fits =
            if self.open { command.len() >= self.arguments.len() } else { command.len() == self.arguments.len() };
        fits && self.arguments.iter().zip(command).all(|(pattern, argument)| pattern.matches(argument))
    }

    fn shown(&self) -> String {
        let mut words: Vec<_> = self.arguments.iter().map(Pattern::as_str).collect();
        if self.open {
            words.push("**");
        }
        words.join(" ")
    }
}

impl Words {
    fn read_all(lists: &[Vec<String>], path: &str, problems: &mut Problems) -> Vec<Self> {
        let all = Argv::read_all(lists, path, problems);
        all.into_iter()
            .map(|Argv { arguments, .. }| {
                let mut arguments = arguments.into_iter();
                // Anything may stand between: `**` there says nothing.
                Self { program: arguments.next(), words: arguments.filter(|word| word.as_str() != "**").collect() }
            })
            .collect()
    }

    fn stand_in(&self, command: &[String]) -> bool {
        let Some((program, arguments)) = command.split_first() else { return false };
        let base = program.rsplit('/').next().unwrap_or(program);
        self.program.as_ref().is_some_and(|pattern| pattern.matches(program) || pattern.matches(base))
            && self.words.len() <= arguments.len()
            && self.words.iter().all(|word| arguments.iter().any(|argument| word.matches(argument)))
    }
}

pgsandbox_policy::export!(HostCommand);

#[cfg(test)]
mod tests {
    use pgsandbox_policy::testing;

    use super::*;

    #[test]
    fn the_description_fits_the_settings() {
        testing::check_description::<HostCommand>(include_str!("../default.json"));
    }

    #[test]
    fn the_cases_come_out_as_expected() {
        testing::check_cases::<HostCommand>(include_str!("../cases.toml"), include_str!("../default.json"));
    }

    #[test]
    fn arguments_are_not_repeated() {
        let policy: HostCommand = testing::configured("{}");
        let mut request = testing::request("run_repo_command");
        request.requested.command = vec!["deploy".into(), "--token=hunter2".into()];
        let decision = format!("{:?}", policy.evaluate(&request));
        assert!(decision.contains("deploy") && !decision.contains("hunter2"), "{decision}");
    }

    #[test]
    fn every_fault_is_reported() {
        let settings =
            r#"{"allow":[[],["**"],["npm",""]],"deny":[["**"]],"unlisted_over":["tty"],"transports":["stdin"]}"#;
        let paths: Vec<_> = testing::problems::<HostCommand>(settings).into_iter().map(|(path, _)| path).collect();
        assert_eq!(paths, ["transports[0]", "allow[0]", "allow[1]", "allow[2][1]", "deny[0]", "unlisted_over[0]"]);
    }
}
