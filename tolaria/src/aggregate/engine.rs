//! Combines the gradients of a window, measures them, and says how they are clipped.

use std::fmt;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};

use super::combination::{Coefficients, Combination, Factors};
use super::composed;
use super::config::AggregationConfig;
use super::passes::{Passes, combine_and_square, part_grams};
use super::plan::WindowPlan;
use super::solve::{Clipping, Problem, Solution, clip_factors};
use super::sums::SumsLayout;
use super::weighting::Weighting;
use crate::cpu::{self, to_f32};
use crate::error::Error;
use crate::grad::{Geometry, GradientLease};
use crate::host_read::HostReads;
use crate::kernels::{DeviceKernels, MAX_ROWS, SolveArgs, Workspace};

/// Combines windows over one geometry.
///
/// With the kernels of the CPU and of the GPU nothing that grows with the number of elements is allocated after the
/// engine was made, and on a GPU everything is device work, so that a graph can hold it.
pub struct GradientEngine {
    geometry: Arc<Geometry>,
    config: AggregationConfig,
    weighting: Box<dyn Weighting>,
    num_rows: usize,
    device: Device,
    /// On a GPU; for one row where the kernels have no room for as many as a window has.
    workspace: Option<Arc<Workspace>>,
    /// Coefficients of windows that do not tell owners apart, by their fractions: what is uploaded once stays valid in a
    /// recorded step.
    averages: Vec<(Vec<f32>, Tensor)>,
    scratch: Scratch,
}

/// Intermediate results on the host.
#[derive(Debug, Default)]
struct Scratch {
    solution: Solution,
    grams: Vec<f64>,
    squares: Vec<f64>,
    domains: Vec<f64>,
}

/// Fractions of samples for which coefficients are kept: an epoch has its full windows and the one at its end.
const MAX_AVERAGES: usize = 8;

impl fmt::Debug for GradientEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GradientEngine")
            .field("method", &self.config.method.name())
            .field("config", &self.config)
            .field("num_rows", &self.num_rows)
            .field("device", &self.device.location())
            .finish_non_exhaustive()
    }
}

impl GradientEngine {
    /// An engine for windows of up to `num_rows` microbatches.
    ///
    /// # Errors
    /// When the device has no room for its tables.
    /// # Sync
    /// none
    pub fn new(
        geometry: Arc<Geometry>,
        config: AggregationConfig,
        num_rows: usize,
        device: &Device,
    ) -> Result<Self, Error> {
        let weighting = config.method.weighting(&config.parameters);
        let workspace = if device.is_cuda() {
            let fits = num_rows <= MAX_ROWS;
            let solver = (fits && config.tells_owners_apart()).then(|| weighting.scratch_len(geometry.owners().len()));
            Some(Arc::new(Workspace::new(&geometry, if fits { num_rows } else { 1 }, solver, device)?))
        } else {
            None
        };
        Ok(Self {
            geometry,
            config,
            weighting,
            num_rows,
            device: device.clone(),
            workspace,
            averages: Vec::new(),
            scratch: Scratch::default(),
        })
    }

    /// Parts and owners that the engine works on.
    #[must_use]
    pub fn geometry(&self) -> &Arc<Geometry> {
        &self.geometry
    }

    /// How windows are combined.
    #[must_use]
    pub fn config(&self) -> &AggregationConfig {
        &self.config
    }

    /// Length of the sums that [`combine`](Self::combine) adds to.
    #[must_use]
    pub fn num_sums(&self) -> usize {
        SumsLayout::new(self.geometry.owners().len(), self.geometry.parts().len()).num_stored()
    }

    /// Turns the gradients g_1 … g_K of a window into one that is not formed yet: `Σ c_k g_k`, scaled per part. The
    /// result is valid until the next call.
    ///
    /// Where `plan` does not tell owners apart, the `c_k` are the fractions `n_k/N`; the rows are read once, and the
    /// first then holds their combination. Otherwise the inner products of all rows are formed in one read, the weights
    /// of the owners follow from them, and no row is written; with the weight 1 for every owner the `c_k` are the
    /// fractions, bit for bit. To measure
    /// owners that are then averaged costs a third read. Isolated parts always get the fractions.
    ///
    /// Where the gradient of the parts that are not isolated, or the loss in `sums`, is not finite, the combination is no
    /// number on all of these parts: an update with it changes nothing, and of the window `sums` say only that it was
    /// skipped. The same goes for the isolated parts of each seed, for these alone.
    ///
    /// Beside underflow, an element of the combination differs from exact arithmetic by at most
    /// `(K + 1) 2⁻²⁴ Σ_k |c_k g_k|`, and by two more roundings where a factor other than 1 scales it. A norm that
    /// follows from inner products differs from the norm of the rounded combination by at most
    /// `(K 2⁻²⁴ + √(n 2⁻⁵³)) Σ_k |c_k| |g_k|`, n being the longest chain of additions in an inner product: 10⁴ for 10⁸
    /// elements. The root only shows where terms cancel to less than 10⁻⁵ of them.
    ///
    /// On a GPU, `arguments` is to have what [`WindowPlan::arguments`] gives before every replay of a recorded step;
    /// without it those of `plan` are copied there, for work that runs once. `sums` is a vector of
    /// [`num_sums`](Self::num_sums) numbers to which norms, shares and conflicts of the window are added.
    ///
    /// # Shapes
    /// `rows` (P,) of one type on the engine's device, one per microbatch of `plan`; `arguments` and `sums` flat, of
    /// `f64`, there
    /// # Errors
    /// [`Error::LayoutMismatch`] for rows, arguments or sums that do not fit.
    /// # Sync
    /// none with the kernels of the CPU and of the GPU; for other types, and beyond 64 microbatches, telling owners apart
    /// copies the inner products to the host, counted as `gradient inner products`
    pub fn combine(
        &mut self,
        rows: Vec<GradientLease>,
        plan: &WindowPlan,
        arguments: Option<&Tensor>,
        sums: Option<&Tensor>,
        reads: &mut HostReads,
    ) -> Result<Combination, Error> {
        self.check(&rows, plan, arguments, sums)?;
        let first = rows[0].as_tensor();
        let is_read_as_it_is = self.reads_a_row_as_it_is(rows.len()) && !plan.tells_owners_apart();
        let passes = if is_read_as_it_is { Passes::of_row(first) } else { Passes::of(first) };
        self.combine_on(&passes, rows, plan, arguments, sums, reads)
    }

    /// Whether the row of a window of so many microbatches may be of [`row_type`](crate::grad::row_type).
    pub(crate) fn reads_a_row_as_it_is(&self, num_microbatches: usize) -> bool {
        num_microbatches == 1 && self.num_rows <= MAX_ROWS
    }

    /// [`Self::combine`] by passes of the caller's choice, with what was checked.
    pub(super) fn combine_on(
        &mut self,
        passes: &Passes,
        rows: Vec<GradientLease>,
        plan: &WindowPlan,
        arguments: Option<&Tensor>,
        sums: Option<&Tensor>,
        reads: &mut HostReads,
    ) -> Result<Combination, Error> {
        match passes {
            Passes::Kernel => self.on_cpu(rows, plan, sums),
            Passes::Device(kernels) if self.num_rows <= MAX_ROWS => {
                self.on_device(kernels, rows, plan, arguments, sums)
            }
            Passes::Device(_) | Passes::Composed => self.composed(rows, plan, sums, reads),
        }
    }

    fn on_cpu(
        &mut self,
        rows: Vec<GradientLease>,
        plan: &WindowPlan,
        sums: Option<&Tensor>,
    ) -> Result<Combination, Error> {
        let tensors: Vec<&Tensor> = rows.iter().map(GradientLease::as_tensor).collect();
        let num_rows = rows.len();
        let parts = self.geometry.parts().len();
        let Self { geometry, config, weighting, scratch, .. } = self;
        let clipping = Clipping { max_norm: config.clip_norm, num_samples: plan.num_samples() };
        let Scratch { solution, grams, squares, domains } = scratch;
        if plan.tells_owners_apart() {
            grams.resize(parts * num_rows * num_rows, 0.0);
            cpu::with_slices(&tensors, |rows| part_grams(rows, geometry, grams))?;
            let arguments = plan.arguments();
            let problem = Problem {
                geometry,
                grams,
                arguments: &arguments,
                num_rows,
                weighting: weighting.as_ref(),
                clipping,
                only_measures: config.only_measures(),
            };
            cpu::with_sums(sums, |sums| solution.solve(&problem, sums))?;
            if !config.only_measures() {
                return on_host(rows, solution.wide.clone(), solution.factors.clone());
            }
        }
        squares.resize(parts, 0.0);
        let fractions = twice(plan.fractions());
        cpu::with_slice_mut(tensors[0], |first| {
            cpu::with_slices(&tensors[1..], |others| combine_and_square(first, others, geometry, &fractions, squares))
        })??;
        let mut factors = Vec::new();
        cpu::with_sums(sums, |sums| {
            clip_factors(geometry, squares, clipping, domains, &mut factors, sums);
        })?;
        on_host(only_first(rows), vec![1.0; 2], factors)
    }

    fn on_device(
        &mut self,
        kernels: &DeviceKernels,
        rows: Vec<GradientLease>,
        plan: &WindowPlan,
        arguments: Option<&Tensor>,
        sums: Option<&Tensor>,
    ) -> Result<Combination, Error> {
        let workspace = Arc::clone(self.workspace.as_ref().expect("there is one on a GPU"));
        let clipping = Clipping { max_norm: self.config.clip_norm, num_samples: plan.num_samples() };
        if plan.tells_owners_apart() {
            let tensors: Vec<&Tensor> = rows.iter().map(GradientLease::as_tensor).collect();
            let of_plan;
            let arguments = match arguments {
                Some(arguments) => arguments,
                None => {
                    of_plan = Tensor::new(plan.arguments(), &self.device)?;
                    &of_plan
                }
            };
            let (kernel, parameter) = (self.config.method.kernel(), self.weighting.parameter());
            let only_measures = self.config.only_measures();
            let args = SolveArgs { kernel, arguments, parameter, clipping, only_measures, sums };
            kernels.resolve(&workspace, &tensors, &args)?;
            if !only_measures {
                let coefficients = workspace.coefficients(rows.len())?;
                return Combination::on_device(rows, workspace, coefficients);
            }
        }
        let fractions = self.average_of(&twice(plan.fractions()))?;
        let tensors: Vec<&Tensor> = rows.iter().map(GradientLease::as_tensor).collect();
        kernels.average(&workspace, &tensors, &fractions, clipping, sums)?;
        let one = workspace.one().clone();
        Combination::on_device(only_first(rows), workspace, one)
    }

    /// Compositions of candle operations, with the solution on the host.
    fn composed(
        &mut self,
        rows: Vec<GradientLease>,
        plan: &WindowPlan,
        sums: Option<&Tensor>,
        reads: &mut HostReads,
    ) -> Result<Combination, Error> {
        let tensors: Vec<&Tensor> = rows.iter().map(GradientLease::as_tensor).collect();
        let clipping = Clipping { max_norm: self.config.clip_norm, num_samples: plan.num_samples() };
        let clip = |squares: Vec<Tensor>| composed::clip_factors(&squares, &self.geometry, clipping, sums, tensors[0]);
        if plan.tells_owners_apart() {
            let grams = composed::part_grams(&tensors, &self.geometry, reads)?;
            let arguments = plan.arguments();
            let problem = Problem {
                geometry: &self.geometry,
                grams: &grams,
                arguments: &arguments,
                num_rows: rows.len(),
                weighting: self.weighting.as_ref(),
                clipping,
                // Norms and factors follow below.
                only_measures: true,
            };
            let mut addends = vec![0.0; self.num_sums()];
            let solution = &mut self.scratch.solution;
            solution.solve(&problem, Some(&mut addends));
            if let Some(sums) = sums {
                composed::add(sums, &Tensor::new(addends, sums.device())?)?;
            }
            if !self.config.only_measures() {
                let squares = Tensor::new(&*solution.squares, &self.device)?;
                let factors =
                    clip((0..solution.squares.len()).map(|part| squares.get(part)).collect::<Result<_, _>>()?)?;
                let coefficients = Coefficients::Host(solution.wide.clone());
                // The kernels that update have no room for so many rows.
                let Some(tables) = self.workspace.clone() else { return Combination::new(rows, coefficients, factors) };
                let sum = Combination::new(rows, coefficients, Factors::Ones)?;
                let row = sum.materialize_on(&Passes::Composed, &self.geometry)?;
                return Ok(Combination::formed(row, factors, Some(tables)));
            }
        }
        composed::average(&tensors, plan.fractions())?;
        let factors = clip(composed::part_squares(tensors[0], &self.geometry)?)?;
        let row = rows.into_iter().next().expect("a checked window has a row");
        Ok(Combination::formed(row, factors, self.workspace.clone()))
    }

    /// The fractions on the device, twice; those that were asked for last are kept.
    fn average_of(&mut self, fractions: &[f32]) -> Result<Tensor, Error> {
        let known = self.averages.iter().position(|(known, _)| known == fractions);
        let average = match known {
            Some(index) => self.averages.remove(index),
            None => (fractions.to_vec(), Tensor::new(fractions, &self.device)?),
        };
        if self.averages.len() == MAX_AVERAGES {
            self.averages.remove(0);
        }
        let tensor = average.1.clone();
        self.averages.push(average);
        Ok(tensor)
    }

    /// What a recorded step points at, with names for messages.
    pub(crate) fn tensors(&self) -> Vec<(&'static str, Tensor)> {
        let averages = self.averages.iter().map(|(_, tensor)| ("coefficients of the mean", tensor));
        let workspace = self.workspace.iter().flat_map(|workspace| workspace.tensors());
        workspace.chain(averages).map(|(name, tensor)| (name, tensor.clone())).collect()
    }

    /// Confirms that everything fits.
    fn check(
        &self,
        rows: &[GradientLease],
        plan: &WindowPlan,
        arguments: Option<&Tensor>,
        sums: Option<&Tensor>,
    ) -> Result<(), Error> {
        if rows.len() != plan.num_microbatches() {
            return Err(Error::mismatch("microbatches of a window", plan.num_microbatches(), rows.len()));
        }
        if rows.len() > self.num_rows {
            return Err(Error::mismatch("microbatches of a window", format!("at most {}", self.num_rows), rows.len()));
        }
        let dtype = rows[0].as_tensor().dtype();
        for row in rows.iter().map(GradientLease::as_tensor) {
            if row.elem_count() != self.geometry.num_elements() {
                let what = "elements of a microbatch's gradient";
                return Err(Error::mismatch(what, self.geometry.num_elements(), row.elem_count()));
            }
            if row.dtype() != dtype || !row.device().same_device(&self.device) {
                let expected = format!("{dtype:?} on {:?}", self.device.location());
                return Err(Error::mismatch("gradients of a window", expected, kind(row)));
            }
        }
        let slots = self.geometry.owners().len();
        if let Some(found) = plan.num_slots().filter(|found| *found != slots) {
            return Err(Error::mismatch("owners of a window", slots, found));
        }
        let expect = |tensor: &Tensor, length: usize, what: &str| {
            let fits = tensor.dtype() == DType::F64 && *tensor.dims() == [length];
            if fits && tensor.device().same_device(&self.device) {
                return Ok(());
            }
            let expected = format!("{length} elements of F64 on {:?}", self.device.location());
            Err(Error::mismatch(what, expected, format!("{} elements of {}", tensor.elem_count(), kind(tensor))))
        };
        if let Some(arguments) = arguments.filter(|_| plan.tells_owners_apart()) {
            expect(arguments, WindowPlan::num_arguments(rows.len(), slots), "arguments of a window")?;
        }
        if let Some(sums) = sums {
            expect(sums, self.num_sums(), "sums of an epoch")?;
        }
        Ok(())
    }
}

fn on_host(rows: Vec<GradientLease>, coefficients: Vec<f64>, factors: Vec<f64>) -> Result<Combination, Error> {
    Combination::new(rows, Coefficients::Host(coefficients), Factors::Host(factors))
}

/// The same coefficients for parts that are isolated and for those that are not.
fn twice(fractions: &[f64]) -> Vec<f32> {
    fractions.iter().chain(fractions).copied().map(to_f32).collect()
}

/// Gives the other buffers back.
fn only_first(mut rows: Vec<GradientLease>) -> Vec<GradientLease> {
    rows.truncate(1);
    rows
}

fn kind(tensor: &Tensor) -> String {
    format!("{:?} on {:?}", tensor.dtype(), tensor.device().location())
}
