//! Samples, the table they end in, and where the time of what missed its target goes.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

/// Samples of one measure, in microseconds.
#[derive(Default)]
pub struct Samples(Vec<f64>);

impl Samples {
    /// Times `work` once.
    pub fn time<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let value = work();
        self.add(began.elapsed());
        value
    }

    /// Adds a sample.
    pub fn add(&mut self, took: Duration) {
        self.0.push(took.as_secs_f64() * 1e6);
    }

    /// Returns a percentile, in microseconds.
    pub fn percentile(&self, percent: usize) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted[(sorted.len() * percent / 100).min(sorted.len() - 1)]
    }

    /// Returns the median, in microseconds.
    pub fn median(&self) -> f64 {
        self.percentile(50)
    }
}

/// What a measure is to reach.
#[derive(Clone, Copy)]
pub enum Target {
    /// Nothing: it is printed to explain another.
    None,
    /// At most so many microseconds.
    UsMax(f64),
    /// At most so many times the floor.
    RatioMax(f64),
    /// At least so many in a second.
    PerSecondMin(f64),
    /// Anything else: in words, and whether it was reached.
    Words(&'static str, bool),
}

impl Target {
    fn words(self) -> String {
        match self {
            Self::None => String::new(),
            Self::UsMax(us) => format!("≤ {}", shown(us)),
            Self::RatioMax(ratio) => format!("≤ {ratio} × floor"),
            Self::PerSecondMin(rate) => format!("≥ {rate} per s"),
            Self::Words(words, _) => words.to_owned(),
        }
    }
}

/// One line of the table.
struct Line {
    measure: String,
    figure: String,
    floor: String,
    ratio: String,
    target: String,
    met: Option<bool>,
}

/// Where the time of a measure goes: part → microseconds.
struct Profile {
    measure: String,
    parts: Vec<(String, f64)>,
}

/// The table.
#[derive(Default)]
pub struct Report {
    lines: Vec<Line>,
    profiles: Vec<Profile>,
    /// What one part measures and another's profile needs.
    pub notes: Notes,
}

/// Figures of one part that explain another's, in microseconds; zero where the part was not measured.
#[derive(Default)]
pub struct Notes {
    /// The gate, for a statement that was read before.
    pub gate_us: f64,
    /// Loading the policies from what is kept.
    pub policies_us: f64,
}

impl Report {
    /// Adds a time beside its floor; both in microseconds.
    pub fn time(&mut self, measure: impl Into<String>, us: f64, floor: Option<(&str, f64)>, target: Target) {
        let ratio = floor.map(|(_, floor)| us / floor);
        let met = match target {
            Target::None => None,
            Target::UsMax(us_max) => Some(us <= us_max),
            Target::RatioMax(ratio_max) => ratio.map(|ratio| ratio <= ratio_max),
            Target::PerSecondMin(rate_min) => Some(1e6 / us >= rate_min),
            Target::Words(_, met) => Some(met),
        };
        self.lines.push(Line {
            measure: measure.into(),
            figure: shown(us),
            floor: floor.map_or_else(String::new, |(what, floor)| format!("{} ({what})", shown(floor))),
            ratio: ratio.map_or_else(String::new, |ratio| format!("{ratio:.1}")),
            target: target.words(),
            met,
        });
    }

    /// Adds a rate beside its floor; both in calls per second.
    pub fn rate(&mut self, measure: impl Into<String>, rate: f64, floor: (&str, f64), target: Target) {
        let met = match target {
            Target::PerSecondMin(rate_min) => Some(rate >= rate_min),
            Target::None => None,
            Target::UsMax(us_max) => Some(1e6 / rate <= us_max),
            Target::RatioMax(ratio_max) => Some(rate / floor.1 <= ratio_max),
            Target::Words(_, met) => Some(met),
        };
        self.lines.push(Line {
            measure: measure.into(),
            figure: format!("{rate:.0} per s"),
            floor: format!("{:.0} per s ({})", floor.1, floor.0),
            ratio: format!("{:.2}", rate / floor.1),
            target: target.words(),
            met,
        });
    }

    /// Adds anything else, in words.
    pub fn figure(&mut self, measure: impl Into<String>, figure: String, floor: String, target: Target) {
        let met = match target {
            Target::Words(_, met) => Some(met),
            Target::None | Target::UsMax(_) | Target::RatioMax(_) | Target::PerSecondMin(_) => None,
        };
        let line = Line { measure: measure.into(), figure, floor, ratio: String::new(), target: target.words(), met };
        self.lines.push(line);
    }

    /// Says where the time of a measure goes; printed if it misses its target.
    pub fn profile<'a>(&mut self, measure: &str, parts: impl IntoIterator<Item = (&'a str, f64)>) {
        let parts = parts.into_iter().map(|(part, us)| (part.to_owned(), us)).collect();
        self.profiles.push(Profile { measure: measure.to_owned(), parts });
    }

    /// Returns the measures that missed their targets.
    pub fn missed(&self) -> Vec<&str> {
        self.lines.iter().filter(|line| line.met == Some(false)).map(|line| line.measure.as_str()).collect()
    }

    /// Writes the table as Markdown, and a profile of each measure that missed its target.
    pub fn written(&self) -> String {
        let head = ["measure", "figure", "floor in the same run", "ratio", "target", "met"].map(str::to_owned);
        let met = |met: Option<bool>| match met {
            None => String::new(),
            Some(true) => "yes".to_owned(),
            Some(false) => "NO".to_owned(),
        };
        let rows: Vec<[String; 6]> = std::iter::once(head)
            .chain(self.lines.iter().map(|line| {
                let Line { measure, figure, floor, ratio, target, .. } = line;
                [measure.clone(), figure.clone(), floor.clone(), ratio.clone(), target.clone(), met(line.met)]
            }))
            .collect();
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: [usize; 6] = std::array::from_fn(width);
        let mut text = String::new();
        for (number, row) in rows.iter().enumerate() {
            let cells: Vec<String> = row.iter().zip(widths).map(|(cell, width)| format!(" {cell:width$} ")).collect();
            writeln!(text, "|{}|", cells.join("|")).unwrap();
            if number == 0 {
                let lines: Vec<String> = widths.iter().map(|width| "-".repeat(width + 2)).collect();
                writeln!(text, "|{}|", lines.join("|")).unwrap();
            }
        }
        let missed = self.missed();
        for Profile { measure, parts } in self.profiles.iter().filter(|one| missed.contains(&one.measure.as_str())) {
            writeln!(text, "\nwhere the time of `{measure}` goes:").unwrap();
            for (part, us) in parts {
                writeln!(text, "  {:>10}  {part}", shown(*us)).unwrap();
            }
        }
        text
    }
}

/// Writes a time in a fitting unit.
pub fn shown(us: f64) -> String {
    if us >= 1e6 {
        format!("{:.2} s", us / 1e6)
    } else if us >= 1e3 {
        format!("{:.2} ms", us / 1e3)
    } else {
        format!("{us:.1} µs")
    }
}
