//! A trainer whose policy does as it is told, for tests that lead seeds through their lives.

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use candle_core::{Device, Tensor};
use esper_signing::{CommandKey, Signed, Verified};
use kasmina::host::HostConfig;
use kasmina::lifecycle::GateConfig;
use kasmina::{Kasmina, KasminaConfig};
use leyline::command::{KeyId, Operation, Order};
use leyline::durable::{Durable, SavedState};
use leyline::error::ErrorType;
use leyline::id::RunId;
use leyline::policy::{Decision, Policy};
use leyline::region::{Eager, RegionError};
use leyline::state::SystemState;
use leyline::telemetry::{NullRecorder, Recorder};
use leyline_testkit::clock::ManualClock;
use tolaria::batch::{BatchConfig, Dataset};
use tolaria::optim::{OptimizerConfig, ScheduleConfig};
use tolaria::task::Classification;
use tolaria::trainer::{Parts, Splits, TrainConfig, Trainer};

const KEY: [u8; 32] = [7; 32];

/// What is to happen at the next end of an epoch.
pub type Script = Box<dyn FnMut() -> Vec<Operation> + Send>;

/// Orders what its script says. A second passes with each epoch.
pub struct Scripted {
    clock: Arc<ManualClock>,
    script: Script,
}

impl fmt::Debug for Scripted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scripted").finish_non_exhaustive()
    }
}

impl ErrorType for Scripted {
    type Error = RegionError;
}

impl Durable for Scripted {
    fn save(&self, eager: &Eager) -> Result<SavedState, RegionError> {
        eager.check().map(|()| SavedState::default())
    }

    fn restore(&mut self, eager: &mut Eager, _saved: &SavedState) -> Result<(), RegionError> {
        eager.check()
    }
}

impl Policy for Scripted {
    fn name(&self) -> &'static str {
        "scripted"
    }

    fn decide(&mut self, _state: &SystemState) -> Result<Decision, RegionError> {
        self.clock.advance(Duration::from_secs(1));
        let orders = (self.script)().into_iter().map(|operation| Order::new(operation, "script"));
        Ok(Decision { orders: orders.collect(), waiting: Vec::new() })
    }
}

/// The trainer of [`trainer`]: its orders are signed, as those of a run are.
pub type ScriptedTrainer = Trainer<Verified<Kasmina>, Signed<Scripted>>;

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
) -> ScriptedTrainer {
    let gates =
        GateConfig { training_min_epochs: 0, min_gradient_health: 0.0, require_gain: false, ..GateConfig::default() };
    let host = HostConfig::Mlp { inputs: 3, hidden, classes: 2 };
    let config = KasminaConfig { gates, seed_width: 1, embargo_epochs, ..KasminaConfig::new(host) };
    trainer_of(config, (num_samples, num_epochs), recorder, script)
}

/// As [`trainer`], of any perceptron for three features and two classes, with the gates that its configuration says.
///
/// # Panics
/// When a part cannot be built.
#[must_use]
pub fn trainer_of(
    config: KasminaConfig,
    (num_samples, num_epochs): (u8, u64),
    recorder: Arc<dyn Recorder>,
    script: Script,
) -> ScriptedTrainer {
    let run_id = RunId::new("scripted").expect("a literal of allowed characters");
    let clock = Arc::new(ManualClock::default());
    let key = CommandKey::new(KEY);
    let seeds = Kasmina::new(config, &Device::Cpu, clock.clone(), Arc::clone(&recorder)).expect("a manager");
    let seeds = Verified::new(seeds, run_id.clone(), key.clone(), clock.clone(), recorder);
    let policy = Scripted { clock: Arc::clone(&clock), script };
    let policy = Signed::new(policy, run_id.clone(), KeyId::default(), key, clock.clone());
    let count = |n| NonZeroUsize::new(n).expect("sizes above 0");
    let config = TrainConfig {
        batch: BatchConfig { batch_size: count(2), microbatches_per_step: count(1) },
        optimizer: OptimizerConfig::AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01 },
        schedule: ScheduleConfig::constant(1e-3),
        eval_batch_size: count(4),
        conflict_warn: 1.0,
        ..TrainConfig::default()
    };
    let data = samples(num_samples);
    let parts = Parts {
        run_id,
        seed: 1,
        num_epochs,
        max_steps: None,
        device: Device::Cpu,
        data: Splits { train: data.clone(), validation: data.clone(), test: data },
        task: Arc::new(Classification::new(2)),
        seeds,
        policy,
        checkpoints: None,
        recorder: Arc::new(NullRecorder),
        clock,
    };
    Trainer::new(config, parts).expect("a trainer")
}

fn samples(count: u8) -> Dataset {
    let inputs: Vec<f32> = (0..3 * u16::from(count)).map(|i| f32::from(i * 7 % 11) / 11.0 - 0.4).collect();
    let targets: Vec<u32> = [0, 1, 1, 0].into_iter().cycle().take(count.into()).collect();
    let inputs = Tensor::from_vec(inputs, (usize::from(count), 3), &Device::Cpu).expect("three features a sample");
    let targets = Tensor::from_vec(targets, usize::from(count), &Device::Cpu).expect("one class a sample");
    Dataset::new(inputs, targets).expect("classes below two")
}
