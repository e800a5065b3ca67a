//! An interrupted run that is resumed is the uninterrupted run: parameters, optimizer state, decisions, bit for bit.

use std::collections::BTreeMap;

use candle_core::Tensor;
use integration_tests::short_run::{Recorded, config, trainer};
use leyline::durable::SavedState;
use leyline::id::StepIndex;
use leyline::region::Eager;
use rand::SeedableRng as _;
use rand::seq::index::sample;
use rand_chacha::ChaCha8Rng;
use tolaria::trainer::Outcome;

const INTERRUPTIONS: usize = 20;

/// Bytes of a tensor: equal bits, not merely equal numbers.
fn bits(tensor: &Tensor) -> Vec<u8> {
    let dtype = tensor.dtype();
    let named = BTreeMap::from([("t", tensor.contiguous().expect("a tensor of the CPU"))]);
    let bytes = safetensors::serialize(&named, None).expect("one tensor of a plain type");
    assert!(!bytes.is_empty(), "{dtype:?}");
    bytes
}

/// Which commands were accepted when, and under which key, is of the process and not of the run.
fn document(state: &SavedState) -> serde_json::Value {
    let mut document: serde_json::Value = serde_json::from_str(&state.json).expect("a document");
    if let Some(fields) = document.as_object_mut() {
        fields.remove("replay_window");
    }
    document
}

#[track_caller]
fn assert_same(name: &str, left: &SavedState, right: &SavedState) {
    assert_eq!(document(left), document(right), "the state of `{name}` differs");
    assert_eq!(
        left.tensors.keys().collect::<Vec<_>>(),
        right.tensors.keys().collect::<Vec<_>>(),
        "the tensors of `{name}` differ"
    );
    for (tensor, value) in &left.tensors {
        assert_eq!(bits(value), bits(&right.tensors[tensor]), "`{name}/{tensor}` differs");
    }
}

#[test]
fn a_resumed_run_is_the_uninterrupted_run_bit_for_bit() {
    let config = config(&[]);
    let mut eager = Eager::acquire().unwrap();
    let mut whole = trainer(&config, None);
    let mut recorded = Recorded::default();
    assert_eq!(whole.run(&mut eager, &mut recorded).unwrap(), Outcome::Completed);
    let expected = whole.snapshot().unwrap();
    let transitions: usize = recorded.epochs.iter().map(|epoch| epoch.transitions.len()).sum();
    assert!(transitions >= 8, "only {transitions} stage changes: the run says nothing about seeds");

    let last = usize::try_from(whole.progress().1.0).unwrap();
    let stops = sample(&mut ChaCha8Rng::seed_from_u64(7), last - 1, INTERRUPTIONS);
    for stop in stops {
        let stop = StepIndex(stop as u64 + 1);
        let dir = tempfile::tempdir().unwrap();
        let mut first = Recorded { stop_after: Some(stop), ..Recorded::default() };
        let mut interrupted = trainer(&config, Some(dir.path()));
        assert_eq!(interrupted.run(&mut eager, &mut first).unwrap(), Outcome::Interrupted);
        drop(interrupted);

        let mut second = Recorded::default();
        let mut resumed = trainer(&config, Some(dir.path()));
        let at = resumed.resume(&mut eager).unwrap().expect("a checkpoint was written");
        assert_eq!(at.step, stop);
        assert_eq!(resumed.run(&mut eager, &mut second).unwrap(), Outcome::Completed);

        let epochs: Vec<_> = first.epochs.into_iter().chain(second.epochs).collect();
        assert_eq!(epochs.len(), recorded.epochs.len(), "after an interruption at step {stop}");
        for (found, expected) in epochs.iter().zip(&recorded.epochs) {
            let line = |report| serde_json::to_string(report).unwrap();
            assert_eq!(line(found), line(expected), "after an interruption at step {stop}");
        }
        let found = resumed.snapshot().unwrap();
        assert_eq!(expected.components.keys().collect::<Vec<_>>(), found.components.keys().collect::<Vec<_>>());
        for (name, state) in &expected.components {
            assert_same(name, state, &found.components[name]);
        }
    }
}
