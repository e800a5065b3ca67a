//! Metrics and events of the telemetry itself. [`crate::Catalogue`] adds them by itself.

use leyline::telemetry::{EventDesc, Level};

leyline::declare_metrics! {
    /// Events and packets that reached no sink, by kind (event, packet). A critical event is dropped only at the end of a run, where every sink refuses its packet for good, or by a sink that panics.
    DROPPED_TOTAL = Counter "esper.telemetry.dropped_total" Count ["kind"];
    /// Critical events that a sink has yet to take: in the queue, waiting for the packet of their boundary, and in packets that a sink failed to take and is offered again.
    CRITICAL_WAITING = Gauge "esper.telemetry.critical_waiting" Count [];
    /// Events taken from callers, dropped ones included.
    EVENTS_TOTAL = Counter "esper.telemetry.events_total" Count [];
    /// Events by name, dropped ones included. In what is scraped only: packets hold the events themselves.
    EVENTS_BY_NAME = Counter "esper.events_total" Count ["event", "level"];
    /// Packets that at least one sink accepted.
    PACKETS_TOTAL = Counter "esper.telemetry.packets_total" Count [];
    /// Calls of a sink that failed, and packets that found no room before it or were given up at the end, by sink.
    SINK_ERRORS_TOTAL = Counter "esper.telemetry.sink_errors_total" Count ["sink"];
    /// Handles that were given the series `other` because their metric has too many label sets.
    LABEL_OVERFLOW_TOTAL = Counter "esper.telemetry.label_overflow_total" Count [];
    /// Handles and events whose descriptor is not in the catalogue, has another kind, or has other labels.
    MISUSED_TOTAL = Counter "esper.telemetry.misused_total" Count [];
    /// Values left out of a packet because they were NaN or infinite.
    NON_FINITE_TOTAL = Counter "esper.telemetry.non_finite_total" Count [];
}

/// A sink began to fail.
pub static SINK_FAILED: EventDesc = EventDesc {
    name: "esper.telemetry.sink_failed",
    level: Level::Error,
    help: "a sink does not accept packets; it is offered those with critical events again, and every following one",
    attributes: &["sink", "error"],
};

/// A sink works again.
pub static SINK_RECOVERED: EventDesc = EventDesc {
    name: "esper.telemetry.sink_recovered",
    level: Level::Info,
    help: "a sink that failed accepts packets again",
    attributes: &["sink"],
};

/// Every event of this crate.
pub static EVENTS: &[&EventDesc] = &[&SINK_FAILED, &SINK_RECOVERED];
