//! What can go wrong in the seed manager.

use candle_core::DType;
use esper_weights::{PrefetchError, WeightsError};
use leyline::command::Unverified;
use leyline::error::{Error as LeylineError, ErrorKind};
use leyline::id::{BlueprintId, ParseIdError, SeedId, SlotId};
use leyline::layout::DuplicateParameter;
use leyline::region::RegionError;
use leyline::seed::{AttributionError, GateReport, SeedStage};

use crate::config::ConfigIssue;
use crate::host::SlotShape;
use crate::isolation::Violation;

/// Error of every function of this crate.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The configuration cannot be used.
    #[error("{}", join(issues))]
    Config {
        /// Everything that is wrong with it.
        issues: Vec<ConfigIssue>,
    },
    /// A region rule was broken.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// Nobody said what the network is trained for.
    #[error("{what} measures a loss: expected `train_for` to be called with a task first")]
    NoTask {
        /// What needs the task.
        what: &'static str,
    },
    /// An order is signed.
    #[error(transparent)]
    Unverified(#[from] Unverified),
    /// No seed has this id, or it has no parameters (any more).
    #[error("{seed} is unknown")]
    UnknownSeed {
        /// The seed.
        seed: SeedId,
    },
    /// The lifecycle does not allow the move.
    #[error("{seed} is {from} and cannot become {to}: it may become {}", names(*from))]
    IllegalTransition {
        /// The seed.
        seed: SeedId,
        /// Its stage.
        from: SeedStage,
        /// The stage asked for.
        to: SeedStage,
    },
    /// A new ramp was asked for while one is running.
    #[error("the alpha ramp of {seed} runs for another {steps_left} optimizer steps")]
    RampRunning {
        /// The seed.
        seed: SeedId,
        /// Optimizer steps until it ends.
        steps_left: u64,
    },
    /// A ramp was to lead to alpha 0, or so near that the network's elements hold it as 0.
    #[error("{seed} cannot blend towards alpha 0: expected a target above 0; a gradual cull leads to 0")]
    RampToNothing {
        /// The seed.
        seed: SeedId,
    },
    /// A gate did not let the seed pass.
    #[error("{seed} may not become {}: {}", report.target, report.failed.join("; "))]
    GateFailed {
        /// The seed.
        seed: SeedId,
        /// The verdict.
        report: GateReport,
    },
    /// A paused seed can only be resumed or removed.
    #[error("{seed} is paused: expected resume, cull or cull_gradually")]
    SeedPaused {
        /// The seed.
        seed: SeedId,
    },
    /// A seed was to be resumed that is not paused.
    #[error("{seed} is not paused")]
    NotPaused {
        /// The seed.
        seed: SeedId,
    },
    /// The seed has no part in the computation that could be interrupted, or none that could be given back.
    #[error("{seed} is {stage} and cannot be paused")]
    CannotPause {
        /// The seed.
        seed: SeedId,
        /// Its stage.
        stage: SeedStage,
    },
    /// A seed that loses its influence before its removal can only be removed at once or paused.
    #[error("{seed} is being removed gradually: expected cull or pause")]
    SeedFading {
        /// The seed.
        seed: SeedId,
    },
    /// The gate before germination refused: the seed would exceed a parameter budget.
    #[error("blueprint `{blueprint}` may not germinate in slot `{slot}`: {}", report.failed.join("; "))]
    OverBudget {
        /// What was to germinate.
        blueprint: BlueprintId,
        /// Where.
        slot: SlotId,
        /// The verdict.
        report: GateReport,
    },
    /// The host has no such slot.
    #[error("the host has no slot `{slot}`: expected one of {known}")]
    UnknownSlot {
        /// What was asked for.
        slot: SlotId,
        /// Slots of the host.
        known: String,
    },
    /// The registry has no such blueprint.
    #[error("there is no blueprint `{blueprint}`: expected one of {known}")]
    UnknownBlueprint {
        /// What was asked for.
        blueprint: BlueprintId,
        /// Blueprints of the registry.
        known: String,
    },
    /// A seed is in the slot, or the slot is barred after one was removed.
    #[error("slot `{slot}` is taken by {seed}, which is {stage}")]
    SlotOccupied {
        /// The slot.
        slot: SlotId,
        /// Its occupant.
        seed: SeedId,
        /// The occupant's stage.
        stage: SeedStage,
    },
    /// The blueprint is not made for the shape of this slot, or failed its shape probe there.
    #[error("blueprint `{blueprint}` does not fit slot `{slot}` of shape {shape}")]
    BlueprintDoesNotFit {
        /// The blueprint.
        blueprint: BlueprintId,
        /// The slot.
        slot: SlotId,
        /// Shape of one sample at the slot.
        shape: SlotShape,
    },
    /// A blend has another number of channel weights than the slot has channels.
    #[error("{found} channel weights were given for a slot of shape {shape}: expected {expected}")]
    ChannelWeights {
        /// Weights given (count).
        found: usize,
        /// Channels of the slot (count).
        expected: usize,
        /// Shape of one sample at the slot.
        shape: SlotShape,
    },
    /// A blend by confidence at a slot where there is nothing to be confident about.
    #[error(
        "a slot of shape {shape} has one channel and no margin between two: expected another blend than confidence"
    )]
    NoMargin {
        /// Shape of one sample at the slot.
        shape: SlotShape,
    },
    /// A seed's output has another shape than its input.
    #[error("a seed of blueprint `{blueprint}` turned shape {expected:?} into {actual:?}")]
    ShapeProbe {
        /// The blueprint.
        blueprint: BlueprintId,
        /// Shape at the slot.
        expected: Vec<usize>,
        /// Shape of the seed's output.
        actual: Vec<usize>,
    },
    /// A blueprint asked to be registered cannot run on a shape it claims to fit.
    #[error("blueprint `{blueprint}` does not run at shape {shape}, which it claims to fit")]
    ProbeFailed {
        /// The blueprint.
        blueprint: BlueprintId,
        /// Shape of one sample.
        shape: SlotShape,
        /// What went wrong.
        #[source]
        source: Box<candle_core::Error>,
    },
    /// A seed of the blueprint would add more elements than its budget allows.
    #[error("blueprint `{blueprint}` needs {num_parameters} parameters: its budget is {budget}")]
    BlueprintOverBudget {
        /// The blueprint.
        blueprint: BlueprintId,
        /// Elements a seed needs at the slot, those of its blend included (count).
        num_parameters: u64,
        /// Elements it may have (count).
        budget: u64,
    },
    /// A seed would be larger than any may be.
    #[error(
        "a seed of blueprint `{blueprint}` needs {num_parameters} parameters at shape {shape}: expected at most {limit}"
    )]
    SeedTooLarge {
        /// The blueprint.
        blueprint: BlueprintId,
        /// Shape of one sample at the slot.
        shape: SlotShape,
        /// Elements it needs there, those of its blend included (count).
        num_parameters: u64,
        /// Elements a seed may have (count).
        limit: u64,
    },
    /// Two tensors of a blueprint have one name.
    #[error("blueprint `{blueprint}` has two tensors named `{name}`")]
    DuplicateTensor {
        /// The blueprint.
        blueprint: BlueprintId,
        /// The name.
        name: String,
    },
    /// A tensor of a blueprint has a name that a tensor of a blend may have.
    #[error("blueprint `{blueprint}` names a tensor `{name}`: `{reserved}` is reserved for blends")]
    ReservedTensor {
        /// The blueprint.
        blueprint: BlueprintId,
        /// The name.
        name: String,
        /// What it must not start with.
        reserved: String,
    },
    /// The weights of a new seed could not be asked for.
    #[error("the weights of the blueprint cannot be fetched now")]
    Prefetch(#[source] PrefetchError),
    /// Weights given for a seed cannot be used.
    #[error(transparent)]
    Artifact(#[from] WeightsError),
    /// A blueprint with this name is registered already.
    #[error("two blueprints are named `{blueprint}`")]
    DuplicateBlueprint {
        /// The name.
        blueprint: BlueprintId,
    },
    /// A name is not an id.
    #[error(transparent)]
    Id(#[from] ParseIdError),
    /// The network cannot take these inputs.
    #[error("inputs have shape {actual:?}: expected {expected}")]
    InputShape {
        /// What the network takes.
        expected: String,
        /// What it was given.
        actual: Vec<usize>,
    },
    /// Two parameters have one name.
    #[error(transparent)]
    Layout(#[from] DuplicateParameter),
    /// Attribution weights broke their rule.
    #[error(transparent)]
    Attribution(#[from] AttributionError),
    /// A strict check found leaks between a seed in shadow training and the host.
    #[error("isolation is violated: {}", join(violations))]
    IsolationViolated {
        /// Every leak.
        violations: Vec<Violation>,
    },
    /// The ids of a run are used up.
    #[error("no seed id is left in this run")]
    OutOfSeedIds,
    /// Saved state lacks a tensor or has one too many.
    #[error("saved tensor `{name}` {problem}")]
    SavedTensor {
        /// Its name.
        name: String,
        /// What is wrong with it.
        problem: TensorProblem,
    },
    /// A field of the saved state cannot be used.
    #[error("saved state: `{field}` is {found}, expected {expected}")]
    Saved {
        /// The field.
        field: String,
        /// What was found.
        found: String,
        /// What is accepted.
        expected: String,
    },
    /// The saved document cannot be written or read.
    #[error("the saved document cannot be read or written")]
    SavedDocument(#[from] serde_json::Error),
    /// The tensor library or the device failed.
    #[error("a tensor operation failed")]
    Tensor(#[source] Box<candle_core::Error>),
}

/// What is wrong with a saved tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TensorProblem {
    /// It is absent.
    Missing,
    /// Nothing needs it.
    Unexpected,
    /// It has another shape.
    Shape {
        /// What was found.
        found: Vec<usize>,
        /// What is needed.
        expected: Vec<usize>,
    },
    /// It has another type of element.
    DType {
        /// What was found.
        found: DType,
        /// Type of the network's elements.
        expected: DType,
    },
}

impl std::fmt::Display for TensorProblem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Missing => f.write_str("is missing"),
            Self::Unexpected => f.write_str("belongs to no parameter"),
            Self::Shape { found, expected } => write!(f, "has shape {found:?}, expected {expected:?}"),
            Self::DType { found, expected } => {
                write!(f, "has elements of {}, expected {}", found.as_str(), expected.as_str())
            }
        }
    }
}

impl From<candle_core::Error> for Error {
    fn from(source: candle_core::Error) -> Self {
        Self::Tensor(Box::new(source))
    }
}

impl LeylineError for Error {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Config { .. } | Self::Id(_) | Self::DuplicateBlueprint { .. } => ErrorKind::InvalidConfig,
            Self::Region(_) => ErrorKind::Region,
            Self::UnknownSeed { .. } => ErrorKind::UnknownSeed,
            Self::IllegalTransition { .. } | Self::RampRunning { .. } => ErrorKind::IllegalTransition,
            Self::GateFailed { .. }
            | Self::RampToNothing { .. }
            | Self::SeedPaused { .. }
            | Self::NotPaused { .. }
            | Self::CannotPause { .. }
            | Self::SeedFading { .. }
            | Self::OverBudget { .. }
            | Self::UnknownSlot { .. }
            | Self::UnknownBlueprint { .. }
            | Self::SlotOccupied { .. }
            | Self::BlueprintDoesNotFit { .. }
            | Self::ChannelWeights { .. }
            | Self::NoMargin { .. }
            | Self::ShapeProbe { .. }
            | Self::ProbeFailed { .. }
            | Self::BlueprintOverBudget { .. }
            | Self::SeedTooLarge { .. }
            | Self::DuplicateTensor { .. }
            | Self::ReservedTensor { .. }
            | Self::Prefetch(_)
            | Self::Unverified(_)
            | Self::OutOfSeedIds => ErrorKind::Rejected,
            Self::InputShape { .. } | Self::Layout(_) => ErrorKind::LayoutMismatch,
            Self::Attribution(_) => ErrorKind::Numeric,
            // A promise of the network's structure is broken, and every number may be finite.
            Self::IsolationViolated { .. } => ErrorKind::Other,
            Self::Artifact(_) | Self::SavedTensor { .. } | Self::Saved { .. } | Self::SavedDocument(_) => {
                ErrorKind::Corrupt
            }
            Self::NoTask { .. } => ErrorKind::Unsupported,
            Self::Tensor(_) => ErrorKind::Device,
        }
    }
}

fn names(from: SeedStage) -> String {
    let names: Vec<&str> = from.successors().iter().map(|stage| stage.name()).collect();
    if names.is_empty() { "nothing else".to_owned() } else { names.join(", ") }
}

fn join(items: &[impl ToString]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}
