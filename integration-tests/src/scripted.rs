//! A trainer whose policy does as it is told, for tests that lead seeds through their lives.

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use candle_core::{Device, Tensor};
use kasmina::host::HostConfig;
use kasmina::lifecycle::GateConfig;
use kasmina::{CommandKey, Kasmina, KasminaConfig};
use leyline::clock::Clock;
use leyline::command::{Command, Operation};
use leyline::durable::{Durable, SavedState};
use leyline::error::ErrorType;
use leyline::id::RunId;
use leyline::policy::{Decision, Policy};
use leyline::region::Eager;
use leyline::state::SystemState;
use leyline::telemetry::{NullRecorder, Recorder};
use leyline_testkit::clock::ManualClock;
use tamiyo::SigningKey;
use tolaria::batch::{BatchConfig, Dataset};
use tolaria::optim::{OptimizerConfig, ScheduleConfig};
use tolaria::trainer::{ExecutionConfig, Parts, Splits, TrainConfig, Trainer};

const KEY: [u8; 32] = [7; 32];

/// What is to happen at the next end of an epoch.
pub type Script = Box<dyn FnMut() -> Vec<Operation> + Send>;

/// Signs and sends what its script says. A second passes with each epoch.
pub struct Scripted {
    clock: Arc<ManualClock>,
    script: Script,
    sequence: u64,
}

impl fmt::Debug for Scripted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scripted").field("sequence", &self.sequence).finish_non_exhaustive()
    }
}

impl ErrorType for Scripted {
    type Error = leyline_testkit::Error;
}

impl Durable for Scripted {
    fn save(&self, eager: &Eager) -> Result<SavedState, Self::Error> {
        eager.check()?;
        Ok(SavedState { json: self.sequence.to_string(), ..SavedState::default() })
    }

    fn restore(&mut self, eager: &mut Eager, saved: &SavedState) -> Result<(), Self::Error> {
        eager.check()?;
        self.sequence = saved.json.parse().expect("what was saved is a number");
        Ok(())
    }
}

impl Policy for Scripted {
    fn name(&self) -> &'static str {
        "scripted"
    }

    fn evaluate(&mut self, state: &SystemState) -> Result<Decision, Self::Error> {
        self.clock.advance(Duration::from_secs(1));
        let now = u64::try_from(self.clock.unix().as_millis()).unwrap_or(u64::MAX);
        let commands = (self.script)().into_iter().map(|operation| {
            self.sequence += 1;
            let command = Command::new(state.run_id.clone(), self.sequence, now, operation, "script".to_owned());
            let signed = SigningKey(KEY).sign(&command);
            (command, signed)
        });
        Ok(Decision { commands: commands.collect(), rationale: Vec::new() })
    }
}

/// A trainer of a perceptron for three features and two classes, with two samples a step, whose seeds pass every gate but
/// that to permanence.
///
/// # Panics
/// When a part cannot be built.
#[must_use]
pub fn trainer(
    hidden: Vec<usize>,
    embargo_epochs: u64,
    (num_samples, num_epochs): (u8, u64),
    recorder: Arc<dyn Recorder>,
    script: Script,
) -> Trainer<Kasmina, Scripted> {
    let run_id = RunId::new("scripted").expect("a literal of allowed characters");
    let clock = Arc::new(ManualClock::default());
    let gates =
        GateConfig { training_min_epochs: 0, min_gradient_health: 0.0, require_gain: false, ..GateConfig::default() };
    let host = HostConfig::Mlp { inputs: 3, hidden, classes: 2 };
    let config = KasminaConfig { gates, seed_width: 1, embargo_epochs, ..KasminaConfig::new(host) };
    let key = CommandKey::new(KEY);
    let seeds = Kasmina::new(config, &Device::Cpu, run_id.clone(), key, clock.clone(), recorder).expect("a manager");
    let count = |n| NonZeroUsize::new(n).expect("sizes above 0");
    let config = TrainConfig {
        batch: BatchConfig { batch_size: count(2), microbatches_per_step: count(1) },
        optimizer: OptimizerConfig::AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01 },
        schedule: ScheduleConfig::constant(1e-3),
        clip_norm: Some(1.0),
        conflict: <_>::default(),
        measure_conflicts: false,
        cagrad_radius: 0.4,
        measures: Vec::new(),
        eval_batch_size: count(4),
        conflict_warn: 1.0,
        execution: ExecutionConfig::default(),
    };
    let data = samples(num_samples);
    let parts = Parts {
        run_id,
        seed: 1,
        num_epochs,
        device: Device::Cpu,
        data: Splits { train: data.clone(), validation: data.clone(), test: data },
        seeds,
        policy: Scripted { clock: Arc::clone(&clock), script, sequence: 0 },
        checkpoints: None,
        recorder: Arc::new(NullRecorder),
        clock,
    };
    Trainer::new(config, parts).expect("a trainer")
}

fn samples(count: u8) -> Dataset {
    let inputs: Vec<f32> = (0..3 * count).map(|i| f32::from(i * 7 % 11) / 11.0 - 0.4).collect();
    let targets: Vec<u32> = [0, 1, 1, 0].into_iter().cycle().take(count.into()).collect();
    let inputs = Tensor::from_vec(inputs, (usize::from(count), 3), &Device::Cpu).expect("three features a sample");
    let targets = Tensor::from_vec(targets, usize::from(count), &Device::Cpu).expect("one class a sample");
    Dataset::new(inputs, targets, 2).expect("classes below two")
}
