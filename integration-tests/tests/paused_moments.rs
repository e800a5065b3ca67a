//! A pause keeps what the optimizer knows of a seed: bit for bit, through a checkpoint, and no longer than the seed is there.
#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a helper of a test fails the test, and looks at values"
)]

use std::collections::BTreeMap;
use std::sync::Arc;

use candle_core::Tensor;
use integration_tests::scripted::{self, ScriptedTrainer};
use leyline::command::Operation;
use leyline::error::BoxError;
use leyline::id::{BlueprintId, SeedId, SlotId, StepIndex};
use leyline::region::Eager;
use leyline::telemetry::NullRecorder;
use serde_json::Value;
use tolaria::checkpoint::Snapshot;
use tolaria::trainer::report::EpochReport;
use tolaria::trainer::{Flow, Observer, Outcome};

const SEED: SeedId = SeedId(1);
/// Four samples, two a step.
const STEPS_PER_EPOCH: u64 = 2;
const NUM_EPOCHS: u64 = 9;
/// It is paused at the end of epoch 3, and resumed, or removed, at the end of epoch 6.
const PAUSED_AT: u64 = 3;
const RESUMED_AT: u64 = 6;

/// What happens at the ends of the epochs after `done`.
fn script(done: u64, after_the_pause: Operation) -> scripted::Script {
    let mut epoch = done;
    Box::new(move || {
        epoch += 1;
        match epoch {
            1 => {
                let (slot, blueprint) = (SlotId::new("input").unwrap(), BlueprintId::new("mlp").unwrap());
                vec![Operation::germinate(slot, blueprint), Operation::StartTraining { seed: SEED }]
            }
            PAUSED_AT => vec![Operation::Pause { seed: SEED }],
            RESUMED_AT => vec![after_the_pause.clone()],
            _ => Vec::new(),
        }
    })
}

fn trainer(done: u64, after_the_pause: Operation) -> ScriptedTrainer {
    scripted::trainer(vec![2], 0, (4, NUM_EPOCHS), Arc::new(NullRecorder), script(done, after_the_pause))
}

/// Stops after a step; every command must be carried out.
struct StopAfter(StepIndex);

impl Observer for StopAfter {
    fn step_finished(&mut self, step: StepIndex) -> Flow {
        if step == self.0 { Flow::Stop } else { Flow::Continue }
    }

    fn epoch_finished(&mut self, report: &EpochReport) -> Result<(), BoxError> {
        let refused = report.commands.iter().filter_map(|command| command.refused.as_ref());
        assert_eq!(refused.count(), 0, "{:?}", report.commands);
        Ok(())
    }
}

/// The state after that many steps, before the end of an epoch that they make full.
fn state_after(trainer: &mut ScriptedTrainer, step: u64) -> Snapshot {
    let mut eager = Eager::acquire().unwrap();
    let ended = trainer.run(&mut eager, &mut StopAfter(StepIndex(step))).unwrap();
    let expected = if step > NUM_EPOCHS * STEPS_PER_EPOCH { Outcome::Completed } else { Outcome::Interrupted };
    assert_eq!(ended, expected);
    trainer.snapshot(&eager).unwrap()
}

/// Bits of the moments of the seed, and the updates of each parameter.
fn moments(snapshot: &Snapshot) -> (BTreeMap<String, Vec<u32>>, BTreeMap<String, u64>) {
    let optimizer = &snapshot.components["optimizer"];
    let is_of_seed = |name: &str| name.starts_with("seed.0001.");
    let bits = |tensor: &Tensor| -> Vec<u32> {
        tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap().into_iter().map(f32::to_bits).collect()
    };
    let tensors = optimizer.tensors.iter().filter(|(name, _)| is_of_seed(name));
    let document: Value = serde_json::from_str(&optimizer.json).unwrap();
    let steps = document["steps"].as_object().unwrap().iter().filter(|(name, _)| is_of_seed(name));
    (
        tensors.map(|(name, tensor)| (name.clone(), bits(tensor))).collect(),
        steps.map(|(name, steps)| (name.clone(), steps.as_u64().unwrap())).collect(),
    )
}

/// Everything that a component saved.
fn contents(snapshot: &Snapshot, component: &str) -> BTreeMap<String, String> {
    let saved = &snapshot.components[component];
    saved.tensors.iter().map(|(name, tensor)| (name.clone(), tensor.to_string())).collect()
}

#[test]
fn a_paused_seed_keeps_its_moments_and_goes_on_with_them() {
    let mut trainer = trainer(0, Operation::Resume { seed: SEED });
    let before = moments(&state_after(&mut trainer, PAUSED_AT * STEPS_PER_EPOCH));
    assert!(!before.0.is_empty() && before.0.values().flatten().any(|bits| *bits != 0), "it has trained");
    for epoch in PAUSED_AT..RESUMED_AT {
        let during = moments(&state_after(&mut trainer, (epoch + 1) * STEPS_PER_EPOCH));
        assert_eq!(during, before, "in epoch {}", epoch + 1);
    }
    let (resumed, steps) = moments(&state_after(&mut trainer, RESUMED_AT * STEPS_PER_EPOCH + 1));
    let next: BTreeMap<String, u64> = before.1.iter().map(|(name, steps)| (name.clone(), steps + 1)).collect();
    assert_eq!(steps, next, "the first step after the pause is the one after the last before it");
    assert_ne!(resumed, before.0);
}

#[test]
fn a_run_that_is_taken_up_during_a_pause_goes_on_as_if_it_had_not_been_broken_off() {
    let resume = || Operation::Resume { seed: SEED };
    let end = NUM_EPOCHS * STEPS_PER_EPOCH;
    let whole = state_after(&mut trainer(0, resume()), end);
    let broken_off = PAUSED_AT + 1;
    let snapshot = state_after(&mut trainer(0, resume()), broken_off * STEPS_PER_EPOCH + 1);
    let mut later = trainer(broken_off, resume());
    later.restore(&mut Eager::acquire().unwrap(), &snapshot).unwrap();
    let later = state_after(&mut later, end);
    for component in ["optimizer", "seeds"] {
        assert_eq!(contents(&later, component), contents(&whole, component));
    }
}

#[test]
fn a_seed_that_is_removed_during_its_pause_leaves_no_moments() {
    let mut trainer = trainer(0, Operation::Cull { seed: SEED });
    let before = moments(&state_after(&mut trainer, RESUMED_AT * STEPS_PER_EPOCH));
    assert!(!before.0.is_empty());
    let after = moments(&state_after(&mut trainer, RESUMED_AT * STEPS_PER_EPOCH + 1));
    assert_eq!(after, (BTreeMap::new(), BTreeMap::new()));
}
