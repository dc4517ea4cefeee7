//! What stands out in a plan of EXPLAIN (FORMAT JSON): costs, rows, large scans, wrong estimates, work that went to disk.
//!
//! It judges by the numbers of the plan alone, and names steps and relations as the plan does; a condition's text is never
//! repeated outside the plan, as it holds the caller's own values.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value, json};

/// A sequential scan that reads so many rows is worth a word: an index may be missing.
const SCAN_ROWS_LARGE: f64 = 10_000.0;
/// The same where the statement was not run, as the planner's cost of the scan: about that of so many rows.
const SCAN_COST_LARGE: f64 = 1000.0;
/// An estimate that is wrong by so many times is worth a word.
const MISJUDGED_TIMES: f64 = 10.0;
/// Fewer rows than this make no difference, however wrong their estimate is.
const MISJUDGED_ROWS: f64 = 100.0;
/// The most words about a plan; more are counted.
const FINDINGS_MAX: usize = 20;
/// The longest name that is repeated, in characters.
const NAME_CHARS_MAX: usize = 128;
/// The deepest plan that is nested; common readers stop at 128 levels, and the reply around it has levels of its own.
const DEPTH_MAX: usize = 100;
/// What a step keeps where the plan as a whole does not fit.
const OUTLINE: [&str; 9] = [
    "Node Type",
    "Join Type",
    "Relation Name",
    "Index Name",
    "Total Cost",
    "Plan Rows",
    "Actual Rows",
    "Actual Loops",
    "Actual Total Time",
];

/// What stands out in a plan.
#[derive(Debug, Default, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct PlanSummary {
    /// The planner's cost of the whole.
    total_cost: f64,
    /// Rows that the planner expects.
    estimated_rows: f64,
    /// Rows that came, with `analyze`.
    #[serde(skip_serializing_if = "Option::is_none")]
    actual_rows: Option<f64>,
    /// Time for the plan, with `analyze`.
    #[serde(skip_serializing_if = "Option::is_none")]
    planning_ms: Option<f64>,
    /// Time for the statement, with `analyze`; triggers included.
    #[serde(skip_serializing_if = "Option::is_none")]
    execution_ms: Option<f64>,
    /// How many steps of each kind there are.
    steps: BTreeMap<String, u64>,
    /// What may cost more than it needs to, in the order of the plan.
    findings: Vec<String>,
    /// How many further findings were left out.
    findings_dropped: u64,
    /// Whether an estimate is among them.
    #[serde(skip)]
    misjudged: bool,
}

/// Reads the server's text; what nests deeper than a reader may go stays a text.
pub(super) fn read(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned()))
}

/// Returns a plan that takes at most `bytes`: the whole, or its outline, or nothing; and whether it is not whole.
pub(super) fn within(plan: Value, bytes: u64) -> (Value, bool) {
    let fits = |plan: &Value| serde_json::to_string(plan).is_ok_and(|text| text.len() as u64 <= bytes);
    if plan.is_null() {
        return (plan, true);
    }
    if depth(&plan) > DEPTH_MAX {
        let text = Value::String(plan.to_string());
        return if fits(&text) { (text, false) } else { (Value::Null, true) };
    }
    if fits(&plan) {
        return (plan, false);
    }
    let outline = Value::Array(queries(&plan).map(|query| json!({"Plan": outline(query)})).collect());
    if !outline.as_array().is_some_and(Vec::is_empty) && fits(&outline) { (outline, true) } else { (Value::Null, true) }
}

/// Returns how deep a value nests. The reader has bounded it.
fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or_default(),
        Value::Object(fields) => 1 + fields.values().map(depth).max().unwrap_or_default(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}

fn outline(step: &Map<String, Value>) -> Value {
    let mut kept: Map<String, Value> =
        OUTLINE.iter().filter_map(|key| Some(((*key).to_owned(), step.get(*key)?.clone()))).collect();
    let below: Vec<Value> = steps_below(step).map(outline).collect();
    if !below.is_empty() {
        kept.insert("Plans".to_owned(), Value::Array(below));
    }
    Value::Object(kept)
}

/// Returns the topmost step of each query.
fn queries(plan: &Value) -> impl Iterator<Item = &Map<String, Value>> {
    plan.as_array().into_iter().flatten().filter_map(|query| query.get("Plan")?.as_object())
}

fn steps_below(step: &Map<String, Value>) -> impl Iterator<Item = &Map<String, Value>> {
    step.get("Plans").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_object)
}

fn number(step: &Map<String, Value>, key: &str) -> Option<f64> {
    step.get(key).and_then(Value::as_f64)
}

/// Returns a name of the plan's, shortened, and without what would move a terminal.
fn name(step: &Map<String, Value>, key: &str) -> Option<String> {
    let text = step.get(key)?.as_str()?;
    Some(text.chars().filter(|c| !c.is_control()).take(NAME_CHARS_MAX).collect())
}

/// Writes a count or a cost for people.
fn shown(value: f64) -> String {
    if value.fract() == 0.0 { format!("{value:.0}") } else { format!("{value:.2}") }
}

impl PlanSummary {
    /// Looks a plan through.
    pub(super) fn of(plan: &Value) -> Self {
        let mut summary = Self::default();
        for query in queries(plan) {
            summary.total_cost += number(query, "Total Cost").unwrap_or_default();
            summary.estimated_rows += number(query, "Plan Rows").unwrap_or_default();
            add(&mut summary.actual_rows, number(query, "Actual Rows"));
            summary.look_at(query);
        }
        if summary.misjudged {
            let text = "estimates are made of statistics: `analyze` the tables that were filled since it last ran";
            summary.find(text.to_owned());
        }
        for query in plan.as_array().into_iter().flatten().filter_map(Value::as_object) {
            add(&mut summary.planning_ms, number(query, "Planning Time"));
            add(&mut summary.execution_ms, number(query, "Execution Time"));
            for trigger in query.get("Triggers").and_then(Value::as_array).into_iter().flatten() {
                summary.look_at_trigger(trigger);
            }
        }
        summary
    }

    /// Says it in one line.
    pub(super) fn line(&self) -> String {
        if self.steps.is_empty() {
            return "the plan is too long or too deep to be summed up".to_owned();
        }
        let rows = match self.actual_rows {
            Some(actual) => format!("{} rows where {} were expected", shown(actual), shown(self.estimated_rows)),
            None => format!("{} rows expected", shown(self.estimated_rows)),
        };
        let time = self.execution_ms.map_or(String::new(), |ms| format!(", {ms:.1} ms"));
        let worth = match self.findings.len() as u64 + self.findings_dropped {
            0 => String::new(),
            1 => "; 1 finding".to_owned(),
            many => format!("; {many} findings"),
        };
        format!("{}: cost {}, {rows}{time}{worth}", self.kinds(), shown(self.total_cost))
    }

    fn kinds(&self) -> String {
        let kind = |(kind, count): (&String, &u64)| match count {
            1 => kind.clone(),
            many => format!("{kind} ×{many}"),
        };
        self.steps.iter().map(kind).collect::<Vec<_>>().join(", ")
    }

    fn look_at(&mut self, step: &Map<String, Value>) {
        let kind = name(step, "Node Type").unwrap_or_default();
        *self.steps.entry(kind.clone()).or_default() += 1;
        let of = name(step, "Relation Name").or_else(|| name(step, "Index Name"));
        let what = of.map_or(format!("`{kind}`"), |of| format!("`{kind}` on `{of}`"));
        self.look_at_scan(step, &kind, &what);
        self.look_at_estimate(step, &what);
        self.look_at_disk(step, &what);
        steps_below(step).for_each(|below| self.look_at(below));
    }

    fn look_at_scan(&mut self, step: &Map<String, Value>, kind: &str, what: &str) {
        if !kind.ends_with("Seq Scan") {
            return;
        }
        let loops = number(step, "Actual Loops").unwrap_or(1.0);
        let filtered = number(step, "Rows Removed by Filter").unwrap_or_default();
        match number(step, "Actual Rows") {
            // One that gives whatever it reads is what was asked for.
            Some(rows) if filtered > 0.0 && (rows + filtered) * loops >= SCAN_ROWS_LARGE => {
                let (all, kept) = (shown((rows + filtered) * loops), shown(rows * loops));
                self.find(format!("{what} read {all} rows for {kept}"));
            }
            Some(_) => {}
            None => {
                let cost = number(step, "Total Cost").unwrap_or_default();
                let rows = number(step, "Plan Rows").unwrap_or_default();
                if cost >= SCAN_COST_LARGE || rows >= SCAN_ROWS_LARGE {
                    self.find(format!("{what} reads the whole table: cost {} for {} rows", shown(cost), shown(rows)));
                }
            }
        }
    }

    fn look_at_estimate(&mut self, step: &Map<String, Value>, what: &str) {
        let (Some(actual), Some(expected)) = (number(step, "Actual Rows"), number(step, "Plan Rows")) else { return };
        if number(step, "Actual Loops").unwrap_or_default() < 1.0 || actual.max(expected) < MISJUDGED_ROWS {
            return;
        }
        let times = (actual.max(1.0) / expected.max(1.0)).max(expected.max(1.0) / actual.max(1.0));
        if times >= MISJUDGED_TIMES {
            let (actual, expected) = (shown(actual), shown(expected));
            self.find(format!("{what} gave {actual} rows where {expected} were expected, {times:.0} times wrong"));
            self.misjudged = true;
        }
    }

    fn look_at_disk(&mut self, step: &Map<String, Value>, what: &str) {
        if name(step, "Sort Space Type").is_some_and(|place| place == "Disk") {
            let kib = number(step, "Sort Space Used").unwrap_or_default();
            self.find(format!("{what} sorted on disk, in {} kB: more than work_mem", shown(kib)));
        }
        if let Some(batches) = number(step, "Hash Batches").filter(|batches| *batches > 1.0) {
            self.find(format!("{what} took {} batches: its table is more than work_mem", shown(batches)));
        }
        if let Some(kib) = number(step, "Disk Usage").filter(|kib| *kib > 0.0) {
            self.find(format!("{what} used {} kB of disk: more than work_mem", shown(kib)));
        }
        if let Some(blocks) = number(step, "Lossy Heap Blocks").filter(|blocks| *blocks > 0.0) {
            self.find(format!("{what} kept no single rows of {} blocks: more than work_mem", shown(blocks)));
        }
    }

    fn look_at_trigger(&mut self, trigger: &Value) {
        let Some(trigger) = trigger.as_object() else { return };
        let ms = number(trigger, "Time").unwrap_or_default();
        let calls = number(trigger, "Calls").unwrap_or_default();
        let called = name(trigger, "Trigger Name").or_else(|| name(trigger, "Constraint Name")).unwrap_or_default();
        self.find(format!("trigger `{called}` took {ms:.1} ms in {} calls", shown(calls)));
    }

    fn find(&mut self, finding: String) {
        if self.findings.len() < FINDINGS_MAX { self.findings.push(finding) } else { self.findings_dropped += 1 }
    }
}

fn add(sum: &mut Option<f64>, value: Option<f64>) {
    if let Some(value) = value {
        *sum = Some(sum.unwrap_or_default() + value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(kind: &str, more: Value) -> Value {
        let mut step = json!({"Node Type": kind, "Total Cost": 10.5, "Plan Rows": 5});
        step.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        step
    }

    fn findings(step: Value) -> Vec<String> {
        PlanSummary::of(&json!([{"Plan": step}])).findings
    }

    #[test]
    fn a_plan_is_summed_up_in_one_line() {
        let scan = |name| step("Seq Scan", json!({"Relation Name": name}));
        let plan = step("Hash Join", json!({"Plans": [scan("a"), step("Hash", json!({"Plans": [scan("b")]}))]}));
        let summary = PlanSummary::of(&json!([{"Plan": plan}]));
        assert_eq!(summary.line(), "Hash, Hash Join, Seq Scan ×2: cost 10.50, 5 rows expected");
        let timed =
            json!([{"Plan": step("Result", json!({"Actual Rows": 5.0, "Actual Loops": 1})), "Execution Time": 1.25}]);
        assert_eq!(PlanSummary::of(&timed).line(), "Result: cost 10.50, 5 rows where 5 were expected, 1.2 ms");
        for nothing in [json!(null), json!("deep"), json!([]), json!([{"Plan": 1}]), json!({})] {
            assert_eq!(PlanSummary::of(&nothing).line(), "the plan is too long or too deep to be summed up");
        }
    }

    #[test]
    fn scans_estimates_and_work_on_disk_stand_out() {
        let large = json!({"Relation Name": "t", "Actual Rows": 5, "Actual Loops": 2, "Rows Removed by Filter": 9000});
        assert_eq!(findings(step("Seq Scan", large)), ["`Seq Scan` on `t` read 18010 rows for 10"]);
        let planned = json!({"Relation Name": "t", "Total Cost": 1834.0});
        assert_eq!(
            findings(step("Seq Scan", planned)),
            ["`Seq Scan` on `t` reads the whole table: cost 1834 for 5 rows"]
        );
        let wrong = json!({"Actual Rows": 400.0, "Actual Loops": 1, "Index Name": "i"});
        assert_eq!(
            findings(step("Index Scan", wrong)),
            [
                "`Index Scan` on `i` gave 400 rows where 5 were expected, 80 times wrong",
                "estimates are made of statistics: `analyze` the tables that were filled since it last ran"
            ]
        );
        let whole = json!({"Relation Name": "t", "Actual Rows": 9000, "Actual Loops": 1, "Plan Rows": 9000});
        assert_eq!(findings(step("Seq Scan", whole)), [""; 0], "it gives what it reads");
        let never = json!({"Actual Rows": 0, "Actual Loops": 0, "Plan Rows": 4000});
        assert_eq!(findings(step("Index Scan", never)), [""; 0]);
        let sort = json!({"Sort Space Type": "Disk", "Sort Space Used": 640});
        assert_eq!(findings(step("Sort", sort)), ["`Sort` sorted on disk, in 640 kB: more than work_mem"]);
        assert_eq!(findings(step("Sort", json!({"Sort Space Type": "Memory"}))), [""; 0]);
        let hash = json!({"Hash Batches": 4});
        assert_eq!(findings(step("Hash", hash)), ["`Hash` took 4 batches: its table is more than work_mem"]);
    }

    #[test]
    fn findings_over_the_limit_are_counted() {
        let scans: Vec<_> = (0..30).map(|_| step("Seq Scan", json!({"Total Cost": 5000}))).collect();
        let summary = PlanSummary::of(&json!([{"Plan": step("Append", json!({"Plans": scans}))}]));
        assert_eq!((summary.findings.len(), summary.findings_dropped), (FINDINGS_MAX, 10));
    }

    #[test]
    fn a_plan_that_does_not_fit_is_shown_in_outline_or_not_at_all() {
        let plan =
            json!([{"Plan": step("Sort", json!({"Filter": "x".repeat(500), "Plans": [step("Result", json!({}))]}))}]);
        assert_eq!(within(plan.clone(), 1000), (plan.clone(), false));
        let outline = json!([{"Plan": step("Sort", json!({"Plans": [step("Result", json!({}))]}))}]);
        assert_eq!(within(plan.clone(), 400), (outline, true));
        assert_eq!(within(plan, 40), (Value::Null, true));
        assert_eq!(within(json!("a text"), 4), (Value::Null, true));
        assert_eq!(within(Value::Null, 4), (Value::Null, true));
    }

    #[test]
    fn names_are_cut_and_drive_no_terminal() {
        let said = findings(step("Seq Scan", json!({"Relation Name": "\u{1b}[2J".repeat(400), "Total Cost": 5000})));
        assert!(said[0].len() < 300 && !said[0].contains('\u{1b}'), "{said:?}");
    }

    #[test]
    fn a_plan_of_any_depth_is_read_or_stays_a_text() {
        let deep = format!("{}1{}", "[".repeat(5000), "]".repeat(5000));
        assert_eq!(read(&deep), Value::String(deep.clone()));
        let nested = read(&format!("{}1{}", "[".repeat(DEPTH_MAX + 1), "]".repeat(DEPTH_MAX + 1)));
        assert_eq!(within(nested.clone(), 1000), (Value::String(nested.to_string()), false));
        let nested = read(&format!("{}1{}", "[".repeat(DEPTH_MAX), "]".repeat(DEPTH_MAX)));
        assert_eq!(within(nested.clone(), 1000), (nested, false));
    }
}
