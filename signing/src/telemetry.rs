//! Metrics and events of verification. Their names are those of the seed manager that verified by itself.

use std::sync::Arc;
use std::time::Duration;

use leyline::telemetry::{Counter, Event, EventDesc, Gauge, Level, Recorder};

use crate::Rejection;

leyline::declare_metrics! {
    /// Commands that passed all security checks.
    COMMANDS_ACCEPTED = Counter "kasmina.command_verifier.accepted_total" Count [];
    /// Commands that failed a security check.
    COMMANDS_REJECTED = Counter "kasmina.command_verifier.rejections_total" Count ["reason"];
    /// Time the checks of the latest command took.
    VALIDATION_LATENCY = Gauge "kasmina.command_verifier.validation_latency_ms" Milliseconds [];
}

/// A command failed a security check.
pub static COMMAND_REJECTED: EventDesc = EventDesc {
    name: "command_rejected",
    level: Level::Error,
    help: "A command failed a security check; nothing of its content is repeated",
    attributes: &["reason"],
};

/// An authentic command asked for what is not supported.
pub static UNSUPPORTED_SEED_OPERATION: EventDesc = EventDesc {
    name: "unsupported_seed_operation",
    level: Level::Warning,
    help: "An authentic command asked for an operation of the older system; answered by `command_rejected` as well",
    attributes: &["operation"],
};

/// An authentic command could not be read.
pub static COMMAND_VALIDATION_FAILED: EventDesc = EventDesc {
    name: "command_validation_failed",
    level: Level::Error,
    help: "An authentic command could not be read; answered by `command_rejected` as well",
    attributes: &["reason"],
};

/// Every event of this crate.
pub static EVENTS: &[&EventDesc] = &[&COMMAND_REJECTED, &UNSUPPORTED_SEED_OPERATION, &COMMAND_VALIDATION_FAILED];

/// The handles of a verifier.
#[derive(Debug)]
pub(crate) struct Instruments {
    recorder: Arc<dyn Recorder>,
    accepted: Counter,
    rejected: [Counter; Rejection::REASONS.len()],
    validation_ms: Gauge,
}

impl Instruments {
    pub(crate) fn new(recorder: Arc<dyn Recorder>) -> Self {
        Self {
            accepted: recorder.counter(&COMMANDS_ACCEPTED, &[]),
            rejected: Rejection::REASONS.map(|reason| recorder.counter(&COMMANDS_REJECTED, &[reason])),
            validation_ms: recorder.gauge(&VALIDATION_LATENCY, &[]),
            recorder,
        }
    }

    /// What came of the checks of one command, and how long they took.
    pub(crate) fn verified(&self, rejection: Option<&Rejection>, took: Duration) {
        self.validation_ms.set(took.as_secs_f64() * 1e3);
        let Some(rejection) = rejection else { return self.accepted.add(1) };
        let reason = rejection.reason();
        for (known, counter) in Rejection::REASONS.iter().zip(&self.rejected) {
            counter.add(u64::from(*known == reason));
        }
        self.recorder.event(Event::new(&COMMAND_REJECTED).with("reason", reason));
        match rejection {
            Rejection::Unsupported(name) => {
                self.recorder.event(Event::new(&UNSUPPORTED_SEED_OPERATION).with("operation", name));
            }
            Rejection::Malformed(_) => {
                self.recorder.event(Event::new(&COMMAND_VALIDATION_FAILED).with("reason", reason));
            }
            _ => {}
        }
    }
}
