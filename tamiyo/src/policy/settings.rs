//! What a policy is: settings, which are a section of the configuration, and a memory.

use std::fmt::Debug;

use leyline::durable::{Durable, SavedState};
use leyline::error::ErrorType;
use leyline::region::Eager;
use leyline::seed::SlotState;
use leyline::state::SystemState;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::Error;
use crate::issues::Issues;
use crate::policy::Proposal;
use crate::policy::learned::Held;
use crate::tracker::Signals;

/// A policy by its settings: what it proposes follows from them, from its memory and from the state.
///
/// # For implementers
/// The same states in the same order, or a saved and restored memory in between, give the same proposals: no clock, no
/// ambient randomness. Whether proposals fit the state is checked elsewhere.
pub trait Settings: Debug + Clone + Default + PartialEq + Serialize + DeserializeOwned + Send + 'static {
    /// Everything that later proposals depend on besides settings and states.
    type Memory: Debug + Serialize + DeserializeOwned + Send;

    /// The memory of a run that begins.
    fn begin(&self) -> Self::Memory;

    /// What is to happen at this decision boundary, in any order; [`Proposal::precedence`] orders it.
    fn propose(&self, memory: &mut Self::Memory, state: &SystemState) -> Vec<Proposal>;

    /// What is known about the host's progress; absent for a policy that does not follow it.
    fn signals(&self, _memory: &Self::Memory) -> Option<Signals> {
        None
    }

    /// The network that decides; absent where none does.
    fn held<'a>(&self, _memory: &'a Self::Memory) -> Option<&'a Held> {
        None
    }

    /// Decides by this network from now on; a policy without networks does not change.
    fn hold(&self, _memory: &mut Self::Memory, _held: Held) {}

    /// Tells the values that cannot be used.
    fn check(&self, _issues: &mut Issues) {}

    /// Tells the slots and blueprints that are named and that a network with these slots does not have.
    fn check_names(&self, _slots: &[SlotState], _issues: &mut Issues) {}
}

/// A policy with its memory, whichever it is.
pub(crate) trait Proposer: Durable<Error = Error> + Send + Debug {
    /// See [`Settings::propose`].
    fn propose(&mut self, state: &SystemState) -> Vec<Proposal>;

    /// See [`Settings::signals`].
    fn signals(&self) -> Option<Signals>;

    /// See [`Settings::held`].
    fn held(&self) -> Option<&Held>;

    /// See [`Settings::hold`].
    fn hold(&mut self, held: Held);
}

/// A policy that has begun.
#[derive(Debug)]
pub(crate) struct Begun<S: Settings> {
    settings: S,
    memory: S::Memory,
}

impl<S: Settings> Begun<S> {
    pub(crate) fn new(settings: S) -> Self {
        Self { memory: settings.begin(), settings }
    }
}

impl<S: Settings> Proposer for Begun<S> {
    fn propose(&mut self, state: &SystemState) -> Vec<Proposal> {
        self.settings.propose(&mut self.memory, state)
    }

    fn signals(&self) -> Option<Signals> {
        self.settings.signals(&self.memory)
    }

    fn held(&self) -> Option<&Held> {
        self.settings.held(&self.memory)
    }

    fn hold(&mut self, held: Held) {
        self.settings.hold(&mut self.memory, held);
    }
}

impl<S: Settings> ErrorType for Begun<S> {
    type Error = Error;
}

impl<S: Settings> Durable for Begun<S> {
    fn save(&self, eager: &Eager) -> Result<SavedState, Error> {
        eager.check()?;
        let json = serde_json::to_string(&self.memory).map_err(Error::Save)?;
        Ok(SavedState { json, ..SavedState::default() })
    }

    fn restore(&mut self, eager: &mut Eager, saved: &SavedState) -> Result<(), Error> {
        eager.check()?;
        self.memory = serde_json::from_str(&saved.json).map_err(Error::Restore)?;
        Ok(())
    }
}
