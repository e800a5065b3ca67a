//! The optimizer: state by parameter name, updates in place.

use std::collections::BTreeMap;

use candle_core::{DType, Tensor, Var};
use leyline::layout::{ParameterLayout, Segment};
use leyline::model::Parameter;

use super::adam_w::AdamW;
use super::config::OptimizerConfig;
use super::sgd::Sgd;
use crate::cpu::Path;
use crate::error::Error;
use crate::grad::check_parameters;

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

    /// Updates every parameter in place with its part of `gradient`.
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
        self.step_on(Path::of(gradient), parameters, layout, gradient, learning_rate)
    }

    /// [`Self::step`] on a path of the caller's choice.
    pub(super) fn step_on(
        &mut self,
        path: Path,
        parameters: &[Parameter],
        layout: &ParameterLayout,
        gradient: &Tensor,
        learning_rate: f64,
    ) -> Result<(), Error> {
        self.check(parameters, layout, gradient)?;
        for (parameter, segment) in parameters.iter().zip(layout.segments()).filter(|(_, segment)| segment.len > 0) {
            let update = Update { path, var: &parameter.var, segment, gradient, learning_rate };
            if self.config.num_moments() == 0 {
                update.run(&self.config, None)?;
                continue;
            }
            // Two lookups instead of an entry: its key would be a new `String` in every step.
            if !self.states.contains_key(&parameter.name) {
                let shape = (self.config.num_moments(), segment.len);
                let moments = Tensor::zeros(shape, parameter.var.dtype(), parameter.var.device())?;
                self.states.insert(parameter.name.clone(), ParameterState { steps: 0, moments });
            }
            let state = self.states.get_mut(&parameter.name).expect("the state was inserted above");
            update.run(&self.config, Some(state))?;
        }
        Ok(())
    }

    /// Forgets parameters that `layout` does not name, and keeps the state of the others bit for bit.
    pub fn retain(&mut self, layout: &ParameterLayout) {
        let segments = layout.segments();
        self.states.retain(|name, _| segments.binary_search_by(|segment| segment.spec.name.cmp(name)).is_ok());
    }

    fn check(&self, parameters: &[Parameter], layout: &ParameterLayout, gradient: &Tensor) -> Result<(), Error> {
        check_parameters(parameters, layout)?;
        if *gradient.dims() != [layout.num_elements()] {
            let (expected, found) = (format!("[{}]", layout.num_elements()), format!("{:?}", gradient.dims()));
            return Err(Error::mismatch("shape of the gradient", expected, found));
        }
        for (parameter, segment) in parameters.iter().zip(layout.segments()) {
            let (var, dtype) = (&parameter.var, gradient.dtype());
            if var.dtype() != dtype || !var.device().same_device(gradient.device()) {
                let kind = |dtype: DType, tensor: &Tensor| format!("{dtype:?} on {:?}", tensor.device().location());
                let what = format!("parameter `{}`", parameter.name);
                return Err(Error::mismatch(what, kind(dtype, gradient), kind(var.dtype(), var)));
            }
            if let Some(state) = self.states.get(&parameter.name) {
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

/// One parameter in one step.
struct Update<'a> {
    path: Path,
    var: &'a Var,
    segment: &'a Segment,
    gradient: &'a Tensor,
    learning_rate: f64,
}

impl Update<'_> {
    fn run(&self, config: &OptimizerConfig, state: Option<&mut ParameterState>) -> Result<(), Error> {
        let (steps, moments) = match state {
            None => (0, None),
            Some(state) => {
                // A restored state comes back on the CPU.
                if !state.moments.device().same_device(self.var.device()) {
                    state.moments = state.moments.to_device(self.var.device())?;
                }
                state.steps += 1;
                (state.steps, Some(&state.moments))
            }
        };
        let offset = self.segment.offset;
        match *config {
            OptimizerConfig::Sgd { momentum, nesterov, weight_decay } => {
                let sgd = Sgd { learning_rate: self.learning_rate, momentum, nesterov, weight_decay };
                match self.path {
                    Path::Kernel => sgd.kernel(self.var, moments, self.gradient, offset),
                    Path::Composed => sgd.composed(self.var, moments, &self.part()?),
                }
            }
            OptimizerConfig::AdamW { beta1, beta2, eps, weight_decay } => {
                let moments = moments.expect("AdamW keeps two moments");
                let adam_w = AdamW::new(self.learning_rate, [beta1, beta2], eps, weight_decay, steps);
                match self.path {
                    Path::Kernel => adam_w.kernel(self.var, moments, self.gradient, offset),
                    Path::Composed => adam_w.composed(self.var, moments, &self.part()?),
                }
            }
        }
    }

    /// The parameter's part of the flat gradient, in its shape.
    fn part(&self) -> Result<Tensor, Error> {
        Ok(self.gradient.narrow(0, self.segment.offset, self.segment.len)?.reshape(self.var.shape())?)
    }
}
