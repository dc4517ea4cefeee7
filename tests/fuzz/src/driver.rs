//! Runs one target: makes inputs, has them checked, keeps the interesting ones, and makes findings small.
//!
//! An input is interesting if its outcome was not seen before; outcomes are what a target says of how its subject
//! took the input, so their number stands for how much of the subject was reached. A run is decided by its seed.

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::rng::Rng;

/// Inputs that are kept to be changed further.
const KEPT_MAX: usize = 3000;
/// The longest check that is no finding, unless a target says otherwise. Checked again before it counts: machines stand
/// still now and then.
const CHECK_MAX: Duration = Duration::from_millis(500);
/// Checks that one finding may cost to be made small.
const SHRINK_CHECKS: usize = 3000;
/// The most findings that are told of one target: the rest waits until these are mended.
const FINDINGS_MAX: usize = 40;

/// What a check says: how the subject took the input, or what is wrong.
///
/// What is wrong begins with its kind, up to the first `:`; a kind is told once.
pub type Checked = Result<String, String>;

/// One subject and what has to hold of it.
pub trait Target {
    /// Makes an input, from scratch or of those that were kept.
    fn make(&mut self, rng: &mut Rng, kept: &[Vec<u8>]) -> Vec<u8>;
    /// Checks an input. Panics are findings.
    fn check(&mut self, input: &[u8]) -> Checked;
    /// How many executions of the subject one check stands for.
    fn weight(&self, _input: &[u8]) -> u64 {
        1
    }
    /// The longest a check may take.
    fn time_max(&self) -> Duration {
        CHECK_MAX
    }
    /// What is told beside the counts.
    fn note(&self) -> String {
        String::new()
    }
}

/// What a run came to.
#[derive(Default)]
pub struct Report {
    pub executions: u64,
    pub outcomes: usize,
    pub findings: BTreeMap<String, Finding>,
    pub note: String,
}

pub struct Finding {
    pub what: String,
    pub input: Vec<u8>,
}

/// When a run ends.
pub struct Bounds {
    pub time: Duration,
    pub executions: u64,
}

/// Plays a target. `last` is told each input before it is checked, for whoever looks on should this process die.
pub fn run(target: &mut dyn Target, seeds: Vec<Vec<u8>>, seed: u64, bounds: &Bounds, last: &Last) -> Report {
    let began = Instant::now();
    let mut report = Report::default();
    let mut seen = HashSet::new();
    let mut kept = seeds.clone();
    let mut first = seeds.into_iter();
    let mut rng = Rng::new(seed);
    while began.elapsed() < bounds.time && report.executions < bounds.executions {
        let input = first.next().unwrap_or_else(|| target.make(&mut rng, &kept));
        last.note(&input);
        report.executions += target.weight(&input);
        match checked(target, &input) {
            Ok(outcome) => {
                if seen.insert(outcome) {
                    match kept.len() < KEPT_MAX {
                        true => kept.push(input),
                        false => {
                            let at = rng.below(KEPT_MAX);
                            kept[at] = input;
                        }
                    }
                }
            }
            Err(what) => {
                let kind = kind(&what).to_owned();
                if report.findings.len() < FINDINGS_MAX && !report.findings.contains_key(&kind) {
                    let (input, what) = shrink(target, input, what, last);
                    report.findings.insert(kind, Finding { what, input });
                }
            }
        }
    }
    report.outcomes = seen.len();
    report.note = target.note();
    report
}

/// Checks one input; a panic and a check that takes too long are findings, too.
pub fn checked(target: &mut dyn Target, input: &[u8]) -> Checked {
    let began = Instant::now();
    let checked = once(target, input)?;
    if began.elapsed() > target.time_max() {
        let again = Instant::now();
        once(target, input)?;
        if again.elapsed() > target.time_max() {
            return Err(format!("slow: {} bytes took {} ms", input.len(), again.elapsed().as_millis()));
        }
    }
    Ok(checked)
}

fn once(target: &mut dyn Target, input: &[u8]) -> Checked {
    catch_unwind(AssertUnwindSafe(|| target.check(input))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without words");
        Err(format!("panic: {text}"))
    })
}

fn kind(what: &str) -> &str {
    what.split_once(':').map_or(what, |(kind, _)| kind)
}

/// Takes pieces out of an input for as long as the same kind of thing is wrong with it.
fn shrink(target: &mut dyn Target, mut input: Vec<u8>, mut what: String, last: &Last) -> (Vec<u8>, String) {
    let wanted = kind(&what).to_owned();
    let mut left = SHRINK_CHECKS;
    let mut piece = (input.len() / 2).max(1);
    loop {
        let mut at = 0;
        let mut smaller = false;
        while at < input.len() && left > 0 {
            let mut tried = input.clone();
            tried.drain(at..(at + piece).min(input.len()));
            left -= 1;
            last.note(&tried);
            match checked(target, &tried) {
                Err(found) if kind(&found) == wanted => {
                    (input, what, smaller) = (tried, found, true);
                }
                _ => at += piece,
            }
        }
        if left == 0 || (piece == 1 && !smaller) {
            return (input, what);
        }
        if !smaller || piece > 1 {
            piece = (piece / 2).max(1);
        }
    }
}

/// A file that always holds the input that is being checked, after a count that shows that time goes on.
pub struct Last {
    file: File,
    count: std::cell::Cell<u64>,
}

impl Last {
    pub fn in_file(path: &Path) -> std::io::Result<Self> {
        Ok(Self { file: File::create(path)?, count: std::cell::Cell::new(0) })
    }

    fn note(&self, input: &[u8]) {
        self.count.set(self.count.get() + 1);
        let head = [self.count.get().to_le_bytes(), (input.len() as u64).to_le_bytes()].concat();
        self.file.write_all_at(&[&head, input].concat(), 0).expect("the file of the last input can be written");
    }

    /// Returns the count and the input in a file, once there is one.
    pub fn read(path: &Path) -> Option<(u64, Vec<u8>)> {
        let bytes = fs::read(path).ok()?;
        let (count, rest) = bytes.split_first_chunk::<8>()?;
        let (length, rest) = rest.split_first_chunk::<8>()?;
        let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
        Some((u64::from_le_bytes(*count), rest.get(..length)?.to_vec()))
    }
}
