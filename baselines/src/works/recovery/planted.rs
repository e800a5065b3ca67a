//! No number planted in data, in a seed, in a parameter of the host and in what a kernel computes, at many steps: who is named, and
//! what becomes of the run.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::sync::{Arc, Mutex, PoisonError};

use candle_core::{DType, Device, Tensor};
use leyline::clock::Clock;
use leyline::error::BoxError;
use leyline::layout::Owner;
use leyline::model::TrainableModel as _;
use leyline::region::Eager;
use leyline::seed::SeedManager as _;
use leyline::task::Task;
use leyline::telemetry::{Boundary, Counter, Event, Gauge, MetricDesc, NullRecorder, Recorder};
use tolaria::task::Classification;
use tolaria::trainer::report::EpochReport;
use tolaria::trainer::{
    ExecutionConfig, Flow, Observer, Outcome, Parts, RecoveryConfig, RunEvent, StepReport, Trainer,
};

use crate::gpu::growing::CLASSES;
use crate::gpu::report::{Broken, promise};
use crate::models::Draw;
use crate::samples::Samples;
use crate::work::Settings;
use crate::works::graph_check::ramp::{Ramp, RampTrainer, STEPS_PER_EPOCH, ramps};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Data,
    Seed,
    Host,
    Kernel,
}

const PLACES: [(&str, Place); 4] =
    [("data", Place::Data), ("seed", Place::Seed), ("host", Place::Host), ("kernel", Place::Kernel)];

/// From the fourth epoch on the seed trains, and the last one is to be trained in order.
const FIRST: u64 = 3 * STEPS_PER_EPOCH as u64 + 1;
/// Steps from there to the last but one epoch.
const BETWEEN: u32 = 4 * 26;

/// Plants so many in each place, beside so many runs without; what was seen.
pub(super) fn run(
    [planted, noise]: [usize; 2],
    device: &Device,
    clock: &Arc<dyn Clock>,
    eager: &mut Eager,
    measured: &mut Samples,
) -> Result<Settings, Broken> {
    let (_, ramp) = ramps().swap_remove(0);
    let mut none = Vec::new();
    for seed in 0..noise as u64 {
        let mut run = Run::new(&ramp, device, clock, RecoveryConfig::default(), 3 + seed)?;
        run.finish(eager)?;
        measured.push("planted.none.loss", "nats", run.loss);
        none.push(run.loss);
    }
    let worst = none.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let mut told = BTreeMap::new();
    let mut draw = Draw::new(17, &Device::Cpu);
    for (name, place) in PLACES {
        let mut num_named = 0;
        for _ in 0..planted {
            let step = FIRST + u64::from(draw.below(BETWEEN));
            // After the last step of an epoch an evaluation would be the first to see it, and there is no loss to name.
            let step = step + u64::from(place == Place::Kernel && step.is_multiple_of(STEPS_PER_EPOCH as u64));
            let (loss, is_named) = plant(&ramp, device, clock, eager, (place, step))?;
            measured.push(format!("planted.{name}.loss"), "nats", loss);
            num_named += usize::from(is_named);
            promise(loss <= worst, || {
                format!(
                    "{name} at step {step}: the run ends with a loss of {loss}, the worst of those without has {worst}"
                )
            })?;
        }
        promise(num_named == planted, || format!("{name}: {num_named} of {planted} culprits were named"))?;
        told.insert(format!("planted.{name}"), format!("{planted} steps, {num_named} culprits named"));
    }
    Ok(told)
}

/// The loss that a run ends with in which there was no number at a step, and whether its culprit was named.
fn plant(
    ramp: &Ramp,
    device: &Device,
    clock: &Arc<dyn Clock>,
    eager: &mut Eager,
    (place, step): (Place, u64),
) -> Result<(f64, bool), Broken> {
    let recovery = RecoveryConfig {
        memory_mib: 64,
        every_steps: const { NonZeroU64::new(8).unwrap() },
        max_skipped: NonZeroU64::MIN,
        // What was planted passes: nothing is to be learned more slowly for it.
        rate_factor: 1.0,
        ..RecoveryConfig::default()
    };
    let mut run = Run::new(ramp, device, clock, recovery, 3)?;
    run.to(eager, Some(step))?;
    let model = run.trainer.seeds().model();
    let culprit = match place {
        Place::Data => {
            let good = run.inputs.copy()?;
            overwrite(&run.inputs, &(&run.inputs * f64::NAN)?)?;
            run.to(eager, Some(step + 1))?;
            overwrite(&run.inputs, &good)?;
            "training sample".to_owned()
        }
        Place::Host => {
            let of_host = |(_, segment): &(_, &leyline::layout::Segment)| segment.spec.owner == Owner::Host;
            let parameters = model.parameters().iter().zip(model.layout().segments());
            let (parameter, _) = parameters.into_iter().find(of_host).expect("a host has parameters");
            parameter.var.set(&(parameter.var.as_tensor() * f64::NAN)?)?;
            format!("parameter `{}`", parameter.name)
        }
        Place::Seed => {
            let seed = model.layout().segments().iter().find_map(|segment| match segment.spec.owner {
                Owner::Seed(seed) => Some(seed),
                Owner::Host => None,
            });
            let seed = seed.ok_or_else(|| Broken(format!("there is no seed at step {step}")))?;
            for parameter in run.trainer.seeds().seed_parameters(seed).into_iter().flatten() {
                parameter.var.set(&(parameter.var.as_tensor() * f64::NAN)?)?;
            }
            seed.to_string()
        }
        Place::Kernel => {
            overwrite(&run.factor, &(&run.factor * f64::NAN)?)?;
            "the loss".to_owned()
        }
    };
    run.finish(eager)?;
    let named = run.events.0.lock().unwrap_or_else(PoisonError::into_inner);
    Ok((run.loss, named.len() == 1 && named[0].starts_with(&culprit)))
}

fn overwrite(tensor: &Tensor, with: &Tensor) -> Result<(), Broken> {
    Ok(tensor.slice_set(&with.contiguous()?, 0, 0)?)
}

/// A run of which all is noted that matters here.
struct Run {
    trainer: RampTrainer,
    /// Of the training data, which the trainer shares.
    inputs: Tensor,
    events: Arc<Culprits>,
    /// What every loss is multiplied by, on the device.
    factor: Tensor,
    loss: f64,
}

impl Run {
    fn new(
        ramp: &Ramp,
        device: &Device,
        clock: &Arc<dyn Clock>,
        recovery: RecoveryConfig,
        seed: u64,
    ) -> Result<Self, Broken> {
        let events = Arc::new(Culprits::default());
        let factor = Tensor::ones(1, DType::F32, device)?;
        let task = Arc::new(Scaled { task: Classification::new(CLASSES), factor: factor.clone() });
        let parts = Parts { seed, task, ..ramp.parts(device, clock, Arc::clone(&events) as _)? };
        let inputs = parts.data.train.inputs().expect("samples in memory").clone();
        let trainer = Trainer::new(Ramp::config(ExecutionConfig::default(), recovery), parts)?;
        Ok(Self { trainer, inputs, events, factor, loss: f64::NAN })
    }

    fn to(&mut self, eager: &mut Eager, stop: Option<u64>) -> Result<Outcome, Broken> {
        let mut losses = Losses { stop, last: self.loss, factor: self.factor.clone() };
        let outcome = self.trainer.run(eager, &mut losses)?;
        self.loss = losses.last;
        Ok(outcome)
    }

    fn finish(&mut self, eager: &mut Eager) -> Result<(), Broken> {
        let outcome = self.to(eager, None)?;
        promise(outcome == Outcome::Completed, || format!("the run ended as {outcome:?}"))
    }
}

struct Losses {
    stop: Option<u64>,
    last: f64,
    factor: Tensor,
}

impl Observer for Losses {
    fn step(&mut self, report: &StepReport<'_>) -> Flow {
        if self.stop == Some(report.step.0) { Flow::Stop } else { Flow::Continue }
    }

    fn epoch_finished(&mut self, report: &EpochReport) -> Result<(), BoxError> {
        self.last = report.train.as_ref().map_or(f64::NAN, |train| train.loss);
        Ok(())
    }

    fn event(&mut self, event: &RunEvent<'_>) {
        if let RunEvent::RolledBack { .. } = event {
            // What the kernel did wrong passes.
            let healed = self.factor.ones_like().and_then(|one| self.factor.slice_set(&one, 0, 0));
            healed.expect("a device that trains can copy a number");
        }
    }
}

/// A task whose last kernel can be made to give no numbers.
#[derive(Debug)]
struct Scaled {
    task: Classification,
    factor: Tensor,
}

impl Task for Scaled {
    fn describe(&self) -> String {
        self.task.describe()
    }

    fn losses(&self, outputs: &Tensor, targets: &Tensor) -> candle_core::Result<Tensor> {
        self.task.losses(outputs, targets)?.broadcast_mul(&self.factor)
    }

    fn mean_loss(&self, outputs: &Tensor, targets: &Tensor) -> candle_core::Result<Tensor> {
        self.task.mean_loss(outputs, targets)? * self.factor.squeeze(0)?
    }

    fn hits(&self, outputs: &Tensor, targets: &Tensor) -> candle_core::Result<Option<Tensor>> {
        self.task.hits(outputs, targets)
    }

    fn tensors(&self) -> Vec<Tensor> {
        vec![self.factor.clone()]
    }

    fn check_targets(&self, targets: &Tensor) -> candle_core::Result<()> {
        self.task.check_targets(targets)
    }
}

/// Notes who was named.
#[derive(Debug, Default)]
struct Culprits(Mutex<Vec<String>>);

impl Recorder for Culprits {
    fn gauge(&self, desc: &'static MetricDesc, labels: &[&str]) -> Gauge {
        NullRecorder.gauge(desc, labels)
    }

    fn counter(&self, desc: &'static MetricDesc, labels: &[&str]) -> Counter {
        NullRecorder.counter(desc, labels)
    }

    fn event(&self, event: Event) {
        if event.desc.name == tolaria::telemetry::DIVERGED.name {
            let culprit = event.attributes.into_iter().find(|(name, _)| *name == "culprit");
            self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(culprit.map(|(_, value)| value));
        }
    }

    fn publish(&self, _boundary: Boundary) {}
}

#[cfg(test)]
mod tests {
    use leyline::clock::SystemClock;

    use super::*;

    #[test]
    fn what_is_planted_is_named_and_leaves_the_loss_of_a_run_without() {
        let (mut eager, clock) = (Eager::acquire().unwrap(), Arc::new(SystemClock::default()) as Arc<dyn Clock>);
        let mut measured = Samples::default();
        let told = run([4, 8], &Device::Cpu, &clock, &mut eager, &mut measured);
        assert_eq!(told.map_err(|Broken(text)| text).unwrap().len(), PLACES.len());
    }
}
