//! Who watches a run: the display, the run folder, a test that interrupts.

use leyline::error::BoxError;
use leyline::id::StepIndex;

use crate::trainer::report::EpochReport;

/// Whether training goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    /// Next step, please.
    Continue,
    /// Write a checkpoint and return; see [`Outcome::Interrupted`](crate::trainer::Outcome).
    Stop,
}

/// Watches a run from the training thread; must not block for long.
pub trait Observer {
    /// After each optimizer step.
    fn step_finished(&mut self, _step: StepIndex) -> Flow {
        Flow::Continue
    }

    /// After each epoch, before the checkpoint of that epoch is written.
    ///
    /// # Errors
    /// Ends the run; the last checkpoint stays valid.
    fn epoch_finished(&mut self, report: &EpochReport) -> Result<(), BoxError>;
}

/// Watches nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct NullObserver;

impl Observer for NullObserver {
    fn epoch_finished(&mut self, _report: &EpochReport) -> Result<(), BoxError> {
        Ok(())
    }
}
