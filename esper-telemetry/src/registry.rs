//! Series: from a descriptor and label values to the cell that all its handles share (TE-1).
//!
//! Getting a handle takes a lock for the time of a lookup. Using one is the handle's own relaxed store.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard};

use leyline::telemetry::{Counter, EventDesc, Gauge, MetricDesc, MetricKind};

use crate::catalogue::{Catalogue, check_names};
use crate::name::clip;
use crate::packet::{MAX_LABEL_BYTES, MAX_METRICS, Metric};
use crate::telemetry;

/// Most label sets of a metric; later ones share the series whose labels are all [`OTHER`].
pub const MAX_LABEL_SETS: usize = 256;

/// Label value of the series that takes what is over [`MAX_LABEL_SETS`].
pub const OTHER: &str = "other";

/// Every series of a recorder, in the order in which they were asked for; none is ever removed.
#[derive(Debug)]
pub(crate) struct Registry {
    catalogue: Catalogue,
    index: RwLock<Index>,
    /// Values at the end of the run.
    last: OnceLock<Vec<Option<f64>>>,
    /// Names whose misuse was reported.
    reported: Mutex<BTreeSet<&'static str>>,
    overflow: Counter,
    misused: Counter,
}

/// One series: what it is called and where its value lies.
#[derive(Debug, Clone)]
pub(crate) struct Series {
    desc: &'static MetricDesc,
    labels: Arc<BTreeMap<String, String>>,
    cell: Cell,
}

#[derive(Debug, Default)]
struct Index {
    families: BTreeMap<&'static str, Family>,
    series: Vec<Series>,
}

#[derive(Debug)]
struct Family {
    desc: &'static MetricDesc,
    by_labels: BTreeMap<Vec<String>, usize>,
}

#[derive(Debug, Clone)]
enum Cell {
    Gauge(Gauge),
    Counter(Counter),
}

impl Registry {
    pub(crate) fn new(catalogue: Catalogue) -> Self {
        let mut registry = Self {
            catalogue,
            index: RwLock::default(),
            last: OnceLock::new(),
            reported: Mutex::default(),
            overflow: Counter::new(),
            misused: Counter::new(),
        };
        registry.overflow = registry.counter(&telemetry::LABEL_OVERFLOW_TOTAL, &[]);
        registry.misused = registry.counter(&telemetry::MISUSED_TOTAL, &[]);
        registry
    }

    pub(crate) fn catalogue(&self) -> &Catalogue {
        &self.catalogue
    }

    /// The gauge of this series; one of its own that is never published when the descriptor cannot be used.
    pub(crate) fn gauge(&self, desc: &'static MetricDesc, labels: &[&str]) -> Gauge {
        match self.cell(desc, MetricKind::Gauge, labels) {
            Some(Cell::Gauge(gauge)) => gauge,
            _ => Gauge::new(),
        }
    }

    /// The counter of this series; one of its own that is never published when the descriptor cannot be used.
    pub(crate) fn counter(&self, desc: &'static MetricDesc, labels: &[&str]) -> Counter {
        match self.cell(desc, MetricKind::Counter, labels) {
            Some(Cell::Counter(counter)) => counter,
            _ => Counter::new(),
        }
    }

    /// The values of all series as they are now, in the order of the series. After the end of the run: of those of then, as they were then, but
    /// for the recorder's own, which still writes out.
    pub(crate) fn read(&self) -> Vec<Option<f64>> {
        let index = self.shared();
        let Some(last) = self.last.get() else {
            return index.series.iter().map(|series| series.cell.value()).collect();
        };
        let value = |(series, last): (&Series, &Option<f64>)| {
            if telemetry::METRICS.contains(&series.desc) { series.cell.value() } else { *last }
        };
        index.series.iter().zip(last).map(value).collect()
    }

    /// What handles set from now on is none of the run.
    pub(crate) fn end_run(&self) {
        // A run ends once.
        _ = self.last.set(self.read());
    }

    /// Appends to `mirror`, a prefix of the series, those that it lacks. A mirror lets its owner use the names without
    /// holding the lock.
    pub(crate) fn extend(&self, mirror: &mut Vec<Series>) {
        mirror.extend_from_slice(&self.shared().series[mirror.len()..]);
    }

    /// Whether events of this descriptor can be published. One that is not in the catalogue is counted as misuse, and
    /// published nevertheless when its names allow it: an undocumented event is better than a lost one.
    pub(crate) fn admits(&self, desc: &'static EventDesc) -> bool {
        if self.catalogue.event(desc.name) == Some(desc) {
            return true;
        }
        self.report_misuse(desc.name, "the event is not in the catalogue");
        check_names("an event", desc.name, "an attribute", desc.attributes).is_ok()
    }

    /// Counts a use that breaks the rules, and reports it the first time.
    pub(crate) fn report_misuse(&self, name: &'static str, problem: &'static str) {
        self.misused.add(1);
        if self.reported.lock().unwrap_or_else(PoisonError::into_inner).insert(name) {
            tracing::warn!(name, problem, "telemetry is misused");
        }
    }

    fn cell(&self, desc: &'static MetricDesc, kind: MetricKind, labels: &[&str]) -> Option<Cell> {
        if let Err(problem) = self.check(desc, kind, labels) {
            self.report_misuse(desc.name, problem);
            // As with events, a descriptor that is merely not listed is published.
            if problem != UNLISTED || check_names("a metric", desc.name, "a label", desc.labels).is_err() {
                return None;
            }
        }
        let labels: Vec<String> = labels.iter().map(|label| clip(label, MAX_LABEL_BYTES).to_owned()).collect();
        if let Some(cell) = self.shared().find(desc.name, &labels) {
            return Some(cell);
        }
        let mut index = self.index.write().unwrap_or_else(PoisonError::into_inner);
        let (cell, overflowed) = index.find_or_insert(desc, labels);
        self.overflow.add(u64::from(overflowed));
        cell
    }

    fn check(&self, desc: &'static MetricDesc, kind: MetricKind, labels: &[&str]) -> Result<(), &'static str> {
        if desc.kind != kind {
            return Err("the metric has another kind");
        }
        if desc.labels.len() != labels.len() {
            return Err("the metric has another number of labels");
        }
        let used = self.shared().families.get(desc.name).map(|family| family.desc);
        match self.catalogue.metric(desc.name).or(used) {
            Some(known) if known != desc => Err("the metric has the name of another one"),
            _ if self.catalogue.metric(desc.name).is_none() => Err(UNLISTED),
            _ => Ok(()),
        }
    }

    fn shared(&self) -> RwLockReadGuard<'_, Index> {
        self.index.read().unwrap_or_else(PoisonError::into_inner)
    }
}

const UNLISTED: &str = "the metric is not in the catalogue";

impl Series {
    /// What it is a series of.
    pub(crate) fn desc(&self) -> &'static MetricDesc {
        self.desc
    }

    /// Label values by label name.
    pub(crate) fn labels(&self) -> impl Iterator<Item = (&str, &str)> {
        self.labels.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// The metric as it stands in a packet.
    pub(crate) fn metric(&self, value: f64) -> Metric {
        Metric {
            name: self.desc.name.to_owned(),
            labels: self.labels.as_ref().clone(),
            value,
            unit: self.desc.unit,
            kind: self.desc.kind,
        }
    }
}

impl Cell {
    fn new(kind: MetricKind) -> Self {
        match kind {
            MetricKind::Gauge => Self::Gauge(Gauge::new()),
            MetricKind::Counter => Self::Counter(Counter::new()),
        }
    }

    fn value(&self) -> Option<f64> {
        match self {
            Self::Gauge(gauge) => gauge.get(),
            Self::Counter(counter) => Some(counter.get() as f64),
        }
    }
}

impl Index {
    fn find(&self, name: &str, labels: &[String]) -> Option<Cell> {
        let at = *self.families.get(name)?.by_labels.get(labels)?;
        Some(self.series[at].cell.clone())
    }

    /// The cell, unless there is no room for another series, and whether a limit was met.
    fn find_or_insert(&mut self, desc: &'static MetricDesc, labels: Vec<String>) -> (Option<Cell>, bool) {
        if let Some(cell) = self.find(desc.name, &labels) {
            return (Some(cell), false);
        }
        let num_sets = self.families.get(desc.name).map_or(0, |family| family.by_labels.len());
        let overflowed = num_sets >= MAX_LABEL_SETS;
        let labels = if overflowed { vec![OTHER.to_owned(); labels.len()] } else { labels };
        if overflowed && let Some(cell) = self.find(desc.name, &labels) {
            return (Some(cell), true);
        }
        if self.series.len() >= MAX_METRICS {
            return (None, true);
        }
        let cell = Cell::new(desc.kind);
        let named = desc.labels.iter().map(|name| (*name).to_owned()).zip(labels.iter().cloned()).collect();
        let family = self.families.entry(desc.name).or_insert(Family { desc, by_labels: BTreeMap::new() });
        family.by_labels.insert(labels, self.series.len());
        self.series.push(Series { desc, labels: Arc::new(named), cell: cell.clone() });
        (Some(cell), overflowed)
    }
}

#[cfg(test)]
mod tests {
    use leyline::telemetry::{Level, Unit};

    use super::*;

    static ALPHA: MetricDesc = desc("a.alpha", MetricKind::Gauge, &["seed_id"]);
    static LOSS: MetricDesc = desc("a.loss", MetricKind::Gauge, &[]);
    static STEPS: MetricDesc = desc("a.steps", MetricKind::Counter, &[]);
    static EVENT: EventDesc = EventDesc { name: "a.halt", level: Level::Critical, help: "", attributes: &[] };

    static METRICS: &[&MetricDesc] = &[&ALPHA, &LOSS, &STEPS];
    static EVENTS: &[&EventDesc] = &[&EVENT];

    const fn desc(name: &'static str, kind: MetricKind, labels: &'static [&'static str]) -> MetricDesc {
        MetricDesc { name, kind, unit: Unit::Count, help: "", labels }
    }

    fn registry() -> Registry {
        Registry::new(Catalogue::new(&[(METRICS, EVENTS)]).unwrap())
    }

    /// Published values by name and label value, without those of this crate.
    fn published(registry: &Registry) -> Vec<(String, f64)> {
        let (values, mut series) = (registry.read(), Vec::new());
        registry.extend(&mut series);
        assert_eq!(values.len(), series.len());
        let metrics = series.iter().zip(values).filter_map(|(series, value)| Some(series.metric(value?)));
        metrics
            .filter(|metric| !metric.name.starts_with("esper."))
            .map(|metric| {
                (metric.labels.into_values().fold(metric.name, |name, label| name + "/" + &label), metric.value)
            })
            .collect()
    }

    #[test]
    fn handles_of_one_series_share_a_value_and_others_do_not() {
        let registry = registry();
        let (one, two) = (registry.gauge(&ALPHA, &["seed-1"]), registry.gauge(&ALPHA, &["seed-2"]));
        one.set(0.25);
        assert_eq!(registry.gauge(&ALPHA, &["seed-1"]).get(), Some(0.25));
        assert_eq!(two.get(), None);
        registry.counter(&STEPS, &[]).add(2);
        registry.counter(&STEPS, &[]).add(3);
        assert_eq!(published(&registry), [("a.alpha/seed-1".to_owned(), 0.25), ("a.steps".to_owned(), 5.0)]);
    }

    #[test]
    fn label_sets_over_the_limit_share_one_series_and_are_counted() {
        let registry = registry();
        for seed in 0..MAX_LABEL_SETS + 3 {
            registry.gauge(&ALPHA, &[&format!("seed-{seed}")]).set(seed as f64);
        }
        let values = published(&registry);
        assert_eq!(values.len(), MAX_LABEL_SETS + 1);
        assert_eq!(values.last(), Some(&("a.alpha/other".to_owned(), (MAX_LABEL_SETS + 2) as f64)));
        assert_eq!(registry.overflow.get(), 3);
        assert_eq!(registry.gauge(&ALPHA, &["seed-0"]).get(), Some(0.0), "those within the limit keep their series");
        assert_eq!(registry.overflow.get(), 3);
        assert_eq!(registry.misused.get(), 0);
    }

    #[test]
    fn long_label_values_are_cut_and_cut_values_share_a_series() {
        let registry = registry();
        registry.gauge(&ALPHA, &[&"x".repeat(500)]).set(1.0);
        assert_eq!(registry.gauge(&ALPHA, &[&"x".repeat(MAX_LABEL_BYTES)]).get(), Some(1.0));
    }

    #[test]
    fn a_descriptor_outside_the_catalogue_is_published_and_counted() {
        static STRAY: MetricDesc = desc("a.stray", MetricKind::Gauge, &[]);
        let registry = registry();
        registry.gauge(&STRAY, &[]).set(1.0);
        assert_eq!(registry.gauge(&STRAY, &[]).get(), Some(1.0));
        assert_eq!(published(&registry), [("a.stray".to_owned(), 1.0)]);
        assert_eq!(registry.misused.get(), 2);
    }

    #[test]
    fn a_descriptor_that_cannot_be_used_gives_a_handle_that_leads_nowhere() {
        static BAD_NAME: MetricDesc = desc("A b", MetricKind::Gauge, &[]);
        static SAME_NAME: MetricDesc = desc("a.loss", MetricKind::Gauge, &["seed_id"]);
        let registry = registry();
        for (number, gauge) in [
            registry.gauge(&BAD_NAME, &[]),
            registry.gauge(&SAME_NAME, &["seed-1"]),
            registry.gauge(&STEPS, &[]),
            registry.gauge(&ALPHA, &[]),
            registry.gauge(&LOSS, &["seed-1"]),
        ]
        .into_iter()
        .enumerate()
        {
            gauge.set(1.0);
            assert_eq!(registry.misused.get(), 5, "gauge {number}");
        }
        assert_eq!(published(&registry), []);
    }

    #[test]
    fn an_event_outside_the_catalogue_is_admitted_when_its_names_allow_it() {
        static STRAY: EventDesc = EventDesc { name: "a.stray", level: Level::Info, help: "", attributes: &[] };
        static BAD_NAME: EventDesc = EventDesc { name: "A b", level: Level::Info, help: "", attributes: &[] };
        let registry = registry();
        assert!(registry.admits(&EVENT));
        assert_eq!(registry.misused.get(), 0);
        assert!(registry.admits(&STRAY));
        assert!(!registry.admits(&BAD_NAME));
        assert_eq!(registry.misused.get(), 2);
    }
}
