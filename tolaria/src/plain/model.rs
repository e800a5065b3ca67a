//! A candle function with its variables.

use std::collections::BTreeMap;
#[expect(clippy::disallowed_types, reason = "what candle has; its order is not used")]
use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use candle_core::{Tensor, Var};
use leyline::error::ErrorType;
use leyline::id::TopologyRevision;
use leyline::layout::{Owner, ParameterLayout, SegmentSpec};
use leyline::model::{HostNumbers, Outputs, Parameter, Pass, TrainableModel};

use crate::error::Error;

type Forward = dyn Fn(&Tensor, Pass<'_>) -> candle_core::Result<Tensor> + Send + Sync;

/// A network whose structure never changes.
pub struct PlainModel {
    parameters: Vec<Parameter>,
    layout: ParameterLayout,
    forward: Box<Forward>,
    host_numbers: HostNumbers,
}

impl PlainModel {
    /// `forward` maps inputs (B, …) to logits (B, classes) through the named variables, in training as in evaluation.
    ///
    /// # Errors
    /// [`Error::LayoutMismatch`] when two variables have one name.
    pub fn new(
        variables: Vec<(String, Var)>,
        forward: impl Fn(&Tensor) -> candle_core::Result<Tensor> + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        Self::with_pass(variables, move |inputs, _| forward(inputs))
    }

    /// As [`Self::new`], for a function that is told what the pass is for: with dropout, or with statistics that grow
    /// in training. What it changes beside the variables belongs to the state of the run, see
    /// [`NoSeeds::with_buffers`](super::NoSeeds::with_buffers).
    ///
    /// # Errors
    /// As there.
    pub fn with_pass(
        variables: Vec<(String, Var)>,
        forward: impl Fn(&Tensor, Pass<'_>) -> candle_core::Result<Tensor> + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        let specs = variables
            .iter()
            .map(|(name, var)| SegmentSpec {
                name: name.clone(),
                shape: var.dims().to_vec(),
                owner: Owner::Host,
                isolated: false,
            })
            .collect();
        let layout = ParameterLayout::new(TopologyRevision(0), specs)?;
        let mut parameters: Vec<Parameter> = variables.into_iter().map(|(name, var)| Parameter { name, var }).collect();
        parameters.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(Self { parameters, layout, forward: Box::new(forward), host_numbers: HostNumbers::MayMove })
    }

    /// As [`Self::with_pass`], of the variables of candle's `VarMap`, which is asked by `VarMap::data`:
    /// `examples/train_candle_nn.rs` trains one. What a layer changes in training by itself, as running statistics, is no
    /// parameter: such a variable goes from [`variables`] to [`NoSeeds::with_buffers`](super::NoSeeds::with_buffers).
    ///
    /// # Errors
    /// As there.
    #[expect(clippy::disallowed_types, reason = "what candle has; its order is not used")]
    pub fn from_varmap(
        map: &Mutex<HashMap<String, Var>>,
        forward: impl Fn(&Tensor, Pass<'_>) -> candle_core::Result<Tensor> + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        Self::with_pass(variables(map), forward)
    }

    /// With what the function promises of numbers that it keeps on the host; without it they may move, and replayed
    /// steps are tested in every epoch ([`TrainableModel::host_numbers`]).
    #[must_use]
    pub fn with_host_numbers(mut self, host_numbers: HostNumbers) -> Self {
        self.host_numbers = host_numbers;
        self
    }
}

/// The variables of candle's `VarMap` with their names, in the order of names: that of the map differs between processes.
#[must_use]
#[expect(clippy::disallowed_types, reason = "what candle has; its order is not used")]
pub fn variables(map: &Mutex<HashMap<String, Var>>) -> Vec<(String, Var)> {
    // Whoever panicked while it was locked has at most added a variable.
    let map = map.lock().unwrap_or_else(PoisonError::into_inner);
    let sorted: BTreeMap<_, _> = map.iter().map(|(name, var)| (name.clone(), var.clone())).collect();
    sorted.into_iter().collect()
}

impl fmt::Debug for PlainModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PlainModel").field("layout", &self.layout).finish_non_exhaustive()
    }
}

impl ErrorType for PlainModel {
    type Error = Error;
}

impl TrainableModel for PlainModel {
    fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    fn layout(&self) -> &ParameterLayout {
        &self.layout
    }

    fn host_numbers(&self) -> HostNumbers {
        self.host_numbers
    }

    fn forward(&self, inputs: &Tensor, pass: Pass<'_>) -> Result<Outputs, Error> {
        if let Pass::Evaluate { overrides: [first, ..] } = pass {
            return Err(Error::UnknownSeed { seed: first.seed });
        }
        Ok(Outputs { logits: (self.forward)(inputs, pass)?, shadows: Vec::new() })
    }
}
