//! Looks at a component as a server would when it loads it, and finds everything wrong at once.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::cases::{Case, GivenSandbox, Operations, Word};
use super::subject::{Found, Subject};
use crate::model::{Bucket, Impact, Phase, PolicyDecision, PolicyFault, Verdict};
use crate::policy::wasm::{Anatomy, Host, WORLD_EXPORTS, anatomy};
use crate::policy::{COMPONENT_BYTES_MAX, Description, MEMORY_BYTES_DEFAULT, MEMORY_BYTES_MAX};

/// A stack from which on a fresh instance costs noticeably more, in bytes.
const STACK_BYTES_ADVISED: u64 = 64 << 10;
/// A key that no policy's settings have.
const UNKNOWN_KEY: &str = "no_policy_has_this_key";

/// What was found of a component.
#[derive(Clone, Debug)]
pub struct Checked {
    /// The name that the policy goes by here.
    pub name: String,
    /// The component's digest.
    pub sha256: String,
    /// Its size.
    pub component_bytes: usize,
    /// What it is made of, if it can be read.
    pub anatomy: Option<Anatomy>,
    /// What it says of itself, if it can be loaded.
    pub description: Option<Description>,
    /// The buckets that it makes of its settings.
    pub buckets: Vec<Bucket>,
    /// What evaluations start from, in bytes.
    pub snapshot_bytes: Option<usize>,
    /// One evaluation for each operation and phase that it wants to see.
    pub tried: Vec<Tried>,
    /// What a server would refuse, or what would refuse every request.
    pub faults: Vec<Finding>,
    /// What is allowed and seldom meant.
    pub notes: Vec<Finding>,
}

/// Something found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Where: `imports`, `memory`, `settings.max_live`, `evaluate(run_sql, before)` for instance.
    pub place: String,
    /// What is wrong, and what to do.
    pub message: String,
}

/// A plain request of one operation, evaluated.
#[derive(Clone, Debug)]
pub struct Tried {
    /// The operation.
    pub operation: String,
    /// When it was asked.
    pub phase: Phase,
    /// What came.
    pub answer: Result<PolicyDecision, PolicyFault>,
    /// Fuel it took.
    pub fuel: u64,
    /// The largest its memory was.
    pub memory_bytes: usize,
}

/// Findings on their way.
#[derive(Default)]
struct Findings {
    faults: Vec<Finding>,
    notes: Vec<Finding>,
}

impl Findings {
    fn fault(&mut self, place: impl Into<String>, message: impl Into<String>) {
        self.faults.push(Finding { place: place.into(), message: message.into() });
    }

    fn note(&mut self, place: impl Into<String>, message: impl Into<String>) {
        self.notes.push(Finding { place: place.into(), message: message.into() });
    }
}

/// Checks a component. `settings` are in the place of its folder's.
pub fn run(host: &Host, found: Found, settings: Option<Map<String, Value>>, operations: &Operations) -> Checked {
    let mut findings = Findings::default();
    let bytes = found.component.bytes();
    if bytes.len() > COMPONENT_BYTES_MAX {
        findings.fault("size", format!("{} bytes, over the limit of {COMPONENT_BYTES_MAX}", bytes.len()));
    }
    let parts = anatomy(bytes).ok();
    let mut checked = Checked {
        name: found.name.clone(),
        sha256: found.component.sha256().to_owned(),
        component_bytes: bytes.len(),
        anatomy: parts.clone(),
        description: None,
        buckets: Vec::new(),
        snapshot_bytes: None,
        tried: Vec::new(),
        faults: Vec::new(),
        notes: Vec::new(),
    };
    let settings = settings.or_else(|| found.settings.clone());
    let parts = parts.unwrap_or_default();
    memory(&parts, &mut findings);
    match Subject::load(host, found, settings.clone()) {
        Ok(mut subject) => {
            described(subject.description(), operations, &mut findings);
            checked.description = Some(subject.description().clone());
            configured(&mut subject, settings, operations, &mut checked, &mut findings);
        }
        Err(fault) => {
            let missing: Vec<&str> =
                WORLD_EXPORTS.into_iter().filter(|name| !parts.exports.iter().any(|export| export == name)).collect();
            let is_component = checked.anatomy.is_some();
            let place = match (parts.imports.is_empty(), missing.is_empty()) {
                (false, _) => "imports",
                (true, false) if is_component => "exports",
                (true, _) => "component",
            };
            findings.fault(place, fault);
            // The loader stops at the imports.
            if place == "imports" && !missing.is_empty() {
                findings.fault("exports", format!("`{}` is missing; world `policy` has it", missing.join("`, `")));
            }
        }
    }
    Checked { faults: findings.faults, notes: findings.notes, ..checked }
}

fn memory(parts: &Anatomy, findings: &mut Findings) {
    let (limit, most) = (as_u64(MEMORY_BYTES_DEFAULT), as_u64(MEMORY_BYTES_MAX));
    for memory in &parts.memories {
        let min = memory.min_bytes;
        if min > most {
            findings
                .fault("memory", format!("it begins with {min} bytes, over the {most} that a policy can have at most"));
        } else if min > limit {
            let kib = min >> 10;
            findings.fault(
                "memory",
                format!("it begins with {min} bytes, over the {limit} that a policy has unless its `limits.memory_kib` is {kib} or more"),
            );
        }
    }
    if let Some(stack) = parts.stack_bytes.filter(|stack| *stack > STACK_BYTES_ADVISED) {
        findings.note(
            "memory",
            format!("its stack seems to have {stack} bytes, which every evaluation pays for; link it with {STACK_BYTES_ADVISED} or less (for Rust: `-C link-arg=-zstack-size={STACK_BYTES_ADVISED}`)"),
        );
    }
}

fn as_u64(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

fn described(description: &Description, operations: &Operations, findings: &mut Findings) {
    let Description { covers, concerns, codes, .. } = description;
    for (place, words) in [("covers", covers), ("concerns", concerns), ("codes", codes)] {
        let mut seen = BTreeSet::new();
        for word in words {
            if !seen.insert(word) {
                findings.note(format!("describe.{place}"), format!("`{word}` is named twice"));
            }
        }
    }
    let wide = |list: &[String]| list.iter().any(|name| name == "*");
    for name in covers.iter().filter(|name| !wide(concerns) && !concerns.contains(name)) {
        findings.note(
            "describe.concerns",
            format!("`{name}` is covered and not named here; what is covered is to be seen as well"),
        );
    }
    let unknown: BTreeSet<&String> =
        covers.iter().chain(concerns).filter(|name| *name != "*" && operations.find(name).is_none()).collect();
    for name in unknown {
        findings.note("describe.concerns", format!("`{name}` is no operation of this version"));
    }
    if covers.is_empty() && concerns.is_empty() {
        findings.note("describe.concerns", "it wants to see nothing, and is never asked");
    }
    schema(&description.settings_schema, findings);
}

fn schema(text: &str, findings: &mut Findings) {
    let place = "describe.settings-schema";
    match serde_json::from_str::<Value>(text) {
        Ok(Value::Object(schema)) => match schema.get("type") {
            Some(kind) if kind == "object" => {}
            Some(kind) => findings.fault(place, format!("it describes {kind}, and settings are an object; `type` must be \"object\"")),
            None => findings.note(place, "it has no `type`; write \"object\", with a property for each key, so that faults of settings are told with their place"),
        },
        Ok(_) => findings.fault(place, "it is no JSON object; a JSON Schema of an object is wanted"),
        Err(error) => findings.fault(place, format!("it is no JSON (line {}, column {}); a JSON Schema of an object is wanted", error.line(), error.column())),
    }
}

fn configured(
    subject: &mut Subject,
    settings: Option<Map<String, Value>>,
    operations: &Operations,
    checked: &mut Checked,
    findings: &mut Findings,
) {
    let set = match subject.configured(None, false) {
        Ok(set) => set,
        Err(faults) => {
            for fault in faults {
                findings.fault(fault.path, fault.message);
            }
            return;
        }
    };
    let mut with_unknown = settings.unwrap_or_default();
    with_unknown.insert(UNKNOWN_KEY.to_owned(), Value::Bool(true));
    if subject.configured(Some(&with_unknown), false).is_ok() {
        findings.note(
            "settings",
            "keys that it does not know are taken; a slip of the pen in the policy file would not be told",
        );
    }
    checked.snapshot_bytes = set.snapshot_bytes(subject.name());
    let wanted = wanted(subject.description(), operations);
    for (operation, impact, phase) in wanted {
        let case = Case {
            operation: Some(operation.clone()),
            impact: Some(Word(impact)),
            phase: Some(Word(phase)),
            sandbox: Some(GivenSandbox::default()),
            ..Case::default()
        };
        let Ok(asked) = case.asked(operations, subject.name()) else { continue };
        if checked.buckets.is_empty() {
            checked.buckets = set.buckets(&asked.context).into_iter().map(|(_, bucket)| bucket).collect();
        }
        let Some(evaluation) = set.evaluate(subject.name(), &asked.context, &[]) else { continue };
        let place = format!("evaluate({operation}, {})", phase.as_str());
        match &evaluation.answer {
            Err(PolicyFault { code, detail }) => findings.fault(place, format!("{detail} (`{}`)", code.as_str())),
            Ok(decision) if decision.verdict == Verdict::Pass && !subject.description().covers(&operation) => {
                findings.note(place, "it passes what it does not cover; a pass counts only for operations of `covers`, and who only limits abstains");
            }
            Ok(_) => {}
        }
        checked.tried.push(Tried {
            operation,
            phase,
            answer: evaluation.answer,
            fuel: evaluation.fuel,
            memory_bytes: evaluation.memory_bytes,
        });
    }
}

/// Returns the operations and phases that a policy wants to see.
fn wanted(description: &Description, operations: &Operations) -> Vec<(String, Impact, Phase)> {
    let named = description.covers.iter().chain(&description.concerns);
    let all = operations.0.iter().map(|(name, _)| *name);
    let others = named.map(String::as_str).filter(|name| *name != "*" && operations.find(name).is_none());
    let names: BTreeSet<&str> = all.chain(others).collect();
    let phases = [Phase::Visible, Phase::Before, Phase::After];
    let pairs = names.into_iter().flat_map(|name| phases.map(|phase| (name, phase)));
    let wanted = pairs.filter(|(name, phase)| description.concerned(name, *phase));
    wanted
        .map(|(name, phase)| {
            let impact = operations.find(name).map_or(Impact::Reads, |(_, impact)| impact);
            (name.to_owned(), impact, phase)
        })
        .collect()
}
