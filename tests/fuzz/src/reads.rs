//! Counts how many honest reads of Postgres' own regression queries are refused read-only, and why.
//!
//! What is counted is defined in the head of `tests/proofs/reads`. Each statement is read as the program reads it and put to
//! the bundled policies with their default settings as a read-only call of `run_sql`.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::process::ExitCode;

use pgsandbox::config::policies::defaults;
use pgsandbox::model::{
    Context, Identity, Impact, Origin, Phase, Principal, RequestId, Requested, SandboxFacts, SandboxId, ServerFacts,
    StatementClass, Timestamp, Traits, Transport,
};
use pgsandbox::policy::wasm::{Host, HostSettings};
use pgsandbox::policy::{Bundled, Set};
use pgsandbox::sql::scanner::{Scanner, TokenKind};
use pgsandbox::sql::{Statement, read};

use crate::mutate::as_text;
use crate::oracle::{Answer, Node, Oracle};
use crate::tree;

static BUNDLED: &[Bundled] = include!("../../../policies/bundled.rs");
const FUNCTIONS: &str = include_str!("../../../src/sql/functions-pg15.tsv");
/// The most of the reads that may be refused, in percent.
const REFUSED_MAX: f64 = 3.0;

#[derive(Default)]
struct Count {
    reads: u64,
    refused: u64,
    reasons: BTreeMap<String, u64>,
}

/// Plays the queries in the SQL files of a directory.
pub fn play(dir: &Path) -> ExitCode {
    let mut oracle = Oracle::start();
    let host = Host::new(&HostSettings::default()).expect("the host can be built");
    let set = Set::load(&host, &defaults(BUNDLED).expect("the bundled policies are sound"), 1).expect("they load");
    let category = |line: &'static str| {
        let mut fields = line.split('\t');
        Some((fields.next()?, fields.nth(1)?))
    };
    let categories: HashMap<_, _> = FUNCTIONS.lines().filter_map(category).collect();
    let mut context = context();
    let mut decided = HashMap::new();
    let (mut honest, mut with_effects) = (Count::default(), Count::default());
    let (mut all, mut selects, mut user) = (0_u64, 0_u64, 0_u64);
    let mut refused_texts = String::new();
    let mut files: Vec<_> =
        std::fs::read_dir(dir).expect("the directory can be listed").map(|e| e.expect("it is listed").path()).collect();
    files.retain(|path| path.extension().is_some_and(|e| e == "sql"));
    files.sort();
    for file in &files {
        let text = as_text(&std::fs::read(file).expect("the file can be read"));
        for sql in statements(&text) {
            all += 1;
            let Some(Some(Answer { parsed: Ok(parsed), .. })) = oracle.ask(&[&sql]).pop() else { continue };
            let [statement] = parsed.get("stmts").map(Node::items).unwrap_or_default() else { continue };
            let Some(statement) = statement.get("stmt") else { continue };
            let facts = tree::facts(statement);
            if facts.root != "SelectStmt" || facts.into || facts.locks || facts.writes {
                continue;
            }
            selects += 1;
            let own_schema = |schema: &Option<String>| matches!(schema.as_deref(), None | Some("pg_catalog"));
            let of = |name: &str| categories.get(name).copied();
            if facts.foreign_operator
                || facts.calls.iter().any(|(schema, name)| !own_schema(schema) || of(name).is_none())
            {
                user += 1;
                continue;
            }
            let effect = facts.calls.iter().find(|(_, name)| !matches!(of(name), Some("pure" | "safe_volatile")));
            let count = if effect.is_some() { &mut with_effects } else { &mut honest };
            count.reads += 1;
            let reason = match (refusal(&sql, &set, &mut context, &mut decided), effect) {
                (None, _) => continue,
                (Some(_), Some((_, name))) => {
                    format!("calls a function that is {}", of(name).unwrap_or_default().replace('_', " "))
                }
                (Some(reason), None) => {
                    let name = file.file_name().unwrap_or_default().to_string_lossy();
                    refused_texts.push_str(&format!("-- {name}: {reason}\n{sql};\n"));
                    reason
                }
            };
            count.refused += 1;
            *count.reasons.entry(reason).or_default() += 1;
        }
    }
    if let Ok(path) = std::env::var("PGSANDBOX_FUZZ_REFUSED") {
        std::fs::write(path, refused_texts).expect("the list can be written");
    }
    println!("{} files, {all} statements, {selects} of them SELECTs that make, change and lock nothing", files.len());
    println!(
        "{user} of these call a function that is not one of Postgres' own, or name an operator with another schema"
    );
    let share = honest.refused as f64 * 100.0 / honest.reads.max(1) as f64;
    let both =
        (honest.refused + with_effects.refused) as f64 * 100.0 / (honest.reads + with_effects.reads).max(1) as f64;
    println!("{:>7}  reads, {} refused: {share:.2} %", honest.reads, honest.refused);
    table(&honest.reasons);
    println!(
        "{:>7}  SELECTs that call a function of Postgres' own with effects, {} refused",
        with_effects.reads, with_effects.refused
    );
    table(&with_effects.reasons);
    println!("{both:.2} % refused of both together");
    let held = honest.reads > 1000 && share <= REFUSED_MAX && with_effects.refused == with_effects.reads;
    if held { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn table(reasons: &BTreeMap<String, u64>) {
    let mut rows: Vec<_> = reasons.iter().collect();
    rows.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    for (reason, count) in rows {
        println!("{count:>15}  {reason}");
    }
}

/// Returns why a statement does not run read-only, if it does not.
fn refusal(
    sql: &str,
    set: &Set,
    context: &mut Context,
    decided: &mut HashMap<String, Option<String>>,
) -> Option<String> {
    let script = match read(sql) {
        Ok(script) => script,
        Err(error) => {
            return Some(format!(
                "cannot be read: {}",
                format!("{error:?}").split([' ', '{']).next().unwrap_or_default()
            ));
        }
    };
    let [statement] = script.statements.as_slice() else {
        return Some(format!("{} statements", script.statements.len()));
    };
    if !statement.facts.read_only_safe {
        return Some(reason(statement));
    }
    // The default settings have no rule about relations: what is decided of a statement goes by the rest of its facts.
    let facts = &statement.facts;
    let key = format!("{:?} {} {:?} {:?}", facts.class, facts.tag, facts.traits, facts.functions);
    let decide = || {
        context.statements = vec![facts.clone()];
        set.decide(context, &[]).refusal.map(|refusal| format!("a policy refuses: {refusal}"))
    };
    decided.entry(key).or_insert_with(decide).clone()
}

fn reason(statement: &Statement) -> String {
    let facts = &statement.facts;
    if facts.class != StatementClass::Read {
        return format!("classed as {}", facts.class.as_str());
    }
    if facts.traits.contains(Traits::RELATIONS_UNKNOWN) {
        return "not understood in full".to_owned();
    }
    "a name looks like another function's".to_owned()
}

fn context() -> Context {
    let now = Timestamp::from_unix_ms(1_800_000_000_000);
    Context {
        request_id: RequestId::fresh(),
        phase: Phase::Before,
        operation: "run_sql",
        impact: Impact::Reads,
        principal: Principal {
            subject: "me".into(),
            owner: "me".into(),
            groups: Vec::new(),
            transport: Transport::Stdio,
            client: "reads".into(),
            identity: Identity::Certain,
        },
        group_owner: None,
        now,
        server: Some(ServerFacts {
            profile: "local".into(),
            engine: "postgres".into(),
            major: Some(15),
            managed: true,
        }),
        sandbox: Some(SandboxFacts {
            id: SandboxId::fresh(),
            name: "pgsandbox_x".into(),
            owner: "me".into(),
            group_owner: None,
            labels: Vec::new(),
            origin: Origin::Empty,
            created_at: now,
            expires_at: now,
            bytes: Some(8 << 20),
        }),
        principal_usage: None,
        group_usage: None,
        statements: Vec::new(),
        statement_texts: Vec::new(),
        clone_source: None,
        requested: Requested { read_only: true, ..Requested::default() },
        outcome: None,
    }
}

/// Splits a file as psql does: at `;` outside parentheses and at the end of a line with a backslash command, which is left
/// out, as is COPY data. Statements with psql's variables stay as they are; no parser accepts them.
pub fn statements(text: &str) -> Vec<String> {
    let mut all = Vec::new();
    let mut rest = text;
    'again: loop {
        let Ok(mut scanner) = Scanner::new(rest) else { return all };
        let (mut start, mut depth, mut atomic, mut cases) = (0, 0_usize, false, 0_usize);
        let mut before = "";
        loop {
            let at = scanner.position();
            let token = match scanner.next_token() {
                Ok(Some(token)) => token,
                Ok(None) => {
                    take(&mut all, &rest[start..]);
                    return all;
                }
                Err(_) => {
                    // What cannot be cut is left to its line's end.
                    rest = after_line(&rest[at..]);
                    continue 'again;
                }
            };
            let word = &rest[token.range()];
            match token.kind {
                TokenKind::OpenParen => depth += 1,
                TokenKind::CloseParen => depth = depth.saturating_sub(1),
                TokenKind::Backslash => {
                    take(&mut all, &rest[start..token.start]);
                    rest = after_line(&rest[token.start..]);
                    continue 'again;
                }
                TokenKind::Word if word.eq_ignore_ascii_case("atomic") && before.eq_ignore_ascii_case("begin") => {
                    atomic = true
                }
                TokenKind::Word if atomic && word.eq_ignore_ascii_case("case") => cases += 1,
                TokenKind::Word if atomic && word.eq_ignore_ascii_case("end") => match cases {
                    0 => atomic = false,
                    _ => cases -= 1,
                },
                TokenKind::Semicolon if depth == 0 && !atomic => {
                    let statement = &rest[start..token.start];
                    take(&mut all, statement);
                    start = token.end;
                    let lower = statement.trim().to_ascii_lowercase();
                    if lower.starts_with("copy") && lower.contains("from stdin") {
                        rest = rest[start..].split_once("\n\\.").map_or("", |(_, after)| after_line(after));
                        continue 'again;
                    }
                }
                _ => {}
            }
            if !matches!(token.kind, TokenKind::Space | TokenKind::Comment) {
                before = word;
            }
        }
    }
}

fn take(all: &mut Vec<String>, statement: &str) {
    let statement = statement.trim();
    if !statement.is_empty() {
        all.push(statement.to_owned());
    }
}

fn after_line(text: &str) -> &str {
    text.find('\n').map_or("", |at| &text[at + 1..])
}
