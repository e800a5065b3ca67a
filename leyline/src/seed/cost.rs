//! What a network and its seeds cost, known from shapes before a step is taken.

use serde::{Deserialize, Serialize};

use crate::id::{BlueprintId, SeedId, SlotId};

/// Floating-point operations of products for one sample: (n, k)·(k, m) is 2·n·k·m, and as many again for each operand that has a
/// gradient. What is done element by element does not count.
///
/// ```
/// use leyline::seed::Cost;
///
/// // 100 samples to train on, 20 held out.
/// let cost = Cost { training: 6.0, evaluation: 2.0 };
/// assert_eq!(cost.of_samples(100.0, 20.0), 640.0);
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// For each sample that is trained on, the backward pass included (operations).
    pub training: f64,
    /// For each held-out sample (operations).
    pub evaluation: f64,
}

impl Cost {
    /// Operations of so many samples.
    #[must_use]
    pub fn of_samples(self, trained: f64, held_out: f64) -> f64 {
        self.training * trained + self.evaluation * held_out
    }
}

/// Costs of a network and of looking at seeds: of what is computed to learn what a seed would be worth.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Costs {
    /// The network with its permanent seeds, and without those that may go.
    pub network: Cost,
    /// Of attribution, wherever seeds act: for each sample that is trained on (operations).
    pub attribution: f64,
    /// A germination, once: where a seed starts from samples (operations).
    pub germination: f64,
    /// Looking at the live seeds as they are now, ordered by id.
    pub seeds: Vec<(SeedId, Cost)>,
    /// Looking at a seed of an offer in the shadow.
    pub offers: Vec<(SlotId, BlueprintId, Cost)>,
}
