//! When a run goes back to a known-good state: settings, and what is remembered between two looks.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU64;

use candle_core::Tensor;
use leyline::id::{EpochIndex, SeedId, StepIndex};
use leyline::layout::Owner;
use serde::{Deserialize, Serialize};

use crate::trainer::ring::Ring;
use crate::trainer::sums::EpochTotals;

const MIB: u64 = 1 << 20;

/// What a run does about steps whose loss or gradient cannot be used. Without `memory_mib` it only leaves them out, and ends
/// where most steps of an epoch were. As TOML: `recovery = { memory_mib = 256 }`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RecoveryConfig {
    /// Memory for known-good states, MiB, on the device of the network: for each state its parameters and the optimizer's
    /// moments, and for two states at least. 0 keeps none, and nothing below matters.
    pub memory_mib: u32,
    /// Optimizer steps between two states that are kept in memory.
    pub every_steps: NonZeroU64,
    /// Steps, one after another, that changed nothing because their loss or gradient was not finite, or the loss beyond its
    /// bound: after as many the run goes back. Sums are read from the device as often, so the run notices at most as many
    /// steps late again.
    pub max_skipped: NonZeroU64,
    /// A step with a microbatch whose mean loss exceeds so many times the mean loss of its epoch so far changes nothing;
    /// above 1. Absent sets no bound.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss_bound: Option<f64>,
    /// The learning rate is multiplied by it when the run goes back, unless a seed was to blame; above 0, at most 1.
    pub rate_factor: f64,
    /// Times that a run goes back without getting further than before; then it ends.
    pub max_rollbacks: u32,
    /// A restore that takes longer is discarded, milliseconds; absent waits for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<NonZeroU64>,
}

impl Default for RecoveryConfig {
    fn default() -> Self {
        Self {
            memory_mib: 0,
            every_steps: const { NonZeroU64::new(64).unwrap() },
            max_skipped: const { NonZeroU64::new(8).unwrap() },
            loss_bound: None,
            rate_factor: 0.5,
            max_rollbacks: 4,
            deadline_ms: None,
        }
    }
}

impl RecoveryConfig {
    /// Whether a run goes back at all.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.memory_mib > 0
    }

    pub(super) fn is_default(&self) -> bool {
        *self == Self::default()
    }

    pub(super) fn budget(&self) -> u64 {
        u64::from(self.memory_mib) * MIB
    }

    /// Every setting that cannot work, as (key, what is accepted).
    pub(super) fn validate(&self) -> Vec<(String, String)> {
        let mut issues = Vec::new();
        if self.loss_bound.is_some_and(|bound| !bound.is_finite() || bound <= 1.0) {
            issues.push(("loss_bound".to_owned(), "a finite number above 1".to_owned()));
        }
        if !(self.rate_factor > 0.0 && self.rate_factor <= 1.0) {
            issues.push(("rate_factor".to_owned(), "a number above 0, at most 1".to_owned()));
        }
        issues
    }
}

/// What a trainer has for going back.
#[derive(Debug, Default)]
pub(super) struct Recovery {
    pub(super) ring: Ring,
    pub(super) guard: Guard,
    /// On the device, what [`Guard::bound`] says; absent without `loss_bound`.
    pub(super) bound: Option<Tensor>,
    /// Times that the run went back without getting further.
    pub(super) attempts: u32,
    /// Where it last had to go back.
    pub(super) furthest: StepIndex,
    /// Steps of the epoch that changed nothing and are counted already.
    pub(super) num_counted: u64,
    /// Where samples that are not finite were found last.
    pub(super) bad_data: Option<EpochIndex>,
    /// Seeds that were to blame: they are removed again from an older state that still has them.
    pub(super) removed: BTreeSet<SeedId>,
    /// Those that are to go once the next epoch begins, since the run is at the end of one, where none can; and whether it went back
    /// because of them.
    pub(super) late: BTreeMap<SeedId, bool>,
    /// Where a state was last to be kept, whether there was room for it or not.
    pub(super) tried: Option<StepIndex>,
    /// Whether it was said that the budget is too small.
    pub(super) is_told: bool,
}

impl Recovery {
    /// Forgets what led here: the trainer has taken up a state from elsewhere.
    pub(super) fn begin_anew(&mut self) {
        let (guard, bound) = (std::mem::take(&mut self.guard), self.bound.take());
        *self = Self { guard, bound, num_counted: self.num_counted, ..Self::default() };
    }

    /// Whether it is time to keep a state.
    pub(super) fn is_due(&self, step: StepIndex, every_steps: NonZeroU64) -> bool {
        // What was tried after a state that the run went back to says nothing.
        let tried = self.tried.filter(|tried| *tried <= step);
        let last = self.ring.last_step().max(tried);
        last.is_none_or(|last| step.0.saturating_sub(last.0) >= every_steps.get())
    }
}

/// What is remembered between two looks at the sums; part of checkpoints.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Guard {
    /// Factor of the learning rate, lower after each time that the run went back.
    pub(super) rate: f64,
    /// The largest mean loss of a microbatch that counts, in the unit of the task, per sample.
    pub(super) bound: Option<f64>,
    /// Steps of the epoch at the last look.
    steps: u64,
    owners: Vec<Skips>,
}

/// Steps that left the parameters of an owner as they were.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Skips {
    owner: Owner,
    /// In the epoch, at the last look.
    total: u64,
    /// One after another, as far as looks can tell.
    streak: u64,
    /// Of its loss at the last look, where it is scaled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    scale: Option<f64>,
}

impl Default for Guard {
    fn default() -> Self {
        Self { rate: 1.0, bound: None, steps: 0, owners: Vec::new() }
    }
}

/// What a look at the sums has found.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Looked {
    /// Whether every step since the last look counted, for the host.
    pub(super) is_clean: bool,
    /// Owners of which too many steps in a row changed nothing.
    pub(super) stuck: Vec<Owner>,
}

impl Guard {
    pub(super) fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// The sums start over.
    pub(super) fn begin_epoch(&mut self) {
        self.steps = 0;
        self.owners.iter_mut().for_each(|skips| skips.total = 0);
    }

    /// No step in a row is held against anyone any more.
    pub(super) fn forgive(&mut self) {
        self.owners.iter_mut().for_each(|skips| skips.streak = 0);
    }

    /// Compares the sums with those of the last look.
    pub(super) fn look(&mut self, totals: &EpochTotals, config: &RecoveryConfig) -> Looked {
        let steps = totals.num_steps.saturating_sub(self.steps);
        let mut looked = Looked { is_clean: true, stuck: Vec::new() };
        let skipped: Vec<(Owner, u64)> = totals.skipped_of_owners().collect();
        self.owners = skipped
            .into_iter()
            .map(|(owner, total)| {
                let before = self.owners.iter().find(|skips| skips.owner == owner);
                let new = total.saturating_sub(before.map_or(0, |skips| skips.total));
                let streak = if new < steps { 0 } else { before.map_or(0, |skips| skips.streak) + new };
                let scale = totals.scale(owner);
                let last = before.and_then(|skips| skips.scale);
                let is_searching = scale.is_some_and(|scale| scale.now < last.unwrap_or(scale.begun));
                if streak >= config.max_skipped.get() && !is_searching {
                    looked.stuck.push(owner);
                }
                looked.is_clean &= new == 0 || owner != Owner::Host;
                Skips { owner, total, streak, scale: scale.map(|scale| scale.now) }
            })
            .collect();
        self.steps = totals.num_steps;
        if let Some(factor) = config.loss_bound.filter(|_| totals.num_samples > 0) {
            // A loss may be negative; one of 0 says nothing about the size of others.
            let mean = totals.loss_sum / totals.num_samples as f64;
            if mean != 0.0 {
                self.bound = Some(mean + (factor - 1.0) * mean.abs());
            }
        }
        looked
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use candle_core::Device;

    use super::*;
    use crate::grad::Geometry;
    use crate::host_read::HostReads;
    use crate::testing::{HOST, layout};
    use crate::trainer::sums::{EpochSums, HostSums};

    #[test]
    fn a_loss_of_nothing_bounds_nothing() {
        let geometry = Arc::new(Geometry::of(&layout(&[("a", 2, HOST, false)])).unwrap());
        let mut sums = EpochSums::new(geometry, None, &Device::Cpu).unwrap();
        let config = RecoveryConfig { memory_mib: 1, loss_bound: Some(20.0), ..RecoveryConfig::default() };
        let mut guard = Guard::default();
        for (loss_sum, expected) in [(0.0, None), (2.0, Some(10.0)), (0.0, Some(10.0)), (-2.0, Some(9.0))] {
            sums.as_tensor().slice_set(&Tensor::new(&[loss_sum], &Device::Cpu).unwrap(), 0, 0).unwrap();
            *sums.host() = HostSums { num_samples: 4, num_steps: 4, ..HostSums::default() };
            guard.look(&sums.read(&mut HostReads::default()).unwrap(), &config);
            assert_eq!(guard.bound, expected, "{loss_sum}");
        }
    }
}
