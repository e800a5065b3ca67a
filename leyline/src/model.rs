//! A network that can be trained: forward passes, parameters and their layout.
//!
//! # For callers
//! The caller owns the loss. During training it computes one loss from [`Outputs::logits`] and one from each
//! [`Shadow`], and runs one backward pass for each: a shadow's loss reaches the parameters of its seed only. A shadow may have outputs of
//! the first samples of the batch alone: [`Shadow::targets`].
//!
//! # For implementers
//! - **TM-1** `parameters()` and `layout()` list the same names in the same order, ordered by name.
//! - **TM-2** `forward` allocates nothing that depends on the values of its inputs and reads nothing back from the
//!   device: it may run while a graph is captured.
//! - **TM-3** the loss of a [`Shadow`] has gradients for the parameters of its seed only, and these are exactly the
//!   segments marked `isolated`; the loss of the logits has gradients for all other parameters.
//! - **TM-4** the layout changes only together with its revision.
//! - **TM-5** a `forward` pass changes nothing on the host, so that it may run once more only to be recorded. Where
//!   [`host_numbers`](TrainableModel::host_numbers) is [`HostNumbers::Fixed`], what it computes follows from the inputs,
//!   the pass, the revision of the layout and the tensors of the model alone.

use candle_core::{Tensor, Var};

use crate::error::ErrorType;
use crate::id::SeedId;
use crate::layout::ParameterLayout;
use crate::unit::Alpha;

/// A trainable tensor with its name.
#[derive(Debug, Clone)]
pub struct Parameter {
    /// Unique name, dotted path.
    pub name: String,
    /// The tensor; optimizers write it in place.
    pub var: Var,
}

/// Evaluates a seed at another alpha than its own, without changing it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AlphaOverride {
    /// The seed.
    pub seed: SeedId,
    /// The alpha to use for it in this pass.
    pub alpha: Alpha,
}

/// What a forward pass is for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Pass<'a> {
    /// Training: the outputs include shadows, gradients are wanted.
    Train,
    /// Evaluation: no shadows; seeds act at their own alpha unless overridden.
    Evaluate {
        /// Seeds to evaluate at another alpha; an unknown seed is an error.
        overrides: &'a [AlphaOverride],
    },
}

/// The network's output had one seed acted at its target alpha; the host is held fixed.
#[derive(Debug, Clone)]
pub struct Shadow {
    /// The seed in shadow training.
    pub seed: SeedId,
    /// Outputs as the [task](crate::task::Task) reads them, shape (S, …): logits (S, classes), values (S, W), of the first S of the B samples.
    pub logits: Tensor,
}

impl Shadow {
    /// The targets (S, …) of the samples that it has outputs of, from those of the batch (B, …).
    ///
    /// # Errors
    /// When there are fewer.
    /// # Sync
    /// none
    pub fn targets(&self, targets: &Tensor) -> candle_core::Result<Tensor> {
        targets.narrow(0, 0, self.logits.dim(0)?)
    }
}

/// Result of a forward pass.
#[derive(Debug, Clone)]
pub struct Outputs {
    /// Outputs as the [task](crate::task::Task) reads them, shape (B, …): logits (B, classes), values (B, W).
    pub logits: Tensor,
    /// One per seed in shadow training, ordered by seed id; empty outside [`Pass::Train`].
    pub shadows: Vec<Shadow>,
}

/// Whether numbers that a model keeps on the host may move while its layout keeps its revision: a temperature, a
/// probability, a count of passes. A step that is recorded and replayed keeps such a number as it was.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum HostNumbers {
    /// They may: whoever replays the model records it again in every epoch, to see whether one has.
    #[default]
    MayMove,
    /// They never do (TM-5). What moves is in tensors on the device.
    Fixed,
}

/// A network that can be trained.
#[diagnostic::on_unimplemented(note = "the numbered rules TM-1… in `leyline::model` are the implementer's checklist")]
pub trait TrainableModel: ErrorType {
    /// Trainable tensors, ordered by name.
    fn parameters(&self) -> &[Parameter];

    /// Places and owners of the parameters.
    fn layout(&self) -> &ParameterLayout;

    /// Whether the model promises that no number on the host moves under a layout of one revision.
    fn host_numbers(&self) -> HostNumbers {
        HostNumbers::MayMove
    }

    /// Runs the network.
    ///
    /// # Shapes
    /// `inputs` (B, …) as the network defines; outputs as the task reads them.
    /// # Errors
    /// When shapes do not fit, an override names an unknown seed, or the device fails.
    /// # Sync
    /// none
    fn forward(&self, inputs: &Tensor, pass: Pass<'_>) -> Result<Outputs, Self::Error>;
}
