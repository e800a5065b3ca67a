//! Newton's method for a square root, recorded: what it measures and what happens to it, one packet per step.
#![forbid(unsafe_code)]

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use esper_telemetry::sink::MemorySink;
use esper_telemetry::{Catalogue, Packet, QueueConfig, TelemetryRecorder};
use leyline::clock::SystemClock;
use leyline::id::{EpochIndex, RunId, StepIndex};
use leyline::telemetry::{Boundary, Event, EventDesc, Health, Level, Recorder};

leyline::declare_metrics! {
    /// Distance of the square of the estimate from the number.
    RESIDUAL = Gauge "newton.residual" Ratio [];
    /// Divisions so far.
    DIVISIONS = Counter "newton.divisions" Count [];
}

static CONVERGED: EventDesc = EventDesc {
    name: "newton.converged",
    level: Level::Info,
    help: "The residual is as small as it gets.",
    attributes: &["root"],
};
static EVENTS: &[&EventDesc] = &[&CONVERGED];

/// The packets of a run of `num_steps` steps towards the square root of `number`.
///
/// # Errors
/// When the recorder cannot be started, or did not write everything within five seconds.
pub fn record(number: f64, num_steps: u64) -> Result<Vec<Packet>, Box<dyn Error>> {
    let sink = MemorySink::new();
    let packets = sink.packets();
    let (recorder, guard) = TelemetryRecorder::start(
        RunId::new("newton")?,
        Catalogue::new(&[(METRICS, EVENTS)])?,
        vec![Box::new(sink)],
        QueueConfig::default(),
        Arc::new(SystemClock::new()),
    )?;
    let (residual, divisions) = (recorder.gauge(&RESIDUAL, &[]), recorder.counter(&DIVISIONS, &[]));
    let mut estimate = number;
    for step in 1..=num_steps {
        estimate = (estimate + number / estimate) / 2.0;
        divisions.add(1);
        residual.set((estimate * estimate - number).abs());
        if residual.get().is_some_and(|residual| residual < 1e-9) {
            recorder.event(Event::new(&CONVERGED).with("root", format!("{estimate:.6}")));
        }
        let (epoch, step) = (EpochIndex(0), StepIndex(step));
        recorder.publish(Boundary { epoch, step, source: "newton", health: Health::default() });
    }
    let shutdown = guard.shutdown(Duration::from_secs(5));
    if shutdown.finished { Ok(packets.all()) } else { Err("the packets were not written in time".into()) }
}
