//! What the rules need to know about an implementer.

use std::fmt;

use leyline::batch::Batch;
use leyline::command::{Command, SignedCommand};
use leyline::id::{EpochIndex, RunId, SeedId};
use leyline::seed::{Counterfactual, Evidence, GradientHealth, SeedManager};

/// A fresh seed manager with what is needed to drive it. Make one with [`SeedManagerHarness::new`] and change fields
/// where the implementer differs.
pub struct SeedManagerHarness<M> {
    /// Without seeds, with at least one free slot that has a blueprint on offer.
    pub manager: M,
    /// A batch its network accepts.
    pub batch: Batch,
    /// The run whose commands it accepts.
    pub run_id: RunId,
    /// Signs a command so that the manager accepts it.
    pub sign: Box<dyn Fn(&Command) -> SignedCommand>,
    /// Time of issue of every command, milliseconds since 1970-01-01 UTC; by default 1 700 000 000 000, the time of
    /// [`ManualClock::default`](crate::clock::ManualClock).
    pub issued_at_unix_ms: u64,
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
    pub fn new(manager: M, batch: Batch, run_id: RunId, sign: impl Fn(&Command) -> SignedCommand + 'static) -> Self {
        Self {
            manager,
            batch,
            run_id,
            sign: Box::new(sign),
            issued_at_unix_ms: 1_700_000_000_000,
            steps_per_epoch: 4,
            max_epochs: 32,
            evidence: excellent,
        }
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
            accuracy_gain_pp: 8.0,
            num_samples: 4_096,
        }),
        gradient: Some(GradientHealth { norm: 1.0, host_ratio: Some(1.0), health: 1.0 }),
    }
}
