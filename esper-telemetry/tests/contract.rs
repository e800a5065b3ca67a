//! The rules of `leyline::telemetry`, run on the recorder.

use std::sync::Arc;
use std::thread;

use esper_telemetry::sink::MemorySink;
use esper_telemetry::{Catalogue, QueueConfig, TelemetryRecorder};
use leyline::clock::SystemClock;
use leyline::id::{EpochIndex, RunId, StepIndex};
use leyline::telemetry::{Boundary, EventDesc, Health, MetricDesc, Recorder};
use leyline_testkit::recorder::{COUNTER, EVENT, LABELED_GAUGE, PLAIN_GAUGE, RecorderHarness, Sent};

static METRICS: &[&MetricDesc] = &[&COUNTER, &LABELED_GAUGE, &PLAIN_GAUGE];
static EVENTS: &[&EventDesc] = &[&EVENT];

fn harness() -> RecorderHarness<TelemetryRecorder> {
    let sink = MemorySink::new();
    let log = sink.packets();
    let (recorder, guard) = TelemetryRecorder::start(
        RunId::new("contract").expect("a run id"),
        Catalogue::new(&[(METRICS, EVENTS)]).expect("a catalogue"),
        vec![Box::new(sink)],
        QueueConfig::default(),
        Arc::new(SystemClock::new()),
    )
    .expect("a thread");
    let sent = move |recorder: &TelemetryRecorder| {
        let _alive = &guard;
        // A boundary may have met a full queue; another one brings out the events that wait for it.
        while recorder.stats().events.in_flight() > 0 || recorder.stats().packets.in_flight() > 0 {
            if recorder.stats().packets.in_flight() == 0 {
                recorder.publish(flush());
            }
            thread::yield_now();
        }
        let packets = log.all();
        let latest = packets.last().map(|packet| packet.metrics.clone()).unwrap_or_default();
        let values = latest.into_iter().map(|m| (m.name, m.labels.into_values().collect(), m.value)).collect();
        let events = packets.iter().flat_map(|packet| &packet.events).filter(|event| event.name == EVENT.name);
        Sent { values, num_events: events.count() as u64, num_dropped: recorder.stats().events.dropped }
    };
    RecorderHarness::new(recorder, sent)
}

fn flush() -> Boundary {
    Boundary { epoch: EpochIndex(0), step: StepIndex(0), source: "flush", health: Health::default() }
}

leyline_testkit::recorder_conformance!(harness);
