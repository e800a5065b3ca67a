//! What watches a run of the command: the metrics file, the display, the signal handlers.

use leyline::error::{BoxError, Error, ErrorKind};
use tolaria::trainer::report::EpochReport;
use tolaria::trainer::{Flow, Observer, RunEvent, StepReport};

use crate::progress::Progress;
use crate::run::Interrupt;
use crate::run::metrics_log::MetricsLog;

/// The metrics file could not be written.
#[derive(Debug, thiserror::Error)]
#[error("{0:#}")]
struct LogError(anyhow::Error);

impl Error for LogError {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Io
    }
}

/// Writes, shows, and asks to stop when the user did.
#[derive(Debug)]
pub(super) struct Watch {
    log: MetricsLog,
    progress: Progress,
    interrupt: Interrupt,
}

impl Watch {
    /// Watches a run.
    pub(super) fn new(log: MetricsLog, progress: Progress, interrupt: Interrupt) -> Self {
        Self { log, progress, interrupt }
    }

    /// The display.
    pub(super) fn progress(&mut self) -> &mut Progress {
        &mut self.progress
    }
}

impl Observer for Watch {
    fn step(&mut self, report: &StepReport<'_>) -> Flow {
        self.progress.step(report);
        if self.interrupt.asked() { Flow::Stop } else { Flow::Continue }
    }

    fn event(&mut self, event: &RunEvent<'_>) {
        if let RunEvent::RolledBack { epoch, .. } = event
            && let Err(error) = self.log.go_back(*epoch)
        {
            // The end of the next epoch tries again, and ends the run where it cannot be written either.
            tracing::warn!("lines of epochs that the run went back from stay for now: {error:#}");
        }
        self.progress.event(event);
    }

    fn epoch_finished(&mut self, report: &EpochReport) -> Result<(), BoxError> {
        self.log.append(report).map_err(|error| BoxError::new(LogError(error)))?;
        self.progress.epoch(report);
        Ok(())
    }
}
