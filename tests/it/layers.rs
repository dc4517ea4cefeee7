//! Who may name whom: the table of `docs/architecture.md`, enforced.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Folder → the folders it may name with `crate::…`. Every folder may name itself.
const MAY_NAME: &[(&str, &[&str])] = &[
    ("model", &[]),
    ("sql", &["model"]),
    ("policy", &["model", "telemetry"]),
    ("policy/wasm", &["model", "policy"]),
    ("admission", &["model", "policy"]),
    ("engine", &["model", "telemetry"]),
    ("store", &["model", "engine"]),
    ("secret", &["model"]),
    ("audit", &["model", "store"]),
    ("sandbox", &["model", "engine", "store", "secret", "admission", "telemetry"]),
    ("command", &["model"]),
    ("identity", &["model"]),
    ("operation", &["model", "admission", "sandbox", "engine", "sql", "telemetry", "command"]),
    ("service", &["model", "sql", "operation", "admission", "policy", "sandbox", "audit", "telemetry", "command"]),
    ("config", &["model", "policy", "engine", "audit", "telemetry", "secret", "identity", "command"]),
    ("telemetry", &["model"]),
    ("author", &["model", "sql", "policy", "config", "audit"]),
    ("mcp", &["model", "operation", "service"]),
    (
        "cli",
        &[
            "model",
            "sql",
            "policy",
            "admission",
            "engine",
            "store",
            "secret",
            "audit",
            "sandbox",
            "command",
            "identity",
            "operation",
            "service",
            "config",
            "telemetry",
            "author",
            "app",
        ],
    ),
];

/// Crate → the only folders that may name it.
const NAMED_ONLY_IN: &[(&str, &[&str])] = &[
    ("sqlparser", &["sql"]),
    ("wasmtime", &["policy/wasm"]),
    ("wasmtime_wizer", &["policy/wasm"]),
    ("wasmparser", &["policy/wasm"]),
    ("governor", &["admission"]),
    ("tokio_postgres", &["engine", "store"]),
    ("aes_gcm_siv", &["secret"]),
    ("tracing_opentelemetry", &["telemetry"]),
    ("opentelemetry", &["telemetry"]),
    ("opentelemetry_otlp", &["telemetry"]),
    ("landlock", &["command"]),
    ("saphyr_parser", &["command"]),
    ("rmcp", &["mcp"]),
    ("clap", &["cli"]),
    ("clap_complete", &["cli"]),
    ("jsonc_parser", &["cli"]),
    ("toml_edit", &["cli"]),
];

/// Of `admission`, what folders below the gate may name.
const ADMISSION_BELOW_THE_GATE: &[(&str, &[&str])] = &[
    ("sandbox", &["Permit", "Grant", "SystemAuthority", "SystemReason"]),
    (
        "operation",
        &[
            "Permit",
            "Grant",
            "Admissible",
            "Admitted",
            "Effective",
            "Gate",
            "Receipt",
            "AppliedLimit",
            "limits",
            "self",
        ],
    ),
];

#[test]
fn no_folder_names_what_the_table_forbids() {
    let mut faults = Vec::new();
    for (file, text) in sources() {
        let Some(folder) = folder_of(&file) else { continue };
        let allowed = MAY_NAME.iter().find(|(name, _)| *name == folder).map(|(_, allowed)| *allowed);
        let Some(allowed) = allowed else {
            faults.push(format!("{}: folder `{folder}` is not in the table", file.display()));
            continue;
        };
        for named in crate_paths(&text) {
            let own = folder == named || folder.starts_with(&format!("{named}/"));
            if !own && !allowed.contains(&named.as_str()) {
                faults.push(format!("{}: `{folder}` names `{named}`", file.display()));
            }
        }
    }
    assert!(faults.is_empty(), "tests/it/layers.rs and docs/architecture.md hold the table:\n{}", faults.join("\n"));
}

#[test]
fn heavy_crates_are_named_in_one_place() {
    let mut faults = Vec::new();
    for (file, text) in sources() {
        let folder = folder_of(&file).unwrap_or_default();
        for (krate, folders) in NAMED_ONLY_IN {
            let inside = folders.iter().any(|f| folder == *f || folder.starts_with(&format!("{f}/")));
            if !inside && words(&text).any(|word| word == *krate) && text.contains(&format!("{krate}::")) {
                faults.push(format!("{}: names `{krate}`", file.display()));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn whoever_starts_a_program_says_what_it_may_see() {
    let inherits = |text: &str| {
        let text = text.split("#[cfg(test)]").next().unwrap_or_default();
        let starts = words(text).any(|word| word == "process") && text.contains("Command::new(");
        starts && !text.contains("env_clear()") && !text.contains("env_remove(")
    };
    assert!(inherits("use std::process::Command;\nCommand::new(\"true\")"));
    assert!(!inherits("std::process::Command::new(\"true\").env_clear()"));
    let found: Vec<_> = sources().into_iter().filter(|(_, text)| inherits(text)).map(|(file, _)| file).collect();
    assert_eq!(
        found,
        Vec::<PathBuf>::new(),
        "a child shows our environment, admin URLs in it, to its user and to its log"
    );
}

#[test]
fn below_the_gate_only_the_key_is_known() {
    let mut faults = Vec::new();
    for (file, text) in sources() {
        let folder = folder_of(&file).unwrap_or_default();
        let Some((_, allowed)) = ADMISSION_BELOW_THE_GATE.iter().find(|(name, _)| *name == folder) else { continue };
        for named in names_after(&text, "crate::admission::") {
            if !allowed.contains(&named.as_str()) {
                faults.push(format!("{}: names `admission::{named}`", file.display()));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn only_the_wiring_takes_the_authority_to_act_unasked() {
    let takers: Vec<PathBuf> = sources()
        .into_iter()
        .filter(|(file, text)| text.contains("SystemAuthority::take") && !file.ends_with("permit.rs"))
        .map(|(file, _)| file)
        .collect();
    assert!(takers.iter().all(|file| file.ends_with("src/app.rs")), "{takers:?}");
}

fn sources() -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    collect(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src")), &mut found);
    assert!(found.len() > 50, "the sources are not where they are looked for");
    found
}

fn collect(dir: &Path, found: &mut Vec<(PathBuf, String)>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            found.push((path, without_strings(&without_comments(&text))));
        }
    }
}

fn without_comments(text: &str) -> String {
    text.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

/// Leaves plain string literals out: a log target is no path.
fn without_strings(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut inside = false;
    let mut escaped = false;
    for c in text.chars() {
        match (inside, c) {
            (true, '\\') if !escaped => {
                escaped = true;
                continue;
            }
            (_, '"') if !escaped && !out.ends_with('\'') => inside = !inside,
            (false, c) => out.push(c),
            (true, _) => {}
        }
        escaped = false;
    }
    out
}

/// The folder that a file belongs to; `service.rs` and `app.rs` belong to the folders of their names.
fn folder_of(file: &Path) -> Option<String> {
    let below = file.strip_prefix(concat!(env!("CARGO_MANIFEST_DIR"), "/src")).ok()?;
    let parts: Vec<String> = below.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    match parts.as_slice() {
        [file] if file == "lib.rs" || file == "main.rs" => None,
        [file] if file == "app.rs" => None,
        [file] => Some(file.trim_end_matches(".rs").to_owned()),
        [app, ..] if app == "app" => None,
        [policy, wasm, ..] if policy == "policy" && wasm == "wasm" => Some("policy/wasm".to_owned()),
        [folder, ..] => Some(folder.clone()),
        [] => None,
    }
}

/// The folders named by `crate::…` paths, `use crate::{a, b}` included.
fn crate_paths(text: &str) -> BTreeSet<String> {
    names_after(text, "crate::")
        .into_iter()
        .filter(|name| name.chars().next().is_some_and(char::is_lowercase))
        .collect()
}

/// The first name, or each name in braces, after every occurrence of `prefix`.
fn names_after(text: &str, prefix: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for (at, _) in text.match_indices(prefix) {
        let preceded = text[..at].chars().next_back().is_some_and(|c| c.is_alphanumeric() || c == '_' || c == '$');
        if preceded {
            continue;
        }
        let rest = &text[at + prefix.len()..];
        match rest.strip_prefix('{') {
            None => names.extend(words(rest).next().map(str::to_owned)),
            Some(list) => {
                let mut depth = 0;
                let end = list.char_indices().find(|(_, c)| {
                    depth += match c {
                        '{' => 1,
                        '}' => -1,
                        _ => 0,
                    };
                    depth < 0
                });
                let mut depth = 0;
                for part in list[..end.map_or(list.len(), |(i, _)| i)].split_inclusive(['{', '}', ',']) {
                    if depth == 0 {
                        names.extend(words(part).next().map(str::to_owned));
                    }
                    depth += part.matches('{').count();
                    depth -= part.matches('}').count();
                }
            }
        }
    }
    names
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}
