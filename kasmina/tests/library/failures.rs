//! What becomes of a seed whose weights do not come, or do not fit.

use std::sync::Arc;
use std::time::Duration;

use crossbeam::channel::unbounded;
use esper_weights::{Artifact, HostTensor, PrefetchConfig, StoreError};
use kasmina::Error;
use kasmina::manager::{LibraryConfig, OnFailure};
use leyline::command::Operation;
use leyline::region::Eager;
use leyline::seed::SeedStage;

use crate::shelf::{PlayedStore, Shelf, artifact, fitting, fresh, host, id, io_error, one_worker, remove, tensor};
use crate::support::{Rig, bits, config};

#[test]
fn weights_that_come_too_late_are_given_up_once_and_the_seed_is_removed() {
    let mut shelf = Shelf::new(one_worker());
    let (seed, call) = shelf.waiting("hidden0", "mlp");
    shelf.rig.clock.advance(Duration::from_millis(999));
    shelf.rig.end_step();
    assert!(shelf.is_waiting(seed));
    shelf.rig.clock.advance(Duration::from_millis(1));
    for _ in 0..3 {
        shelf.rig.end_step();
    }
    shelf.check_one_event("prefetch_timeout", seed, "");
    assert_eq!(shelf.rig.stage(seed), Some(SeedStage::Pruned));
    assert!(call.cancel.is_cancelled());
    shelf.check_requests([0, 0, 1, 0], 0);
    call.answer();
    // The only worker begins this one when it is done with the late answer.
    let (other, call) = shelf.waiting("hidden1", "mlp");
    shelf.rig.end_step();
    assert_eq!((shelf.rig.stage(seed), shelf.is_waiting(other)), (Some(SeedStage::Pruned), true));
    call.answer();
    shelf.check_removed(seed);
    shelf.check_requests([1, 0, 1, 0], 0);
}

#[test]
fn a_seed_that_may_start_fresh_keeps_what_was_drawn_for_it_whatever_comes_later() {
    let mut shelf = Shelf::new(LibraryConfig { on_failure: OnFailure::Fresh, ..one_worker() });
    let (seed, call) = shelf.waiting("hidden0", "mlp");
    let drawn = shelf.weights(seed);
    shelf.rig.clock.advance(Duration::from_millis(1_000));
    shelf.rig.end_step();
    let is_fresh = |shelf: &Shelf| {
        assert!(!shelf.is_waiting(seed));
        assert_eq!(shelf.weights(seed), drawn);
        assert_eq!(shelf.events("fallback_applied").len(), 1);
        assert_eq!(shelf.of_seed("kasmina.seed.fallback_used", seed), Some(1.0));
        assert_eq!(shelf.of_seed("kasmina.seed.kernel_attached", seed), Some(1.0));
        assert_eq!(shelf.of_seed("kasmina.seed.kernel_latency_ms", seed), None);
        assert_eq!(shelf.gauge("kasmina.fallback.active"), Some(1.0));
        assert_eq!(shelf.rig.recorder.counter_value("kasmina.fallback.events_total", &[]), Some(1));
    };
    is_fresh(&shelf);
    shelf.check_one_event("prefetch_timeout", seed, "");
    call.answer();
    let (_, call) = shelf.waiting("hidden1", "mlp");
    shelf.rig.end_step();
    shelf.rig.end_epoch();
    is_fresh(&shelf);
    call.answer();
    shelf.train(seed).unwrap();
    shelf.rig.send(Operation::Cull { seed }).unwrap();
    assert_eq!(shelf.gauge("kasmina.fallback.active"), Some(0.0));
}

#[test]
fn an_artifact_that_does_not_fit_touches_no_tensor_and_the_rule_for_failures_holds() {
    type Change = fn(&mut Vec<HostTensor>);
    let changes: [(Change, &str); 4] = [
        (|t| t[2] = tensor("up.weight", &[4, 8], 0.0), "`up.weight` has shape [4, 8]: expected [8, 4]"),
        (|t| t[3].name = "up.offset".to_owned(), "`up.bias` is missing"),
        (|t| t[3].values[2] = f32::NAN, "`up.bias` has the value NaN at 2"),
        (|t| t.push(tensor("zz", &[1], 0.0)), "`zz` belongs to no weight"),
    ];
    let mut eager = Eager::acquire().unwrap();
    for (change, reason) in changes {
        for library in [remove(), fresh()] {
            let on_failure = library.on_failure;
            let mut shelf = Shelf::around(Rig::beside(config(host()), eager), library);
            let (seed, call) = shelf.waiting("hidden0", "mlp");
            let (vars, drawn) = (shelf.rig.seed_vars(seed), shelf.weights(seed));
            let before: Vec<_> = vars.iter().map(|var| bits(var)).collect();
            let mut tensors = fitting();
            change(&mut tensors);
            call.reply(Ok(Artifact::from_tensors(id("mlp"), &tensors).unwrap()));
            shelf.rig.end_step();
            shelf.check_one_event("prefetch_attach_failed", seed, reason);
            assert_eq!(vars.iter().map(|var| bits(var)).collect::<Vec<_>>(), before);
            assert_eq!(shelf.gauge("kasmina.cache.gpu_size"), Some(0.0));
            match on_failure {
                OnFailure::Remove => shelf.check_removed(seed),
                OnFailure::Fresh => {
                    assert_eq!(shelf.weights(seed), drawn);
                    assert_eq!(shelf.events("fallback_applied").len(), 1);
                    shelf.train(seed).unwrap();
                }
            }
            eager = shelf.rig.eager;
        }
    }
}

#[test]
fn what_the_store_does_not_have_or_cannot_read_is_an_error_with_its_cause() {
    let mut eager = Eager::acquire().unwrap();
    for (answer, reason) in [
        (Err(StoreError::Missing), "the store gave no artifact: the store has no such blueprint"),
        (Err(io_error()), "the store gave no artifact: the store cannot be read: the disk is gone"),
        (Ok(artifact(&id("conv"))), "the store answered with `conv`: expected `mlp`"),
    ] {
        let mut shelf = Shelf::around(Rig::beside(config(host()), eager), remove());
        let (seed, call) = shelf.waiting("hidden0", "mlp");
        call.reply(answer);
        shelf.rig.end_step();
        shelf.check_one_event("prefetch_error", seed, reason);
        shelf.check_requests([0, 1, 0, 0], 0);
        shelf.check_removed(seed);
        eager = shelf.rig.eager;
    }
}

#[test]
fn every_unusable_value_is_reported_with_its_key() {
    let rig = Rig::new(config(host()));
    let prefetch = PrefetchConfig { concurrency: 0, queue: 0, ..PrefetchConfig::default() };
    let library = LibraryConfig { prefetch, blueprints: Some(vec![id("mlp"), id("mpl")]), ..remove() };
    let (calls, _) = unbounded();
    let Err(Error::Config { issues }) = rig.manager.with_library(Arc::new(PlayedStore { calls }), library) else {
        panic!("it was accepted")
    };
    let issues: Vec<String> = issues.iter().map(ToString::to_string).collect();
    assert_eq!(issues.len(), 3, "{issues:?}");
    assert!(issues[0].starts_with("`prefetch.concurrency` is 0"), "{issues:?}");
    assert!(issues[1].starts_with("`prefetch.queue` is 0"), "{issues:?}");
    assert!(issues[2].starts_with("`blueprints[1]` is `mpl`: expected one of "), "{issues:?}");
}

#[test]
fn an_emergency_drops_what_is_kept_and_gives_up_what_is_under_way() {
    let mut shelf = Shelf::new(remove());
    let (first, call) = shelf.waiting("hidden0", "mlp");
    call.answer();
    shelf.rig.end_step();
    let (second, call) = shelf.waiting("hidden1", "norm_mlp");
    shelf.rig.manager.emergency_cleanup(&mut shelf.rig.eager).unwrap();
    let event = &shelf.events("emergency_cleanup")[0];
    let expected = [("kernel_cache_cleared", "1"), ("gpu_cache_cleared", "1")];
    assert_eq!(event.attributes, expected.map(|(name, value)| (name, value.to_owned())));
    assert!(call.cancel.is_cancelled());
    for size in ["kasmina.cache.kernel_size", "kasmina.cache.kernel_bytes", "kasmina.cache.gpu_size"] {
        assert_eq!(shelf.gauge(size), Some(0.0), "{size}");
    }
    shelf.check_requests([1, 0, 0, 1], 0);
    shelf.rig.end_step();
    shelf.check_removed(second);
    assert_eq!(shelf.events("prefetch_canceled").len(), 1);
    assert_eq!(shelf.rig.stage(first), Some(SeedStage::Germinated), "it has its weights");
    // What was dropped is fetched again.
    shelf.rig.send(Operation::Cull { seed: first }).unwrap();
    let (_, _call) = shelf.waiting("hidden2", "mlp");
}
