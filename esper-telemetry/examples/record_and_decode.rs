//! Records an epoch into a frame file and shows what is in it.
//!
//! `cargo run -p esper-telemetry --example record_and_decode`

use std::error::Error;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use esper_telemetry::decode::{DecodeFormat, decode_file};
use esper_telemetry::sink::FrameSink;
use esper_telemetry::{Catalogue, QueueConfig, TelemetryRecorder};
use leyline::clock::SystemClock;
use leyline::id::{EpochIndex, RunId, StepIndex};
use leyline::telemetry::{Boundary, Event, EventDesc, Health, Level, MetricDesc, MetricKind, Recorder, Unit};

static LOSS: MetricDesc = MetricDesc {
    name: "example.training.loss",
    kind: MetricKind::Gauge,
    unit: Unit::Nats,
    help: "Mean loss of the last step.",
    labels: &[],
};
static PLATEAU: EventDesc = EventDesc {
    name: "example.plateau",
    level: Level::Warning,
    help: "The loss has stopped falling.",
    attributes: &["loss"],
};
static METRICS: &[&MetricDesc] = &[&LOSS];
static EVENTS: &[&EventDesc] = &[&PLATEAU];

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::temp_dir().join(format!("esper-example-{}.bin", std::process::id()));
    let (recorder, guard) = TelemetryRecorder::start(
        RunId::new("example")?,
        Catalogue::new(&[(METRICS, EVENTS)])?,
        vec![Box::new(FrameSink::append(&path)?)],
        QueueConfig::default(),
        Arc::new(SystemClock::new()),
    )?;

    // A subsystem asks for its handles once, and uses them in every step.
    let loss = recorder.gauge(&LOSS, &[]);
    for step in 1..=100_u32 {
        loss.set(0.1 + 1.0 / f64::from(step));
    }
    recorder.event(Event::new(&PLATEAU).with("loss", loss.get().unwrap_or_default()));
    let health = Health::default();
    recorder.publish(Boundary { epoch: EpochIndex(1), step: StepIndex(100), source: "example", health });
    let shutdown = guard.shutdown(Duration::from_secs(5));
    assert!(shutdown.finished && shutdown.stats.packets.delivered == 1, "{shutdown:?}");

    let decoded = decode_file(&path, DecodeFormat::Text, &mut io::stdout())?;
    assert_eq!(decoded.num_packets, 1);
    std::fs::remove_file(&path)?;
    Ok(())
}
