//! The doubles obey the contracts that they stand for.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::sync::Arc;

use candle_core::Device;
use leyline::command::{AlphaCurve, AlphaRamp, Operation};
use leyline::id::{BlueprintId, EpochIndex, RunId, SeedId, SlotId, StepIndex};
use leyline::model::{Pass, TrainableModel};
use leyline::policy::Policy;
use leyline::region::Eager;
use leyline::seed::SeedManager;
use leyline::unit::Alpha;
use leyline_testkit::durable::DurableHarness;
use leyline_testkit::fake_policy::FakePolicy;
use leyline_testkit::fake_seed_manager::FakeSeedManager;
use leyline_testkit::policy::PolicyHarness;
use leyline_testkit::recorder::{RecorderHarness, Sent};
use leyline_testkit::recording_recorder::RecordingRecorder;
use leyline_testkit::seed_manager::SeedManagerHarness;
use leyline_testkit::toy::{ToyModel, blobs};
use leyline_testkit::trainable_model::{Change, TrainableModelHarness};
use leyline_testkit::values;
use leyline_testkit::world::{Measurements, Outcome, World};

const SEED: SeedId = SeedId(1);

fn run_id() -> RunId {
    RunId::new("contract").unwrap()
}

fn fake() -> FakeSeedManager {
    FakeSeedManager::new(&Device::Cpu).unwrap()
}

/// What can be done with the first seed, in order.
fn life() -> [Operation; 5] {
    let ramp = AlphaRamp { target: Alpha::ONE, steps: 2, curve: AlphaCurve::Cosine };
    let (slot, blueprint) = (SlotId::new("slot-0").unwrap(), BlueprintId::new("linear").unwrap());
    [
        Operation::germinate(slot, blueprint),
        Operation::StartTraining { seed: SEED },
        Operation::StartBlending { seed: SEED, ramp },
        Operation::Hold { seed: SEED },
        Operation::Fossilize { seed: SEED },
    ]
}

fn apply(manager: &mut FakeSeedManager, operation: Operation) {
    manager.apply(&mut Eager::acquire().unwrap(), &operation.into()).unwrap();
}

mod seed_manager {
    use super::*;

    leyline_testkit::seed_manager_conformance!(|| {
        SeedManagerHarness::new(fake(), blobs(8, 1, &Device::Cpu).unwrap())
    });
}

mod seed_manager_state {
    use super::*;

    leyline_testkit::durable_conformance!(|| DurableHarness {
        component: fake(),
        advance: Box::new(|manager, n| {
            if let Some(operation) = life().into_iter().nth(usize::try_from(n).unwrap()) {
                apply(manager, operation);
            }
            manager.finish_step(&mut Eager::acquire().unwrap(), StepIndex(n)).unwrap();
            manager.finish_epoch(&mut Eager::acquire().unwrap(), EpochIndex(n)).unwrap();
        }),
        observe: Box::new(|manager| {
            let states = manager.export_seed_states(&Eager::acquire().unwrap()).unwrap();
            let inputs = blobs(4, 1, &Device::Cpu).unwrap().inputs;
            let outputs = manager.model().forward(&inputs, Pass::Train).unwrap();
            format!("{states:?} {:?}", values(&outputs.logits).unwrap())
        }),
    });
}

mod toy_model_alone {
    use super::*;

    leyline_testkit::trainable_model_conformance!(|| {
        let model = ToyModel::new(0, &Device::Cpu).unwrap();
        TrainableModelHarness::fixed(model, blobs(8, 1, &Device::Cpu).unwrap())
    });
}

mod toy_model_with_seeds {
    use super::*;

    leyline_testkit::trainable_model_conformance!(|| {
        let change = |operation: Operation| -> Change<FakeSeedManager> {
            Box::new(move |manager| apply(manager, operation.clone()))
        };
        TrainableModelHarness {
            owner: fake(),
            model: FakeSeedManager::model,
            batch: blobs(8, 1, &Device::Cpu).unwrap(),
            changes: life().into_iter().map(change).collect(),
        }
    });
}

fn scripted() -> FakePolicy {
    let wait = || (0..3).map(|_| Vec::new());
    FakePolicy::new(wait().chain(life().map(|operation| vec![operation])).chain(wait()))
}

mod policy {
    use super::*;

    // PO-2 demands an empty decision for a network without slots, which a script cannot know.
    leyline_testkit::__one_test_per_rule!(
        policy,
        || PolicyHarness::new(scripted(), run_id()),
        po_1_equal_states_give_equal_operations,
        po_3_an_absent_measurement_is_not_a_good_one,
        po_4_sequence_numbers_grow,
    );
}

mod policy_without_script {
    use super::*;

    leyline_testkit::policy_conformance!(|| PolicyHarness {
        must_act: false,
        ..PolicyHarness::new(FakePolicy::new([]), run_id())
    });
}

mod policy_state {
    use super::*;

    leyline_testkit::durable_conformance!(|| DurableHarness {
        component: scripted(),
        advance: Box::new(|policy, _| {
            let state = World::new(run_id(), 1, Measurements::all(Outcome::Good)).state();
            policy.decide(&state).unwrap();
        }),
        observe: Box::new(|policy| format!("{policy:?}")),
    });
}

mod recorder {
    use super::*;

    leyline_testkit::recorder_conformance!(|| {
        RecorderHarness::new(Arc::new(RecordingRecorder::new()), |recorder: &RecordingRecorder| {
            let publications = recorder.publications();
            let last = publications.last().unwrap();
            #[expect(clippy::cast_precision_loss, reason = "the counts are small")]
            let counters = last.counters.iter().map(|(key, value)| (key, *value as f64));
            Sent {
                values: last
                    .gauges
                    .iter()
                    .map(|(key, value)| (key, *value))
                    .chain(counters)
                    .map(|((name, labels), value)| ((*name).to_owned(), labels.clone(), value))
                    .collect(),
                num_events: publications.iter().map(|publication| publication.events.len() as u64).sum(),
                num_dropped: 0,
            }
        })
    });
}
