//! Sets MCP clients up to start this program, and takes that back.
//!
//! Every file is read and every change worked out before the first is written: if one of them cannot be, none is. What
//! is not ours in a file is never touched, and a database or the state directory never at all.

mod change;
mod clients;
mod difference;
mod entry;
mod file;
mod json;
mod record;
mod toml;

#[cfg(test)]
mod tests;

use std::iter;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::PossibleValuesParser;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};
use serde_json::{Value, json as object};

use self::change::{At, Change, Changed, Fault, Made};
use self::clients::{CLIENTS, Client, Scope, Surroundings, Syntax};
pub(super) use self::entry::Entry;
use self::file::Source;
use self::record::Record;
use super::render::{self, Format, line, say};
use crate::config::{Environment, ProfileConfig, Source as ProfileSource, load, state_dir, variables_named};
use crate::model::{Code, Failure};

/// Returns the grammar of `setup`.
pub(super) fn setup_command() -> Command {
    common(
        Command::new("setup"),
        "Everything the user does, or the project in this directory; default: user, where the client has it",
    )
    .about("Sets MCP clients up to start this program; names none: shows how each stands")
    .after_help("Everything else in a client's configuration stays as it is, comments too.")
}

/// Returns the grammar of `uninstall`.
pub(super) fn uninstall_command() -> Command {
    common(Command::new("uninstall"), "Everything the user does, or the project in this directory; default: both")
        .about("Takes back what `setup` added to MCP clients; names none: to all of them. Keeps the state directory and every database")
        .arg(
            Arg::new("purge")
                .long("purge")
                .action(ArgAction::SetTrue)
                .help("Says how to remove sandboxes and state directory; removes nothing"),
        )
}

fn common(command: Command, scope: &'static str) -> Command {
    command
        .arg(
            Arg::new("clients")
                .value_name("CLIENT")
                .num_args(0..)
                .value_parser(PossibleValuesParser::new(CLIENTS.iter().map(|client| client.name)))
                .help("The clients"),
        )
        .arg(Arg::new("scope").long("scope").value_parser(Scope::ALL.map(Scope::as_str)).help(scope))
        .arg(
            Arg::new("name")
                .long("name")
                .value_name("NAME")
                .default_value(env!("CARGO_PKG_NAME"))
                .help("The server's name in the client"),
        )
        .arg(
            Arg::new("dry-run")
                .long("dry-run")
                .action(ArgAction::SetTrue)
                .help("Shows the difference and writes nothing"),
        )
}

/// What is asked for.
#[derive(Clone)]
struct Asked {
    clients: Vec<&'static Client>,
    scope: Option<Scope>,
    name: String,
    is_dry: bool,
    around: Surroundings,
}

/// One file's change, worked out and not written.
struct Planned {
    client: &'static Client,
    scope: Scope,
    source: Source,
    changed: Changed,
    old: Option<String>,
    difference: String,
}

/// Why files are not as they were asked to be.
enum Undone {
    /// Nothing was written.
    Refused(Vec<Failure>),
    /// A file could not be written.
    BrokenOff(Failure),
}

/// Runs `setup`.
pub(super) fn setup(matches: &ArgMatches, format: Format) -> ExitCode {
    let asked = match Asked::read(matches) {
        Ok(asked) => asked,
        Err(failure) => return nothing_begun(&[failure], format),
    };
    if asked.clients.is_empty() {
        return status(&asked, format);
    }
    let entry = Entry::of_this_process();
    let planned = plans(&asked, |_, _| Change::Put(&entry), &entry);
    let planned = match sound(planned) {
        Ok(planned) => planned,
        Err(failures) => return nothing_begun(&failures, format),
    };
    let written = if asked.is_dry { Ok(Vec::new()) } else { write(&asked, &planned, true) };
    match written {
        Ok(more) => report(&asked, &planned, true, [notes(), more].concat(), format),
        Err(failure) => broken_off(&failure, format),
    }
}

/// Runs `uninstall`.
pub(super) fn uninstall(matches: &ArgMatches, format: Format) -> ExitCode {
    let asked = match Asked::read(matches) {
        Ok(asked) => asked,
        Err(failure) => return nothing_begun(&[failure], format),
    };
    if matches.get_flag("purge") {
        return nothing_begun(&[purge()], format);
    }
    let record = home().map(|home| Record::read(&home)).unwrap_or_default();
    let all = asked.clients.is_empty();
    let asked = if all { Asked { clients: CLIENTS.iter().collect(), ..asked } } else { asked };
    let is_named = matches.value_source("name") == Some(ValueSource::CommandLine);
    // Under whatever name they were set up.
    let others = record.servers().into_iter().filter(|name| !is_named && *name != asked.name);
    let (mut notes, mut removed) = (Vec::new(), Vec::new());
    for name in iter::once(asked.name.clone()).chain(others) {
        let is_first = name == asked.name;
        // What was made for one passes on to those that are left.
        let record = home().map(|home| Record::read(&home)).unwrap_or_default();
        match take_back(&Asked { name, ..asked.clone() }, &record, all) {
            Ok((planned, more)) => {
                // What was set up under one name is not missed under the others.
                removed.extend(planned.into_iter().filter(|one| is_first || !one.difference.is_empty()));
                notes.extend(more);
            }
            Err(Undone::Refused(failures)) if removed.is_empty() => return nothing_begun(&failures, format),
            Err(Undone::Refused(failures)) => {
                render::failures(&failures, format);
                return ExitCode::FAILURE;
            }
            Err(Undone::BrokenOff(failure)) => return broken_off(&failure, format),
        }
    }
    if let Some(home) = home().filter(|home| home.exists()) {
        notes.push(format!("left: the state directory `{}`, with whatever is in it", home.display()));
    }
    notes.extend(other_servers());
    report(&asked, &removed, false, notes, format)
}

/// Takes back what was set up under one name. Returns what became of each file, and what there is to say.
fn take_back(asked: &Asked, record: &Record, all: bool) -> Result<(Vec<Planned>, Vec<String>), Undone> {
    let change = |file: &std::path::Path, _: &Client| Change::Remove(record.made(file, &asked.name));
    let planned = plans(asked, change, &Entry::of_this_process());
    let (planned, mut notes) = if all {
        // What nobody named and cannot be changed is told, and holds up nothing.
        let (sound, faulty): (Vec<_>, Vec<_>) = planned.into_iter().partition(Result::is_ok);
        let notes = faulty.into_iter().filter_map(Result::err).map(|failure| failure.message).collect();
        (sound.into_iter().filter_map(Result::ok).collect(), notes)
    } else {
        (sound(planned).map_err(Undone::Refused)?, Vec::new())
    };
    if !asked.is_dry {
        notes.extend(write(asked, &planned, false).map_err(Undone::BrokenOff)?);
    }
    Ok((planned, notes))
}

/// Says that sandboxes may be on servers that this program does not run, unless the configuration has none.
fn other_servers() -> Option<String> {
    let Ok(config) = load(&Environment::of_process()) else {
        return Some("left: sandboxes on other servers, if there are any: the configuration cannot be read".to_owned());
    };
    let is_external = |profile: &&ProfileConfig| matches!(profile.source, ProfileSource::External { .. });
    let names: Vec<String> =
        config.profiles.iter().filter(is_external).map(|profile| format!("`{}`", profile.name)).collect();
    (!names.is_empty()).then(|| {
        let (of, names) =
            (if names.len() == 1 { "the server of profile" } else { "the servers of profiles" }, names.join(", "));
        format!(
            "left: sandboxes that may be on {of} {names}; `pgsandbox list-databases --profile NAME` names yours there"
        )
    })
}

fn purge() -> Failure {
    let home = home().map_or_else(|| "the state directory".to_owned(), |home| format!("`{}`", home.display()));
    Failure::new(Code::InvalidArguments, "`uninstall` deletes no database and no state directory").hint(format!(
        "delete each sandbox that `pgsandbox list-databases` shows with `pgsandbox delete-database --wait`, stop the managed \
         clusters with `pgsandbox local stop`, then remove {home} by hand"
    ))
}

fn home() -> Option<PathBuf> {
    state_dir(&Environment::of_process()).ok().map(|home| home.path().to_path_buf())
}

impl Asked {
    fn read(matches: &ArgMatches) -> Result<Self, Failure> {
        let names: Vec<&String> = matches.get_many("clients").into_iter().flatten().collect();
        // Each once, in the order of the list.
        let clients = CLIENTS.iter().filter(|client| names.iter().any(|name| *name == client.name)).collect();
        let scope = matches.get_one::<String>("scope").map(String::as_str);
        let name = matches.get_one::<String>("name").cloned().unwrap_or_default();
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
        if name.is_empty() || !name.chars().all(is_plain) {
            return Err(Failure::new(Code::InvalidArguments, "`--name` takes letters, digits, `_` and `-`"));
        }
        let project = std::env::current_dir();
        let project = project.map_err(|error| {
            Failure::new(Code::InvalidArguments, format!("the current directory cannot be used: {error}"))
        })?;
        Ok(Self {
            clients,
            scope: Scope::ALL.into_iter().find(|of| scope == Some(of.as_str())),
            name,
            is_dry: matches.get_flag("dry-run"),
            around: Surroundings {
                home: std::env::var_os("HOME").map(PathBuf::from),
                project,
                macos: cfg!(target_os = "macos"),
                variable: |name| std::env::var_os(name),
            },
        })
    }
}

/// Works every change out.
fn plans<'a>(
    asked: &Asked,
    change: impl Fn(&std::path::Path, &Client) -> Change<'a>,
    entry: &Entry,
) -> Vec<Result<Planned, Failure>> {
    let mut planned = Vec::new();
    for client in &asked.clients {
        let removes_all = matches!(change(std::path::Path::new(""), client), Change::Remove(_));
        let scopes: Vec<Scope> = match asked.scope {
            Some(scope) => vec![scope],
            // What is taken back is taken back wherever it is.
            None if removes_all => {
                Scope::ALL.into_iter().filter(|scope| client.file(*scope, &asked.around).is_ok()).collect()
            }
            None => vec![client.scope()],
        };
        let first = planned.len();
        for scope in scopes {
            let one = plan(asked, client, scope, &change, entry);
            // In the home directory both scopes are one file.
            let is_known = |known: &Result<Planned, Failure>| match (known, &one) {
                (Ok(known), Ok(one)) => file::is_same(&known.source.path, &one.source.path),
                (Err(known), Err(one)) => known.message == one.message,
                _ => false,
            };
            if !planned.iter().skip(first).any(is_known) {
                planned.push(one);
            }
        }
    }
    planned
}

fn plan<'a>(
    asked: &Asked,
    client: &'static Client,
    scope: Scope,
    change: &impl Fn(&std::path::Path, &Client) -> Change<'a>,
    entry: &Entry,
) -> Result<Planned, Failure> {
    let file = client.file(scope, &asked.around).map_err(|instead| {
        Failure::new(Code::InvalidArguments, format!("`{}` has no scope `{}`", client.name, scope.as_str()))
            .hint(instead)
    })?;
    let source = file::read(&file).map_err(|error| unusable(&file, &error.to_string()))?;
    if scope == Scope::Project && !file::is_below(&source.path, &asked.around.project) {
        let text = format!("is a link out of the project, to `{}`", source.path.display());
        return Err(unusable(&file, &text));
    }
    let old = match &source.bytes {
        None => None,
        Some(bytes) => Some(String::from_utf8(bytes.clone()).map_err(|error| {
            let valid = bytes.get(..error.utf8_error().valid_up_to()).unwrap_or_default();
            let (row, column) = change::place(&String::from_utf8_lossy(valid), valid.len());
            unusable(&file, &format!("line {row}, column {column}: is not UTF-8"))
        })?),
    };
    let wanted = change(&source.path, client);
    let at = At { servers: client.servers, name: &asked.name, typed: client.typed };
    let text = old.as_deref().unwrap_or_default();
    let changed = match (&old, wanted) {
        (None, Change::Remove(made)) => Ok(Changed { text: None, made, was_there: false, others: Vec::new() }),
        (_, wanted) => match client.syntax {
            Syntax::Json => json::change(text, false, at, wanted),
            Syntax::JsonWithComments => json::change(text, true, at, wanted),
            Syntax::Toml => toml::change(text, at, wanted),
        },
    };
    let changed = changed.map_err(|Fault { at, what }| {
        let place = at.map(|(row, column)| format!("line {row}, column {column}: ")).unwrap_or_default();
        unusable(&file, &format!("{place}{what}"))
    })?;
    // A file that was empty before is not one that we made.
    let made = if old.is_some() { changed.made.min(Made::Servers) } else { changed.made };
    let changed = match wanted {
        Change::Put(_) => Changed { made, ..changed },
        Change::Remove(_) => changed,
    };
    let mut written: Vec<&str> = vec![&entry.command, "stdio"];
    written.extend(entry.args.iter().chain(entry.env.iter().map(|(_, value)| value)).map(String::as_str));
    let name = source.path.display().to_string();
    let difference = difference::unified(&name, old.as_deref(), changed.text.as_deref(), &written);
    Ok(Planned { client, scope, source, changed, old, difference })
}

fn unusable(file: &std::path::Path, what: &str) -> Failure {
    Failure::new(Code::InvalidConfiguration, format!("`{}`: {what}; it was not touched", file.display()))
}

fn unwritten(file: &std::path::Path, error: &std::io::Error) -> Failure {
    let failure = Failure::new(Code::InvalidConfiguration, format!("`{}` was not written: {error}", file.display()));
    // The folders that lead there are made where there are none.
    let folder = file.ancestors().skip(1).find(|folder| folder.exists());
    match folder.filter(|_| error.kind() == std::io::ErrorKind::PermissionDenied) {
        Some(folder) => failure.hint(format!("see that you may make files in `{}`", folder.display())),
        None => failure,
    }
}

/// Returns what is planned, if all of it can be done.
fn sound(planned: Vec<Result<Planned, Failure>>) -> Result<Vec<Planned>, Vec<Failure>> {
    let (sound, faulty): (Vec<_>, Vec<_>) = planned.into_iter().partition(Result::is_ok);
    if faulty.is_empty() {
        return Ok(sound.into_iter().filter_map(Result::ok).collect());
    }
    Err(faulty.into_iter().filter_map(Result::err).collect())
}

/// Writes what is planned, each file first and then the record of it. Returns what there is to say of that.
fn write(asked: &Asked, planned: &[Planned], puts: bool) -> Result<Vec<String>, Failure> {
    let home = state_dir(&Environment::of_process()).ok();
    let mut record = home.as_ref().map(|home| Record::read(home.path())).unwrap_or_default();
    let mut is_noted = true;
    let mut written = Ok(());
    let mut left = Vec::new();
    for one in planned.iter().filter(|one| !one.difference.is_empty()) {
        let file = &one.source.path;
        let folders = file::missing_folders(file);
        written = file::replace(&one.source, one.changed.text.as_deref()).map_err(|error| unwritten(file, &error));
        if written.is_err() {
            break;
        }
        if puts && one.changed.was_there {
            continue;
        }
        left.extend(record.note(file, &asked.name, puts.then_some(one.changed.made), folders));
        is_noted = false;
    }
    file::remove_empty(left);
    let noted = match home.filter(|home| !is_noted && (puts || home.path().exists())) {
        Some(home) => home.open().map_err(Failure::from).and_then(|()| {
            record.write(home.path()).map_err(|error| Failure::new(Code::InvalidConfiguration, error.to_string()))
        }),
        None => Ok(()),
    };
    let note = |failure: Failure| {
        format!("what was made could not be recorded, and `uninstall` will remove entries alone: {}", failure.message)
    };
    written.map(|()| noted.err().map(note).into_iter().collect())
}

/// What a person who sets clients up should know.
fn notes() -> Vec<String> {
    let environment = Environment::of_process();
    let mut notes: Vec<String> = environment
        .secrets()
        .into_iter()
        .map(|name| {
            format!(
                "`{name}` holds a secret and was not written: clients have to pass it on; or put it into a configuration \
                 file that only you can read, and set `PGSANDBOX_CONFIG`"
            )
        })
        .collect();
    match load(&environment) {
        Ok(config) => notes.extend(config.file.iter().flat_map(|file| variables_named(file)).map(|name| {
            format!("the configuration reads `{name}` from the environment, which was not written: clients have to pass it on")
        })),
        Err(error) => notes.extend(
            error.faults.iter().map(|fault| format!("the program would not start as it is set up here: {fault}")),
        ),
    }
    notes
}

fn action(one: &Planned, puts: bool) -> &'static str {
    match (one.difference.is_empty(), puts, one.old.is_some()) {
        (true, true, _) => "unchanged",
        (true, false, _) => "not there",
        (false, true, false) => "created",
        (false, true, true) if one.changed.was_there => "updated",
        (false, true, true) => "added",
        (false, false, _) => "removed",
    }
}

fn report(asked: &Asked, planned: &[Planned], puts: bool, notes: Vec<String>, format: Format) -> ExitCode {
    if format == Format::Json {
        let changes: Vec<Value> = planned
            .iter()
            .map(|one| {
                let mut change = object!({
                    "client": one.client.name,
                    "scope": one.scope.as_str(),
                    "file": one.source.path,
                    "action": action(one, puts),
                    if puts { "kept" } else { "removedWithIt" }: one.changed.others,
                });
                if let (true, Some(members)) = (asked.is_dry, change.as_object_mut()) {
                    members.insert("difference".to_owned(), one.difference.as_str().into());
                }
                change
            })
            .collect();
        render::json(&object!({"ok": true, "dryRun": asked.is_dry, "changes": changes, "notes": notes}).to_string());
        return ExitCode::SUCCESS;
    }
    for one in planned {
        if !puts && asked.clients.len() > 1 && one.difference.is_empty() {
            continue;
        }
        let file = one.source.path.display();
        line(&format!("{} ({}): {} in `{file}`", one.client.title, one.scope.as_str(), action(one, puts)));
        if asked.is_dry && !one.difference.is_empty() {
            line(one.difference.trim_end());
        }
        if !one.changed.others.is_empty() {
            let what = if puts { "kept" } else { "gone with it" };
            line(&format!("  {what}: {}", one.changed.others.join(", ")));
        }
        if puts && !asked.is_dry && !one.difference.is_empty() {
            line(&format!("  next: {}", one.client.after));
        }
    }
    if !puts && planned.iter().all(|one| one.difference.is_empty()) {
        line("no client is set up");
    }
    if asked.is_dry {
        line("a dry run: nothing was written");
    }
    notes.iter().for_each(|note| say(&format!("note: {note}")));
    ExitCode::SUCCESS
}

/// Shows how each client stands.
fn status(asked: &Asked, format: Format) -> ExitCode {
    let entry = Entry::of_this_process();
    let record = home().map(|home| Record::read(&home)).unwrap_or_default();
    let mut notes = Vec::new();
    let mut seen: Vec<(&Client, Scope, PathBuf, String)> = Vec::new();
    for client in &CLIENTS {
        for scope in Scope::ALL.into_iter().filter(|scope| asked.scope.is_none_or(|of| of == *scope)) {
            let Ok(file) = client.file(scope, &asked.around) else { continue };
            let is_same = |(of, _, known, _): &(&Client, Scope, PathBuf, String)| {
                of.name == client.name && file::is_same(known, &file)
            };
            if seen.iter().any(is_same) {
                continue;
            }
            let names = file::read(&file).map(|source| source.path).unwrap_or_else(|_| file.clone());
            let others: Vec<String> = record.names(&names).iter().map(|name| format!("`{name}`")).collect();
            let stands = match plan(asked, client, scope, &|_, _| Change::Put(&entry), &entry) {
                Err(failure) => {
                    notes.push(failure.message.clone());
                    failure.message
                }
                Ok(one) if !one.changed.was_there && !others.is_empty() => format!("set up as {}", others.join(", ")),
                Ok(one) if one.difference.is_empty() => "set up".to_owned(),
                Ok(one) if one.changed.was_there => "set up otherwise".to_owned(),
                Ok(one) if one.old.is_some() => "not set up".to_owned(),
                Ok(_) => "no such file".to_owned(),
            };
            seen.push((client, scope, file, stands));
        }
    }
    if format == Format::Json {
        let clients: Vec<Value> = seen
            .iter()
            .map(|(client, scope, file, stands)| {
                object!({"client": client.name, "scope": scope.as_str(), "file": file, "stands": stands})
            })
            .collect();
        render::json(&object!({"ok": true, "clients": clients}).to_string());
        return ExitCode::SUCCESS;
    }
    for (client, scope, file, stands) in seen {
        // Why it cannot be is below, where there is room for it.
        let stands = if notes.contains(&stands) { "cannot be told" } else { &stands };
        line(&format!("{:<15} {:<8} {stands:<16} {}", client.name, scope.as_str(), file.display()));
    }
    notes.iter().for_each(|note| say(&format!("note: {note}")));
    ExitCode::SUCCESS
}

/// Tells why nothing was begun.
fn nothing_begun(failures: &[Failure], format: Format) -> ExitCode {
    render::failures(failures, format);
    ExitCode::from(super::refused::NOT_DONE)
}

/// Tells what came in between.
fn broken_off(failure: &Failure, format: Format) -> ExitCode {
    render::failures(std::slice::from_ref(failure), format);
    ExitCode::FAILURE
}
