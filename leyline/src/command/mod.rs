//! Commands of the policy to the seed manager, and the signed bytes in which they travel.
//!
//! A command is written as canonical bytes ([`Command::to_bytes`]), signed by its issuer and verified by its receiver
//! over exactly these bytes before anything in them is parsed. Signing and verifying live with issuer and receiver;
//! this module fixes the bytes.

mod wire;

pub use wire::WireError;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::id::{BlueprintId, RunId, SeedId, SlotId};
use crate::unit::Alpha;

/// Shape of an alpha ramp.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AlphaCurve {
    /// In proportion to the steps.
    #[default]
    Linear,
    /// Half a cosine wave: slow at both ends.
    Cosine,
    /// Logistic with steepness 12, rescaled so that it starts and ends exactly.
    Sigmoid,
}

/// How alpha is to move.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct AlphaRamp {
    /// Where it ends, exactly.
    pub target: Alpha,
    /// Optimizer steps until it ends; 0 jumps at once.
    pub steps: u64,
    /// Its shape.
    pub curve: AlphaCurve,
}

/// What is to happen to a seed. The wire number of each is in brackets.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// Put a new seed into a free slot \[1\].
    Germinate {
        /// Where.
        slot: SlotId,
        /// What.
        blueprint: BlueprintId,
    },
    /// Start shadow training \[2\].
    StartTraining {
        /// The seed.
        seed: SeedId,
    },
    /// Start blending, or retarget a seed that holds \[3\].
    StartBlending {
        /// The seed.
        seed: SeedId,
        /// How alpha moves.
        ramp: AlphaRamp,
    },
    /// Go from blending to holding \[4\].
    Hold {
        /// The seed.
        seed: SeedId,
    },
    /// Make the seed permanent \[7\].
    Fossilize {
        /// The seed.
        seed: SeedId,
    },
    /// Remove the seed at once \[8\].
    Cull {
        /// The seed.
        seed: SeedId,
    },
}

impl Operation {
    /// The wire number. 5 (evaluate), 6 (fine-tune) and 9 (cancel) of the older system are not used.
    #[must_use]
    pub const fn wire(&self) -> u8 {
        match self {
            Self::Germinate { .. } => 1,
            Self::StartTraining { .. } => 2,
            Self::StartBlending { .. } => 3,
            Self::Hold { .. } => 4,
            Self::Fossilize { .. } => 7,
            Self::Cull { .. } => 8,
        }
    }

    /// The seed it names; none for a germination.
    #[must_use]
    pub const fn seed(&self) -> Option<SeedId> {
        match self {
            Self::Germinate { .. } => None,
            Self::StartTraining { seed }
            | Self::StartBlending { seed, .. }
            | Self::Hold { seed }
            | Self::Fossilize { seed }
            | Self::Cull { seed } => Some(*seed),
        }
    }

    /// The name in snake case.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Germinate { .. } => "germinate",
            Self::StartTraining { .. } => "start_training",
            Self::StartBlending { .. } => "start_blending",
            Self::Hold { .. } => "hold",
            Self::Fossilize { .. } => "fossilize",
            Self::Cull { .. } => "cull",
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Germinate { slot, blueprint } => write!(f, "germinate {blueprint} in {slot}"),
            Self::StartBlending { seed, ramp } => {
                write!(f, "start_blending {seed} to {} in {} steps", ramp.target, ramp.steps)
            }
            Self::StartTraining { seed } | Self::Hold { seed } | Self::Fossilize { seed } | Self::Cull { seed } => {
                write!(f, "{} {seed}", self.name())
            }
        }
    }
}

/// An operation with what is needed to refuse a forged, stale or repeated one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Command {
    /// The run it is meant for.
    pub run_id: RunId,
    /// Grows from command to command; the receiver accepts each number once and in order.
    pub sequence: u64,
    /// Milliseconds since 1970-01-01 UTC.
    pub issued_at_unix_ms: u64,
    /// What is to happen.
    pub operation: Operation,
    /// Why, for people; at most 256 bytes.
    pub reason: String,
}

/// Canonical bytes of a command with their HMAC-SHA256 tag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignedCommand {
    /// See [`Command::to_bytes`].
    pub bytes: Vec<u8>,
    /// HMAC-SHA256 over `bytes`.
    pub tag: [u8; 32],
}
