//! Going back to a known-good state: from memory first, then from the newest checkpoint that verifies.

use std::time::Duration;

use leyline::id::StepIndex;
use leyline::model::TrainableModel;
use leyline::policy::Policy;
use leyline::region::Eager;
use leyline::seed::SeedManager;
use leyline::telemetry::Event;

use crate::error::{self, Error};
use crate::optim::Rounding;
use crate::telemetry as desc;
use crate::trainer::instruments::ms;
use crate::trainer::run::Trainer;
use crate::trainer::stop::Best;

/// What a failed restore from memory is called where generations have their names.
const MEMORY: &str = "memory";

/// Where a state came back from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tier {
    /// The memory of the device.
    Memory,
    /// A checkpoint.
    Disk,
}

impl Tier {
    /// The name in snake case.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Memory => MEMORY,
            Self::Disk => "disk",
        }
    }
}

/// A run that went back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RolledBack {
    /// Where the state came from.
    pub tier: Tier,
    /// Optimizer steps taken before.
    pub from: StepIndex,
    /// Optimizer steps that the state holds.
    pub to: StepIndex,
}

impl<S: SeedManager, P: Policy> Trainer<S, P> {
    /// Keeps the state as it is in memory, to go back to; false where `recovery.memory_mib` does not hold it beside the last
    /// good one, and where it is 0. It is known to be good once [`confirm_state`](Self::confirm_state) says so.
    ///
    /// # Errors
    /// As [`Self::snapshot`].
    /// # Sync
    /// As there.
    pub fn keep_state(&mut self, eager: &Eager) -> Result<bool, Error> {
        let budget = self.config.recovery.budget();
        let elements = self.parts.seeds.model().layout().num_elements() as u64;
        // With what rounding leaves over beside it a number of `bf16` takes as much as one of `f32`.
        let of_number = if self.config.precision.rounding() == Rounding::Stochastic { 2 } else { 4 };
        let of_average = if self.config.ema_decay.is_some() { 4 } else { 0 };
        let about = elements * (of_number * (1 + self.config.optimizer.num_moments() as u64) + of_average);
        if budget == 0 || !self.recovery.ring.make_room(budget, about) {
            return Ok(false);
        }
        let snapshot = self.snapshot(eager)?;
        self.recovery.ring.push(snapshot);
        let fits = self.recovery.ring.bytes() <= budget;
        if fits {
            self.instruments.rollback.snapshots_total.add(1);
        } else {
            self.recovery.ring.forget_doubtful();
        }
        self.instruments.rollback.fast_size_bytes.set(self.recovery.ring.bytes() as f64);
        Ok(fits)
    }

    /// Says that what was trained since the latest state was kept is good, and so is that state.
    pub fn confirm_state(&mut self) {
        self.recovery.ring.confirm();
    }

    /// Goes back to the newest known-good state: parameters, moments, steps, schedule, sums, draws, the place in the data,
    /// topology, seeds and policy. From memory, where one is kept and can be restored; then from the newest checkpoint that
    /// verifies. Counted in `tolaria.rollback.*`.
    ///
    /// # Errors
    /// Why the last state that was tried could not be restored, or [`Error::NothingToRestore`]; the trainer is then as it was
    /// before. [`Error::LateRestore`] past `recovery.deadline_ms`, which all attempts share.
    pub fn roll_back(&mut self, eager: &mut Eager) -> Result<RolledBack, Error> {
        eager.check()?;
        let (from, started) = (self.cursor.step, self.parts.clock.now());
        let deadline = self.config.recovery.deadline_ms.map(|ms| started + Duration::from_millis(ms.get()));
        let mut best = None;
        let tier = self.restore_newest(eager, deadline, &mut best);
        let unwritten = self.saver.as_ref().map_or(&[][..], |saver| &saver.unwritten);
        let is_unwritten = self.track.best.is_some_and(|of_state| unwritten.contains(&of_state));
        // Its checkpoint is still the one of the best evaluation: that before it is gone, and that of the state was never there.
        if tier.is_ok() && (is_unwritten || best.is_some_and(|best| self.track.is_best(best.loss))) {
            self.track.best = best;
        }
        if tier.is_ok() {
            // Noted for the state that is left.
            self.recovery.late.clear();
        }
        let instruments = &self.instruments.rollback;
        instruments.restore_latency.set(ms(self.parts.clock.now().saturating_sub(started)));
        instruments.fast_size_bytes.set(self.recovery.ring.bytes() as f64);
        match &tier {
            Ok(Tier::Memory) => instruments.fast_hits.add(1),
            Ok(Tier::Disk) => {
                instruments.fast_misses.add(1);
                instruments.full_restores.add(1);
            }
            Err(error) => {
                instruments.fast_misses.add(1);
                if matches!(error, Error::LateRestore) {
                    instruments.deadline_exceeded.add(1);
                }
            }
        }
        Ok(RolledBack { tier: tier?, from, to: self.cursor.step })
    }

    /// `best` is the evaluation whose checkpoint is there, or under way, as of what is restored.
    fn restore_newest(
        &mut self,
        eager: &mut Eager,
        deadline: Option<Duration>,
        best: &mut Option<Best>,
    ) -> Result<Tier, Error> {
        self.recovery.ring.forget_doubtful();
        *best = self.track.best.filter(|_| self.keeps_best());
        let mut last = Error::NothingToRestore;
        while let Some(snapshot) = self.recovery.ring.newest() {
            match self.restore_compared(eager, &snapshot, deadline) {
                Ok(_) => {
                    if let Some(saver) = &mut self.saver {
                        // What is there of later steps is of the way that was left.
                        saver.durable = saver.durable.min(self.cursor.step);
                    }
                    return Ok(Tier::Memory);
                }
                Err(error) => last = self.restore_failed(MEMORY, error)?,
            }
            self.recovery.ring.drop_newest();
        }
        self.await_writer();
        // What was waited for may have failed.
        *best = self.track.best.filter(|_| self.keeps_best());
        let Some(saver) = &self.saver else { return Err(last) };
        let loaded = saver.reader.load_latest().map_err(Error::from);
        let generation = loaded.as_ref().ok().and_then(Option::as_ref).map(|loaded| loaded.generation.to_string());
        match loaded.and_then(|loaded| self.take_up(eager, loaded, deadline)) {
            Ok(Some(_)) => Ok(Tier::Disk),
            Ok(None) => Err(last),
            Err(error) => Err(self.restore_failed(generation.as_deref().unwrap_or("none"), error)?),
        }
    }

    pub(super) fn tell_of_failed(&self, generation: &str, reason: &dyn std::error::Error) {
        self.instruments.rollback.failures.add(1);
        let event = Event::new(&desc::RESTORE_FAILED).with("generation", generation);
        self.parts.recorder.event(event.with("reason", error::chain(reason)));
    }

    /// Reports it. What cannot be followed by another attempt is an error.
    fn restore_failed(&self, generation: &str, error: Error) -> Result<Error, Error> {
        self.tell_of_failed(generation, &error);
        match error {
            Error::LateRestore | Error::HalfRestored { .. } | Error::Region(_) => Err(error),
            other => Ok(other),
        }
    }
}
