//! Every blend, while its seed ramps from 0 to 1: one capture for the whole ramp, and the bits of eager steps.

use std::sync::Arc;

use candle_core::Device;
use kasmina::host::{HostConfig, Pool};
use kasmina::lifecycle::GateConfig;
use kasmina::{Kasmina, KasminaConfig};
use leyline::clock::Clock;
use leyline::command::{Blend, ChannelWeights, ConfidenceGate, Operation};
use leyline::durable::{Durable, SavedState};
use leyline::error::{BoxError, ErrorType};
use leyline::id::{BlueprintId, RunId, SeedId, StepIndex, TopologyRevision};
use leyline::model::TrainableModel as _;
use leyline::policy::{Decision, Policy};
use leyline::region::Eager;
use leyline::seed::{AttributionMode, SeedManager as _, SeedStage};
use leyline::state::SystemState;
use leyline::telemetry::{NullRecorder, Recorder};
use leyline::unit::Alpha;
use tamiyo::policy::{FixedConfig, FixedGermination};
use tamiyo::{PolicyKind, Tamiyo, TamiyoConfig};
use tolaria::aggregate::ConflictResolution;
use tolaria::optim::OptimizerConfig;
use tolaria::task::Classification;
use tolaria::trainer::report::EpochReport;
use tolaria::trainer::{ExecutionConfig, Observer, Parts, RecoveryConfig, Splits, StepMode, TrainConfig, Trainer};

use crate::gpu::growing::{CLASSES, differing, in_mode, perceptron, samples, values_of};
use crate::gpu::open::Gpu;
use crate::gpu::report::{Broken, Report, promise};
use crate::trainer::train_config;

const INPUTS: usize = 16;
const BATCH: usize = 8;
pub(crate) const STEPS_PER_EPOCH: usize = 26;
const RAMP_EPOCHS: u64 = 2;
pub(crate) const EPOCHS: u64 = 9;
const OPTIMIZER: OptimizerConfig = OptimizerConfig::AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01 };

pub(super) fn run(gpu: &Gpu, eager: &mut Eager, report: &mut Report) {
    for (name, ramp) in ramps() {
        report.check(name, |_| one_capture(gpu, eager, &ramp));
    }
}

/// Every mode in a network of vectors and in one of signals.
pub(crate) fn ramps() -> Vec<(String, Ramp)> {
    let signal = HostConfig::Cnn1d {
        length: INPUTS,
        channels: vec![6, 8],
        kernel: 3,
        stride: 2,
        classes: CLASSES,
        pool: Pool::Mean,
    };
    let hosts = [("", perceptron(INPUTS, vec![32, 24]), 32), (".signal", signal, 6)];
    let ramp = |host: &HostConfig, suffix: &str, blend: Blend| {
        (format!("ramp.{}{suffix}", blend.mode()), Ramp { host: host.clone(), blend })
    };
    hosts.iter().flat_map(|(suffix, host, channels)| blends(*channels).map(|blend| ramp(host, suffix, blend))).collect()
}

/// Every mode at a slot of so many channels; the gates of `confidence` are bounded on both sides.
fn blends(channels: usize) -> [Blend; 6] {
    let weights = [0.25, 1.0, 0.5, 0.75].into_iter().cycle().take(channels).collect();
    [
        Blend::Residual,
        Blend::Convex,
        Blend::Channel(ChannelWeights::new(weights).expect("weights from 0 to 1")),
        Blend::Confidence(ConfidenceGate::new(4.0, 0.2, 0.1, 0.9).expect("settings within their ranges")),
        Blend::Multiply,
        Blend::Gate,
    ]
}

/// A network in which one seed of this blend ramps up.
pub(crate) struct Ramp {
    host: HostConfig,
    blend: Blend,
}

fn one_capture(gpu: &Gpu, eager: &mut Eager, ramp: &Ramp) -> Result<String, Broken> {
    let (_, expected, _) = ramp.finish(gpu, eager, StepMode::Eager)?;
    let (trainer, found, epochs) = ramp.finish(gpu, eager, StepMode::Graph)?;
    if let Some(refusal) = trainer.last_refusal() {
        return Err(Broken(format!("a shape was refused: {refusal}")));
    }
    let wrong = differing(&expected, &found);
    promise(wrong == 0, || format!("{wrong} of {} parameters differ", found.len()))?;

    let Acting { topology, num_steps, ramp_steps } = epochs.acting()?;
    let stats = trainer.graph_stats();
    let mut rows = stats.per_key.iter().filter(|(key, _)| key.topology == topology).map(|(_, row)| row);
    let (Some(row), None) = (rows.next(), rows.next()) else {
        return Err(Broken(format!("the acting seed did not run as one shape of step: {:?}", stats.per_key)));
    };
    promise(row.captures == 1, || format!("{} captures while the seed acts", row.captures))?;
    promise(row.fallbacks == 0 && row.misses <= 2, || format!("{} eager steps before the first replay", row.misses))?;
    promise(row.replays + row.misses == num_steps, || format!("{} replays in {num_steps} steps", row.replays))?;
    let gates = trainer.seeds().model().parameters().iter().filter(|p| p.name.contains(".gate.")).count();
    promise(gates == if ramp.blend == Blend::Gate { 4 } else { 0 }, || format!("{gates} tensors of a gate"))?;
    Ok(format!(
        "{ramp_steps} steps from 0 to 1: 1 capture, {} replays in {num_steps} steps, 0 of {} parameters differ",
        row.replays,
        found.len()
    ))
}

impl Ramp {
    /// Trains to the end: trainer, values of all parameters, and what was seen after each epoch.
    fn finish(&self, gpu: &Gpu, eager: &mut Eager, mode: StepMode) -> Result<(RampTrainer, Vec<f32>, Epochs), Broken> {
        let mut trainer = self.trainer(&gpu.device, &gpu.clock, mode)?;
        let mut epochs = Epochs::default();
        trainer.run(eager, &mut epochs)?;
        let values = values_of(trainer.seeds().model().parameters())?;
        Ok((trainer, values, epochs))
    }

    fn trainer(&self, device: &Device, clock: &Arc<dyn Clock>, mode: StepMode) -> Result<RampTrainer, Broken> {
        self.trainer_with(device, clock, in_mode(mode), RecoveryConfig::default())
    }

    /// A trainer whose steps run like this, and which keeps these states.
    pub(crate) fn trainer_with(
        &self,
        device: &Device,
        clock: &Arc<dyn Clock>,
        execution: ExecutionConfig,
        recovery: RecoveryConfig,
    ) -> Result<RampTrainer, Broken> {
        let parts = self.parts(device, clock, Arc::new(NullRecorder))?;
        Ok(Trainer::new(Self::config(execution, recovery), parts)?)
    }

    /// Settings of such a trainer.
    pub(crate) fn config(execution: ExecutionConfig, recovery: RecoveryConfig) -> TrainConfig {
        let config = train_config(BATCH, 1, OPTIMIZER, ConflictResolution::PcGrad, execution);
        TrainConfig { recovery, ..config }
    }

    /// What it is made of.
    pub(crate) fn parts(
        &self,
        device: &Device,
        clock: &Arc<dyn Clock>,
        recorder: Arc<dyn Recorder>,
    ) -> Result<Parts<Kasmina, Blending>, Broken> {
        let run_id = RunId::new("graph-check").expect("a literal of allowed characters");
        let clock = Arc::clone(clock);
        // The samples are random: a seed that had to prove itself would never act.
        let gates = GateConfig {
            training_min_epochs: 1,
            min_gradient_health: 0.0,
            require_gain: false,
            ..GateConfig::default()
        };
        let config = KasminaConfig {
            attribution: AttributionMode::Alpha,
            seed_width: 8,
            gates,
            ..KasminaConfig::new(self.host.clone())
        };
        let seeds = Kasmina::new(config, device, Arc::clone(&clock), Arc::clone(&recorder))
            .map_err(|error| Broken(format!("the seed manager: {error}")))?;
        // The slot behind the first layer: the host learns before it and after it.
        let slot = seeds.model().host().slots()[1].id.clone();
        let blueprint = BlueprintId::new("mlp").expect("a literal of allowed characters");
        let fixed = FixedConfig {
            germinations: vec![FixedGermination { epoch: 1, slot: Some(slot), blueprint: Some(blueprint) }],
            training_epochs: 1,
            ramp_epochs: RAMP_EPOCHS,
            holding_epochs: EPOCHS,
            ..FixedConfig::default()
        };
        let config = TamiyoConfig { policy: PolicyKind::Fixed, fixed, ..TamiyoConfig::default() };
        let schedule = Tamiyo::new(config, Arc::clone(&clock), Arc::clone(&recorder))?;
        // The same samples, in tensors of their own: what is planted in one is not in the other.
        let train = samples(BATCH * STEPS_PER_EPOCH, INPUTS, CLASSES, device)?;
        let held_out = samples(BATCH * STEPS_PER_EPOCH, INPUTS, CLASSES, device)?;
        Ok(Parts {
            run_id,
            seed: 3,
            num_epochs: EPOCHS,
            max_steps: None,
            device: device.clone(),
            data: Splits { validation: held_out.clone(), test: held_out, train },
            task: Arc::new(Classification::new(CLASSES)),
            seeds,
            policy: Blending { schedule, blend: self.blend.clone() },
            checkpoints: None,
            recorder,
            clock,
        })
    }
}

pub(crate) type RampTrainer = Trainer<Kasmina, Blending>;

/// A fixed schedule whose seeds germinate with this blend.
pub(crate) struct Blending {
    schedule: Tamiyo,
    blend: Blend,
}

impl ErrorType for Blending {
    type Error = tamiyo::Error;
}

impl Durable for Blending {
    fn save(&self, eager: &Eager) -> Result<SavedState, tamiyo::Error> {
        self.schedule.save(eager)
    }

    fn restore(&mut self, eager: &mut Eager, saved: &SavedState) -> Result<(), tamiyo::Error> {
        self.schedule.restore(eager, saved)
    }
}

impl Policy for Blending {
    fn name(&self) -> &'static str {
        self.schedule.name()
    }

    fn decide(&mut self, state: &SystemState) -> Result<Decision, tamiyo::Error> {
        let mut decision = self.schedule.decide(state)?;
        for order in &mut decision.orders {
            if let Operation::Germinate { blend, .. } = &mut order.operation {
                *blend = self.blend.clone();
            }
        }
        Ok(decision)
    }
}

/// What was seen after each epoch.
#[derive(Default)]
struct Epochs(Vec<Seen>);

struct Seen {
    step: StepIndex,
    /// During the epoch.
    topology: TopologyRevision,
    /// The seed after the commands at the end of the epoch.
    seed: Option<(SeedStage, Alpha)>,
    refused: Vec<String>,
}

impl Observer for Epochs {
    fn epoch_finished(&mut self, report: &EpochReport) -> Result<(), BoxError> {
        let seed = report.seeds.iter().find(|seed| seed.seed_id == SeedId(1));
        let refused = report.commands.iter().filter_map(|command| command.refused.clone());
        self.0.push(Seen {
            step: report.step,
            topology: report.topology,
            seed: seed.map(|seed| (seed.stage, seed.alpha)),
            refused: refused.collect(),
        });
        Ok(())
    }
}

/// The steps in which the seed acted.
struct Acting {
    topology: TopologyRevision,
    num_steps: u64,
    ramp_steps: u64,
}

impl Epochs {
    /// The seed started to act below 1, acts in full at the end, and the structure stayed the same from then on.
    fn acting(&self) -> Result<Acting, Broken> {
        let acts = |seen: &Seen| matches!(seen.seed, Some((SeedStage::Blending | SeedStage::Holding, _)));
        let first = self.0.iter().position(acts);
        let Some((start, [next, ..])) = first.map(|first| (&self.0[first], &self.0[first + 1..])) else {
            let refused: Vec<&str> = self.0.iter().flat_map(|seen| &seen.refused).map(String::as_str).collect();
            return Err(Broken(format!("the seed never acted: {}", refused.join("; "))));
        };
        let (last, topology) = (self.0.last().expect("there is a next one"), next.topology);
        let after = self.0.iter().filter(|seen| seen.step > start.step);
        let same = after.clone().all(|seen| acts(seen) && seen.topology == topology);
        promise(same && start.topology != topology, || "the structure changed while the seed acted".to_owned())?;
        let alpha = |seen: &Seen| seen.seed.map_or(Alpha::ZERO, |(_, alpha)| alpha);
        promise(!alpha(start).is_one() && alpha(last).is_one(), || {
            format!("alpha went from {} to {}", alpha(start), alpha(last))
        })?;
        let arrived = after.clone().find(|seen| alpha(seen).is_one()).map_or(last.step, |seen| seen.step);
        let ramp_steps = arrived.0 - start.step.0;
        promise(ramp_steps >= 20, || format!("the ramp took {ramp_steps} steps"))?;
        Ok(Acting { topology, num_steps: last.step.0 - start.step.0, ramp_steps })
    }
}

#[cfg(test)]
mod tests {
    use leyline::clock::SystemClock;

    use super::*;

    /// The schedule does on the CPU what the checks count on a GPU.
    #[test]
    fn every_seed_ramps_up_and_its_blend_trains() {
        let mut eager = Eager::acquire().unwrap();
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
        for (name, ramp) in ramps() {
            let mut trainer = ramp.trainer(&Device::Cpu, &clock, StepMode::Eager).map_err(|Broken(text)| text).unwrap();
            let mut epochs = Epochs::default();
            trainer.run(&mut eager, &mut epochs).unwrap();
            let Acting { num_steps, ramp_steps, .. } = epochs.acting().map_err(|Broken(text)| text).expect(&name);
            assert_eq!(ramp_steps, RAMP_EPOCHS * STEPS_PER_EPOCH as u64, "{name}");
            assert!(num_steps > ramp_steps, "{name}");
            let values = values_of(trainer.seeds().model().parameters()).map_err(|Broken(text)| text).unwrap();
            assert!(values.iter().all(|value| value.is_finite()), "{name}");
            let gates = trainer.seeds().model().parameters().iter().filter(|p| p.name.starts_with("seed.0001.gate."));
            assert_eq!(gates.count(), if ramp.blend == Blend::Gate { 4 } else { 0 }, "{name}");
        }
    }
}
