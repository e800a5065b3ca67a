//! What happened to captured graphs, per key and in total.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;

use super::key::GraphKey;
use super::manager::{Event, GraphManager};

/// Rows kept per graph that may be held: the held ones and the latest of the others.
const ROWS_PER_GRAPH: usize = 4;

/// Time spent on something that happened at least once, in the unit that its field names.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Elapsed {
    /// The last time.
    pub last: f64,
    /// All times together.
    pub total: f64,
}

/// What happened to one key, or to all keys of a cache.
///
/// `captures` is the number of graphs held plus `evictions` plus `invalidations`.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct KeyStats {
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
    /// Graphs dropped to keep to the limit.
    pub evictions: u64,
    /// Graphs dropped for any other reason: invalidated, cleared, replaced, refused.
    pub invalidations: u64,
    /// Runs of the region outside of a graph because it could not be captured.
    pub fallbacks: u64,
    /// Milliseconds to capture; absent when never captured.
    pub capture_ms: Option<Elapsed>,
    /// Milliseconds to instantiate; absent when never captured.
    pub instantiate_ms: Option<Elapsed>,
    /// Milliseconds of the last replay that was measured.
    pub replay_ms: Option<f64>,
    /// Device memory of the graphs held now, as far as measured; absent when no such graph was.
    pub bytes: Option<u64>,
}

/// Statistics of one cache.
#[derive(Debug, Clone, PartialEq)]
pub struct GraphStats {
    /// Sums over all keys there ever were; the times called "last" are those of the last key.
    pub total: KeyStats,
    /// The keys held now and the latest of the others, at most 4 times the limit.
    pub per_key: BTreeMap<GraphKey, KeyStats>,
    /// Graphs held now.
    pub entries: usize,
    /// Most graphs that may be held.
    pub limit: usize,
}

/// Lookups that found a graph, of all lookups; absent before the first.
pub(super) fn hit_rate(hits: u64, misses: u64) -> Option<f64> {
    let lookups = hits + misses;
    (lookups > 0).then(|| hits as f64 / lookups as f64)
}

impl KeyStats {
    /// Lookups that found a graph, of all lookups; absent before the first. Of a function or model, by whatever name its owner
    /// knows it, it is that of the total of its [`stats`](super::GraphFunction::stats).
    #[must_use]
    pub fn hit_rate(&self) -> Option<f64> {
        hit_rate(self.hits, self.misses)
    }

    /// Counts everything but `bytes` of a total, which is a sum over keys.
    fn count(&mut self, event: Event) {
        match event {
            Event::Hit => self.hits += 1,
            Event::Miss => self.misses += 1,
            Event::Fallback => self.fallbacks += 1,
            Event::Replay(ms) => {
                self.replays += 1;
                self.replay_ms = ms.or(self.replay_ms);
            }
            Event::Compiled => self.compiled += 1,
            Event::Capture(cost) => {
                self.captures += 1;
                self.capture_ms = Some(add(self.capture_ms, cost.capture_ms));
                self.instantiate_ms = Some(add(self.instantiate_ms, cost.instantiate_ms));
                self.bytes = cost.bytes;
            }
            Event::Eviction(_) => {
                self.evictions += 1;
                self.bytes = None;
            }
            Event::Invalidation(_) => {
                self.invalidations += 1;
                self.bytes = None;
            }
        }
    }

    /// Whether a graph of this key is held.
    fn is_held(&self) -> bool {
        self.captures > self.evictions + self.invalidations
    }
}

fn add(elapsed: Option<Elapsed>, ms: f64) -> Elapsed {
    Elapsed { last: ms, total: elapsed.map_or(0.0, |elapsed| elapsed.total) + ms }
}

#[derive(Debug)]
struct Row {
    stats: KeyStats,
    touched: u64,
}

/// The statistics of one cache as they grow; passes every event on to the manager.
#[derive(Debug)]
pub(super) struct Ledger {
    manager: GraphManager,
    total: KeyStats,
    rows: BTreeMap<GraphKey, Row>,
    max_rows: usize,
    num_events: u64,
}

impl Ledger {
    /// Nothing has happened yet.
    pub(super) fn new(manager: &GraphManager, limit: NonZeroUsize) -> Self {
        Self {
            manager: manager.clone(),
            total: KeyStats::default(),
            rows: BTreeMap::new(),
            max_rows: limit.get().saturating_mul(ROWS_PER_GRAPH),
            num_events: 0,
        }
    }

    /// The manager that is told.
    pub(super) fn manager(&self) -> &GraphManager {
        &self.manager
    }

    /// Counts `event` of `key`.
    pub(super) fn record(&mut self, key: &GraphKey, event: Event) {
        self.manager.count(event);
        self.total.count(event);
        self.num_events += 1;
        if let Some(row) = self.rows.get_mut(key) {
            row.stats.count(event);
            row.touched = self.num_events;
            return;
        }
        let mut stats = KeyStats::default();
        stats.count(event);
        self.rows.insert(key.clone(), Row { stats, touched: self.num_events });
        if self.rows.len() > self.max_rows {
            self.forget_oldest();
        }
    }

    /// Drops the row that was touched longest ago among those without a graph.
    fn forget_oldest(&mut self) {
        let idle = self.rows.iter().filter(|(_, row)| !row.stats.is_held());
        if let Some(key) = idle.min_by_key(|(_, row)| row.touched).map(|(key, _)| key.clone()) {
            self.rows.remove(&key);
        }
    }

    /// The row of a key.
    pub(super) fn stats_of(&self, key: &GraphKey) -> KeyStats {
        self.rows.get(key).map_or_else(KeyStats::default, |row| row.stats)
    }

    /// Totals and rows.
    pub(super) fn stats(&self, entries: usize, limit: usize) -> GraphStats {
        let bytes = self.rows.values().filter_map(|row| row.stats.bytes).reduce(|sum, bytes| sum + bytes);
        let per_key = self.rows.iter().map(|(key, row)| (key.clone(), row.stats)).collect();
        GraphStats { total: KeyStats { bytes, ..self.total }, per_key, entries, limit }
    }
}
