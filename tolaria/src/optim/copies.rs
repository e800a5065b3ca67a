//! Copies of weights in the type in which they are multiplied: the update that moves a weight writes its copy too.
//!
//! Products of half precision multiply the rounded weight. To round it in each step reads all weights once more; the update has
//! each number at hand. What else writes a parameter, a checkpoint or a graft, does not know of its copy: so a copy counts
//! for one structure of the network, and only until somebody doubts it. Between two steps of an epoch a seed manager writes into its
//! seeds, as with weights that arrive: theirs are not copied.

use std::collections::BTreeMap;

use candle_core::{DType, Tensor};
use esper_graph::precision::WorkingCopy;
use leyline::id::TopologyRevision;
use leyline::layout::Owner;
use leyline::model::Parameter;

use crate::error::Error;

/// Matrices and biases: what layers make of weights of more dimensions is another tensor than the parameter.
const MAX_RANK: usize = 2;

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

    /// Makes a place for the copy of a parameter that has none.
    pub(super) fn prepare(&mut self, parameter: &Parameter, owner: Owner) -> Result<(), Error> {
        let var = &parameter.var;
        if owner != Owner::Host || var.rank() > MAX_RANK || var.dtype() != DType::F32 {
            return Ok(());
        }
        let fits = |copy: &Tensor| copy.shape() == var.shape() && copy.device().same_device(var.device());
        if !self.of(&parameter.name).is_some_and(fits) {
            self.of.insert(parameter.name.clone(), Tensor::zeros(var.shape(), DType::BF16, var.device())?);
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
