//! The switch; what threads share, model-checked (feature `model-check`) and under load (without it).

use super::*;

#[test]
fn the_switch_accepts_what_it_documents() {
    let cases: [(Option<&str>, Option<GraphMode>); 9] = [
        (None, None),
        (Some(""), None),
        (Some("0"), Some(GraphMode::Off)),
        (Some("off"), Some(GraphMode::Off)),
        (Some("false"), Some(GraphMode::Off)),
        (Some("1"), Some(GraphMode::Auto)),
        (Some("auto"), Some(GraphMode::Auto)),
        (Some("on"), Some(GraphMode::Auto)),
        (Some("true"), Some(GraphMode::Auto)),
    ];
    for (text, mode) in cases {
        assert_eq!(GraphMode::from_switch(text), Ok(mode), "{text:?}");
    }
}

// The atomics of a model checker work only inside of one.
#[cfg(not(feature = "model-check"))]
#[test]
fn fuel_is_a_whole_number_and_limits_what_passes_do() {
    assert_eq!(GraphManager::fuel_from(None), Ok(None));
    assert_eq!(GraphManager::fuel_from(Some("")), Ok(None));
    for bad in ["-1", "many", "1.5", "4294967296"] {
        let expected = format!("the environment variable ESPER_FUEL is `{bad}`: expected a whole number of rewrites");
        assert_eq!(GraphManager::fuel_from(Some(bad)).unwrap_err().to_string(), expected);
    }
    let manager = GraphManager::new();
    for fuel in [None, Some(0), Some(7)] {
        manager.set_fuel(fuel);
        assert_eq!(manager.fuel(), fuel.map(|fuel| fuel as usize));
    }
}

// As above.
#[cfg(not(feature = "model-check"))]
#[test]
fn kernels_start_early_unless_that_is_switched_off() {
    let manager = GraphManager::new();
    assert!(manager.overlap());
    for overlap in [false, true] {
        manager.set_overlap(overlap);
        assert_eq!(manager.overlap(), overlap);
    }
    assert_eq!(GraphManager::overlap_from(Some("")), Ok(None));
    assert_eq!(GraphManager::overlap_from(Some("0")), Ok(Some(false)));
    assert_eq!(GraphManager::overlap_from(Some("maybe")).unwrap_err().name, GraphManager::OVERLAP);
}

#[cfg(not(feature = "model-check"))]
#[test]
fn memory_is_kept_where_that_is_switched_on_r_17() {
    let manager = GraphManager::new();
    assert!(!manager.keeps_memory());
    for keeps_memory in [true, false] {
        manager.set_keeps_memory(keeps_memory);
        assert_eq!(manager.keeps_memory(), keeps_memory);
    }
    assert_eq!(GraphManager::keep_memory_from(Some("on")), Ok(Some(true)));
    assert_eq!(GraphManager::keep_memory_from(Some("maybe")).unwrap_err().name, GraphManager::KEEP_MEMORY);
}

#[test]
fn a_bad_switch_is_an_error_that_names_the_variable_and_the_accepted_values() {
    for bad in ["2", "no", "OFF", " 0", "auto "] {
        let error = GraphMode::from_switch(Some(bad)).unwrap_err();
        assert_eq!(error.value, bad);
        let expected =
            format!("the environment variable ESPER_GRAPHS is `{bad}`: expected 0, off, false, 1, auto, on or true");
        assert_eq!(error.to_string(), expected);
    }
}

#[test]
fn modes_are_written_in_snake_case() {
    for (mode, json) in [(GraphMode::Auto, "\"auto\""), (GraphMode::Off, "\"off\"")] {
        assert_eq!(serde_json::to_string(&mode).unwrap(), json);
        assert_eq!(serde_json::from_str::<GraphMode>(json).unwrap(), mode);
    }
}

/// What the model and the load test both run.
mod scenario {
    use std::cell::Cell;
    use std::num::NonZeroUsize;
    use std::rc::Rc;

    use candle_core::{DType, Device};

    use crate::cache::GraphCache;
    use crate::key::{ExecutionMode, GraphKey};
    use crate::manager::{CaptureCost, GraphManager, GraphTotals};
    use crate::sync::{AtomicU64, Ordering};

    const COST: CaptureCost = CaptureCost { capture_ms: 1.0, instantiate_ms: 1.0, bytes: Some(10) };

    fn key(size: usize) -> GraphKey {
        GraphKey::new(ExecutionMode::Train, &Device::Cpu).shape([size], DType::F32)
    }

    pub(super) fn cache<G>(limit: usize, manager: &GraphManager) -> GraphCache<G> {
        GraphCache::new(NonZeroUsize::new(limit).unwrap(), manager)
    }

    fn insert<G>(cache: &mut GraphCache<G>, key: GraphKey, graph: G) {
        drop(cache.insert(key, graph, COST));
    }

    /// Each kind of event at least once, from one owner; its cache is gone at the end.
    pub(super) fn use_a_cache(manager: &GraphManager) {
        let mut cache = cache(1, manager);
        assert_eq!(cache.get(&key(1)), None);
        insert(&mut cache, key(1), ());
        assert_eq!(cache.get(&key(1)), Some(&mut ()));
        cache.record_replay(&key(1), None);
        cache.record_compiled(&key(1));
        insert(&mut cache, key(2), ());
        cache.record_fallback(&key(3));
    }

    /// Calls of a function, of ten of which so many have a shape that never was and the others one of two: its hit rate.
    #[cfg(not(feature = "model-check"))]
    pub(super) fn call_with_new_shapes(manager: &GraphManager, num_calls: usize, num_new: usize) -> Option<f64> {
        let mut cache = cache(8, manager);
        for call in 0..num_calls {
            let size = if call % 10 < num_new { 10 + call } else { call % 2 };
            if cache.get(&key(size)).is_none() {
                insert(&mut cache, key(size), ());
            }
        }
        cache.stats().total.hit_rate()
    }

    /// One invalidation; `begun` and `done` count them.
    pub(super) fn invalidate(manager: &GraphManager, begun: &AtomicU64, done: &AtomicU64) {
        begun.fetch_add(1, Ordering::SeqCst);
        manager.invalidate_all();
        done.fetch_add(1, Ordering::SeqCst);
    }

    /// A lookup, and an insertion if it finds nothing. A graph is the number of invalidations begun when its insertion
    /// was over, so one of a smaller number than those `done` before the lookup is stale.
    pub(super) fn look_up(cache: &mut GraphCache<Rc<Cell<u64>>>, size: usize, begun: &AtomicU64, done: &AtomicU64) {
        let seen = done.load(Ordering::SeqCst);
        if let Some(graph) = cache.get(&key(size)) {
            assert!(graph.get() >= seen, "a graph of invalidation {} after invalidation {seen}", graph.get());
            return;
        }
        let graph = Rc::new(Cell::new(0));
        insert(cache, key(size), Rc::clone(&graph));
        graph.set(begun.load(Ordering::SeqCst));
    }

    /// The totals after `n` times [`use_a_cache`] with nobody else about.
    pub(super) fn totals(n: u64) -> GraphTotals {
        GraphTotals {
            captures: 2 * n,
            replays: n,
            compiled: n,
            hits: n,
            misses: n,
            evictions: n,
            invalidations: n,
            fallbacks: n,
            live_graphs: 0,
            live_bytes: 0,
        }
    }
}

#[cfg(not(feature = "model-check"))]
mod load {
    use std::sync::Barrier;
    use std::thread;

    use super::scenario::{cache, call_with_new_shapes, invalidate, look_up, totals, use_a_cache};
    use super::*;

    const NUM_THREADS: usize = 20;

    /// Runs `work` in 20 threads that start together, and returns what each made.
    fn together<T: Send>(work: impl Fn(usize) -> T + Sync) -> Vec<T> {
        let barrier = Barrier::new(NUM_THREADS);
        thread::scope(|scope| {
            let spawn = |index| {
                let (work, barrier) = (&work, &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    work(index)
                })
            };
            let threads: Vec<_> = (0..NUM_THREADS).map(spawn).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    #[test]
    fn twenty_threads_that_come_first_get_one_manager() {
        for _ in 0..200 {
            let slot = OnceSlot::new();
            let num_initialized = AtomicU64::new(0);
            let managers = together(|_| {
                slot.get_or_init(|| {
                    num_initialized.fetch_add(1, Ordering::Relaxed);
                    GraphManager::new()
                })
            });
            assert_eq!(num_initialized.load(Ordering::Relaxed), 1);
            assert!(managers.iter().all(|manager| Arc::ptr_eq(&manager.shared, &managers[0].shared)));
        }
    }

    #[test]
    fn the_manager_of_the_process_is_one() {
        let managers = together(|_| GraphManager::global());
        assert!(managers.iter().all(|manager| Arc::ptr_eq(&manager.shared, &managers[0].shared)));
        assert!(!Arc::ptr_eq(&managers[0].shared, &GraphManager::new().shared));
    }

    #[test]
    fn a_failed_initialization_is_left_to_the_next() {
        let slot = OnceSlot::new();
        let failed = thread::scope(|scope| scope.spawn(|| slot.get_or_init(|| panic!("planned"))).join());
        assert!(failed.is_err());
        assert_eq!(slot.get_or_init(|| 7), 7);
    }

    #[test]
    fn twenty_threads_lose_no_count() {
        const ROUNDS: u64 = 300;
        let manager = GraphManager::new();
        together(|_| (0..ROUNDS).for_each(|_| use_a_cache(&manager)));
        assert_eq!(manager.totals(), totals(20 * ROUNDS));
    }

    #[test]
    fn a_mixed_workload_of_functions_shapes_and_threads_has_exact_hit_rates() {
        let manager = GraphManager::new();
        assert_eq!(manager.totals().hit_rate(), None);
        let rates = together(|_| [1, 2, 3].map(|num_new| call_with_new_shapes(&manager, 1000, num_new)));
        // All new shapes miss, and each of the two others once.
        assert_eq!(rates, [[Some(0.898), Some(0.798), Some(0.698)]; NUM_THREADS]);
        let totals = manager.totals();
        let (lookups, misses) = (20 * 3000, 20 * (102 + 202 + 302));
        assert_eq!((totals.hits, totals.misses, totals.captures), (lookups - misses, misses, misses));
        assert_eq!((totals.evictions, totals.invalidations, totals.live_graphs), (misses - 480, 480, 0));
        assert_eq!(totals.hit_rate(), Some(0.798));
    }

    #[test]
    fn no_lookup_of_twenty_threads_returns_a_graph_older_than_an_invalidation_it_saw() {
        let manager = GraphManager::new();
        let (begun, done) = (AtomicU64::new(0), AtomicU64::new(0));
        together(|index| {
            if index == 0 {
                (0..2000).for_each(|_| invalidate(&manager, &begun, &done));
                return;
            }
            let mut cache = cache(2, &manager);
            (0..2000).for_each(|round| look_up(&mut cache, round % 3, &begun, &done));
        });
        let totals = manager.totals();
        assert_eq!(totals.hits + totals.misses, 19 * 2000);
        assert_eq!((totals.live_graphs, totals.live_bytes), (0, 0));
        assert_eq!(totals.captures, totals.evictions + totals.invalidations);
    }
}

/// Every run takes the same schedules; a failure prints one that `shuttle::replay` repeats.
#[cfg(feature = "model-check")]
mod model {
    use shuttle::scheduler::{PctScheduler, RandomScheduler};
    use shuttle::{Config, Runner, thread};

    use super::scenario::{cache, invalidate, look_up, totals, use_a_cache};
    use super::*;

    const SEED: u64 = 24;
    const NUM_SCHEDULES: usize = 10_000;

    /// Runs `model` under random schedules, and under schedules of few but unlucky preemptions.
    fn explore(model: fn()) {
        Runner::new(RandomScheduler::new_from_seed(SEED, NUM_SCHEDULES), Config::default()).run(model);
        for num_preemptions in 1..=3 {
            let scheduler = PctScheduler::new_from_seed(SEED, num_preemptions, NUM_SCHEDULES);
            Runner::new(scheduler, Config::default()).run(model);
        }
    }

    /// Runs `work` in `num_threads` threads, and returns what each made.
    fn together<T: Send + 'static>(num_threads: usize, work: impl Fn(usize) -> T + Send + Sync + 'static) -> Vec<T> {
        let work = Arc::new(work);
        let spawn = |index| {
            let work = Arc::clone(&work);
            thread::spawn(move || work(index))
        };
        let threads: Vec<_> = (0..num_threads).map(spawn).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    }

    #[test]
    fn whoever_comes_first_one_thread_initializes() {
        explore(|| {
            let num_initialized = Arc::new(AtomicU64::new(0));
            let (slot, count) = (OnceSlot::new(), Arc::clone(&num_initialized));
            let managers = together(4, move |_| {
                slot.get_or_init(|| {
                    count.fetch_add(1, Ordering::SeqCst);
                    GraphManager::new()
                })
            });
            assert_eq!(num_initialized.load(Ordering::SeqCst), 1);
            assert!(managers.iter().all(|manager| Arc::ptr_eq(&manager.shared, &managers[0].shared)));
        });
    }

    fn look_up_while_invalidated(num_invalidators: usize, num_caches: usize) {
        let manager = GraphManager::new();
        let (shared, begun, done) = (manager.clone(), AtomicU64::new(0), AtomicU64::new(0));
        together(num_invalidators + num_caches, move |index| {
            if index < num_invalidators {
                (0..2).for_each(|_| invalidate(&shared, &begun, &done));
                return;
            }
            let mut cache = cache(1, &shared);
            [0, 0, 0, 1, 0].into_iter().for_each(|size| look_up(&mut cache, size, &begun, &done));
        });
        let totals = manager.totals();
        assert_eq!(totals.hits + totals.misses, 5 * num_caches as u64);
        assert_eq!(totals.captures, totals.evictions + totals.invalidations);
        assert_eq!((totals.live_graphs, totals.live_bytes), (0, 0));
    }

    #[test]
    fn no_lookup_returns_a_graph_older_than_an_invalidation_it_saw() {
        explore(|| look_up_while_invalidated(1, 2));
    }

    #[test]
    fn invalidations_from_two_threads_both_count() {
        explore(|| look_up_while_invalidated(2, 1));
    }

    #[test]
    fn no_count_is_lost() {
        explore(|| {
            let manager = GraphManager::new();
            let shared = manager.clone();
            together(3, move |_| use_a_cache(&shared));
            assert_eq!(manager.totals(), totals(3));
        });
    }

    #[test]
    fn a_mode_is_seen_once_the_thread_that_set_it_has_ended() {
        explore(|| {
            let manager = GraphManager::new();
            let shared = manager.clone();
            together(2, move |_| shared.set_mode(GraphMode::Off));
            assert!(!manager.enabled());
        });
    }
}
