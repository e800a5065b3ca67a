//! An interrupted run that is resumed is the uninterrupted run: parameters, optimizer state, decisions, bit for bit.
#![expect(clippy::unwrap_used, reason = "a helper of a test fails the test")]

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
/// Of the short run.
const NUM_EPOCHS: u64 = 14;

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

/// Trains without a break, and once more for each of the steps that `stops` takes from the number of all steps,
/// interrupted after it; whatever each run leaves must be the same.
fn compare(settings: &[&str], stops: impl FnOnce(u64) -> Vec<StepIndex>) {
    let config = config(settings);
    let mut eager = Eager::acquire().unwrap();
    let mut whole = trainer(&config, None);
    let mut recorded = Recorded::default();
    assert_eq!(whole.run(&mut eager, &mut recorded).unwrap(), Outcome::Completed);
    let expected = whole.snapshot(&eager).unwrap();
    let transitions: usize = recorded.epochs.iter().map(|epoch| epoch.transitions.len()).sum();
    assert!(transitions >= 8, "only {transitions} stage changes: the run says nothing about seeds");

    for stop in stops(whole.progress().1.0) {
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
        let found = resumed.snapshot(&eager).unwrap();
        assert_eq!(expected.components.keys().collect::<Vec<_>>(), found.components.keys().collect::<Vec<_>>());
        for (name, state) in &expected.components {
            assert_same(name, state, &found.components[name]);
        }
    }
}

/// Steps of the run but the last, drawn without repetition.
fn drawn(last: u64) -> Vec<StepIndex> {
    let last = usize::try_from(last).unwrap();
    let stops = sample(&mut ChaCha8Rng::seed_from_u64(7), last - 1, INTERRUPTIONS);
    stops.into_iter().map(|stop| StepIndex(stop as u64 + 1)).collect()
}

#[test]
fn a_resumed_run_is_the_uninterrupted_run_bit_for_bit() {
    compare(&[], drawn);
}

#[test]
fn a_resumed_run_whose_seeds_start_from_data_is_the_uninterrupted_run_bit_for_bit() {
    // Gradients are summed in one run and told apart in the other: only there a batch is kept in every step.
    for conflict in ["train.conflict=mean", "train.conflict=pcgrad"] {
        compare(&["seeds.seed_init=grad_max", conflict], |last| {
            let per_epoch = last / NUM_EPOCHS;
            // Right after the first step of an epoch, in its middle and after its last step; the first seeds germinate early.
            let of_epoch = |epoch: u64| [1, per_epoch / 2, per_epoch].map(|step| StepIndex(epoch * per_epoch + step));
            (0..4).flat_map(of_epoch).collect()
        });
    }
}
