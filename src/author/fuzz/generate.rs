//! Requests at random, each made from its seed alone.

use std::collections::{BTreeMap, BTreeSet};

use crate::author::cases::{
    Case, GivenOutcome, GivenRequested, GivenSandbox, GivenSource, GivenStatement, GivenUsage, Operations, Word, Words,
};
use crate::author::subject::Subject;
use crate::model::Phase;
use crate::model::limits::{EXTENSIONS_MAX, LABEL_BYTES_MAX, LABELS_MAX, NAME_BYTES_MAX};
use crate::policy::Set;

/// The most statements of a request here. A call may have more, and they only take longer.
pub const STATEMENTS_MAX: u64 = 1_000;
/// The most names of a list: relations, functions, words of a command.
pub const NAMES_MAX: u64 = 200;
/// One of so many lists is as long as it may be.
const LONG_OF: u64 = 40;
/// The length of the others.
const SHORT_MAX: u64 = 4;

/// Texts that have tripped programs up: empty, blank, of several scripts, with quotes, patterns, paths, and numbers in them.
const ODD: [&str; 24] = [
    "",
    " ",
    "a",
    "ana",
    "*",
    "team-*",
    "public.users",
    "pg_catalog.pg_authid",
    "\"quoted\".\"Name\"",
    "a.b.c.d",
    "select 1; drop table t",
    "'",
    "\"",
    "\\",
    "%s%n",
    "../../etc/passwd",
    "Ünïcödé",
    "名前",
    "\u{202e}abc",
    "\u{feff}",
    "🦀",
    "null",
    "0",
    "-1",
];
/// Names that policies are likely to look for.
const PLAIN: [&str; 12] =
    ["ana", "ben", "ci-7", "admins", "app", "public.t", "t", "lower", "pg_sleep", "npm", "production", "citext"];
/// Numbers at the edges of what a field holds.
const EDGES: [u64; 10] = [0, 1, 2, 59, 60, 3600, 100_000, 4_294_967_295, 9_007_199_254_740_993, i64::MAX as u64];

/// Numbers that look random and follow from the seed: SplitMix64, of Steele, Lea and Flood.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Begins with a seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `end`, or 0.
    fn below(&mut self, end: u64) -> u64 {
        self.next().checked_rem(end).unwrap_or(0)
    }

    fn one_of(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    fn pick<T: Clone>(&mut self, list: &[T]) -> Option<T> {
        let index = self.below(u64::try_from(list.len()).unwrap_or(0));
        list.get(usize::try_from(index).unwrap_or(0)).cloned()
    }

    fn maybe<T>(&mut self, make: impl FnOnce(&mut Self) -> T) -> Option<T> {
        self.one_of(2).then(|| make(self))
    }

    fn word<T: Words>(&mut self) -> Option<Word<T>> {
        let words = T::words();
        self.pick(&words).map(|(_, value)| Word(value))
    }

    fn number(&mut self) -> u64 {
        if self.one_of(2) { self.pick(&EDGES).unwrap_or(0) } else { self.below(10_000) }
    }

    fn small(&mut self) -> u32 {
        u32::try_from(self.number()).unwrap_or(u32::MAX)
    }

    /// Returns a text of no more bytes than that.
    fn text(&mut self, bytes_max: usize) -> String {
        let mut text = match self.below(8) {
            0..=3 => self.pick(&PLAIN).unwrap_or_default().to_owned(),
            4..=6 => self.pick(&ODD).unwrap_or_default().to_owned(),
            _ => {
                let piece = self.pick(&ODD).filter(|piece| !piece.is_empty()).unwrap_or("x");
                piece.repeat(bytes_max / piece.len().max(1))
            }
        };
        while text.len() > bytes_max {
            text.pop();
        }
        text
    }

    /// Returns a text of at least one byte.
    fn name(&mut self, bytes_max: usize) -> String {
        let text = self.text(bytes_max);
        if text.is_empty() { "x".to_owned() } else { text }
    }

    /// Returns how long a list is: short, and now and then as long as it may be.
    fn length(&mut self, most: u64) -> u64 {
        if self.one_of(LONG_OF) { most } else { self.below(SHORT_MAX.min(most) + 1) }
    }

    fn names(&mut self, most: u64) -> Vec<String> {
        (0..self.length(most)).map(|_| self.name(NAME_BYTES_MAX)).collect()
    }

    fn labels(&mut self) -> BTreeMap<String, String> {
        let most = u64::try_from(LABELS_MAX).unwrap_or(0);
        (0..self.length(most)).map(|_| (self.name(LABEL_BYTES_MAX), self.text(LABEL_BYTES_MAX))).collect()
    }
}

/// What requests are made of.
pub(super) struct Material {
    /// The operations that the policy wants to see, with when.
    asked: Vec<(&'static str, Phase)>,
    /// The buckets whose balances it may be shown.
    buckets: Vec<String>,
}

impl Material {
    /// Gathers it; none where the policy wants to see nothing that this version asks.
    pub(super) fn of(set: &Set, subject: &Subject, operations: &Operations) -> Option<Self> {
        let phases: Vec<Phase> = Words::words().into_iter().map(|(_, phase)| phase).collect();
        let pairs = operations.0.iter().flat_map(|(name, _)| phases.iter().map(move |phase| (*name, *phase)));
        let asked: Vec<_> = pairs.filter(|(name, phase)| subject.description().concerned(name, *phase)).collect();
        let case = |name: &str| Case { operation: Some(name.to_owned()), ..Case::default() };
        let shown = asked.iter().filter_map(|(name, _)| case(name).asked(operations, subject.name()).ok());
        let buckets = shown.flat_map(|asked| set.buckets(&asked.context)).map(|(_, bucket)| bucket.name);
        let buckets = buckets.collect::<BTreeSet<_>>().into_iter().collect();
        (!asked.is_empty()).then_some(Self { asked, buckets })
    }
}

/// Makes a request that the policy wants to see.
pub(super) fn case(random: &mut Random, material: &Material) -> Case {
    let Some((operation, phase)) = random.pick(&material.asked) else { return Case::default() };
    let buckets = &material.buckets;
    Case {
        operation: Some(operation.to_owned()),
        phase: Some(Word(phase)),
        // Mostly the operation's own.
        impact: if random.one_of(10) { random.word() } else { None },
        owner: random.maybe(|random| random.name(LABEL_BYTES_MAX)),
        subject: random.maybe(|random| random.name(LABEL_BYTES_MAX)),
        groups: random.maybe(|random| random.names(NAMES_MAX)),
        transport: random.word(),
        client: random.maybe(|random| random.text(NAME_BYTES_MAX)),
        group_owner: random.maybe(|random| random.name(LABEL_BYTES_MAX)),
        now_ms: random.maybe(Random::number),
        profile: random.maybe(|random| random.name(NAME_BYTES_MAX)),
        engine: random.maybe(|random| random.name(NAME_BYTES_MAX)),
        major: random.maybe(|random| u16::try_from(random.below(20)).unwrap_or(0)),
        managed: random.maybe(|random| random.one_of(2)),
        balances: random.maybe(|random| buckets.iter().map(|name| (name.clone(), random.small())).collect()),
        sandbox: random.maybe(sandbox),
        usage: random.maybe(usage),
        group_usage: random.maybe(usage),
        statements: random.maybe(statements),
        source: random.maybe(source),
        requested: random.maybe(requested),
        outcome: random.maybe(outcome),
        ..Case::default()
    }
}

fn sandbox(random: &mut Random) -> GivenSandbox {
    GivenSandbox {
        id: None,
        name: random.maybe(|random| random.name(NAME_BYTES_MAX)),
        owner: random.maybe(|random| random.name(LABEL_BYTES_MAX)),
        group_owner: random.maybe(|random| random.name(LABEL_BYTES_MAX)),
        origin: random.word(),
        age_seconds: random.maybe(|random| random.below(10_000_000)),
        seconds_left: random.maybe(|random| i64::try_from(random.below(10_000_000)).unwrap_or(0) - 1_000_000),
        bytes: random.maybe(Random::number),
        labels: random.maybe(Random::labels),
    }
}

fn usage(random: &mut Random) -> GivenUsage {
    GivenUsage { live: random.small(), bytes: random.number() }
}

fn statements(random: &mut Random) -> Vec<GivenStatement> {
    let count = random.length(STATEMENTS_MAX);
    // Of many statements each is short: a text has only so many bytes.
    let names = if count > SHORT_MAX { SHORT_MAX } else { NAMES_MAX };
    (0..count).filter_map(|_| statement(random, names)).collect()
}

fn statement(random: &mut Random, names: u64) -> Option<GivenStatement> {
    let list = |random: &mut Random| {
        let mut list = if random.one_of(2) { random.names(names) } else { Vec::new() };
        list.sort();
        list.dedup();
        list
    };
    Some(GivenStatement {
        class: random.word()?,
        tag: random.pick(&["SELECT", "INSERT", "CREATE TABLE", "DROP", "COPY", "DO", ""])?.to_owned(),
        traits: (0..random.below(SHORT_MAX)).filter_map(|_| random.word()).collect(),
        reads: list(random),
        writes: list(random),
        defines: list(random),
        functions: list(random),
        read_only_safe: random.one_of(2),
        text: None,
    })
}

fn source(random: &mut Random) -> GivenSource {
    GivenSource {
        name: random.maybe(|random| random.name(NAME_BYTES_MAX)),
        host: random.maybe(|random| random.name(NAME_BYTES_MAX)),
        port: random.maybe(|random| u16::try_from(random.below(65_536)).unwrap_or(0)),
        database: random.maybe(|random| random.name(NAME_BYTES_MAX)),
        user: random.maybe(|random| random.name(NAME_BYTES_MAX)),
        tls: random.word(),
        production: random.one_of(2),
        schema_only: random.one_of(2),
        reason: random.maybe(|random| random.text(NAME_BYTES_MAX)),
    }
}

fn requested(random: &mut Random) -> GivenRequested {
    let most = u64::try_from(EXTENSIONS_MAX).unwrap_or(0);
    GivenRequested {
        ttl_minutes: random.maybe(Random::number),
        rows: random.maybe(Random::number),
        timeout_ms: random.maybe(Random::number),
        read_only: random.one_of(2),
        credentials: if random.one_of(3) { random.word() } else { None },
        extensions: random.names(most),
        command: random.names(NAMES_MAX),
        labels: random.labels(),
    }
}

fn outcome(random: &mut Random) -> GivenOutcome {
    GivenOutcome {
        rows: random.number(),
        bytes: random.number(),
        elapsed_ms: random.number(),
        columns: random.names(NAMES_MAX),
    }
}
