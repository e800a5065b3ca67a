//! Constant descriptions of metrics and events.

use serde::{Deserialize, Serialize};

/// How a metric behaves over time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MetricKind {
    /// Never falls.
    Counter,
    /// Any value.
    Gauge,
}

/// Unit of a metric's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// A number of things.
    Count,
    /// A fraction in `[0, 1]`, unless the help text says otherwise.
    Ratio,
    /// 0 or 1.
    Flag,
    /// The number of a state.
    State,
    /// Milliseconds.
    Milliseconds,
    /// Bytes.
    Bytes,
    /// Nats per sample.
    Nats,
    /// Percentage points.
    PercentagePoints,
    /// L2 norm of a gradient.
    GradientNorm,
    /// Learning rate.
    LearningRate,
    /// Samples per second.
    SamplesPerSecond,
}

/// A metric: name, kind, unit and meaning.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct MetricDesc {
    /// Dotted path, subsystem first, for example `tolaria.grad.norm`.
    pub name: &'static str,
    /// How it behaves.
    pub kind: MetricKind,
    /// Its unit.
    pub unit: Unit,
    /// What it means.
    pub help: &'static str,
    /// Names of the labels a handle must give, in this order.
    pub labels: &'static [&'static str],
}

/// How bad an event is. The numbers are the wire numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Level {
    /// For the record.
    Info = 1,
    /// Look when you can.
    Warning = 2,
    /// Something failed.
    Error = 3,
    /// Act now.
    Critical = 4,
}

/// Which queue a packet takes. The numbers are the wire numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Priority {
    /// May wait.
    Low = 1,
    /// As usual.
    Normal = 2,
    /// Before others.
    High = 3,
    /// Dropped last, and counted.
    Critical = 4,
}

impl From<Level> for Priority {
    fn from(level: Level) -> Self {
        match level {
            Level::Info => Self::Normal,
            Level::Warning | Level::Error => Self::High,
            Level::Critical => Self::Critical,
        }
    }
}

/// An event: name, level and the attributes it carries.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct EventDesc {
    /// Name, for example `tolaria.graph_fallback` or `seed_stage`.
    pub name: &'static str,
    /// How bad it is.
    pub level: Level,
    /// What it means.
    pub help: &'static str,
    /// Names of the attributes it may carry.
    pub attributes: &'static [&'static str],
}

/// Declares metrics as statics, and `METRICS` with all of them: one line each, the doc comment is the help text.
///
/// ```
/// leyline::declare_metrics! {
///     /// Optimizer steps taken.
///     STEPS_TOTAL = Counter "tolaria.steps.total" Count [];
///     /// Blend coefficient of the seed.
///     SEED_ALPHA = Gauge "kasmina.seed.alpha" Ratio ["seed_id"];
/// }
/// assert_eq!(STEPS_TOTAL.help, "Optimizer steps taken.");
/// assert_eq!(METRICS.len(), 2);
/// ```
#[macro_export]
macro_rules! declare_metrics {
    ($($(#[doc = $doc:literal])+ $ident:ident = $kind:ident $name:literal $unit:ident [$($label:literal),*];)+) => {
        $($(#[doc = $doc])+
        pub static $ident: $crate::telemetry::MetricDesc = $crate::telemetry::MetricDesc {
            name: $name,
            kind: $crate::telemetry::MetricKind::$kind,
            unit: $crate::telemetry::Unit::$unit,
            help: ::core::concat!($($doc),+).trim_ascii(),
            labels: &[$($label),*],
        };)+
        /// Every metric of this crate.
        pub static METRICS: &[&$crate::telemetry::MetricDesc] = &[$(&$ident),+];
    };
}
