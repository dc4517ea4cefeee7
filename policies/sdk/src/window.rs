//! Windows of the week: weekdays and a time of day, at an offset from UTC.
//!
//! The time is the request's. There are no time zones here, as a policy has no clock and no rules of summer time: the
//! offset is a number of minutes. A window over midnight belongs to the day on which it begins.

use crate::Problems;

const DAY_MINUTES: i64 = 24 * 60;
const WEEK_MINUTES: i64 = 7 * DAY_MINUTES;
const MINUTE_MS: u64 = 60_000;
/// The furthest offsets that are in use, in minutes.
const OFFSET_MINUTES_MAX: i64 = 14 * 60;
/// Weekdays, Monday first.
const DAYS: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];

/// A window as settings write it.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WindowSettings {
    /// `mon` to `sun`; absent: every day.
    pub days: Option<Vec<String>>,
    /// `HH:MM`; absent: the day's beginning.
    pub from: Option<String>,
    /// `HH:MM`, not in the window any more; absent: the day's end.
    pub to: Option<String>,
    /// Minutes that local time is ahead of UTC; absent: none.
    pub utc_offset_minutes: Option<i64>,
}

/// A window of the week.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// A bit for each weekday, Monday's the lowest.
    days: u8,
    from: i64,
    /// Later than `from`, and past the day's end where the window goes over midnight.
    to: i64,
    offset: i64,
}

impl Window {
    /// Reads a window; faults are reported under `path`.
    pub fn read(settings: &WindowSettings, path: &str, problems: &mut Problems) -> Self {
        let days = match &settings.days {
            None => 0b111_1111,
            Some(words) if words.is_empty() => {
                problems.add(format!("{path}.days"), "an empty list is no day; leave it out for every day");
                0
            }
            Some(words) => {
                let known: Vec<(u8, &str)> = (0..).zip(DAYS).collect();
                let days = problems.words(&format!("{path}.days"), words, &known);
                days.into_iter().fold(0, |mask, day| mask | 1 << day)
            }
        };
        let mut time = |name: &str, text: &Option<String>, absent: i64| match text {
            None => absent,
            Some(text) => minutes(text).unwrap_or_else(|| {
                problems.add(
                    format!("{path}.{name}"),
                    format!("`{text}` is no time of day; write `HH:MM`, `24:00` at most"),
                );
                absent
            }),
        };
        let (from, mut to) = (time("from", &settings.from, 0), time("to", &settings.to, DAY_MINUTES));
        if from == DAY_MINUTES {
            problems.add(format!("{path}.from"), "no window begins at the day's end; write `00:00`");
        } else if from == to {
            problems.add(
                path,
                "the window ends where it begins and holds no time; leave `from` and `to` out for whole days",
            );
        }
        if to <= from {
            to += DAY_MINUTES;
        }
        let offset = settings.utc_offset_minutes.unwrap_or(0);
        if offset.abs() > OFFSET_MINUTES_MAX {
            let message = format!("{offset} is not from -{OFFSET_MINUTES_MAX} to {OFFSET_MINUTES_MAX} minutes");
            problems.add(format!("{path}.utc_offset_minutes"), message);
            return Self { days, from, to, offset: 0 };
        }
        Self { days, from, to, offset }
    }

    /// Returns whether the time, in milliseconds since 1970 in UTC, lies in the window.
    pub fn contains(&self, now_ms: u64) -> bool {
        self.ms_to_end(now_ms).is_some()
    }

    /// Returns how long the window that the time lies in still lasts, if it lies in one. Windows that join each other are
    /// one; a window of the whole week has no end.
    pub fn ms_to_end(&self, now_ms: u64) -> Option<u64> {
        let minute = self.minute_of_week(now_ms);
        let mut end = self.end_at(minute)?;
        // Each join takes it at least a minute on; seven are a week.
        for _ in DAYS {
            match self.end_at((minute + end).rem_euclid(WEEK_MINUTES)) {
                Some(more) => end += more,
                None => break,
            }
        }
        Some(until(end, now_ms))
    }

    /// Returns how long it takes until a window begins, if the time lies in none and there is one.
    pub fn ms_to_begin(&self, now_ms: u64) -> Option<u64> {
        let minute = self.minute_of_week(now_ms);
        let begins = (0_i64..7).filter(|day| self.has(*day)).map(|day| day * DAY_MINUTES + self.from);
        let away = begins.map(|begin| (begin - minute).rem_euclid(WEEK_MINUTES)).min()?;
        (!self.contains(now_ms)).then(|| until(away, now_ms))
    }

    fn minute_of_week(&self, now_ms: u64) -> i64 {
        let minute = i64::try_from(now_ms / MINUTE_MS).unwrap_or_default() + self.offset;
        // The first of January 1970 was a Thursday.
        (minute + 3 * DAY_MINUTES).rem_euclid(WEEK_MINUTES)
    }

    fn has(&self, day: i64) -> bool {
        self.days & 1 << day.rem_euclid(7) != 0
    }

    /// Returns the minutes to the end of the window that a minute of the week lies in.
    fn end_at(&self, minute: i64) -> Option<i64> {
        let (day, minute) = (minute / DAY_MINUTES, minute % DAY_MINUTES);
        let begun_today = self.has(day) && (self.from..self.to).contains(&minute);
        let since_yesterday = minute + DAY_MINUTES;
        let begun_yesterday = self.has(day - 1) && (self.from..self.to).contains(&since_yesterday);
        let ends = [begun_today.then_some(self.to - minute), begun_yesterday.then_some(self.to - since_yesterday)];
        ends.into_iter().flatten().max()
    }
}

/// Returns the milliseconds from a time to so many minutes after its minute began.
fn until(minutes: i64, now_ms: u64) -> u64 {
    let ms = u64::try_from(minutes).unwrap_or_default() * MINUTE_MS;
    ms.saturating_sub(now_ms % MINUTE_MS)
}

/// Reads `HH:MM` as minutes of the day.
fn minutes(text: &str) -> Option<i64> {
    let (hours, minutes) = text.split_once(':')?;
    let number = |text: &str| {
        (text.len() == 2 && text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse::<i64>().ok()).flatten()
    };
    let (hours, minutes) = (number(hours)?, number(minutes)?);
    let all = hours * 60 + minutes;
    (minutes < 60 && all <= DAY_MINUTES).then_some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Monday, 2027-01-04, at midnight in UTC.
    const MONDAY_MS: u64 = 1_799_020_800_000;

    fn window(days: &[&str], from: &str, to: &str, offset: i64) -> Window {
        let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let settings = WindowSettings {
            days: (!days.is_empty()).then(|| days.iter().map(|day| (*day).to_owned()).collect()),
            from: text(from),
            to: text(to),
            utc_offset_minutes: Some(offset),
        };
        let mut problems = Problems::default();
        let window = Window::read(&settings, "time", &mut problems);
        problems.done(window).unwrap()
    }

    fn at(day: u64, time: &str) -> u64 {
        MONDAY_MS + day * 86_400_000 + u64::try_from(minutes(time).unwrap()).unwrap() * MINUTE_MS
    }

    fn check(window: Window, day: u64, time: &str, inside: bool) {
        assert_eq!(window.contains(at(day, time)), inside, "{window:?} at {time} of day {day}");
    }

    #[test]
    fn a_window_is_of_its_days_and_hours() {
        let office = window(&["mon", "fri"], "08:00", "17:30", 0);
        check(office, 0, "07:59", false);
        check(office, 0, "08:00", true);
        check(office, 0, "17:29", true);
        check(office, 0, "17:30", false);
        check(office, 1, "12:00", false);
        check(office, 4, "12:00", true);
        check(window(&["sun"], "", "", 0), 6, "00:00", true);
        check(window(&["sun"], "", "", 0), 0, "00:00", false);
    }

    #[test]
    fn a_window_over_midnight_is_of_the_day_it_begins_on() {
        let night = window(&["sun"], "22:00", "06:00", 0);
        check(night, 6, "21:59", false);
        check(night, 6, "22:00", true);
        check(night, 0, "05:59", true);
        check(night, 0, "06:00", false);
        check(night, 0, "22:00", false);
        check(window(&[], "12:00", "00:00", 0), 0, "23:59", true);
        check(window(&[], "12:00", "00:00", 0), 0, "00:00", false);
    }

    #[test]
    fn an_offset_moves_day_and_hour() {
        let monday = window(&["mon"], "", "", 120);
        assert!(monday.contains(MONDAY_MS - 7_200_000) && !monday.contains(MONDAY_MS - 7_200_001));
        assert!(window(&["sun"], "", "", -60).contains(MONDAY_MS));
        assert!(window(&["thu"], "", "", 0).contains(0) && window(&["wed"], "", "", -60).contains(0));
    }

    #[test]
    fn the_time_to_an_end_and_to_a_beginning_are_exact() {
        let night = window(&["sun"], "22:00", "06:00", 0);
        assert_eq!(night.ms_to_end(at(6, "23:00") + 1), Some(7 * 3_600_000 - 1));
        assert_eq!(night.ms_to_begin(at(6, "21:00") + 1), Some(3_600_000 - 1));
        assert_eq!(night.ms_to_begin(at(0, "06:00")), Some((7 * 24 - 8) * 3_600_000));
        assert_eq!((night.ms_to_end(at(1, "00:00")), night.ms_to_begin(at(6, "22:00"))), (None, None));
        let weekend = window(&["sat", "sun"], "", "", 0);
        assert_eq!(weekend.ms_to_end(at(5, "00:00")), Some(48 * 3_600_000), "days that join are one window");
    }

    #[test]
    fn every_fault_of_a_window_is_reported() {
        let settings = WindowSettings {
            days: Some(vec!["monday".into()]),
            from: Some("8:00".into()),
            to: Some("24:01".into()),
            utc_offset_minutes: Some(841),
        };
        let mut problems = Problems::default();
        Window::read(&settings, "t", &mut problems);
        let none =
            WindowSettings { days: Some(vec![]), from: Some("08:00".into()), to: Some("08:00".into()), ..settings };
        Window::read(&WindowSettings { utc_offset_minutes: None, ..none }, "u", &mut problems);
        let paths: Vec<_> = problems.done(()).unwrap_err().into_iter().map(|p| p.path).collect();
        assert_eq!(paths, ["t.days[0]", "t.from", "t.to", "t.utc_offset_minutes", "u.days", "u"]);
    }
}
