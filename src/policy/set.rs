//! One generation of policies: loaded together, asked together.
//!
//! A set never changes. It holds every policy configured for every owners' section, so deciding reads
//! no settings, matches one owner and runs the concerned policies.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::num::NonZeroUsize;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use sha2::{Digest, Sha256};
use tracing::Span;

use crate::model::{
    Balance, Bucket, Code, Context, Decision, Failure, Generation, Mode, Phase, PolicyDecision, PolicyFault,
    PolicyReport, Said, Verdict,
};

use crate::telemetry::span;

use super::counts::{Counters, Counts};
use super::merge::{Part, merge};
use super::owners::Owners;
use super::schema;
use super::spec::hex;
use super::{
    COMPONENT_BYTES_MAX, ConfigureError, Configured, Description, Evaluation, FUEL_MAX, FUEL_MIN, Limits, Loaded,
    Loader, MEMORY_BYTES_MAX, MEMORY_BYTES_MIN, POLICIES_MAX, Request, SECTIONS_MAX, SETTINGS_BYTES_MAX, Spec,
    TIMEOUT_MS_MAX, TIMEOUT_MS_MIN, answer, sha256_hex,
};

/// What a limit's origin says where no policy set it: no policy may pass for one of these.
const RESERVED_NAMES: [&str; 3] = ["core", "profile", "request"];

/// A loaded generation of policies.
pub struct Set {
    /// Sorted by name.
    policies: Vec<Policy>,
    generation: Generation,
}

/// A loaded policy, for records and reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyInfo {
    /// The name in records.
    pub name: String,
    /// What it says of itself.
    pub description: Description,
    /// Whether its word counts.
    pub mode: Mode,
    /// Of a candidate: the policy that it may come to stand for.
    pub of: Option<String>,
    /// The component's digest.
    pub component_sha256: String,
    /// The digest of its settings, all sections together.
    pub settings_sha256: String,
    /// What an evaluation may use.
    pub limits: Limits,
    /// Whether statements' texts are shown to it.
    pub sees_text: bool,
}

struct Policy {
    info: PolicyInfo,
    owners: Owners,
    base: Configured,
    sections: Vec<Configured>,
    counters: Counters,
}

impl Policy {
    fn configured(&self, owner: &str) -> &Configured {
        self.owners.resolve(owner).and_then(|index| self.sections.get(index)).unwrap_or(&self.base)
    }
}

/// Why a set could not be loaded: every fault of every policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadError {
    /// At least one, sorted.
    pub faults: Vec<LoadFault>,
}

/// One fault of one policy.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LoadFault {
    /// The policy's name; empty for the set as a whole.
    pub policy: String,
    /// Where in the policy's configuration, `settings.max_live` for instance; empty for the whole.
    pub path: String,
    /// What is wrong and what to do.
    pub message: String,
}

impl fmt::Display for LoadFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.policy.as_str(), self.path.as_str()) {
            ("", "") => f.write_str(&self.message),
            ("", path) => write!(f, "`{path}`: {}", self.message),
            (policy, "") => write!(f, "policy `{policy}`: {}", self.message),
            (policy, path) => write!(f, "policy `{policy}`, `{path}`: {}", self.message),
        }
    }
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the policies cannot be loaded")?;
        self.faults.iter().try_for_each(|fault| write!(f, "; {fault}"))
    }
}

impl std::error::Error for LoadError {}

impl From<&LoadError> for Failure {
    fn from(error: &LoadError) -> Self {
        let mut failure = Self::new(Code::PolicyNotReady, "the policies are not loaded; the request was not run")
            .hint(
                "`pgsandbox doctor` lists what is wrong with them; a server takes the file by itself once it is mended",
            )
            .audit(error.to_string());
        // Somebody has to mend the file first: calling again alone never helps.
        failure.retryable = false;
        failure
    }
}

impl Set {
    /// Loads and configures every policy. `number` is the generation's.
    ///
    /// # Errors
    /// Returns every fault of every policy.
    pub fn load(loader: &dyn Loader, specs: &[Spec], number: u64) -> Result<Self, LoadError> {
        let mut faults = set_faults(specs);
        let mut policies = Vec::new();
        for loaded in load_all(loader, &loadable(specs, &faults)) {
            match loaded {
                Ok(policy) => policies.push(policy),
                Err(found) => faults.extend(found),
            }
        }
        if !faults.is_empty() {
            faults.sort();
            return Err(LoadError { faults });
        }
        policies.sort_by(|a, b| a.info.name.cmp(&b.info.name));
        Ok(Self { policies, generation: Generation { number, digest: digest(specs) } })
    }

    /// Returns which generation this is.
    pub fn generation(&self) -> &Generation {
        &self.generation
    }

    /// Returns the policies, sorted by name.
    pub fn policies(&self) -> impl Iterator<Item = &PolicyInfo> {
        self.policies.iter().map(|policy| &policy.info)
    }

    /// Returns whether a policy that is concerned is shown the statements' texts: only then need a context hold them.
    pub fn sees_text(&self, context: &Context) -> bool {
        self.policies.iter().any(|policy| policy.info.sees_text && concerned(policy, context))
    }

    /// Returns the buckets, with their policies, that the concerned policies may charge: whose balances they are shown.
    pub fn buckets(&self, context: &Context) -> Vec<(String, Bucket)> {
        // Of a candidate's none are kept.
        let kept = self.policies.iter().filter(|policy| policy.info.mode != Mode::Candidate);
        kept.filter(|policy| concerned(policy, context))
            .flat_map(|policy| {
                let buckets = &policy.configured(&context.principal.owner).buckets;
                buckets.iter().map(|bucket| (policy.info.name.clone(), bucket.clone()))
            })
            .collect()
    }

    /// Asks every concerned policy and merges what they say. `balances` are those of [`Set::buckets`].
    pub fn decide(&self, context: &Context, balances: &[Balance]) -> Decision {
        let traced = |info: &PolicyInfo| span::policy(&info.name, info.mode.as_str());
        let parts = self.policies.iter().map(|policy| ask(policy, context, balances, traced)).collect();
        merge(context, parts, self.generation.clone())
    }

    /// The same without a span for each policy: of many questions in one request, whose spans would be most of its trace.
    pub fn weigh(&self, context: &Context, balances: &[Balance]) -> Decision {
        let parts = self.policies.iter().map(|policy| ask(policy, context, balances, |_| Span::none())).collect();
        merge(context, parts, self.generation.clone())
    }

    /// Asks one policy by itself whether or not it concerns itself with the request, and returns all that is known of the evaluation; none
    /// where there is no such policy. `balances` are those of [`Set::buckets`].
    pub fn evaluate(&self, policy: &str, context: &Context, balances: &[Balance]) -> Option<Evaluation> {
        let policy = self.policies.iter().find(|known| known.info.name == policy)?;
        Some(evaluated(policy, policy.configured(&context.principal.owner), context, balances))
    }

    /// Returns the size of what evaluations of a policy start from for owners without a section, in bytes; none where the policy is
    /// configured anew each time, or where it was made before this start.
    pub fn snapshot_bytes(&self, policy: &str) -> Option<usize> {
        self.policies.iter().find(|known| known.info.name == policy)?.base.evaluator.snapshot_bytes()
    }

    /// Counts how candidates answered a request that was decided by this set.
    pub fn count(&self, decision: &Decision) {
        let said = |name: &str| decision.reports.iter().find(|report| report.policy == name).map(|report| &report.said);
        for policy in self.policies.iter().filter(|policy| policy.info.mode == Mode::Candidate) {
            let report = decision.reports.iter().find(|report| report.policy == policy.info.name);
            let live = policy.info.of.as_deref().and_then(said);
            if let (Some(report), Some(live)) = (report, live) {
                policy.counters.count(report, live);
            }
        }
    }

    /// Returns what the candidates came to since this set serves.
    pub fn counts(&self) -> Vec<Counts> {
        let candidates = self.policies.iter().filter_map(|policy| Some((policy, policy.info.of.as_deref()?)));
        candidates.map(|(policy, of)| policy.counters.read(&policy.info.name, of)).collect()
    }

    /// Does ahead what the owner's next request for `operation` would have to wait for. For when nobody waits.
    pub fn make_ready(&self, operation: &str, owner: &str) {
        let concerned = |policy: &&Policy| policy.info.description.concerned(operation, Phase::Before);
        for policy in self.policies.iter().filter(concerned) {
            policy.configured(owner).evaluator.make_ready();
        }
    }
}

impl fmt::Debug for Set {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Set").field("generation", &self.generation).finish_non_exhaustive()
    }
}

fn concerned(policy: &Policy, context: &Context) -> bool {
    policy.info.description.concerned(context.operation, context.phase)
}

fn ask<'a>(
    policy: &'a Policy,
    context: &Context,
    balances: &[Balance],
    traced: impl Fn(&PolicyInfo) -> Span,
) -> Part<'a> {
    let configured = policy.configured(&context.principal.owner);
    let (said, elapsed_us, fuel) = if concerned(policy, context) {
        let here = traced(&policy.info);
        here.in_scope(|| {
            let Evaluation { answer, elapsed_us, fuel, .. } = evaluated(policy, configured, context, balances);
            note_on_span(&here, &answer, fuel);
            (answer.map_or_else(Said::Failed, Said::Decided), elapsed_us, fuel)
        })
    } else {
        (Said::NotConcerned, 0, 0)
    };
    let saw_text = policy.info.sees_text && said != Said::NotConcerned && !context.statement_texts.is_empty();
    let report = PolicyReport {
        policy: policy.info.name.clone(),
        mode: policy.info.mode,
        of: policy.info.of.clone(),
        said,
        differs: Vec::new(),
        elapsed_us,
        fuel,
        replayable: !saw_text,
    };
    Part { report, buckets: &configured.buckets, covers: policy.info.description.covers(context.operation) }
}

/// Runs a policy, and holds its answer against what it declares.
fn evaluated(policy: &Policy, configured: &Configured, context: &Context, balances: &[Balance]) -> Evaluation {
    let own = own_balances(policy, configured, balances);
    let request = Request { context, balances: &own, with_text: policy.info.sees_text };
    let Evaluation { answer, elapsed_us, fuel, memory_bytes } = configured.evaluator.evaluate(&request);
    let answer = answer.and_then(|decision| {
        answer::check(&policy.info.description, &configured.buckets, &decision)?;
        Ok(decision)
    });
    Evaluation { answer, elapsed_us, fuel, memory_bytes }
}

/// Returns what a policy is shown of its buckets. A candidate takes nothing, and is shown full ones.
fn own_balances(policy: &Policy, configured: &Configured, balances: &[Balance]) -> Vec<Balance> {
    if policy.info.mode != Mode::Candidate {
        return balances.iter().filter(|balance| balance.policy == policy.info.name).cloned().collect();
    }
    let full = |bucket: &Bucket| Balance {
        policy: policy.info.name.clone(),
        bucket: bucket.name.clone(),
        remaining: bucket.burst,
    };
    configured.buckets.iter().map(full).collect()
}

/// Says on a policy's span what it said. Where nobody collects spans that one is none, and the current one another's.
fn note_on_span(here: &Span, said: &Result<PolicyDecision, PolicyFault>, fuel: u64) {
    here.record(span::POLICY_FUEL, fuel);
    match said {
        Ok(decision) => {
            here.record(span::VERDICT, decision.verdict.as_str());
            if let Verdict::Deny(denial) = &decision.verdict {
                here.record(span::ERROR_TYPE, denial.code.as_str());
            }
        }
        Err(fault) => {
            here.record(span::ERROR_TYPE, fault.code.as_str());
            here.record("otel.status_code", "ERROR");
        }
    }
}

/// Finds fault with what can be seen before anything is compiled.
fn set_faults(specs: &[Spec]) -> Vec<LoadFault> {
    let mut faults = Vec::new();
    let mut add = |policy: &str, path: &str, message: String| {
        faults.push(LoadFault { policy: policy.to_owned(), path: path.to_owned(), message });
    };
    if specs.len() > POLICIES_MAX {
        add("", "", format!("{} policies are named, over the limit of {POLICIES_MAX}", specs.len()));
    }
    let mut names = BTreeSet::new();
    for spec in specs {
        if RESERVED_NAMES.contains(&spec.name.as_str()) {
            add(&spec.name, "name", "the name stands for what is no policy; give the policy another".to_owned());
        }
        if !names.insert(&spec.name) {
            add(&spec.name, "name", "the name is used twice; give one of the two another".to_owned());
        }
        let size = spec.component.bytes().len();
        if size > COMPONENT_BYTES_MAX {
            add(
                &spec.name,
                "source",
                format!("the component has {size} bytes, over the limit of {COMPONENT_BYTES_MAX}"),
            );
        }
        if let Some(pin) = spec.pin.as_ref().filter(|pin| pin.as_str() != spec.component.sha256()) {
            let is = spec.component.sha256();
            add(&spec.name, "digest", format!("the component's digest is `{is}`, not the pinned `{pin}`"));
        }
        if spec.sections.len() > SECTIONS_MAX {
            add(&spec.name, "owners", format!("{} sections, over the limit of {SECTIONS_MAX}", spec.sections.len()));
        }
        let sections = spec.sections.iter().map(|section| (format!("owners.{}", section.pattern), &section.settings));
        for (path, settings) in sections.chain([("settings".to_owned(), &spec.settings)]) {
            if settings.len() > SETTINGS_BYTES_MAX {
                add(
                    &spec.name,
                    &path,
                    format!("{} bytes as JSON, over the limit of {SETTINGS_BYTES_MAX}", settings.len()),
                );
            }
        }
        if let Some(fault) = candidate_fault(spec, specs) {
            add(&spec.name, "of", fault);
        }
        let Limits { fuel, memory_bytes, timeout_ms } = spec.limits;
        let bounds = [
            ("limits.fuel", fuel, FUEL_MIN, FUEL_MAX),
            (
                "limits.memory_kib",
                memory_bytes as u64 >> 10,
                MEMORY_BYTES_MIN as u64 >> 10,
                MEMORY_BYTES_MAX as u64 >> 10,
            ),
            ("limits.timeout_ms", timeout_ms, TIMEOUT_MS_MIN, TIMEOUT_MS_MAX),
        ];
        for (path, value, min, max) in bounds {
            if !(min..=max).contains(&value) {
                add(&spec.name, path, format!("{value} is not between {min} and {max}"));
            }
        }
    }
    faults
}

/// Finds fault with what a candidate is for.
fn candidate_fault(spec: &Spec, specs: &[Spec]) -> Option<String> {
    let of = match (spec.mode, &spec.of) {
        (Mode::Candidate, Some(of)) => of,
        (Mode::Candidate, None) => {
            return Some("a candidate names the policy that it may come to stand for".to_owned());
        }
        (Mode::Enforce | Mode::Shadow, Some(_)) => {
            return Some("only a policy of mode `candidate` is one of another".to_owned());
        }
        (Mode::Enforce | Mode::Shadow, None) => return None,
    };
    let Some(live) = specs.iter().find(|other| other.name == *of) else {
        return Some(format!("there is no policy `{of}` in this set"));
    };
    if live.mode == Mode::Candidate {
        return Some(format!("`{of}` is a candidate itself; name a policy that is enforced or in shadow"));
    }
    let rivals = specs.iter().filter(|other| other.of.as_ref() == Some(of) && other.mode == Mode::Candidate);
    let first = rivals.map(|rival| rival.name.as_str()).min()?;
    (first != spec.name).then(|| format!("`{first}` is a candidate of `{of}` already; try one at a time"))
}

/// Returns the policies that can be loaded, if only for what is wrong with their settings: a fault of one's name or limits hides
/// none of those, a fault of its component does.
fn loadable<'a>(specs: &'a [Spec], faults: &[LoadFault]) -> Vec<Cow<'a, Spec>> {
    if specs.len() > POLICIES_MAX {
        return Vec::new();
    }
    let of = |spec: &Spec| {
        faults.iter().filter(|fault| fault.policy == spec.name).map(|fault| fault.path.as_str()).collect()
    };
    let looked_at = specs.iter().filter_map(|spec| {
        let paths: Vec<&str> = of(spec);
        match paths.iter().all(|path| ["name", "of"].contains(path) || path.starts_with("limits.")) {
            true if paths.is_empty() => Some(Cow::Borrowed(spec)),
            true => Some(Cow::Owned(Spec { limits: Limits::default(), ..spec.clone() })),
            false => None,
        }
    });
    looked_at.collect()
}

/// Loads the policies, in no particular order, on as many threads as run at once.
fn load_all(loader: &dyn Loader, specs: &[Cow<'_, Spec>]) -> Vec<Result<Policy, Vec<LoadFault>>> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut loaded = Vec::new();
        while let Some(spec) = specs.get(next.fetch_add(1, Ordering::Relaxed)) {
            loaded.push(load_policy(loader, spec));
        }
        loaded
    };
    let others = thread::available_parallelism().map_or(1, NonZeroUsize::get).min(specs.len()).saturating_sub(1);
    thread::scope(|scope| {
        // A thread that cannot be started leaves its share to the others.
        let started: Vec<_> = (0..others)
            .filter_map(|_| thread::Builder::new().name("policies".to_owned()).spawn_scoped(scope, work).ok())
            .collect();
        let mut loaded = work();
        for thread in started {
            match thread.join() {
                Ok(theirs) => loaded.extend(theirs),
                Err(panic) => resume_unwind(panic),
            }
        }
        loaded
    })
}

fn load_policy(loader: &dyn Loader, spec: &Spec) -> Result<Policy, Vec<LoadFault>> {
    let fault = |path: &str, message: String| LoadFault { policy: spec.name.clone(), path: path.to_owned(), message };
    let mut faults = Vec::new();
    let owners = Owners::new(spec.sections.iter().map(|section| section.pattern.as_str())).unwrap_or_else(|found| {
        faults.extend(found.into_iter().map(|message| fault("owners", message)));
        Owners::default()
    });
    let loaded = match loader.load(spec) {
        Ok(loaded) => loaded,
        Err(message) => {
            faults.push(fault("source", message));
            return Err(faults);
        }
    };
    if let Err(PolicyFault { detail, .. }) = answer::check_description(loaded.description()) {
        faults.push(fault("source", format!("its description is out of bounds: {detail}")));
        return Err(faults);
    }
    // Sections with equal settings are configured and compiled once.
    let mut done: BTreeMap<&str, Configured> = BTreeMap::new();
    let schema = &loaded.description().settings_schema;
    let base_faults = schema::faults(schema, &spec.settings);
    let mut configure = |path: &str, settings: &'_ str, faults: &mut Vec<LoadFault>| -> Option<Configured> {
        let key = std::iter::once(&spec.settings).chain(spec.sections.iter().map(|section| &section.settings));
        let key = key.map(String::as_str).find(|known| *known == settings)?;
        if let Some(configured) = done.get(key) {
            return Some(Configured {
                buckets: configured.buckets.clone(),
                evaluator: std::sync::Arc::clone(&configured.evaluator),
            });
        }
        let mut found = schema::faults(schema, settings);
        let shape = found.iter().any(|fault| fault.shape);
        if path != BASE {
            // What a section takes over from beneath is said where it stands.
            found.retain(|fault| !base_faults.contains(fault) || !is_same(&fault.path, settings, &spec.settings));
        }
        let by_schema: Vec<_> =
            found.into_iter().map(|found| fault(&joined(path, &found.path), found.message)).collect();
        let known = by_schema.len();
        faults.extend(by_schema);
        // Of another shape than it reads, it could only name the first fault again.
        if shape {
            return None;
        }
        let mut own = Vec::new();
        let configured = configure_section(loaded.as_ref(), path, settings, &fault, &mut own);
        let said = |fault: &LoadFault, faults: &[LoadFault]| faults.iter().any(|other| other.path == fault.path);
        own.retain(|fault| !said(fault, faults));
        let inherited = |fault: &LoadFault| {
            let relative = fault.path.strip_prefix(path).unwrap_or_default().trim_start_matches('.');
            let beneath = LoadFault { path: joined(BASE, relative), ..fault.clone() };
            path != BASE && faults.contains(&beneath) && is_same(relative, settings, &spec.settings)
        };
        own.retain(|fault| !inherited(fault));
        faults.extend(own);
        let configured = configured.filter(|_| known == 0)?;
        let copy =
            Configured { buckets: configured.buckets.clone(), evaluator: std::sync::Arc::clone(&configured.evaluator) };
        done.insert(key, copy);
        Some(configured)
    };
    let base = configure(BASE, &spec.settings, &mut faults);
    let mut sections = Vec::new();
    for section in &spec.sections {
        let path = format!("owners.{}", section.pattern);
        sections.extend(configure(&path, &section.settings, &mut faults));
    }
    let Some(base) = base.filter(|_| faults.is_empty()) else { return Err(faults) };
    let info = PolicyInfo {
        name: spec.name.clone(),
        description: loaded.description().clone(),
        mode: spec.mode,
        of: spec.of.clone(),
        component_sha256: spec.component.sha256().to_owned(),
        settings_sha256: settings_digest(spec),
        limits: spec.limits,
        sees_text: spec.sees_text,
    };
    Ok(Policy { info, owners, base, sections, counters: Counters::default() })
}

fn configure_section(
    loaded: &dyn Loaded,
    path: &str,
    settings: &str,
    fault: &dyn Fn(&str, String) -> LoadFault,
    faults: &mut Vec<LoadFault>,
) -> Option<Configured> {
    match loaded.configure(settings) {
        Ok(configured) => match answer::check_buckets(&configured.buckets) {
            Ok(()) => Some(configured),
            Err(PolicyFault { detail, .. }) => {
                faults.push(fault(path, format!("the buckets it makes of these settings are out of bounds: {detail}")));
                None
            }
        },
        Err(ConfigureError::Problems(problems)) => {
            faults.extend(problems.into_iter().map(|problem| fault(&joined(path, &problem.path), problem.message)));
            None
        }
        Err(ConfigureError::Fault(PolicyFault { code, detail })) => {
            faults.push(fault(path, format!("it did not take these settings: {detail} (`{}`)", code.as_str())));
            None
        }
    }
}

/// Where a policy's own settings stand, for all owners without a section.
const BASE: &str = "settings";

fn joined(path: &str, within: &str) -> String {
    if within.is_empty() { path.to_owned() } else { format!("{path}.{within}") }
}

/// Returns whether the top-level key that `path` is in has one value in both settings, so that one took it over.
fn is_same(path: &str, one: &str, other: &str) -> bool {
    let key = path.split(['.', '[']).next().unwrap_or_default();
    if key.is_empty() {
        return one == other;
    }
    let value = |settings: &str| serde_json::from_str::<serde_json::Value>(settings).ok()?.get(key).cloned();
    value(one).is_some_and(|one| value(other) == Some(one))
}

fn settings_digest(spec: &Spec) -> String {
    let mut sections: Vec<_> = spec.sections.iter().map(|section| (&section.pattern, &section.settings)).collect();
    sections.sort();
    let mut text = spec.settings.clone();
    for (pattern, settings) in sections {
        text.push('\0');
        text.push_str(pattern);
        text.push('\0');
        text.push_str(settings);
    }
    sha256_hex(text.as_bytes())
}

/// Digests all that can change a decision, whatever the order of the policies.
fn digest(specs: &[Spec]) -> String {
    let mut lines: Vec<_> = specs
        .iter()
        .map(|spec| {
            let Limits { fuel, memory_bytes, timeout_ms } = spec.limits;
            let text = if spec.sees_text { "text" } else { "no text" };
            [
                spec.name.as_str(),
                spec.component.sha256(),
                &settings_digest(spec),
                spec.mode.as_str(),
                spec.of.as_deref().unwrap_or_default(),
                &format!("{fuel} {memory_bytes} {timeout_ms}"),
                text,
            ]
            .join("\0")
        })
        .collect();
    lines.sort();
    let mut hash = Sha256::new();
    for line in lines {
        hash.update(line.as_bytes());
        hash.update(b"\n");
    }
    hex(&hash.finalize())
}
