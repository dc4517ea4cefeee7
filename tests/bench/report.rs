//! Samples, and the table they end in.

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

/// One line of the table.
struct Line {
    measure: String,
    figure: String,
    floor: String,
    ratio: String,
    target: &'static str,
}

/// The table.
#[derive(Default)]
pub struct Report(Vec<Line>);

impl Report {
    /// Adds a time beside its floor; both in microseconds.
    pub fn time(&mut self, measure: impl Into<String>, us: f64, floor: Option<(&str, f64)>, target: &'static str) {
        self.0.push(Line {
            measure: measure.into(),
            figure: shown(us),
            floor: floor.map_or_else(String::new, |(what, floor)| format!("{} ({what})", shown(floor))),
            ratio: floor.map_or_else(String::new, |(_, floor)| format!("{:.1}", us / floor)),
            target,
        });
    }

    /// Adds anything else, in words.
    pub fn figure(&mut self, measure: impl Into<String>, figure: String, floor: String, target: &'static str) {
        self.0.push(Line { measure: measure.into(), figure, floor, ratio: String::new(), target });
    }

    /// Prints the table, as Markdown.
    pub fn print(&self) {
        let head = ["measure", "figure", "floor in the same run", "ratio", "target"].map(str::to_owned);
        let rows: Vec<[String; 5]> = std::iter::once(head)
            .chain(self.0.iter().map(|line| {
                [
                    line.measure.clone(),
                    line.figure.clone(),
                    line.floor.clone(),
                    line.ratio.clone(),
                    line.target.to_owned(),
                ]
            }))
            .collect();
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: [usize; 5] = std::array::from_fn(width);
        for (number, row) in rows.iter().enumerate() {
            let cells: Vec<String> = row.iter().zip(widths).map(|(cell, width)| format!(" {cell:width$} ")).collect();
            println!("|{}|", cells.join("|"));
            if number == 0 {
                let lines: Vec<String> = widths.iter().map(|width| "-".repeat(width + 2)).collect();
                println!("|{}|", lines.join("|"));
            }
        }
    }
}

fn shown(us: f64) -> String {
    if us >= 1e6 {
        format!("{:.2} s", us / 1e6)
    } else if us >= 1e3 {
        format!("{:.2} ms", us / 1e3)
    } else {
        format!("{us:.1} µs")
    }
}
