//! Evaluations that are repeated on a GPU, as graphs.
//!
//! An evaluation is one region: all passes over all batches. Parameters and data stay where they are, so that there is
//! nothing to load before a replay. Only models whose numbers on the host do not move are recorded: their graphs need no
//! test before what they found is acted on, as those of their steps ([`esper_graph::execute`], decision 15).

use std::num::{NonZeroU32, NonZeroUsize};

use candle_core::{Tensor, Var};
use esper_graph::execute::{self, Executor, ExecutorConfig, Failure, Gpu, Watch};
use esper_graph::{ExecutionMode, GraphKey, GraphManager, Precision, Refusal};
use leyline::id::{SeedId, StepIndex, TopologyRevision};
use leyline::model::{HostNumbers, TrainableModel};
use leyline::network::Buffer;
use leyline::region::{Eager, Recording};

use crate::error::{self, Error};
use crate::host_read::HostReads;
use crate::trainer::evaluate::{Evaluation, HeldOut, Probe, Rows, evaluate};

/// Longer evaluations run eagerly: the nodes of a graph grow with its batches.
const MAX_BATCHES: usize = 64;
/// Kept at a time: with and without probes, and some of the probes before.
const LIMIT: NonZeroUsize = NonZeroUsize::new(4).expect("above 0");

/// What tells evaluations of one trainer apart.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct EvaluationShape {
    topology: TopologyRevision,
    precision: Precision,
    num_samples: usize,
    /// Seeds with the bits of their alpha, in their order.
    probes: Vec<(SeedId, u64)>,
}

/// Where an evaluation leaves what it found: [`Rows::per_sample`].
#[derive(Debug)]
struct Found(Var);

/// The evaluations of a trainer.
#[derive(Debug)]
pub(super) struct Evaluations {
    graphs: Executor<EvaluationShape, Found>,
    gpu: Gpu,
}

/// What is evaluated.
#[derive(Debug)]
pub(super) struct Evaluated<'a, M> {
    pub(super) model: &'a M,
    /// What the model changes by itself in training, and reads here.
    pub(super) statistics: &'a [Buffer],
    pub(super) held_out: HeldOut<'a>,
    pub(super) probes: &'a [Probe],
}

impl Evaluations {
    /// `gpu` is for them alone: it measures replays.
    pub(super) fn new(gpu: Gpu, is_on: bool) -> Self {
        let config = ExecutorConfig {
            is_on,
            warm_up: NonZeroU32::MIN,
            compile: None,
            limit: LIMIT,
            max_failures: None,
            keeps_shapes: true,
        };
        Self { graphs: Executor::new(config, &GraphManager::global()), gpu }
    }

    /// As [`evaluate`]: the first time eagerly, then recorded, and replayed from the third time on.
    ///
    /// # Errors
    /// Those of [`evaluate`]; what was found to be wrong of earlier ones.
    pub(super) fn evaluate<M: TrainableModel>(
        &mut self,
        eager: &mut Eager,
        step: StepIndex,
        mut evaluated: Evaluated<'_, M>,
        reads: &mut HostReads,
    ) -> Result<Evaluation, Failure<Error>> {
        let (held_out, probes) = (evaluated.held_out, evaluated.probes);
        if !evaluated.can_be_recorded() {
            return evaluate(eager, evaluated.model, &held_out, probes, reads).map_err(Failure::Region);
        }
        let shape = evaluated.shape();
        if !self.graphs.knows(&shape) {
            return self.first(eager, &evaluated, &shape, reads).map_err(Failure::Region);
        }
        self.graphs.step(&mut self.gpu, eager, (&shape, step.0), &mut evaluated, &mut Warning)?;
        let found = self.graphs.inputs_of(&shape).expect("a shape is known after its step");
        found.rows().read(&held_out, probes, reads).map_err(Failure::Region)
    }

    /// The first evaluation of a shape, which shows what there is to keep.
    fn first<M: TrainableModel>(
        &mut self,
        eager: &Eager,
        evaluated: &Evaluated<'_, M>,
        shape: &EvaluationShape,
        reads: &mut HostReads,
    ) -> Result<Evaluation, Error> {
        eager.check()?;
        let rows = Rows::of(evaluated.model, &evaluated.held_out, evaluated.probes)?;
        self.graphs.inputs(shape, || Ok::<_, Error>((evaluated.key(shape), Found::like(&rows)?)))?;
        rows.read(&evaluated.held_out, evaluated.probes, reads)
    }

    /// Whether anything is recorded and replayed from now on.
    pub(super) fn set_on(&mut self, is_on: bool) {
        self.graphs.set_on(is_on);
    }

    /// Lets go of all graphs: what they point at was replaced.
    pub(super) fn clear(&mut self) {
        self.graphs.clear();
    }

    /// Replays so far.
    pub(super) fn num_replays(&self) -> u64 {
        self.graphs.stats().total.replays
    }

    /// Why the last that could not be recorded could not.
    pub(super) fn last_refusal(&self) -> Option<&Refusal> {
        self.graphs.last_refusal()
    }
}

/// Says why evaluations run eagerly.
struct Warning;

impl Watch for Warning {
    fn refused(&mut self, refusal: &Refusal, _num_failures: u32) {
        tracing::warn!(reason = refusal.name(), %refusal, "an evaluation is not captured and runs eagerly");
    }
}

impl<M: TrainableModel> Evaluated<'_, M> {
    /// Whether all that it reads stays where it is.
    fn can_be_recorded(&self) -> bool {
        let HeldOut { data, device, batch_size, measures, .. } = self.held_out;
        // Of what a measure reads besides its arguments nobody promises that it stays.
        self.model.host_numbers() == HostNumbers::Fixed
            && measures.is_empty()
            && data.tensors().is_some_and(|(inputs, _)| inputs.device().same_device(device))
            && is_recorded(data.len(), batch_size)
    }

    fn shape(&self) -> EvaluationShape {
        EvaluationShape {
            topology: self.model.layout().revision(),
            precision: Precision::of(self.held_out.device),
            num_samples: self.held_out.data.len(),
            probes: self.probes.iter().map(|probe| (probe.seed, probe.alpha.get().to_bits())).collect(),
        }
    }

    fn key(&self, shape: &EvaluationShape) -> GraphKey {
        let spec = self.held_out.data.spec();
        let dims: Vec<usize> = std::iter::once(shape.num_samples).chain(spec.inputs.dims().iter().copied()).collect();
        GraphKey::new(ExecutionMode::Infer, self.held_out.device)
            .topology(shape.topology)
            .precision(shape.precision)
            .shape(dims, spec.inputs.dtype())
            .tag("probes", format!("{:?}", shape.probes))
    }

    fn named(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        let data = self.held_out.data.tensors().into_iter();
        let data = data.flat_map(|(inputs, targets)| [("held-out inputs", inputs), ("held-out targets", targets)]);
        let parameters = self.model.parameters().iter();
        parameters.map(|parameter| (parameter.name.as_str(), parameter.var.as_tensor())).chain(data)
    }
}

impl<M: TrainableModel> execute::Region<Found> for Evaluated<'_, M> {
    type Error = Error;

    fn run(&mut self, _recording: &Recording, found: &Found) -> Result<(), Error> {
        found.store(&Rows::of(self.model, &self.held_out, self.probes)?)
    }

    fn told(error: &Error) -> (String, Option<Refusal>) {
        (error::chain(error), None)
    }

    fn parameters(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.named()
    }

    fn held(&self, found: &Found) -> Vec<(String, Tensor)> {
        let mut held: Vec<(String, Tensor)> =
            self.named().map(|(name, tensor)| (name.to_owned(), tensor.clone())).collect();
        held.extend(self.statistics.iter().map(|(name, statistic)| (name.clone(), statistic.as_tensor().clone())));
        held.extend(self.held_out.task.tensors().into_iter().map(|tensor| ("a tensor of the task".to_owned(), tensor)));
        held.push(("what an evaluation found".to_owned(), found.0.as_tensor().clone()));
        held
    }

    fn promise(&self) -> HostNumbers {
        self.model.host_numbers()
    }
}

fn is_recorded(num_samples: usize, batch_size: usize) -> bool {
    (1..=MAX_BATCHES).contains(&num_samples.div_ceil(batch_size))
}

impl Found {
    /// Places for what the same evaluation finds again.
    fn like(rows: &Rows) -> Result<Self, Error> {
        let found = &rows.per_sample;
        Ok(Self(Var::zeros(found.shape(), found.dtype(), found.device())?))
    }

    fn store(&self, rows: &Rows) -> Result<(), Error> {
        Ok(self.0.set(&rows.per_sample)?)
    }

    fn rows(&self) -> Rows {
        Rows { per_sample: self.0.as_detached_tensor(), counts: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use crate::host_read::read_vec;

    #[test]
    fn what_is_kept_is_what_the_last_evaluation_found() {
        let rows = |losses: &[f32]| Rows { per_sample: Tensor::new(losses, &Device::Cpu).unwrap(), counts: Vec::new() };
        let found = Found::like(&rows(&[1.0, 2.0])).unwrap();
        found.store(&rows(&[0.5, 0.25])).unwrap();
        let kept = read_vec(&found.rows().per_sample, "test", &mut HostReads::default()).unwrap();
        assert_eq!(kept, [0.5, 0.25]);
        found.store(&rows(&[1.0, 2.0, 3.0])).unwrap_err();
    }

    #[test]
    fn an_evaluation_of_no_sample_or_of_too_many_batches_is_not_recorded() {
        let cases = [(0, 8, false), (1, 8, true), (8 * MAX_BATCHES, 8, true), (8 * MAX_BATCHES + 1, 8, false)];
        for (num_samples, batch_size, expected) in cases {
            assert_eq!(is_recorded(num_samples, batch_size), expected, "{num_samples} by {batch_size}");
        }
    }
}
