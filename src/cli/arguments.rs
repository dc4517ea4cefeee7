//! The command line's grammar; operations' commands are made from the list.

use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgAction, ArgMatches, Command, ValueHint};
use serde_json::{Map, Value, json};

use crate::operation::schema::JsonObject;
use crate::operation::{Entry, OPERATIONS, Toolset};

/// The name of the argument that takes a whole input as JSON.
pub(super) const INPUT: &str = "input";
/// The name of the argument by which an operator cleans up for everybody.
pub(super) const EVERYONES: &str = "everyones";
/// The name of the argument that says where the SQL is.
pub(super) const SQL_FILE: &str = "sql-file";
/// The name of the field that is a path of this machine.
const REPO_PATH: &str = "repoPath";

/// The most lines that `audit tail` prints.
const TAIL_LINES_MAX: u64 = 100_000;

/// Returns the whole grammar.
pub(super) fn command() -> Command {
    let common = [Arg::new("format")
        .long("format")
        .global(true)
        .value_parser(["json", "text"])
        .help("How results are printed; default: what operations say is text on a terminal, else json; commands beside them print text unless asked")];
    Command::new(env!("CARGO_PKG_NAME"))
        .version(env!("CARGO_PKG_VERSION"))
        .about("Disposable PostgreSQL sandboxes for coding agents, behind a policy gate")
        .after_help("Without a command, and with standard input not a terminal, `mcp` is meant. Configuration: see `docs/reference/configuration.md`.")
        .args(common)
        .subcommand(mcp())
        .subcommand(
            Command::new("quickstart")
                .about("Sets up a managed cluster and plays the main job once, from creation to deletion")
                .arg(flag("yes", "Install what is missing without asking"))
                .arg(without_format()),
        )
        .subcommand(super::setup::setup_command())
        .subcommand(super::setup::uninstall_command())
        .subcommand(
            Command::new("smoke-test")
                .about("Starts this program as a client does and plays the main job over MCP; says what went as it must"),
        )
        .subcommand(
            Command::new("completions")
                .about("Prints what makes a shell complete commands and options")
                .arg(
                    Arg::new("shell")
                        .required(true)
                        .value_parser(["bash", "zsh", "fish"])
                        .help("bash, zsh or fish"),
                )
                .arg(without_format()),
        )
        .subcommand(local())
        .subcommand(
            Command::new("tool")
                .about("Calls an operation by its contract name, with its input as JSON")
                .arg(Arg::new("name").required(true).help("The operation, `run_sql` for instance"))
                .arg(input()),
        )
        .subcommand(with_database())
        .subcommand(audit())
        .subcommand(super::policy::command())
        .subcommand(
            Command::new("keys")
                .about("Manages the keys that seal passwords")
                .subcommand_required(true)
                .subcommand(Command::new("rotate").about("Makes a new key and seals every stored password with it")),
        )
        .subcommand(exported())
        .subcommands(OPERATIONS.iter().filter(|entry| entry.is_tool()).map(operation))
        .subcommand(
            // The name of the command in the contract; the operation's own name works, too.
            cleanup(find("cleanup_expired")),
        )
}

/// Returns whether a command prints text wherever its output goes, unless JSON is asked for: what people call and no operation
/// is.
pub(super) fn prints_text(command: &str) -> bool {
    let operations = || OPERATIONS.iter().filter(|entry| entry.is_tool());
    !matches!(command, "tool" | "cleanup") && operations().all(|entry| entry.spec.command() != command)
}

/// Returns an argument that takes the place of the common one where a format means nothing.
fn without_format() -> Arg {
    Arg::new("format").long("format").value_parser(["json", "text"]).hide(true)
}

/// Returns the grammar by which shells complete: there the words that an operation takes are known. Elsewhere the operation
/// refuses others, as it does for every caller.
pub(super) fn completed() -> Command {
    let tools = || OPERATIONS.iter().filter(|entry| entry.is_tool());
    let names = || PossibleValuesParser::new(tools().map(|entry| entry.spec.name));
    let named = command()
        .mut_subcommand("tool", |command| command.mut_arg("name", |name| name.value_parser(names())))
        .mut_subcommand("audit", |command| {
            command.mut_subcommand("tail", |tail| tail.mut_arg("operation", |name| name.value_parser(names())))
        });
    tools().fold(named, |command, entry| {
        let properties = entry.input_schema().get("properties").and_then(Value::as_object).into_iter().flatten();
        let with_words = properties.filter_map(|(name, schema)| Some((name, schema.get("enum")?.as_array()?)));
        command.mut_subcommand(entry.spec.command(), |command| {
            with_words.fold(command, |command, (name, words)| {
                let words = PossibleValuesParser::new(words.iter().filter_map(Value::as_str).map(str::to_owned));
                command.mut_arg(name, |argument| argument.value_parser(words))
            })
        })
    })
}

fn find(name: &str) -> &'static Entry {
    // `command()` is built from the list, and a test calls it: the name is there.
    OPERATIONS.iter().find(|entry| entry.spec.name == name).unwrap_or(&OPERATIONS[0])
}

fn cleanup(entry: &'static Entry) -> Command {
    let command = operation_as("cleanup", entry);
    let others: Vec<clap::Id> = command.get_arguments().map(|argument| argument.get_id().clone()).collect();
    let about = format!("{} The same as `cleanup-expired`, but for --everyones", entry.spec.help);
    command.about(about).arg(
        flag(EVERYONES, "Delete everybody's, on every profile whose server runs: the operator's, for cron")
            .conflicts_with_all(others),
    )
}

fn mcp() -> Command {
    Command::new("mcp")
        .about("Serves MCP over standard input and output")
        .arg(
            Arg::new("toolsets")
                .long("toolsets")
                .value_delimiter(',')
                .action(ArgAction::Append)
                .value_parser(PossibleValuesParser::new(Toolset::ALL.map(Toolset::as_str).into_iter().chain(["all"])))
                .default_value(Toolset::Core.as_str())
                .help("Groups of tools to show, separated by commas; `all` is every one"),
        )
        .arg(
            Arg::new("rows-in")
                .long("rows-in")
                .value_parser(["structured", "text"])
                .default_value("structured")
                .help("Where row data travels: structuredContent, or the text for clients that show nothing else"),
        )
        .arg(without_format())
}

fn exported() -> Command {
    let file = |help: &'static str| {
        Arg::new("file")
            .value_name("FILE")
            .required(true)
            .value_parser(clap::value_parser!(std::path::PathBuf))
            .help(help)
    };
    Command::new("exported")
        .about("Brings exported templates to another machine, and from one")
        .subcommand_required(true)
        .subcommand(
            Command::new("save")
                .about("Copies an exported template of yours to a private file")
                .arg(
                    Arg::new("name")
                        .value_name("NAME")
                        .required(true)
                        .help("As `list-templates` shows it under `exported`"),
                )
                .arg(file("Where to; a file that is there already is not replaced")),
        )
        .subcommand(
            Command::new("add")
                .about("Takes such a file as an exported template of yours, for `import-template`")
                .arg(file("The file"))
                .arg(Arg::new("name").long("name").value_name("NAME").help("Another name than the one it has")),
        )
}

fn local() -> Command {
    let on_clusters = |name: &'static str, about: &'static str| {
        let profile = Arg::new("profile").long("profile").value_name("NAME");
        Command::new(name).about(about).arg(profile.help("Only this profile's cluster; default: every managed one"))
    };
    Command::new("local")
        .about("Manages the local clusters")
        .subcommand_required(true)
        .subcommand(on_clusters("init", "Initialises the clusters that are not there yet, and starts them"))
        .subcommand(on_clusters("start", "Starts the clusters that do not run"))
        .subcommand(on_clusters("stop", "Stops the clusters"))
        .subcommand(on_clusters(
            "status",
            "Says whether the clusters run, and where; ends with status 3 if one does not",
        ))
}

fn audit() -> Command {
    Command::new("audit")
        .about("Reads the audit log")
        .subcommand_required(true)
        .subcommand(Command::new("verify").about("Checks every segment's hash chain and the manifest"))
        .subcommand(
            Command::new("tail")
                .about("Prints the last entries, a JSON object a line")
                .arg(
                    Arg::new("lines")
                        .short('n')
                        .long("lines")
                        .value_parser(lines)
                        .allow_negative_numbers(true)
                        .default_value("20")
                        .help("How many lines, 1 to 100000"),
                )
                .arg(Arg::new("operation").long("operation").help("Only this operation"))
                .arg(Arg::new("id").long("id").value_hint(ValueHint::Other).help("Only this request")),
        )
}

fn with_database() -> Command {
    let text = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value).help(help)
    };
    let number =
        |name: &'static str, help: &'static str| text(name, "N", help).value_parser(whole).allow_negative_numbers(true);
    let several =
        |name: &'static str, value: &'static str, help: &'static str| text(name, value, help).action(ArgAction::Append);
    Command::new("with-database")
        .about("Makes a sandbox, runs a command with its credentials in DATABASE_URL and PG*, and removes the sandbox again")
        .after_help("Exit code: the command's own; 128 and the signal's number if one ended it; 124 if its time was over; 125 if this program \
                     failed or refused. With --format json the command's output goes to standard error, and standard output has the result alone.")
        .arg(text("profile", "TEXT", "Profile name; default: the default profile"))
        .arg(text("postgres-version", "TEXT", "Postgres major version"))
        .arg(text("name-hint", "TEXT", "What the sandbox is for; becomes part of its name"))
        .arg(number("ttl-minutes", "Minutes for the sandbox to live, should it be left"))
        .arg(text("owner", "TEXT", "A group of work beneath you"))
        .arg(several("labels", "KEY=VALUE", "A label of the sandbox; repeat for several"))
        .arg(several("extensions", "NAME", "An extension to install; repeat for several"))
        .arg(text("repo-path", "DIR", "Where the command runs, and what it may write; default: here"))
        .arg(
            text("cleanup", "WHEN", "When the sandbox is removed again")
                .value_parser(["always", "on-success", "keep"])
                .default_value("always"),
        )
        .arg(number("timeout-seconds", "Time for the command, 1 to 600; default 600"))
        .arg(several("database-url-env-names", "NAME", "A further name for the database URL; repeat for several"))
        .arg(
            text("connection-mode", "WHERE", "From where the command reaches the database; default direct")
                .value_parser(["direct", "localContainer"]),
        )
        .arg(command_words().required(true))
}

/// A command's words, after `--`.
fn command_words() -> Arg {
    Arg::new("command")
        .last(true)
        .num_args(1..)
        .value_name("COMMAND")
        .help("The program and its arguments; no shell reads them")
}

fn whole(text: &str) -> Result<i64, Wanted> {
    text.parse().map_err(|_| Wanted("a whole number"))
}

/// What an argument takes, for what does not fit. It shows no value: that may be a secret in a wrong place.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Wanted(&'static str);

impl Wanted {
    /// A number within bounds that the help names.
    pub(super) const fn counted() -> Self {
        Self("a whole number from 1 on, within what `--help` says")
    }
}

fn lines(text: &str) -> Result<u64, Wanted> {
    let number = text.parse().ok().filter(|lines| (1..=TAIL_LINES_MAX).contains(lines));
    number.ok_or(Wanted("a whole number from 1 to 100000"))
}

fn flag(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).action(ArgAction::SetTrue).help(help)
}

fn input() -> Arg {
    Arg::new(INPUT).long(INPUT).value_name("JSON|@FILE|-").help("The whole input: JSON, @file, or - for standard input")
}

fn operation(entry: &'static Entry) -> Command {
    operation_as(entry.spec.command(), entry)
}

fn operation_as(name: impl Into<clap::builder::Str>, entry: &'static Entry) -> Command {
    let properties = entry.input_schema().get("properties").and_then(Value::as_object);
    let arguments = properties.into_iter().flatten().map(|(name, schema)| argument(name, schema));
    let command = Command::new(name).about(entry.spec.help).args(arguments).arg(input());
    if entry.spec.name == "run_sql" { command.arg(sql_file()) } else { command }
}

/// Where SQL is read that is too long for an argument, or that the list of processes should not show.
fn sql_file() -> Arg {
    Arg::new(SQL_FILE)
        .long("file")
        .short('f')
        .value_name("PATH|-")
        .value_hint(ValueHint::FilePath)
        .conflicts_with("sql")
        .help("Reads the SQL from a file, or with - from standard input, in the place of --sql")
}

/// Returns an argument's name on the command line: `ttlMinutes` is `--ttl-minutes`.
pub(super) fn kebab(name: &str) -> String {
    let mut out = String::with_capacity(name.len() + 4);
    for c in name.chars() {
        if c.is_ascii_uppercase() {
            out.push('-');
        }
        out.push(c.to_ascii_lowercase());
    }
    out
}

/// Arguments whose values may begin with `-`: SQL does with a comment, a parameter with a minus.
const FREE: [&str; 5] = ["sql", "stdin", "params", "migrationCommand", "seedCommand"];

fn argument(name: &str, schema: &Value) -> Arg {
    if name == "command" {
        return command_words();
    }
    let kind = type_of(schema);
    let mut help = schema.get("description").and_then(Value::as_str).unwrap_or_default().to_owned();
    let parts = parts(schema);
    if let Some(parts) = &parts {
        help.push_str(&format!(" Each is a JSON object: {parts}."));
    }
    if matches!(kind, "array" | "object") {
        help.push_str(" Repeat the option for several.");
    }
    // Nothing but a path is completed with the names of files.
    let hint = if name == "repoPath" { ValueHint::DirPath } else { ValueHint::Other };
    let argument = Arg::new(name.to_owned()).long(kebab(name)).help(help).value_hint(hint);
    let argument = argument.allow_hyphen_values(FREE.contains(&name));
    match kind {
        "boolean" => {
            argument.num_args(0..=1).require_equals(true).default_missing_value("true").value_parser(["true", "false"])
        }
        "array" => argument.action(ArgAction::Append).value_name(if parts.is_some() { "JSON" } else { "VALUE" }),
        "object" => argument.action(ArgAction::Append).value_name("KEY=VALUE"),
        "integer" => argument.allow_negative_numbers(true).value_name("N"),
        _ => argument.value_name(words(schema).unwrap_or_else(|| "TEXT".to_owned())),
    }
}

/// Returns the words that a text may be, if it may not be any: `owner|readonly`. The operation refuses others.
fn words(schema: &Value) -> Option<String> {
    let words = schema.get("enum")?.as_array()?.iter();
    Some(words.filter_map(Value::as_str).collect::<Vec<_>>().join("|"))
}

/// Returns what the objects of a list are made of: `{"table": TEXT, "with": constant|null}`; none where its items are others.
fn parts(schema: &Value) -> Option<String> {
    let properties = schema.pointer("/items/properties")?.as_object()?;
    let required = schema.pointer("/items/required").and_then(Value::as_array);
    let part = |(name, schema): (&String, &Value)| {
        let optional = required.is_none_or(|names| !names.iter().any(|known| known.as_str() == Some(name)));
        let value = words(schema).unwrap_or_else(|| "TEXT".to_owned());
        format!("\"{name}\": {value}{}", if optional { " (if wanted)" } else { "" })
    };
    Some(format!("{{{}}}", properties.iter().map(part).collect::<Vec<_>>().join(", ")))
}

fn type_of(schema: &Value) -> &str {
    schema.get("type").and_then(Value::as_str).unwrap_or("any")
}

/// Reads an operation's input from its arguments. `whole` is what `--input` gave.
///
/// # Errors
/// Says which argument cannot be read.
pub(super) fn input_of(entry: &Entry, matches: &ArgMatches, whole: Option<JsonObject>) -> Result<JsonObject, String> {
    let mut input = whole.unwrap_or_default();
    let properties = entry.input_schema().get("properties").and_then(Value::as_object);
    for (name, schema) in properties.into_iter().flatten() {
        let Some(values) = matches.get_many::<String>(name) else { continue };
        let values: Vec<&str> = values.map(String::as_str).collect();
        let mut value = value(schema, &values).map_err(|fault| format!("--{}: {fault}", kebab(name)))?;
        if name == REPO_PATH {
            value = json!(absolute(values.last().copied().unwrap_or_default()));
        }
        if input.insert(name.clone(), value).is_some() {
            return Err(format!("`--{}` stands beside `--{INPUT}`, which has `{name}` as well", kebab(name)));
        }
    }
    Ok(input)
}

/// Returns a path from the root: what is typed here is meant from here.
pub(super) fn absolute(path: &str) -> String {
    let absolute = std::path::absolute(path).ok();
    // One that is empty is nowhere.
    absolute.and_then(|path| path.to_str().map(str::to_owned)).unwrap_or_else(|| path.to_owned())
}

fn value(schema: &Value, values: &[&str]) -> Result<Value, String> {
    let last = values.last().copied().unwrap_or_default();
    match type_of(schema) {
        "boolean" => Ok(json!(last == "true")),
        "integer" => serde_json::from_str::<serde_json::Number>(last)
            .map(Value::Number)
            .map_err(|_| "a whole number is wanted".to_owned()),
        "array" => Ok(values.iter().map(|text| item(schema, "/items/type", text)).collect()),
        "object" => pairs(schema, values),
        _ => Ok(json!(last)),
    }
}

/// Items that are texts are taken as they are; items that may be anything are JSON if they can be. `kind` is where the
/// schema says which.
fn item(schema: &Value, kind: &str, text: &str) -> Value {
    match schema.pointer(kind).and_then(Value::as_str) {
        Some("string") => json!(text),
        _ => serde_json::from_str(text).unwrap_or_else(|_| json!(text)),
    }
}

fn pairs(schema: &Value, values: &[&str]) -> Result<Value, String> {
    let mut object = Map::new();
    for pair in values {
        let entries = match serde_json::from_str(pair) {
            Ok(Value::Object(whole)) => whole,
            Ok(_) | Err(_) => {
                let (key, value) = pair.split_once('=').ok_or("key=value is wanted, or a JSON object")?;
                Map::from_iter([(key.to_owned(), item(schema, "/additionalProperties/type", value))])
            }
        };
        for (key, value) in entries {
            if object.insert(key, value).is_some() {
                return Err("a key is given twice".to_owned());
            }
        }
    }
    Ok(Value::Object(object))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(line: &[&str], expected: Value) {
        let matches = command().try_get_matches_from([&["pgsandbox"], line].concat()).unwrap();
        let (name, matches) = matches.subcommand().unwrap();
        let entry = OPERATIONS.iter().find(|e| e.spec.command() == name).unwrap();
        assert_eq!(Value::Object(input_of(entry, matches, None).unwrap()), expected);
    }

    #[test]
    fn a_repository_is_named_from_where_one_is() {
        let here = std::env::current_dir().unwrap();
        check(&["seed-database", "--repo-path", "."], json!({"repoPath": here}));
        check(&["prepare-for-repo", "--repo-path", "a/b"], json!({"repoPath": here.join("a/b")}));
        check(&["prepare-for-repo", "--repo-path", "/a"], json!({"repoPath": "/a"}));
    }

    #[test]
    fn the_grammar_is_sound() {
        command().debug_assert();
    }

    #[test]
    fn arguments_become_the_same_input_that_tools_take() {
        check(
            &[
                "create-database",
                "--name-hint",
                "a b",
                "--ttl-minutes",
                "-1",
                "--labels",
                "k=v",
                "--labels",
                "task=42",
                "--extensions",
                "citext",
            ],
            json!({"nameHint": "a b", "ttlMinutes": -1, "labels": {"k": "v", "task": "42"}, "extensions": ["citext"]}),
        );
        check(
            &["run-sql", "--sql", "select $1", "--readonly", "--params", "7", "--params", "x"],
            json!({"sql": "select $1", "readonly": true, "params": [7, "x"]}),
        );
        check(&["run-sql", "--sql", "select 1", "--readonly=false"], json!({"sql": "select 1", "readonly": false}));
        check(
            &[
                "explain-policy",
                "--operation",
                "run_sql",
                "--arguments",
                "sql=select 1",
                "--arguments",
                "readonly=true",
            ],
            json!({"operation": "run_sql", "arguments": {"sql": "select 1", "readonly": true}}),
        );
    }

    #[test]
    fn the_words_that_an_operation_takes_are_completed() {
        let mut script = Vec::new();
        clap_complete::generate(clap_complete::Shell::Bash, &mut completed(), "pgsandbox", &mut script);
        let script = String::from_utf8(script).unwrap();
        let after =
            |option: &str| script.split(&format!("--{option})")).nth(1).unwrap().lines().nth(1).unwrap().to_owned();
        assert!(after("access").contains("owner readonly"), "{}", after("access"));
        assert!(after("operation").contains("run_sql"), "{}", after("operation"));
        assert!(!after("name-hint").contains("compgen -f"), "{}", after("name-hint"));
    }

    #[test]
    fn an_option_that_takes_objects_says_of_what_they_are_made() {
        let mut command = command();
        let help = command.find_subcommand_mut("clone-database").unwrap().render_long_help().to_string();
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        for part in
            ["--mask <JSON>", "\"table\": TEXT", "\"with\": constant|null|hash|fake", "\"value\": TEXT (if wanted)"]
        {
            assert!(help.contains(part), "{part}: {help}");
        }
    }

    #[test]
    fn sql_may_begin_with_a_comment_and_a_parameter_with_a_minus() {
        check(
            &["run-sql", "--sql", "-- first\nselect $1", "--params", "-7", "--readonly"],
            json!({"sql": "-- first\nselect $1", "params": [-7], "readonly": true}),
        );
    }
}
