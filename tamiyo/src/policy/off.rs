//! The control without seeds: the host alone.

use leyline::state::SystemState;

use crate::config::PolicyKind;
use crate::error::Error;
use crate::policy::{Memory, Proposal, Proposer};

/// Never does anything, and says so.
#[derive(Debug, Clone, Copy, Default)]
pub struct Off;

impl Proposer for Off {
    fn kind(&self) -> PolicyKind {
        PolicyKind::Off
    }

    fn propose(&mut self, _state: &SystemState) -> Vec<Proposal> {
        vec![Proposal::wait("off", "the policy is `off`: nothing germinates")]
    }

    fn memory(&self) -> Memory {
        Memory::Off
    }

    fn recall(&mut self, memory: Memory) -> Result<(), Error> {
        match memory {
            Memory::Off => Ok(()),
            other @ (Memory::Heuristic(_) | Memory::Fixed(_) | Memory::Random(_)) => Err(other.mismatch(self.kind())),
        }
    }
}
