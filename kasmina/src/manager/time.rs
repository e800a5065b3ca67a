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
        let (mut faded, mut written) = (Vec::new(), Ok(()));
        let ramping = self.state.seeds.values_mut();
        for record in ramping.filter(|record| !record.is_paused() && record.alpha.mode() != AlphaMode::Hold) {
            let mut alpha = record.alpha;
            let finished = alpha.advance();
            if let Some(reason) = record.fading().filter(|_| finished) {
                // It leaves the network with its scalar.
                faded.push((record.id, reason.to_owned()));
            } else if let Err(error) = self.state.model.write_alpha(record.id, alpha.alpha()) {
                // Told when the fades before it have ended: their records say so already, and no later step looks at them.
                written = Err(error);
                break;
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
        // Told when the layout knows of the fades, too.
        let settled = self.settle_arrivals();
        self.state.model.refresh()?;
        if !faded.is_empty() {
            self.update_gauges();
        }
        settled.and(written)
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use candle_core::Device;
    use leyline::command::{AlphaCurve, AlphaRamp, Operation, Order};
    use leyline::id::{BlueprintId, SlotId};
    use leyline::seed::{Gate, SeedManager as _};
    use leyline::unit::Alpha;
    use leyline_testkit::clock::ManualClock;
    use leyline_testkit::recording_recorder::RecordingRecorder;

    use super::*;
    use crate::config::KasminaConfig;
    use crate::host::HostConfig;
    use crate::lifecycle::GateConfig;

    #[test]
    fn a_seed_whose_fade_ends_is_removed_also_where_the_alpha_of_another_cannot_be_written() {
        let mut eager = Eager::acquire().unwrap();
        let gates = GateConfig { off: Gate::ALL.to_vec(), ..GateConfig::default() };
        let host = HostConfig::Mlp { inputs: 2, hidden: vec![4, 4], classes: 2 };
        let (clock, recorder) = (ManualClock::new(Duration::ZERO), RecordingRecorder::new());
        let config = KasminaConfig { gates, ..KasminaConfig::new(host) };
        let mut manager = Kasmina::new(config, &Device::Cpu, Arc::new(clock), Arc::new(recorder)).unwrap();
        let mut send = |operation| manager.apply(&mut eager, &Order::new(operation, "test")).unwrap().seed;
        let [fading, rising] = ["hidden0", "hidden1"].map(|slot| {
            let slot = SlotId::new(slot).unwrap();
            let seed = send(Operation::germinate(slot, BlueprintId::new("mlp").unwrap()));
            send(Operation::StartTraining { seed });
            let ramp = AlphaRamp { target: Alpha::ONE, steps: 2, curve: AlphaCurve::Linear };
            send(Operation::StartBlending { seed, ramp })
        });
        manager.finish_step(&mut eager, StepIndex(1)).unwrap();
        let fade = Operation::CullGradually { seed: fading, steps: 1, curve: AlphaCurve::Linear };
        manager.apply(&mut eager, &Order::new(fade, "test")).unwrap();
        manager.state.model.take_live(rising).unwrap();
        manager.finish_step(&mut eager, StepIndex(2)).unwrap_err();
        let stage = manager.state.seeds[&fading].stage();
        assert_eq!((stage, manager.model().role(fading)), (SeedStage::Pruned, None));
    }
}
