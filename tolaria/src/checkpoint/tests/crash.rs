//! Power may go at any moment: what is loaded afterwards is the old or the new generation, never anything else.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::Arc;

use esper_disk::testkit::{CrashPoint, Failure, FaultFs, SimFs};

use super::{DIR, assert_same, keep, open, saved, snapshot};
use crate::checkpoint::{CheckpointStore, Fs};

/// Opens the store after a crash; the newest generation is one of `allowed` (0: none), every generation is whole, and
/// nothing is left half done. Gives back the store and the step that it found.
#[track_caller]
fn recover(fs: &Arc<SimFs>, allowed: &RangeInclusive<u64>) -> (CheckpointStore, u64) {
    let found_on_disk = fs.tree();
    let store = open(fs, 2);
    let found = store.load_latest().unwrap_or_else(|error| panic!("{error:?} on {found_on_disk:?}"));
    let step = found.as_ref().map_or(0, |loaded| loaded.snapshot.meta.step.0);
    assert!(allowed.contains(&step), "step {step} is not one of {allowed:?} on {found_on_disk:?}");
    if let Some(loaded) = found {
        assert_same(&loaded.snapshot, &snapshot(step));
        assert!(loaded.skipped.is_empty(), "{:?} on {found_on_disk:?}", loaded.skipped);
    }
    for generation in store.list().unwrap() {
        store.verify(generation).unwrap_or_else(|error| panic!("{error:?} on {found_on_disk:?}"));
    }
    assert!(!fs.tree().iter().any(|path| path.contains("tmp-")), "{:?}", fs.tree());
    (store, step)
}

/// From an empty disk through some saves.
fn record_a_run(num_saves: u64, keep_last: usize) -> Vec<CrashPoint> {
    let fs = Arc::new(SimFs::default());
    fs.record();
    let mut store = open(&fs, keep_last);
    for step in 1..=num_saves {
        store.save(&snapshot(step)).unwrap();
        fs.acknowledge(step);
    }
    fs.take_points()
}

#[test]
fn a_loss_of_power_leaves_the_old_or_the_new_generation() {
    let num_states = check_all(record_a_run(6, 2), |acknowledged| acknowledged..=acknowledged + 1);
    assert!(num_states >= 10_000, "{num_states} crash states");
}

#[test]
fn a_second_loss_of_power_during_the_recovery_loses_nothing_more() {
    let mut outer = BTreeSet::new();
    let mut num_states = 0;
    for first in record_a_run(2, 1) {
        first.for_each_state(|fs| {
            // What is in a file that never became visible makes no difference to the recovery.
            if !outer.insert((fs.tree(), first.acknowledged)) {
                return;
            }
            let fs = Arc::new(fs);
            fs.record();
            let (mut store, step) = recover(&fs, &(first.acknowledged..=first.acknowledged + 1));
            fs.acknowledge(step);
            store.save(&snapshot(step + 1)).unwrap();
            fs.acknowledge(step + 1);
            // Everything is durable after the first loss, so what was found then may not be lost by the second.
            num_states += check_all(fs.take_points(), |acknowledged| acknowledged.max(step)..=step + 1);
        });
    }
    assert!(num_states >= 10_000, "{num_states} crash states");
}

/// Whatever call fails first, and power goes later: what was acknowledged in spite of the failure is there.
#[test]
fn a_loss_of_power_after_a_failure_loses_nothing_acknowledged() {
    let mut points = Vec::new();
    for failure in [Failure::AfterTheEffect, Failure::FromThenOn] {
        for n in 0.. {
            let (fs, store) = saved(1..=2, 1);
            drop(store);
            fs.settle();
            fs.acknowledge(2);
            fs.record();
            let faulty = Arc::new(FaultFs::failing(Arc::clone(&fs) as Arc<dyn Fs>, failure, n));
            let result = CheckpointStore::open(DIR, keep(1), Arc::clone(&faulty) as Arc<dyn Fs>)
                .and_then(|mut store| store.save(&snapshot(3)));
            if !faulty.has_failed() {
                break;
            }
            if result.is_ok() || result.is_err_and(|error| error.committed().is_some()) {
                fs.acknowledge(3);
            }
            open(&fs, 1).save(&snapshot(4)).unwrap();
            fs.acknowledge(4);
            points.extend(fs.take_points());
        }
    }
    let num_states = check_all(points, |acknowledged| acknowledged..=4);
    assert!(num_states >= 10_000, "{num_states} crash states");
}

#[test]
fn a_loss_of_power_leaves_the_old_or_the_new_pinned_generation() {
    const PINNED: [u64; 3] = [1, 3, 4];
    let fs = Arc::new(SimFs::default());
    fs.record();
    let mut store = open(&fs, 1);
    for step in 1..=6 {
        let is_pinned = PINNED.contains(&step);
        let saved = if is_pinned { store.save_pinned(&snapshot(step)) } else { store.save(&snapshot(step)) };
        saved.unwrap();
        fs.acknowledge(step);
    }
    let (mut num_states, mut seen) = (0, BTreeSet::new());
    for point in fs.take_points() {
        let last = |step: u64| PINNED.into_iter().rev().find(|pinned| *pinned <= step).unwrap_or(0);
        let allowed = last(point.acknowledged)..=last(point.acknowledged + 1);
        point.for_each_state(|fs| {
            num_states += 1;
            if !seen.insert((fs.digest(), point.acknowledged)) {
                return;
            }
            let fs = Arc::new(fs);
            let (mut store, _) = recover(&fs, &(point.acknowledged..=point.acknowledged + 1));
            let pinned = |store: &CheckpointStore| {
                let loaded = store.load_pinned().unwrap_or_else(|error| panic!("{error:?} on {:?}", fs.tree()));
                let step = loaded.as_ref().map_or(0, |loaded| loaded.snapshot.meta.step.0);
                loaded.inspect(|loaded| assert_same(&loaded.snapshot, &snapshot(step)));
                assert!(allowed.contains(&step), "step {step} is not one of {allowed:?} on {:?}", fs.tree());
                step
            };
            let found = pinned(&store);
            store.save(&snapshot(100)).unwrap();
            assert_eq!(pinned(&store), found, "{:?}", fs.tree());
        });
    }
    assert!(num_states >= 10_000, "{num_states} crash states");
}

/// Recovers from every state and saves once more. Gives back how many states there were; a disk that has been seen with
/// the same promise is counted and not tried again.
#[track_caller]
fn check_all(points: Vec<CrashPoint>, allowed: impl Fn(u64) -> RangeInclusive<u64>) -> usize {
    let mut seen = BTreeSet::new();
    let mut num_states = 0;
    for point in points {
        point.for_each_state(|fs| {
            num_states += 1;
            if seen.insert((fs.digest(), point.acknowledged)) {
                let fs = Arc::new(fs);
                let (mut store, _) = recover(&fs, &allowed(point.acknowledged));
                store.save(&snapshot(100)).unwrap();
                drop(store);
                recover(&fs, &(100..=100));
            }
        });
    }
    num_states
}
