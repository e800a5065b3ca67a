//! Broken recorders.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use leyline::telemetry::{Boundary, Counter, Event, Gauge, MetricDesc, Recorder};
use leyline_testkit::recorder::{self as rules, RecorderHarness, Sent};
use leyline_testkit::recording_recorder::RecordingRecorder;

use crate::fails;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    IgnoresLabels,
    HandsOutFreshHandles,
    LosesEvents,
    InventsZeros,
}

#[derive(Debug)]
struct Broken {
    inner: RecordingRecorder,
    fault: Fault,
    num_events: AtomicU64,
}

impl Recorder for Broken {
    fn gauge(&self, desc: &'static MetricDesc, labels: &[&str]) -> Gauge {
        match self.fault {
            Fault::HandsOutFreshHandles => Gauge::new(),
            Fault::IgnoresLabels => self.inner.gauge(desc, &[]),
            _ => self.inner.gauge(desc, labels),
        }
    }

    fn counter(&self, desc: &'static MetricDesc, labels: &[&str]) -> Counter {
        self.inner.counter(desc, labels)
    }

    fn event(&self, event: Event) {
        let n = self.num_events.fetch_add(1, Ordering::SeqCst);
        if self.fault != Fault::LosesEvents || n < 10 {
            self.inner.event(event);
        }
    }

    fn publish(&self, boundary: Boundary) {
        self.inner.publish(boundary);
    }
}

fn broken(fault: Fault) -> impl Fn() -> RecorderHarness<Broken> {
    move || {
        let inner = RecordingRecorder::new();
        let recorder = Arc::new(Broken { inner, fault, num_events: AtomicU64::new(0) });
        RecorderHarness::new(recorder, |recorder: &Broken| {
            let publications = recorder.inner.publications();
            let mut values: Vec<_> = publications
                .last()
                .unwrap()
                .gauges
                .iter()
                .map(|((name, labels), value)| ((*name).to_owned(), labels.clone(), *value))
                .collect();
            if recorder.fault == Fault::InventsZeros {
                values.push(("testkit.labeled_gauge".into(), vec!["seed-1".into()], 0.0));
            }
            let num_events = publications.iter().map(|publication| publication.events.len() as u64).sum();
            Sent { values, num_events, num_dropped: 0 }
        })
    }
}

#[test]
fn handles_that_do_not_share_fail_te_1() {
    let make = broken(Fault::HandsOutFreshHandles);
    fails("TE-1", "does not see 0.25", || rules::te_1_equal_descriptor_and_labels_share_a_value(&make));
}

#[test]
fn labels_that_do_not_separate_fail_te_1() {
    let make = broken(Fault::IgnoresLabels);
    fails("TE-1", "labeled gauge does not see 1", || rules::te_1_equal_descriptor_and_labels_share_a_value(&make));
}

#[test]
fn events_that_vanish_uncounted_fail_te_2() {
    let make = broken(Fault::LosesEvents);
    fails("TE-2", "10 sent and 0 counted as dropped", || {
        rules::te_2_recording_never_blocks_and_counts_what_it_drops(&make);
    });
}

#[test]
fn a_zero_for_a_gauge_that_was_not_set_fails_te_3() {
    let make = broken(Fault::InventsZeros);
    fails("TE-3", "before clearing", || rules::te_3_a_gauge_that_was_not_set_is_absent(&make));
}
