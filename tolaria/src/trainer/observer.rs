//! Who watches a run: the display, the run folder, a test that interrupts.

use esper_safety::Level;
use leyline::error::BoxError;
use leyline::id::{EpochIndex, StepIndex};

use crate::host_read::HostReads;
use crate::trainer::report::EpochReport;
use crate::trainer::run::Outcome;
use crate::trainer::stop::{Best, StepEvaluation};
use crate::trainer::sums::EpochSums;

/// Whether training goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    /// Next step, please.
    Continue,
    /// Write a checkpoint and return; see [`Outcome::Interrupted`](crate::trainer::Outcome).
    Stop,
}

/// An optimizer step that was taken: what the host knows of it anyway.
#[derive(Debug, Clone, Copy)]
pub struct StepReport<'a> {
    /// Optimizer steps taken in the run.
    pub step: StepIndex,
    /// The epoch that is under way, from 1.
    pub epoch: EpochIndex,
    /// Optimizer steps taken in this epoch.
    pub step_of_epoch: u64,
    /// Optimizer steps of a whole epoch.
    pub steps_per_epoch: u64,
    /// Learning rate of the step.
    pub learning_rate: f64,
    pub(super) sums: &'a EpochSums,
}

/// What an epoch came to so far, over the steps that count.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SoFar {
    /// Mean training loss, in the unit of the task, per sample.
    pub loss: f64,
    /// Global gradient norm before clipping, root mean square over steps.
    pub gradient_norm: f64,
    /// Training samples (count).
    pub num_samples: u64,
}

impl StepReport<'_> {
    /// Loss and gradient norm of the epoch so far. Absent on a GPU, where reading them would wait for it: there they come
    /// with the [`EpochReport`], and the loss with every [`StepEvaluation`]. Also absent when no step of the epoch had a
    /// finite loss.
    ///
    /// # Sync
    /// none: on the CPU it is memory, some microseconds per call
    #[must_use]
    pub fn so_far(&self) -> Option<SoFar> {
        if !self.sums.as_tensor().device().is_cpu() {
            return None;
        }
        let totals = self.sums.read(&mut HostReads::default()).ok()?;
        let num_samples = totals.num_samples;
        let loss = totals.loss_sum / num_samples as f64;
        let gradient_norm = totals.gradient_norm.filter(|_| num_samples > 0)?;
        Some(SoFar { loss, gradient_norm, num_samples })
    }
}

/// What happened between the ends of epochs.
#[derive(Debug, Clone, Copy)]
pub enum RunEvent<'a> {
    /// Held-out data were evaluated in the middle of an epoch.
    Evaluated(&'a StepEvaluation),
    /// No evaluation before had as low a loss; its checkpoint, if any is written, comes next.
    Best(Best),
    /// A durable checkpoint was written.
    CheckpointWritten {
        /// Optimizer steps that it holds.
        step: StepIndex,
        /// Whether it is that of the best evaluation.
        is_best: bool,
        /// Time it took, milliseconds.
        took_ms: f64,
    },
    /// A durable checkpoint could not be written; the one before it stays valid.
    CheckpointFailed {
        /// Why.
        error: &'a str,
    },
    /// The run went back to a known-good state, from where it goes on: epochs after it will end anew.
    RolledBack {
        /// Optimizer steps taken before.
        from: StepIndex,
        /// Optimizer steps that the state holds.
        to: StepIndex,
        /// Epochs that were completed there.
        epoch: EpochIndex,
        /// What made steps unusable, as far as it was found.
        culprit: &'a str,
        /// Factor of the learning rate from here on.
        rate_factor: f64,
    },
    /// The emergency level changed.
    Emergency {
        /// What it is now.
        level: Level,
        /// Why.
        reason: &'a str,
    },
    /// Nothing more comes.
    Ended {
        /// How.
        outcome: Outcome,
        /// Why epochs are left that were not trained; absent when all were, and after an interruption.
        reason: Option<&'a str>,
    },
}

/// Watches a run from the training thread; must not block for long.
///
/// Nothing here makes the trainer read the device: what it says is known on the host, or was read for another reason.
pub trait Observer {
    /// After each optimizer step, or the last of those that share a launch; by default [`step_finished`](Self::step_finished).
    fn step(&mut self, report: &StepReport<'_>) -> Flow {
        self.step_finished(report.step)
    }

    /// The same, for whom its number is enough.
    fn step_finished(&mut self, _step: StepIndex) -> Flow {
        Flow::Continue
    }

    /// Evaluations in the middle of an epoch, checkpoints, the end of the run.
    fn event(&mut self, _event: &RunEvent<'_>) {}

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
