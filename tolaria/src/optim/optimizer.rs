//! The optimizer: state by parameter name, updates in place.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use candle_core::{DType, Device, Tensor};
use leyline::layout::{Owner, ParameterLayout, Segment};
use leyline::model::Parameter;

use super::ascending::Ascending;
use super::average::{self, Average, Averages};
use super::config::OptimizerConfig;
use super::copies::Copies;
use super::fused::{self, Source};
use super::groups::GroupsConfig;
use super::muon;
use super::plan::{Planned, UpdatePlan};
use super::rounding::Rounding;
use super::rules::{Element, TABLE_WIDTH};
use super::state::{Form, ParameterState};
use crate::aggregate::{Coefficients, Combination, Factors, Terms};
use crate::cpu;
use crate::error::Error;
use crate::grad::{Geometry, check_parameters};
use crate::kernels::{Beside, DeviceKernels, ParameterUpdate, UpdateArgs, Workspace};
use crate::path::Path;

/// Turns gradients into updates of the parameters.
///
/// State and step count belong to a parameter's name: a parameter that appears later starts at its own first step, and
/// the others go on as if nothing had happened.
///
/// Parameters are of `f32` or `bf16`. Of one of `bf16` it keeps what rounding leaves over, 16 bits per element, so that both
/// together are the `f32` that the same gradients make: no update is too small for it. With [`Rounding::Stochastic`] it keeps
/// nothing and rounds at random. Moments are of `f32`, with that of `bf16` they are of `bf16` too.
#[derive(Debug)]
pub struct Optimizer {
    pub(super) config: OptimizerConfig,
    groups: GroupsConfig,
    pub(super) states: BTreeMap<String, ParameterState>,
    /// Absent where none are kept.
    pub(super) averages: Option<Averages>,
    /// Absent where none are kept.
    pub(super) copies: Option<Copies>,
    pub(super) rounding: Rounding,
    /// On a GPU, of the last gradient that was formed elsewhere.
    tables: Mutex<Option<(Geometry, Arc<Workspace>)>>,
}

impl Optimizer {
    /// An optimizer that has seen nothing yet, to which all parameters are alike.
    #[must_use]
    pub fn new(config: OptimizerConfig) -> Self {
        Self::with_groups(config, GroupsConfig::default())
    }

    /// The same with groups of parameters.
    #[must_use]
    pub fn with_groups(config: OptimizerConfig, groups: GroupsConfig) -> Self {
        let (states, rounding, tables) = (BTreeMap::new(), Rounding::default(), Mutex::new(None));
        Self { config, groups, states, averages: None, copies: None, rounding, tables }
    }

    /// The same with an average of each parameter over its updates, `a += (1 - decay) (p - a)`; without a decay none is kept.
    #[must_use]
    pub fn averaging(self, decay: Option<f64>) -> Self {
        Self { averages: decay.map(Averages::new), ..self }
    }

    /// Exchanges the values of parameters and their averages, in place; a second time undoes it. What has no average stays.
    ///
    /// # Errors
    /// When the device fails.
    /// # Sync
    /// none
    pub fn exchange_averages(&self, parameters: &[Parameter]) -> Result<(), Error> {
        self.averages.as_ref().map_or(Ok(()), |averages| averages.exchange(parameters))
    }

    /// The same, which leaves parameters of `bf16` so; what was learned in the other way is refused.
    ///
    /// # Examples
    /// ```
    /// use candle_core::{DType, Device, Tensor, Var};
    /// use leyline::id::TopologyRevision;
    /// use leyline::layout::{Owner, ParameterLayout, SegmentSpec};
    /// use leyline::model::Parameter;
    /// use tolaria::optim::{Optimizer, OptimizerConfig, Rounding};
    ///
    /// let spec = SegmentSpec { name: "w".to_owned(), shape: vec![4096], owner: Owner::Host, isolated: false };
    /// let layout = ParameterLayout::new(TopologyRevision(0), vec![spec])?;
    /// let w = Var::ones(4096, DType::BF16, &Device::Cpu)?;
    /// let parameters = [Parameter { name: "w".to_owned(), var: w.clone() }];
    /// let sgd = OptimizerConfig::Sgd { momentum: 0.0, nesterov: false, weight_decay: 0.0 };
    /// let mut optimizer = Optimizer::new(sgd).rounding(Rounding::Stochastic);
    ///
    /// // A quarter of the distance to the next number.
    /// let gradient = Tensor::full(-1.0_f32 / 512.0, 4096, &Device::Cpu)?;
    /// optimizer.step(&parameters, &layout, &gradient, 1.0)?;
    /// let moved = w.to_dtype(DType::F32)?.gt(1.0)?.to_dtype(DType::F32)?.mean_all()?.to_scalar::<f32>()?;
    /// assert!((moved - 0.25).abs() < 0.03);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn rounding(self, rounding: Rounding) -> Self {
        Self { rounding, ..self }
    }

    /// Its settings.
    #[must_use]
    pub fn config(&self) -> &OptimizerConfig {
        &self.config
    }

    /// Updates of the parameter so far; `None` when nothing is remembered about it. Plain SGD remembers nothing of one of `f32`.
    #[must_use]
    pub fn steps_of(&self, name: &str) -> Option<u64> {
        self.states.get(name).map(|state| state.steps)
    }

    /// Updates every parameter in place with its part of `gradient`: [`Self::prepare`] and [`Self::apply`].
    ///
    /// # Shapes
    /// `gradient` (P,) of `f32`, on the device of the parameters; `parameters` in the order of `layout`
    /// # Errors
    /// [`Error::LayoutMismatch`] when parameters, layout, gradient and state do not fit each other; then nothing was
    /// changed.
    /// # Sync
    /// none
    ///
    /// # Examples
    /// ```
    /// use candle_core::{Device, Tensor, Var};
    /// use leyline::id::TopologyRevision;
    /// use leyline::layout::{Owner, ParameterLayout, SegmentSpec};
    /// use leyline::model::Parameter;
    /// use tolaria::optim::{Optimizer, OptimizerConfig};
    ///
    /// let name = || "w".to_owned();
    /// let spec = SegmentSpec { name: name(), shape: vec![2], owner: Owner::Host, isolated: false };
    /// let layout = ParameterLayout::new(TopologyRevision(0), vec![spec])?;
    /// let w = Var::new(&[1.0_f32, 2.0], &Device::Cpu)?;
    /// let parameters = [Parameter { name: name(), var: w.clone() }];
    /// let gradient = Tensor::new(&[1.0_f32, -2.0], &Device::Cpu)?;
    ///
    /// let momentum = OptimizerConfig::Sgd { momentum: 0.5, nesterov: false, weight_decay: 0.0 };
    /// let mut optimizer = Optimizer::new(momentum);
    /// for expected in [[0.5_f32, 3.0], [-0.25, 4.5]] {
    ///     optimizer.step(&parameters, &layout, &gradient, 0.5)?;
    ///     assert_eq!(w.to_vec1::<f32>()?, expected);
    /// }
    /// assert_eq!(optimizer.steps_of("w"), Some(2));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn step(
        &mut self,
        parameters: &[Parameter],
        layout: &ParameterLayout,
        gradient: &Tensor,
        learning_rate: f64,
    ) -> Result<(), Error> {
        check_gradient(parameters, layout, gradient)?;
        let plan = self.prepare(parameters, layout, learning_rate)?;
        self.apply_terms(parameters, layout, &formed(gradient), &plan, None)?;
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
        self.prepare_ahead(parameters, layout, learning_rate, 0)
    }

    /// [`Self::prepare`] of the step after the next `ahead`, which are prepared already and counted later: at zero, of the next one.
    ///
    /// # Errors
    /// # Sync
    /// As [`Self::prepare`].
    pub(crate) fn prepare_ahead(
        &mut self,
        parameters: &[Parameter],
        layout: &ParameterLayout,
        learning_rate: f64,
        ahead: u64,
    ) -> Result<UpdatePlan, Error> {
        let form = self.form();
        if !self.check(parameters, layout)? {
            self.make_states(parameters, layout)?;
        }
        if let Some(copies) = &mut self.copies {
            copies.prepare(parameters, layout)?;
        }
        let (mut planned, mut draws) = (Vec::with_capacity(parameters.len()), Vec::with_capacity(parameters.len()));
        let mut states = Ascending::new(&mut self.states);
        for (parameter, segment) in updated(parameters, layout) {
            let owner = segment.spec.owner;
            let (rate, decays) = self.groups.of(segment);
            let averages = self.averages.as_mut();
            let weight = averages.map(|averages| averages.prepare(parameter, owner, ahead)).transpose()?;
            let matrix = self.config.matrix(segment);
            let plan = |steps| Planned { steps, learning_rate: learning_rate * rate, decays, weight, matrix };
            let Some(state) = states.get(&parameter.name).filter(|_| form.remembers(parameter)) else {
                planned.push(plan(0));
                draws.push(None);
                continue;
            };
            state.owner = owner;
            // A restored state comes back on the CPU.
            for tensor in state.tensors_mut() {
                if !tensor.device().same_device(parameter.var.device()) {
                    *tensor = tensor.to_device(parameter.var.device())?;
                }
            }
            let steps = state.steps + 1 + ahead;
            planned.push(plan(steps));
            draws.push(state.draw(parameter, steps, self.rounding));
        }
        Ok(UpdatePlan { config: self.config, planned, draws })
    }

    /// Makes the state of parameters that have none.
    fn make_states(&mut self, parameters: &[Parameter], layout: &ParameterLayout) -> Result<(), Error> {
        let (form, mut states) = (self.form(), Ascending::new(&self.states));
        let is_new =
            |(parameter, _): &(&Parameter, _)| form.remembers(parameter) && states.get(&parameter.name).is_none();
        let new: Vec<_> = updated(parameters, layout).filter(is_new).collect();
        for (parameter, segment) in new {
            self.states.insert(parameter.name.clone(), form.new_state(parameter, segment)?);
        }
        Ok(())
    }

    /// Counts an update that was enqueued, also one that changed nothing because the window was not finite: the host does
    /// not wait to know.
    pub fn commit(&mut self, layout: &ParameterLayout, plan: &UpdatePlan) {
        let updated = layout.segments().iter().filter(|segment| segment.len > 0);
        let mut states = Ascending::new(&mut self.states);
        let mut averages = self.averages.as_mut().map(|averages| Ascending::new(&mut averages.of));
        for (segment, planned) in updated.zip(&plan.planned) {
            if let Some(state) = states.get(&segment.spec.name) {
                state.steps = planned.steps;
            }
            if let Some(average) = averages.as_mut().and_then(|averages| averages.get(&segment.spec.name)) {
                average.steps += 1;
            }
        }
    }

    /// The device's part of a step. `table`: [`UpdatePlan::table`] on the device of the parameters, where they are on a
    /// GPU; without it the plan's own is copied there.
    ///
    /// # Shapes
    /// As [`Self::step`]; `table` (parameters with elements, 5) of `f32`. On a GPU the gradient starts at a multiple of 16
    /// bytes, as every tensor of its own does.
    /// # Errors
    /// [`Error::LayoutMismatch`] when the gradient or the plan does not fit; then nothing was changed.
    /// # Sync
    /// none. A recorded step that holds this work points at state of the optimizer, and must not outlive it.
    pub fn apply(
        &self,
        parameters: &[Parameter],
        layout: &ParameterLayout,
        gradient: &Tensor,
        plan: &UpdatePlan,
        table: Option<&Tensor>,
    ) -> Result<(), Error> {
        check_gradient(parameters, layout, gradient)?;
        self.apply_terms(parameters, layout, &formed(gradient), plan, table)
    }

    /// [`Self::apply`] with a gradient that has not been formed; the kernels of the CPU and of a GPU sum it where they use
    /// it.
    ///
    /// # Shapes
    /// As [`Self::apply`].
    /// # Errors
    /// [`Error::LayoutMismatch`] when the combination or the plan does not fit; then nothing was changed.
    /// # Sync
    /// none
    pub fn apply_combination(
        &self,
        parameters: &[Parameter],
        layout: &ParameterLayout,
        combination: &Combination,
        plan: &UpdatePlan,
        table: Option<&Tensor>,
    ) -> Result<(), Error> {
        let gradient = combination.terms();
        check_gradient(parameters, layout, gradient.rows[0])?;
        self.apply_terms(parameters, layout, &gradient, plan, table)
    }

    pub(super) fn apply_terms(
        &self,
        parameters: &[Parameter],
        layout: &ParameterLayout,
        gradient: &Terms<'_>,
        plan: &UpdatePlan,
        table: Option<&Tensor>,
    ) -> Result<(), Error> {
        let count = updated(parameters, layout).count();
        if plan.planned.len() != count {
            return Err(Error::mismatch("parameters of an update", count, plan.planned.len()));
        }
        gradient.check(layout.num_elements(), count)?;
        if count == 0 {
            return Ok(());
        }
        let path = match *gradient.rows {
            [row] => Path::of_row(row)?,
            _ => Path::of(gradient.rows[0])?,
        };
        let apply = |stage| match &path {
            Path::Kernel => self.apply_slices(parameters, layout, gradient, (plan, stage)),
            Path::Device(kernels) => self.apply_device(kernels, parameters, layout, gradient, (plan, stage), table),
        };
        if muon::second(plan.element(&plan.planned[0])).is_none() {
            return apply(Stage::Only);
        }
        apply(Stage::First)?;
        for ((parameter, _), planned) in updated(parameters, layout).zip(&plan.planned) {
            if let (Some(matrix), Some(moments)) = (planned.matrix, self.moments_of(&parameter.name)) {
                matrix.make_orthogonal(moments)?;
            }
        }
        apply(Stage::Second)
    }

    /// Kernels of the CPU.
    fn apply_slices(
        &self,
        parameters: &[Parameter],
        layout: &ParameterLayout,
        gradient: &Terms<'_>,
        (plan, stage): (&UpdatePlan, Stage),
    ) -> Result<(), Error> {
        let (coefficients, factors) = (gradient.coefficients.host()?, gradient.factors.host()?);
        cpu::with_slices(&gradient.rows, |rows| {
            let mut updates = Vec::with_capacity(plan.planned.len());
            for (index, ((parameter, segment), planned)) in updated(parameters, layout).zip(&plan.planned).enumerate() {
                // As the parts of the engine's geometry.
                let is_apart = segment.spec.isolated || self.groups.freezes(segment.spec.owner);
                let source = Source {
                    rows,
                    coefficients: &coefficients[usize::from(is_apart) * rows.len()..][..rows.len()],
                    factor: factors.as_ref().map_or(1.0, |factors| factors[index]),
                    offset: segment.offset,
                };
                let (element, state) = (stage.of(plan.element(planned)), self.states.get(&parameter.name));
                let (moments, rest) = (self.moments_of(&parameter.name), state.and_then(|state| state.rest.as_ref()));
                let beside = rest.map(fused::Beside::Rest).or(plan.draws[index].map(fused::Beside::Draw));
                updates.push(fused::Update { element, parameter: &parameter.var, beside, moments, source });
            }
            fused::update(&updates)?;
            if let Some(copies) = self.copies.as_ref().filter(|_| stage.is_last()) {
                copies.write(updated(parameters, layout).map(|(parameter, _)| parameter))?;
            }
            let Some(averages) = self.averages.as_ref().filter(|_| stage.is_last()) else { return Ok(()) };
            let now = average::numbers(updated(parameters, layout).map(|(parameter, _)| parameter))?;
            let mut averaged = Vec::with_capacity(updates.len());
            for ((update, now), ((parameter, _), planned)) in
                updates.iter().zip(&now).zip(updated(parameters, layout).zip(&plan.planned))
            {
                let (Some(average), Some(weight)) = (averages.of.get(&parameter.name), planned.weight) else {
                    continue;
                };
                let (element, moments) = (average::element(weight), Some(now));
                let (parameter, beside) = (&average.value, average.rest.as_ref().map(fused::Beside::Rest));
                averaged.push(fused::Update { element, parameter, beside, moments, source: update.source });
            }
            Ok(fused::update(&averaged)?)
        })?
    }

    /// Kernels of a GPU.
    fn apply_device(
        &self,
        kernels: &DeviceKernels,
        parameters: &[Parameter],
        layout: &ParameterLayout,
        gradient: &Terms<'_>,
        (plan, stage): (&UpdatePlan, Stage),
        table: Option<&Tensor>,
    ) -> Result<(), Error> {
        let updates: Vec<ParameterUpdate<'_>> = updated(parameters, layout)
            .map(|(parameter, _)| {
                let rest = self.states.get(&parameter.name).and_then(|state| state.rest.as_ref());
                let copy = self.copies.as_ref().and_then(|copies| copies.of(&parameter.name));
                ParameterUpdate {
                    parameter: &parameter.var,
                    beside: rest.map(Beside::Rest).or(copy.map(Beside::Copy)),
                    moments: self.moments_of(&parameter.name),
                }
            })
            .collect();
        let device = gradient.rows[0].device();
        let own_table;
        let constants = match table {
            Some(table) => table,
            None => {
                own_table = Tensor::from_vec(plan.table(), (updates.len(), TABLE_WIDTH), device)?;
                &own_table
            }
        };
        let own;
        let workspace = match gradient.workspace {
            Some(workspace) => workspace,
            None => {
                own = self.tables(layout, device)?;
                &*own
            }
        };
        let coefficients = match gradient.coefficients {
            Coefficients::One => workspace.one().clone(),
            others => others.device(device)?,
        };
        let factors = gradient.factors.device(device)?;
        let (rows, factors) = (&gradient.rows, factors.as_ref());
        // Its settings; the constants are those of the table.
        let element = stage.of(plan.element(&plan.planned[0]));
        let args = UpdateArgs { element, constants, rows, coefficients: &coefficients, factors };
        kernels.update(workspace, &updates, &args)?;
        let Some(averages) = self.averages.as_ref().filter(|_| stage.is_last()) else { return Ok(()) };
        let now = average::numbers(updated(parameters, layout).map(|(parameter, _)| parameter))?;
        let mut averaged = Vec::with_capacity(updates.len());
        for ((parameter, _), now) in updated(parameters, layout).zip(&now) {
            let average = averages.of.get(&parameter.name).expect("the plan was made with one");
            let (parameter, beside) = (&average.value, average.rest.as_ref().map(Beside::Rest));
            averaged.push(ParameterUpdate { parameter, beside, moments: Some(now) });
        }
        Ok(kernels.update(workspace, &averaged, &UpdateArgs { element: average::element(0.0), ..args })?)
    }

    /// Tables for gradients that were formed elsewhere, kept until the layout changes.
    fn tables(&self, layout: &ParameterLayout, device: &Device) -> Result<Arc<Workspace>, Error> {
        let geometry = Geometry::of(layout)?;
        let mut kept = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((known, tables)) = &*kept
            && *known == geometry
            && tables.factors().device().same_device(device)
        {
            return Ok(Arc::clone(tables));
        }
        let tables = Arc::new(Workspace::new(&geometry, 1, None, device)?);
        *kept = Some((geometry, Arc::clone(&tables)));
        Ok(tables)
    }

    /// What it remembers about a parameter.
    pub(crate) fn moments_of(&self, name: &str) -> Option<&Tensor> {
        self.states.get(name)?.moments.as_ref()
    }

    /// What the optimizer remembers about the parameters of `layout`, as far as it does; in its order.
    pub(crate) fn moments<'a>(&'a self, layout: &'a ParameterLayout) -> impl Iterator<Item = (&'a str, &'a Tensor)> {
        let names = layout.segments().iter().map(|segment| segment.spec.name.as_str());
        let of = |state: &'a ParameterState| state.moments.iter().chain(&state.rest);
        names.filter_map(move |name| Some(of(self.states.get(name)?).map(move |tensor| (name, tensor)))).flatten()
    }

    /// The averages of the parameters of `layout`, as [`Self::moments`].
    pub(crate) fn averages<'a>(&'a self, layout: &'a ParameterLayout) -> impl Iterator<Item = (&'a str, &'a Tensor)> {
        let names = layout.segments().iter().map(|segment| segment.spec.name.as_str());
        let of = |average: &'a Average| std::iter::once(average.value.as_tensor()).chain(&average.rest);
        let known = move |name| Some(of(self.averages.as_ref()?.of.get(name)?).map(move |tensor| (name, tensor)));
        names.filter_map(known).flatten()
    }

    /// Forgets parameters that `layout` does not name, but for those of owners that are `parked`: these come back. Keeps
    /// the state of the others bit for bit.
    pub fn retain(&mut self, layout: &ParameterLayout, parked: &[Owner]) {
        let segments = layout.segments();
        let is_named = |name: &String| segments.binary_search_by(|segment| segment.spec.name.cmp(name)).is_ok();
        self.states.retain(|name, state| parked.contains(&state.owner) || is_named(name));
        if let Some(averages) = &mut self.averages {
            averages.of.retain(|name, average| parked.contains(&average.owner) || is_named(name));
        }
        if let Some(copies) = &mut self.copies {
            copies.retain(is_named);
        }
    }

    /// Confirms that what is remembered of each parameter has its size; whether it is of each of them that has elements.
    pub(crate) fn check(&self, parameters: &[Parameter], layout: &ParameterLayout) -> Result<bool, Error> {
        check_parameters(parameters, layout)?;
        let (form, mut states, mut is_complete) = (self.form(), Ascending::new(&self.states), true);
        for (parameter, segment) in parameters.iter().zip(layout.segments()) {
            match states.get(&parameter.name) {
                Some(state) => form.check(state, parameter, segment)?,
                None => is_complete &= segment.len == 0 || !form.remembers(parameter),
            }
        }
        Ok(is_complete)
    }

    fn form(&self) -> Form {
        Form { num_moments: self.config.num_moments(), rounding: self.rounding }
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
        let is_known = var.dtype() == dtype || (var.dtype(), dtype) == (DType::BF16, DType::F32);
        if !is_known || !var.device().same_device(gradient.device()) {
            let kind = |dtype: DType, tensor: &Tensor| format!("{dtype:?} on {:?}", tensor.device().location());
            let what = format!("parameter `{}`", parameter.name);
            return Err(Error::mismatch(what, kind(dtype, gradient), kind(var.dtype(), var)));
        }
    }
    Ok(())
}

/// Which of its element-wise rules an optimizer applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Only,
    First,
    Second,
}

impl Stage {
    fn of(self, element: Element) -> Element {
        if self == Self::Second { muon::second(element).unwrap_or(element) } else { element }
    }

    fn is_last(self) -> bool {
        self != Self::First
    }
}

/// A gradient that exists, as a combination.
fn formed(gradient: &Tensor) -> Terms<'_> {
    Terms { rows: vec![gradient], coefficients: &Coefficients::One, factors: &Factors::Ones, workspace: None }
}
