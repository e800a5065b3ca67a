//! An interrupted run that is resumed is the uninterrupted run, and so is one that goes back on its way: parameters, optimizer
//! state, decisions, bit for bit.
#![expect(clippy::unwrap_used, reason = "a helper of a test fails the test")]

use std::collections::{BTreeMap, BTreeSet};

use candle_core::Tensor;
use esper::wire::EsperTrainer;
use integration_tests::short_run::{Recorded, config, trainer};
use leyline::durable::SavedState;
use leyline::id::StepIndex;
use leyline::region::Eager;
use leyline::seed::{SeedManager as _, SeedStage};
use rand::SeedableRng as _;
use rand::seq::index::sample;
use rand_chacha::ChaCha8Rng;
use tolaria::trainer::Outcome;
use tolaria::trainer::report::EpochReport;

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

/// Which commands were accepted when, and under which number and key, is of the process and not of the run; so are the numbers
/// of layouts.
fn document(state: &SavedState) -> serde_json::Value {
    let mut document: serde_json::Value = serde_json::from_str(&state.json).expect("a document");
    if let Some(fields) = document.as_object_mut() {
        fields.retain(|field, _| !["replay_window", "sequence", "revision"].contains(&&**field));
    }
    document
}

fn lines(epochs: &[EpochReport]) -> Vec<serde_json::Value> {
    let line = |report: &EpochReport| {
        let mut line = serde_json::to_value(report).expect("a report");
        line["topology"].take();
        line["asked"]["topology"].take();
        line["commands"].as_array_mut().into_iter().flatten().for_each(|command| drop(command["sequence"].take()));
        line
    };
    epochs.iter().map(line).collect()
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

/// Trains without a break, and once more with a way back from one or two epochs after each of the steps `kept`; what both leave
/// must be the same. The stages of seeds in the states that were gone back to, and whether one was amid a ramp.
fn go_back(settings: &[&str], kept: impl Fn(u64) -> Vec<u64>) -> (BTreeSet<SeedStage>, bool) {
    let config = config(&[&["train.recovery.memory_mib=64"], settings].concat());
    let mut eager = Eager::acquire().unwrap();
    let mut whole = trainer(&config, None);
    let mut recorded = Recorded::default();
    assert_eq!(whole.run(&mut eager, &mut recorded).unwrap(), Outcome::Completed);
    let (expected, last) = (whole.snapshot(&eager).unwrap(), whole.progress().1.0);

    let (mut found, mut epochs) = (trainer(&config, None), Vec::new());
    let (mut stages, mut is_amid_ramp) = (BTreeSet::new(), false);
    let run_to = |found: &mut EsperTrainer, eager: &mut Eager, step: u64| {
        let mut recorded = Recorded { stop_after: Some(StepIndex(step)), ..Recorded::default() };
        found.run(eager, &mut recorded).unwrap();
        recorded.epochs
    };
    for (index, step) in kept(last / NUM_EPOCHS).into_iter().enumerate() {
        epochs.extend(run_to(&mut found, &mut eager, step));
        assert!(found.keep_state(&eager).unwrap());
        found.confirm_state();
        for seed in found.seeds().export_seed_states(&eager).unwrap() {
            stages.insert(seed.stage);
            is_amid_ramp |= seed.alpha.get() > 0.0 && seed.alpha.get() < 1.0;
        }
        run_to(&mut found, &mut eager, (step + last / NUM_EPOCHS * (1 + index as u64 % 2)).min(last));
        assert_eq!(found.roll_back(&mut eager).unwrap().to, StepIndex(step));
    }
    epochs.extend(run_to(&mut found, &mut eager, u64::MAX));
    assert_eq!(lines(&epochs), lines(&recorded.epochs));
    for (name, state) in &found.snapshot(&eager).unwrap().components {
        assert_same(name, state, &expected.components[name]);
    }
    (stages, is_amid_ramp)
}

#[test]
fn a_run_that_goes_back_across_germinations_and_in_every_stage_of_a_seed_is_the_one_that_never_left() {
    for settings in [
        &["seeds.seed_init=zero"][..],
        &["seeds.seed_init=grad_max", "train.loader.workers=2", "train.eval_every_steps=7"],
    ] {
        // The end of an epoch, right after it, and its middle, where alpha moves.
        let of_epoch = |epoch: u64, length: u64| [0, 1, length / 2].map(|step| epoch * length + step);
        let (stages, is_amid_ramp) = go_back(settings, |length| (1..12).flat_map(|e| of_epoch(e, length)).collect());
        let expected = [SeedStage::Training, SeedStage::Blending, SeedStage::Holding];
        assert!(expected.iter().all(|stage| stages.contains(stage)) && is_amid_ramp, "{stages:?} {is_amid_ramp}");
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

#[test]
fn a_run_in_half_precision_that_is_resumed_or_goes_back_is_the_uninterrupted_run_bit_for_bit() {
    // The first steps overflow; later the scale doubles until one does again.
    let f16 = ["train.precision=f16", "train.loss_scale.initial=16777216", "train.loss_scale.growth_steps=3"];
    let with = |more: &[&'static str]| [&f16[..], more].concat();
    compare(&with(&["train.conflict=cagrad"]), |last| [2, 7, last / 2, last - 3].map(StepIndex).to_vec());
    go_back(&with(&["train.conflict=mean"]), |length| vec![length + 2, 4 * length + 1, 7 * length + length / 2]);
    compare(&["train.precision=bf16"], |last| vec![StepIndex(last / 3)]);
}

/// Steps are single ones while a seed is blended, and where rows of several owners are told apart; others share launches.
#[test]
fn a_run_whose_steps_share_launches_is_the_run_of_single_steps_bit_for_bit() {
    for settings in [
        &["train.conflict=mean", "train.batch.microbatches_per_step=2"][..],
        &["train.conflict=mean", "train.precision=bf16_stochastic", "train.ema_decay=0.9", "train.eval_every_steps=7"],
        // The first steps overflow and are left out.
        &["train.conflict=mean", "train.precision=f16", "train.loss_scale.initial=16777216", "train.loader.workers=2"],
        &["train.conflict=pcgrad"],
    ] {
        let mut eager = Eager::acquire().unwrap();
        let mut run = |more: &[&str]| {
            let (mut whole, mut recorded) = (trainer(&config(&[settings, more].concat()), None), Recorded::default());
            assert_eq!(whole.run(&mut eager, &mut recorded).unwrap(), Outcome::Completed);
            (whole.snapshot(&eager).unwrap(), recorded)
        };
        let (expected, singly) = run(&[]);
        let (found, shared) = run(&["train.execution.steps_per_launch=4"]);
        let gaps = |told: &[StepIndex]| told.windows(2).map(|pair| pair[1].0 - pair[0].0).collect::<BTreeSet<_>>();
        assert_eq!(gaps(&singly.told), [1].into());
        assert_eq!(gaps(&shared.told), [1, 4].into(), "{settings:?}");
        let moves = |recorded: &Recorded| recorded.epochs.iter().map(|epoch| epoch.transitions.len()).sum::<usize>();
        assert!(moves(&singly) >= 8, "the run says nothing about seeds");
        assert_eq!(lines(&shared.epochs), lines(&singly.epochs), "{settings:?}");
        for (name, state) in &expected.components {
            assert_same(name, state, &found.components[name]);
        }
    }
}

#[test]
fn a_run_whose_activations_are_computed_again_is_resumed_bit_for_bit() {
    let host = "host={transformer={patch=16,width=8,heads=2,layers=2}}";
    compare(&[host, "seeds.activation_checkpointing=blocks"], |last| vec![StepIndex(last / 2)]);
}

#[test]
fn a_run_in_pure_half_precision_that_is_resumed_or_goes_back_is_the_uninterrupted_run_bit_for_bit() {
    let with = |more: &[&'static str]| [&["train.precision=bf16_pure"][..], more].concat();
    compare(&with(&["train.conflict=cagrad", "train.ema_decay=0.9"]), |last| [2, last / 2].map(StepIndex).to_vec());
    go_back(&with(&["train.conflict=mean"]), |length| vec![length + 2, 7 * length + length / 2]);
    let stochastic = ["train.precision=bf16_stochastic", "train.ema_decay=0.9", "train.conflict=mean"];
    compare(&stochastic, |last| vec![StepIndex(last / 3)]);
    go_back(&stochastic, |length| vec![6 * length + length / 2]);
}

#[test]
fn a_run_that_is_evaluated_by_averages_trains_as_without_them_and_is_resumed_bit_for_bit() {
    let with = |more: &[&'static str]| [&["train.ema_decay=0.9"][..], more].concat();
    compare(&with(&["train.eval_every_steps=5"]), |last| vec![StepIndex(3), StepIndex(last / 2)]);
    go_back(&with(&["train.conflict=mean"]), |length| vec![length + 2, 6 * length]);
    // What decides is measured elsewhere, so that only the first epoch is alike.
    let mut eager = Eager::acquire().unwrap();
    let [plain, averaged] = [&[][..], &with(&[])].map(|settings| {
        let (mut trainer, mut recorded) = (trainer(&config(settings), None), Recorded::default());
        recorded.stop_after = Some(StepIndex(1_000_000));
        trainer.run(&mut eager, &mut recorded).unwrap();
        recorded.epochs.remove(0)
    });
    assert_eq!(plain.train, averaged.train);
    assert_ne!(plain.validation, averaged.validation);
}
