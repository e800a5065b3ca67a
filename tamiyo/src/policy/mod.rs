//! The policies that can decide: one that weighs evidence, and the controls it has to beat.
//!
//! Each implements [`Proposer`]: it sees a state and says what it would do. What it proposes is checked against the
//! state by [`Tamiyo`](crate::Tamiyo), so none of them can name a seed, slot or blueprint that is not there.

mod proposal;
mod proposer;
mod off;
mod fixed;
mod random;
pub mod heuristic;

pub use fixed::{Fixed, FixedMemory};
pub use heuristic::{Heuristic, HeuristicMemory};
pub use off::Off;
pub use proposal::Proposal;
pub(crate) use proposer::build;
pub use proposer::{Memory, Proposer};
pub use random::{Random, RandomMemory};
