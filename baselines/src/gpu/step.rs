//! A training step written out by hand: forward pass, cross-entropy, backward pass, SGD.

use candle_core::{DType, Device, Tensor, Var};
use esper_graph::Refusal;
use leyline::batch::Batch;
use leyline::model::TrainableModel as _;
use tolaria::host_read::{HostReads, read_scalar};

use crate::error::Error;
use crate::models::Workload;

/// Large enough that every step moves the loss by more than [`check_loss`] tolerates.
const LEARNING_RATE: f64 = 0.1;
/// Relative. Sums over scattered indices have no fixed order on the GPU.
const TOLERANCE: f64 = 1e-3;

/// A network with its batch in static buffers. [`TrainingStep::run`] is device work only and leaves no tensor behind.
#[derive(Debug)]
pub(crate) struct TrainingStep {
    work: Workload,
    batch: Batch,
    loss: Var,
}

impl TrainingStep {
    /// The work of a name with weights from a fixed seed: every step of that name starts from the same bits.
    pub(crate) fn new(name: &str, device: &Device) -> Result<Self, Error> {
        let work = Workload::named(name, 0, device)?;
        let Batch { inputs, targets } = work.batch(0)?;
        let batch = Batch { inputs: inputs.copy()?, targets: targets.copy()? };
        let loss = Var::zeros((), DType::F32, device)?;
        Ok(Self { work, batch, loss })
    }

    /// One step; the loss before it goes into a static buffer.
    pub(crate) fn run(&self) -> Result<(), Error> {
        let loss = self.work.loss(&self.batch)?;
        let gradients = loss.backward()?;
        for parameter in self.work.model.parameters() {
            let Some(gradient) = gradients.get(&parameter.var) else {
                let source = Refusal::MissingGradient { name: parameter.name.to_string() };
                return Err(Error::Refused { what: format!("the step of {}", self.work.name), source });
            };
            let update = (gradient * LEARNING_RATE)?;
            parameter.var.set(&(parameter.var.as_detached_tensor() - update)?)?;
        }
        self.loss.set(&loss.detach())?;
        Ok(())
    }

    /// Loss before the last step. Waits for the device.
    pub(crate) fn last_loss(&self) -> Result<f64, Error> {
        Ok(read_scalar(self.loss.as_tensor(), "bench_loss", &mut HostReads::default())?)
    }

    /// What a graph of the step must keep alive.
    pub(crate) fn held(&self) -> impl Iterator<Item = (String, &Tensor)> {
        let parameters = self.work.model.parameters();
        let parameters = parameters.iter().map(|parameter| (parameter.name.to_string(), parameter.var.as_tensor()));
        let buffers =
            [("inputs", &self.batch.inputs), ("targets", &self.batch.targets), ("loss", self.loss.as_tensor())];
        parameters.chain(buffers.map(|(name, tensor)| (name.to_owned(), tensor)))
    }
}

/// Loss before each of `count` eager steps: what replays must reproduce.
pub(crate) fn eager_losses(name: &str, count: usize, device: &Device) -> Result<Vec<f64>, Error> {
    let step = TrainingStep::new(name, device)?;
    let loss = |_| {
        step.run()?;
        step.last_loss()
    };
    (0..count).map(loss).collect()
}

/// Confirms a loss.
pub(crate) fn check_loss(what: &str, expected: f64, found: f64) -> Result<(), Error> {
    // Not the other way round, so that a loss which is no number fails.
    if (found - expected).abs() <= TOLERANCE * expected.abs() {
        return Ok(());
    }
    Err(Error::WrongResult { what: format!("the loss of {what}"), expected, found })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_moves_the_loss_by_more_than_is_tolerated() {
        for (name, count) in [("ref", 6), ("mlp", 4)] {
            let losses = eager_losses(name, count, &Device::Cpu).unwrap();
            for pair in losses.windows(2) {
                assert!(pair[1] < pair[0], "{name}: {losses:?}");
                assert!(check_loss(name, pair[1], pair[0]).is_err(), "{name}: {losses:?}");
            }
            assert!(check_loss(name, losses[0], losses[0]).is_ok());
            assert!(check_loss(name, losses[0], f64::NAN).is_err());
        }
    }

    #[test]
    fn what_a_graph_must_hold_has_a_name_each() {
        let step = TrainingStep::new("ref", &Device::Cpu).unwrap();
        let names: Vec<String> = step.held().map(|(name, _)| name).collect();
        assert_eq!(names, ["linear.bias", "linear.weight", "inputs", "targets", "loss"]);
    }
}
