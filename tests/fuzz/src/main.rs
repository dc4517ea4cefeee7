//! Fuzzes what reads other people's bytes: each target in a process of its own, for a time or a number of executions.
//!
//!     fuzz [--seconds N] [--executions N] [--seed N] [--only TARGET]… [--regress DIR]
//!     fuzz --again TARGET FILE
//!     fuzz reads DIR
//!
//! Prints one line for each target, and each finding with the smallest input that shows it; ends with status 1 if there
//! are any. The same seed gives the same inputs. `tests/proofs/fuzz` builds and calls it; see there for what it needs.

mod driver;
mod mutate;
mod oracle;
mod reads;
mod rng;
mod sql_text;
mod targets;
mod tree;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use driver::{Bounds, Last, Report, checked, run};
use serde_json::{Value, json};
use targets::{ALL, Kind};

/// A target that says nothing for this long hangs.
const SILENCE_MAX: Duration = Duration::from_secs(240);
/// Threads have large stacks, as Postgres' trees are deep; what is tried on the program's own has a thread for it.
const STACK_BYTES: usize = 512 << 20;

struct Arguments {
    seconds: u64,
    executions: u64,
    seed: u64,
    only: Vec<String>,
    /// A directory of SQL files that serve as further seeds.
    regress: Option<PathBuf>,
    child: Option<PathBuf>,
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["reads", dir] => {
            let dir = PathBuf::from(dir);
            return on_large_stack(move || reads::play(&dir));
        }
        ["--again", target, file] => {
            let (target, file) = ((*target).to_owned(), PathBuf::from(file));
            return on_large_stack(move || again(&target, &file));
        }
        _ => {}
    }
    let arguments = match read(&words) {
        Ok(arguments) => arguments,
        Err(what) => {
            eprintln!("fuzz: {what}");
            return ExitCode::from(2);
        }
    };
    match arguments.child.is_some() {
        true => on_large_stack(move || child(&arguments)),
        false => parent(&arguments),
    }
}

fn on_large_stack(work: impl FnOnce() -> ExitCode + Send + 'static) -> ExitCode {
    let thread = std::thread::Builder::new().stack_size(STACK_BYTES).spawn(work).expect("a thread can be started");
    thread.join().unwrap_or(ExitCode::from(2))
}

fn read(words: &[&str]) -> Result<Arguments, String> {
    let mut arguments =
        Arguments { seconds: 60, executions: u64::MAX, seed: 1, only: Vec::new(), regress: None, child: None };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let value = words.next().ok_or_else(|| format!("{word} needs a value, or is not an option"))?;
        let number = || value.parse::<u64>().map_err(|_| format!("{word} needs a number"));
        match *word {
            "--seconds" => arguments.seconds = number()?,
            "--executions" => arguments.executions = number()?,
            "--seed" => arguments.seed = number()?,
            "--only" => arguments.only.push((*value).to_owned()),
            "--regress" => arguments.regress = Some(PathBuf::from(value)),
            "--child" => arguments.child = Some(PathBuf::from(value)),
            _ => return Err(format!("{word} is not an option")),
        }
    }
    if let Some(name) = arguments.only.iter().find(|name| !ALL.iter().any(|kind| kind.name == **name)) {
        let names: Vec<_> = ALL.iter().map(|kind| kind.name).collect();
        return Err(format!("there is no target {name}; there are: {}", names.join(" ")));
    }
    Ok(arguments)
}

/// Plays each target in a process of its own, and prints the table.
fn parent(arguments: &Arguments) -> ExitCode {
    let dir = tempfile::tempdir().expect("a directory can be made");
    println!("{:<11} {:>11} {:>9} {:>8} {:>9}", "target", "executions", "seconds", "outcomes", "findings");
    let mut all = 0;
    for kind in ALL.iter().filter(|kind| arguments.only.is_empty() || arguments.only.iter().any(|n| n == kind.name)) {
        let began = Instant::now();
        let report = play(kind, arguments, dir.path());
        let findings = report["findings"].as_array().map_or(&[][..], Vec::as_slice);
        println!(
            "{:<11} {:>11} {:>9} {:>8} {:>9}   {}",
            kind.name,
            report["executions"].as_u64().unwrap_or(0),
            began.elapsed().as_secs(),
            report["outcomes"].as_u64().unwrap_or(0),
            findings.len(),
            report["note"].as_str().filter(|note| !note.is_empty()).unwrap_or(kind.of)
        );
        for (n, finding) in findings.iter().enumerate() {
            let input: Vec<u8> =
                finding["input"].as_array().into_iter().flatten().filter_map(|b| b.as_u64()).map(|b| b as u8).collect();
            let file = std::env::temp_dir().join(format!("pgsandbox-fuzz-{}-{}-{n}", kind.name, arguments.seed));
            let kept =
                std::fs::write(&file, &input).map_or_else(|error| error.to_string(), |()| file.display().to_string());
            println!("  {}", finding["what"].as_str().unwrap_or_default());
            println!("    input \"{}\"", input.escape_ascii());
            println!("    again: fuzz --again {} {kept}; found with --seed {}", kind.name, arguments.seed);
        }
        all += findings.len();
    }
    if all == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Plays one target; should its process die or hang, the input it was at is the finding.
fn play(kind: &Kind, arguments: &Arguments, dir: &Path) -> Value {
    let last = dir.join(format!("{}.last", kind.name));
    let out = dir.join(format!("{}.report", kind.name));
    let mut command = Command::new(std::env::current_exe().expect("this program has a path"));
    command.arg("--child").arg(dir).arg("--only").arg(kind.name);
    for (name, value) in
        [("--seconds", arguments.seconds), ("--executions", arguments.executions), ("--seed", arguments.seed)]
    {
        command.arg(name).arg(value.to_string());
    }
    if let Some(regress) = &arguments.regress {
        command.arg("--regress").arg(regress);
    }
    let mut child = command.stdin(Stdio::null()).spawn().expect("this program can be started");
    let mut count = 0;
    let mut since = Instant::now();
    let status = loop {
        if let Ok(Some(status)) = child.try_wait() {
            break status.to_string();
        }
        std::thread::sleep(Duration::from_millis(50));
        let now = Last::read(&last).map_or(0, |(count, _)| count);
        if now != count {
            (count, since) = (now, Instant::now());
        }
        if since.elapsed() > SILENCE_MAX {
            let _gone = child.kill();
            let _waited = child.wait();
            break format!("no end after {} s", SILENCE_MAX.as_secs());
        }
    };
    let report = std::fs::read(&out).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
    report.unwrap_or_else(|| {
        let (count, input) = Last::read(&last).unwrap_or_default();
        json!({"executions": count, "outcomes": 0, "note": "", "findings": [{"what": format!("died: {status}"), "input": input}]})
    })
}

fn child(arguments: &Arguments) -> ExitCode {
    // Findings are told by the parent; panics are findings.
    std::panic::set_hook(Box::new(|_| {}));
    let (Some(dir), Some(name)) = (&arguments.child, arguments.only.first()) else { return ExitCode::from(2) };
    let kind = ALL.iter().find(|kind| kind.name == name).expect("it was looked up");
    let last = Last::in_file(&dir.join(format!("{name}.last"))).expect("a file can be made");
    let bounds = Bounds { time: Duration::from_secs(arguments.seconds), executions: arguments.executions };
    let seeds = seeds(kind, arguments.regress.as_deref());
    let mut target = (kind.make)();
    let report: Report = run(target.as_mut(), seeds, arguments.seed, &bounds, &last);
    let findings: Vec<_> = report.findings.values().map(|f| json!({"what": f.what, "input": f.input})).collect();
    let report = json!({"executions": report.executions, "outcomes": report.outcomes, "note": report.note, "findings": findings});
    std::fs::write(dir.join(format!("{name}.report")), report.to_string()).expect("a file can be written");
    ExitCode::SUCCESS
}

/// Checks one input once more.
fn again(name: &str, file: &Path) -> ExitCode {
    let Some(kind) = ALL.iter().find(|kind| kind.name == name) else {
        eprintln!("fuzz: there is no target {name}");
        return ExitCode::from(2);
    };
    let input = std::fs::read(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    match checked((kind.make)().as_mut(), &input) {
        Ok(outcome) => {
            println!("holds: {outcome}");
            ExitCode::SUCCESS
        }
        Err(what) => {
            println!("{what}");
            ExitCode::FAILURE
        }
    }
}

/// Reads the committed seeds of a target; those of SQL are the labelled statements, too, and others that are named.
fn seeds(kind: &Kind, regress: Option<&Path>) -> Vec<Vec<u8>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let is_sql = matches!(kind.name, "scanner" | "classifier");
    let mut all = files(&root.join("seeds").join(if is_sql { "sql" } else { kind.name }));
    if kind.name == "mcp" {
        all = all
            .iter()
            .flat_map(|file| file.split(|b| *b == b'\n'))
            .filter(|l| !l.is_empty())
            .map(<[u8]>::to_vec)
            .collect();
    }
    if is_sql {
        // One statement a line, unless a line is blank between them.
        let lines = all.iter().flat_map(|file| file.split(|b| *b == b'\n')).filter(|line| !line.is_empty());
        all = lines.map(<[u8]>::to_vec).collect();
        let labelled = std::fs::read_to_string(root.join("../cases/sql-labelled.jsonl")).unwrap_or_default();
        let sql = |line: &str| serde_json::from_str::<Value>(line).ok()?["sql"].as_str().map(|s| s.as_bytes().to_vec());
        all.extend(labelled.lines().filter_map(sql));
        if let Some(dir) = regress {
            all.extend(
                files(dir).iter().flat_map(|file| reads::statements(&mutate::as_text(file))).map(String::into_bytes),
            );
        }
    }
    assert!(!all.is_empty(), "{} has no seeds", kind.name);
    all
}

fn files(dir: &Path) -> Vec<Vec<u8>> {
    let entries = std::fs::read_dir(dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    let mut paths: Vec<_> =
        entries.map(|entry| entry.expect("a directory can be listed").path()).filter(|p| p.is_file()).collect();
    paths.sort();
    paths.iter().map(|path| std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))).collect()
}
