//! Conditions on a request, and how far one fits them.
//!
//! Not everything is known of a request: a `DO` block does what is not visible, a name without its schema may be in any.
//! So a condition fits surely, possibly or not at all, and who asks says which it needs: a refusal and a demand hold where
//! a match is possible, a `pass` and an exception only where it is sure.

use std::collections::BTreeMap;

use pgsandbox_policy::{
    CloneSource, CredentialAccess, Impact, Label, Origin, Pattern, Patterns, Problems, Request, Sandbox, Tls,
    Transport, Window, WindowSettings,
};

use crate::operations::{OPERATIONS, OperationSet, Part};
use crate::statements::{StatementConditions, StatementSettings};

/// The longest key of a label, in bytes, as the host takes them.
const LABEL_BYTES_MAX: usize = 128;
const EMPTY: &str = "an empty list matches nothing; leave it out to match everything";

/// How far a condition fits, least first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fit {
    No,
    Maybe,
    Yes,
}

impl Fit {
    pub(crate) const fn of(holds: bool) -> Self {
        if holds { Self::Yes } else { Self::No }
    }
}

/// What a match has to be to count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    Possible,
    Certain,
}

/// Conditions as settings write them; each that is there must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ConditionSettings {
    operations: Option<Vec<String>>,
    impacts: Option<Vec<String>>,
    owners: Option<Vec<String>>,
    group_owners: Option<Vec<String>>,
    groups: Option<Vec<String>>,
    transports: Option<Vec<String>>,
    profiles: Option<Vec<String>>,
    labels: Option<BTreeMap<String, String>>,
    requested_labels: Option<BTreeMap<String, String>>,
    sandbox: Option<SandboxSettings>,
    statement: Option<StatementSettings>,
    source: Option<SourceSettings>,
    extensions: Option<Vec<String>>,
    commands: Option<Vec<Vec<String>>>,
    credentials: Option<Vec<String>>,
    read_only: Option<bool>,
    ttl_over_minutes: Option<u64>,
    time: Option<WindowSettings>,
}

impl ConditionSettings {
    pub(crate) const fn names_operations(&self) -> bool {
        self.operations.is_some()
    }
}

/// What the sandbox must be.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct SandboxSettings {
    origins: Option<Vec<String>>,
    older_than_minutes: Option<u64>,
    larger_than_bytes: Option<u64>,
}

/// What the source of a clone must be.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct SourceSettings {
    names: Option<Vec<String>>,
    hosts: Option<Vec<String>>,
    databases: Option<Vec<String>>,
    users: Option<Vec<String>>,
    production: Option<bool>,
    schema_only: Option<bool>,
    tls_at_least: Option<String>,
}

/// Conditions, read.
#[derive(Debug)]
pub(crate) struct Conditions {
    /// Those of the known operations that the names and the impacts fit.
    pub(crate) operations: OperationSet,
    /// The names, for operations that are not known here.
    names: Option<Patterns>,
    impacts: Option<u8>,
    owners: Option<Patterns>,
    group_owners: Option<Patterns>,
    groups: Option<Patterns>,
    transports: Option<u8>,
    profiles: Option<Patterns>,
    /// Conditions that few rules have, apart from those that most do.
    rare: Option<Box<Rare>>,
    pub(crate) statement: Option<StatementConditions>,
}

#[derive(Debug, Default)]
struct Rare {
    labels: Vec<(String, Pattern)>,
    requested_labels: Vec<(String, Pattern)>,
    sandbox: Option<SandboxConditions>,
    source: Option<SourceConditions>,
    extensions: Option<Patterns>,
    commands: Option<Vec<Vec<Pattern>>>,
    credentials: Option<Vec<CredentialAccess>>,
    read_only: Option<bool>,
    ttl_over_minutes: Option<u64>,
    time: Option<Window>,
}

#[derive(Debug)]
struct SandboxConditions {
    origins: Option<Vec<Origin>>,
    older_than_seconds: Option<u64>,
    larger_than_bytes: Option<u64>,
}

#[derive(Debug)]
struct SourceConditions {
    names: Option<Patterns>,
    hosts: Option<Patterns>,
    databases: Option<Patterns>,
    users: Option<Patterns>,
    production: Option<bool>,
    schema_only: Option<bool>,
    tls_at_least: Option<Tls>,
}

impl Conditions {
    /// Reads conditions that are asked about `among`; faults are reported under `path`.
    pub(crate) fn read(
        settings: ConditionSettings,
        among: OperationSet,
        need: Need,
        path: &str,
        problems: &mut Problems,
    ) -> Self {
        let operations = operations(&settings, among, path, problems);
        unheld(&settings, operations, path, problems);
        let patterns = |name: &str, list: Option<Vec<String>>, problems: &mut Problems| {
            list.map(|list| read_patterns(&list, &format!("{path}.{name}"), problems))
        };
        let names = settings.operations.map(|list| Patterns::read(&list, "", &mut Problems::default()));
        let impacts = settings.impacts.map(|words| mask(&words, Impact::WORDS));
        let transports = settings.transports.map(|words| {
            read_words(&words, Transport::WORDS, &format!("{path}.transports"), problems);
            mask(&words, Transport::WORDS)
        });
        let owners = patterns("owners", settings.owners, problems);
        let group_owners = patterns("group_owners", settings.group_owners, problems);
        let groups = patterns("groups", settings.groups, problems);
        let profiles = patterns("profiles", settings.profiles, problems);
        let mut labels = |name: &str, map: Option<BTreeMap<String, String>>| {
            map.map_or_else(Vec::new, |map| read_labels(map, &format!("{path}.{name}"), problems))
        };
        let rare = Rare {
            labels: labels("labels", settings.labels),
            requested_labels: labels("requested_labels", settings.requested_labels),
            sandbox: settings
                .sandbox
                .map(|sandbox| SandboxConditions::read(sandbox, &format!("{path}.sandbox"), problems)),
            source: settings.source.map(|source| SourceConditions::read(source, &format!("{path}.source"), problems)),
            extensions: patterns("extensions", settings.extensions, problems),
            commands: settings.commands.map(|list| read_commands(list, &format!("{path}.commands"), problems)),
            credentials: settings
                .credentials
                .map(|words| read_words(&words, CredentialAccess::WORDS, &format!("{path}.credentials"), problems)),
            read_only: settings.read_only,
            ttl_over_minutes: settings.ttl_over_minutes,
            time: settings.time.map(|time| Window::read(&time, &format!("{path}.time"), problems)),
        };
        let statement = settings
            .statement
            .map(|statement| StatementConditions::read(statement, need, &format!("{path}.statement"), problems));
        let rare = rare.is_there().then(|| Box::new(rare));
        Self { operations, names, impacts, owners, group_owners, groups, transports, profiles, rare, statement }
    }

    /// Returns whether these conditions are about nothing but who asks for which operation, over what.
    pub(crate) const fn is_of_caller(&self) -> bool {
        self.group_owners.is_none() && self.profiles.is_none() && self.rare.is_none() && self.statement.is_none()
    }

    /// Says how far who asks, for which operation and over what, fits. `index` is the operation's, where it is known.
    pub(crate) fn fit_of_caller(&self, request: &Request, index: Option<usize>) -> Fit {
        let principal = &request.principal;
        let operation = match index {
            Some(index) => self.operations.contains(index),
            None => {
                self.names.as_ref().is_none_or(|names| names.matches(&request.operation))
                    && self.impacts.is_none_or(|impacts| impacts & 1 << request.impact as u8 != 0)
            }
        };
        Fit::of(
            operation
                && self.transports.is_none_or(|transports| transports & 1 << principal.transport as u8 != 0)
                && fits(&self.owners, &principal.owner)
                && self.groups.as_ref().is_none_or(|groups| principal.groups.iter().any(|group| groups.matches(group))),
        )
    }

    /// Says how far the request fits, but for its statements. `index` is the operation's, where it is known.
    pub(crate) fn fit(&self, request: &Request, index: Option<usize>) -> Fit {
        let mut fit = self.fit_of_caller(request, index);
        if fit == Fit::No {
            return fit;
        }
        if let Some(patterns) = &self.group_owners {
            fit = fit.min(Fit::of(request.group_owner.as_ref().is_some_and(|owner| patterns.matches(owner))));
        }
        if let Some(patterns) = &self.profiles {
            fit = fit.min(match &request.server {
                Some(server) => Fit::of(patterns.matches(&server.profile)),
                // It may be about any profile, unless it is about none.
                None if index.and_then(|index| OPERATIONS.get(index)).is_some_and(|o| !o.holds(Part::PROFILE)) => {
                    Fit::No
                }
                None => Fit::Maybe,
            });
        }
        match &self.rare {
            Some(rare) if fit != Fit::No => fit.min(rare.fit(request)),
            Some(_) | None => fit,
        }
    }
}

impl Rare {
    fn is_there(&self) -> bool {
        !self.labels.is_empty()
            || !self.requested_labels.is_empty()
            || self.sandbox.is_some()
            || self.source.is_some()
            || self.extensions.is_some()
            || self.commands.is_some()
            || self.credentials.is_some()
            || self.read_only.is_some()
            || self.ttl_over_minutes.is_some()
            || self.time.is_some()
    }

    fn fit(&self, request: &Request) -> Fit {
        let requested = &request.requested;
        let certain = request
            .sandbox
            .as_ref()
            .map_or_else(|| self.labels.is_empty(), |sandbox| carry(&sandbox.labels, &self.labels))
            && carry(&requested.labels, &self.requested_labels)
            && self
                .credentials
                .as_ref()
                .is_none_or(|kinds| requested.credentials.is_some_and(|kind| kinds.contains(&kind)))
            && self.read_only.is_none_or(|read_only| requested.read_only == read_only)
            && self.ttl_over_minutes.is_none_or(|most| requested.ttl_minutes.is_some_and(|ttl| ttl > most))
            && self.time.is_none_or(|window| window.contains(request.now_ms));
        let mut fit = Fit::of(certain);
        if let Some(conditions) = &self.sandbox {
            fit = fit.min(request.sandbox.as_ref().map_or(Fit::No, |sandbox| conditions.fit(sandbox)));
        }
        if let Some(conditions) = &self.source {
            fit = fit.min(request.clone_source.as_ref().map_or(Fit::No, |source| conditions.fit(source)));
        }
        if let Some(patterns) = &self.extensions {
            let names = &requested.extensions;
            let all = !names.is_empty() && names.iter().all(|name| patterns.matches(name));
            let any = || names.iter().any(|name| patterns.matches(name));
            fit = fit.min(if all {
                Fit::Yes
            } else if any() {
                Fit::Maybe
            } else {
                Fit::No
            });
        }
        if let Some(commands) = &self.commands {
            let best = commands.iter().map(|argv| fit_of_command(argv, &requested.command)).max();
            fit = fit.min(best.unwrap_or(Fit::No));
        }
        fit
    }
}

impl SandboxConditions {
    fn read(settings: SandboxSettings, path: &str, problems: &mut Problems) -> Self {
        if settings == SandboxSettings::default() {
            problems.add(
                path,
                "an empty condition says nothing; name `origins`, `older_than_minutes` or `larger_than_bytes`",
            );
        }
        let origins =
            settings.origins.map(|words| read_words(&words, Origin::WORDS, &format!("{path}.origins"), problems));
        Self {
            origins,
            older_than_seconds: settings.older_than_minutes.map(|minutes| minutes.saturating_mul(60)),
            larger_than_bytes: settings.larger_than_bytes,
        }
    }

    fn fit(&self, sandbox: &Sandbox) -> Fit {
        let certain = self.origins.as_ref().is_none_or(|origins| origins.contains(&sandbox.origin))
            && self.older_than_seconds.is_none_or(|least| sandbox.age_seconds > least);
        let size = match (self.larger_than_bytes, sandbox.bytes) {
            (None, _) => Fit::Yes,
            (Some(least), Some(bytes)) => Fit::of(bytes > least),
            // It was never measured.
            (Some(_), None) => Fit::Maybe,
        };
        Fit::of(certain).min(size)
    }
}

impl SourceConditions {
    fn read(settings: SourceSettings, path: &str, problems: &mut Problems) -> Self {
        if settings == SourceSettings::default() {
            problems.add(path, "an empty condition says nothing; name what the source must be");
        }
        let mut patterns = |name: &str, list: Option<Vec<String>>| {
            list.map(|list| read_patterns(&list, &format!("{path}.{name}"), problems))
        };
        let lower = |list: Vec<String>| list.iter().map(|host| host.to_ascii_lowercase()).collect();
        Self {
            names: patterns("names", settings.names),
            hosts: patterns("hosts", settings.hosts.map(lower)),
            databases: patterns("databases", settings.databases),
            users: patterns("users", settings.users),
            production: settings.production,
            schema_only: settings.schema_only,
            tls_at_least: settings
                .tls_at_least
                .and_then(|word| problems.word(&format!("{path}.tls_at_least"), &word, Tls::WORDS)),
        }
    }

    fn fit(&self, source: &CloneSource) -> Fit {
        // A host name ends in a dot or does not, and its case says nothing.
        let host = source.host.to_ascii_lowercase();
        let host = host.strip_suffix('.').unwrap_or(&host);
        let name = |patterns: &Patterns| source.name.as_ref().is_some_and(|name| patterns.matches(name));
        Fit::of(
            self.names.as_ref().is_none_or(name)
                && fits(&self.hosts, host)
                && fits(&self.databases, &source.database)
                && fits(&self.users, &source.user)
                && self.production.is_none_or(|production| source.production == production)
                && self.schema_only.is_none_or(|schema_only| source.schema_only == schema_only)
                && self.tls_at_least.is_none_or(|least| source.tls >= least),
        )
    }
}

/// Returns the operations that names and impacts fit, and reports those that can fit none.
fn operations(settings: &ConditionSettings, among: OperationSet, path: &str, problems: &mut Problems) -> OperationSet {
    let before = among;
    let mut set = among;
    if let Some(list) = &settings.operations {
        let at = format!("{path}.operations");
        let patterns = read_patterns(list, &at, problems);
        for (index, text) in list.iter().enumerate() {
            let Ok(pattern) = Pattern::new(text) else { continue };
            if OperationSet::ALL.filter(|operation| pattern.matches(operation.name)).is_empty() {
                problems.add(format!("{at}[{index}]"), format!("`{text}` is no operation and fits none"));
            }
        }
        set = set.filter(|operation| patterns.matches(operation.name));
    }
    if let Some(words) = &settings.impacts {
        let impacts = read_words(words, Impact::WORDS, &format!("{path}.impacts"), problems);
        set = set.filter(|operation| impacts.contains(&operation.impact));
    }
    if set.is_empty() && !before.is_empty() {
        // What names an operation that is none was told already.
        let named =
            settings.operations.iter().flatten().all(|text| {
                Pattern::new(text).is_ok_and(|p| !OperationSet::ALL.filter(|o| p.matches(o.name)).is_empty())
            });
        let lists_hold = [&settings.operations, &settings.impacts].into_iter().flatten().all(|list| !list.is_empty());
        let words = settings.impacts.iter().flatten().all(|word| Impact::from_word(word).is_some());
        if named && lists_hold && words {
            problems.add(path, "no operation fits all that is said of it here, so this never matches");
        }
    }
    set
}

/// Reports conditions on what no request of these operations holds.
fn unheld(settings: &ConditionSettings, operations: OperationSet, path: &str, problems: &mut Problems) {
    if operations.is_empty() {
        return;
    }
    let parts = [
        ("group_owners", settings.group_owners.is_some(), Part::GROUP_OWNER),
        ("profiles", settings.profiles.is_some(), Part::PROFILE),
        ("labels", settings.labels.is_some(), Part::SANDBOX),
        ("requested_labels", settings.requested_labels.is_some(), Part::LABELS),
        ("sandbox", settings.sandbox.is_some(), Part::SANDBOX),
        ("statement", settings.statement.is_some(), Part::SQL),
        ("source", settings.source.is_some(), Part::SOURCE),
        ("extensions", settings.extensions.is_some(), Part::EXTENSIONS),
        ("commands", settings.commands.is_some(), Part::COMMAND),
        ("credentials", settings.credentials.is_some(), Part::CREDENTIALS),
        ("read_only", settings.read_only == Some(true), Part::READ_ONLY),
        ("ttl_over_minutes", settings.ttl_over_minutes.is_some(), Part::TTL),
    ];
    let mut left = operations;
    for (name, is_there, part) in parts {
        if !is_there {
            continue;
        }
        left = left.filter(|operation| operation.holds(part));
        if left.is_empty() {
            let holding: Vec<_> =
                OperationSet::ALL.filter(|o| o.holds(part)).iter().map(|(_, o)| format!("`{}`", o.name)).collect();
            let message = format!(
                "no operation that fits the other conditions has this, so it never matches; those that have it are {}",
                holding.join(", ")
            );
            problems.add(format!("{path}.{name}"), message);
            return;
        }
    }
}

fn read_patterns(list: &[String], path: &str, problems: &mut Problems) -> Patterns {
    if list.is_empty() {
        problems.add(path, EMPTY);
    }
    Patterns::read(list, path, problems)
}

fn read_words<T: Copy>(list: &[String], words: &[(T, &str)], path: &str, problems: &mut Problems) -> Vec<T> {
    if list.is_empty() {
        problems.add(path, EMPTY);
    }
    problems.words(path, list, words)
}

fn read_labels(map: BTreeMap<String, String>, path: &str, problems: &mut Problems) -> Vec<(String, Pattern)> {
    if map.is_empty() {
        problems.add(path, "an empty table says nothing; leave it out");
    }
    let mut labels = Vec::with_capacity(map.len());
    for (key, value) in map {
        if key.is_empty() || key.len() > LABEL_BYTES_MAX {
            problems.add(format!("{path}.{key}"), format!("a label's key has 1 to {LABEL_BYTES_MAX} bytes"));
        }
        match Pattern::new(&value) {
            Ok(pattern) => labels.push((key, pattern)),
            Err(message) => problems.add(format!("{path}.{key}"), message),
        }
    }
    labels
}

fn read_commands(list: Vec<Vec<String>>, path: &str, problems: &mut Problems) -> Vec<Vec<Pattern>> {
    if list.is_empty() {
        problems.add(path, EMPTY);
    }
    let mut commands = Vec::with_capacity(list.len());
    for (index, words) in list.iter().enumerate() {
        if words.is_empty() {
            problems.add(format!("{path}[{index}]"), "an empty list is no command; begin with the program");
        }
        let mut argv = Vec::with_capacity(words.len());
        for (place, word) in words.iter().enumerate() {
            match Pattern::new(word) {
                Ok(pattern) => argv.push(pattern),
                Err(message) => problems.add(format!("{path}[{index}][{place}]"), message),
            }
        }
        commands.push(argv);
    }
    commands
}

/// Says how far a command begins with these words: a program is known by its name too, which is not sure to be it.
fn fit_of_command(argv: &[Pattern], command: &[String]) -> Fit {
    let (Some((program, words)), Some((given, arguments))) = (argv.split_first(), command.split_first()) else {
        return Fit::No;
    };
    let begins = words.len() <= arguments.len() && words.iter().zip(arguments).all(|(word, given)| word.matches(given));
    let name = given.rsplit('/').next().unwrap_or(given);
    match begins {
        true if program.matches(given) => Fit::Yes,
        true if program.matches(name) => Fit::Maybe,
        true | false => Fit::No,
    }
}

fn fits(patterns: &Option<Patterns>, text: &str) -> bool {
    patterns.as_ref().is_none_or(|patterns| patterns.matches(text))
}

fn carry(labels: &[Label], wanted: &[(String, Pattern)]) -> bool {
    wanted.iter().all(|(key, pattern)| labels.iter().any(|label| label.key == *key && pattern.matches(&label.value)))
}

/// Returns a bit for each member that is named, at its place among the words.
fn mask<T: Copy + PartialEq>(texts: &[String], words: &[(T, &str)]) -> u8 {
    let named = words.iter().enumerate().filter(|(_, (_, word))| texts.iter().any(|text| text == word));
    named.fold(0, |mask, (place, _)| mask | 1 << place)
}
