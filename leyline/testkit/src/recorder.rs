//! Rules TE-1 to TE-3 of [`leyline::telemetry`] as functions, and the harness they run on.

use std::fmt;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use leyline::id::{EpochIndex, StepIndex};
use leyline::telemetry::{Boundary, Event, EventDesc, Health, Level, MetricDesc, MetricKind, Recorder, Unit};

use crate::rule::must;

/// Far above what any recorder needs for the calls of one rule; only a blocked one reaches it.
const PATIENCE: Duration = Duration::from_secs(30);

/// A gauge without labels.
pub static PLAIN_GAUGE: MetricDesc = MetricDesc {
    name: "testkit.plain_gauge",
    kind: MetricKind::Gauge,
    unit: Unit::Ratio,
    help: "A gauge of the contract tests",
    labels: &[],
};

/// A gauge with one label.
pub static LABELED_GAUGE: MetricDesc = MetricDesc {
    name: "testkit.labeled_gauge",
    kind: MetricKind::Gauge,
    unit: Unit::Ratio,
    help: "A gauge of the contract tests",
    labels: &["seed"],
};

/// A counter without labels.
pub static COUNTER: MetricDesc = MetricDesc {
    name: "testkit.counter",
    kind: MetricKind::Counter,
    unit: Unit::Count,
    help: "A counter of the contract tests",
    labels: &[],
};

/// An event without attributes.
pub static EVENT: EventDesc =
    EventDesc { name: "testkit_event", level: Level::Info, help: "An event of the contract tests", attributes: &[] };

/// What a recorder has sent so far.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Sent {
    /// Values of the latest publication: name of the metric, label values, value. Counters as `f64`.
    pub values: Vec<(String, Vec<String>, f64)>,
    /// Events with the name of [`RecorderHarness::event`] in all publications (count).
    pub num_events: u64,
    /// Events that could not be kept (count).
    pub num_dropped: u64,
}

/// A fresh recorder with a way to see what it sends. Make one with [`RecorderHarness::new`]; change the descriptors where
/// the recorder accepts only those of its catalog.
pub struct RecorderHarness<R> {
    /// The recorder.
    pub recorder: Arc<R>,
    /// What it has sent; waits for a background thread if there is one, and flushes what it holds.
    pub sent: Box<dyn FnMut(&R) -> Sent>,
    /// Events to record at once, more than any queue of the recorder holds; by default 20 000.
    pub flood: u64,
    /// Describes a gauge without labels.
    pub gauge: &'static MetricDesc,
    /// Describes a gauge with one label.
    pub labeled_gauge: &'static MetricDesc,
    /// Describes a counter without labels.
    pub counter: &'static MetricDesc,
    /// Describes an event that needs no attributes.
    pub event: &'static EventDesc,
}

impl<R: Recorder> RecorderHarness<R> {
    /// A harness with the descriptors of this module.
    pub fn new(recorder: Arc<R>, sent: impl FnMut(&R) -> Sent + 'static) -> Self {
        Self {
            recorder,
            sent: Box::new(sent),
            flood: 20_000,
            gauge: &PLAIN_GAUGE,
            labeled_gauge: &LABELED_GAUGE,
            counter: &COUNTER,
            event: &EVENT,
        }
    }

    fn publish(&mut self) -> Sent {
        self.recorder.publish(boundary(0));
        (self.sent)(&self.recorder)
    }
}

impl<R: fmt::Debug> fmt::Debug for RecorderHarness<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecorderHarness").field("recorder", &self.recorder).finish_non_exhaustive()
    }
}

/// One `#[test]` per rule TE-1 to TE-3. The argument is a function or closure without arguments that builds a fresh
/// [`RecorderHarness`](crate::recorder::RecorderHarness).
#[macro_export]
macro_rules! recorder_conformance {
    ($make:expr) => {
        $crate::__one_test_per_rule!(
            recorder,
            $make,
            te_1_equal_descriptor_and_labels_share_a_value,
            te_2_recording_never_blocks_and_counts_what_it_drops,
            te_3_a_gauge_that_was_not_set_is_absent,
        );
    };
}

/// TE-1: handles of one descriptor with the same labels share a value, others do not.
pub fn te_1_equal_descriptor_and_labels_share_a_value<R: Recorder>(make: &impl Fn() -> RecorderHarness<R>) {
    const RULE: &str = "TE-1";
    let mut harness = make();
    let RecorderHarness { recorder, gauge, labeled_gauge, counter, .. } = &harness;
    let (plain, plain_again) = (recorder.gauge(gauge, &[]), recorder.gauge(gauge, &[]));
    let labeled = |label| recorder.gauge(labeled_gauge, &[label]);
    let (one, one_again, two) = (labeled("seed-1"), labeled("seed-1"), labeled("seed-2"));
    plain.set(0.25);
    one.set(1.0);
    two.set(2.0);
    must!(RULE, plain_again.get() == Some(0.25), "a second handle of a gauge does not see 0.25");
    must!(RULE, one_again.get() == Some(1.0), "a second handle of a labeled gauge does not see 1");
    must!(RULE, two.get() == Some(2.0), "two labels share one gauge");
    let (count, count_again) = (recorder.counter(counter, &[]), recorder.counter(counter, &[]));
    count.add(2);
    count_again.add(3);
    must!(RULE, count.get() == 5, "two handles of a counter counted to {}, not 5", count.get());

    let sent = harness.publish();
    for (desc, labels, expected) in [
        (harness.gauge, [].as_slice(), 0.25),
        (harness.labeled_gauge, &["seed-1"], 1.0),
        (harness.labeled_gauge, &["seed-2"], 2.0),
        (harness.counter, &[], 5.0),
    ] {
        let found = sent.values_of(desc, labels);
        must!(RULE, same(&found, &[expected]), "{} {labels:?} was sent as {found:?}, not {expected}", desc.name);
    }
}

/// TE-2: a flood of events and publications ends in time with nobody reading, and every event was sent or counted as
/// dropped.
pub fn te_2_recording_never_blocks_and_counts_what_it_drops<R: Recorder + 'static>(
    make: &impl Fn() -> RecorderHarness<R>,
) {
    const RULE: &str = "TE-2";
    let mut harness = make();
    let (done, wait) = mpsc::channel();
    let (recorder, event, flood) = (Arc::clone(&harness.recorder), harness.event, harness.flood);
    std::thread::spawn(move || {
        for n in 0..flood {
            recorder.event(Event::new(event));
            if n % 100 == 0 {
                recorder.publish(boundary(n));
            }
        }
        // The receiver is gone when the rule has failed already.
        done.send(()).ok();
    });
    must!(RULE, wait.recv_timeout(PATIENCE).is_ok(), "{flood} events were not taken within {PATIENCE:?}");
    let sent = harness.publish();
    let accounted = sent.num_events + sent.num_dropped;
    let (kept, dropped) = (sent.num_events, sent.num_dropped);
    must!(RULE, accounted == flood, "{flood} events recorded, {kept} sent and {dropped} counted as dropped");
}

/// TE-3: a gauge that was never set, or was cleared, is absent from what is sent; 0 is a value.
pub fn te_3_a_gauge_that_was_not_set_is_absent<R: Recorder>(make: &impl Fn() -> RecorderHarness<R>) {
    const RULE: &str = "TE-3";
    let mut harness = make();
    let plain = harness.recorder.gauge(harness.gauge, &[]);
    let [unset, zero] = ["seed-1", "seed-2"].map(|label| harness.recorder.gauge(harness.labeled_gauge, &[label]));
    must!(RULE, unset.get().is_none(), "a new gauge has a value");
    plain.set(1.0);
    zero.set(0.0);
    let expected: [&[f64]; 3] = [&[1.0], &[], &[0.0]];
    harness.must_send(RULE, "before clearing", expected);
    plain.set_or_clear(None);
    harness.must_send(RULE, "after clearing", [&[], &[], &[0.0]]);
}

impl<R: Recorder> RecorderHarness<R> {
    /// Values of the plain gauge, of `seed-1` and of `seed-2`.
    fn must_send(&mut self, rule: &str, when: &str, expected: [&[f64]; 3]) {
        let sent = self.publish();
        let series: [(&MetricDesc, &[&str]); 3] =
            [(self.gauge, &[]), (self.labeled_gauge, &["seed-1"]), (self.labeled_gauge, &["seed-2"])];
        for ((desc, labels), expected) in series.into_iter().zip(expected) {
            let found = sent.values_of(desc, labels);
            must!(rule, same(&found, expected), "{when}, {} {labels:?}: {found:?}, not {expected:?}", desc.name);
        }
    }
}

impl Sent {
    fn values_of(&self, desc: &MetricDesc, labels: &[&str]) -> Vec<f64> {
        let of_series = self.values.iter().filter(|(name, found, _)| *name == desc.name && found == labels);
        of_series.map(|(.., value)| *value).collect()
    }
}

/// Equality of bits: these values are passed on, not computed.
fn same(found: &[f64], expected: &[f64]) -> bool {
    found.iter().map(|value| value.to_bits()).eq(expected.iter().map(|value| value.to_bits()))
}

fn boundary(n: u64) -> Boundary {
    Boundary { epoch: EpochIndex(n), step: StepIndex(n), source: "testkit", health: Health::default() }
}
