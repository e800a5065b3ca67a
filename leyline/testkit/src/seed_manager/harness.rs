//! What the rules need to know about an implementer.

use std::fmt;
use std::sync::Arc;

use leyline::batch::Batch;
use leyline::command::Order;
use leyline::id::{EpochIndex, SeedId};
use leyline::seed::{Counterfactual, Evidence, GradientHealth, SeedManager};
use leyline::task::Task;

use crate::cross_entropy::CrossEntropy;

/// A fresh seed manager with what is needed to drive it. Make one with [`SeedManagerHarness::new`] and change fields
/// where the implementer differs.
pub struct SeedManagerHarness<M> {
    /// Without seeds, with at least one free slot that has a blueprint on offer unless it [has none](Self::has_slots).
    pub manager: M,
    /// A batch its network accepts.
    pub batch: Batch,
    /// What its network is trained for; by default classification by cross-entropy.
    pub task: Arc<dyn Task>,
    /// Whether it has slots; by default it must. Without this one that offers nothing would pass every rule.
    pub has_slots: bool,
    /// Makes of an order, which has a number, one that the manager accepts; by default nothing is done to it.
    pub sign: Box<dyn Fn(Order) -> Order>,
    /// Optimizer steps per epoch; by default 4.
    pub steps_per_epoch: u64,
    /// Epochs after which a seed with [`evidence`](Self::evidence) must have passed any gate, and after which the slot of
    /// a culled seed must be free again; by default 32.
    pub max_epochs: u64,
    /// Measurements that every gate of the manager lets pass; by default a clear gain with a healthy gradient.
    pub evidence: fn(SeedId, EpochIndex) -> Evidence,
}

impl<M: SeedManager> SeedManagerHarness<M> {
    /// A harness with the defaults named at the fields.
    pub fn new(manager: M, batch: Batch) -> Self {
        Self {
            manager,
            batch,
            task: Arc::new(CrossEntropy),
            has_slots: true,
            sign: Box::new(|order| order),
            steps_per_epoch: 4,
            max_epochs: 32,
            evidence: excellent,
        }
    }

    /// Of a manager that never has a seed.
    #[must_use]
    pub fn without_slots(self) -> Self {
        Self { has_slots: false, ..self }
    }

    /// Of a manager that accepts orders only as `sign` returns them.
    #[must_use]
    pub fn signing(self, sign: impl Fn(Order) -> Order + 'static) -> Self {
        Self { sign: Box::new(sign), ..self }
    }
}

impl<M: fmt::Debug> fmt::Debug for SeedManagerHarness<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SeedManagerHarness").field("manager", &self.manager).finish_non_exhaustive()
    }
}

fn excellent(seed: SeedId, epoch: EpochIndex) -> Evidence {
    Evidence {
        seed,
        epoch,
        counterfactual: Some(Counterfactual {
            loss_gain: 0.5,
            std_error: 0.005,
            accuracy_gain_pp: Some(8.0),
            num_samples: 4_096,
        }),
        gradient: Some(GradientHealth { norm: 1.0, host_ratio: Some(1.0), health: 1.0 }),
    }
}
