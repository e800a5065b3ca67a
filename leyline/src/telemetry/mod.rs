//! Telemetry as the subsystems see it: descriptors, handles and the recorder.
//!
//! Setting a [`Gauge`] or adding to a [`Counter`] is one relaxed atomic operation: no lock, no allocation, no device
//! access. A value that was never set is absent, never 0.
//!
//! # For callers
//! Declare descriptors as `const` or `static` in one file per crate, obtain handles at construction, use handles in
//! the step. Events are for things that happen, not for values that change.
//!
//! # For implementers
//! - **TE-1** two handles for one descriptor and the same labels share one value.
//! - **TE-2** `event` and `publish` never block the caller; what cannot be kept is counted as dropped.
//! - **TE-3** a gauge that was not set is absent from what is published.

mod descriptor;
mod handle;
mod recorder;

pub use descriptor::{EventDesc, Level, MetricDesc, MetricKind, Priority, Unit};
pub use handle::{Counter, Gauge};
pub use recorder::{Boundary, Event, Health, HealthStatus, NullRecorder, Recorder};
