//! How many optimizer steps share a launch.
//!
//! They are planned before the first of them and told after the last, so that nothing of what a step is planned by may change in
//! between, and nothing may be due there.

use std::num::NonZeroU64;

use leyline::policy::Policy;
use leyline::region::Eager;
use leyline::seed::{AlphaMode, SeedManager};

use crate::batch::EpochOrder;
use crate::error::Error;
use crate::trainer::run::Trainer;

impl<S: SeedManager, P: Policy> Trainer<S, P> {
    /// Steps from the window `index` of the epoch on that are taken as one: as many as the configuration says, or this one alone.
    pub(super) fn steps_of_launch(&self, eager: &Eager, order: &EpochOrder, index: usize) -> Result<usize, Error> {
        let execution = &self.config.execution;
        let count = execution.steps_per_launch.get();
        let Some(windows) = order.windows[index..].get(..count).filter(|_| count > 1) else { return Ok(1) };
        let are_alike = windows.iter().all(|window| window.num_samples() == windows[0].num_samples());
        // Which owners a microbatch is of may be measured on the network as it is before its step.
        let are_known = !self.attributes(windows[0].num_microbatches());
        if !are_alike
            || !are_known
            || execution.check_each_step
            || self.steps_until_due() < count as u64
            || self.changes_between(eager)?
        {
            return Ok(1);
        }
        Ok(count)
    }

    /// Steps until something is due after one that is no end of an epoch.
    fn steps_until_due(&self) -> u64 {
        let step = self.cursor.step.0;
        let of_run = self.parts.max_steps.map(|max| max.get().saturating_sub(step));
        self.due_every().map(|every| every.get() - step % every.get()).chain(of_run).min().unwrap_or(u64::MAX)
    }

    /// Numbers of steps after each of which something is due.
    fn due_every(&self) -> impl Iterator<Item = NonZeroU64> {
        let of_recovery = self.config.recovery.is_on().then_some(self.config.recovery.max_skipped);
        let of_saver = self.saver.as_ref().and_then(|saver| saver.every_steps);
        [self.config.eval_every_steps, of_recovery, of_saver].into_iter().flatten()
    }

    /// Says so where something is due more often than a launch of so many steps is over, or epochs are shorter.
    pub(super) fn tell_unshared(&self) {
        let count = self.config.execution.steps_per_launch.get();
        let longest = self.due_every().map(NonZeroU64::get).chain([self.steps_per_epoch()]).min().unwrap_or(u64::MAX);
        if count as u64 > longest {
            tracing::warn!(
                "`execution.steps_per_launch = {count}` changes nothing: something is due every {longest} steps"
            );
        }
    }

    /// Whether the end of a step may change what the network computes (SM-3).
    fn changes_between(&self, eager: &Eager) -> Result<bool, Error> {
        let seeds = self.export_seeds(eager)?;
        Ok(seeds.iter().any(|seed| seed.weights_pending || !seed.paused && seed.alpha_mode != AlphaMode::Hold))
    }
}
