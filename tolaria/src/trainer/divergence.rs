//! Steps that cannot be used: looks at the sums of the epoch, and what follows from them.
//!
//! The device finds them within the step and leaves parameters and moments as they are (`aggregate/solve.rs`). The host
//! learns of them here, from a read of the sums every so many steps.

use candle_core::Tensor;
use leyline::layout::Owner;
use leyline::policy::Policy;
use leyline::region::Eager;
use leyline::seed::SeedManager;
use leyline::telemetry::Event;

use crate::batch::EpochOrder;
use crate::error::Error;
use crate::telemetry as desc;
use crate::trainer::culprit::Culprit;
use crate::trainer::observer::{Observer, RunEvent};
use crate::trainer::run::Trainer;
use crate::trainer::sums::EpochTotals;

impl<S: SeedManager, P: Policy> Trainer<S, P> {
    /// Looks at the steps since the last look, where it is time to; whether the run went back.
    pub(super) fn watch(
        &mut self,
        eager: &mut Eager,
        observer: &mut dyn Observer,
        (order, index): (&EpochOrder, usize),
    ) -> Result<bool, Error> {
        let config = &self.config.recovery;
        let is_last = index + 1 == order.windows.len();
        if !config.is_on() || !(is_last || self.cursor.step.0.is_multiple_of(config.max_skipped.get())) {
            return Ok(false);
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
                return Ok(false);
            }
            let (num_skipped, num_steps, epoch) = (totals.num_skipped, totals.num_steps, self.cursor.epoch.next());
            self.recover(eager, observer, &totals, &culprit, Error::Diverged { num_skipped, num_steps, epoch })?;
            return Ok(true);
        }
        // After the last step there is nothing left that the sums could start over with.
        for owner in looked.stuck.into_iter().filter(|_| !is_last) {
            if let Owner::Seed(seed) = owner {
                self.settle(eager)?;
                self.remove(eager, &totals, &Culprit::Seed(seed))?;
            }
        }
        if looked.is_clean && !is_last {
            return self.keep_if_due(eager, observer);
        }
        Ok(false)
    }

    /// Keeps the state in memory when it is time to; the first one of a run is good. Where it is not finite the run goes back:
    /// then the answer is true.
    pub(super) fn keep_if_due(&mut self, eager: &mut Eager, observer: &mut dyn Observer) -> Result<bool, Error> {
        let config = &self.config.recovery;
        let last = self.recovery.ring.last_step();
        let is_due = last.is_none_or(|last| self.cursor.step.0.saturating_sub(last.0) >= config.every_steps.get());
        // After the last step of an epoch a seed can not be removed.
        if !config.is_on() || !is_due || self.cursor.window >= self.steps_per_epoch() {
            return Ok(false);
        }
        if let Some(culprit) = self.bad_state()? {
            let totals = self.sums.read(&mut self.reads)?;
            let error = Error::NonFiniteState { tensor: culprit.to_string() };
            self.recover(eager, observer, &totals, &culprit, error)?;
            return Ok(true);
        }
        self.settle(eager)?;
        if self.keep_state(eager)? {
            if last.is_none() {
                self.confirm_state();
            }
        } else if !std::mem::replace(&mut self.recovery.is_told, true) {
            let mib = self.config.recovery.memory_mib;
            tracing::warn!("`recovery.memory_mib = {mib}` does not hold two states: the last good one grows old");
        }
        Ok(false)
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
                let totals = self.sums.read(&mut self.reads)?;
                let culprit = self.find_culprit(eager, None)?;
                self.recover(eager, observer, &totals, &culprit, error).map(|()| None)
            }
            result => result.map(Some),
        }
    }

    /// Goes back. A seed that is to blame is removed, otherwise the learning rate falls.
    ///
    /// # Errors
    /// `error`, when the run went back as often as it may, or there is nothing to go back to.
    fn recover(
        &mut self,
        eager: &mut Eager,
        observer: &mut dyn Observer,
        totals: &EpochTotals,
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
        let back = match self.roll_back(eager) {
            Err(Error::NothingToRestore) => {
                self.tell(culprit, "ended");
                return Err(error);
            }
            back => back?,
        };
        self.count_skips(totals);
        self.recovery.num_counted = self.sums.read(&mut self.reads)?.num_skipped;
        self.recovery.attempts += 1;
        self.recovery.furthest = self.recovery.furthest.max(back.from);
        self.recovery.guard.forgive();
        let restored = self.sums.read(&mut self.reads)?;
        let is_removed = self.remove(eager, &restored, culprit)?;
        self.recovery.guard.rate = if matches!(culprit, Culprit::Seed(_)) { rate } else { rate * factor };
        self.write_bound()?;
        if !is_removed {
            self.tell(culprit, "went_back");
        }
        let culprit = culprit.to_string();
        let event = Event::new(&desc::ROLLED_BACK).with("from", back.from).with("to", back.to);
        let event = event.with("tier", back.tier.name()).with("culprit", &culprit);
        self.parts.recorder.event(event.with("rate_factor", self.recovery.guard.rate));
        let (from, to) = (back.from, back.to);
        observer.event(&RunEvent::RolledBack { from, to, culprit: &culprit, rate_factor: self.recovery.guard.rate });
        Ok(())
    }

    /// Removes the seed that is to blame, where there is one and it can go; the sums start over without it.
    fn remove(&mut self, eager: &mut Eager, totals: &EpochTotals, culprit: &Culprit) -> Result<bool, Error> {
        let Culprit::Seed(seed) = *culprit else { return Ok(false) };
        let is_there = self.export_seeds(eager)?.iter().any(|state| state.seed_id == seed);
        if !is_there || self.cursor.window >= self.steps_per_epoch() {
            return Ok(false);
        }
        let reason = "its loss or its gradient could not be used";
        if !self.parts.seeds.remove_seed(eager, seed, reason).map_err(|error| self.seed_error(error))? {
            return Ok(false);
        }
        self.tell(culprit, "removed");
        self.count_skips(totals);
        let seeds = self.export_seeds(eager)?;
        self.refit(&seeds)?;
        Ok(true)
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
