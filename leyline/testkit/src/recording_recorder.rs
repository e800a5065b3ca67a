//! A recorder that keeps everything, for assertions.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use leyline::telemetry::{Boundary, Counter, Event, Gauge, MetricDesc, Recorder};

/// Name and label values of a series.
pub type SeriesKey = (&'static str, Vec<String>);

/// What one call of `publish` would send.
#[derive(Debug, Clone, PartialEq)]
pub struct Publication {
    /// Where in the run.
    pub boundary: Boundary,
    /// Gauges that were set.
    pub gauges: BTreeMap<SeriesKey, f64>,
    /// All counters.
    pub counters: BTreeMap<SeriesKey, u64>,
    /// Events since the publication before.
    pub events: Vec<Event>,
}

#[derive(Debug, Default)]
struct Inner {
    gauges: BTreeMap<SeriesKey, Gauge>,
    counters: BTreeMap<SeriesKey, Counter>,
    events: Vec<Event>,
    num_published_events: usize,
    publications: Vec<Publication>,
}

/// Keeps every event and every publication; drops nothing. Share it in an `Arc`.
#[derive(Debug, Default)]
pub struct RecordingRecorder {
    inner: Mutex<Inner>,
}

impl RecordingRecorder {
    /// A recorder that has seen nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The gauge's value now; absent when it was never set or nobody asked for it.
    #[must_use]
    pub fn gauge_value(&self, name: &str, labels: &[&str]) -> Option<f64> {
        self.lock().gauges.iter().find(|(key, _)| matches(key, name, labels)).and_then(|(_, gauge)| gauge.get())
    }

    /// The counter's value now; absent when nobody asked for it.
    #[must_use]
    pub fn counter_value(&self, name: &str, labels: &[&str]) -> Option<u64> {
        self.lock().counters.iter().find(|(key, _)| matches(key, name, labels)).map(|(_, counter)| counter.get())
    }

    /// Every event so far, in order.
    #[must_use]
    pub fn events(&self) -> Vec<Event> {
        self.lock().events.clone()
    }

    /// Every event of this name so far, in order.
    #[must_use]
    pub fn events_named(&self, name: &str) -> Vec<Event> {
        self.lock().events.iter().filter(|event| event.desc.name == name).cloned().collect()
    }

    /// Every publication so far, in order.
    #[must_use]
    pub fn publications(&self) -> Vec<Publication> {
        self.lock().publications.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Recorder for RecordingRecorder {
    fn gauge(&self, desc: &'static MetricDesc, labels: &[&str]) -> Gauge {
        self.lock().gauges.entry(key(desc, labels)).or_default().clone()
    }

    fn counter(&self, desc: &'static MetricDesc, labels: &[&str]) -> Counter {
        self.lock().counters.entry(key(desc, labels)).or_default().clone()
    }

    fn event(&self, event: Event) {
        self.lock().events.push(event);
    }

    fn publish(&self, boundary: Boundary) {
        let mut inner = self.lock();
        let publication = Publication {
            boundary,
            gauges: inner.gauges.iter().filter_map(|(key, gauge)| Some((key.clone(), gauge.get()?))).collect(),
            counters: inner.counters.iter().map(|(key, counter)| (key.clone(), counter.get())).collect(),
            events: inner.events[inner.num_published_events..].to_vec(),
        };
        inner.num_published_events = inner.events.len();
        inner.publications.push(publication);
    }
}

fn key(desc: &'static MetricDesc, labels: &[&str]) -> SeriesKey {
    (desc.name, labels.iter().map(|label| (*label).to_owned()).collect())
}

fn matches(key: &SeriesKey, name: &str, labels: &[&str]) -> bool {
    key.0 == name && key.1 == labels
}
