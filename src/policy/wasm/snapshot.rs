//! Makes of a policy and its settings a component that starts out configured.
//!
//! The policy is instrumented so that its memory and globals can be read, configured once, and written
//! out anew with what `configure` left in them. It works for guests whose state is in memories and plain
//! globals; any other is left as it is and configured again in each instance.

use std::panic::{AssertUnwindSafe, catch_unwind};

use futures_util::FutureExt as _;
use wasmtime::Store;
use wasmtime::component::{Component, ComponentNamedList, Instance, Lift, WasmList};
use wasmtime_wizer::{ComponentInstanceState, Wizer};

use crate::model::{Bucket, PolicyDecision, PolicyFault, fault};
use crate::policy::{ConfigureError, Limits, MEMORY_BYTES_MAX, Request};

use super::engine::Shared;
use super::limits::Budget;
use super::run::{Bounds, call_fault, instantiate_raw, refill, store};
use super::v0_1::{self, Policy};

/// The version of what is written: part of the key under which compiled code is kept.
pub(super) const SNAPSHOT_VERSION: u32 = 1;
/// A page of memory that reading one takes for itself.
const PAGE_BYTES: usize = 64 << 10;

/// How an attempt at a snapshot came out.
pub(super) enum Attempt {
    /// There is one.
    Made(Snapshot),
    /// The policy refused the settings or failed over them: no other way would go better.
    Refused(ConfigureError),
    /// The policy's state cannot be written out.
    Unsuited,
}

/// A configured policy, written out.
pub(super) struct Snapshot {
    /// The component that starts out configured.
    pub(super) component: Vec<u8>,
    pub(super) buckets: Vec<Bucket>,
    /// What the policy itself, configured and not restarted, says to a trial request.
    pub(super) trial: Result<PolicyDecision, PolicyFault>,
}

/// Compiles a policy with getters for its state, which for all else is the policy. `None` if it is not of a kind whose
/// state can be had.
pub(super) fn instrument(shared: &Shared, component: &[u8]) -> Option<Component> {
    // The rewriting gives up on some components by panicking. It holds nothing of ours, so nothing is left half-done.
    let rewrite = || Wizer::new().instrument_component(component).ok().map(|(_, instrumented)| instrumented);
    let instrumented = catch_unwind(AssertUnwindSafe(rewrite)).ok()??;
    shared.compile(&instrumented).ok()
}

/// Tries to make a snapshot of `component`, compiled as `instrumented`, configured with `settings`.
pub(super) fn attempt(
    shared: &Shared,
    component: &[u8],
    instrumented: &Component,
    settings: &str,
    trial: &Request<'_>,
    limits: Limits,
) -> Attempt {
    let make = || make(shared, component, instrumented, settings, trial, limits);
    catch_unwind(AssertUnwindSafe(make)).unwrap_or(Attempt::Unsuited)
}

fn make(
    shared: &Shared,
    component: &[u8],
    instrumented: &Component,
    settings: &str,
    trial: &Request<'_>,
    limits: Limits,
) -> Attempt {
    if fault::reach("policy.snapshot").is_err() {
        return Attempt::Unsuited;
    }
    let wizer = Wizer::new();
    let Ok((context, _)) = wizer.instrument_component(component) else { return Attempt::Unsuited };
    let budget = Budget::load(limits);
    let mut state = match configure(shared, instrumented, settings, budget) {
        Ok(Some(state)) => state,
        Ok(None) => return Attempt::Unsuited,
        Err(refused) => return Attempt::Refused(refused),
    };
    // Reading a memory hands all of it over, and takes a page for that.
    let reading = Budget {
        memory_bytes: budget.memory_bytes.saturating_add(PAGE_BYTES),
        output_bytes: MEMORY_BYTES_MAX + PAGE_BYTES,
        ..budget
    };
    state.store.data_mut().memory_bytes = reading.memory_bytes;
    if refill(&mut state.store, reading).is_err() {
        return Attempt::Unsuited;
    }
    // Nothing in it waits: every getter below answers at once.
    let Some(Ok(component)) = wizer.snapshot_component(&context, &mut state).now_or_never() else {
        return Attempt::Unsuited;
    };
    if state.failed || refill(&mut state.store, Budget::evaluation(limits, v0_1::facts(trial.context))).is_err() {
        return Attempt::Unsuited;
    }
    let trial = v0_1::show(trial, |shown| state.policy.call_evaluate(&mut state.store, shown));
    let trial = trial.map(v0_1::decision).map_err(|error| call_fault(&error));
    Attempt::Made(Snapshot { component, buckets: state.buckets, trial })
}

/// An instrumented instance that has been configured.
struct State {
    store: Store<Bounds>,
    instance: Instance,
    policy: Policy,
    buckets: Vec<Bucket>,
    /// Whether a getter could not answer: the trait has no way to say so.
    failed: bool,
}

/// Configures an instrumented instance. `None` if it cannot be instantiated at all.
fn configure(
    shared: &Shared,
    compiled: &Component,
    settings: &str,
    budget: Budget,
) -> Result<Option<State>, ConfigureError> {
    let Ok(pre) = shared.linker.instantiate_pre(compiled) else { return Ok(None) };
    let mut store = store(shared, budget).map_err(ConfigureError::Fault)?;
    let instance = instantiate_raw(&pre, &mut store).map_err(ConfigureError::Fault)?;
    let Ok(policy) = Policy::new(&mut store, &instance) else { return Ok(None) };
    let answer = policy.call_configure(&mut store, settings);
    let answer = answer.map_err(|error| ConfigureError::Fault(call_fault(&error)))?;
    let buckets = v0_1::configured(answer).map_err(ConfigureError::Problems)?;
    Ok(Some(State { store, instance, policy, buckets, failed: false }))
}

impl State {
    /// Calls a getter and uses its answer; on failure remembers that and gives `otherwise`.
    fn get<R, U>(&mut self, instance: &str, name: &str, otherwise: U, then: impl FnOnce(&Store<Bounds>, R) -> U) -> U
    where
        (R,): ComponentNamedList + Lift + 'static,
    {
        let called = self.call::<R>(instance, name);
        match called {
            Some(answer) => then(&self.store, answer),
            None => {
                self.failed = true;
                otherwise
            }
        }
    }

    fn call<R>(&mut self, instance: &str, name: &str) -> Option<R>
    where
        (R,): ComponentNamedList + Lift + 'static,
    {
        let (_, outer) = self.instance.get_export(&mut self.store, None, instance)?;
        let (_, getter) = self.instance.get_export(&mut self.store, Some(&outer), name)?;
        let getter = self.instance.get_typed_func::<(), (R,)>(&mut self.store, getter).ok()?;
        getter.call(&mut self.store, ()).ok().map(|(answer,)| answer)
    }
}

impl ComponentInstanceState for State {
    async fn call_func_ret_list_u8(&mut self, instance: &str, func: &str, contents: impl FnOnce(&[u8]) + Send) {
        self.get(instance, func, (), |store, list: WasmList<u8>| contents(list.as_le_slice(store)));
    }

    async fn call_func_ret_s32(&mut self, instance: &str, func: &str) -> i32 {
        self.get(instance, func, 0, |_, value: i32| value)
    }

    async fn call_func_ret_s64(&mut self, instance: &str, func: &str) -> i64 {
        self.get(instance, func, 0, |_, value: i64| value)
    }

    async fn call_func_ret_f32(&mut self, instance: &str, func: &str) -> u32 {
        self.get(instance, func, 0, |_, value: f32| value.to_bits())
    }

    async fn call_func_ret_f64(&mut self, instance: &str, func: &str) -> u64 {
        self.get(instance, func, 0, |_, value: f64| value.to_bits())
    }
}

/// Configures a plain instance, to learn what the policy says of the settings.
pub(super) fn configure_plain(
    shared: &Shared,
    pre: &v0_1::PolicyPre<Bounds>,
    settings: &str,
    budget: Budget,
) -> Result<Vec<Bucket>, ConfigureError> {
    let call = || -> Result<_, PolicyFault> {
        let mut store = store(shared, budget)?;
        let policy = super::run::instantiate(pre, &mut store)?;
        policy.call_configure(&mut store, settings).map_err(|error| call_fault(&error))
    };
    v0_1::configured(call().map_err(ConfigureError::Fault)?).map_err(ConfigureError::Problems)
}
