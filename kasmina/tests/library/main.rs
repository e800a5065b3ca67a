//! Weights from a library: a seed waits for them, no step does, and every request is answered by exactly one event.
//!
//! The store is played by the test through channels, and time is advanced by hand: nothing depends on how fast a thread is.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod failures;
mod property;
mod restoring;
mod sharing;
mod shelf;
#[path = "../support/mod.rs"]
mod support;

use std::time::Duration;

use esper_weights::{BreakerConfig, PrefetchConfig, PrefetchError, StoreError};
use kasmina::Error;
use leyline::command::Operation;
use leyline::id::SeedId;
use leyline::seed::SeedManager as _;
use shelf::{Shelf, artifact, host, id, io_error, must_return, one_worker, prefetch, remove};
use support::{Rig, batch, config, slot};

#[test]
fn a_seed_waits_and_starts_from_the_library_bit_for_bit_when_a_step_ends() {
    let mut shelf = Shelf::new(remove());
    let (seed, call) = shelf.waiting("hidden0", "mlp");
    let drawn = shelf.weights(seed);
    shelf.rig.end_step();
    assert!(shelf.is_waiting(seed));
    assert_eq!(shelf.of_seed("kasmina.seed.kernel_attached", seed), Some(0.0));
    shelf.check_requests([0; 4], 1);
    let refused = shelf.train(seed).unwrap_err();
    assert!(matches!(refused, Error::GateFailed { .. }), "{refused}");
    assert!(refused.to_string().contains("weights pending"), "{refused}");

    shelf.rig.clock.advance(Duration::from_millis(7));
    let weights = artifact(&id("mlp")).weights().clone();
    call.answer();
    assert!(shelf.is_waiting(seed), "an answer alone changes nothing in the middle of a step");
    assert_eq!(shelf.weights(seed), drawn);
    shelf.rig.end_step();
    assert!(!shelf.is_waiting(seed));
    assert_eq!(shelf.weights(seed), weights);
    shelf.check_one_event("prefetch_ready", seed, "7.000");
    assert_eq!(shelf.of_seed("kasmina.seed.kernel_attached", seed), Some(1.0));
    for latency in ["kasmina.seed.kernel_latency_ms", "kasmina.seed.last_kernel_latency_ms"] {
        assert_eq!(shelf.of_seed(latency, seed), Some(7.0));
    }
    for latency in
        ["kasmina.kernel.fetch_latency_ms", "kasmina.prefetch.latency_ms", "kasmina.prefetch.last_latency_ms"]
    {
        assert_eq!(shelf.gauge(latency), Some(7.0), "{latency}");
    }
    shelf.check_requests([1, 0, 0, 0], 0);
    shelf.train(seed).unwrap();
    shelf.rig.descend(1);
    assert_ne!(shelf.weights(seed), weights, "it trains");
}

#[test]
fn nothing_waits_for_a_library_in_which_every_worker_hangs() {
    must_return("a step beside a hanging library", || {
        let work = |rig: &mut Rig| {
            let mut seen = Vec::new();
            for variant in 0..3 {
                rig.descend(variant);
                rig.manager.attribute_batch(&rig.eager, &batch(variant)).unwrap();
                seen.push((rig.evaluate(&[]), rig.train_logits(), rig.parameter_bits()));
                rig.end_epoch();
            }
            seen
        };
        let mut plain = Rig::new(config(host()));
        let expected = work(&mut plain);
        let mut shelf = Shelf::around(Rig::beside(config(host()), plain.eager), one_worker());
        let (first, call) = shelf.waiting("hidden0", "mlp");
        let second = shelf.rig.germinate("hidden1", "norm_mlp");
        assert_eq!(work(&mut shelf.rig), expected);
        assert!(shelf.is_waiting(first) && shelf.is_waiting(second));
        shelf.rig.send(Operation::Cull { seed: second }).unwrap();
        call.answer();
        shelf.rig.end_step();
        assert!(!shelf.is_waiting(first));
    });
}

/// A germination is refused whole.
#[track_caller]
fn check_refused(shelf: &mut Shelf, at: &str, blueprint: &str, is_it: fn(&Error) -> bool) {
    let before = shelf.rig.fingerprint();
    let count = |shelf: &Shelf| {
        ["operation_refused", "prefetch_requested", "seed_operation"].map(|name| shelf.events(name).len())
    };
    let [refused, requested, applied] = count(shelf);
    let error = shelf.rig.send(Operation::germinate(slot(at), id(blueprint))).unwrap_err();
    assert!(is_it(&error), "{error}");
    assert_eq!(count(shelf), [refused + 1, requested, applied]);
    assert_eq!(shelf.rig.fingerprint(), before);
    shelf.rig.end_step();
    assert_eq!(shelf.rig.fingerprint(), before);
}

#[test]
fn a_germination_whose_weights_cannot_be_asked_for_is_refused_whole() {
    let queue = PrefetchConfig { concurrency: 1, queue: 1, ..PrefetchConfig::default() };
    let mut shelf = Shelf::new(prefetch(queue));
    let (first, call) = shelf.waiting("hidden0", "mlp");
    let second = shelf.rig.germinate("hidden1", "norm_mlp");
    check_refused(&mut shelf, "hidden2", "noise", |error| {
        matches!(error, Error::Prefetch(PrefetchError::QueueFull { limit: 1 }))
    });
    shelf.check_requests([0; 4], 2);
    assert!(shelf.is_waiting(first) && shelf.is_waiting(second));

    // The breaker opens with the failure of the first.
    drop(call);
    let breaker = BreakerConfig { failures: 1, ..BreakerConfig::default() };
    let rig = Rig::beside(config(host()), shelf.rig.eager);
    let mut shelf = Shelf::around(rig, prefetch(PrefetchConfig { breaker, ..PrefetchConfig::default() }));
    let (_, call) = shelf.waiting("hidden0", "mlp");
    call.reply(Err(io_error()));
    shelf.rig.end_step();
    assert_eq!(shelf.gauge("kasmina.breaker.state"), Some(2.0), "open");
    assert_eq!(shelf.gauge("kasmina.breaker.failures"), Some(1.0));
    assert_eq!(shelf.events("breaker_event").len(), 1);
    check_refused(&mut shelf, "hidden1", "mlp", |error| {
        matches!(error, Error::Prefetch(PrefetchError::BreakerOpen { .. }))
    });
    shelf.check_requests([0, 1, 0, 0], 0);
    shelf.rig.clock.advance(Duration::from_secs(30));
    assert_eq!(shelf.rig.germinate("hidden1", "mlp"), SeedId(2), "the refused one used no id up");
    shelf.call("mlp").answer();
}

#[test]
fn a_germination_that_is_refused_for_another_reason_leaves_no_request_behind() {
    let mut shelf = Shelf::new(remove());
    let (seed, call) = shelf.waiting("hidden0", "mlp");
    check_refused(&mut shelf, "hidden0", "mlp", |error| matches!(error, Error::SlotOccupied { .. }));
    assert!(!call.cancel.is_cancelled(), "the seed still waits for this fetch");
    check_refused(&mut shelf, "hidden9", "norm_mlp", |error| matches!(error, Error::UnknownSlot { .. }));
    shelf.rig.end_epoch();
    assert_eq!(shelf.gauge("kasmina.prefetch.inflight"), Some(1.0));
    assert_eq!((shelf.requests("scheduled"), shelf.requests("canceled")), (3, 2));
    call.answer();
    shelf.rig.end_step();
    shelf.check_one_event("prefetch_ready", seed, "");
}

#[test]
fn removing_a_waiting_seed_takes_its_request_back() {
    for gradually in [false, true] {
        let mut shelf = Shelf::new(remove());
        let (seed, call) = shelf.waiting("hidden0", "mlp");
        let operation = match gradually {
            true => Operation::CullGradually { seed, steps: 5, curve: <_>::default() },
            false => Operation::Cull { seed },
        };
        assert_eq!(shelf.rig.send(operation).unwrap().transitions.len(), 1);
        assert!(call.cancel.is_cancelled());
        shelf.check_one_event("prefetch_canceled", seed, "seed_retired");
        shelf.check_requests([0, 0, 0, 1], 0);
        call.answer();
        shelf.rig.end_step();
        shelf.rig.end_epoch();
        shelf.check_one_event("prefetch_canceled", seed, "seed_retired");
        assert!(!shelf.is_waiting(seed));
    }
}

#[test]
fn a_reset_of_the_registry_takes_every_request_back() {
    let mut shelf = Shelf::new(remove());
    let (_, first) = shelf.waiting("hidden0", "mlp");
    let (_, second) = shelf.waiting("hidden1", "norm_mlp");
    shelf.rig.manager.reset_registry(&mut shelf.rig.eager).unwrap();
    assert!(first.cancel.is_cancelled() && second.cancel.is_cancelled());
    assert_eq!(shelf.events("prefetch_canceled").len(), 2);
    shelf.check_requests([0, 0, 0, 2], 0);
}

#[test]
fn a_paused_seed_gets_its_weights_and_is_resumed_only_with_them() {
    let mut shelf = Shelf::new(remove());
    let (seed, call) = shelf.waiting("hidden0", "mlp");
    shelf.rig.send(Operation::Pause { seed }).unwrap();
    shelf.rig.end_epoch();
    let refused = shelf.rig.send(Operation::Resume { seed }).unwrap_err().to_string();
    assert!(refused.contains("weights pending"), "{refused}");
    call.answer();
    shelf.rig.end_step();
    assert!(!shelf.is_waiting(seed));
    assert_eq!(shelf.weights(seed), artifact(&id("mlp")).weights().clone());
    shelf.rig.send(Operation::Resume { seed }).unwrap();
    shelf.train(seed).unwrap();

    let (paused, call) = shelf.waiting("hidden1", "norm_mlp");
    shelf.rig.send(Operation::Pause { seed: paused }).unwrap();
    call.reply(Err(StoreError::Missing));
    shelf.rig.end_step();
    shelf.check_removed(paused);
}
