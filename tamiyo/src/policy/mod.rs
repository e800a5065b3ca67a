//! The policies that can decide: one that weighs evidence, and the controls it has to beat.
//!
//! Each is a [`Settings`]: it sees a state and says what it would do, and owns its section of the configuration and its
//! memory. What it proposes is checked against the state by [`Tamiyo`](crate::Tamiyo), so none of them can name a seed, slot or
//! blueprint that is not there.
//!
//! A new policy is a file here, a line in the list below, and what a configuration says of it.

mod settings;
mod registry;
mod proposal;
pub mod heuristic;
mod off;
mod fixed;
mod random;
pub mod learned;

use std::fmt;

use leyline::command::Blend;
use leyline::config::ConfigIssue;
use leyline::seed::SlotState;
use serde::{Deserialize, Serialize};

pub use fixed::{FixedConfig, FixedGermination, FixedPause};
pub use heuristic::HeuristicConfig;
pub use learned::LearnedConfig;
pub use off::OffConfig;
pub use proposal::Proposal;
pub use random::RandomConfig;
pub use settings::Settings;

use crate::issues::Issues;
use crate::risk::RiskConfig;
use settings::Begun;
pub(crate) use settings::Proposer;

registry::policies! {
    /// Decides from measured evidence.
    Heuristic heuristic: HeuristicConfig;
    /// Grows nothing.
    Off off: OffConfig, #[serde(skip)];
    /// Grows by a clock, whatever was measured.
    Fixed fixed: FixedConfig;
    /// Takes random legal actions.
    Random random: RandomConfig;
    /// Decides by a network that was trained over many runs.
    Learned learned: LearnedConfig, #[serde(skip_serializing_if = "LearnedConfig::is_usual")];
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
