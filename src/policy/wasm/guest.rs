//! A policy's component: checked, described, configured, evaluated.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use tokio::runtime::{Handle, RuntimeFlavor};
use wasmtime::component::Component;

use crate::model::{
    Code, Context, Impact, Phase, PolicyDecision, PolicyFault, Principal, RequestId, Requested, Timestamp, Transport,
};
use crate::policy::{
    COMPONENT_BYTES_MAX, ConfigureError, Configured, Description, Evaluation, Evaluator, Limits, Loaded, Request, Spec,
};

use super::engine::Shared;
use super::limits::Budget;
use super::run::{Bounds, call_fault, instantiate, refill, store};
use super::snapshot::{Attempt, Snapshot, attempt, configure_plain, instrument};
use super::v0_1::{self, PACKAGE, PolicyPre, TYPES};

/// The first bytes of a core module, which is no component.
const CORE_MODULE: &[u8] = b"\0asm\x01\0\0\0";
/// What a policy is tried on when it is loaded, unless it concerns itself with other operations.
const SMOKE_OPERATION: &str = "doctor";

/// A compiled policy that can be configured.
pub(super) struct Guest {
    shared: Arc<Shared>,
    bytes: Vec<u8>,
    /// Compiled so that its state can be read, where that is possible.
    instrumented: Option<Component>,
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
        let instrumented = instrument(&shared, bytes);
        let plain = OnceLock::new();
        let pre = match &instrumented {
            Some(component) => Arc::new(check(&shared, component)?),
            None => plain.get_or_init(|| compile_plain(&shared, bytes)).clone()?,
        };
        let description =
            describe(&shared, &pre, Budget::load(spec.limits)).map_err(|PolicyFault { code, detail }| {
                format!("it does not describe itself: {detail} (`{}`)", code.as_str())
            })?;
        Ok(Self { shared, bytes: bytes.to_vec(), instrumented, plain, description, limits: spec.limits })
    }

    /// Returns the policy with each instance still to be configured.
    fn plain(&self, settings: &str) -> Result<Instances, ConfigureError> {
        let pre = self.plain.get_or_init(|| compile_plain(&self.shared, &self.bytes)).clone();
        // It compiled with more in it before.
        let pre = pre.map_err(|detail| ConfigureError::Fault(PolicyFault { code: Code::PolicyNotReady, detail }))?;
        Ok(Instances { shared: Arc::clone(&self.shared), pre, settings: Some(settings.into()), limits: self.limits })
    }

    /// Makes an evaluator of a snapshot, if it decides as the policy itself does: what ran when the policy was
    /// instantiated runs no more, and must not be missed.
    fn restored(&self, snapshot: &Snapshot, trial: &Request<'_>) -> Option<Instances> {
        let component = self.shared.compile(&snapshot.component).ok()?;
        let pre = Arc::new(link(&self.shared, &component).ok()?);
        let made = Instances { shared: Arc::clone(&self.shared), pre, settings: None, limits: self.limits };
        (made.evaluate(trial).answer == snapshot.trial).then_some(made)
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
        let smoke = self.smoke_context();
        let trial = Request { context: &smoke, balances: &[], with_text: false };
        let restored = match &self.instrumented {
            None => None,
            Some(instrumented) => {
                // Loading waits for a slot like everybody else; what it runs is bounded, too.
                let slot = self.shared.slots.take().ok_or_else(|| ConfigureError::Fault(busy()))?;
                let attempt = attempt(&self.shared, &self.bytes, instrumented, settings, &trial, self.limits);
                drop(slot);
                match attempt {
                    Attempt::Refused(error) => return Err(error),
                    Attempt::Made(made) => self.restored(&made, &trial).map(|instances| (made.buckets, instances)),
                    Attempt::Unsuited => None,
                }
            }
        };
        let (buckets, instances) = match restored {
            Some(restored) => restored,
            None => {
                let instances = self.plain(settings)?;
                let _slot = self.shared.slots.take().ok_or_else(|| ConfigureError::Fault(busy()))?;
                let buckets = configure_plain(&self.shared, &instances.pre, settings, Budget::load(self.limits))?;
                (buckets, instances)
            }
        };
        instances.evaluate(&trial).answer.map_err(ConfigureError::Fault)?;
        Ok(Configured { buckets, evaluator: Arc::new(instances) })
    }
}

/// A configured policy: each evaluation is an instance of its own.
#[derive(Clone)]
struct Instances {
    shared: Arc<Shared>,
    pre: Arc<PolicyPre<Bounds>>,
    /// What each instance is configured with first; `None` where it starts out configured.
    settings: Option<Arc<str>>,
    limits: Limits,
}

impl Instances {
    /// Runs the policy, and returns the fuel it took beside its answer.
    ///
    /// What does not come to its end soon is run once more, from the start, and then off the threads that serve
    /// requests: a policy that loops must not hold up whoever else is served. As a policy is a pure function, the second
    /// run takes the same way, and only its end counts.
    fn run(&self, request: &Request<'_>) -> (Result<PolicyDecision, PolicyFault>, u64) {
        let budget = Budget::evaluation(self.limits, v0_1::facts(request.context));
        let brief = self.attempt(request, budget.brief(), budget.brief());
        if !matches!(&brief, (Err(fault), _) if fault.code == Code::PolicyTimeout) {
            return brief;
        }
        if self.shared.aside.is_crowded() {
            return (Err(busy()), 0);
        }
        aside(|| {
            let Some(_place) = self.shared.aside.take() else { return (Err(busy()), 0) };
            self.attempt(request, Budget::load(self.limits), budget)
        })
    }

    /// Runs the policy within a budget; `configuring` is for one that still has to be configured.
    fn attempt(
        &self,
        request: &Request<'_>,
        configuring: Budget,
        budget: Budget,
    ) -> (Result<PolicyDecision, PolicyFault>, u64) {
        let Some(_slot) = self.shared.slots.take() else { return (Err(busy()), 0) };
        let mut store = match store(&self.shared, budget) {
            Ok(store) => store,
            Err(fault) => return (Err(fault), 0),
        };
        let answer = (|| {
            let policy = match &self.settings {
                None => instantiate(&self.pre, &mut store)?,
                Some(settings) => {
                    refill(&mut store, configuring)?;
                    let policy = instantiate(&self.pre, &mut store)?;
                    let configured = policy.call_configure(&mut store, settings);
                    // The settings were accepted at load, and the same settings always get the same answer.
                    if configured.map_err(|error| call_fault(&error))?.is_err() {
                        let detail = "it refuses settings that it accepted when it was loaded".to_owned();
                        return Err(PolicyFault { code: Code::PolicyOutputInvalid, detail });
                    }
                    refill(&mut store, budget)?;
                    policy
                }
            };
            let answer = policy.call_evaluate(&mut store, &v0_1::request(request));
            answer.map(v0_1::decision).map_err(|error| call_fault(&error))
        })();
        let fuel = budget.fuel.saturating_sub(store.get_fuel().unwrap_or(0));
        (answer, fuel)
    }
}

impl Evaluator for Instances {
    fn evaluate(&self, request: &Request<'_>) -> Evaluation {
        let began = Instant::now();
        let (answer, fuel) = self.run(request);
        let elapsed_us = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
        Evaluation { answer, elapsed_us, fuel }
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
