//! Emergency levels of a run: what raises and lowers them, what the trainer does at each, who is told.

use std::mem;
use std::sync::Arc;

use esper_safety::emergency::{Change, Emergency, Level, Origin};
use esper_safety::signal::SignalFile;
use leyline::policy::Policy;
use leyline::region::Eager;
use leyline::seed::SeedManager;
use leyline::telemetry::{Boundary, Counter, Event, Gauge, Health, HealthStatus, Recorder};

use crate::error::Error;
use crate::telemetry as desc;
use crate::trainer::instruments::ms;
use crate::trainer::observer::{Observer, RunEvent};
use crate::trainer::run::{Outcome, Trainer};

/// What is remembered of emergencies.
#[derive(Debug)]
pub(super) struct Levels {
    emergency: Emergency,
    /// The last change that was told.
    told: u64,
    /// What the trainer acts on.
    level: Level,
    signal: Option<SignalFile>,
    /// Epochs in a row in which something was wrong.
    troubled_epochs: u32,
    /// Whether the run went back in this epoch.
    went_back: bool,
    /// Why the run was halted.
    halt_reason: Option<String>,
    gauge: Gauge,
    halt: Gauge,
    changes_total: Counter,
    escalations_total: Counter,
    dropped_total: Counter,
    halts_total: Counter,
    broadcasts_total: Counter,
    broadcast_failures_total: Counter,
    broadcast_latency: Gauge,
    shared_signal: Gauge,
}

impl Levels {
    pub(super) fn new(recorder: &Arc<dyn Recorder>) -> Self {
        let counter = |desc| recorder.counter(desc, &[]);
        let at_0 = |desc| {
            let gauge = recorder.gauge(desc, &[]);
            gauge.set(0.0);
            gauge
        };
        Self {
            emergency: Emergency::default(),
            told: 0,
            level: Level::Normal,
            signal: None,
            troubled_epochs: 0,
            went_back: false,
            halt_reason: None,
            gauge: at_0(&desc::EMERGENCY_LEVEL),
            halt: at_0(&desc::EMERGENCY_HALT),
            changes_total: counter(&desc::EMERGENCY_CHANGES_TOTAL),
            escalations_total: counter(&desc::EMERGENCY_ESCALATIONS_TOTAL),
            dropped_total: counter(&desc::EMERGENCY_DROPPED_TOTAL),
            halts_total: counter(&desc::EMERGENCY_HALTS_TOTAL),
            broadcasts_total: counter(&desc::EMERGENCY_BROADCASTS_TOTAL),
            broadcast_failures_total: counter(&desc::EMERGENCY_BROADCAST_FAILURES_TOTAL),
            broadcast_latency: at_0(&desc::EMERGENCY_BROADCAST_LATENCY),
            shared_signal: at_0(&desc::EMERGENCY_SHARED_SIGNAL),
        }
    }
}

impl<S: SeedManager, P: Policy> Trainer<S, P> {
    /// A handle of the emergency level, for any thread: it takes effect after the step that is under way.
    pub fn emergency(&self) -> Emergency {
        self.safety.levels.emergency.clone()
    }

    /// From now on each change of the level is told in `signal`, beginning with the level as it is.
    pub fn signal_emergencies_to(&mut self, signal: SignalFile) {
        self.safety.levels.signal = Some(signal);
        self.safety.levels.shared_signal.set(1.0);
        let level = self.safety.levels.emergency.level();
        self.broadcast(level, "the run begins");
    }

    /// Why the run was halted; absent when it was not.
    pub(in crate::trainer) fn halt_reason(&self) -> Option<&str> {
        self.safety.levels.halt_reason.as_deref()
    }

    /// Whether structure and schedules of seeds stand still.
    pub(in crate::trainer) fn is_frozen(&self) -> bool {
        self.safety.levels.level >= Level::Safe
    }

    /// The run went back: for the rest of the epoch somebody should look.
    pub(in crate::trainer) fn note_going_back(&mut self, culprit: &str) {
        self.safety.levels.went_back = true;
        let levels = &self.safety.levels;
        if levels.emergency.level() < Level::Notice {
            levels.emergency.set(Origin::Run, Level::Notice, &format!("the run went back: {culprit}"));
        }
    }

    /// Judges the epoch that ends: raises the level, or lowers it where nothing was wrong.
    pub(super) fn judge_epoch(&mut self, trouble: Option<String>, is_left_alone: bool) {
        let (levels, config) = (&mut self.safety.levels, &self.config.safety);
        if levels.level >= Level::Safe {
            // Nobody was called: what made the run raise it is tried anew after this epoch.
            if levels.emergency.level_by(Origin::Run) >= Level::Safe {
                levels.emergency.set(Origin::Run, Level::Conservative, "an epoch in which nothing moved");
            }
            return;
        }
        let went_back = mem::take(&mut levels.went_back);
        let trouble = trouble.or_else(|| went_back.then(|| "the run went back".to_owned()));
        levels.troubled_epochs = if trouble.is_some() { levels.troubled_epochs.saturating_add(1) } else { 0 };
        let is_reached =
            |after: Option<std::num::NonZeroU32>| after.is_some_and(|after| levels.troubled_epochs >= after.get());
        let (level, reason) = match trouble {
            None => (Level::Normal, "an epoch without trouble".to_owned()),
            Some(why) if is_reached(config.halt_after_epochs) => (Level::Halt, why),
            Some(why) if is_reached(config.safe_after_epochs) => (Level::Safe, why),
            Some(why) if is_left_alone => (Level::Conservative, why),
            Some(why) => (Level::Notice, why),
        };
        levels.emergency.set(Origin::Run, level, &reason);
    }

    /// Acts on changes of the level, where there are any; the level.
    pub(in crate::trainer) fn look_at_level(
        &mut self,
        eager: &mut Eager,
        observer: &mut dyn Observer,
    ) -> Result<Level, Error> {
        let levels = &mut self.safety.levels;
        if levels.emergency.num_changes() == levels.told {
            return Ok(levels.level);
        }
        let changes = levels.emergency.changes_after(levels.told);
        let before = levels.level;
        for change in &changes {
            self.tell_change(change, observer);
        }
        let level = self.safety.levels.level;
        self.safety.calls.set_emergency(level >= Level::Conservative);
        if (before >= Level::Safe) != (level >= Level::Safe) {
            // What was replayed so far is tested before steps run in another way.
            self.settle(eager)?;
            self.executor.run_eagerly(level >= Level::Safe);
        }
        Ok(level)
    }

    fn tell_change(&mut self, change: &Change, observer: &mut dyn Observer) {
        let levels = &mut self.safety.levels;
        let num_new = change.sequence - mem::replace(&mut levels.told, change.sequence);
        levels.changes_total.add(num_new);
        levels.dropped_total.add(num_new - 1);
        levels.level = change.to;
        levels.gauge.set(f64::from(change.to.number()));
        let (level, origin, reason) = (change.to, change.origin.name(), &change.reason);
        let desc = if change.to > change.from {
            levels.escalations_total.add(1);
            tracing::warn!(%level, origin, reason, "emergency level");
            &desc::EMERGENCY_ESCALATED
        } else {
            tracing::info!(%level, origin, reason, "emergency level");
            &desc::EMERGENCY_LOWERED
        };
        let event = Event::new(desc).with("level", change.to.number()).with("from", change.from.number());
        self.parts.recorder.event(event.with("origin", origin).with("reason", reason));
        observer.event(&RunEvent::Emergency { level, reason });
        self.broadcast(level, reason);
    }

    fn broadcast(&mut self, level: Level, reason: &str) {
        let started = self.parts.clock.now();
        let unix_ms = u64::try_from(self.parts.clock.unix().as_millis()).unwrap_or(u64::MAX);
        let levels = &mut self.safety.levels;
        let Some(signal) = &mut levels.signal else { return };
        match signal.write(Origin::Run, level, reason, unix_ms) {
            Ok(_) => levels.broadcasts_total.add(1),
            Err(error) => {
                levels.broadcast_failures_total.add(1);
                tracing::warn!(%error, "other processes were not told of the emergency level");
            }
        }
        levels.broadcast_latency.set(ms(self.parts.clock.now().saturating_sub(started)));
    }

    /// Ends the run at once: with a checkpoint, where the state can be saved.
    pub(in crate::trainer) fn halt(&mut self, eager: &mut Eager, observer: &mut dyn Observer) -> Outcome {
        let levels = &self.safety.levels;
        levels.halts_total.add(1);
        levels.halt.set(1.0);
        let changes = levels.emergency.changes_after(levels.told.saturating_sub(1));
        let reason = changes.last().map(|change| change.reason.clone()).unwrap_or_default();
        self.parts.recorder.event(Event::new(&desc::EMERGENCY_HALTED).with("reason", &reason));
        self.save_last(eager, observer);
        let health = Health { status: HealthStatus::Critical, summary: desc::EMERGENCY_HALTED.name.to_owned() };
        let (epoch, step) = (self.cursor.epoch, self.cursor.step);
        self.parts.recorder.publish(Boundary { epoch, step, source: "tolaria", health });
        observer.event(&RunEvent::Ended { outcome: Outcome::Halted, reason: Some(&reason) });
        self.safety.levels.halt_reason = Some(reason);
        Outcome::Halted
    }
}
