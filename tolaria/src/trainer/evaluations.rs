//! Evaluations that are repeated on a GPU, as graphs.
//!
//! An evaluation is one region: all passes over all batches. Parameters and data stay where they are, so that there is
//! nothing to load before a replay. Only models whose numbers on the host do not move are recorded: their graphs need no
//! test before what they found is acted on, as those of their steps ([`esper_graph::execute`], decision 15).

use std::num::{NonZeroU32, NonZeroUsize};

use candle_core::{Tensor, Var};
use esper_graph::execute::{self, Executor, ExecutorConfig, Failure, Gpu, Watch};
use esper_graph::{ExecutionMode, GraphKey, GraphManager, Precision, ProductSwitches, Refusal};
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
    switches: ProductSwitches,
    num_samples: usize,
    /// Seeds with the bits of their alpha, in their order.
    probes: Vec<(SeedId, u64)>,
}

/// Where an evaluation leaves what it found: the tensors of [`Rows`].
#[derive(Debug)]
struct Found {
    per_sample: Var,
    counts: Vec<Var>,
}

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
        self.graphs.step(&mut self.gpu, eager, (&shape, step.0), (&mut evaluated, None), &mut Warning)?;
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
        tracing::warn!(reason = refusal.name(), %refusal, "an evaluation is not replayed and runs eagerly");
    }
}

impl<M: TrainableModel> Evaluated<'_, M> {
    /// Whether all that it reads stays where it is.
    fn can_be_recorded(&self) -> bool {
        let HeldOut { data, device, batch_size, .. } = self.held_out;
        self.model.host_numbers() == HostNumbers::Fixed
            && data.tensors().is_some_and(|(inputs, _)| inputs.device().same_device(device))
            && is_recorded(data.len(), batch_size)
    }

    fn shape(&self) -> EvaluationShape {
        EvaluationShape {
            topology: self.model.layout().revision(),
            precision: Precision::of(self.held_out.device),
            switches: ProductSwitches::of(self.held_out.device),
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
            .switches(shape.switches)
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
        held.extend(found.all().map(|tensor| ("what an evaluation found".to_owned(), tensor.as_tensor().clone())));
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
        let like = |tensor: &Tensor| Var::zeros(tensor.shape(), tensor.dtype(), tensor.device());
        let counts = rows.counts.iter().map(like).collect::<Result<_, _>>()?;
        Ok(Self { per_sample: like(&rows.per_sample)?, counts })
    }

    fn store(&self, rows: &Rows) -> Result<(), Error> {
        self.per_sample.set(&rows.per_sample)?;
        if self.counts.len() != rows.counts.len() {
            let (found, kept) = (rows.counts.len(), self.counts.len());
            return Err(candle_core::Error::Msg(format!("counts of {found} measures where {kept} are kept")).into());
        }
        Ok(self.counts.iter().zip(&rows.counts).try_for_each(|(place, counts)| place.set(counts))?)
    }

    fn rows(&self) -> Rows {
        Rows {
            per_sample: self.per_sample.as_detached_tensor(),
            counts: self.counts.iter().map(Var::as_detached_tensor).collect(),
        }
    }

    fn all(&self) -> impl Iterator<Item = &Var> {
        std::iter::once(&self.per_sample).chain(&self.counts)
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};
    use esper_graph::execute::Region as _;
    use leyline::task::Task as _;

    use super::*;
    use crate::batch::Dataset;
    use crate::plain::PlainModel;
    use crate::task::Flags;
    use crate::trainer::evaluate;

    /// Three samples of two flags each, and a network that is all weight.
    fn flags() -> (Dataset, PlainModel) {
        let tensor = |rows: &[[f32; 2]; 3]| Tensor::new(rows, &Device::Cpu).unwrap();
        let inputs = tensor(&[[1.0, -2.0], [0.5, 0.25], [-1.0, 3.0]]);
        let data = Dataset::new(inputs, tensor(&[[1.0, 0.0], [0.0, 0.0], [1.0, 1.0]])).unwrap();
        let weight = Var::ones((2, 2), DType::F32, &Device::Cpu).unwrap();
        let named = vec![("weight".to_owned(), weight.clone())];
        (data, PlainModel::new(named, move |x: &Tensor| x.matmul(&weight)).unwrap())
    }

    #[test]
    fn what_is_kept_is_what_the_last_evaluation_found_its_measures_too() {
        let (data, model) = flags();
        let model = model.with_host_numbers(HostNumbers::Fixed);
        let task = Flags::new(2);
        let held_out =
            HeldOut { data: &data, device: &Device::Cpu, batch_size: 2, task: &task, measures: task.measures() };
        let mut evaluated = Evaluated { model: &model, statistics: &[], held_out, probes: &[] };
        let found = Found::like(&Rows::of(&model, &held_out, &[]).unwrap()).unwrap();
        assert_eq!(found.all().count(), 1 + task.measures().len());
        assert_eq!(evaluated.held(&found).len(), 3 + found.all().count(), "a parameter, inputs, targets, and these");

        model.parameters()[0].var.set(&Tensor::new(&[[2.0_f32, -1.0], [0.5, 1.0]], &Device::Cpu).unwrap()).unwrap();
        let mut eager = Eager::acquire().unwrap();
        eager.record(|recording| evaluated.run(recording, &found)).unwrap();
        let mut reads = HostReads::default();
        let kept = found.rows().read(&held_out, &[], &mut reads).unwrap();
        assert_eq!(kept, evaluate::evaluate(&eager, &model, &held_out, &[], &mut reads).unwrap());
        for name in ["f1", "auroc"] {
            assert!(kept.score.measures.contains_key(name), "{name} is missing: {:?}", kept.score);
        }
        let of_two = data.slice(0, 2).unwrap();
        let of_two = Dataset::new(of_two.inputs, of_two.targets).unwrap();
        found.store(&Rows::of(&model, &HeldOut { data: &of_two, ..held_out }, &[]).unwrap()).unwrap_err();
    }

    #[test]
    fn an_evaluation_is_recorded_whatever_it_measures_where_the_model_promises_its_numbers() {
        let (data, model) = flags();
        let task = Flags::new(2);
        let can_be_recorded = |model: &PlainModel, measures| {
            let held_out = HeldOut { data: &data, device: &Device::Cpu, batch_size: 2, task: &task, measures };
            Evaluated { model, statistics: &[], held_out, probes: &[] }.can_be_recorded()
        };
        assert!(!can_be_recorded(&model, &[]));
        let model = model.with_host_numbers(HostNumbers::Fixed);
        assert!(can_be_recorded(&model, &[]) && can_be_recorded(&model, task.measures()));
    }

    #[test]
    fn an_evaluation_of_no_sample_or_of_too_many_batches_is_not_recorded() {
        let cases = [(0, 8, false), (1, 8, true), (8 * MAX_BATCHES, 8, true), (8 * MAX_BATCHES + 1, 8, false)];
        for (num_samples, batch_size, expected) in cases {
            assert_eq!(is_recorded(num_samples, batch_size), expected, "{num_samples} by {batch_size}");
        }
    }
}
