//! What the ends of optimizer steps and of epochs do, and the history that they make.

use leyline::id::{EpochIndex, SeedId, StepIndex};
use leyline::region::Eager;
use leyline::seed::{AlphaMode, SeedStage, Transition};
use leyline::telemetry::Event;

use crate::error::Error;
use crate::lifecycle::HistoryEntry;
use crate::manager::Kasmina;
use crate::telemetry::events;

impl Kasmina {
    /// The moves of a seed, oldest first: the latest 100. None for a seed that is unknown or whose slot is free again.
    #[must_use]
    pub fn history(&self, seed: SeedId) -> Option<impl ExactSizeIterator<Item = &HistoryEntry>> {
        self.state.seeds.get(&seed).map(|record| record.history())
    }

    /// Moves ramps on, and removes the seeds whose fade ends. They are returned by the next [`Self::end_epoch`].
    pub(super) fn end_step(&mut self, eager: &Eager, step: StepIndex) -> Result<(), Error> {
        self.thread.check(eager)?;
        self.untouched = false;
        let mut faded = Vec::new();
        let ramping = self.state.seeds.values_mut();
        for record in ramping.filter(|record| !record.is_paused() && record.alpha.mode() != AlphaMode::Hold) {
            let mut alpha = record.alpha;
            let finished = alpha.advance();
            if let Some(reason) = record.fading().filter(|_| finished) {
                // It leaves the network with its scalar.
                faded.push((record.id, reason.to_owned()));
            } else {
                self.state.model.write_alpha(record.id, alpha.alpha())?;
            }
            record.alpha = alpha;
            self.telemetry.alpha(record.id, alpha.alpha().get(), alpha.steps_done());
            if finished {
                let event = Event::new(&events::RAMP_FINISHED)
                    .with("seed_id", record.id)
                    .with("alpha", alpha.alpha())
                    .with("step", step);
                self.telemetry.event(event);
            }
        }
        for (seed, reason) in &faded {
            if let Some(transition) = self.state.end_fade(*seed, reason)? {
                self.report_transition(&transition);
                self.state.unreturned.push(transition);
            }
        }
        self.settle_arrivals()?;
        self.state.model.refresh()?;
        if !faded.is_empty() {
            self.update_gauges();
        }
        Ok(())
    }

    /// Moves clocks on and asks the gates ahead. Returns the stage changes since the last end of an epoch that no
    /// command made, each once.
    pub(super) fn end_epoch(&mut self, eager: &Eager, epoch: EpochIndex) -> Result<Vec<Transition>, Error> {
        self.thread.check(eager)?;
        self.untouched = false;
        let began = self.clock.now();
        self.monitor.finish_epoch();
        self.is_filling = false;
        self.settle_arrivals()?;
        let gates = &self.config.gates;
        let seeds: Vec<SeedId> = self.state.seeds.keys().copied().collect();
        let mut transitions = Vec::new();
        for seed in seeds {
            let around = self.state.surroundings(seed, &self.config);
            let Some(record) = self.state.seeds.get_mut(&seed) else { continue };
            let end = record.finish_epoch(gates, around, epoch)?;
            transitions.extend(end.transitions);
            if let Some(report) = end.verdict {
                self.telemetry.gate(Some(seed), &report);
            }
            if let Some(report) = record.judge_next(gates, around) {
                self.telemetry.gate(Some(seed), report);
            }
        }
        self.state.seeds.retain(|_, record| record.stage() != SeedStage::Dormant);
        for transition in &transitions {
            self.report_transition(transition);
        }
        self.telemetry.repeat_violations();
        self.tidy_library(epoch.0);
        self.update_gauges();
        self.telemetry.epoch_finished(self.clock.now().saturating_sub(began));
        let mut since_last = std::mem::take(&mut self.state.unreturned);
        since_last.append(&mut transitions);
        Ok(since_last)
    }
}
