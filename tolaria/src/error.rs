//! What can go wrong in the trainer.

use leyline::error::{BoxError, ErrorKind};
use leyline::id::{EpochIndex, SeedId, StepIndex};
use leyline::layout::DuplicateParameter;
use leyline::region::RegionError;
use leyline::source::SourceError;

use crate::checkpoint::CheckpointError;
use esper_graph::{SHARED_DEVICE, Stale};

/// Error of this crate.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The device or the tensor library failed.
    #[error("a tensor operation failed")]
    Candle(#[source] Box<candle_core::Error>),
    /// A step failed, and all before it are known to be done.
    #[error("after {step} steps the next one failed, or the device did while it ran")]
    AtStep {
        /// Optimizer steps taken before it.
        step: StepIndex,
        /// What failed.
        #[source]
        source: Box<Error>,
    },
    /// Shapes, types or names do not fit each other.
    #[error("{what}: expected {expected}, found {found}")]
    LayoutMismatch {
        /// What was compared.
        what: String,
        /// What would fit.
        expected: String,
        /// What is there.
        found: String,
    },
    /// A parameter of a type that the trainer does not train.
    #[error(
        "parameter `{name}` is {found}: expected {expected} with this `precision`; `bf16_pure` and `bf16_stochastic` train \
         parameters of bf16, all others those of f32"
    )]
    UnsupportedParameter {
        /// The first such parameter.
        name: String,
        /// Its element type.
        found: &'static str,
        /// The element type that the trainer's precision has.
        expected: &'static str,
    },
    /// One variable is two parameters: it would be updated twice.
    #[error(
        "parameters `{first}` and `{second}` are one variable, which would be updated twice: expected it under one name"
    )]
    SharedVariable {
        /// One of them.
        first: String,
        /// The other.
        second: String,
    },
    /// A backward pass left a parameter of its scope without a gradient.
    #[error("parameter `{name}` has no gradient")]
    MissingGradient {
        /// The parameter.
        name: String,
    },
    /// The loss depends on a parameter that a backward pass does not reach.
    #[error(
        "the loss depends on parameter `{name}`, which gets no gradient: an operation between them has no backward pass, such as the fused normalizations, softmax and rotary embedding of candle-nn. With `candle-core` and `candle-nn` of `candle/` under `[patch.crates-io]` in Cargo.toml those have one, and any other is named (docs/candle-models.md)"
    )]
    CutGradient {
        /// The parameter.
        name: String,
    },
    /// The loss does not depend on a parameter.
    #[error(
        "the loss does not depend on parameter `{name}`, which gets no gradient: leave it out of the parameters that are trained"
    )]
    UnusedParameter {
        /// The parameter.
        name: String,
    },
    /// A setting that cannot work.
    #[error("`{key}` is invalid: {message}")]
    InvalidConfig {
        /// The setting, dotted path.
        key: String,
        /// What is accepted.
        message: String,
    },
    /// Data that cannot be trained on.
    #[error("{what} cannot be used: {message}")]
    InvalidData {
        /// Which part of the data.
        what: &'static str,
        /// Why, and what is accepted.
        message: String,
    },
    /// Samples could not be read or changed.
    #[error("the samples of a step could not be gathered")]
    Source(#[from] SourceError),
    /// Another thread trains or records on the device.
    #[error("{}", SHARED_DEVICE)]
    SharedDevice,
    /// The network gives numbers that are not finite.
    #[error(
        "the {what} of epoch {epoch} is not finite; expected a lower learning rate or `clip_norm`, and data without such \
         numbers"
    )]
    NonFinite {
        /// Which value.
        what: &'static str,
        /// The epoch, from 1.
        epoch: EpochIndex,
    },
    /// Steps or evaluations were replayed with a number that had changed on the host: what they trained or found is not what
    /// the model says.
    #[error(
        "{} cannot be trusted; resume a checkpoint from before step {first}, with `train.execution.mode = \"eager\"` or with \
         the number in an `esper_graph::DeviceScalar`", .replayed.between(.first, .last)
    )]
    FrozenValue {
        /// What.
        replayed: Replayed,
        /// The first step after the last test that agreed.
        first: StepIndex,
        /// The last step that was taken.
        last: StepIndex,
        /// What was found.
        #[source]
        stale: Stale,
    },
    /// A run broke off between a replay and the test that confirms it.
    #[error(
        "a run broke off in the middle of an epoch, and its last replayed steps were not tested again; restore a \
         checkpoint, or go on with `run`"
    )]
    Unconfirmed,
    /// Most steps of an epoch had a loss or a gradient that is not finite.
    #[error(
        "training diverged: the loss or the gradient of {num_skipped} of the {num_steps} steps of epoch {epoch} is not \
         finite{}; expected a lower learning rate or `clip_norm`, and data without such numbers",
        scale.map_or_else(String::new, |scale| format!(", and the scale of the loss, {scale}, falls no more"))
    )]
    Diverged {
        /// Steps that changed nothing.
        num_skipped: u64,
        /// Steps of the epoch.
        num_steps: u64,
        /// The epoch, from 1.
        epoch: EpochIndex,
        /// The scale of the loss, where it is scaled: 1 is the least, and for a loss that is not finite none falls.
        scale: Option<f64>,
    },
    /// A state with a number that is not finite is not saved.
    #[error("`{tensor}` has a number that is not finite: no checkpoint is made of it")]
    NonFiniteState {
        /// Component and tensor.
        tensor: String,
    },
    /// A saved state does not fit this run.
    #[error("saved state `{field}` cannot be used: {message}")]
    State {
        /// Which part of the state.
        field: &'static str,
        /// Why, and what is accepted.
        message: String,
    },
    /// A state was not restored, and the one before it could not be put back.
    #[error("the trainer is between two states, restore a checkpoint: {reason}")]
    HalfRestored {
        /// Both failures.
        reason: String,
    },
    /// A state was restored too late, and what was there was put back.
    #[error("the state was restored after `recovery.deadline_ms`, and discarded")]
    LateRestore,
    /// There is no known-good state to go back to.
    #[error("there is no known-good state to go back to, in memory or on disk")]
    NothingToRestore,
    /// A seed that this network does not have.
    #[error("{seed} is unknown: this network has no seeds")]
    UnknownSeed {
        /// The seed.
        seed: SeedId,
    },
    /// A checkpoint could not be written or read.
    #[error("the checkpoint store failed")]
    Checkpoint(#[from] CheckpointError),
    /// A host-side call inside a region.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// The network failed.
    #[error("the model failed")]
    Model(#[source] BoxError),
    /// The seed manager failed.
    #[error("the seed manager failed at step {step}")]
    SeedManager {
        /// Optimizer steps taken.
        step: StepIndex,
        /// Why it failed.
        source: BoxError,
    },
    /// The policy failed.
    #[error("the policy failed")]
    Policy(#[source] BoxError),
    /// The observer of the run failed.
    #[error("the observer of the run failed")]
    Observer(#[source] BoxError),
}

/// What a graph takes the place of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replayed {
    /// Optimizer steps.
    Steps,
    /// Evaluations on held-out data between steps.
    Evaluations,
}

impl Replayed {
    fn between(self, first: &StepIndex, last: &StepIndex) -> String {
        match self {
            Self::Steps => format!("steps {first} to {last}"),
            Self::Evaluations => {
                format!("evaluations after steps {first} to {last}, and what was decided by them,")
            }
        }
    }
}

impl Error {
    /// For a comparison that failed.
    pub(crate) fn mismatch(what: impl Into<String>, expected: impl ToString, found: impl ToString) -> Self {
        Self::LayoutMismatch { what: what.into(), expected: expected.to_string(), found: found.to_string() }
    }
}

impl leyline::error::Error for Error {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Candle(_) => ErrorKind::Device,
            Self::AtStep { source, .. } => source.kind(),
            Self::LayoutMismatch { .. }
            | Self::MissingGradient { .. }
            | Self::CutGradient { .. }
            | Self::UnusedParameter { .. } => ErrorKind::LayoutMismatch,
            Self::InvalidConfig { .. } => ErrorKind::InvalidConfig,
            Self::InvalidData { .. } | Self::SharedDevice => ErrorKind::Rejected,
            Self::FrozenValue { .. } | Self::Unconfirmed => ErrorKind::Region,
            Self::NonFinite { .. } | Self::Diverged { .. } | Self::NonFiniteState { .. } => ErrorKind::Numeric,
            Self::State { .. } | Self::HalfRestored { .. } | Self::NothingToRestore => ErrorKind::Corrupt,
            Self::LateRestore => ErrorKind::DeadlineExceeded,
            Self::UnknownSeed { .. } => ErrorKind::UnknownSeed,
            Self::UnsupportedParameter { .. } | Self::SharedVariable { .. } => ErrorKind::Unsupported,
            Self::Source(source) => source.kind(),
            Self::Checkpoint(source) => source.kind(),
            Self::Region(source) => source.kind(),
            Self::Model(source) | Self::Policy(source) | Self::Observer(source) | Self::SeedManager { source, .. } => {
                source.kind()
            }
        }
    }
}

/// An error with all its causes in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

impl From<candle_core::Error> for Error {
    fn from(source: candle_core::Error) -> Self {
        Self::Candle(Box::new(source))
    }
}

/// What the tensor library said as it said it, and of anything else all causes: an error that is wrapped shows none of them.
impl From<Error> for candle_core::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Candle(source) => *source,
            other => Self::Msg(chain(&other)),
        }
    }
}

impl From<DuplicateParameter> for Error {
    fn from(source: DuplicateParameter) -> Self {
        Self::mismatch("parameter names", "each once", format!("`{}` twice", source.name))
    }
}
