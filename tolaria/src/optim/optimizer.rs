//! The optimizer: state by parameter name, updates in place.

use std::collections::BTreeMap;

use candle_core::{DType, Tensor, Var};
use leyline::layout::{ParameterLayout, Segment};
use leyline::model::Parameter;

use super::adam_w::AdamW;
use super::config::OptimizerConfig;
use super::sgd::Sgd;
use crate::cpu;
use crate::error::Error;
use crate::grad::check_parameters;
use crate::graph::kernels::{DeviceKernels, ParameterUpdate};
use crate::path::Path;

/// What the optimizer remembers about one parameter.
#[derive(Debug, Clone)]
pub(super) struct ParameterState {
    /// Updates so far.
    pub(super) steps: u64,
    /// Shape (moments, elements), the type of the parameter: the velocity, or the first and second moments.
    pub(super) moments: Tensor,
}

/// Turns gradients into updates of the parameters.
///
/// State and step count belong to a parameter's name: a parameter that appears later starts at its own first step, and
/// the others go on as if nothing had happened.
#[derive(Debug)]
pub struct Optimizer {
    pub(super) config: OptimizerConfig,
    pub(super) states: BTreeMap<String, ParameterState>,
}

impl Optimizer {
    /// An optimizer that has seen nothing yet.
    #[must_use]
    pub fn new(config: OptimizerConfig) -> Self {
        Self { config, states: BTreeMap::new() }
    }

    /// Its settings.
    #[must_use]
    pub fn config(&self) -> &OptimizerConfig {
        &self.config
    }

    /// Updates of the parameter so far; `None` when nothing is remembered about it. Plain SGD remembers nothing.
    #[must_use]
    pub fn steps_of(&self, name: &str) -> Option<u64> {
        self.states.get(name).map(|state| state.steps)
    }

    /// Updates every parameter in place with its part of `gradient`: [`Self::prepare`] and [`Self::apply`].
    ///
    /// # Shapes
    /// `gradient` (P,), of the parameters' type and on their device; `parameters` in the order of `layout`
    /// # Errors
    /// [`Error::LayoutMismatch`] when parameters, layout, gradient and state do not fit each other; then nothing was
    /// changed.
    /// # Sync
    /// none
    pub fn step(
        &mut self,
        parameters: &[Parameter],
        layout: &ParameterLayout,
        gradient: &Tensor,
        learning_rate: f64,
    ) -> Result<(), Error> {
        self.step_on(&Path::of(gradient), parameters, layout, gradient, learning_rate)
    }

    /// [`Self::step`] on a path of the caller's choice.
    pub(super) fn step_on(
        &mut self,
        path: &Path,
        parameters: &[Parameter],
        layout: &ParameterLayout,
        gradient: &Tensor,
        learning_rate: f64,
    ) -> Result<(), Error> {
        check_gradient(parameters, layout, gradient)?;
        let plan = self.prepare(parameters, layout, learning_rate)?;
        self.apply_on(path, parameters, layout, gradient, &plan, None)?;
        self.commit(layout, &plan);
        Ok(())
    }

    /// The host's part of a step: makes the state of new parameters, and says what the update depends on beside the
    /// gradient. [`Self::commit`] counts it once it has happened.
    ///
    /// # Errors
    /// [`Error::LayoutMismatch`] when parameters, layout and state do not fit each other; then nothing was changed.
    /// # Sync
    /// none; state that was restored is copied to the device once
    pub fn prepare(
        &mut self,
        parameters: &[Parameter],
        layout: &ParameterLayout,
        learning_rate: f64,
    ) -> Result<UpdatePlan, Error> {
        self.check(parameters, layout)?;
        let num_moments = self.config.num_moments();
        let mut steps = Vec::with_capacity(parameters.len());
        for (parameter, segment) in updated(parameters, layout) {
            if num_moments == 0 {
                steps.push(0);
                continue;
            }
            // Two lookups instead of an entry: its key would be a new `String` in every step.
            if !self.states.contains_key(&parameter.name) {
                let shape = (num_moments, segment.len);
                let moments = Tensor::zeros(shape, parameter.var.dtype(), parameter.var.device())?;
                self.states.insert(parameter.name.clone(), ParameterState { steps: 0, moments });
            }
            let state = self.states.get_mut(&parameter.name).expect("the state was inserted above");
            // A restored state comes back on the CPU.
            if !state.moments.device().same_device(parameter.var.device()) {
                state.moments = state.moments.to_device(parameter.var.device())?;
            }
            steps.push(state.steps + 1);
        }
        Ok(UpdatePlan { config: self.config, learning_rate, steps })
    }

    /// Counts an update that was enqueued.
    pub fn commit(&mut self, layout: &ParameterLayout, plan: &UpdatePlan) {
        let updated = layout.segments().iter().filter(|segment| segment.len > 0);
        for (segment, steps) in updated.zip(&plan.steps) {
            if let Some(state) = self.states.get_mut(&segment.spec.name) {
                state.steps = *steps;
            }
        }
    }

    /// The device's part of a step. `table`: [`UpdatePlan::table`] on the device of the parameters, where they are on a
    /// GPU; without it the plan's own is copied there.
    ///
    /// # Shapes
    /// As [`Self::step`]; `table` (parameters with elements, 4) of `f32`.
    /// # Errors
    /// [`Error::LayoutMismatch`] when the gradient or the plan does not fit; then nothing was changed.
    /// # Sync
    /// none
    pub fn apply(
        &self,
        parameters: &[Parameter],
        layout: &ParameterLayout,
        gradient: &Tensor,
        plan: &UpdatePlan,
        table: Option<&Tensor>,
    ) -> Result<(), Error> {
        check_gradient(parameters, layout, gradient)?;
        self.apply_on(&Path::of(gradient), parameters, layout, gradient, plan, table)
    }

    fn apply_on(
        &self,
        path: &Path,
        parameters: &[Parameter],
        layout: &ParameterLayout,
        gradient: &Tensor,
        plan: &UpdatePlan,
        table: Option<&Tensor>,
    ) -> Result<(), Error> {
        let count = updated(parameters, layout).count();
        if plan.steps.len() != count {
            return Err(Error::mismatch("parameters of an update", count, plan.steps.len()));
        }
        let moments = |name: &str| self.states.get(name).map(|state| &state.moments);
        if count == 0 {
            return Ok(());
        }
        if let Path::Device(kernels) = path {
            let updates: Vec<ParameterUpdate<'_>> = updated(parameters, layout)
                .map(|(parameter, segment)| {
                    let (parameter, moments) = (&parameter.var, moments(&parameter.name));
                    ParameterUpdate { parameter, moments, offset: segment.offset }
                })
                .collect();
            let own;
            let table = match table {
                Some(table) => table,
                None => {
                    own = Tensor::from_vec(plan.table(), (count, TABLE_WIDTH), gradient.device())?;
                    &own
                }
            };
            return self.apply_kernels(kernels, &updates, gradient, table);
        }
        for ((parameter, segment), steps) in updated(parameters, layout).zip(&plan.steps) {
            let update = Update { path, var: &parameter.var, segment, gradient, plan, steps: *steps };
            update.run(&self.config, moments(&parameter.name))?;
        }
        Ok(())
    }

    fn apply_kernels(
        &self,
        kernels: &DeviceKernels,
        updates: &[ParameterUpdate<'_>],
        gradient: &Tensor,
        table: &Tensor,
    ) -> Result<(), Error> {
        match self.config {
            OptimizerConfig::Sgd { momentum, nesterov, weight_decay } => {
                let settings = [momentum, weight_decay].map(cpu::to_f32);
                kernels.sgd(updates, gradient, table, settings, nesterov)?;
            }
            OptimizerConfig::AdamW { beta1, beta2, eps, .. } => {
                let settings = [beta1, 1.0 - beta1, beta2, 1.0 - beta2, eps].map(cpu::to_f32);
                kernels.adam_w(updates, gradient, table, settings)?;
            }
        }
        Ok(())
    }

    /// What the optimizer remembers about the parameters of `layout`, as far as it does; in its order.
    pub(crate) fn moments<'a>(&'a self, layout: &'a ParameterLayout) -> impl Iterator<Item = (&'a str, &'a Tensor)> {
        let names = layout.segments().iter().map(|segment| segment.spec.name.as_str());
        names.filter_map(|name| Some((name, &self.states.get(name)?.moments)))
    }

    /// Forgets parameters that `layout` does not name, and keeps the state of the others bit for bit.
    pub fn retain(&mut self, layout: &ParameterLayout) {
        let segments = layout.segments();
        self.states.retain(|name, _| segments.binary_search_by(|segment| segment.spec.name.cmp(name)).is_ok());
    }

    fn check(&self, parameters: &[Parameter], layout: &ParameterLayout) -> Result<(), Error> {
        check_parameters(parameters, layout)?;
        for (parameter, segment) in parameters.iter().zip(layout.segments()) {
            if let Some(state) = self.states.get(&parameter.name) {
                let dtype = parameter.var.dtype();
                let (expected, found) = ([self.config.num_moments(), segment.len], state.moments.dims());
                if *found != expected || state.moments.dtype() != dtype {
                    let what = format!("optimizer state of `{}`", parameter.name);
                    let found = format!("{:?} {found:?}", state.moments.dtype());
                    return Err(Error::mismatch(what, format!("{dtype:?} {expected:?}"), found));
                }
            }
        }
        Ok(())
    }
}

/// The parameters that have elements.
fn updated<'a>(
    parameters: &'a [Parameter],
    layout: &'a ParameterLayout,
) -> impl Iterator<Item = (&'a Parameter, &'a Segment)> {
    parameters.iter().zip(layout.segments()).filter(|(_, segment)| segment.len > 0)
}

fn check_gradient(parameters: &[Parameter], layout: &ParameterLayout, gradient: &Tensor) -> Result<(), Error> {
    if *gradient.dims() != [layout.num_elements()] {
        let (expected, found) = (format!("[{}]", layout.num_elements()), format!("{:?}", gradient.dims()));
        return Err(Error::mismatch("shape of the gradient", expected, found));
    }
    check_parameters(parameters, layout)?;
    for parameter in parameters {
        let (var, dtype) = (&parameter.var, gradient.dtype());
        if var.dtype() != dtype || !var.device().same_device(gradient.device()) {
            let kind = |dtype: DType, tensor: &Tensor| format!("{dtype:?} on {:?}", tensor.device().location());
            let what = format!("parameter `{}`", parameter.name);
            return Err(Error::mismatch(what, kind(dtype, gradient), kind(var.dtype(), var)));
        }
    }
    Ok(())
}

/// What an update depends on beside gradient and state; made by [`Optimizer::prepare`].
#[derive(Debug, Clone, PartialEq)]
pub struct UpdatePlan {
    config: OptimizerConfig,
    learning_rate: f64,
    /// Updates of each parameter that has elements, this one included.
    steps: Vec<u64>,
}

/// Numbers per parameter in [`UpdatePlan::table`].
pub(crate) const TABLE_WIDTH: usize = 4;

impl UpdatePlan {
    /// The plan as the kernels of a GPU read it, (parameters with elements, 4), row by row.
    #[must_use]
    pub fn table(&self) -> Vec<f32> {
        let row = |steps: &u64| match self.config {
            OptimizerConfig::Sgd { .. } => [self.learning_rate, 0.0, 0.0, 0.0].map(cpu::to_f32),
            OptimizerConfig::AdamW { beta1, beta2, eps, weight_decay } => {
                AdamW::new(self.learning_rate, [beta1, beta2], eps, weight_decay, *steps).row()
            }
        };
        self.steps.iter().flat_map(row).collect()
    }
}

/// One parameter in one step, on the CPU or composed.
struct Update<'a> {
    path: &'a Path,
    var: &'a Var,
    segment: &'a Segment,
    gradient: &'a Tensor,
    plan: &'a UpdatePlan,
    steps: u64,
}

impl Update<'_> {
    fn run(&self, config: &OptimizerConfig, moments: Option<&Tensor>) -> Result<(), Error> {
        let (offset, learning_rate) = (self.segment.offset, self.plan.learning_rate);
        let on_cpu = matches!(self.path, Path::Kernel);
        match *config {
            OptimizerConfig::Sgd { momentum, nesterov, weight_decay } => {
                let sgd = Sgd { learning_rate, momentum, nesterov, weight_decay };
                if on_cpu {
                    sgd.kernel(self.var, moments, self.gradient, offset)
                } else {
                    sgd.composed(self.var, moments, &self.part()?)
                }
            }
            OptimizerConfig::AdamW { beta1, beta2, eps, weight_decay } => {
                let moments = moments.expect("AdamW keeps two moments");
                let adam_w = AdamW::new(learning_rate, [beta1, beta2], eps, weight_decay, self.steps);
                if on_cpu {
                    adam_w.kernel(self.var, moments, self.gradient, offset)
                } else {
                    adam_w.composed(self.var, moments, &self.part()?)
                }
            }
        }
    }

    /// The parameter's part of the flat gradient, in its shape.
    fn part(&self) -> Result<Tensor, Error> {
        Ok(self.gradient.narrow(0, self.segment.offset, self.segment.len)?.reshape(self.var.shape())?)
    }
}
