//! The recorder: where handles come from and where events go.

use std::fmt;

use crate::id::{EpochIndex, StepIndex};
use crate::telemetry::{Counter, EventDesc, Gauge, MetricDesc};

/// Something that happened.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// Which event.
    pub desc: &'static EventDesc,
    /// Values by attribute name; the names are among the descriptor's.
    pub attributes: Vec<(&'static str, String)>,
}

impl Event {
    /// An event without attributes.
    #[must_use]
    pub fn new(desc: &'static EventDesc) -> Self {
        Self { desc, attributes: Vec::new() }
    }

    /// Adds an attribute.
    ///
    /// # Panics
    /// In debug builds, when the descriptor does not name the attribute.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl fmt::Display) -> Self {
        debug_assert!(self.desc.attributes.contains(&name), "{} has no attribute {name}", self.desc.name);
        self.attributes.push((name, value.to_string()));
        self
    }
}

/// State of a subsystem. The numbers are the wire numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum HealthStatus {
    /// As it should be.
    #[default]
    Healthy = 1,
    /// Works with less than it should have.
    Degraded = 2,
    /// Does not do its work.
    Unhealthy = 3,
    /// Must be stopped.
    Critical = 4,
}

/// State of a subsystem with its reason.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Health {
    /// The state.
    pub status: HealthStatus,
    /// Why, snake case; `stable` or empty when healthy.
    pub summary: String,
}

/// A point in the run at which what was recorded is published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Boundary {
    /// Epochs completed.
    pub epoch: EpochIndex,
    /// Optimizer steps taken.
    pub step: StepIndex,
    /// Who publishes, for example `tolaria`.
    pub source: &'static str,
    /// Its state.
    pub health: Health,
}

/// Hands out handles and takes events.
pub trait Recorder: Send + Sync + fmt::Debug {
    /// The gauge of this descriptor and these label values, in the order of the descriptor's labels (TE-1).
    fn gauge(&self, desc: &'static MetricDesc, labels: &[&str]) -> Gauge;

    /// The counter of this descriptor and these label values (TE-1).
    fn counter(&self, desc: &'static MetricDesc, labels: &[&str]) -> Counter;

    /// Takes an event without blocking (TE-2).
    fn event(&self, event: Event);

    /// Publishes all values and the events since the last call, without blocking (TE-2, TE-3).
    fn publish(&self, boundary: Boundary);
}

/// Records nothing: handles work and lead nowhere.
#[derive(Debug, Clone, Copy, Default)]
pub struct NullRecorder;

impl Recorder for NullRecorder {
    fn gauge(&self, _desc: &'static MetricDesc, _labels: &[&str]) -> Gauge {
        Gauge::new()
    }

    fn counter(&self, _desc: &'static MetricDesc, _labels: &[&str]) -> Counter {
        Counter::new()
    }

    fn event(&self, _event: Event) {}

    fn publish(&self, _boundary: Boundary) {}
}
