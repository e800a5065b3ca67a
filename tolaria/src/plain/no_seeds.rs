//! A seed manager without seeds, for networks that do not grow.

use std::collections::{BTreeMap, BTreeSet};

use candle_core::Var;
use leyline::batch::Batch;
use leyline::command::SignedCommand;
use leyline::durable::{Durable, SavedState};
use leyline::error::ErrorType;
use leyline::id::{EpochIndex, StepIndex};
use leyline::model::TrainableModel;
use leyline::region::{Eager, ThreadBinding};
use leyline::seed::{Applied, Attribution, Evidence, SeedManager, SeedState, SlotState, Transition};

use serde::{Deserialize, Serialize};

use crate::error::Error;

const FORMAT: u32 = 1;

/// Everything but the tensors: a network without seeds has nothing else.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    format: u32,
}

/// Owns a network and refuses every command.
#[derive(Debug)]
pub struct NoSeeds<M> {
    model: M,
    /// What training changes beside the parameters.
    buffers: Vec<(String, Var)>,
    thread: ThreadBinding,
}

impl<M: TrainableModel> NoSeeds<M> {
    /// Wraps `model`, which changes nothing but its parameters.
    pub fn new(model: M) -> Self {
        Self { model, buffers: Vec::new(), thread: ThreadBinding::new() }
    }

    /// Wraps `model`, which in training changes `buffers` beside its parameters: counters of random draws
    /// ([`DrawCounter::as_var`](crate::random::DrawCounter::as_var)), running statistics. They are saved, and restored in
    /// place, so that a run that is taken up goes on as if it had not stopped.
    ///
    /// # Errors
    /// [`Error::LayoutMismatch`] when two of them, or a parameter, have one name.
    pub fn with_buffers(model: M, buffers: Vec<(String, Var)>) -> Result<Self, Error> {
        let mut names: BTreeSet<&str> = model.parameters().iter().map(|parameter| parameter.name.as_str()).collect();
        if let Some((name, _)) = buffers.iter().find(|(name, _)| !names.insert(name)) {
            return Err(Error::mismatch("buffers", "names of their own", format!("`{name}` twice")));
        }
        Ok(Self { model, buffers, thread: ThreadBinding::new() })
    }

    /// Parameters and buffers.
    fn variables(&self) -> impl Iterator<Item = (&str, &Var)> {
        let parameters = self.model.parameters().iter().map(|parameter| (parameter.name.as_str(), &parameter.var));
        parameters.chain(self.buffers.iter().map(|(name, var)| (name.as_str(), var)))
    }
}

impl<M: TrainableModel> ErrorType for NoSeeds<M> {
    type Error = Error;
}

impl<M: TrainableModel> Durable for NoSeeds<M> {
    fn save(&self, eager: &Eager) -> Result<SavedState, Error> {
        self.thread.check(eager)?;
        let tensors = self
            .variables()
            .map(|(name, var)| Ok((name.to_owned(), var.as_tensor().copy()?)))
            .collect::<Result<BTreeMap<_, _>, Error>>()?;
        let json = serde_json::to_string(&Document { format: FORMAT })
            .map_err(|e| Error::State { field: "seeds", message: e.to_string() })?;
        Ok(SavedState { json, tensors })
    }

    fn restore(&mut self, eager: &mut Eager, saved: &SavedState) -> Result<(), Error> {
        self.thread.check(eager)?;
        let document: Document =
            serde_json::from_str(&saved.json).map_err(|e| Error::State { field: "seeds", message: e.to_string() })?;
        if document.format != FORMAT {
            let message = format!("expected format {FORMAT}, found {}", document.format);
            return Err(Error::State { field: "seeds", message });
        }
        if let Some(name) = saved.tensors.keys().find(|name| !self.variables().any(|(known, _)| known == *name)) {
            return Err(Error::State { field: "seeds", message: format!("no parameter or buffer is named `{name}`") });
        }
        let mut updates = Vec::with_capacity(saved.tensors.len());
        for (name, var) in self.variables() {
            let tensor = saved
                .tensors
                .get(name)
                .filter(|tensor| tensor.dims() == var.dims() && tensor.dtype() == var.dtype())
                .ok_or_else(|| Error::State {
                    field: "seeds",
                    message: format!("no tensor of the right shape and dtype for `{name}`"),
                })?;
            updates.push((var, tensor.to_device(var.device())?));
        }
        for (var, tensor) in updates {
            var.set(&tensor)?;
        }
        Ok(())
    }
}

impl<M: TrainableModel> SeedManager for NoSeeds<M> {
    type Model = M;

    fn model(&self) -> &M {
        &self.model
    }

    fn attribute_batch(&mut self, eager: &Eager, _batch: &Batch) -> Result<Attribution, Error> {
        self.thread.check(eager)?;
        Ok(Attribution::host_only())
    }

    fn inspect_batch(&mut self, eager: &Eager, _batch: &Batch) -> Result<(), Error> {
        Ok(self.thread.check(eager)?)
    }

    fn export_seed_states(&self, eager: &Eager) -> Result<Vec<SeedState>, Error> {
        self.thread.check(eager)?;
        Ok(Vec::new())
    }

    fn export_slot_states(&self, eager: &Eager) -> Result<Vec<SlotState>, Error> {
        self.thread.check(eager)?;
        Ok(Vec::new())
    }

    fn apply(&mut self, eager: &mut Eager, _command: &SignedCommand) -> Result<Applied, Error> {
        self.thread.check(eager)?;
        Err(Error::NoSlots)
    }

    fn record_evidence(&mut self, eager: &Eager, evidence: &[Evidence]) -> Result<(), Error> {
        self.thread.check(eager)?;
        match evidence.first() {
            Some(first) => Err(Error::UnknownSeed { seed: first.seed }),
            None => Ok(()),
        }
    }

    fn finish_step(&mut self, eager: &mut Eager, _step: StepIndex) -> Result<(), Error> {
        Ok(self.thread.check(eager)?)
    }

    fn finish_epoch(&mut self, eager: &mut Eager, _epoch: EpochIndex) -> Result<Vec<Transition>, Error> {
        self.thread.check(eager)?;
        Ok(Vec::new())
    }
}
