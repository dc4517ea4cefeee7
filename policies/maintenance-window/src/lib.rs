//! Refuses calls, or holds them to reading, at some times of the week.
//!
//! `windows` is a list; each entry has `time` (a window of the week), `hold`: `inside` (the default) or `outside` of it, and
//! `mode`: `refuse` or `read-only`. It is for calls that fit its `operations` (patterns), `impacts` and `profiles` (patterns);
//! a part that is absent fits every call. Where several hold, a refusal goes before a demand.
//!
//! A call that is refused is told when it is worth making again: at the window's end, or where it begins. Under `read-only`
//! calls that only read go on; those that can be held to the read-only role are, and what else changes something is refused. The
//! time is that of the server the program runs on; there is no summer time here, only `utc_offset_minutes`.

use pgsandbox_policy::{
    Bucket, Decision, Denial, Description, Impact, Obligation, Patterns, Policy, Problem, Problems, Request, Verdict,
    Window, WindowSettings,
};

const MAINTENANCE: &str = "maintenance";
const READ_ONLY_NOW: &str = "read_only_now";

/// Operations that can be held to the read-only role.
const HELD: [&str; 3] = ["explain_query", "get_connection_string", "run_sql"];
/// Operations that change no sandbox, whatever their impact.
const APART: [&str; 2] = ["approve", "cancel_task"];

/// The settings.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    windows: Vec<EntrySettings>,
}

/// One entry as it is written.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EntrySettings {
    time: WindowSettings,
    hold: Option<String>,
    mode: Option<String>,
    operations: Option<Vec<String>>,
    impacts: Option<Vec<String>>,
    profiles: Option<Vec<String>>,
}

/// The policy.
#[derive(Debug)]
pub struct MaintenanceWindow {
    entries: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    window: Window,
    hold: Hold,
    mode: Mode,
    operations: Option<Patterns>,
    impacts: Option<Vec<Impact>>,
    profiles: Option<Patterns>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hold {
    Inside,
    Outside,
}

impl Hold {
    const WORDS: &[(Self, &str)] = &[(Self::Inside, "inside"), (Self::Outside, "outside")];
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Refuse,
    ReadOnly,
}

impl Mode {
    const WORDS: &[(Self, &str)] = &[(Self::Refuse, "refuse"), (Self::ReadOnly, "read-only")];
}

impl Policy for MaintenanceWindow {
    type Settings = Settings;

    fn describe() -> Description {
        Description::new("maintenance-window", env!("CARGO_PKG_VERSION"), include_str!("../settings.schema.json"))
            .concerns(["*"])
            .codes([MAINTENANCE, READ_ONLY_NOW])
    }

    fn configure(settings: Settings) -> Result<(Self, Vec<Bucket>), Vec<Problem>> {
        let mut problems = Problems::default();
        let numbered = settings.windows.into_iter().enumerate();
        let entries =
            numbered.map(|(index, entry)| Entry::read(entry, &format!("windows[{index}]"), &mut problems)).collect();
        problems.done((Self { entries }, Vec::new()))
    }

    fn evaluate(&self, request: &Request) -> Decision {
        let holding = || self.entries.iter().filter(|entry| entry.is_for(request) && entry.holds(request.now_ms));
        let operation = request.operation.as_str();
        if holding().any(|entry| entry.mode == Mode::Refuse) {
            let wait = holding()
                .filter(|entry| entry.mode == Mode::Refuse)
                .filter_map(|entry| entry.wait(request.now_ms))
                .max();
            return refuse(MAINTENANCE, format!("`{operation}` does not run at this time"), wait);
        }
        if request.impact == Impact::Reads || APART.contains(&operation) || holding().next().is_none() {
            return Decision::abstain();
        }
        if HELD.contains(&operation) {
            return Decision::abstain().demand(Obligation::ReadOnly);
        }
        let wait = holding().filter_map(|entry| entry.wait(request.now_ms)).max();
        refuse(
            READ_ONLY_NOW,
            format!("only reading is allowed at this time, and `{operation}` changes something"),
            wait,
        )
    }
}

/// Refuses, and says when to come again.
fn refuse(code: &str, what: String, wait_ms: Option<u64>) -> Decision {
    let again =
        wait_ms.map_or_else(String::new, |ms| format!("; it is allowed again in {} minutes", ms.div_ceil(60_000)));
    let mut decision = Decision::deny(code, format!("{what}{again}"), what);
    if let Verdict::Deny(Denial { retry_after_ms, .. }) = &mut decision.verdict {
        *retry_after_ms = wait_ms;
    }
    decision
}

impl Entry {
    fn read(entry: EntrySettings, path: &str, problems: &mut Problems) -> Self {
        if entry.time == WindowSettings::default() {
            problems.add(format!("{path}.time"), "the window is the whole week; name `days`, or `from` and `to`");
        }
        let hold = match &entry.hold {
            Some(word) => problems.word(&format!("{path}.hold"), word, Hold::WORDS),
            None => Some(Hold::Inside),
        };
        let mode = match &entry.mode {
            Some(word) => problems.word(&format!("{path}.mode"), word, Mode::WORDS),
            None => {
                problems.add(path, "the entry needs a `mode`: `refuse` or `read-only`");
                None
            }
        };
        let mut patterns = |name: &str, list: Option<Vec<String>>| {
            let path = format!("{path}.{name}");
            list.map(|list| {
                if list.is_empty() {
                    problems.add(&path, "an empty list matches nothing; leave it out to match everything");
                }
                Patterns::read(&list, &path, problems)
            })
        };
        let (operations, profiles) = (patterns("operations", entry.operations), patterns("profiles", entry.profiles));
        let impacts = entry.impacts.map(|words| {
            let path = format!("{path}.impacts");
            if words.is_empty() {
                problems.add(&path, "an empty list matches nothing; leave it out to match everything");
            }
            problems.words(&path, &words, Impact::WORDS)
        });
        Self {
            window: Window::read(&entry.time, &format!("{path}.time"), problems),
            hold: hold.unwrap_or(Hold::Inside),
            mode: mode.unwrap_or(Mode::Refuse),
            operations,
            impacts,
            profiles,
        }
    }

    fn is_for(&self, request: &Request) -> bool {
        // Not knowing where a call goes is no reason to let it go there.
        let profile = request.server.as_ref().map(|server| server.profile.as_str());
        self.operations.as_ref().is_none_or(|operations| operations.matches(&request.operation))
            && self.impacts.as_ref().is_none_or(|impacts| impacts.contains(&request.impact))
            && self.profiles.as_ref().is_none_or(|profiles| profile.is_none_or(|profile| profiles.matches(profile)))
    }

    fn holds(&self, now_ms: u64) -> bool {
        self.window.contains(now_ms) == (self.hold == Hold::Inside)
    }

    /// Returns how long it still holds.
    fn wait(&self, now_ms: u64) -> Option<u64> {
        match self.hold {
            Hold::Inside => self.window.ms_to_end(now_ms),
            Hold::Outside => self.window.ms_to_begin(now_ms),
        }
    }
}

pgsandbox_policy::export!(MaintenanceWindow);

#[cfg(test)]
mod tests {
    use pgsandbox_policy::testing;

    use super::*;

    #[test]
    fn the_description_fits_the_settings() {
        testing::check_description::<MaintenanceWindow>(include_str!("../default.json"));
    }

    #[test]
    fn the_cases_come_out_as_expected() {
        testing::check_cases::<MaintenanceWindow>(include_str!("../cases.toml"), include_str!("../default.json"));
    }

    /// Monday, 2027-01-04, 22:30 in UTC.
    const NOW_MS: u64 = 1_799_101_800_000;

    fn wait(settings: &str) -> Option<u64> {
        let policy: MaintenanceWindow = testing::configured(settings);
        let mut request = testing::request("delete_database");
        request.now_ms = NOW_MS;
        match policy.evaluate(&request).verdict {
            Verdict::Deny(denial) => denial.retry_after_ms,
            Verdict::Pass | Verdict::Abstain => panic!("not refused"),
        }
    }

    #[test]
    fn a_refusal_says_when_to_come_again() {
        const HOUR_MS: u64 = 3_600_000;
        let night = r#"{"windows":[{"mode":"refuse","time":{"from":"22:00","to":"06:00"}}]}"#;
        assert_eq!(wait(night), Some(7 * HOUR_MS + HOUR_MS / 2));
        let office = r#"{"windows":[{"mode":"read-only","hold":"outside","time":{"days":["tue"],"from":"08:00","to":"18:00"}}]}"#;
        assert_eq!(wait(office), Some(9 * HOUR_MS + HOUR_MS / 2));
        let both = r#"{"windows":[{"mode":"refuse","time":{"from":"22:00","to":"06:00"}},{"mode":"refuse","time":{"from":"22:00","to":"23:00"}}]}"#;
        assert_eq!(wait(both), Some(7 * HOUR_MS + HOUR_MS / 2));
    }

    #[test]
    fn every_fault_is_reported() {
        let settings = r#"{"windows":[{},{"mode":"stop","hold":"near","time":{"from":"8"},"operations":[],"profiles":[""],"impacts":["x"]}]}"#;
        let paths: Vec<_> =
            testing::problems::<MaintenanceWindow>(settings).into_iter().map(|(path, _)| path).collect();
        assert_eq!(
            paths,
            [
                "windows[0].time",
                "windows[0]",
                "windows[1].hold",
                "windows[1].mode",
                "windows[1].operations",
                "windows[1].profiles[0]",
                "windows[1].impacts[0]",
                "windows[1].time.from"
            ]
        );
    }
}
