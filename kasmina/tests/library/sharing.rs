//! What is fetched once and used often: on the host, on the device, and for how long.

use std::time::Duration;

use esper_weights::PrefetchConfig;
use kasmina::manager::LibraryConfig;
use leyline::region::Eager;

use crate::shelf::{Shelf, artifact, host, id, prefetch, remove};
use crate::support::{Rig, config};

#[test]
fn seeds_of_one_blueprint_share_a_fetch_and_no_tensor() {
    let mut shelf = Shelf::new(remove());
    let (first, call) = shelf.waiting("hidden0", "mlp");
    let second = shelf.rig.germinate("hidden1", "mlp");
    shelf.check_requests([0; 4], 2);
    call.answer();
    shelf.rig.end_step();
    let weights = artifact(&id("mlp")).weights().clone();
    assert_eq!((shelf.weights(first), shelf.weights(second)), (weights.clone(), weights.clone()));
    assert_eq!(shelf.gauge("kasmina.cache.gpu_size"), Some(1.0));
    assert_eq!(shelf.gauge("kasmina.cache.gpu_hit_rate"), Some(0.5), "the second one's were on the device");

    shelf.rig.fill(first, 9.0);
    assert_eq!(shelf.weights(second), weights, "the first one's tensors are its own");
    shelf.rig.fill(second, 8.0);
    let third = shelf.rig.germinate("hidden2", "mlp");
    assert!(shelf.is_waiting(third), "what is kept is put in place at the end of a step too");
    shelf.rig.end_step();
    assert_eq!(shelf.weights(third), weights, "what is kept is nobody's tensor");
    assert!(shelf.calls.is_empty(), "there was a second fetch");
    assert_eq!(shelf.gauge("kasmina.cache.kernel_hit_rate"), Some(1.0 / 3.0));
    shelf.check_requests([3, 0, 0, 0], 0);
}

#[test]
fn weights_on_the_device_are_kept_up_to_the_capacity() {
    let mut eager = Eager::acquire().unwrap();
    for (capacity, size, rate) in [(0, 0.0, 0.0), (1, 1.0, 2.0 / 3.0)] {
        let library = LibraryConfig { device_capacity: capacity, ..remove() };
        let mut shelf = Shelf::around(Rig::beside(config(host()), eager), library);
        let (_, call) = shelf.waiting("hidden0", "mlp");
        call.answer();
        shelf.rig.germinate("hidden1", "mlp");
        shelf.rig.germinate("hidden2", "mlp");
        shelf.rig.end_step();
        shelf.check_requests([3, 0, 0, 0], 0);
        assert_eq!(shelf.gauge("kasmina.cache.gpu_capacity"), Some(capacity as f64));
        assert_eq!(shelf.gauge("kasmina.cache.gpu_size"), Some(size));
        assert_eq!(shelf.rig.recorder.counter_value("kasmina.cache.gpu_evictions", &[]), Some(0));
        assert_eq!(shelf.gauge("kasmina.cache.gpu_hit_rate"), Some(rate));
        eager = shelf.rig.eager;
    }
}

#[test]
fn blueprints_that_the_library_is_not_for_start_as_drawn() {
    let library = LibraryConfig { blueprints: Some(vec![id("norm_mlp")]), ..remove() };
    let mut shelf = Shelf::new(library);
    let seed = shelf.rig.germinate("hidden0", "mlp");
    assert!(!shelf.is_waiting(seed));
    assert_eq!(shelf.of_seed("kasmina.seed.kernel_attached", seed), Some(1.0));
    shelf.check_requests([0; 4], 0);
    let (other, _call) = shelf.waiting("hidden1", "norm_mlp");
    assert!(shelf.is_waiting(other));
}

#[test]
fn weights_that_were_kept_for_too_long_are_dropped_at_the_end_of_an_epoch() {
    let library = prefetch(PrefetchConfig { cache_ttl_s: 10, ..PrefetchConfig::default() });
    let mut shelf = Shelf::new(library);
    let (_, call) = shelf.waiting("hidden0", "mlp");
    call.answer();
    shelf.rig.clock.advance(Duration::from_secs(9));
    shelf.rig.end_epoch();
    assert_eq!(shelf.gauge("kasmina.cache.kernel_size"), Some(1.0));
    assert_eq!(shelf.gauge("kasmina.cache.kernel_bytes"), Some(artifact(&id("mlp")).num_bytes() as f64));
    assert_eq!(shelf.events("memory_gc").len(), 0);
    shelf.rig.clock.advance(Duration::from_secs(1));
    shelf.rig.end_epoch();
    shelf.rig.end_epoch();
    let events = shelf.events("memory_gc");
    let expected = [("kernel_cache_expired", "1"), ("gc_epoch", "2")];
    assert_eq!(events.len(), 1);
    assert_eq!(events[0].attributes, expected.map(|(name, value)| (name, value.to_owned())));
    assert_eq!(shelf.gauge("kasmina.cache.kernel_size"), Some(0.0));
    assert_eq!(shelf.rig.recorder.counter_value("kasmina.cache.kernel_evictions", &[]), Some(1));
    let (_, _call) = shelf.waiting("hidden1", "mlp");
}
