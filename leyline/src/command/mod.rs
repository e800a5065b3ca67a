//! What a policy orders of a seed manager, and the signed bytes in which orders travel.
//!
//! An [`Order`] is an operation with its reason, and all that policies and seed managers know of. Where the way between
//! them is not to be trusted, a layer around the policy signs and one around the manager verifies, as `esper-signing` does:
//! the order then carries a [`Command`] as canonical bytes ([`Command::to_bytes`]), over which the signature is verified
//! before anything in them is parsed. This module fixes the bytes.
//!
//! ```text
//!  Order ─► Command ─► to_bytes ─► sign: HMAC-SHA256(key, key id ‖ bytes) ─► SignedCommand ─► to_wire ─► … ─► from_wire
//!          ─► verify in constant time ─► from_bytes ─► age, sequence ─► Order
//! ```

mod blend;
mod order;
mod envelope;
mod wire;

pub use blend::{Blend, BlendMode, ChannelWeights, ConfidenceGate};
pub use envelope::{EnvelopeError, KeyId, Nonce, SignedCommand};
pub use order::{Order, Unverified};
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
        /// How the seed's output is to be mixed with the host's value.
        blend: Blend,
    },
    /// Start shadow training \[2\].
    StartTraining {
        /// The seed.
        seed: SeedId,
    },
    /// Start blending, or retarget a seed that blends or holds \[3\]. A target of 0 is refused in every stage: parameters
    /// leave the layout only between epochs, and a ramp ends in the middle of one. [`Self::CullGradually`] leads to 0, with
    /// the parameters frozen from its beginning.
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
    /// Let a seed that acts lose its influence, then remove it. Its parameters are frozen meanwhile \[10\].
    CullGradually {
        /// The seed.
        seed: SeedId,
        /// Optimizer steps until alpha is 0 and the seed is removed; 0 removes it at once.
        steps: u64,
        /// Shape of the way to 0.
        curve: AlphaCurve,
    },
    /// Take the seed out of the computation without losing it \[11\].
    Pause {
        /// The seed.
        seed: SeedId,
    },
    /// Put a paused seed back \[12\].
    Resume {
        /// The seed.
        seed: SeedId,
    },
}

impl Operation {
    /// A germination with the default blend.
    #[must_use]
    pub fn germinate(slot: SlotId, blueprint: BlueprintId) -> Self {
        Self::Germinate { slot, blueprint, blend: Blend::default() }
    }

    /// The wire number. 5 (evaluate), 6 (fine-tune) and 9 (cancel) of the older system are refused by name.
    #[must_use]
    pub const fn wire(&self) -> u8 {
        match self {
            Self::Germinate { .. } => 1,
            Self::StartTraining { .. } => 2,
            Self::StartBlending { .. } => 3,
            Self::Hold { .. } => 4,
            Self::Fossilize { .. } => 7,
            Self::Cull { .. } => 8,
            Self::CullGradually { .. } => 10,
            Self::Pause { .. } => 11,
            Self::Resume { .. } => 12,
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
            | Self::Cull { seed }
            | Self::CullGradually { seed, .. }
            | Self::Pause { seed }
            | Self::Resume { seed } => Some(*seed),
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
            Self::CullGradually { .. } => "cull_gradually",
            Self::Pause { .. } => "pause",
            Self::Resume { .. } => "resume",
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Germinate { slot, blueprint, blend } if *blend == Blend::default() => {
                write!(f, "germinate {blueprint} in {slot}")
            }
            Self::Germinate { slot, blueprint, blend } => {
                write!(f, "germinate {blueprint} in {slot} with blend {}", blend.mode())
            }
            Self::StartBlending { seed, ramp } => {
                write!(f, "start_blending {seed} to {} in {} steps", ramp.target, ramp.steps)
            }
            Self::CullGradually { seed, steps, .. } => write!(f, "cull_gradually {seed} in {steps} steps"),
            Self::StartTraining { seed }
            | Self::Hold { seed }
            | Self::Fossilize { seed }
            | Self::Cull { seed }
            | Self::Pause { seed }
            | Self::Resume { seed } => write!(f, "{} {seed}", self.name()),
        }
    }
}

/// An operation with what is needed to refuse a forged, stale or repeated one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Command {
    /// The run it is meant for.
    pub run_id: RunId,
    /// Grows from command to command of one key; the receiver accepts each number once and in order.
    pub sequence: u64,
    /// Of the issuer's choice. It is signed and written down; that a command is accepted once is the number's doing.
    pub nonce: Nonce,
    /// Milliseconds since 1970-01-01 UTC.
    pub issued_at_unix_ms: u64,
    /// For how long after that it may be applied, milliseconds; receivers accept at most [`Command::MAX_VALID_FOR_MS`].
    pub valid_for_ms: u32,
    /// What is to happen.
    pub operation: Operation,
    /// Share of its inputs that the issuer had measured when it decided, in `[0, 1]`; absent when it does not say.
    pub input_coverage: Option<f64>,
    /// Why, for people; at most 256 bytes.
    pub reason: String,
}

impl Command {
    /// The longest time between issue and application that a receiver accepts, milliseconds.
    pub const MAX_VALID_FOR_MS: u32 = 60_000;

    /// A command that is valid for as long as receivers accept, with a nonce from its sequence number.
    #[must_use]
    pub fn new(run_id: RunId, sequence: u64, issued_at_unix_ms: u64, operation: Operation, reason: String) -> Self {
        let (nonce, valid_for_ms) = (Nonce::from_counter(sequence), Self::MAX_VALID_FOR_MS);
        Self { run_id, sequence, nonce, issued_at_unix_ms, valid_for_ms, operation, input_coverage: None, reason }
    }
}
