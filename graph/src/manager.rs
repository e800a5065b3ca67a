//! What all graph caches of a process share: a switch, a generation and counters.

use serde::{Deserialize, Serialize};

use super::stats::hit_rate;
use super::sync::{Arc, AtomicBool, AtomicU64, OnceSlot, Ordering};

static GLOBAL: OnceSlot<GraphManager> = OnceSlot::new();

/// Whether training steps and inference functions are captured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GraphMode {
    /// Where it is possible.
    #[default]
    Auto,
    /// Never.
    Off,
}

/// An environment variable has a value that means nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the environment variable {name} is `{value}`: expected {expected}")]
pub struct BadSwitch {
    /// The variable.
    pub name: &'static str,
    /// What was found.
    pub value: String,
    /// What is accepted.
    pub expected: &'static str,
}

impl GraphMode {
    /// The environment variable that switches graphs off for a whole process, whatever its configurations say. Reading
    /// it is the caller's part.
    pub const SWITCH: &'static str = "ESPER_GRAPHS";

    /// The mode that the text of [`SWITCH`](Self::SWITCH) asks for; `None` when it is unset or empty.
    ///
    /// # Errors
    /// [`BadSwitch`] for a text that is none of the accepted ones.
    pub fn from_switch(value: Option<&str>) -> Result<Option<Self>, BadSwitch> {
        let is_on = switch(Self::SWITCH, value)?;
        Ok(is_on.map(|is_on| if is_on { Self::Auto } else { Self::Off }))
    }
}

/// What the text of a switch means; `None` when it is unset or empty.
fn switch(name: &'static str, value: Option<&str>) -> Result<Option<bool>, BadSwitch> {
    match value {
        None | Some("") => Ok(None),
        Some("0" | "off" | "false") => Ok(Some(false)),
        Some("1" | "auto" | "on" | "true") => Ok(Some(true)),
        Some(other) => Err(BadSwitch { name, value: other.to_owned(), expected: "0, off, false, 1, auto, on or true" }),
    }
}

/// What a capture cost.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CaptureCost {
    /// Milliseconds from the begin of the capture to its end.
    pub capture_ms: f64,
    /// Milliseconds to make the captured graph executable.
    pub instantiate_ms: f64,
    /// Device memory of the graph; absent when not measured.
    pub bytes: Option<u64>,
}

/// Something that is counted.
#[derive(Debug, Clone, Copy)]
pub(super) enum Event {
    Hit,
    Miss,
    Fallback,
    /// Milliseconds, when measured.
    Replay(Option<f64>),
    Compiled,
    Capture(CaptureCost),
    /// Bytes of the graph, when measured.
    Eviction(Option<u64>),
    /// Bytes of the graph, when measured.
    Invalidation(Option<u64>),
}

/// Counters of all caches of a manager, alive or gone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GraphTotals {
    /// Graphs captured.
    pub captures: u64,
    /// Replays of a graph.
    pub replays: u64,
    /// Those of them that a compiled graph took.
    pub compiled: u64,
    /// Lookups that found a graph.
    pub hits: u64,
    /// Lookups that found none.
    pub misses: u64,
    /// Graphs dropped to keep to a limit.
    pub evictions: u64,
    /// Graphs dropped for any other reason, the end of their cache included.
    pub invalidations: u64,
    /// Runs of a region outside of a graph because it could not be captured.
    pub fallbacks: u64,
    /// Graphs held now.
    pub live_graphs: u64,
    /// Device memory of the graphs held now, as far as measured.
    pub live_bytes: u64,
}

impl GraphTotals {
    /// Lookups that found a graph, of all lookups; absent before the first.
    #[must_use]
    pub fn hit_rate(&self) -> Option<f64> {
        hit_rate(self.hits, self.misses)
    }
}

/// A handle to what all graph caches of a process share. Clones share the same state.
///
/// Graphs themselves are not shared: each [`GraphCache`](super::GraphCache) has one owner and one thread.
///
/// # Contract
/// 1. [`global`](Self::global) makes one manager per process, whichever thread comes first.
/// 2. After [`invalidate_all`](Self::invalidate_all) has returned, no lookup returns a graph inserted before the call.
/// 3. Counters lose no event, and count each one once.
///
/// Model-checked by `cargo test -p esper-graph --features model-check --lib manager`.
///
/// # Examples
/// ```
/// use esper_graph::{GraphManager, GraphMode};
///
/// let manager = GraphManager::new();
/// manager.set_mode(GraphMode::from_switch(Some("off"))?.expect("a mode"));
/// assert!(!manager.enabled());
/// manager.set_fuel(Some(17));
/// assert_eq!((manager.fuel(), manager.totals().captures), (Some(17), 0));
/// # Ok::<(), esper_graph::BadSwitch>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct GraphManager {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    off: AtomicBool,
    /// How many rewrites a compile may do, and one more; 0 is no limit.
    fuel: AtomicU64,
    /// Whether kernels start only once what they wait for is over.
    in_turn: AtomicBool,
    keeps_memory: AtomicBool,
    generation: AtomicU64,
    captures: AtomicU64,
    replays: AtomicU64,
    compiled: AtomicU64,
    hits: AtomicU64,
    misses: AtomicU64,
    evictions: AtomicU64,
    invalidations: AtomicU64,
    fallbacks: AtomicU64,
    live_graphs: AtomicU64,
    live_bytes: AtomicU64,
}

impl GraphManager {
    /// A manager of its own, in mode [`GraphMode::Auto`].
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The manager of this process.
    #[must_use]
    pub fn global() -> Self {
        GLOBAL.get_or_init(Self::new)
    }

    /// Sets the mode. Graphs that are held stay held.
    pub fn set_mode(&self, mode: GraphMode) {
        self.shared.off.store(mode == GraphMode::Off, Ordering::Release);
    }

    /// The mode.
    #[must_use]
    pub fn mode(&self) -> GraphMode {
        if self.shared.off.load(Ordering::Acquire) { GraphMode::Off } else { GraphMode::Auto }
    }

    /// Whether graphs may be captured and replayed.
    #[must_use]
    pub fn enabled(&self) -> bool {
        self.mode() == GraphMode::Auto
    }

    /// The environment variable that says how many rewrites a compile may do, for a whole process. Reading it is the
    /// caller's part.
    pub const FUEL: &'static str = "ESPER_FUEL";

    /// The number that the text of [`FUEL`](Self::FUEL) asks for; `None` when it is unset or empty.
    ///
    /// # Errors
    /// [`BadSwitch`] for a text that is no whole number.
    ///
    /// # Examples
    /// ```
    /// use esper_graph::GraphManager;
    ///
    /// assert_eq!(GraphManager::fuel_from(Some("17")), Ok(Some(17)));
    /// assert!(GraphManager::fuel_from(Some("some")).is_err());
    /// ```
    pub fn fuel_from(value: Option<&str>) -> Result<Option<u32>, BadSwitch> {
        let value = value.filter(|value| !value.is_empty());
        let number = |value: &str| {
            let bad =
                |_| BadSwitch { name: Self::FUEL, value: value.to_owned(), expected: "a whole number of rewrites" };
            value.parse().map_err(bad)
        };
        value.map(number).transpose()
    }

    /// Limits the rewrites of each compile from now on; absent lifts the limit.
    pub fn set_fuel(&self, num_rewrites: Option<u32>) {
        self.shared.fuel.store(num_rewrites.map_or(0, |number| u64::from(number) + 1), Ordering::Release);
    }

    /// How many rewrites a compile that begins now may do; absent where there is no limit.
    #[must_use]
    pub fn fuel(&self) -> Option<usize> {
        let limit = self.shared.fuel.load(Ordering::Acquire).checked_sub(1)?;
        Some(usize::try_from(limit).unwrap_or(usize::MAX))
    }

    /// The environment variable that says whether kernels of compiled graphs start early, for a whole process. Reading it is the
    /// caller's part.
    pub const OVERLAP: &'static str = "ESPER_OVERLAP";

    /// What the text of [`OVERLAP`](Self::OVERLAP) asks for; `None` when it is unset or empty.
    ///
    /// # Errors
    /// [`BadSwitch`] for a text that is none of the accepted ones.
    ///
    /// # Examples
    /// ```
    /// use esper_graph::GraphManager;
    ///
    /// assert_eq!(GraphManager::overlap_from(Some("off")), Ok(Some(false)));
    /// assert!(GraphManager::overlap_from(Some("some")).is_err());
    /// ```
    pub fn overlap_from(value: Option<&str>) -> Result<Option<bool>, BadSwitch> {
        switch(Self::OVERLAP, value)
    }

    /// The environment variable that makes ranges for profilers ([`crate::Nvtx`]) of the phases of a process. Reading it is the caller's part.
    pub const RANGES: &'static str = "ESPER_NVTX";

    /// Whether a value of [`Self::RANGES`] asks for ranges; absent when the variable is.
    ///
    /// # Errors
    /// [`BadSwitch`].
    pub fn ranges_from(value: Option<&str>) -> Result<Option<bool>, BadSwitch> {
        switch(Self::RANGES, value)
    }

    /// Says whether kernels of graphs that are compiled from now on may take their place on the device before what they wait for
    /// is over. They may unless it is switched off. Results are the same.
    pub fn set_overlap(&self, overlap: bool) {
        self.shared.in_turn.store(!overlap, Ordering::Release);
    }

    /// Whether they may.
    #[must_use]
    pub fn overlap(&self) -> bool {
        !self.shared.in_turn.load(Ordering::Acquire)
    }

    /// The environment variable that keeps the memory of graphs that are gone for those that come, for a whole process. Reading it is the
    /// caller's part.
    pub const KEEP_MEMORY: &'static str = "ESPER_KEEP_GRAPH_MEMORY";

    /// What the text of [`KEEP_MEMORY`](Self::KEEP_MEMORY) asks for; `None` when it is unset or empty.
    ///
    /// # Errors
    /// [`BadSwitch`] for a text that is none of the accepted ones.
    pub fn keep_memory_from(value: Option<&str>) -> Result<Option<bool>, BadSwitch> {
        switch(Self::KEEP_MEMORY, value)
    }

    /// Says whether memory that a graph leaves stays with the process for later graphs of the device, or goes back to the device, where
    /// tensors and other processes can have it; it goes back unless this is switched on. Graphs ask the manager of the process
    /// ([`global`](Self::global)) alone.
    pub fn set_keeps_memory(&self, keeps_memory: bool) {
        self.shared.keeps_memory.store(keeps_memory, Ordering::Release);
    }

    /// Whether it stays.
    #[must_use]
    pub fn keeps_memory(&self) -> bool {
        self.shared.keeps_memory.load(Ordering::Acquire)
    }

    /// Makes every cache drop the graphs it holds and forget its refusals, at its next lookup or insertion.
    ///
    /// Device memory returns at that point and not here, because a graph belongs to the thread of its cache.
    pub fn invalidate_all(&self) {
        // Wrapping is out of reach: a bump per nanosecond takes 584 years.
        self.shared.generation.fetch_add(1, Ordering::AcqRel);
    }

    /// Number of calls of [`invalidate_all`](Self::invalidate_all) so far.
    pub(super) fn generation(&self) -> u64 {
        self.shared.generation.load(Ordering::Acquire)
    }

    /// The counters. Each is exact, but they are read one after the other while caches go on counting.
    #[must_use]
    pub fn totals(&self) -> GraphTotals {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let shared = &*self.shared;
        GraphTotals {
            captures: read(&shared.captures),
            replays: read(&shared.replays),
            compiled: read(&shared.compiled),
            hits: read(&shared.hits),
            misses: read(&shared.misses),
            evictions: read(&shared.evictions),
            invalidations: read(&shared.invalidations),
            fallbacks: read(&shared.fallbacks),
            live_graphs: read(&shared.live_graphs),
            live_bytes: read(&shared.live_bytes),
        }
    }

    /// Counts an event of any cache.
    pub(super) fn count(&self, event: Event) {
        let add = |counter: &AtomicU64, amount: u64| {
            counter.fetch_add(amount, Ordering::Relaxed);
        };
        // The thread that takes away is the one that added, so a gauge never falls below zero.
        let release = |bytes: Option<u64>| {
            self.shared.live_graphs.fetch_sub(1, Ordering::Relaxed);
            self.shared.live_bytes.fetch_sub(bytes.unwrap_or(0), Ordering::Relaxed);
        };
        match event {
            Event::Hit => add(&self.shared.hits, 1),
            Event::Miss => add(&self.shared.misses, 1),
            Event::Fallback => add(&self.shared.fallbacks, 1),
            Event::Replay(_) => add(&self.shared.replays, 1),
            Event::Compiled => add(&self.shared.compiled, 1),
            Event::Capture(cost) => {
                add(&self.shared.captures, 1);
                add(&self.shared.live_graphs, 1);
                add(&self.shared.live_bytes, cost.bytes.unwrap_or(0));
            }
            Event::Eviction(bytes) => {
                add(&self.shared.evictions, 1);
                release(bytes);
            }
            Event::Invalidation(bytes) => {
                add(&self.shared.invalidations, 1);
                release(bytes);
            }
        }
    }
}

#[cfg(test)]
mod tests;
