//! The audit of one batch.

use std::collections::BTreeMap;

use candle_core::backprop::GradStore;
use candle_core::{DType, Tensor};
use candle_nn::loss::cross_entropy;
use leyline::batch::Batch;
use leyline::layout::Owner;
use leyline::model::{Outputs, Parameter, Pass, TrainableModel};

use crate::error::Error;
use crate::isolation::Violation;
use crate::isolation::comparison::Comparison;

/// Compares `with`, a network with seeds in shadow training, with `without`, the same network without them.
///
/// Both must share their other parameters. The loss is the mean cross-entropy, nats per sample. What has to be read
/// from the device comes last in the list.
///
/// # Errors
/// When a forward or backward pass fails.
/// # Sync
/// One device-to-host copy.
pub fn audit<W, O>(with: &W, without: &O, batch: &Batch) -> Result<Vec<Violation>, Error>
where
    W: TrainableModel<Error = Error>,
    O: TrainableModel<Error = Error>,
{
    // The reference goes first: what a seed writes in its pass must not be in it.
    let before: Vec<Tensor> = with
        .entries()
        .filter(|entry| !entry.isolated)
        .map(|entry| entry.parameter.var.as_detached_tensor().copy())
        .collect::<Result<_, _>>()?;
    let reference = without.forward(&batch.inputs, Pass::Train)?;
    let expected = loss(&reference.logits, batch)?.backward()?;

    let outputs = with.forward(&batch.inputs, Pass::Train)?;
    let gradients = loss(&outputs.logits, batch)?.backward()?;
    let mut violations = Vec::new();
    shared_storage(with, &mut violations);
    for entry in with.entries().filter(|entry| entry.isolated) {
        if let Owner::Seed(seed) = entry.owner
            && gradients.get(&entry.parameter.var).is_some()
        {
            violations.push(Violation::MainLossReachesSeed { seed, parameter: entry.parameter.name.clone() });
        }
    }
    side_losses(with, &outputs, batch, &mut violations)?;

    let mut comparison = Comparison::new();
    comparison.add(Subject::Output, Some(&outputs.logits), Some(&reference.logits))?;
    compare_parameters(with, (&gradients, &expected), &before, &mut comparison)?;
    violations.extend(comparison.differing()?.into_iter().map(|(subject, count)| subject.violation(count)));
    Ok(violations)
}

/// What is compared element by element.
#[derive(Debug)]
enum Subject {
    Output,
    Gradient(String),
    Value(String),
}

impl Subject {
    fn violation(self, num_differing: u64) -> Violation {
        match self {
            Self::Output => Violation::OutputDiffers { num_differing },
            Self::Gradient(parameter) => Violation::GradientDiffers { parameter, num_differing },
            Self::Value(parameter) => Violation::ParameterWritten { parameter, num_differing },
        }
    }
}

/// A parameter with its place in the layout.
struct Entry<'a> {
    parameter: &'a Parameter,
    owner: Owner,
    isolated: bool,
}

trait Entries {
    fn entries(&self) -> impl Iterator<Item = Entry<'_>>;
}

impl<M: TrainableModel> Entries for M {
    fn entries(&self) -> impl Iterator<Item = Entry<'_>> {
        let segments = self.layout().segments().iter();
        self.parameters().iter().zip(segments).map(|(parameter, segment)| Entry {
            parameter,
            owner: segment.spec.owner,
            isolated: segment.spec.isolated,
        })
    }
}

fn loss(logits: &Tensor, batch: &Batch) -> candle_core::Result<Tensor> {
    cross_entropy(&logits.to_dtype(DType::F32)?, &batch.targets)
}

fn compare_parameters<W: TrainableModel>(
    with: &W,
    (gradients, expected): (&GradStore, &GradStore),
    before: &[Tensor],
    comparison: &mut Comparison<Subject>,
) -> candle_core::Result<()> {
    for (entry, before) in with.entries().filter(|entry| !entry.isolated).zip(before) {
        let Parameter { name, var } = entry.parameter;
        comparison.add(Subject::Gradient(name.clone()), gradients.get(var), expected.get(var))?;
        comparison.add(Subject::Value(name.clone()), Some(&var.as_detached_tensor()), Some(before))?;
    }
    Ok(())
}

/// Where a tensor's memory begins: the same number for all tensors in one allocation.
fn storage_address(tensor: &Tensor) -> usize {
    let (storage, _) = tensor.storage_and_layout();
    std::ptr::from_ref(&*storage).addr()
}

fn shared_storage<W: TrainableModel>(with: &W, violations: &mut Vec<Violation>) {
    let mut at: BTreeMap<usize, Vec<Entry<'_>>> = BTreeMap::new();
    for entry in with.entries() {
        at.entry(storage_address(&entry.parameter.var)).or_default().push(entry);
    }
    for entries in at.values().filter(|entries| entries.len() > 1) {
        for (index, entry) in entries.iter().enumerate() {
            if let (Owner::Seed(seed), true) = (entry.owner, entry.isolated) {
                let other = &entries[if index == 0 { 1 } else { 0 }].parameter.name;
                let parameter = entry.parameter.name.clone();
                violations.push(Violation::SharedStorage { seed, parameter, other: other.clone() });
            }
        }
    }
}

fn side_losses<W: TrainableModel>(
    with: &W,
    outputs: &Outputs,
    batch: &Batch,
    violations: &mut Vec<Violation>,
) -> candle_core::Result<()> {
    for shadow in &outputs.shadows {
        let gradients = loss(&shadow.logits, batch)?.backward()?;
        for entry in with.entries() {
            let (seed, parameter) = (shadow.seed, &entry.parameter.name);
            match (entry.owner == Owner::Seed(seed), gradients.get(&entry.parameter.var).is_some()) {
                (true, false) => violations.push(Violation::SideLossMissesSeed { seed, parameter: parameter.clone() }),
                (false, true) => {
                    violations.push(Violation::SideLossReachesOther { seed, parameter: parameter.clone() });
                }
                (true, true) | (false, false) => {}
            }
        }
    }
    // A seed that is isolated and has no side loss at all does not learn either.
    for entry in with.entries().filter(|entry| entry.isolated) {
        if let Owner::Seed(seed) = entry.owner
            && outputs.shadows.iter().all(|shadow| shadow.seed != seed)
        {
            violations.push(Violation::SideLossMissesSeed { seed, parameter: entry.parameter.name.clone() });
        }
    }
    Ok(())
}
