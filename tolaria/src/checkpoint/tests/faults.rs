//! Whatever call fails, in whatever way, the run can go on and what was acknowledged stays.

use std::sync::Arc;

use esper_disk::testkit::{Failure, FaultFs};
use leyline::error::{Error, ErrorKind};

use super::{DIR, assert_same, keep, open, saved, snapshot};
use crate::checkpoint::{CheckpointError, CheckpointReader, CheckpointStore, Fs, Loaded};

const FAILURES: [Failure; 4] = [Failure::Once, Failure::AfterTheEffect, Failure::FromThenOn, Failure::DiskFull];

/// The newest generation is step 1 or 2 and whole, and so is every other one.
#[track_caller]
fn assert_whole(store: &CheckpointStore, context: &str) -> u64 {
    let Loaded { snapshot: loaded, skipped, .. } = store.load_latest().unwrap().expect(context);
    assert!(skipped.is_empty(), "{context}: {skipped:?}");
    assert_same(&loaded, &snapshot(loaded.meta.step.0));
    store.list().unwrap().into_iter().for_each(|generation| drop(store.verify(generation).unwrap()));
    loaded.meta.step.0
}

/// Saves step 2 over step 1 with one planned failure, then step 3 without. False when there are no `n` calls.
#[track_caller]
fn check(failure: Failure, n: usize, keep_last: usize) -> bool {
    let (fs, store) = saved([1], keep_last);
    drop(store);
    let faulty = Arc::new(FaultFs::failing(Arc::clone(&fs) as Arc<dyn Fs>, failure, n));
    let opened = CheckpointStore::open(DIR, keep(keep_last), Arc::clone(&faulty) as Arc<dyn Fs>);
    let (mut store, result) = match opened {
        Ok(mut store) => {
            let result = store.save(&snapshot(2));
            (Some(store), result)
        }
        Err(error) => (None, Err(error)),
    };
    if !faulty.has_failed() {
        assert_eq!(result.unwrap().0, 2);
        return false;
    }
    let calls = faulty.calls();
    let context = format!("{failure:?} of call {n}, `{}`, keeping {keep_last}: {result:?}", calls[n]);
    let acknowledged = match &result {
        Ok(generation) => Some(*generation),
        Err(error) => {
            assert!(matches!(error, CheckpointError::Io { .. } | CheckpointError::Retention { .. }), "{context}");
            assert_eq!(error.kind(), ErrorKind::Io, "{context}");
            error.committed()
        }
    };
    // The only call that may fail unnoticed is a look at an older generation; then it is kept and not counted.
    let may_go_unnoticed =
        failure == Failure::DiskFull || calls[n].starts_with("kind ") || calls[n].starts_with("read ");
    assert!(result.is_err() || may_go_unnoticed, "{context}");

    // The same process goes on, if the failure was a passing one.
    if let Some(store) = store.as_mut().filter(|_| matches!(failure, Failure::Once | Failure::AfterTheEffect)) {
        let found = assert_whole(store, &context);
        assert!(found == 2 || acknowledged.is_none(), "{context}");
        store.save(&snapshot(3)).expect(&context);
        assert_eq!(assert_whole(store, &context), 3, "{context}");
    } else {
        drop(store);
        let mut store = open(&fs, keep_last);
        let found = assert_whole(&store, &context);
        assert!(found == 2 || acknowledged.is_none(), "{context}");
        assert!(found <= 2, "{context}");
        store.save(&snapshot(3)).expect(&context);
        assert_eq!(assert_whole(&store, &context), 3, "{context}");
    }
    assert!(!fs.tree().iter().any(|path| path.contains("tmp-")), "{context}: {:?}", fs.tree());
    true
}

#[test]
fn whatever_call_fails_the_last_acknowledged_generation_stays() {
    for keep_last in [1, 2] {
        for failure in FAILURES {
            let num_calls = (0..).take_while(|&n| check(failure, n, keep_last)).count();
            assert!(num_calls >= 23, "{num_calls} calls");
        }
    }
}

#[test]
fn a_full_disk_is_not_kept_full() {
    let (fs, store) = saved([1], 2);
    drop(store);
    let before = fs.digest();
    let mut num_failed_saves = 0;
    for n in 0..40 {
        let faulty = Arc::new(FaultFs::failing(Arc::clone(&fs) as Arc<dyn Fs>, Failure::DiskFull, n));
        let Ok(mut store) = CheckpointStore::open(DIR, keep(2), faulty as Arc<dyn Fs>) else { continue };
        match store.save(&snapshot(2)) {
            Err(error) => {
                assert!(
                    matches!(&error, CheckpointError::Io { source, .. }
                    if source.kind() == std::io::ErrorKind::StorageFull),
                    "{error}"
                );
                assert_eq!(fs.digest(), before, "call {n} left something behind: {:?}", fs.tree());
                num_failed_saves += 1;
            }
            Ok(_) => break,
        }
    }
    assert!(num_failed_saves >= 4, "{num_failed_saves} of the directory and three files");
}

#[test]
fn a_failed_removal_says_that_the_new_generation_is_stored() {
    let (fs, store) = saved([1], 1);
    drop(store);
    let recording = Arc::new(FaultFs::recording(Arc::clone(&fs) as Arc<dyn Fs>));
    CheckpointStore::open(DIR, keep(1), Arc::clone(&recording) as Arc<dyn Fs>).unwrap().save(&snapshot(2)).unwrap();
    let n = recording.calls().iter().position(|call| call == "remove tmp-00000001").unwrap();

    let (fs, store) = saved([1], 1);
    drop(store);
    let faulty = Arc::new(FaultFs::failing(Arc::clone(&fs) as Arc<dyn Fs>, Failure::Once, n));
    let mut store = CheckpointStore::open(DIR, keep(1), faulty as Arc<dyn Fs>).unwrap();
    let error = store.save(&snapshot(2)).unwrap_err();
    assert_eq!(error.committed().map(|generation| generation.0), Some(2));
    assert_eq!(error.to_string(), "generation 2 is stored, but older ones could not be removed");
}

#[test]
fn a_failing_read_falls_back_or_is_an_error_and_changes_nothing() {
    let (fs, _store) = saved(1..=2, 2);
    let before = fs.digest();
    let load = |failure, n| {
        let faulty = Arc::new(FaultFs::failing(Arc::clone(&fs) as Arc<dyn Fs>, failure, n));
        let result = CheckpointReader::new(DIR, Arc::clone(&faulty) as Arc<dyn Fs>).load_latest();
        (result, faulty.has_failed())
    };
    let mut num_fallbacks = 0;
    for n in 0.. {
        let (result, has_failed) = load(Failure::Once, n);
        if !has_failed {
            break;
        }
        match result {
            Ok(loaded) => {
                let loaded = loaded.unwrap();
                assert_same(&loaded.snapshot, &snapshot(1));
                assert_eq!(loaded.skipped[0].1.kind(), ErrorKind::Io);
                num_fallbacks += 1;
            }
            Err(error) => assert!(n == 0 && matches!(error, CheckpointError::Io { action: "list", .. }), "{error}"),
        }
        let (gone, _) = load(Failure::FromThenOn, n);
        assert!(gone.is_err(), "a dead disk looked like an empty one");
        assert_eq!(fs.digest(), before);
    }
    assert_eq!(num_fallbacks, 7, "the directory, and a look at and a read of three files");
}
