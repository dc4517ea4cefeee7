//! A policy's component: checked, described, configured, evaluated.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use tokio::runtime::{Handle, RuntimeFlavor};
use wasmtime::Store;
use wasmtime::component::Component;

use crate::model::{
    Bucket, Code, Context, Identity, Impact, Phase, PolicyDecision, PolicyFault, Principal, RequestId, Requested,
    Timestamp, Transport, fault,
};
use crate::policy::{
    COMPONENT_BYTES_MAX, ConfigureError, Configured, Description, Evaluation, Evaluator, Limits, Loaded, Request, Spec,
    spec,
};

use super::engine::Shared;
use super::kept::Kept;
use super::limits::Budget;
use super::run::{Bounds, call_fault, instantiate, instantiate_decider, refill, store};
use super::snapshot::{Attempt, Snapshot, attempt, configure_plain, instrument};
use super::standby::{Made, Standby};
use super::v0_1::{self, DeciderPre, PACKAGE, PolicyPre, TYPES};

/// The first bytes of a core module, which is no component.
const CORE_MODULE: &[u8] = b"\0asm\x01\0\0\0";
/// What a policy is tried on when it is loaded, unless it concerns itself with other operations.
const SMOKE_OPERATION: &str = "doctor";

/// A compiled policy that can be configured.
pub(super) struct Guest {
    shared: Arc<Shared>,
    component: spec::Component,
    /// Compiled so that its state can be read, where that is possible, once that is needed.
    instrumented: OnceLock<Option<Component>>,
    /// Compiled as it is, once that is needed.
    plain: OnceLock<Result<Arc<PolicyPre<Bounds>>, String>>,
    description: Description,
    limits: Limits,
}

impl Guest {
    /// Checks, compiles and describes a policy.
    pub(super) fn load(shared: Arc<Shared>, spec: &Spec) -> Result<Self, String> {
        let bytes = spec.component.bytes();
        if bytes.len() > COMPONENT_BYTES_MAX {
            return Err(format!("the component has {} bytes, over the limit of {COMPONENT_BYTES_MAX}", bytes.len()));
        }
        if bytes.starts_with(CORE_MODULE) {
            return Err(format!(
                "it is a core module and no component; make a component of world `policy` of `{PACKAGE}` from it"
            ));
        }
        let described = shared.kept_description(&spec.component, spec.limits);
        let guest = Self {
            shared,
            component: spec.component.clone(),
            instrumented: OnceLock::new(),
            plain: OnceLock::new(),
            description: Description::default(),
            limits: spec.limits,
        };
        let description = match described {
            Some(description) => description,
            None => guest.describe()?,
        };
        Ok(Self { description, ..guest })
    }

    /// Compiles the policy and asks it what it is.
    fn describe(&self) -> Result<Description, String> {
        let pre = match self.instrumented() {
            Some(component) => Arc::new(check(&self.shared, component)?),
            None => self.compiled_plain()?,
        };
        let described = describe(&self.shared, &pre, Budget::load(self.limits));
        let description = described.map_err(|PolicyFault { code, detail }| {
            format!("it does not describe itself: {detail} (`{}`)", code.as_str())
        })?;
        self.shared.keep_description(&self.component, self.limits, &description);
        Ok(description)
    }

    fn instrumented(&self) -> Option<&Component> {
        self.instrumented.get_or_init(|| instrument(&self.shared, self.component.bytes())).as_ref()
    }

    fn compiled_plain(&self) -> Result<Arc<PolicyPre<Bounds>>, String> {
        self.plain.get_or_init(|| compile_plain(&self.shared, self.component.bytes())).clone()
    }

    /// Returns the policy with each instance still to be configured.
    fn plain(&self) -> Result<Arc<PolicyPre<Bounds>>, ConfigureError> {
        // It compiled with more in it before.
        let fault = |detail| ConfigureError::Fault(PolicyFault { code: Code::PolicyNotReady, detail });
        self.compiled_plain().map_err(fault)
    }

    /// Makes an evaluator of a snapshot.
    fn snapshotted(&self, component: &Component) -> Option<Instances> {
        let pre = self.shared.linker.instantiate_pre(component).and_then(DeciderPre::new).ok()?;
        Some(self.instances(Start::Configured(Arc::new(pre))))
    }

    fn instances(&self, start: Start) -> Instances {
        Instances {
            shared: Arc::clone(&self.shared),
            start,
            limits: self.limits,
            standby: Standby::default(),
            snapshot_bytes: None,
        }
    }

    /// Takes what was made of these settings before, if it still answers.
    fn remembered(&self, settings: &str, trial: &Request<'_>) -> Option<Configured> {
        let Kept { component, buckets } = self.shared.kept(&self.component, self.limits, settings)?;
        let instances = self.snapshotted(&component)?;
        instances.evaluate(trial).answer.ok()?;
        Some(Configured { buckets, evaluator: Arc::new(instances) })
    }

    /// Makes an evaluator of a snapshot, if it decides as the policy itself does: what ran when the policy was
    /// instantiated runs no more, and must not be missed. Keeps it for further starts.
    fn restored(&self, snapshot: Snapshot, settings: &str, trial: &Request<'_>) -> Option<(Vec<Bucket>, Instances)> {
        fault::reach("policy.restored").ok()?;
        let component = Component::new(&self.shared.engine, &snapshot.component).ok()?;
        let made = Instances { snapshot_bytes: Some(snapshot.component.len()), ..self.snapshotted(&component)? };
        if made.evaluate(trial).answer != snapshot.trial {
            return None;
        }
        let kept = Kept { component, buckets: snapshot.buckets };
        if snapshot.trial.is_ok() {
            self.shared.keep(&self.component, self.limits, settings, &kept);
        }
        Some((kept.buckets, made))
    }

    /// Makes a plain request of an operation that the policy wants to see.
    fn smoke_context(&self) -> Context {
        let named = ["create_database", "run_sql", "list_databases", "delete_database"];
        let operation = named.into_iter().find(|name| self.description.concerns.iter().any(|concern| concern == name));
        Context {
            request_id: RequestId::fresh(),
            phase: Phase::Before,
            operation: operation.unwrap_or(SMOKE_OPERATION),
            impact: Impact::Reads,
            principal: Principal {
                subject: "smoke".to_owned(),
                owner: "smoke".to_owned(),
                groups: Vec::new(),
                transport: Transport::Internal,
                client: String::new(),
                identity: Identity::Certain,
            },
            group_owner: None,
            now: Timestamp::from_unix_ms(1_800_000_000_000),
            server: None,
            sandbox: None,
            principal_usage: None,
            group_usage: None,
            statements: Vec::new(),
            statement_texts: Vec::new(),
            clone_source: None,
            requested: Requested::default(),
            outcome: None,
        }
    }
}

impl Loaded for Guest {
    fn description(&self) -> &Description {
        &self.description
    }

    fn configure(&self, settings: &str) -> Result<Configured, ConfigureError> {
        let failed =
            |injected| PolicyFault { code: Code::PolicyNotReady, detail: std::io::Error::from(injected).to_string() };
        fault::reach("policy.configure").map_err(|injected| ConfigureError::Fault(failed(injected)))?;
        let smoke = self.smoke_context();
        let trial = Request { context: &smoke, balances: &[], with_text: false };
        if let Some(configured) = self.remembered(settings, &trial) {
            return Ok(configured);
        }
        let restored = match self.instrumented() {
            None => None,
            Some(instrumented) => {
                // Loading waits for a slot like everybody else; what it runs is bounded, too.
                let slot = self.shared.slots.take().ok_or_else(|| ConfigureError::Fault(busy()))?;
                let attempt =
                    attempt(&self.shared, self.component.bytes(), instrumented, settings, &trial, self.limits);
                drop(slot);
                match attempt {
                    Attempt::Refused(error) => return Err(error),
                    Attempt::Made(made) => self.restored(made, settings, &trial),
                    Attempt::Unsuited => None,
                }
            }
        };
        let (buckets, instances) = match restored {
            Some(restored) => restored,
            None => {
                let pre = self.plain()?;
                let slot = self.shared.slots.take().ok_or_else(|| ConfigureError::Fault(busy()))?;
                let buckets = configure_plain(&self.shared, &pre, settings, Budget::load(self.limits))?;
                drop(slot);
                (buckets, self.instances(Start::Plain { pre, settings: settings.into() }))
            }
        };
        instances.evaluate(&trial).answer.map_err(ConfigureError::Fault)?;
        Ok(Configured { buckets, evaluator: Arc::new(instances) })
    }
}

/// A configured policy: each evaluation is an instance of its own.
struct Instances {
    shared: Arc<Shared>,
    start: Start,
    limits: Limits,
    standby: Standby,
    snapshot_bytes: Option<usize>,
}

/// What running a policy came to.
struct Ran {
    answer: Result<PolicyDecision, PolicyFault>,
    fuel: u64,
    memory_bytes: usize,
}

impl Ran {
    /// It did not run.
    fn not(fault: PolicyFault) -> Self {
        Self { answer: Err(fault), fuel: 0, memory_bytes: 0 }
    }

    /// It ran in a store that had this budget.
    fn within(budget: Budget, store: &Store<Bounds>, answer: Result<PolicyDecision, PolicyFault>) -> Self {
        Self { answer, fuel: used(store, budget), memory_bytes: store.data().peak_bytes }
    }
}

/// What an instance starts from.
enum Start {
    /// Its settings are in its memory.
    Configured(Arc<DeciderPre<Bounds>>),
    /// It is configured first.
    Plain { pre: Arc<PolicyPre<Bounds>>, settings: Box<str> },
}

impl Instances {
    /// Runs the policy, and returns what it took beside its answer.
    ///
    /// What does not come to its end soon is run once more, from the start, and then off the threads that serve
    /// requests: a policy that loops must not hold up whoever else is served. As a policy is a pure function, the second
    /// run takes the same way, and only its end counts.
    fn run(&self, request: &Request<'_>) -> Ran {
        let budget = Budget::evaluation(self.limits, v0_1::facts(request.context));
        let brief = self.attempt(request, budget.brief(), budget.brief());
        if !matches!(&brief.answer, Err(fault) if fault.code == Code::PolicyTimeout) {
            return brief;
        }
        if self.shared.aside.is_crowded() {
            return Ran::not(busy());
        }
        aside(|| {
            let Some(_place) = self.shared.aside.take() else { return Ran::not(busy()) };
            self.attempt(request, Budget::load(self.limits), budget)
        })
    }

    /// Runs the policy within a budget; `configuring` is for one that still has to be configured.
    fn attempt(&self, request: &Request<'_>, configuring: Budget, budget: Budget) -> Ran {
        let Some(_slot) = self.shared.slots.take() else { return Ran::not(busy()) };
        if let Some(ready) = self.standby.take() {
            return self.use_up(ready, request, budget);
        }
        let mut store = match store(&self.shared, budget) {
            Ok(store) => store,
            Err(fault) => return Ran::not(fault),
        };
        let answer = (|| {
            let answer = match &self.start {
                Start::Configured(pre) => {
                    let policy = instantiate_decider(pre, &mut store)?;
                    v0_1::show(request, |shown| policy.call_evaluate(&mut store, shown))
                }
                Start::Plain { pre, settings } => {
                    refill(&mut store, configuring)?;
                    let policy = instantiate(pre, &mut store)?;
                    let configured = policy.call_configure(&mut store, settings);
                    // The settings were accepted at load, and the same settings always get the same answer.
                    if configured.map_err(|error| call_fault(&error))?.is_err() {
                        let detail = "it refuses settings that it accepted when it was loaded".to_owned();
                        return Err(PolicyFault { code: Code::PolicyOutputInvalid, detail });
                    }
                    refill(&mut store, budget)?;
                    v0_1::show(request, |shown| policy.call_evaluate(&mut store, shown))
                }
            };
            answer.map(v0_1::decision).map_err(|error| call_fault(&error))
        })();
        Ran::within(budget, &store, answer)
    }

    /// Runs the policy in an instance that stood ready, which runs no more after that.
    fn use_up(&self, mut ready: Made, request: &Request<'_>, budget: Budget) -> Ran {
        let Made { store, decider, fuel, .. } = &mut ready;
        let left = Budget { fuel: budget.fuel.saturating_sub(*fuel), ..budget };
        let answer = refill(store, left).and_then(|()| {
            let answer = v0_1::show(request, |shown| decider.call_evaluate(&mut *store, shown));
            answer.map(v0_1::decision).map_err(|error| call_fault(&error))
        });
        let ran = Ran::within(budget, store, answer);
        self.standby.leave(ready);
        ran
    }

    /// Makes an instance that runs nothing yet, if there is a place for it. Why one cannot be made is told by the
    /// evaluation that then makes its own.
    fn instance_ready(&self) -> Option<Made> {
        let Start::Configured(pre) = &self.start else { return None };
        let place = self.shared.places.take()?;
        let budget = Budget::evaluation(self.limits, 0).brief();
        let mut store = store(&self.shared, budget).ok()?;
        let decider = instantiate_decider(pre, &mut store).ok()?;
        let fuel = used(&store, budget);
        Some(Made::new(store, decider, fuel, place))
    }
}

/// Returns the fuel of a budget that was used.
fn used(store: &Store<Bounds>, budget: Budget) -> u64 {
    budget.fuel.saturating_sub(store.get_fuel().unwrap_or(0))
}

impl Evaluator for Instances {
    fn evaluate(&self, request: &Request<'_>) -> Evaluation {
        let began = Instant::now();
        let Ran { answer, fuel, memory_bytes } = self.run(request);
        let elapsed_us = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
        Evaluation { answer, elapsed_us, fuel, memory_bytes }
    }

    fn make_ready(&self) {
        self.standby.renew(|| self.instance_ready());
    }

    fn snapshot_bytes(&self) -> Option<usize> {
        self.snapshot_bytes
    }
}

/// Does long work where it holds up nobody: a worker of a runtime hands what it serves to another thread first.
fn aside<T>(work: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
        Ok(_) | Err(_) => work(),
    }
}

fn busy() -> PolicyFault {
    PolicyFault { code: Code::Busy, detail: "no slot of the pool came free in time".to_owned() }
}

/// Refuses imports: a policy is a pure function.
fn check_imports(shared: &Shared, component: &Component) -> Result<(), String> {
    let ty = component.component_type();
    let imports: Vec<&str> = ty.imports(&shared.engine).map(|(name, _)| name).filter(|name| *name != TYPES).collect();
    if let Some(other) = imports.iter().find(|name| name.starts_with("pgsandbox:policy/")) {
        return Err(format!("it was built for another version: it wants `{other}`, and `{PACKAGE}` is offered"));
    }
    if imports.is_empty() {
        return Ok(());
    }
    let wanted: Vec<_> = imports.iter().take(4).map(|name| format!("`{name}`")).collect();
    let wasi = if imports.iter().any(|name| name.starts_with("wasi:")) {
        "; build it without WASI (for Rust: target `wasm32-unknown-unknown`, not `wasm32-wasip2`)"
    } else {
        ""
    };
    Err(format!(
        "it imports {}, and a policy of `{PACKAGE}` may import nothing: all it may know is in its settings and in the \
         request{wasi}",
        wanted.join(", ")
    ))
}

/// Compiles a policy as it is. What no slot of the pool could hold does not compile either.
fn compile_plain(shared: &Shared, bytes: &[u8]) -> Result<Arc<PolicyPre<Bounds>>, String> {
    let component =
        shared.compile(bytes).map_err(|error| format!("it is no component that can be compiled: {error:#}"))?;
    check(shared, &component).map(Arc::new)
}

/// Checks what a component wants and offers.
fn check(shared: &Shared, component: &Component) -> Result<PolicyPre<Bounds>, String> {
    check_imports(shared, component)?;
    link(shared, component)
}

/// Links a component to nothing, which also checks its exports against the world.
fn link(shared: &Shared, component: &Component) -> Result<PolicyPre<Bounds>, String> {
    shared.linker.instantiate_pre(component).and_then(PolicyPre::new).map_err(|error| {
        format!(
            "it does not export `describe`, `configure` and `evaluate` as world `policy` of `{PACKAGE}` has them: {}",
            error.root_cause()
        )
    })
}

fn describe(shared: &Shared, pre: &PolicyPre<Bounds>, budget: Budget) -> Result<Description, PolicyFault> {
    let _slot = shared.slots.take().ok_or_else(busy)?;
    let mut store = store(shared, budget)?;
    let policy = instantiate(pre, &mut store)?;
    policy.call_describe(&mut store).map(v0_1::description).map_err(|error| call_fault(&error))
}
