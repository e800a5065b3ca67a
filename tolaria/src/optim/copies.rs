//! Copies of weights in the type in which they are multiplied: the update that moves a weight writes its copy too.
//!
//! Products of half precision multiply the rounded weight. To round it in each step reads all weights once more; the update has
//! each number at hand. What else writes a parameter, a checkpoint or a graft, does not know of its copy: so a copy counts
//! for one structure of the network, and only until somebody doubts it. Between two steps of an epoch a seed manager writes into its
//! seeds, as with weights that arrive: theirs are not copied.

use std::collections::BTreeMap;

use candle_core::{DType, Tensor, Var};
use esper_graph::precision::WorkingCopy;
use leyline::id::TopologyRevision;
use leyline::layout::{Owner, ParameterLayout, Segment};
use leyline::model::Parameter;

use super::ascending::Ascending;
use super::optimizer::Optimizer;
use crate::error::Error;

/// Of matrices and biases: what layers make of weights of more dimensions is another tensor than the parameter.
const RANKS: std::ops::RangeInclusive<usize> = 1..=2;

/// Copies by the names of their parameters.
#[derive(Debug, Default)]
pub(super) struct Copies {
    of: BTreeMap<String, Tensor>,
    /// The structure in which each of them is its parameter, rounded to the nearest, ties to even; absent where that is not known.
    known: Option<TopologyRevision>,
}

impl Copies {
    pub(super) fn of(&self, name: &str) -> Option<&Tensor> {
        self.of.get(name)
    }

    /// Makes places for the copies of parameters that have none.
    pub(super) fn prepare(&mut self, parameters: &[Parameter], layout: &ParameterLayout) -> Result<(), Error> {
        let mut copies = Ascending::new(&self.of);
        let fits = |var: &Var, copy: &Tensor| copy.shape() == var.shape() && copy.device().same_device(var.device());
        let is_new = |(Parameter { name, var }, segment): &(&Parameter, &Segment)| {
            let is_copied = RANKS.contains(&var.rank()) && var.dtype() == DType::F32 && segment.len > 0;
            let is_copied = is_copied && segment.spec.owner == Owner::Host;
            is_copied && !copies.get(name).is_some_and(|copy| fits(var, copy))
        };
        let new: Vec<_> = parameters.iter().zip(layout.segments()).filter(is_new).collect();
        for (Parameter { name, var }, _) in new {
            self.of.insert(name.clone(), Tensor::zeros(var.shape(), DType::BF16, var.device())?);
            self.known = None;
        }
        Ok(())
    }

    pub(super) fn doubt(&mut self) {
        self.known = None;
    }

    pub(super) fn refresh(&mut self, parameters: &[Parameter], revision: TopologyRevision) -> Result<(), Error> {
        if self.known != Some(revision) {
            self.write(parameters.iter())?;
            self.known = Some(revision);
        }
        Ok(())
    }

    /// Rounds parameters to their copies.
    pub(super) fn write<'a>(&self, parameters: impl Iterator<Item = &'a Parameter>) -> Result<(), Error> {
        for parameter in parameters {
            if let Some(copy) = self.of(&parameter.name) {
                copy.slice_set(&parameter.var.as_detached_tensor().to_dtype(DType::BF16)?.contiguous()?, 0, 0)?;
            }
        }
        Ok(())
    }

    pub(super) fn working(
        &self,
        parameters: &[Parameter],
        revision: TopologyRevision,
    ) -> Result<Vec<WorkingCopy>, Error> {
        if self.known != Some(revision) {
            return Ok(Vec::new());
        }
        let with_copy = parameters.iter().filter_map(|parameter| Some((parameter, self.of(&parameter.name)?)));
        Ok(with_copy.map(|(of, copy)| WorkingCopy::new(&of.var, copy)).collect::<candle_core::Result<_>>()?)
    }

    pub(super) fn retain(&mut self, is_named: impl Fn(&String) -> bool) {
        self.of.retain(|name, _| is_named(name));
    }
}

impl Optimizer {
    /// The same with a copy in `bf16` of each matrix and vector of `f32` of the host, which every update writes with its
    /// parameter: with these [`working_copies`](Self::working_copies) a step does not round the weights. They take 2 bytes per
    /// element, and are no part of what is saved.
    ///
    /// # Examples
    /// ```
    /// use candle_core::{DType, Device, Tensor, Var};
    /// use esper_graph::Precision;
    /// use esper_graph::precision::{with_copies, working_copy};
    /// use leyline::id::TopologyRevision;
    /// use leyline::layout::{Owner, ParameterLayout, SegmentSpec};
    /// use leyline::model::Parameter;
    /// use tolaria::optim::{Optimizer, OptimizerConfig};
    ///
    /// let name = || "w".to_owned();
    /// let spec = SegmentSpec { name: name(), shape: vec![1, 2], owner: Owner::Host, isolated: false };
    /// let layout = ParameterLayout::new(TopologyRevision(0), vec![spec])?;
    /// let w = Var::new(&[[1.0_f32, 2.0]], &Device::Cpu)?;
    /// let parameters = [Parameter { name: name(), var: w.clone() }];
    /// let gradient = Tensor::new(&[1.0_f32, -1.0], &Device::Cpu)?;
    ///
    /// let sgd = OptimizerConfig::Sgd { momentum: 0.0, nesterov: false, weight_decay: 0.0 };
    /// let mut optimizer = Optimizer::new(sgd).copying(true);
    /// optimizer.step(&parameters, &layout, &gradient, 1.0 / 512.0)?;
    /// optimizer.refresh_copies(&parameters, &layout)?;
    /// optimizer.step(&parameters, &layout, &gradient, 1.0 / 512.0)?;
    /// let copies = optimizer.working_copies(&parameters, &layout)?;
    /// let copy = with_copies(Precision::Bf16, copies, || working_copy(&w, DType::BF16)).0.unwrap();
    /// assert_eq!(w.to_vec2::<f32>()?, [[0.996_093_75, 2.003_906_25]]);
    /// assert_eq!(copy.to_dtype(DType::F32)?.to_vec2::<f32>()?, [[0.996_093_75, 2.0]]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn copying(mut self, is_copying: bool) -> Self {
        self.copies = is_copying.then(Copies::default);
        self
    }

    /// Rounds the parameters of `layout` to their copies, where these are not known to be that: before the first update, for
    /// another layout, and after [`doubt_copies`](Self::doubt_copies).
    ///
    /// # Errors
    /// When the device fails.
    /// # Sync
    /// none; not in a recording
    pub fn refresh_copies(&mut self, parameters: &[Parameter], layout: &ParameterLayout) -> Result<(), Error> {
        self.copies.as_mut().map_or(Ok(()), |copies| copies.refresh(parameters, layout.revision()))
    }

    /// Somebody else may have written parameters: copies are not used before they are refreshed.
    pub fn doubt_copies(&mut self) {
        if let Some(copies) = &mut self.copies {
            copies.doubt();
        }
    }

    /// The copies of `parameters`; none where they are not known to be what these are rounded to.
    ///
    /// # Errors
    /// When a parameter is not the one that was copied.
    pub fn working_copies(
        &self,
        parameters: &[Parameter],
        layout: &ParameterLayout,
    ) -> Result<Vec<WorkingCopy>, Error> {
        self.copies.as_ref().map_or(Ok(Vec::new()), |copies| copies.working(parameters, layout.revision()))
    }

    /// The copies of the parameters of `layout`, as [`Self::moments`].
    pub(crate) fn copies<'a>(&'a self, layout: &'a ParameterLayout) -> impl Iterator<Item = (&'a str, &'a Tensor)> {
        let names = layout.segments().iter().map(|segment| segment.spec.name.as_str());
        names.filter_map(|name| Some((name, self.copies.as_ref()?.of(name)?)))
    }
}
