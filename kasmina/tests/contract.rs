//! The numbered rules of the contracts, run on the real manager.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::sync::Arc;

use candle_core::Device;
use kasmina::{CommandKey, GraftedModel, Kasmina, KasminaConfig};
use leyline::command::{Command, Operation};
use leyline::id::{BlueprintId, EpochIndex, SeedId, StepIndex};
use leyline::model::{Pass, TrainableModel};
use leyline::region::Eager;
use leyline::seed::{Counterfactual, Evidence, GradientHealth, SeedManager};
use leyline::telemetry::NullRecorder;
use leyline_testkit::clock::ManualClock;
use leyline_testkit::durable::DurableHarness;
use leyline_testkit::seed_manager::SeedManagerHarness;
use leyline_testkit::trainable_model::{Change, TrainableModelHarness};
use support::{KEY, batch, cnn, config, mlp, ramp, run_id, sign, slot};

const ISSUED_AT_UNIX_MS: u64 = 1_700_000_000_000;

fn manager(config: KasminaConfig) -> Kasmina {
    let (clock, recorder) = (Arc::new(ManualClock::default()), Arc::new(NullRecorder));
    Kasmina::new(config, &Device::Cpu, run_id(), CommandKey::new(KEY), clock, recorder).unwrap()
}

/// Applies one command in an otherwise empty run.
fn apply(manager: &mut Kasmina, sequence: u64, operation: Operation) {
    let mut eager = Eager::acquire().unwrap();
    apply_with(manager, &mut eager, sequence, operation);
}

fn apply_with(manager: &mut Kasmina, eager: &mut Eager, sequence: u64, operation: Operation) {
    let command = Command::new(run_id(), sequence, ISSUED_AT_UNIX_MS, operation, String::new());
    manager.apply(eager, &sign(&command)).unwrap();
}

fn ripen(manager: &mut Kasmina, eager: &mut Eager, seed: SeedId) {
    let counterfactual =
        Some(Counterfactual { loss_gain: 0.5, std_error: 0.005, accuracy_gain_pp: 8.0, num_samples: 4_096 });
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
        SeedManagerHarness::new(manager(config(mlp())), batch(1), run_id(), sign)
    }

    leyline_testkit::seed_manager_conformance!(harness);
}

mod seed_manager_with_cnn {
    use leyline::seed::AttributionMode;

    use super::*;

    fn harness() -> SeedManagerHarness<Kasmina> {
        let config = KasminaConfig { attribution: AttributionMode::Contribution, ..config(cnn()) };
        SeedManagerHarness::new(manager(config), batch(1), run_id(), sign)
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
        let change = |(index, operation): (usize, Operation)| -> Change<Kasmina> {
            Box::new(move |manager| {
                // On a thread of its own: some rules hold this thread's token while they change the topology.
                let change = || {
                    let mut eager = Eager::acquire().unwrap();
                    if let Operation::StartBlending { seed, .. } = &operation {
                        ripen(manager, &mut eager, *seed);
                    }
                    apply_with(manager, &mut eager, index as u64, operation.clone());
                };
                std::thread::scope(|scope| scope.spawn(change).join()).unwrap();
            })
        };
        let changes = operations.into_iter().enumerate().map(change).collect();
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
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// Of the latest command. A number that was used stays used for a manager that goes back and for one that takes
    /// over its state, so every command has a new one.
    static SEQUENCE: AtomicU64 = AtomicU64::new(0);

    fn advance(manager: &mut Kasmina, n: u64) {
        let sequence = SEQUENCE.fetch_add(1, Ordering::SeqCst);
        match n {
            0 => {
                let blueprint = BlueprintId::new("mlp").unwrap();
                apply(manager, sequence, Operation::germinate(slot("hidden0"), blueprint));
            }
            1 => apply(manager, sequence, Operation::StartTraining { seed: SeedId(1) }),
            3 => {
                let mut eager = Eager::acquire().unwrap();
                ripen(manager, &mut eager, SeedId(1));
                let operation = Operation::StartBlending { seed: SeedId(1), ramp: ramp(1.0, 7) };
                apply_with(manager, &mut eager, sequence, operation);
            }
            9 => {
                let blueprint = BlueprintId::new("norm_mlp").unwrap();
                apply(manager, sequence, Operation::germinate(slot("hidden1"), blueprint));
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
