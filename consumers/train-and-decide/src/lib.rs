//! Trainer, seed manager and policy put together without the program around them: a perceptron of two hidden units learns a grid of
//! squares, and grows where the policy finds that a seed helps.
#![forbid(unsafe_code)]

use std::error::Error;
use std::num::NonZeroUsize;
use std::sync::Arc;

use candle_core::{Device, Tensor};
use kasmina::host::HostConfig;
use kasmina::{Kasmina, KasminaConfig};
use leyline::clock::SystemClock;
use leyline::id::RunId;
use leyline::region::Eager;
use leyline::seed::{SeedManager as _, SeedStage};
use leyline::telemetry::NullRecorder;
use tamiyo::{PolicyKind, Tamiyo, TamiyoConfig};
use tolaria::batch::{BatchConfig, Dataset};
use tolaria::task::Classification;
use tolaria::trainer::{NullObserver, Parts, Splits, TrainConfig, Trainer};

const CLASSES: usize = 4;

/// What a run came to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Outcome {
    /// Correct / all, on samples that nothing was decided by, in `[0, 1]`.
    pub accuracy: f64,
    /// Seeds that became permanent (count).
    pub num_permanent: usize,
}

/// Trains under a policy.
///
/// # Errors
/// When parts do not fit together, or a step fails.
pub fn train(policy: PolicyKind) -> Result<Outcome, Box<dyn Error>> {
    let device = Device::Cpu;
    let (clock, recorder) = (Arc::new(SystemClock::new()), Arc::new(NullRecorder));
    let host = HostConfig::Mlp { inputs: 2, hidden: vec![2], classes: CLASSES };
    let config = KasminaConfig { seed_width: 16, ..KasminaConfig::new(host) };
    let seeds = Kasmina::new(config, &device, clock.clone(), recorder.clone())?;
    let mut decides = TamiyoConfig { policy, ..TamiyoConfig::default() };
    // Beside so small a network every seed is large, and dear to look at.
    decides.heuristic.germination.max_parameter_ratio = 20.0;
    decides.heuristic.looking.max_share = 0.9;
    let policy = Tamiyo::new(decides, clock.clone(), recorder.clone())?;
    let batch_size = NonZeroUsize::new(32).ok_or("above 0")?;
    let config = TrainConfig {
        batch: BatchConfig { batch_size, microbatches_per_step: NonZeroUsize::MIN },
        ..TrainConfig::default()
    };
    let parts = Parts {
        run_id: RunId::new("consumer")?,
        seed: 1,
        num_epochs: 120,
        max_steps: None,
        device,
        data: Splits::draw(&squares()?, 0.3, 1)?,
        task: Arc::new(Classification::new(CLASSES)),
        seeds,
        policy,
        checkpoints: None,
        recorder,
        clock,
    };
    let mut trainer = Trainer::new(config, parts)?;
    let mut eager = Eager::acquire()?;
    trainer.run(&mut eager, &mut NullObserver)?;
    let accuracy = trainer.test(&eager)?.score.accuracy().ok_or("not measured")?;
    let states = trainer.seeds().export_seed_states(&eager)?;
    let num_permanent = states.iter().filter(|state| state.stage == SeedStage::Fossilized).count();
    Ok(Outcome { accuracy, num_permanent })
}

/// Points of the plane, and which of four classes each is of: whether it is far from the one axis, and from the other.
fn squares() -> Result<Dataset, Box<dyn Error>> {
    let at = |i: u32| (i * 367 % 1999) as f32 / 500.0 - 2.0;
    let points: Vec<[f32; 2]> = (0..2000).map(|i| [at(i), at(i * 7 + 3)]).collect();
    let class = |[x, y]: &[f32; 2]| u32::from(x.abs() > 1.0) * 2 + u32::from(y.abs() > 1.0);
    let targets: Vec<u32> = points.iter().map(class).collect();
    let inputs = Tensor::from_vec(points.concat(), (points.len(), 2), &Device::Cpu)?;
    Ok(Dataset::new(inputs, Tensor::new(targets, &Device::Cpu)?)?)
}
