//! What watches a run of the command: the metrics file, the display, the signal handlers.

use std::sync::Arc;

use leyline::error::BoxError;
use leyline::telemetry::{Counter, Recorder};
use tolaria::trainer::report::EpochReport;
use tolaria::trainer::{Flow, Observer, RunEvent, StepReport};

use crate::progress::Progress;
use crate::run::Interrupt;
use crate::run::metrics_log::MetricsLog;
use crate::serve::Live;
use crate::telemetry;

/// Writes, shows, and asks to stop when the user did.
#[derive(Debug)]
pub(super) struct Watch {
    log: MetricsLog,
    failures: Counter,
    progress: Progress,
    interrupt: Interrupt,
    live: Arc<Live>,
}

impl Watch {
    /// Watches a run.
    pub(super) fn new(
        log: MetricsLog,
        recorder: &dyn Recorder,
        progress: Progress,
        interrupt: Interrupt,
        live: Arc<Live>,
    ) -> Self {
        let failures = recorder.counter(&telemetry::METRICS_FAILURES, &[]);
        Self { log, failures, progress, interrupt, live }
    }

    /// Writes the epochs that could not be written when they ended.
    ///
    /// # Errors
    /// When they still cannot be written.
    pub(super) fn finish(&mut self) -> anyhow::Result<()> {
        self.log.finish()
    }

    /// The display.
    pub(super) fn progress(&mut self) -> &mut Progress {
        &mut self.progress
    }
}

impl Observer for Watch {
    fn step(&mut self, report: &StepReport<'_>) -> Flow {
        self.progress.step(report);
        self.live.step(report.step.0);
        if self.interrupt.asked() { Flow::Stop } else { Flow::Continue }
    }

    fn event(&mut self, event: &RunEvent<'_>) {
        if let RunEvent::RolledBack { epoch, .. } = event {
            if let Err(error) = self.log.go_back(*epoch) {
                // The end of the next epoch tries again.
                tracing::warn!("lines of epochs that the run went back from stay for now: {error:#}");
            }
            self.live.epochs(epoch.0);
        }
        self.progress.event(event);
    }

    fn epoch_finished(&mut self, report: &EpochReport) -> Result<(), BoxError> {
        if let Err(error) = self.log.append(report) {
            self.failures.add(1);
            tracing::error!("{error:#}; the run goes on, and the line is written with the next one");
        }
        self.live.epochs(report.epoch.0);
        self.progress.epoch(report);
        Ok(())
    }
}
