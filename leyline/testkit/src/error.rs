//! What the doubles refuse, and why.

use leyline::command::Unverified;
use leyline::error::{self, ErrorKind};
use leyline::id::SeedId;
use leyline::region::RegionError;
use leyline::seed::{AttributionError, SeedStage};

/// A refusal of a double.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A region is open on this thread.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// No seed has this id.
    #[error("no {seed} is known")]
    UnknownSeed {
        /// The id.
        seed: SeedId,
    },
    /// The lifecycle does not allow the move.
    #[error("{seed} is {stage}: {operation} is not possible")]
    IllegalTransition {
        /// The seed.
        seed: SeedId,
        /// Its stage.
        stage: SeedStage,
        /// What was wanted.
        operation: &'static str,
    },
    /// The request was understood and refused.
    #[error("refused: {0}")]
    Rejected(&'static str),
    /// An order is signed.
    #[error(transparent)]
    Unverified(#[from] Unverified),
    /// A saved state does not fit.
    #[error("the saved state has no usable `{field}`")]
    Saved {
        /// The field or tensor.
        field: String,
    },
    /// The tensors of a network cannot be copied or written back.
    #[error(transparent)]
    Network(#[from] leyline::network::NetworkError),
    /// Two parameters have one name.
    #[error(transparent)]
    Layout(#[from] leyline::layout::DuplicateParameter),
    /// The weights break rule SM-4.
    #[error(transparent)]
    Attribution(#[from] AttributionError),
    /// The tensor library failed.
    #[error("a tensor operation failed")]
    Tensor(#[from] candle_core::Error),
}

impl From<serde_json::Error> for Error {
    fn from(error: serde_json::Error) -> Self {
        Self::Saved { field: error.to_string() }
    }
}

impl error::Error for Error {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Region(error) => error::Error::kind(error),
            Self::UnknownSeed { .. } => ErrorKind::UnknownSeed,
            Self::IllegalTransition { .. } => ErrorKind::IllegalTransition,
            Self::Rejected(_) => ErrorKind::Rejected,
            Self::Unverified(error) => error::Error::kind(error),
            Self::Saved { .. } => ErrorKind::Corrupt,
            Self::Network(error) => error::Error::kind(error),
            Self::Layout(error) => error::Error::kind(error),
            Self::Attribution(_) => ErrorKind::Numeric,
            Self::Tensor(_) => ErrorKind::Device,
        }
    }
}
