//! The audit of one batch.

use std::collections::{BTreeMap, BTreeSet};

use candle_core::backprop::GradStore;
use candle_core::{DType, Tensor};
use leyline::batch::Batch;
use leyline::id::SeedId;
use leyline::layout::Owner;
use leyline::model::{Outputs, Parameter, Pass, TrainableModel};
use leyline::task::Task;

use crate::error::Error;
use crate::graft::{Graft, GraftedModel};
use crate::isolation::Violation;
use crate::isolation::comparison::Comparison;
use crate::weight::WeightSet;

/// A network whose isolation can be audited.
pub trait Audited: TrainableModel<Error = Error> {
    /// The tensors of every seed in the network with its id, in whatever stage: also those that are not in the layout.
    fn seed_tensors(&self) -> Vec<(SeedId, Parameter)>;
}

impl Audited for GraftedModel {
    fn seed_tensors(&self) -> Vec<(SeedId, Parameter)> {
        let of = |graft: &Graft| -> Vec<(SeedId, Parameter)> {
            graft.weights().flat_map(WeightSet::parameters).map(|parameter| (graft.seed, parameter.clone())).collect()
        };
        self.grafts().flat_map(of).collect()
    }
}

/// Compares `with`, a network with seeds in shadow training, with `without`, the same network without them.
///
/// Both must share their other parameters. The loss is the task's, its mean over the samples. What has to be read
/// from the device comes last in the list.
///
/// # Errors
/// When a forward or backward pass fails.
/// # Sync
/// One device-to-host copy.
pub fn audit<W, O>(with: &W, without: &O, batch: &Batch, task: &dyn Task) -> Result<Vec<Violation>, Error>
where
    W: Audited,
    O: TrainableModel<Error = Error>,
{
    audit_watching(with, without, &with.seed_tensors(), (batch, task))
}

/// As [`audit`], with these tensors of seeds watched beside the parameters of `with`, whether or not `with` has the seeds.
pub(super) fn audit_watching<W, O>(
    with: &W,
    without: &O,
    seed_tensors: &[(SeedId, Parameter)],
    (batch, task): (&Batch, &dyn Task),
) -> Result<Vec<Violation>, Error>
where
    W: TrainableModel<Error = Error>,
    O: TrainableModel<Error = Error>,
{
    let entries = entries(with, seed_tensors);
    // The reference goes first: what a seed writes in its pass must not be in it.
    let before: Vec<Tensor> =
        entries.iter().map(|entry| entry.parameter.var.as_detached_tensor().copy()).collect::<Result<_, _>>()?;
    let reference = without.forward(&batch.inputs, Pass::Train)?;
    let expected = loss(task, &reference.logits, &batch.targets)?.backward()?;

    let outputs = with.forward(&batch.inputs, Pass::Train)?;
    let gradients = loss(task, &outputs.logits, &batch.targets)?.backward()?;
    let mut violations = Vec::new();
    shared_storage(&entries, &mut violations);
    main_loss(&entries, &gradients, &expected, &mut violations);
    side_losses(&entries, &outputs, (batch, task), &mut violations)?;

    let mut comparison = Comparison::new();
    comparison.add(Subject::Output, Some(&outputs.logits), Some(&reference.logits))?;
    compare_parameters(&entries, (&gradients, &expected), &before, &mut comparison)?;
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

/// A parameter of the network or of a seed.
struct Entry<'a> {
    parameter: &'a Parameter,
    owner: Owner,
    trained: Trained,
}

/// What trains a parameter now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trained {
    /// The main loss.
    ByMain,
    /// The side loss of its seed.
    BySide,
    /// Nothing: it is not in the layout.
    Not,
}

impl Entry<'_> {
    /// The seed whose it is, unless it trains on the main loss and is part of the network like the host.
    fn apart(&self) -> Option<SeedId> {
        match (self.owner, self.trained) {
            (Owner::Seed(seed), Trained::BySide | Trained::Not) => Some(seed),
            (Owner::Host, _) | (_, Trained::ByMain) => None,
        }
    }
}

/// The parameters of the layout, then those tensors of seeds that have no place in it.
fn entries<'a, W: TrainableModel>(with: &'a W, seed_tensors: &'a [(SeedId, Parameter)]) -> Vec<Entry<'a>> {
    let segments = with.layout().segments().iter();
    let listed = with.parameters().iter().zip(segments).map(|(parameter, segment)| {
        let trained = if segment.spec.isolated { Trained::BySide } else { Trained::ByMain };
        Entry { parameter, owner: segment.spec.owner, trained }
    });
    let names: BTreeSet<&str> = with.parameters().iter().map(|parameter| parameter.name.as_str()).collect();
    let others = seed_tensors.iter().filter(|(_, parameter)| !names.contains(parameter.name.as_str()));
    let others = others.map(|(seed, parameter)| Entry { parameter, owner: Owner::Seed(*seed), trained: Trained::Not });
    listed.chain(others).collect()
}

fn loss(task: &dyn Task, logits: &Tensor, targets: &Tensor) -> candle_core::Result<Tensor> {
    task.mean_loss(&logits.to_dtype(DType::F32)?, targets)
}

/// Seeds whose tensors the main loss must not reach. Where it does so only beside the seeds in the shadow, a tensor that
/// does not train is no fault of its own seed: the comparison of gradients finds it.
fn main_loss(entries: &[Entry<'_>], gradients: &GradStore, expected: &GradStore, violations: &mut Vec<Violation>) {
    for entry in entries {
        let Some(seed) = entry.apart() else { continue };
        let found = if entry.trained == Trained::Not { expected } else { gradients };
        if found.get(&entry.parameter.var).is_some() {
            violations.push(Violation::MainLossReachesSeed { seed, parameter: entry.parameter.name.clone() });
        }
    }
}

fn compare_parameters(
    entries: &[Entry<'_>],
    (gradients, expected): (&GradStore, &GradStore),
    before: &[Tensor],
    comparison: &mut Comparison<Subject>,
) -> candle_core::Result<()> {
    for (entry, before) in entries.iter().zip(before) {
        let Parameter { name, var } = entry.parameter;
        if entry.trained != Trained::BySide {
            comparison.add(Subject::Gradient(name.clone()), gradients.get(var), expected.get(var))?;
        }
        comparison.add(Subject::Value(name.clone()), Some(&var.as_detached_tensor()), Some(before))?;
    }
    Ok(())
}

/// Where the tensor library keeps the storage of a tensor on the host: the same number for a tensor, its clones and its
/// views. Two storages over one piece of device memory have two.
fn storage_address(tensor: &Tensor) -> usize {
    let (storage, _) = tensor.storage_and_layout();
    std::ptr::from_ref(&*storage).addr()
}

fn shared_storage(entries: &[Entry<'_>], violations: &mut Vec<Violation>) {
    let mut at: BTreeMap<usize, Vec<&Entry<'_>>> = BTreeMap::new();
    for entry in entries {
        at.entry(storage_address(&entry.parameter.var)).or_default().push(entry);
    }
    for entries in at.values().filter(|entries| entries.len() > 1) {
        for (index, entry) in entries.iter().enumerate() {
            if let Some(seed) = entry.apart() {
                let other = &entries[if index == 0 { 1 } else { 0 }].parameter.name;
                let parameter = entry.parameter.name.clone();
                violations.push(Violation::SharedStorage { seed, parameter, other: other.clone() });
            }
        }
    }
}

fn side_losses(
    entries: &[Entry<'_>],
    outputs: &Outputs,
    (batch, task): (&Batch, &dyn Task),
    violations: &mut Vec<Violation>,
) -> candle_core::Result<()> {
    for shadow in &outputs.shadows {
        let gradients = loss(task, &shadow.logits, &shadow.targets(&batch.targets)?)?.backward()?;
        for entry in entries {
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
    for entry in entries.iter().filter(|entry| entry.trained == Trained::BySide) {
        if let Owner::Seed(seed) = entry.owner
            && outputs.shadows.iter().all(|shadow| shadow.seed != seed)
        {
            violations.push(Violation::SideLossMissesSeed { seed, parameter: entry.parameter.name.clone() });
        }
    }
    Ok(())
}
