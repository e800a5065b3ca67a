//! The inner contract: a policy proposes and remembers; checking and signing are not its business.

use leyline::state::SystemState;
use serde::{Deserialize, Serialize};

use crate::config::{PolicyKind, TamiyoConfig};
use crate::error::Error;
use crate::policy::{Fixed, FixedMemory, Heuristic, HeuristicMemory, Off, Proposal, Random, RandomMemory};
use crate::tracker::Signals;

/// Decides without signing.
///
/// # For implementers
/// The same states in the same order, or `recall(memory())` in between, give the same proposals.
pub trait Proposer: Send + std::fmt::Debug {
    /// Which policy this is.
    fn kind(&self) -> PolicyKind;

    /// What is to happen at this decision boundary, in any order; [`Proposal::precedence`] orders it.
    fn propose(&mut self, state: &SystemState) -> Vec<Proposal>;

    /// What is known about the host's progress; absent for a policy that does not follow it.
    fn signals(&self) -> Option<Signals> {
        None
    }

    /// Everything that later proposals depend on besides configuration and states.
    fn memory(&self) -> Memory;

    /// Takes `memory` back.
    ///
    /// # Errors
    /// [`Error::RestorePolicy`] for the memory of another policy; then nothing was changed.
    fn recall(&mut self, memory: Memory) -> Result<(), Error>;
}

/// What a policy remembers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Memory {
    /// Of [`Heuristic`].
    Heuristic(HeuristicMemory),
    /// Of [`Off`].
    Off,
    /// Of [`Fixed`].
    Fixed(FixedMemory),
    /// Of [`Random`].
    Random(RandomMemory),
}

impl Memory {
    /// The policy it belongs to.
    #[must_use]
    pub const fn kind(&self) -> PolicyKind {
        match self {
            Self::Heuristic(_) => PolicyKind::Heuristic,
            Self::Off => PolicyKind::Off,
            Self::Fixed(_) => PolicyKind::Fixed,
            Self::Random(_) => PolicyKind::Random,
        }
    }

    pub(super) fn mismatch(&self, expected: PolicyKind) -> Error {
        Error::RestorePolicy { expected, found: self.kind() }
    }
}

/// The configured policy, with nothing remembered.
pub(crate) fn build(config: TamiyoConfig) -> Box<dyn Proposer> {
    match config.policy {
        PolicyKind::Heuristic => Box::new(Heuristic::new(config.heuristic)),
        PolicyKind::Off => Box::new(Off),
        PolicyKind::Fixed => Box::new(Fixed::new(config.fixed)),
        PolicyKind::Random => Box::new(Random::new(config.random)),
    }
}
