//! What is kept of a command's output: text without secrets, within a bound, its beginning and its end.
//!
//! Reading never stops for want of room: what is over the bound is read, counted and dropped, so that a command that
//! writes without end is held up by nothing but its time.

use super::redact::{Redactor, Secrets};

/// The most characters of one stream that can be asked for, and what is kept unless asked otherwise.
pub const OUTPUT_CHARS_MAX: usize = 8000;
/// The most last lines that can be asked for.
pub const TAIL_LINES_MAX: usize = 1000;
/// The most bytes of a character.
const CHAR_BYTES: usize = 4;
/// The longest control sequence that is waited for, in bytes; a longer one is none.
const SEQUENCE_BYTES_MAX: usize = 4096;

/// How output is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Whether control sequences of terminals are left out.
    pub strip_ansi: bool,
    /// The most characters.
    pub chars_max: usize,
    /// Only so many last lines.
    pub tail_lines: Option<usize>,
    /// Whether lines are left out by which Docker says how containers come and go.
    pub without_docker_lifecycle: bool,
}

/// What was kept of one stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Captured {
    /// The text.
    pub text: String,
    /// Whether something of it was dropped for want of room, or was not among the last lines asked for.
    pub truncated: bool,
    /// How many bytes the command wrote.
    pub bytes: u64,
}

/// Takes one stream.
#[derive(Debug)]
pub struct Collector {
    wanted: Wanted,
    stripper: Stripper,
    redactor: Redactor,
    /// The beginning, up to half of the bound.
    head: Vec<u8>,
    /// The end, up to twice its own bound.
    tail: Vec<u8>,
    dropped: bool,
    bytes: u64,
}

impl Collector {
    /// Begins a stream.
    pub fn new(wanted: Wanted, secrets: Secrets) -> Self {
        let redactor = Redactor::new(secrets);
        Self {
            wanted,
            stripper: Stripper::default(),
            redactor,
            head: Vec::new(),
            tail: Vec::new(),
            dropped: false,
            bytes: 0,
        }
    }

    /// Takes bytes, and returns those that may be shown now.
    pub fn take(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.bytes = self.bytes.saturating_add(bytes.len() as u64);
        let bytes = if self.wanted.strip_ansi { self.stripper.take(bytes) } else { bytes.to_vec() };
        let clean = self.redactor.take(&bytes);
        self.keep(&clean);
        clean
    }

    /// Ends the stream, and returns what was held back.
    pub fn held_back(&mut self) -> Vec<u8> {
        let rest = self.redactor.finish();
        self.keep(&rest);
        rest
    }

    /// Returns what was kept of the stream.
    pub fn finish(&mut self) -> Captured {
        self.held_back();
        self.captured()
    }

    /// Returns how many bytes came so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    fn bound(&self) -> usize {
        self.wanted.chars_max.saturating_mul(CHAR_BYTES)
    }

    fn keep(&mut self, bytes: &[u8]) {
        let (bound, mut bytes) = (self.bound(), bytes);
        // Last lines have no beginning.
        if self.wanted.tail_lines.is_none() && self.tail.is_empty() {
            let room = bound.saturating_sub(self.head.len()).min(bytes.len());
            let (first, rest) = bytes.split_at(room);
            self.head.extend_from_slice(first);
            bytes = rest;
        }
        self.tail.extend_from_slice(bytes);
        if self.tail.len() > bound.saturating_mul(2) {
            self.dropped = true;
            self.tail.drain(..self.tail.len() - bound);
        }
    }

    fn captured(&self) -> Captured {
        let mut truncated = self.dropped;
        let text = if self.dropped {
            // A character that the cut went through is no character.
            let whole = self.tail.iter().position(|byte| byte & 0xc0 != 0x80).unwrap_or(self.tail.len());
            let tail = String::from_utf8_lossy(self.tail.get(whole..).unwrap_or_default());
            let (head, tail) = (String::from_utf8_lossy(&self.head), self.chosen(&tail, &mut false));
            self.cut(&self.chosen(&head, &mut false), &tail)
        } else {
            let all = [self.head.as_slice(), self.tail.as_slice()].concat();
            let all = self.chosen(&String::from_utf8_lossy(&all), &mut truncated);
            let fits = all.chars().nth(self.wanted.chars_max).is_none();
            truncated |= !fits;
            if fits { all } else { self.cut(&all, &all) }
        };
        Captured { text, truncated, bytes: self.bytes }
    }

    /// Returns the beginning of one text and the end of another, with a line between them; of last lines the end alone.
    fn cut(&self, head: &str, tail: &str) -> String {
        const BETWEEN: &str = "\n…\n";
        let most = self.wanted.chars_max;
        let (first, between) = match most.checked_sub(BETWEEN.chars().count()) {
            Some(room) if self.wanted.tail_lines.is_none() => {
                (head.chars().take(room / 2).collect::<String>(), BETWEEN)
            }
            Some(_) | None => (String::new(), ""),
        };
        let left = most.saturating_sub(first.chars().count() + between.chars().count());
        let skipped = tail.chars().count().saturating_sub(left);
        let last: String = tail.chars().skip(skipped).collect();
        first + between + &last
    }

    /// Returns the lines that are wanted.
    fn chosen(&self, text: &str, truncated: &mut bool) -> String {
        let mut lines: Vec<&str> = text.split_inclusive('\n').collect();
        if self.wanted.without_docker_lifecycle {
            lines.retain(|line| !is_docker_lifecycle(line));
        }
        if let Some(most) = self.wanted.tail_lines
            && lines.len() > most
        {
            *truncated = true;
            lines.drain(..lines.len() - most);
        }
        lines.concat()
    }
}

/// Returns whether `docker compose` says with a line that a container, network, volume or image comes or goes.
fn is_docker_lifecycle(line: &str) -> bool {
    const THINGS: [&str; 4] = ["Container", "Network", "Volume", "Image"];
    const STATES: [&str; 22] = [
        "Built",
        "Building",
        "Create",
        "Created",
        "Creating",
        "Error",
        "Exited",
        "Healthy",
        "Pulled",
        "Pulling",
        "Recreate",
        "Recreated",
        "Removed",
        "Removing",
        "Running",
        "Started",
        "Starting",
        "Stopped",
        "Stopping",
        "Waiting",
        "done",
        "Skipped",
    ];
    let plain: String = String::from_utf8_lossy(&Stripper::default().take(line.as_bytes())).into_owned();
    // `[+] Running 2/2` stands above each list.
    if plain.trim_start().starts_with("[+] ") {
        return true;
    }
    let mut words = plain.split_whitespace().skip_while(|word| !word.chars().any(char::is_alphanumeric));
    let (Some(first), Some(_), Some(state)) = (words.next(), words.next(), words.next()) else { return false };
    // `✔ Container app-db-1  Started  0.4s`, and of the older program `Starting app_db_1 ... done`.
    let newer = THINGS.contains(&first) && STATES.contains(&state);
    let older = ["Creating", "Recreating", "Starting", "Stopping", "Removing"].contains(&first) && state == "...";
    newer || older
}

/// Leaves control sequences of terminals out of a stream.
#[derive(Debug, Default)]
struct Stripper {
    state: State,
    length: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Text,
    Escape,
    /// After `ESC [`, up to a final byte.
    Control,
    /// After `ESC ]` and its like, up to BEL or `ESC \`.
    Words,
    WordsEscape,
    /// One more byte after `ESC (` and its like.
    Charset,
}

impl Stripper {
    fn take(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(bytes.len());
        for &byte in bytes {
            self.length = if self.state == State::Text { 0 } else { self.length + 1 };
            if self.length > SEQUENCE_BYTES_MAX {
                self.state = State::Text;
            }
            self.state = match (self.state, byte) {
                (State::Text, 0x1b) => State::Escape,
                (State::Text, byte) => {
                    out.push(byte);
                    State::Text
                }
                (State::Escape, b'[') => State::Control,
                (State::Escape, b']' | b'P' | b'X' | b'^' | b'_') => State::Words,
                (State::Escape, b'(' | b')' | b'*' | b'+' | b'#' | b'%') => State::Charset,
                (State::Words, 0x07) | (State::WordsEscape, b'\\') => State::Text,
                (State::Words, 0x1b) => State::WordsEscape,
                (State::Words | State::WordsEscape, _) => State::Words,
                (State::Control, 0x20..=0x3f) => State::Control,
                (State::Control, 0x1b) => State::Escape,
                (State::Escape | State::Control | State::Charset, _) => State::Text,
            };
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Wanted =
        Wanted { strip_ansi: false, chars_max: OUTPUT_CHARS_MAX, tail_lines: None, without_docker_lifecycle: false };

    fn captured(wanted: Wanted, pieces: &[&[u8]]) -> Captured {
        let mut collector = Collector::new(wanted, Secrets::new(["hunter2-hunter2"]));
        for piece in pieces {
            collector.take(piece);
        }
        collector.finish()
    }

    fn check(wanted: Wanted, written: &str, text: &str, truncated: bool) {
        for size in [1, 7, written.len().max(1)] {
            let pieces: Vec<&[u8]> = written.as_bytes().chunks(size).collect();
            let captured = captured(wanted, &pieces);
            assert_eq!((captured.text.as_str(), captured.truncated), (text, truncated), "in pieces of {size}");
            assert_eq!(captured.bytes, written.len() as u64);
        }
    }

    #[test]
    fn what_fits_is_kept_as_it_is() {
        check(ALL, "one\ntwo\n", "one\ntwo\n", false);
        check(ALL, "", "", false);
        check(ALL, "\u{1b}[31mred\u{1b}[0m", "\u{1b}[31mred\u{1b}[0m", false);
    }

    #[test]
    fn of_what_does_not_fit_beginning_and_end_are_kept() {
        let written: String = (0..100_000).map(|n| format!("line {n}\n")).collect();
        for chars_max in [0, 1, 5, 80, OUTPUT_CHARS_MAX] {
            let got = captured(Wanted { chars_max, ..ALL }, &[written.as_bytes()]);
            assert!(got.text.chars().count() <= chars_max, "{chars_max}");
            assert!(got.truncated);
        }
        let got = captured(Wanted { chars_max: 80, ..ALL }, &[written.as_bytes()]);
        assert!(got.text.starts_with("line 0\n") && got.text.ends_with("line 99999\n"), "{}", got.text);
        let small = captured(Wanted { chars_max: 10, ..ALL }, &[b"abcdefghijklmnop"]);
        assert_eq!(small.text, "abc\n…\nmnop");
    }

    #[test]
    fn characters_are_counted_and_not_bytes() {
        let written = "ü".repeat(OUTPUT_CHARS_MAX);
        check(ALL, &written, &written, false);
    }

    #[test]
    fn last_lines_are_the_last() {
        let wanted = Wanted { tail_lines: Some(2), ..ALL };
        check(wanted, "1\n2\n3\n4", "3\n4", true);
        check(wanted, "1\n2\n", "1\n2\n", false);
        let written: String = (0..100_000).map(|n| format!("line {n}\n")).collect();
        check(wanted, &written, "line 99998\nline 99999\n", true);
    }

    #[test]
    fn control_sequences_are_left_out_on_demand_and_hide_no_secret() {
        let wanted = Wanted { strip_ansi: true, ..ALL };
        check(
            wanted,
            "\u{1b}[1;31mred\u{1b}[0m \u{1b}]8;;http://x\u{7}link\u{1b}]8;;\u{1b}\\!\u{1b}(B",
            "red link!",
            false,
        );
        check(wanted, "hunter2\u{1b}[0m-hun\u{1b}[1mter2", "***", false);
        check(wanted, "\u{1b}", "", false);
    }

    #[test]
    fn a_control_sequence_without_end_swallows_a_bounded_piece() {
        let wanted = Wanted { strip_ansi: true, ..ALL };
        let written = format!("\u{1b}]{}", "x".repeat(SEQUENCE_BYTES_MAX + 9));
        let got = captured(wanted, &[written.as_bytes()]);
        assert_eq!(got.text, "x".repeat(10));
    }

    #[test]
    fn docker_lifecycle_lines_are_left_out_on_demand() {
        let wanted = Wanted { without_docker_lifecycle: true, ..ALL };
        let written = "[+] Running 2/2\n ✔ Network app_default  Created  0.1s\n \u{1b}[32m✔\u{1b}[0m Container app-db-1  Started  0.4s\nStarting app_db_1 ... done\nContainer ships are big\nApplying 0001_initial... OK\n";
        check(wanted, written, "Container ships are big\nApplying 0001_initial... OK\n", false);
        check(ALL, "Container a Started\n", "Container a Started\n", false);
    }
}
