//! Products of reduced precision, and a loss whose scale moves, under captured and compiled steps: the bits of eager ones, with seeds,
//! four microbatches and every aggregation.

use std::thread;
use std::time::Duration;

use leyline::error::BoxError;
use leyline::id::StepIndex;
use leyline::region::Eager;
use tolaria::aggregate::ConflictResolution;
use tolaria::optim::OptimizerConfig;
use tolaria::trainer::report::EpochReport;
use tolaria::trainer::{Flow, LossScaleConfig, Observer, StepMode, TrainConfig, TrainPrecision, Trainer};

use super::finite::state;
use super::frozen::execution;
use crate::gpu::growing::{Growing, differing};
use crate::gpu::open::Gpu;
use crate::gpu::report::{Broken, Report, promise};

const ADAM_W: OptimizerConfig = OptimizerConfig::AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01 };
const MICROBATCHES: usize = 4;
/// Of 7 steps: all stages of some seeds.
const EPOCHS: u64 = 40;
/// Far beyond what the first steps take, and doubled so often that steps overflow again and again.
const INITIAL: f64 = 16_777_216.0;
const GROWTH_STEPS: u32 = 9;
/// For the gradients of a window, MiB.
const ROOM_FOR_ALL: u32 = 256;
/// After each step of a compiled run, for the compiler.
const PAUSE: Duration = Duration::from_millis(6);

pub(super) fn run(gpu: &Gpu, eager: &mut Eager, report: &mut Report) {
    let with = |precision, conflict| Case { precision, conflict, is_summed: false };
    let summed = |precision| Case { is_summed: true, ..with(precision, ConflictResolution::Mean) };
    let cases = ConflictResolution::ALL.map(|conflict| with(TrainPrecision::F16, conflict)).into_iter().chain([
        with(TrainPrecision::Bf16, ConflictResolution::PcGrad),
        with(TrainPrecision::Tf32, ConflictResolution::Mean),
        with(TrainPrecision::Bf16Pure, ConflictResolution::Mean),
        with(TrainPrecision::Bf16Pure, ConflictResolution::PcGrad),
        summed(TrainPrecision::Bf16Pure),
        with(TrainPrecision::Bf16Stochastic, ConflictResolution::PcGrad),
        summed(TrainPrecision::Bf16Stochastic),
        summed(TrainPrecision::F32),
        summed(TrainPrecision::F16),
    ]);
    for case in cases {
        let name = case.precision.name();
        let conflict = if case.is_summed { "one_row" } else { case.conflict.name() };
        report.check(format!("precision.{name}.{conflict}.accumulation4"), |_| case.check(gpu, eager));
    }
}

#[derive(Debug, Clone, Copy)]
struct Case {
    precision: TrainPrecision,
    conflict: ConflictResolution,
    /// Whether gradients are added up as they come, against a run that keeps them all.
    is_summed: bool,
}

/// What a run came to.
struct Found {
    /// Parameters and moments.
    state: Vec<f32>,
    /// What a checkpoint says of the scale, where there is one.
    scale: serde_json::Value,
    seen: Seen,
    replays: u64,
    compiled: u64,
}

/// Skipped steps and losses of each epoch.
#[derive(Debug, Default)]
struct Seen {
    skipped: Vec<u64>,
    losses: Vec<[Option<u64>; 2]>,
    pause: Duration,
}

impl Observer for Seen {
    fn step_finished(&mut self, _: StepIndex) -> Flow {
        thread::sleep(self.pause);
        Flow::Continue
    }

    fn epoch_finished(&mut self, report: &EpochReport) -> Result<(), BoxError> {
        self.skipped.push(report.skipped_steps);
        self.losses
            .push([report.train.as_ref().map(|train| train.loss.to_bits()), Some(report.validation.loss.to_bits())]);
        Ok(())
    }
}

impl Case {
    fn finish(self, gpu: &Gpu, eager: &mut Eager, mode: StepMode, gradient_mib: u32) -> Result<Found, Broken> {
        let growing = Growing {
            epochs: EPOCHS,
            conflict: self.conflict,
            execution: execution(mode),
            precision: self.precision,
            ..Growing::small(MICROBATCHES, ADAM_W)
        };
        let loss_scale = match self.precision {
            TrainPrecision::F16 => {
                let growth_steps = GROWTH_STEPS.try_into().map_err(|_| Broken("no steps".to_owned()))?;
                LossScaleConfig { initial: INITIAL, growth_steps }
            }
            _ => LossScaleConfig::default(),
        };
        // Averages are part of the state that is compared.
        let ema_decay = (self.conflict == ConflictResolution::PcGrad).then_some(0.99);
        let config = TrainConfig { loss_scale, ema_decay, gradient_mib, ..growing.config() };
        let mut trainer = Trainer::new(config, growing.parts_on(&gpu.device, &gpu.clock)?)?;
        let pause = if mode == StepMode::Compiled { PAUSE } else { Duration::ZERO };
        let mut seen = Seen { pause, ..Seen::default() };
        trainer.run(eager, &mut seen)?;
        if let Some(refusal) = trainer.last_refusal().or(trainer.last_compile_refusal()) {
            return Err(Broken(format!("a shape was refused: {refusal}")));
        }
        let snapshot = trainer.snapshot(eager)?;
        let document: serde_json::Value =
            serde_json::from_str(&snapshot.components["trainer"].json).map_err(|error| Broken(error.to_string()))?;
        let (replays, compiled) = (trainer.graph_stats().total.replays, trainer.num_compiled_replays());
        let scale = document["sums"]["loss_scale"].clone();
        Ok(Found { state: state(&snapshot)?, scale, seen, replays, compiled })
    }

    fn check(self, gpu: &Gpu, eager: &mut Eager) -> Result<String, Broken> {
        let expected = self.finish(gpu, eager, StepMode::Eager, ROOM_FOR_ALL)?;
        let skipped: u64 = expected.seen.skipped.iter().sum();
        let is_scaled = self.precision == TrainPrecision::F16;
        promise(is_scaled == (skipped > 4), || format!("{skipped} steps were skipped"))?;
        promise(expected.state.iter().all(|value| value.is_finite()), || {
            "a number that is not finite was learned".to_owned()
        })?;
        let mut told = Vec::new();
        let modes: &[StepMode] = &[StepMode::Eager, StepMode::Graph, StepMode::Compiled];
        for mode in if self.is_summed { modes } else { &modes[1..] } {
            let mode = *mode;
            let found = self.finish(gpu, eager, mode, if self.is_summed { 0 } else { ROOM_FOR_ALL })?;
            let wrong = differing(&expected.state, &found.state);
            promise(wrong == 0, || {
                format!("{mode:?}: {wrong} of {} parameters and moments differ", found.state.len())
            })?;
            promise(expected.scale == found.scale, || format!("{mode:?}: {} is {}", found.scale, expected.scale))?;
            let alike = (&expected.seen.skipped, &expected.seen.losses) == (&found.seen.skipped, &found.seen.losses);
            promise(alike, || format!("{mode:?}: losses or skipped steps differ: {:?}", found.seen.skipped))?;
            let compiled = if mode == StepMode::Compiled { found.compiled > 50 } else { found.compiled == 0 };
            promise((mode == StepMode::Eager || found.replays > 100) && compiled, || {
                format!("{mode:?}: {} replays, {} of them compiled", found.replays, found.compiled)
            })?;
            told.push(format!("{} and {}", found.replays, found.compiled));
        }
        Ok(format!(
            "0 of {} parameters and moments differ, {skipped} of {} steps skipped, scale {}, replays and compiled ones {}",
            expected.state.len(),
            7 * EPOCHS,
            expected.scale,
            told.join("; "),
        ))
    }
}
