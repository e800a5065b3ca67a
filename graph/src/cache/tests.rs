//! The cache against a naive model, and the rules that a random run would rarely meet.

use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;

use candle_core::{DType, Device};
use leyline::id::TopologyRevision;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use super::*;
use crate::key::{DeviceKey, ExecutionMode, Precision, ProductSwitches, TensorKey};
use crate::manager::GraphTotals;
use crate::stats::KeyStats;

type Cache<G> = GraphCache<G, &'static str>;

const COST: CaptureCost = CaptureCost { capture_ms: 2.0, instantiate_ms: 0.5, bytes: Some(100) };

fn cache<G>(limit: usize, manager: &GraphManager) -> Cache<G> {
    GraphCache::new(NonZeroUsize::new(limit).unwrap(), manager)
}

fn key(revision: u64) -> GraphKey {
    GraphKey::new(ExecutionMode::Train, &Device::Cpu).topology(TopologyRevision(revision))
}

/// A graph that counts itself among those alive.
#[derive(Debug)]
struct Graph {
    name: u64,
    alive: Rc<Cell<usize>>,
}

impl Graph {
    fn new(name: u64, alive: &Rc<Cell<usize>>) -> Self {
        alive.set(alive.get() + 1);
        Self { name, alive: Rc::clone(alive) }
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        self.alive.set(self.alive.get() - 1);
    }
}

#[test]
fn five_insertions_into_a_limit_of_three_leave_three_and_drop_two() {
    let (manager, alive) = (GraphManager::new(), Rc::default());
    let mut cache: Cache<Graph> = cache(3, &manager);
    for revision in 0..5 {
        drop(cache.insert(key(revision), Graph::new(revision, &alive), COST));
        assert!(cache.len() <= 3);
        assert_eq!(alive.get(), cache.len());
    }
    assert_eq!((cache.len(), alive.get(), cache.stats().total.evictions), (3, 3, 2));
    assert_eq!((manager.totals().live_graphs, manager.totals().live_bytes), (3, 300));
    drop(cache);
    assert_eq!(alive.get(), 0);
    assert_eq!((manager.totals().live_graphs, manager.totals().live_bytes), (0, 0));
}

#[test]
fn a_lookup_saves_a_graph_from_being_the_next_to_go() {
    let mut cache: Cache<char> = cache(2, &GraphManager::new());
    assert!(cache.insert(key(1), 'a', COST).is_empty());
    assert!(cache.insert(key(2), 'b', COST).is_empty());
    assert_eq!(cache.get(&key(1)), Some(&mut 'a'));
    assert_eq!(cache.insert(key(3), 'c', COST), [(key(2), 'b')]);
    assert_eq!(cache.insert(key(3), 'd', COST), [(key(3), 'c')]);
    assert_eq!(cache.len(), 2);
}

#[test]
fn a_peek_finds_the_graph_counts_nothing_and_saves_it_from_nothing() {
    let manager = GraphManager::new();
    let mut cache: Cache<char> = cache(2, &manager);
    assert!(cache.insert(key(1), 'a', COST).is_empty());
    assert!(cache.insert(key(2), 'b', COST).is_empty());
    assert_eq!(cache.peek(&key(1)), Some(&mut 'a'));
    assert_eq!(cache.peek(&key(3)), None);
    assert_eq!((cache.stats().total.hits, cache.stats().total.misses), (0, 0));
    assert_eq!(cache.insert(key(3), 'c', COST), [(key(1), 'a')]);
    manager.invalidate_all();
    assert_eq!(cache.peek(&key(2)), None);
    assert_eq!(cache.len(), 0);
}

#[test]
fn an_invalidation_of_everything_drops_what_was_held_and_spares_what_comes_after() {
    let (manager, alive) = (GraphManager::new(), Rc::default());
    let mut looks: Cache<Graph> = cache(2, &manager);
    let mut inserts: Cache<Graph> = cache(2, &manager);
    for cache in [&mut looks, &mut inserts] {
        drop(cache.insert(key(1), Graph::new(1, &alive), COST));
        cache.refuse(key(2), "no");
    }
    manager.invalidate_all();
    assert_eq!((alive.get(), looks.len()), (2, 1));
    assert_eq!((looks.refused(&key(2)), inserts.refused(&key(2))), (None, None));
    assert!(looks.get(&key(1)).is_none());
    assert!(inserts.insert(key(3), Graph::new(3, &alive), COST).is_empty());
    assert!(inserts.get(&key(3)).is_some());
    assert!(inserts.get(&key(1)).is_none());
    assert_eq!((alive.get(), looks.len(), inserts.len()), (1, 0, 1));
    assert_eq!(manager.totals().invalidations, 2);
}

#[test]
fn older_topologies_can_be_dropped_alone() {
    let mut cache: Cache<()> = cache(4, &GraphManager::new());
    (1..=3).for_each(|revision| drop(cache.insert(key(revision), (), COST)));
    cache.refuse(key(0), "no");
    cache.refuse(key(4), "no");
    assert_eq!(cache.invalidate_where(|key| key.topology < TopologyRevision(3)), 2);
    assert_eq!((cache.len(), cache.refused(&key(0)), cache.refused(&key(4))), (1, None, Some(&"no")));
    assert_eq!((cache.clear(), cache.refused(&key(4))), (1, None));
}

#[test]
fn times_are_the_last_and_the_sum_and_absent_when_never_measured() {
    let mut cache: Cache<()> = cache(1, &GraphManager::new());
    cache.record_fallback(&key(1));
    let never = cache.stats().total;
    assert_eq!((never.capture_ms, never.instantiate_ms, never.replay_ms, never.bytes), (None, None, None, None));
    drop(cache.insert(key(1), (), CaptureCost { bytes: None, ..COST }));
    cache.record_replay(&key(1), None);
    assert_eq!((cache.stats().total.replay_ms, cache.stats().total.bytes), (None, None));
    cache.record_replay(&key(1), Some(0.25));
    cache.record_replay(&key(1), None);
    drop(cache.insert(key(1), (), CaptureCost { capture_ms: 4.0, ..COST }));
    let stats = cache.stats().per_key[&key(1)];
    let capture_ms = stats.capture_ms.map(|ms| (ms.last, ms.total));
    let instantiate_ms = stats.instantiate_ms.map(|ms| (ms.last, ms.total));
    assert_eq!((capture_ms, instantiate_ms), (Some((4.0, 6.0)), Some((0.5, 1.0))));
    assert_eq!((stats.replays, stats.replay_ms, stats.bytes), (3, Some(0.25), Some(100)));
    assert_eq!(stats, cache.stats().total);
    assert_eq!(cache.clear(), 1);
    assert_eq!(cache.stats().total.bytes, None);
}

#[test]
fn statistics_are_bounded_and_their_totals_are_not() {
    let manager = GraphManager::new();
    let mut cache: Cache<()> = cache(2, &manager);
    drop(cache.insert(key(0), (), COST));
    for revision in 1..=100 {
        assert_eq!(cache.get(&key(revision)), None);
    }
    let stats = cache.stats();
    let kept: Vec<u64> = stats.per_key.keys().map(|key| key.topology.0).collect();
    assert_eq!(kept, [0, 94, 95, 96, 97, 98, 99, 100]);
    assert_eq!((stats.total.misses, stats.total.captures, manager.totals().misses), (100, 1, 100));
}

#[test]
fn refusals_are_bounded_and_the_oldest_are_forgotten() {
    let mut cache: Cache<()> = cache(1, &GraphManager::new());
    let latest = MAX_REFUSALS as u64;
    (0..latest).for_each(|revision| cache.refuse(key(revision), "no"));
    cache.refuse(key(0), "still no");
    cache.refuse(key(latest), "no");
    assert_eq!(cache.refused(&key(0)), Some(&"still no"));
    assert_eq!(cache.refused(&key(1)), None);
    assert_eq!(cache.refused(&key(2)), Some(&"no"));
    assert_eq!((cache.refusals.reasons.len(), cache.refusals.by_age.len()), (MAX_REFUSALS, MAX_REFUSALS));
}

fn any_key() -> impl Strategy<Value = GraphKey> {
    let dtype = prop::sample::select(vec![DType::F32, DType::BF16, DType::U32]);
    let shape = (prop::collection::vec(0..4_usize, 0..3), dtype).prop_map(|(dims, dtype)| TensorKey { dims, dtype });
    let device = prop_oneof![Just(DeviceKey::Cpu), (0..2_usize).prop_map(DeviceKey::Cuda)];
    let mode = prop::sample::select(vec![ExecutionMode::Train, ExecutionMode::Infer]);
    let precision = prop::sample::select(vec![Precision::F32, Precision::Tf32, Precision::Bf16, Precision::F16]);
    let text = "[a-b\"= ]{0,3}";
    let switches = any::<[bool; 3]>();
    (
        prop::collection::vec(shape, 0..3),
        (device, mode, precision, switches),
        0..3_u64,
        prop::collection::btree_map(text, text, 0..3),
    )
        .prop_map(|(shapes, (device, mode, precision, [tf32, bf16_sums, f16_sums]), topology, tags)| GraphKey {
            shapes,
            device,
            mode,
            precision,
            switches: ProductSwitches { tf32, bf16_sums, f16_sums },
            topology: TopologyRevision(topology),
            tags,
        })
}

/// Every key that differs from `key` in one field, or in one part of one field.
fn neighbors(key: &GraphKey) -> Vec<GraphKey> {
    let mut neighbors = Vec::new();
    let mut change = |edit: &dyn Fn(&mut GraphKey)| {
        let mut changed = key.clone();
        edit(&mut changed);
        neighbors.push(changed);
    };
    change(&|key| key.shapes.push(TensorKey { dims: vec![], dtype: DType::F32 }));
    change(&|key| key.topology = key.topology.next());
    change(&|key| key.switches.tf32 ^= true);
    change(&|key| key.switches.bf16_sums ^= true);
    change(&|key| key.switches.f16_sums ^= true);
    change(&|key| key.device = DeviceKey::Cuda(7));
    change(&|key| key.device = DeviceKey::Metal(0));
    change(&|key| {
        key.mode = match key.mode {
            ExecutionMode::Train => ExecutionMode::Infer,
            ExecutionMode::Infer => ExecutionMode::Train,
        }
    });
    change(&|key| {
        key.precision = match key.precision {
            Precision::F32 => Precision::Tf32,
            Precision::Tf32 => Precision::Bf16,
            Precision::Bf16 => Precision::F16,
            Precision::F16 => Precision::F32,
        }
    });
    change(&|key| drop(key.tags.insert("another".to_owned(), String::new())));
    for index in 0..key.shapes.len() {
        change(&|key| drop(key.shapes.remove(index)));
        change(&|key| key.shapes[index].dims.push(1));
        change(&|key| key.shapes[index].dtype = DType::F64);
        for axis in 0..key.shapes[index].dims.len() {
            change(&|key| key.shapes[index].dims[axis] += 1);
        }
    }
    for name in key.tags.keys() {
        change(&|key| drop(key.tags.remove(name)));
        change(&|key| key.tags.get_mut(name).unwrap().push('c'));
    }
    neighbors
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, rng_seed: RngSeed::Fixed(22), ..Default::default() })]

    #[test]
    fn a_changed_key_never_finds_the_graph_of_another(key in any_key()) {
        let mut cache: Cache<GraphKey> = cache(1, &GraphManager::new());
        drop(cache.insert(key.clone(), key.clone(), COST));
        for neighbor in neighbors(&key) {
            prop_assert_ne!(&neighbor, &key);
            prop_assert_ne!(neighbor.cmp(&key), std::cmp::Ordering::Equal);
            prop_assert_ne!(neighbor.to_string(), key.to_string());
            prop_assert_eq!(cache.get(&neighbor), None);
            prop_assert_eq!(cache.refused(&neighbor), None);
        }
        prop_assert_eq!(cache.get(&key.clone()), Some(&mut key.clone()));
    }

    #[test]
    fn each_of_many_keys_finds_its_own_graph(keys in prop::collection::btree_set(any_key(), 1..20)) {
        let mut cache: Cache<GraphKey> = cache(keys.len(), &GraphManager::new());
        for key in &keys {
            prop_assert!(cache.insert(key.clone(), key.clone(), COST).is_empty());
        }
        for key in &keys {
            prop_assert_eq!(cache.get(key).map(|graph| graph.clone()), Some(key.clone()));
        }
    }

    #[test]
    fn keys_of_equal_text_are_equal(left in any_key(), right in any_key()) {
        prop_assert_eq!(left == right, left.to_string() == right.to_string());
        prop_assert_eq!(left == right, left.cmp(&right).is_eq());
    }
}

#[derive(Debug, Clone)]
enum Call {
    Get(u64),
    Insert(u64, Option<u64>),
    Invalidate(u64),
    InvalidateBelow(u64),
    InvalidateAll,
    Clear,
    Refuse(u64),
    Replay(u64),
    Fallback(u64),
}

fn any_call() -> impl Strategy<Value = Call> {
    let key = 0..6_u64;
    prop_oneof![
        8 => key.clone().prop_map(Call::Get),
        8 => (key.clone(), prop::option::of(1..100_u64)).prop_map(|(key, bytes)| Call::Insert(key, bytes)),
        2 => key.clone().prop_map(Call::Invalidate),
        1 => key.clone().prop_map(Call::InvalidateBelow),
        1 => Just(Call::InvalidateAll),
        1 => Just(Call::Clear),
        2 => key.clone().prop_map(Call::Refuse),
        2 => key.clone().prop_map(Call::Replay),
        1 => key.prop_map(Call::Fallback),
    ]
}

/// A cache of (key, name of the graph, bytes), least recently used first, written for clarity.
#[derive(Default)]
struct Naive {
    held: VecDeque<(u64, u64, Option<u64>)>,
    refused: Vec<u64>,
    totals: GraphTotals,
}

impl Naive {
    fn take(&mut self, key: u64) -> Option<(u64, u64, Option<u64>)> {
        let index = self.held.iter().position(|held| held.0 == key)?;
        self.held.remove(index)
    }

    fn invalidate(&mut self, is_stale: impl Fn(u64) -> bool) -> usize {
        let before = self.held.len();
        self.held.retain(|held| !is_stale(held.0));
        self.refused.retain(|&key| !is_stale(key));
        let num_dropped = before - self.held.len();
        self.totals.invalidations += num_dropped as u64;
        num_dropped
    }

    fn get(&mut self, key: u64) -> Option<u64> {
        let found = self.take(key);
        match found {
            Some(held) => {
                self.held.push_back(held);
                self.totals.hits += 1;
            }
            None => self.totals.misses += 1,
        }
        found.map(|held| held.1)
    }

    fn insert(&mut self, limit: usize, key: u64, name: u64, bytes: Option<u64>) -> Vec<(u64, u64)> {
        let mut gone = Vec::new();
        if let Some(held) = self.take(key) {
            self.totals.invalidations += 1;
            gone.push((held.0, held.1));
        } else if self.held.len() == limit {
            let held = self.held.pop_front().unwrap();
            self.totals.evictions += 1;
            gone.push((held.0, held.1));
        }
        self.refused.retain(|&refused| refused != key);
        self.held.push_back((key, name, bytes));
        self.totals.captures += 1;
        gone
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 512, failure_persistence: None, rng_seed: RngSeed::Fixed(23), ..Default::default()
    })]

    #[test]
    fn a_random_run_agrees_with_the_naive_cache(
        limit in 1..=4_usize,
        calls in prop::collection::vec(any_call(), 0..120),
    ) {
        let (manager, alive) = (GraphManager::new(), Rc::default());
        let mut cache: Cache<Graph> = cache(limit, &manager);
        let mut naive = Naive::default();
        for (name, call) in (0..).zip(calls) {
            match call {
                Call::Get(k) => prop_assert_eq!(cache.get(&key(k)).map(|graph| graph.name), naive.get(k)),
                Call::Insert(k, bytes) => {
                    let gone = cache.insert(key(k), Graph::new(name, &alive), CaptureCost { bytes, ..COST });
                    let gone: Vec<_> = gone.iter().map(|(key, graph)| (key.topology.0, graph.name)).collect();
                    prop_assert_eq!(gone, naive.insert(limit, k, name, bytes));
                }
                Call::Invalidate(k) => {
                    let expected = naive.held.iter().find(|held| held.0 == k).map(|held| held.1);
                    naive.invalidate(|key| key == k);
                    prop_assert_eq!(cache.invalidate(&key(k)).map(|graph| graph.name), expected);
                }
                Call::InvalidateBelow(k) => {
                    let num_dropped = cache.invalidate_where(|key| key.topology < TopologyRevision(k));
                    prop_assert_eq!(num_dropped, naive.invalidate(|key| key < k));
                }
                Call::InvalidateAll => {
                    manager.invalidate_all();
                    // The cache follows at its next lookup, so let there be one.
                    naive.invalidate(|_| true);
                    prop_assert_eq!(cache.get(&key(0)).is_some(), naive.get(0).is_some());
                }
                Call::Clear => prop_assert_eq!(cache.clear(), naive.invalidate(|_| true)),
                Call::Refuse(k) => {
                    cache.refuse(key(k), "no");
                    naive.invalidate(|key| key == k);
                    naive.refused.push(k);
                }
                Call::Replay(k) => {
                    cache.record_replay(&key(k), None);
                    naive.totals.replays += 1;
                }
                Call::Fallback(k) => {
                    cache.record_fallback(&key(k));
                    naive.totals.fallbacks += 1;
                }
            }
            naive.totals.live_graphs = naive.held.len() as u64;
            naive.totals.live_bytes = naive.held.iter().filter_map(|held| held.2).sum();

            prop_assert!(cache.len() <= limit);
            prop_assert_eq!((cache.len(), cache.is_empty(), alive.get()), (naive.held.len(), naive.held.is_empty(), naive.held.len()));
            let mut by_use: Vec<_> = cache.held.iter().map(|(key, held)| (held.used, key.topology.0, held.graph.name)).collect();
            by_use.sort_unstable();
            let by_use: Vec<_> = by_use.into_iter().map(|(_, key, name)| (key, name)).collect();
            let expected: Vec<_> = naive.held.iter().map(|held| (held.0, held.1)).collect();
            prop_assert_eq!(by_use, expected);
            for k in 0..6 {
                prop_assert_eq!(cache.refused(&key(k)).is_some(), naive.refused.contains(&k));
            }
            check_totals(&cache, &naive.totals, &manager)?;
        }
        drop(cache);
        let totals = manager.totals();
        prop_assert_eq!((totals.live_graphs, totals.live_bytes, alive.get()), (0, 0, 0));
        prop_assert_eq!(totals.captures, totals.evictions + totals.invalidations);
    }
}

/// The manager, the totals of the cache and the sum of its rows all say the same.
fn check_totals(cache: &Cache<Graph>, expected: &GraphTotals, manager: &GraphManager) -> Result<(), TestCaseError> {
    let counts = |stats: &KeyStats| {
        [
            stats.captures,
            stats.replays,
            stats.compiled,
            stats.hits,
            stats.misses,
            stats.evictions,
            stats.invalidations,
            stats.fallbacks,
            stats.bytes.unwrap_or(0),
        ]
    };
    let GraphTotals {
        captures,
        replays,
        compiled,
        hits,
        misses,
        evictions,
        invalidations,
        fallbacks,
        live_graphs,
        live_bytes,
    } = *expected;
    let stats = cache.stats();
    prop_assert_eq!(&manager.totals(), expected);
    prop_assert_eq!(
        counts(&stats.total),
        [captures, replays, compiled, hits, misses, evictions, invalidations, fallbacks, live_bytes]
    );
    prop_assert_eq!((stats.entries as u64, stats.limit), (live_graphs, cache.limit().get()));
    prop_assert!(stats.per_key.len() <= 4 * stats.limit);
    if stats.limit > 1 {
        // Six keys fit into the rows of a limit of two, so no row was forgotten.
        let sums = stats.per_key.values().map(counts).fold([0; 9], |sum, row| std::array::from_fn(|i| sum[i] + row[i]));
        prop_assert_eq!(sums, counts(&stats.total));
    }
    Ok(())
}
