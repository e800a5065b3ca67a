//! What the seed manager reports: metrics, events, and the handles behind them.
//!
//! "Not measured" is absent, never 0. [`RETIRED_EVENTS`] lists the events of the older system without a counterpart.

pub mod metrics;
pub mod events;
mod seeds;
mod handles;

pub use events::{EVENTS, RETIRED_EVENTS};
pub use metrics::METRICS;

pub(crate) use handles::Telemetry;
pub(crate) use seeds::SeedReading;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique_and_every_metric_belongs_to_this_subsystem() {
        let metrics: BTreeSet<&str> = METRICS.iter().map(|metric| metric.name).collect();
        let events: BTreeSet<&str> = EVENTS.iter().map(|event| event.name).collect();
        assert_eq!((metrics.len(), events.len()), (METRICS.len(), EVENTS.len()));
        assert!(metrics.iter().all(|name| name.starts_with("kasmina.")));
        assert!(RETIRED_EVENTS.iter().all(|(name, _)| !events.contains(name)), "an event is both emitted and retired");
    }
}
