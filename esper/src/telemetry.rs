//! Metrics of the command itself.

leyline::declare_metrics! {
    /// Epochs whose line in `metrics.jsonl` could not be written when they ended; it is written with the next one.
    METRICS_FAILURES = Counter "esper.metrics_log.failures_total" Count [];
}
