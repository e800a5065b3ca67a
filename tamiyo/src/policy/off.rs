//! The control without seeds: the host alone.

use leyline::state::SystemState;
use serde::{Deserialize, Serialize};

use crate::policy::{Proposal, Settings};

/// Never does anything, and says so. There is nothing to set, and nothing to remember.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OffConfig;

impl Settings for OffConfig {
    type Memory = ();

    fn begin(&self) {}

    fn propose(&self, (): &mut (), _state: &SystemState) -> Vec<Proposal> {
        vec![Proposal::wait("off", "the policy is `off`: nothing germinates")]
    }
}
