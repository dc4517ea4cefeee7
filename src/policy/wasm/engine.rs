//! The engine all policies share, its clock, and the queue in front of its pool.
//!
//! The pool has a fixed number of slots. A thread that needs one waits for it up to a deadline and is
//! then told `busy`; so does an evaluation that takes long, for one of the few places for such. The clock is a thread of its own that ends with the host, and stands still while
//! nothing runs: several idle servers on one machine are normal.

use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use wasmtime::component::Linker;
use wasmtime::{Config, Enabled, Engine, InstanceAllocationStrategy, PoolingAllocationConfig};

use crate::model::{Code, Failure, fault};
use crate::policy::{Loaded, Loader, MEMORY_BYTES_MAX, Spec};

use super::cache::Cache;
use super::guest::Guest;
use super::limits::{CORE_INSTANCES_MAX, STACK_BYTES_MAX, TABLE_ELEMENTS_MAX, TICK_MS};
use super::run::Bounds;
use super::standby::{Places, STANDBY_MAX};

/// Slots unless set otherwise: evaluations take microseconds, so more only helps where more cores are.
pub const SLOTS_DEFAULT: u32 = 32;
/// The wait for a slot unless set otherwise, in milliseconds.
pub const SLOT_WAIT_MS_DEFAULT: u64 = 250;
/// The most that wait for a slot at once: each waits on a thread.
pub const WAITING_MAX: u32 = 32;
/// Memory of a slot that is kept and cleared rather than given back: most guests use less, and clearing is cheaper than
/// faulting pages in again.
const MEMORY_KEPT_BYTES: usize = 256 << 10;
/// The same for tables.
const TABLE_KEPT_BYTES: usize = 64 << 10;
/// Ticks for which the clock runs on when nothing does: starting it costs more than a tick.
const IDLE_TICKS_MAX: u32 = 20;
/// Unmapped bytes behind a memory: bounds are checked in code, so this only catches small offsets.
const MEMORY_GUARD_BYTES: u64 = 64 << 10;

/// How the host is set up.
#[derive(Clone, Debug)]
pub struct HostSettings {
    /// How many evaluations may run at once.
    pub slots: u32,
    /// How long one waits for a slot, in milliseconds.
    pub slot_wait_ms: u64,
    /// Where compiled code is kept; `None` compiles at each load, which takes small guests some 10 ms.
    pub cache_directory: Option<PathBuf>,
}

impl Default for HostSettings {
    fn default() -> Self {
        Self { slots: SLOTS_DEFAULT, slot_wait_ms: SLOT_WAIT_MS_DEFAULT, cache_directory: None }
    }
}

/// Why the host cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// The engine cannot be made on this machine.
    #[error("the WebAssembly engine cannot be started: {0}")]
    Engine(String),
    /// The clock's thread cannot be started.
    #[error("the clock of the policies cannot be started")]
    Clock(#[source] std::io::Error),
    /// The cache cannot be used.
    #[error("the cache of compiled policies at `{path}` cannot be used: {detail}")]
    Cache {
        /// The directory.
        path: PathBuf,
        /// What is wrong.
        detail: String,
    },
}

impl From<HostError> for Failure {
    fn from(error: HostError) -> Self {
        Self::new(Code::PolicyNotReady, "the host of the policies cannot be started; the request was not run")
            .hint("`pgsandbox doctor` says why")
            .audit(error.to_string())
    }
}

/// Loads and runs policies. Cheap to clone.
#[derive(Clone)]
pub struct Host {
    shared: Arc<Shared>,
}

/// What all policies of a host share.
pub(super) struct Shared {
    pub(super) engine: Engine,
    pub(super) linker: Linker<Bounds>,
    pub(super) slots: Arc<Slots>,
    /// Places for evaluations that take long: so many that a core is left for everybody else.
    pub(super) aside: Slots,
    /// Places for instances that stand ready.
    pub(super) places: Arc<Places>,
    pub(super) cache: Option<Cache>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.slots.close();
    }
}

impl Host {
    /// Starts a host.
    ///
    /// # Errors
    /// Fails if the engine or its clock cannot be started, or if the cache's directory cannot be used safely.
    pub fn new(settings: &HostSettings) -> Result<Self, HostError> {
        let slots = settings.slots.max(1);
        fault::reach("policy.engine")
            .map_err(|injected| HostError::Engine(std::io::Error::from(injected).to_string()))?;
        let engine = Engine::new(&config(slots)).map_err(|error| HostError::Engine(error.to_string()))?;
        let cache = settings.cache_directory.as_ref().map(|path| Cache::open(path, &engine)).transpose()?;
        let wait = Duration::from_millis(settings.slot_wait_ms);
        let cores = thread::available_parallelism().map_or(1, |cores| u32::try_from(cores.get()).unwrap_or(u32::MAX));
        let aside = Slots::new(cores.saturating_sub(1).clamp(1, slots), wait);
        let slots = Arc::new(Slots::new(slots, wait));
        // Nothing is ever added to the linker: a policy that imports a function cannot be instantiated.
        let linker = Linker::new(&engine);
        let shared = Shared { engine, linker, slots, aside, places: Arc::default(), cache };
        start_clock(&shared)?;
        Ok(Self { shared: Arc::new(shared) })
    }
}

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Host").finish_non_exhaustive()
    }
}

impl Loader for Host {
    fn load(&self, spec: &Spec) -> Result<Box<dyn Loaded>, String> {
        fault::reach("policy.load").map_err(|injected| std::io::Error::from(injected).to_string())?;
        Ok(Box::new(Guest::load(Arc::clone(&self.shared), spec)?))
    }
}

/// Makes the engine's configuration. What measured best, and nothing that could tell one run from another.
fn config(slots: u32) -> Config {
    let instances = slots.saturating_add(STANDBY_MAX);
    let parts = instances.saturating_mul(CORE_INSTANCES_MAX);
    let mut pool = PoolingAllocationConfig::default();
    pool.total_component_instances(instances)
        .total_core_instances(parts)
        .total_memories(parts)
        .total_tables(parts)
        .max_core_instances_per_component(CORE_INSTANCES_MAX)
        .max_memories_per_component(CORE_INSTANCES_MAX)
        .max_tables_per_component(CORE_INSTANCES_MAX)
        .max_memory_size(MEMORY_BYTES_MAX)
        .table_elements(TABLE_ELEMENTS_MAX)
        .linear_memory_keep_resident(MEMORY_KEPT_BYTES)
        .table_keep_resident(TABLE_KEPT_BYTES)
        // A scan for pages that were written does not see those that are swapped out, and would leave them to the next
        // request.
        .pagemap_scan(Enabled::No);
    let mut config = Config::new();
    config
        .allocation_strategy(InstanceAllocationStrategy::Pooling(pool))
        .memory_reservation(MEMORY_BYTES_MAX as u64)
        .memory_reservation_for_growth(0)
        .memory_may_move(false)
        .memory_guard_size(MEMORY_GUARD_BYTES)
        .consume_fuel(true)
        .epoch_interruption(true)
        .max_wasm_stack(STACK_BYTES_MAX)
        .concurrency_support(false)
        .cranelift_nan_canonicalization(true)
        .wasm_memory64(false)
        .wasm_multi_memory(false)
        .wasm_relaxed_simd(false)
        .wasm_backtrace_max_frames(None);
    config
}

/// Starts the thread that counts ticks while anything runs.
fn start_clock(shared: &Shared) -> Result<(), HostError> {
    let (engine, slots) = (shared.engine.weak(), Arc::clone(&shared.slots));
    let run = move || {
        while slots.wait_for_work() {
            thread::sleep(Duration::from_millis(TICK_MS));
            let Some(engine) = engine.upgrade() else { return };
            engine.increment_epoch();
        }
    };
    fault::reach("policy.clock").map_err(|injected| HostError::Clock(injected.into()))?;
    thread::Builder::new().name("policy-clock".to_owned()).spawn(run).map(drop).map_err(HostError::Clock)
}

/// The queue for slots of the pool.
pub(super) struct Slots {
    counts: Mutex<Counts>,
    freed: Condvar,
    /// For the clock: something runs again, or nothing ever will.
    wanted: Condvar,
    wait: Duration,
}

struct Counts {
    free: u32,
    in_use: u32,
    /// Waking nobody costs a system call, so it is known whether somebody waits.
    waiting: u32,
    /// Ticks since a slot was last taken.
    idle_ticks: u32,
    clock_stands: bool,
    closed: bool,
}

/// A slot, free again when dropped.
pub(super) struct Slot<'a>(&'a Slots);

impl Slots {
    fn new(count: u32, wait: Duration) -> Self {
        let counts = Counts { free: count, in_use: 0, waiting: 0, idle_ticks: 0, clock_stands: false, closed: false };
        Self { counts: Mutex::new(counts), freed: Condvar::new(), wanted: Condvar::new(), wait }
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether as many wait as may.
    pub(super) fn is_crowded(&self) -> bool {
        self.counts().waiting >= WAITING_MAX
    }

    /// Waits for a slot, no longer than the host's deadline. While a slot is taken the clock runs.
    pub(super) fn take(&self) -> Option<Slot<'_>> {
        let mut counts = self.counts();
        if counts.free == 0 {
            if counts.waiting >= WAITING_MAX {
                return None;
            }
            counts.waiting += 1;
            let waited = self.freed.wait_timeout_while(counts, self.wait, |counts| counts.free == 0);
            counts = waited.unwrap_or_else(PoisonError::into_inner).0;
            counts.waiting -= 1;
        }
        counts.free = counts.free.checked_sub(1)?;
        counts.in_use += 1;
        counts.idle_ticks = 0;
        if counts.clock_stands {
            counts.clock_stands = false;
            self.wanted.notify_all();
        }
        Some(Slot(self))
    }

    /// Returns at once while slots are in use or were a moment ago, else when one is taken; `false` when the host has
    /// ended.
    fn wait_for_work(&self) -> bool {
        let mut counts = self.counts();
        counts.idle_ticks = counts.idle_ticks.saturating_add(1);
        if counts.idle_ticks > IDLE_TICKS_MAX && counts.in_use == 0 {
            counts.clock_stands = true;
        }
        let waited = self.wanted.wait_while(counts, |counts| counts.clock_stands && !counts.closed);
        !waited.unwrap_or_else(PoisonError::into_inner).closed
    }

    fn close(&self) {
        self.counts().closed = true;
        self.wanted.notify_all();
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        let mut counts = self.0.counts();
        counts.free += 1;
        counts.in_use -= 1;
        if counts.waiting > 0 {
            self.0.freed.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_that_does_not_come_up_in_time_is_given_up() {
        let slots = Slots::new(1, Duration::from_millis(1));
        let held = slots.take().unwrap();
        assert!(slots.take().is_none());
        drop(held);
        assert!(slots.take().is_some());
    }

    #[test]
    fn so_many_wait_for_a_slot_and_no_more() {
        let slots = Slots::new(1, Duration::from_secs(600));
        let held = slots.take().unwrap();
        thread::scope(|scope| {
            for _ in 0..WAITING_MAX {
                scope.spawn(|| slots.take().is_some());
            }
            while !slots.is_crowded() {
                thread::yield_now();
            }
            assert!(slots.take().is_none(), "one more is told at once");
            drop(held);
        });
        assert!(!slots.is_crowded() && slots.take().is_some());
    }

    #[test]
    fn the_clock_stands_while_nothing_runs_and_ends_with_the_host() {
        let slots = Slots::new(2, Duration::ZERO);
        let held = slots.take().unwrap();
        assert!((0..IDLE_TICKS_MAX * 2).all(|_| slots.wait_for_work()), "it runs as long as a slot is taken");
        drop(held);
        thread::scope(|scope| {
            let clock = scope.spawn(|| slots.wait_for_work());
            while !slots.counts().clock_stands {
                thread::yield_now();
            }
            assert!(!clock.is_finished());
            drop(slots.take().unwrap());
            assert!(clock.join().unwrap(), "taking a slot starts it");
            let ending = scope.spawn(|| (0..=IDLE_TICKS_MAX + 1).all(|_| slots.wait_for_work()));
            slots.close();
            assert!(!ending.join().unwrap());
        });
    }

    #[test]
    fn a_host_that_is_dropped_takes_its_clock_along() {
        let host = Host::new(&HostSettings { slots: 1, ..HostSettings::default() }).unwrap();
        let slots = Arc::clone(&host.shared.slots);
        drop(host);
        assert!(!slots.wait_for_work());
    }
}
