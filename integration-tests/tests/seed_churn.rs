//! Ten thousand seeds grow and go while the network trains: nothing of them is left in the trainer or in its state.
#![expect(clippy::unwrap_used, reason = "a helper of a test fails the test")]

use std::sync::Arc;

use candle_core::Tensor;
use integration_tests::scripted;
use leyline::command::{AlphaCurve, AlphaRamp, Operation};
use leyline::durable::SavedState;
use leyline::error::BoxError;
use leyline::id::{BlueprintId, SeedId, SlotId, StepIndex, TopologyRevision};
use leyline::region::Eager;
use leyline::seed::SeedStage;
use leyline::telemetry::NullRecorder;
use leyline::unit::Alpha;
use tolaria::checkpoint::Snapshot;
use tolaria::trainer::report::EpochReport;
use tolaria::trainer::{Flow, Observer, Outcome};

/// One seed germinates in each epoch, and lives for four.
const NUM_EPOCHS: u64 = 10_000;
const WARM_UP: u64 = 100;
const SLOTS: [&str; 4] = ["input", "hidden0", "hidden1", "hidden2"];

/// Germinates in every epoch, lets the seed of the epoch before blend, and the one before that fade.
fn churn() -> scripted::Script {
    let mut epoch = 0_u32;
    Box::new(move || {
        let newborn = epoch + 1;
        let slot = SlotId::new(SLOTS[epoch as usize % SLOTS.len()]).unwrap();
        let mut operations = vec![
            Operation::germinate(slot, BlueprintId::new("mlp").unwrap()),
            Operation::StartTraining { seed: SeedId(newborn) },
        ];
        if newborn > 1 {
            let ramp = AlphaRamp { target: Alpha::ONE, steps: 1, curve: AlphaCurve::Linear };
            operations.push(Operation::StartBlending { seed: SeedId(newborn - 1), ramp });
        }
        if newborn > 2 {
            let (seed, curve) = (SeedId(newborn - 2), AlphaCurve::Cosine);
            operations.push(Operation::CullGradually { seed, steps: 2, curve });
        }
        epoch = newborn;
        operations
    })
}

/// Follows the run, and breaks it off in the middle of an epoch.
#[derive(Debug, Default)]
struct Watch {
    stop_after: Option<StepIndex>,
    topology: TopologyRevision,
    num_removed: u64,
    problems: Vec<String>,
}

impl Observer for Watch {
    fn step_finished(&mut self, step: StepIndex) -> Flow {
        if Some(step) == self.stop_after { Flow::Stop } else { Flow::Continue }
    }

    fn epoch_finished(&mut self, report: &EpochReport) -> Result<(), BoxError> {
        let refused = report.commands.iter().filter_map(|command| command.refused.as_ref());
        self.problems.extend(refused.cloned());
        let fades = report.transitions.iter().filter(|t| (t.from, t.to) == (SeedStage::Blending, SeedStage::Pruned));
        self.num_removed += fades.count() as u64;
        if report.topology < self.topology {
            self.problems.push(format!("epoch {}: the revision shrank to {}", report.epoch, report.topology));
        }
        if report.seeds.len() > SLOTS.len() {
            self.problems.push(format!(
                "epoch {}: {} seeds in {} slots",
                report.epoch,
                report.seeds.len(),
                SLOTS.len()
            ));
        }
        self.topology = report.topology;
        Ok(())
    }
}

/// Seeds that a component's tensors belong to.
fn owners(snapshot: &Snapshot, component: &str) -> Vec<u32> {
    let names = snapshot.components[component].tensors.keys();
    let mut seeds: Vec<u32> =
        names.filter_map(|name| name.strip_prefix("seed.")?.split('.').next()?.parse().ok()).collect();
    seeds.sort_unstable();
    seeds.dedup();
    seeds
}

/// Tensors of each component, and their elements.
fn sizes(snapshot: &Snapshot) -> Vec<(String, usize, usize)> {
    let size = |(name, saved): (&String, &SavedState)| {
        let elements = saved.tensors.values().map(Tensor::elem_count).sum();
        (name.clone(), saved.tensors.len(), elements)
    };
    snapshot.components.iter().map(size).collect()
}

#[test]
fn ten_thousand_seeds_leave_no_trace_in_the_optimizer_or_the_saved_state() {
    let mut trainer = scripted::trainer(vec![2, 2, 2], 0, (4, NUM_EPOCHS), Arc::new(NullRecorder), churn());
    let mut eager = Eager::acquire().unwrap();
    let mut watch = Watch::default();
    // Two steps an epoch: each stop is after the first one, with a seed that fades, one that blends and one that trains.
    let mut snapshots = Vec::new();
    // Both after a multiple of the slots, so that seeds of the same sizes are there.
    for epoch in [WARM_UP, NUM_EPOCHS - 4] {
        watch.stop_after = Some(StepIndex(2 * epoch + 1));
        assert_eq!(trainer.run(&mut eager, &mut watch).unwrap(), Outcome::Interrupted);
        snapshots.push((epoch, trainer.snapshot(&eager).unwrap()));
    }
    watch.stop_after = None;
    assert_eq!(trainer.run(&mut eager, &mut watch).unwrap(), Outcome::Completed);
    assert!(watch.problems.is_empty(), "{:?}", &watch.problems[..watch.problems.len().min(5)]);
    assert_eq!(watch.num_removed, NUM_EPOCHS - 3, "every seed but the youngest has faded away");

    for (epoch, snapshot) in &snapshots {
        let newborn = u32::try_from(*epoch).unwrap();
        assert_eq!(owners(snapshot, "seeds"), [newborn - 2, newborn - 1, newborn], "epoch {epoch}");
        let trained = owners(snapshot, "optimizer");
        assert!(trained.iter().all(|seed| *seed >= newborn - 1), "epoch {epoch}: the optimizer knows {trained:?}");
        assert!(!trained.is_empty(), "epoch {epoch}: nobody trains");
    }
    let [(_, early), (_, late)] = &snapshots[..] else { panic!("two snapshots") };
    assert_eq!(sizes(early), sizes(late));
    for (name, saved) in &late.components {
        // Counters have more digits, and nothing else has grown.
        let (early, late) = (early.components[name].json.len(), saved.json.len());
        assert!(late <= early + early / 20 + 64, "{name}: {early} bytes became {late}");
    }
}
