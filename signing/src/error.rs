//! What can go wrong in a layer, beside what goes wrong inside.

use leyline::error::{Error as LeylineError, ErrorKind};
use leyline::id::RunId;

use crate::Rejection;
use crate::verified::WINDOW;

/// Error of a layer around a policy or seed manager whose error is `E`.
#[derive(Debug, thiserror::Error)]
pub enum Error<E: std::error::Error + 'static> {
    /// An order failed its security checks; its content was not acted on.
    #[error("the command was rejected")]
    Command(#[source] Rejection),
    /// The state belongs to another run, so orders for this one would be signed on foreign evidence.
    #[error("the state belongs to run {found}: expected run {expected}")]
    ForeignRun {
        /// The run that is signed for.
        expected: RunId,
        /// The run of the state.
        found: RunId,
    },
    /// The saved state of the layer cannot be written or read.
    #[error("the saved numbers of signed commands cannot be read or written")]
    Saved(#[source] serde_json::Error),
    /// The seed manager's document has no place for the field that the layer adds.
    #[error("the document of the seed manager cannot be saved: expected an object without a field `{WINDOW}`")]
    Document,
    /// Of what is inside.
    #[error(transparent)]
    Inner(E),
}

impl<E: LeylineError> LeylineError for Error<E> {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Command(_) | Self::ForeignRun { .. } => ErrorKind::Rejected,
            Self::Saved(_) => ErrorKind::Corrupt,
            Self::Document => ErrorKind::Unsupported,
            Self::Inner(error) => error.kind(),
        }
    }
}
