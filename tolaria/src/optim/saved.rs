//! The optimizer's state in snapshots and checkpoints.
//!
//! The document is `{"version":1,"optimizer":"adam_w","steps":{"<parameter>":<updates>, …},"owners":{"<parameter>":<owner>, …}}`,
//! with the owners of the parameters that are not the host's; the tensor of a parameter has its name and shape (moments,
//! elements): the velocity, or the first and second moments.

use std::collections::BTreeMap;

use candle_core::{DType, Tensor};
use leyline::durable::{Durable, SavedState};
use leyline::error::ErrorType;
use leyline::layout::Owner;
use leyline::region::Eager;
use serde::{Deserialize, Serialize};

use super::optimizer::{Optimizer, ParameterState};
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
}

impl ErrorType for Optimizer {
    type Error = Error;
}

impl Durable for Optimizer {
    fn save(&self, eager: &Eager) -> Result<SavedState, Error> {
        eager.check()?;
        let of_seeds = self.states.iter().filter(|(_, state)| state.owner != Owner::Host);
        let document = Document {
            version: VERSION,
            optimizer: self.config.name().to_owned(),
            steps: self.states.iter().map(|(name, state)| (name.clone(), state.steps)).collect(),
            owners: of_seeds.map(|(name, state)| (name.clone(), state.owner)).collect(),
        };
        Ok(SavedState {
            json: serde_json::to_string(&document).map_err(|error| refused(error.to_string()))?,
            tensors: self
                .states
                .iter()
                .map(|(name, state)| Ok((name.clone(), state.moments.copy()?)))
                .collect::<Result<_, Error>>()?,
        })
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
        if let Some(name) = saved.tensors.keys().find(|name| !document.steps.contains_key(*name)) {
            return Err(refused(format!("there are moments of `{name}`, but no step count")));
        }
        let mut states = BTreeMap::new();
        for (name, steps) in document.steps {
            let moments = saved.tensors.get(&name).ok_or_else(|| refused(format!("`{name}` has no moments")))?;
            check_moments(&name, moments, self.config.num_moments())?;
            let owner = document.owners.get(&name).copied().unwrap_or(Owner::Host);
            // A copy: the update works in place, and a snapshot may be restored more than once.
            states.insert(name, ParameterState { owner, steps, moments: moments.contiguous()?.copy()? });
        }
        self.states = states;
        Ok(())
    }
}

fn check_moments(name: &str, moments: &Tensor, expected: usize) -> Result<(), Error> {
    let is_float = matches!(moments.dtype(), DType::F16 | DType::BF16 | DType::F32 | DType::F64);
    if is_float && moments.rank() == 2 && moments.dims()[0] == expected {
        return Ok(());
    }
    let found = format!("{:?} {:?}", moments.dtype(), moments.dims());
    Err(refused(format!("moments of `{name}`: expected floats of shape ({expected}, elements), found {found}")))
}

fn refused(message: String) -> Error {
    Error::State { field: FIELD, message }
}
