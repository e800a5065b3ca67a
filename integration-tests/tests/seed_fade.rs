//! Ramps and gradual culls end in the middle of epochs, and training goes on.
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
use leyline::id::{BlueprintId, RunId, SeedId, SlotId};
use leyline::policy::{Decision, Policy};
use leyline::region::Eager;
use leyline::seed::SeedStage;
use leyline::state::SystemState;
use leyline::telemetry::NullRecorder;
use leyline::unit::Alpha;
use leyline_testkit::clock::ManualClock;
use leyline_testkit::recording_recorder::RecordingRecorder;
use sha2::Sha256;
use tolaria::batch::{BatchConfig, Dataset};
use tolaria::optim::{OptimizerConfig, ScheduleConfig};
use tolaria::trainer::report::EpochReport;
use tolaria::trainer::{ExecutionConfig, Observer, Outcome, Parts, Splits, TrainConfig, Trainer};

const KEY: [u8; 32] = [7; 32];
const STEPS_PER_EPOCH: u64 = 4;
const NUM_EPOCHS: u64 = 6;
const SEED: SeedId = SeedId(1);

/// Sends what is written for each end of an epoch.
#[derive(Debug)]
struct Script {
    clock: Arc<ManualClock>,
    epochs: std::vec::IntoIter<Vec<Operation>>,
    sequence: u64,
}

impl ErrorType for Script {
    type Error = leyline_testkit::Error;
}

impl Durable for Script {
    fn save(&self) -> Result<SavedState, Self::Error> {
        Ok(SavedState::default())
    }

    fn restore(&mut self, _: &SavedState) -> Result<(), Self::Error> {
        Ok(())
    }
}

impl Policy for Script {
    fn name(&self) -> &'static str {
        "script"
    }

    fn evaluate(&mut self, state: &SystemState) -> Result<Decision, Self::Error> {
        self.clock.advance(Duration::from_secs(1));
        let now = u64::try_from(self.clock.unix().as_millis()).unwrap();
        let operations = self.epochs.next().unwrap_or_default();
        let commands = operations.into_iter().map(|operation| {
            self.sequence += 1;
            let command = Command::new(state.run_id.clone(), self.sequence, now, operation, "script".to_owned());
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

/// What each epoch reports.
#[derive(Debug, Default)]
struct Reports {
    refused: Vec<String>,
    /// Epoch, stage before and stage after of each change.
    moves: Vec<(u64, SeedStage, SeedStage)>,
    num_parameters: Vec<u64>,
}

impl Observer for Reports {
    fn epoch_finished(&mut self, report: &EpochReport) -> Result<(), BoxError> {
        self.refused.extend(report.commands.iter().filter_map(|command| command.refused.clone()));
        self.moves.extend(report.transitions.iter().map(|moved| (report.epoch.0, moved.from, moved.to)));
        self.num_parameters.push(report.num_parameters);
        assert!(report.train.loss.is_finite());
        Ok(())
    }
}

fn samples() -> Dataset {
    let inputs: Vec<f32> = (0..24_u8).map(|i| f32::from(i * 7 % 11) / 11.0 - 0.4).collect();
    let inputs = Tensor::from_vec(inputs, (8, 3), &Device::Cpu).unwrap();
    let targets = Tensor::new(&[0_u32, 1, 1, 0, 1, 0, 0, 1], &Device::Cpu).unwrap();
    Dataset::new(inputs, targets, 2).unwrap()
}

fn ramp(target: Alpha, steps: u64) -> Operation {
    Operation::StartBlending { seed: SEED, ramp: AlphaRamp { target, steps, curve: AlphaCurve::Linear } }
}

/// Trains under a script; what was reported, and the steps at which ramps ended.
fn train(eager: &mut Eager, script: Vec<Vec<Operation>>) -> (Reports, Vec<u64>) {
    let (run_id, clock) = (RunId::new("fade").unwrap(), Arc::new(ManualClock::default()));
    let gates =
        GateConfig { training_min_epochs: 0, min_gradient_health: 0.0, require_gain: false, ..GateConfig::default() };
    let host = HostConfig::Mlp { inputs: 3, hidden: vec![2], classes: 2 };
    let config = KasminaConfig { gates, seed_width: 1, ..KasminaConfig::new(host) };
    let recorder = Arc::new(RecordingRecorder::new());
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
        policy: Script { clock: Arc::clone(&clock), epochs: script.into_iter(), sequence: 0 },
        checkpoints: None,
        recorder: Arc::new(NullRecorder),
        clock,
    };
    let mut trainer = Trainer::new(config, parts).unwrap();
    let mut reports = Reports::default();
    assert_eq!(trainer.run(eager, &mut reports).unwrap(), Outcome::Completed);
    let ends = recorder.events_named("ramp_finished").into_iter();
    let steps = ends.map(|event| event.attributes.iter().find(|(name, _)| *name == "step").unwrap().1.parse().unwrap());
    (reports, steps.collect())
}

#[test]
fn a_gradual_cull_that_ends_in_the_middle_of_an_epoch_leaves_the_training_going() {
    let mut eager = Eager::acquire().unwrap();
    let cull = |steps| vec![Operation::CullGradually { seed: SEED, steps, curve: AlphaCurve::Cosine }];
    let germinate = Operation::germinate(SlotId::new("input").unwrap(), BlueprintId::new("mlp").unwrap());
    let grow = vec![germinate, Operation::StartTraining { seed: SEED }];
    for steps in 1..=2 * STEPS_PER_EPOCH {
        let (reports, ends) = train(&mut eager, vec![grow.clone(), vec![ramp(Alpha::ONE, 3)], cull(steps)]);
        assert_eq!(reports.refused, [""; 0], "{steps} steps");
        let epoch_of_end = 3 + steps.div_ceil(STEPS_PER_EPOCH);
        let removed = (epoch_of_end, SeedStage::Blending, SeedStage::Pruned);
        assert!(reports.moves.contains(&removed), "{steps} steps: {:?}", reports.moves);
        // Steps so far: the ramp begins after the second epoch, the cull after the third.
        let expected = [2 * STEPS_PER_EPOCH + 3, 3 * STEPS_PER_EPOCH + steps];
        assert_eq!(ends, expected, "{steps} steps");
        // The parameters left the layout with the command, not with the end of the cull.
        let [bare, with_seed] = [reports.num_parameters[2], reports.num_parameters[0]];
        assert!(bare < with_seed);
        assert!(reports.num_parameters[2..].iter().all(|&now| now == bare), "{:?}", reports.num_parameters);
    }
}

#[test]
fn a_ramp_towards_nothing_is_refused_and_the_training_goes_on() {
    let mut eager = Eager::acquire().unwrap();
    let germinate = Operation::germinate(SlotId::new("input").unwrap(), BlueprintId::new("mlp").unwrap());
    let grow = vec![germinate, Operation::StartTraining { seed: SEED }];
    let tiny = Alpha::new(1e-60).unwrap();
    let away = vec![ramp(Alpha::ZERO, 2), ramp(tiny, 2)];
    let (reports, ends) = train(&mut eager, vec![grow, vec![ramp(Alpha::ONE, 3)], away]);
    assert_eq!((reports.refused.len(), ends.len()), (2, 1), "{:?}", reports.refused);
    assert!(reports.refused.iter().all(|refusal| refusal.contains("a gradual cull leads to 0")));
    assert!(reports.num_parameters.iter().all(|&now| now == reports.num_parameters[0]), "the seed keeps its place");
}
