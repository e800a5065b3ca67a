//! The numbered rules of the contracts, run on the real manager.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::sync::Arc;

use candle_core::Device;
use kasmina::{GraftedModel, Kasmina, KasminaConfig};
use leyline::command::Operation;
use leyline::error::{Error as _, ErrorKind};
use leyline::id::{BlueprintId, EpochIndex, SeedId, StepIndex};
use leyline::model::{Pass, TrainableModel};
use leyline::region::Eager;
use leyline::seed::{Counterfactual, Evidence, GradientHealth, SeedManager};
use leyline::telemetry::NullRecorder;
use leyline_testkit::clock::ManualClock;
use leyline_testkit::durable::DurableHarness;
use leyline_testkit::seed_manager::SeedManagerHarness;
use leyline_testkit::trainable_model::{Change, TrainableModelHarness};
use support::{batch, cnn, config, mlp, ramp, slot, task};

fn manager(config: KasminaConfig) -> Kasmina {
    let (clock, recorder) = (Arc::new(ManualClock::default()), Arc::new(NullRecorder));
    let mut manager = Kasmina::new(config, &Device::Cpu, clock, recorder).unwrap();
    manager.train_for(&Eager::acquire().unwrap(), &task()).unwrap();
    manager
}

#[test]
fn what_measures_a_loss_is_refused_by_name_until_a_task_was_told() {
    let mut eager = Eager::acquire().unwrap();
    let (clock, recorder) = (Arc::new(ManualClock::default()), Arc::new(NullRecorder));
    let mut manager = Kasmina::new(config(mlp()), &Device::Cpu, clock, recorder).unwrap();
    let blueprint = BlueprintId::new("mlp").unwrap();
    let seed = manager.apply(&mut eager, &Operation::germinate(slot("hidden0"), blueprint).into()).unwrap().seed;
    apply_with(&mut manager, &mut eager, Operation::StartTraining { seed });
    let error = manager.inspect_batch(&eager, &batch(1)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let expected = "an audit of isolation measures a loss: expected `train_for` to be called with a task first";
    assert_eq!(error.to_string(), expected);
    manager.train_for(&eager, &task()).unwrap();
    manager.inspect_batch(&eager, &batch(1)).unwrap();
}

/// Applies one command in an otherwise empty run.
fn apply(manager: &mut Kasmina, operation: Operation) {
    let mut eager = Eager::acquire().unwrap();
    apply_with(manager, &mut eager, operation);
}

fn apply_with(manager: &mut Kasmina, eager: &mut Eager, operation: Operation) {
    manager.apply(eager, &operation.into()).unwrap();
}

fn ripen(manager: &mut Kasmina, eager: &mut Eager, seed: SeedId) {
    let counterfactual =
        Some(Counterfactual { loss_gain: 0.5, std_error: 0.005, accuracy_gain_pp: Some(8.0), num_samples: 4_096 });
    let gradient = Some(GradientHealth { norm: 1.0, host_ratio: Some(1.0), health: 1.0 });
    for epoch in 0..4 {
        let epoch = EpochIndex(epoch);
        if manager.wants_batch(eager) {
            manager.inspect_batch(eager, &batch(1)).unwrap();
        }
        manager.record_evidence(eager, &[Evidence { seed, epoch, counterfactual, gradient }]).unwrap();
        manager.finish_epoch(eager, epoch).unwrap();
    }
}

mod seed_manager_with_mlp {
    use super::*;

    fn harness() -> SeedManagerHarness<Kasmina> {
        SeedManagerHarness::new(manager(config(mlp())), batch(1))
    }

    leyline_testkit::seed_manager_conformance!(harness);
}

mod seed_manager_with_cnn {
    use leyline::seed::AttributionMode;

    use super::*;

    fn harness() -> SeedManagerHarness<Kasmina> {
        let config = KasminaConfig { attribution: AttributionMode::Contribution, ..config(cnn()) };
        SeedManagerHarness::new(manager(config), batch(1))
    }

    leyline_testkit::seed_manager_conformance!(harness);
}

mod graft {
    use super::*;

    fn harness() -> TrainableModelHarness<Kasmina, GraftedModel> {
        let germinate = |id: &str, name: &str| Operation::germinate(slot(id), BlueprintId::new(name).unwrap());
        let (a, b) = (SeedId(1), SeedId(2));
        let operations = [
            germinate("block0", "conv"),
            Operation::StartTraining { seed: a },
            germinate("input", "mlp"),
            Operation::StartTraining { seed: b },
            Operation::StartBlending { seed: a, ramp: ramp(0.5, 3) },
            Operation::Cull { seed: b },
        ];
        let change = |operation: Operation| -> Change<Kasmina> {
            Box::new(move |manager| {
                // On a thread of its own: some rules hold this thread's token while they change the topology.
                let change = || {
                    let mut eager = Eager::acquire().unwrap();
                    if let Operation::StartBlending { seed, .. } = &operation {
                        ripen(manager, &mut eager, *seed);
                    }
                    apply_with(manager, &mut eager, operation.clone());
                };
                std::thread::scope(|scope| scope.spawn(change).join()).unwrap();
            })
        };
        let changes = operations.into_iter().map(change).collect();
        TrainableModelHarness {
            owner: manager(config(cnn())),
            model: |manager| manager.model(),
            batch: batch(1),
            changes,
        }
    }

    leyline_testkit::trainable_model_conformance!(harness);
}

mod durability {
    use super::*;

    fn advance(manager: &mut Kasmina, n: u64) {
        match n {
            0 => {
                let blueprint = BlueprintId::new("mlp").unwrap();
                apply(manager, Operation::germinate(slot("hidden0"), blueprint));
            }
            1 => apply(manager, Operation::StartTraining { seed: SeedId(1) }),
            3 => {
                let mut eager = Eager::acquire().unwrap();
                ripen(manager, &mut eager, SeedId(1));
                let operation = Operation::StartBlending { seed: SeedId(1), ramp: ramp(1.0, 7) };
                apply_with(manager, &mut eager, operation);
            }
            9 => {
                let blueprint = BlueprintId::new("norm_mlp").unwrap();
                apply(manager, Operation::germinate(slot("hidden1"), blueprint));
            }
            _ => {
                let mut eager = Eager::acquire().unwrap();
                manager.finish_step(&mut eager, StepIndex(n)).unwrap();
                manager.finish_epoch(&mut eager, EpochIndex(n)).unwrap();
            }
        }
    }

    fn observe(manager: &mut Kasmina) -> String {
        let eager = Eager::acquire().unwrap();
        let logits = manager.model().forward(&batch(1).inputs, Pass::Train).unwrap().logits;
        let attribution = manager.attribute_batch(&eager, &batch(1)).unwrap();
        let states = manager.export_seed_states(&eager).unwrap();
        let slots = manager.export_slot_states(&eager).unwrap();
        let segments = manager.model().layout().segments();
        format!("{:?} {attribution:?} {states:?} {slots:?} {segments:?}", support::bits(&logits))
    }

    fn harness() -> DurableHarness<Kasmina> {
        DurableHarness { component: manager(config(mlp())), advance: Box::new(advance), observe: Box::new(observe) }
    }

    leyline_testkit::durable_conformance!(harness);
}
