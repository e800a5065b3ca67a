//! The captured graphs of one owner, least recently used first to go.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;

use super::key::GraphKey;
use super::manager::{CaptureCost, Event, GraphManager};
use super::stats::{GraphStats, KeyStats, Ledger};

/// Refusals remembered per cache; beyond, the oldest are forgotten.
const MAX_REFUSALS: usize = 1024;

#[derive(Debug)]
struct Held<G> {
    graph: G,
    bytes: Option<u64>,
    used: u64,
}

/// Captured graphs `G` by [`GraphKey`], and the reasons `R` of keys that could not be captured.
///
/// Made for one owner and one thread; what caches share is in the [`GraphManager`].
///
/// # Contract
/// 1. A lookup returns the graph inserted for an equal key, or none.
/// 2. No more than `limit` graphs are held, at any point of any call; the least recently used one is evicted first.
/// 3. A graph is held until it is evicted, invalidated, cleared, replaced or refused, or the cache is dropped; then it is
///    dropped or handed out, never kept aside.
/// 4. A key has a graph, or a refusal, or neither.
///
/// # Examples
/// ```
/// use std::num::NonZeroUsize;
/// use candle_core::{DType, Device};
/// use esper_graph::{CaptureCost, ExecutionMode, GraphCache, GraphKey, GraphManager};
///
/// let manager = GraphManager::new();
/// let mut cache = GraphCache::<&str>::new(NonZeroUsize::new(2).expect("not 0"), &manager);
/// let key = |rows| GraphKey::new(ExecutionMode::Infer, &Device::Cpu).shape([rows, 3], DType::F32);
/// let cost = CaptureCost { capture_ms: 1.0, instantiate_ms: 0.5, bytes: None };
/// cache.insert(key(1), "one row", cost);
/// cache.insert(key(2), "two rows", cost);
/// assert_eq!(cache.get(&key(1)), Some(&mut "one row"));
/// assert_eq!(cache.insert(key(3), "three rows", cost), [(key(2), "two rows")]);
/// cache.refuse(key(3), "reads a value on the host".to_owned());
/// assert_eq!((cache.len(), cache.get(&key(3))), (1, None));
/// manager.invalidate_all();
/// assert_eq!(cache.get(&key(1)), None);
/// ```
#[derive(Debug)]
pub struct GraphCache<G, R = String> {
    limit: NonZeroUsize,
    held: BTreeMap<GraphKey, Held<G>>,
    refusals: Refusals<R>,
    ledger: Ledger,
    generation: u64,
    clock: u64,
}

impl<G, R: Clone + std::fmt::Debug> GraphCache<G, R> {
    /// An empty cache of at most `limit` graphs.
    #[must_use]
    pub fn new(limit: NonZeroUsize, manager: &GraphManager) -> Self {
        Self {
            limit,
            held: BTreeMap::new(),
            refusals: Refusals::new(),
            ledger: Ledger::new(manager, limit),
            generation: manager.generation(),
            clock: 0,
        }
    }

    /// The graph of `key`, which becomes the most recently used one. Counts a hit or a miss.
    pub fn get(&mut self, key: &GraphKey) -> Option<&mut G> {
        self.follow_manager();
        self.clock += 1;
        let Some(held) = self.held.get_mut(key) else {
            self.ledger.record(key, Event::Miss);
            return None;
        };
        self.ledger.record(key, Event::Hit);
        held.used = self.clock;
        Some(&mut held.graph)
    }

    /// The graph of `key`, for its owner to look after: nothing is counted, and it is used no more recently than before.
    pub fn peek(&mut self, key: &GraphKey) -> Option<&mut G> {
        self.follow_manager();
        self.held.get_mut(key).map(|held| &mut held.graph)
    }

    /// The graphs that are held, in the order of their keys, for their owner to look at.
    pub(crate) fn held(&self) -> impl Iterator<Item = &G> {
        self.held.values().map(|held| &held.graph)
    }

    /// Holds `graph` as the most recently used one, and returns the graphs that had to go for it.
    ///
    /// These are the graph of the same key, which counts as invalidated, or else the least recently used one of a full
    /// cache. They have left the cache before `graph` enters it; their device memory returns when they are dropped.
    pub fn insert(&mut self, key: GraphKey, graph: G, cost: CaptureCost) -> Vec<(GraphKey, G)> {
        self.follow_manager();
        let mut gone = Vec::new();
        if let Some(graph) = self.take(&key, Event::Invalidation) {
            gone.push((key.clone(), graph));
        }
        while self.held.len() >= self.limit.get() {
            gone.extend(self.evict());
        }
        self.refusals.remove(&key);
        self.clock += 1;
        self.ledger.record(&key, Event::Capture(cost));
        self.held.insert(key, Held { graph, bytes: cost.bytes, used: self.clock });
        gone
    }

    /// Takes the graph of `key` out, and forgets a refusal of `key`.
    pub fn invalidate(&mut self, key: &GraphKey) -> Option<G> {
        self.follow_manager();
        self.refusals.remove(key);
        self.take(key, Event::Invalidation)
    }

    /// Drops the graphs of the keys that `is_stale` names, and forgets their refusals. Returns the number of graphs.
    ///
    /// `is_stale` may be asked more than once about a key.
    pub fn invalidate_where(&mut self, is_stale: impl Fn(&GraphKey) -> bool) -> usize {
        self.follow_manager();
        self.refusals.remove_where(&is_stale);
        self.drop_where(is_stale)
    }

    /// Drops all graphs and forgets all refusals. Returns the number of graphs.
    pub fn clear(&mut self) -> usize {
        self.generation = self.ledger.manager().generation();
        self.refusals = Refusals::new();
        self.drop_where(|_| true)
    }

    /// Remembers that `key` cannot be captured, and drops a graph that it has.
    ///
    /// The latest 1024 refusals are remembered. One ends with an insertion or invalidation of its key, with
    /// [`clear`](Self::clear) and with [`GraphManager::invalidate_all`].
    pub fn refuse(&mut self, key: GraphKey, reason: R) {
        self.follow_manager();
        drop(self.take(&key, Event::Invalidation));
        self.refusals.insert(key, reason);
    }

    /// Why `key` cannot be captured, if that is known.
    #[must_use]
    pub fn refused(&self, key: &GraphKey) -> Option<&R> {
        self.refusals.get(key).filter(|_| self.generation == self.ledger.manager().generation())
    }

    /// Counts a replay; `replay_ms` where it was measured.
    pub fn record_replay(&mut self, key: &GraphKey, replay_ms: Option<f64>) {
        self.ledger.record(key, Event::Replay(replay_ms));
    }

    /// Counts a replay, counted already, as one of a compiled graph.
    pub fn record_compiled(&mut self, key: &GraphKey) {
        self.ledger.record(key, Event::Compiled);
    }

    /// Counts a run outside of a graph.
    pub fn record_fallback(&mut self, key: &GraphKey) {
        self.ledger.record(key, Event::Fallback);
    }

    /// What happened so far.
    #[must_use]
    pub fn stats(&self) -> GraphStats {
        self.ledger.stats(self.len(), self.limit.get())
    }

    /// What happened to one key, as far as it is kept.
    #[must_use]
    pub fn stats_of(&self, key: &GraphKey) -> KeyStats {
        self.ledger.stats_of(key)
    }

    /// Graphs held now, among them those that the next lookup will drop.
    #[must_use]
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// Whether no graph is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Most graphs that may be held.
    #[must_use]
    pub fn limit(&self) -> NonZeroUsize {
        self.limit
    }

    /// Clears the cache if the manager invalidated everything since the last look.
    fn follow_manager(&mut self) {
        // One load: with a second one, what is stored could be newer than what was compared, and its bump be lost.
        let generation = self.ledger.manager().generation();
        if generation != self.generation {
            self.generation = generation;
            self.refusals = Refusals::new();
            self.drop_where(|_| true);
        }
    }

    fn evict(&mut self) -> Option<(GraphKey, G)> {
        // A scan: a limit is a handful, and an eviction comes with a capture, which costs thousands of times more.
        let key = self.held.iter().min_by_key(|(_, held)| held.used).map(|(key, _)| key.clone())?;
        let graph = self.take(&key, Event::Eviction)?;
        Some((key, graph))
    }
}

impl<G, R> GraphCache<G, R> {
    fn take(&mut self, key: &GraphKey, event: fn(Option<u64>) -> Event) -> Option<G> {
        let Held { graph, bytes, .. } = self.held.remove(key)?;
        self.ledger.record(key, event(bytes));
        Some(graph)
    }

    fn drop_where(&mut self, is_stale: impl Fn(&GraphKey) -> bool) -> usize {
        let stale: Vec<GraphKey> = self.held.keys().filter(|key| is_stale(key)).cloned().collect();
        for key in &stale {
            drop(self.take(key, Event::Invalidation));
        }
        stale.len()
    }
}

impl<G, R> Drop for GraphCache<G, R> {
    fn drop(&mut self) {
        // The gauges of the manager outlive the cache.
        self.drop_where(|_| true);
    }
}

/// Reasons by key, oldest first to go.
#[derive(Debug)]
struct Refusals<R> {
    reasons: BTreeMap<GraphKey, (u64, R)>,
    by_age: BTreeMap<u64, GraphKey>,
    num_inserted: u64,
}

impl<R> Refusals<R> {
    fn new() -> Self {
        Self { reasons: BTreeMap::new(), by_age: BTreeMap::new(), num_inserted: 0 }
    }

    fn get(&self, key: &GraphKey) -> Option<&R> {
        self.reasons.get(key).map(|(_, reason)| reason)
    }

    fn insert(&mut self, key: GraphKey, reason: R) {
        self.remove(&key);
        if self.reasons.len() >= MAX_REFUSALS
            && let Some((_, oldest)) = self.by_age.pop_first()
        {
            self.reasons.remove(&oldest);
        }
        self.num_inserted += 1;
        self.by_age.insert(self.num_inserted, key.clone());
        self.reasons.insert(key, (self.num_inserted, reason));
    }

    fn remove(&mut self, key: &GraphKey) {
        if let Some((age, _)) = self.reasons.remove(key) {
            self.by_age.remove(&age);
        }
    }

    fn remove_where(&mut self, is_stale: impl Fn(&GraphKey) -> bool) {
        self.by_age.retain(|_, key| !is_stale(key));
        self.reasons.retain(|key, _| !is_stale(key));
    }
}

// Under the model checker, caches only work inside of a model: see `manager/tests.rs`.
#[cfg(test)]
#[cfg(not(feature = "model-check"))]
mod tests;
