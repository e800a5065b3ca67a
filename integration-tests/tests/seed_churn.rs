//! Ten thousand seeds grow and go while the network trains: nothing of them is left in the trainer or in its state.
#![expect(clippy::unwrap_used, reason = "a helper of a test fails the test")]

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use candle_core::{Device, Tensor};
use hmac::{Hmac, KeyInit, Mac};
use kasmina::host::HostConfig;
use kasmina::lifecycle::GateConfig;
use kasmina::{CommandKey, Kasmina, KasminaConfig};
use leyline::clock::Clock;
use leyline::command::{AlphaCurve, AlphaRamp, Command, KeyId, Operation, SignedCommand};
use leyline::durable::{Durable, SavedState};
use leyline::error::{BoxError, ErrorType};
use leyline::id::{BlueprintId, RunId, SeedId, SlotId, StepIndex, TopologyRevision};
use leyline::policy::{Decision, Policy};
use leyline::region::Eager;
use leyline::seed::SeedStage;
use leyline::state::SystemState;
use leyline::telemetry::NullRecorder;
use leyline::unit::Alpha;
use leyline_testkit::clock::ManualClock;
use sha2::Sha256;
use tolaria::batch::{BatchConfig, Dataset};
use tolaria::checkpoint::Snapshot;
use tolaria::optim::{OptimizerConfig, ScheduleConfig};
use tolaria::trainer::report::EpochReport;
use tolaria::trainer::{ExecutionConfig, Flow, Observer, Outcome, Parts, Splits, TrainConfig, Trainer};

const KEY: [u8; 32] = [7; 32];
/// One seed germinates in each epoch, and lives for four.
const NUM_EPOCHS: u64 = 10_000;
const WARM_UP: u64 = 100;
const SLOTS: [&str; 4] = ["input", "hidden0", "hidden1", "hidden2"];

/// Germinates in every epoch, lets the seed of the epoch before blend, and the one before that fade.
#[derive(Debug)]
struct Churn {
    clock: Arc<ManualClock>,
    epoch: u32,
    sequence: u64,
}

impl ErrorType for Churn {
    type Error = leyline_testkit::Error;
}

impl Durable for Churn {
    fn save(&self) -> Result<SavedState, Self::Error> {
        Ok(SavedState::default())
    }

    fn restore(&mut self, _: &SavedState) -> Result<(), Self::Error> {
        Ok(())
    }
}

impl Policy for Churn {
    fn name(&self) -> &'static str {
        "churn"
    }

    fn evaluate(&mut self, state: &SystemState) -> Result<Decision, Self::Error> {
        self.clock.advance(Duration::from_secs(1));
        let newborn = self.epoch + 1;
        let slot = SlotId::new(SLOTS[self.epoch as usize % SLOTS.len()]).unwrap();
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
        self.epoch = newborn;
        let now = u64::try_from(self.clock.unix().as_millis()).unwrap();
        let commands = operations.into_iter().map(|operation| {
            self.sequence += 1;
            let command = Command::new(state.run_id.clone(), self.sequence, now, operation, "churn".to_owned());
            let signed = sign(&command);
            (command, signed)
        });
        Ok(Decision { commands: commands.collect(), rationale: Vec::new() })
    }
}

fn sign(command: &Command) -> SignedCommand {
    let (key_id, bytes) = (KeyId::default(), command.to_bytes());
    let mut mac = Hmac::<Sha256>::new_from_slice(&KEY).unwrap();
    mac.update(&SignedCommand::signed_message(key_id, &bytes));
    SignedCommand { key_id, tag: mac.finalize().into_bytes().into(), bytes }
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

fn samples() -> Dataset {
    let inputs: Vec<f32> = (0..12_u8).map(|i| f32::from(i * 7 % 11) / 11.0 - 0.4).collect();
    let (inputs, targets) =
        (Tensor::from_vec(inputs, (4, 3), &Device::Cpu), Tensor::new(&[0_u32, 1, 1, 0], &Device::Cpu));
    Dataset::new(inputs.unwrap(), targets.unwrap(), 2).unwrap()
}

fn trainer() -> Trainer<Kasmina, Churn> {
    let (run_id, clock) = (RunId::new("churn").unwrap(), Arc::new(ManualClock::default()));
    let gates =
        GateConfig { training_min_epochs: 0, min_gradient_health: 0.0, require_gain: false, ..GateConfig::default() };
    let host = HostConfig::Mlp { inputs: 3, hidden: vec![2, 2, 2], classes: 2 };
    let config = KasminaConfig { gates, seed_width: 1, embargo_epochs: 0, ..KasminaConfig::new(host) };
    let recorder = Arc::new(NullRecorder);
    let key = CommandKey::new(KEY);
    let seeds = Kasmina::new(config, &Device::Cpu, run_id.clone(), key, clock.clone(), recorder.clone()).unwrap();
    let count = |n| NonZeroUsize::new(n).unwrap();
    let config = TrainConfig {
        batch: BatchConfig { batch_size: count(2), microbatches_per_step: count(1) },
        optimizer: OptimizerConfig::AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01 },
        schedule: ScheduleConfig::constant(1e-3),
        clip_norm: Some(1.0),
        conflict: <_>::default(),
        measure_conflicts: false,
        cagrad_radius: 0.4,
        eval_batch_size: count(4),
        conflict_warn: 1.0,
        execution: ExecutionConfig::default(),
    };
    let parts = Parts {
        run_id,
        seed: 1,
        num_epochs: NUM_EPOCHS,
        device: Device::Cpu,
        data: Splits { train: samples(), validation: samples(), test: samples() },
        seeds,
        policy: Churn { clock: Arc::clone(&clock), epoch: 0, sequence: 0 },
        checkpoints: None,
        recorder,
        clock,
    };
    Trainer::new(config, parts).unwrap()
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
    let mut trainer = trainer();
    let mut eager = Eager::acquire().unwrap();
    let mut watch = Watch::default();
    // Two steps an epoch: each stop is after the first one, with a seed that fades, one that blends and one that trains.
    let mut snapshots = Vec::new();
    // Both after a multiple of the slots, so that seeds of the same sizes are there.
    for epoch in [WARM_UP, NUM_EPOCHS - 4] {
        watch.stop_after = Some(StepIndex(2 * epoch + 1));
        assert_eq!(trainer.run(&mut eager, &mut watch).unwrap(), Outcome::Interrupted);
        snapshots.push((epoch, trainer.snapshot().unwrap()));
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
