//! What the trainer measured about a seed.

use serde::{Deserialize, Serialize};

use crate::id::{EpochIndex, SeedId};

/// Held-out loss with the seed on and off, paired sample by sample.
///
/// For a seed in shadow training "on" is its target alpha; for a seed that acts already, "off" is alpha 0.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Counterfactual {
    /// Mean of (loss off − loss on), in the unit of the loss per sample; positive when the seed helps.
    pub loss_gain: f64,
    /// Standard error of that mean over samples, in the same unit; fewer than two samples have none, and measure nothing.
    pub std_error: f64,
    /// Accuracy on − accuracy off, percentage points; absent where nothing is to be recognized.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accuracy_gain_pp: Option<f64>,
    /// Samples measured.
    pub num_samples: u64,
}

/// How a seed's gradient looked over the last epoch.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct GradientHealth {
    /// Root mean square over optimizer steps of the L2 norm of the seed's gradient.
    pub norm: f64,
    /// That norm per parameter against the host's: (‖g_s‖/√P_s) / (‖g_h‖/√P_h); absent when the host's norm is 0.
    pub host_ratio: Option<f64>,
    /// Fraction of optimizer steps with a finite, non-zero gradient, in `[0, 1]`.
    pub health: f64,
}

/// One seed's measurements of one epoch; what was not measured is absent.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Evidence {
    /// The seed.
    pub seed: SeedId,
    /// When it was measured.
    pub epoch: EpochIndex,
    /// Its effect on held-out data.
    pub counterfactual: Option<Counterfactual>,
    /// Its gradient.
    pub gradient: Option<GradientHealth>,
}

/// The gain of a seed on held-out samples that nothing else was decided by, measured once in its life.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Confirmation {
    /// Mean of (loss off − loss on), in the unit of the loss per sample; positive when the seed helps.
    pub loss_gain: f64,
    /// The probability of gains like these if their mean were at most the least one that matters, in `[0, 1]`.
    pub p_value: f64,
    /// The largest loss of a sample that was reckoned with, above 0, in the unit of the loss.
    pub worst: f64,
    /// Samples measured.
    pub num_samples: u64,
}

/// A confirmation that was judged.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Confirmed {
    /// What was measured.
    pub measured: Confirmation,
    /// The error probability that was spent on it, in `[0, 1]`.
    pub level: f64,
    /// Whether the gain is confirmed at that level.
    pub passed: bool,
}

/// What a manager asks of the next confirmation.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Confirming {
    /// Held-out samples that confirm (count).
    pub num_samples: u64,
    /// Samples without which the next confirmation could not tell the smallest effect that matters (count).
    pub needed_samples: u64,
    /// The error probability that the next confirmation may spend, in `[0, 1]`.
    pub level: f64,
    /// The gain that has to be exceeded, in the unit of the loss per sample.
    pub min_gain: f64,
    /// Seeds that were confirmed or refused so far (count).
    pub num_read: u64,
    /// Those that were confirmed (count).
    pub num_confirmed: u64,
}

impl Confirming {
    /// Whether there are samples enough.
    #[must_use]
    pub const fn has_power(&self) -> bool {
        self.num_samples >= self.needed_samples
    }
}
