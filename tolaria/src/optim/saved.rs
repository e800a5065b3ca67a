//! The optimizer's state in snapshots and checkpoints.
//!
//! The document is `{"version":1,"optimizer":"adam_w","steps":{"<parameter>":<updates>, …},"owners":{"<parameter>":<owner>, …}}`,
//! with the owners of the parameters that are not the host's; the tensor of a parameter has its name and shape (moments,
//! elements): the velocity, or the first and second moments. `rest of <parameter>` has the lower halves of one of `bf16`, where they are kept.

use std::collections::BTreeMap;

use candle_core::{DType, Tensor, Var};
use leyline::durable::{Durable, SavedState};
use leyline::error::ErrorType;
use leyline::layout::Owner;
use leyline::region::Eager;
use serde::{Deserialize, Serialize};

use super::average::{self, Average, PREFIX, REST};
use super::optimizer::Optimizer;
use super::rounding::DrawKey;
use super::state::ParameterState;
use crate::error::Error;

const VERSION: u32 = 1;
const FIELD: &str = "optimizer";

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    version: u32,
    optimizer: String,
    steps: BTreeMap<String, u64>,
    /// Earlier versions wrote none, and kept nothing of a seed that is paused.
    #[serde(default)]
    owners: BTreeMap<String, Owner>,
    /// Updates of the averages; their tensors are named `average of <parameter>`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    averages: BTreeMap<String, u64>,
}

impl ErrorType for Optimizer {
    type Error = Error;
}

impl Durable for Optimizer {
    fn save(&self, eager: &Eager) -> Result<SavedState, Error> {
        eager.check()?;
        let mut tensors = BTreeMap::new();
        let averages = self.averages.as_ref().map(|averages| averages.save(&mut tensors)).transpose()?;
        for (name, state) in &self.states {
            if let Some(moments) = &state.moments {
                tensors.insert(name.clone(), moments.copy()?);
            }
            if let Some(rest) = &state.rest {
                tensors.insert(format!("{REST}{name}"), rest.copy()?);
            }
        }
        let of_averages =
            self.averages.iter().flat_map(|averages| averages.of.iter().map(|(name, of)| (name, of.owner)));
        let of_all = self.states.iter().map(|(name, state)| (name, state.owner)).chain(of_averages);
        let of_seeds = of_all.filter(|(_, owner)| *owner != Owner::Host);
        let document = Document {
            version: VERSION,
            optimizer: self.config.name().to_owned(),
            steps: self.states.iter().map(|(name, state)| (name.clone(), state.steps)).collect(),
            owners: of_seeds.map(|(name, owner)| (name.clone(), owner)).collect(),
            averages: averages.unwrap_or_default(),
        };
        Ok(SavedState { json: serde_json::to_string(&document).map_err(|error| refused(error.to_string()))?, tensors })
    }

    /// The constants of the optimizer may differ from those of the one that saved; its kind may not.
    fn restore(&mut self, eager: &mut Eager, saved: &SavedState) -> Result<(), Error> {
        eager.check()?;
        let document: Document = serde_json::from_str(&saved.json).map_err(|error| refused(error.to_string()))?;
        if document.version != VERSION {
            return Err(refused(format!("expected version {VERSION}, found {}", document.version)));
        }
        if document.optimizer != self.config.name() {
            return Err(refused(format!("expected `{}`, found `{}`", self.config.name(), document.optimizer)));
        }
        let (keeps, has) = (self.averages.is_some(), !document.averages.is_empty());
        // Before the first step there are none in either.
        if (has && !keeps) || (keeps && !has && !document.steps.is_empty()) {
            return Err(refused("expected averages of parameters where they are kept, and none elsewhere".to_owned()));
        }
        let is_average =
            |name: &str| average::parameter_of(name).is_some_and(|name| document.averages.contains_key(name));
        let known = |name: &&String| {
            let name = name.strip_prefix(REST).unwrap_or(name);
            document.steps.contains_key(name) || is_average(name)
        };
        if let Some(name) = saved.tensors.keys().find(|name| !known(name)) {
            return Err(refused(format!("there are moments of `{name}`, but no step count")));
        }
        let mut states = BTreeMap::new();
        for (name, steps) in document.steps {
            let (moments, num_moments) = (saved.tensors.get(&name), self.config.num_moments());
            match moments {
                Some(moments) => check_moments(&name, moments, num_moments)?,
                None if num_moments > 0 => return Err(refused(format!("`{name}` has no moments"))),
                None => {}
            }
            let owner = document.owners.get(&name).copied().unwrap_or(Owner::Host);
            let (moments, rest) = (copied(moments)?, rest_of(saved, &name)?);
            let key = DrawKey::of(&name);
            states.insert(name, ParameterState { owner, steps, moments, rest, key });
        }
        let mut averages = BTreeMap::new();
        let found: BTreeMap<&str, &Tensor> = super::averages(saved).collect();
        for (name, steps) in document.averages {
            let value = found.get(&*name).ok_or_else(|| refused(format!("`{name}` has no average")))?;
            let owner = document.owners.get(&name).copied().unwrap_or(Owner::Host);
            let rest = rest_of(saved, &format!("{PREFIX}{name}"))?;
            averages
                .insert(name, Average { owner, steps, value: Var::from_tensor(&value.contiguous()?.copy()?)?, rest });
        }
        if let Some(kept) = &mut self.averages {
            kept.of = averages;
        }
        self.states = states;
        Ok(())
    }
}

impl Optimizer {
    /// Whether averages are to be kept and none is there yet.
    pub(crate) fn lacks_averages(&self) -> bool {
        self.averages.as_ref().is_some_and(|averages| averages.of.is_empty())
    }
}

/// A copy: the update works in place, and a snapshot may be restored more than once.
fn copied(tensor: Option<&Tensor>) -> candle_core::Result<Option<Tensor>> {
    tensor.map(|tensor| tensor.contiguous()?.copy()).transpose()
}

/// The lower halves of a parameter or an average, where there are any.
fn rest_of(saved: &SavedState, name: &str) -> Result<Option<Tensor>, Error> {
    let rest = saved.tensors.get(&format!("{REST}{name}"));
    match rest.filter(|rest| rest.dtype() != DType::I16 || rest.rank() != 1) {
        Some(rest) => {
            let found = format!("{:?} {:?}", rest.dtype(), rest.dims());
            Err(refused(format!("rest of `{name}`: expected I16 of shape (elements), found {found}")))
        }
        None => Ok(copied(rest)?),
    }
}

fn check_moments(name: &str, moments: &Tensor, expected: usize) -> Result<(), Error> {
    let is_float = matches!(moments.dtype(), DType::F16 | DType::BF16 | DType::F32 | DType::F64);
    if expected > 0 && is_float && moments.rank() == 2 && moments.dims()[0] == expected {
        return Ok(());
    }
    let found = format!("{:?} {:?}", moments.dtype(), moments.dims());
    Err(refused(format!("moments of `{name}`: expected floats of shape ({expected}, elements), found {found}")))
}

fn refused(message: String) -> Error {
    Error::State { field: FIELD, message }
}
