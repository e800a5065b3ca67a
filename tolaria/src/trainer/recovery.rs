//! What a run goes back to: settings.

use std::num::NonZeroU64;

use serde::{Deserialize, Serialize};

use crate::trainer::ring::Ring;

const MIB: u64 = 1 << 20;

/// What a run goes back to when [`Trainer::roll_back`](crate::trainer::Trainer::roll_back) says so. As TOML: `recovery = { memory_mib = 256 }`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RecoveryConfig {
    /// Memory for known-good states, MiB, on the device of the network: about three times its parameters for each state of
    /// AdamW, at least two states. 0 keeps none.
    pub memory_mib: u32,
    /// A restore that takes longer is discarded, milliseconds; absent waits for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<NonZeroU64>,
}

impl RecoveryConfig {
    pub(super) fn is_default(&self) -> bool {
        *self == Self::default()
    }

    pub(super) fn budget(&self) -> u64 {
        u64::from(self.memory_mib) * MIB
    }
}

/// What a trainer has for going back.
#[derive(Debug, Default)]
pub(super) struct Recovery {
    pub(super) ring: Ring,
}
