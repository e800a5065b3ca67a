//! Steps that cannot be used: looks at the sums of the epoch, and what follows from them.
//!
//! The device finds them within the step and leaves parameters and moments as they are (`aggregate/solve.rs`). The host
//! learns of them here, from a read of the sums every so many steps.

use candle_core::Tensor;
use leyline::id::SeedId;
use leyline::layout::Owner;
use leyline::policy::Policy;
use leyline::region::Eager;
use leyline::seed::{SeedManager, SeedState};
use leyline::telemetry::Event;

use crate::batch::EpochOrder;
use crate::error::Error;
use crate::telemetry as desc;
use crate::trainer::culprit::Culprit;
use crate::trainer::observer::{Observer, RunEvent};
use crate::trainer::rollback::RolledBack;
use crate::trainer::run::Trainer;
use crate::trainer::sums::EpochTotals;

/// What was seen of the latest steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Watched {
    GoesOn,
    /// Nor is anything wrong with the state, which is to be kept once all that is due after the step is part of it.
    IsGood,
    WentBack,
}

impl<S: SeedManager, P: Policy> Trainer<S, P> {
    /// Looks at the steps since the last look, where it is time to, and at the end of an epoch or a run at the state too:
    /// before anything is decided by it, or kept.
    pub(super) fn watch(
        &mut self,
        eager: &mut Eager,
        observer: &mut dyn Observer,
        (order, index): (&EpochOrder, usize),
    ) -> Result<Watched, Error> {
        let config = &self.config.recovery;
        let is_last = index + 1 == order.windows.len();
        let is_end = is_last || self.is_at_max_steps();
        if !config.is_on() || !(is_end || self.cursor.step.0.is_multiple_of(config.max_skipped.get())) {
            return Ok(Watched::GoesOn);
        }
        let totals = self.sums.read(&mut self.reads)?;
        let looked = self.recovery.guard.look(&totals, config);
        self.write_bound()?;
        if looked.is_clean {
            self.recovery.ring.confirm();
            if self.cursor.step > self.recovery.furthest {
                self.recovery.attempts = 0;
            }
        }
        if looked.stuck.contains(&Owner::Host) {
            let culprit = self.find_culprit(eager, Some((order, index)))?;
            if let Culprit::Sample(_) = culprit {
                // Nothing was learned from it, and the same samples would come again.
                self.recovery.guard.forgive();
                self.recovery.bad_data = Some(self.cursor.epoch);
                self.tell(&culprit, "left_out");
                return Ok(Watched::GoesOn);
            }
            self.recover(eager, observer, &culprit, self.diverged(&totals))?;
            return Ok(Watched::WentBack);
        }
        if is_end && self.bad_state_is_left(eager, observer)? {
            return Ok(Watched::WentBack);
        }
        // After the last step there is nothing left that the sums could start over with.
        for owner in looked.stuck.into_iter().filter(|_| !is_last) {
            if let Owner::Seed(seed) = owner {
                self.settle(eager)?;
                self.count_skips(&totals);
                self.remove(eager, seed)?;
            }
        }
        if !looked.is_clean || is_end || !self.is_keep_due() {
            return Ok(Watched::GoesOn);
        }
        Ok(if self.bad_state_is_left(eager, observer)? { Watched::WentBack } else { Watched::IsGood })
    }

    /// What a run ends with whose steps are left out.
    pub(super) fn diverged(&self, totals: &EpochTotals) -> Error {
        let &EpochTotals { num_skipped, num_steps, .. } = totals;
        let (epoch, scale) = (self.cursor.epoch.next(), totals.scale(Owner::Host).map(|scale| scale.now));
        Error::Diverged { num_skipped, num_steps, epoch, scale }
    }

    /// Keeps the state in memory when it is time to; the first one of a run is good. Where it is not finite the run goes back:
    /// then the answer is true.
    pub(super) fn keep_if_due(&mut self, eager: &mut Eager, observer: &mut dyn Observer) -> Result<bool, Error> {
        if !self.is_keep_due() {
            return Ok(false);
        }
        if self.bad_state_is_left(eager, observer)? {
            return Ok(true);
        }
        self.keep_good_state(eager)?;
        Ok(false)
    }

    fn is_keep_due(&self) -> bool {
        let config = &self.config.recovery;
        let is_due = self.recovery.is_due(self.cursor.step, config.every_steps);
        // After the last step of an epoch a seed can not be removed.
        config.is_on() && is_due && self.cursor.window < self.steps_per_epoch()
    }

    /// Keeps the state, which was looked at, in memory.
    pub(super) fn keep_good_state(&mut self, eager: &mut Eager) -> Result<(), Error> {
        self.recovery.tried = Some(self.cursor.step);
        self.settle(eager)?;
        let is_first = self.recovery.ring.is_empty();
        if self.keep_state(eager)? {
            if is_first {
                self.confirm_state();
            }
        } else if !std::mem::replace(&mut self.recovery.is_told, true) {
            let mib = self.config.recovery.memory_mib;
            tracing::warn!("`recovery.memory_mib = {mib}` does not hold two states: the last good one grows old");
        }
        Ok(())
    }

    /// Goes back where the state is not finite; whether it was not.
    fn bad_state_is_left(&mut self, eager: &mut Eager, observer: &mut dyn Observer) -> Result<bool, Error> {
        let Some(culprit) = self.bad_state()? else { return Ok(false) };
        let error = Error::NonFiniteState { tensor: culprit.to_string() };
        self.recover(eager, observer, &culprit, error).map(|()| true)
    }

    /// What came of a result: a run whose numbers cannot be used goes back, and there is none.
    pub(super) fn or_go_back<T>(
        &mut self,
        eager: &mut Eager,
        observer: &mut dyn Observer,
        result: Result<T, Error>,
    ) -> Result<Option<T>, Error> {
        match result {
            // Its data would be the same again.
            Err(error @ Error::Diverged { .. }) if self.recovery.bad_data == Some(self.cursor.epoch) => Err(error),
            Err(error @ (Error::Diverged { .. } | Error::NonFinite { .. })) if self.config.recovery.is_on() => {
                if matches!(error, Error::NonFinite { .. })
                    && let Some(sample) = self.bad_validation_sample()?
                {
                    // No way back changes it.
                    let message = format!("sample {sample} has a number that is not finite; expected finite ones");
                    return Err(Error::InvalidData { what: "validation", message });
                }
                let culprit = self.find_culprit(eager, None)?;
                self.recover(eager, observer, &culprit, error).map(|()| None)
            }
            result => result.map(Some),
        }
    }

    /// Goes back. A seed that is to blame is removed; where none is, or it cannot go, the learning rate falls.
    ///
    /// # Errors
    /// `error`, when the run went back as often as it may, or there is nothing to go back to.
    fn recover(
        &mut self,
        eager: &mut Eager,
        observer: &mut dyn Observer,
        culprit: &Culprit,
        error: Error,
    ) -> Result<(), Error> {
        let config = &self.config.recovery;
        if self.recovery.attempts >= config.max_rollbacks {
            self.tell(culprit, "ended");
            return Err(error);
        }
        // The newest state did not help.
        if self.recovery.attempts > 0 && self.recovery.ring.num_good() > 1 {
            self.recovery.ring.drop_newest();
        }
        let (rate, factor) = (self.recovery.guard.rate, config.rate_factor);
        let totals = self.sums.read(&mut self.reads)?;
        self.count_skips(&totals);
        let back = match self.roll_back(eager) {
            Err(failed) => {
                self.tell(culprit, "ended");
                return Err(if matches!(failed, Error::NothingToRestore) { error } else { failed });
            }
            Ok(back) => back,
        };
        self.recovery.attempts += 1;
        self.recovery.furthest = self.recovery.furthest.max(back.from);
        self.recovery.guard.forgive();
        self.remove_again(eager)?;
        let is_removed = match *culprit {
            Culprit::Seed(seed) => {
                let is_removed = self.remove(eager, seed)?;
                self.recovery.late.entry(seed).and_modify(|is_to_blame| *is_to_blame = true);
                is_removed
            }
            _ => false,
        };
        self.recovery.guard.rate = if is_removed { rate } else { rate * factor };
        self.write_bound()?;
        if !is_removed || !self.recovery.late.is_empty() {
            self.tell(culprit, "went_back");
        }
        let culprit = culprit.to_string();
        let event = Event::new(&desc::ROLLED_BACK).with("from", back.from).with("to", back.to);
        let event = event.with("tier", back.tier.name()).with("culprit", &culprit);
        self.parts.recorder.event(event.with("rate_factor", self.recovery.guard.rate));
        let (RolledBack { from, to, .. }, epoch) = (back, self.cursor.epoch);
        let rate_factor = self.recovery.guard.rate;
        observer.event(&RunEvent::RolledBack { from, to, epoch, culprit: &culprit, rate_factor });
        self.note_going_back(&culprit);
        Ok(())
    }

    /// Removes the seeds of an older state that were removed later; what it has no record of may grow anew.
    fn remove_again(&mut self, eager: &mut Eager) -> Result<(), Error> {
        let there: Vec<SeedId> = self.export_seeds(eager)?.iter().map(|state| state.seed_id).collect();
        let known = std::mem::take(&mut self.recovery.removed);
        for seed in known.into_iter().filter(|seed| there.contains(seed)) {
            self.remove(eager, seed)?;
            self.recovery.removed.insert(seed);
        }
        Ok(())
    }

    /// Removes a seed that is to blame, where it is there and can go; the sums start over without it. After the last step of an
    /// epoch that has to wait for [`Self::remove_late`].
    fn remove(&mut self, eager: &mut Eager, seed: SeedId) -> Result<bool, Error> {
        if !self.export_seeds(eager)?.iter().any(|state| state.seed_id == seed && state.stage.is_live()) {
            return Ok(false);
        }
        if self.cursor.window >= self.steps_per_epoch() {
            self.recovery.removed.insert(seed);
            self.recovery.late.insert(seed, false);
            return Ok(true);
        }
        let reason = "its loss or its gradient could not be used";
        if !self.parts.seeds.remove_seed(eager, seed, reason).map_err(|error| self.seed_error(error))? {
            return Ok(false);
        }
        self.recovery.removed.insert(seed);
        self.tell(&Culprit::Seed(seed), "removed");
        let seeds = self.export_seeds(eager)?;
        self.refit(&seeds)?;
        Ok(true)
    }

    /// Removes the seeds for which that had to wait. For one that cannot go any more, as it became permanent, the learning rate falls,
    /// if the run went back because of it.
    pub(super) fn remove_late(&mut self, eager: &mut Eager) -> Result<(), Error> {
        for (seed, is_to_blame) in std::mem::take(&mut self.recovery.late) {
            let has_numbers = |state: &SeedState| state.stage.is_live() || state.stage.acts_on_output();
            if !self.remove(eager, seed)?
                && is_to_blame
                && self.export_seeds(eager)?.iter().any(|state| state.seed_id == seed && has_numbers(state))
            {
                self.recovery.guard.rate *= self.config.recovery.rate_factor;
            }
        }
        Ok(())
    }

    /// Says what was found, and what is done about it.
    fn tell(&self, culprit: &Culprit, done: &str) {
        let event = Event::new(&desc::DIVERGED).with("step", self.cursor.step).with("culprit", culprit);
        self.parts.recorder.event(event.with("done", done));
    }

    /// Counts steps that changed nothing, each once.
    pub(super) fn count_skips(&mut self, totals: &EpochTotals) {
        let num_new = totals.num_skipped.saturating_sub(self.recovery.num_counted);
        self.instruments.steps_skipped.add(num_new);
        self.recovery.num_counted = totals.num_skipped;
    }

    /// Brings the bound on the device up to date, in place: graphs point at it.
    pub(super) fn write_bound(&mut self) -> Result<(), Error> {
        if self.config.recovery.is_on() && self.config.recovery.loss_bound.is_some() {
            #[expect(clippy::cast_possible_truncation, reason = "a bound beyond f32 is none")]
            let value = self.recovery.guard.bound.unwrap_or(f64::INFINITY) as f32;
            let new = Tensor::new(&[value], &self.parts.device)?;
            match &self.recovery.bound {
                Some(bound) => bound.slice_set(&new, 0, 0)?,
                None => self.recovery.bound = Some(new),
            }
        }
        Ok(())
    }
}
