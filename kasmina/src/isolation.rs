//! The isolation audit: shadow training must not touch the host. It compares, and therefore it can fail.
//!
//! The same batch runs through the network with and without the seeds in shadow training. The answers and every
//! gradient of the main loss must agree bit for bit, no loss may reach parameters that are not its own, and every
//! parameter of a seed must be reached by its side loss.

use std::fmt;

use candle_core::backprop::GradStore;
use candle_core::{Tensor, Var};
use candle_nn::loss::cross_entropy;
use leyline::batch::Batch;
use leyline::id::SeedId;
use leyline::layout::Owner;
use leyline::model::{Outputs, Pass, TrainableModel};

use crate::error::Error;
use crate::host_read::read_f32;

/// A way in which isolation is broken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Violation {
    /// The network answers differently with the seeds in shadow training.
    OutputDiffers,
    /// The main loss has another gradient with them.
    GradientDiffers {
        /// The parameter.
        parameter: String,
    },
    /// The main loss reaches a parameter of a seed in shadow training.
    MainLossReachesSeed {
        /// The parameter.
        parameter: String,
    },
    /// A side loss reaches a parameter of somebody else.
    SideLossReachesOther {
        /// The seed whose side loss it is.
        seed: SeedId,
        /// The parameter.
        parameter: String,
    },
    /// A side loss does not reach a parameter of its own seed.
    SideLossMissesSeed {
        /// The seed.
        seed: SeedId,
        /// The parameter.
        parameter: String,
    },
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutputDiffers => f.write_str("the answer differs"),
            Self::GradientDiffers { parameter } => write!(f, "the gradient of {parameter} differs"),
            Self::MainLossReachesSeed { parameter } => write!(f, "the main loss reaches {parameter}"),
            Self::SideLossReachesOther { seed, parameter } => write!(f, "the side loss of {seed} reaches {parameter}"),
            Self::SideLossMissesSeed { seed, parameter } => write!(f, "the side loss of {seed} misses {parameter}"),
        }
    }
}

/// Compares `with`, a network with seeds in shadow training, with `without`, the same network without them.
///
/// Both must share their other parameters. The loss is the mean cross-entropy, nats per sample.
///
/// # Errors
/// When a forward or backward pass fails.
/// # Sync
/// Two device-to-host copies, and two for each parameter outside shadow training.
pub fn audit<W, O>(with: &W, without: &O, batch: &Batch) -> Result<Vec<Violation>, Error>
where
    W: TrainableModel<Error = Error>,
    O: TrainableModel<Error = Error>,
{
    let outputs = with.forward(&batch.inputs, Pass::Train)?;
    let reference = without.forward(&batch.inputs, Pass::Train)?;
    let mut violations = Vec::new();
    if !same_bits(&outputs.logits, &reference.logits)? {
        violations.push(Violation::OutputDiffers);
    }
    let gradients = cross_entropy(&outputs.logits, &batch.targets)?.backward()?;
    let expected = cross_entropy(&reference.logits, &batch.targets)?.backward()?;
    for (var, name, isolated, _) in entries(with) {
        if isolated {
            if gradients.get(var).is_some() {
                violations.push(Violation::MainLossReachesSeed { parameter: name.to_owned() });
            }
        } else if !same_gradient(&gradients, &expected, var)? {
            violations.push(Violation::GradientDiffers { parameter: name.to_owned() });
        }
    }
    audit_side_losses(with, &outputs, batch, &mut violations)?;
    Ok(violations)
}

fn audit_side_losses<W: TrainableModel>(
    with: &W,
    outputs: &Outputs,
    batch: &Batch,
    violations: &mut Vec<Violation>,
) -> Result<(), Error> {
    for shadow in &outputs.shadows {
        let gradients = cross_entropy(&shadow.logits, &batch.targets)?.backward()?;
        for (var, name, _, owner) in entries(with) {
            let (seed, parameter) = (shadow.seed, name.to_owned());
            match (owner == Owner::Seed(seed), gradients.get(var).is_some()) {
                (true, false) => violations.push(Violation::SideLossMissesSeed { seed, parameter }),
                (false, true) => violations.push(Violation::SideLossReachesOther { seed, parameter }),
                (true, true) | (false, false) => {}
            }
        }
    }
    // A seed that is isolated and has no side loss at all does not learn either.
    for segment in with.layout().segments().iter().filter(|segment| segment.spec.isolated) {
        if let Owner::Seed(seed) = segment.spec.owner
            && outputs.shadows.iter().all(|shadow| shadow.seed != seed)
        {
            violations.push(Violation::SideLossMissesSeed { seed, parameter: segment.spec.name.clone() });
        }
    }
    Ok(())
}

fn entries<M: TrainableModel>(model: &M) -> impl Iterator<Item = (&Var, &str, bool, Owner)> {
    let segments = model.layout().segments().iter();
    model.parameters().iter().zip(segments).map(|(parameter, segment)| {
        (&parameter.var, parameter.name.as_str(), segment.spec.isolated, segment.spec.owner)
    })
}

fn same_gradient(found: &GradStore, expected: &GradStore, var: &Var) -> Result<bool, Error> {
    match (found.get(var), expected.get(var)) {
        (Some(found), Some(expected)) => same_bits(found, expected),
        (None, None) => Ok(true),
        (Some(_), None) | (None, Some(_)) => Ok(false),
    }
}

fn same_bits(a: &Tensor, b: &Tensor) -> Result<bool, Error> {
    let (a, b) = (read_f32(a)?, read_f32(b)?);
    Ok(a.len() == b.len() && a.iter().zip(&b).all(|(a, b)| a.to_bits() == b.to_bits()))
}
