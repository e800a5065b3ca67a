//! Errors across crate boundaries: one kind to branch on, the source kept.

use std::fmt;

/// What went wrong, as far as a caller in another crate may branch on it.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// No seed has this id.
    UnknownSeed,
    /// The lifecycle does not allow the move.
    IllegalTransition,
    /// A configuration value is missing, unknown or out of range.
    InvalidConfig,
    /// Shapes, names or offsets do not match the parameter layout.
    LayoutMismatch,
    /// The answer came after its deadline.
    DeadlineExceeded,
    /// The implementer does not have this capability.
    Unsupported,
    /// The request was understood and refused; nothing was changed.
    Rejected,
    /// The device or the tensor library failed.
    Device,
    /// A value is not finite, or a computation has no result.
    Numeric,
    /// Reading or writing outside the process failed.
    Io,
    /// Stored bytes are damaged or were written by an incompatible version.
    Corrupt,
    /// A region rule was broken: a host-side call while recording, or a second token.
    Region,
    /// Anything else.
    Other,
}

/// An error that can cross a crate boundary.
pub trait Error: std::error::Error + Send + Sync + 'static {
    /// What a caller may branch on.
    fn kind(&self) -> ErrorKind;
}

/// One error type per implementer of a contract.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no error type",
    note = "implement `leyline::error::ErrorType` once per implementer; `Infallible` and `BoxError` are ready-made"
)]
pub trait ErrorType {
    /// The error of every method of this implementer.
    type Error: Error;
}

impl<T: ErrorType + ?Sized> ErrorType for &mut T {
    type Error = T::Error;
}

impl<T: ErrorType + ?Sized> ErrorType for Box<T> {
    type Error = T::Error;
}

impl Error for std::convert::Infallible {
    fn kind(&self) -> ErrorKind {
        match *self {}
    }
}

/// Any [`Error`], with its kind and source kept.
pub struct BoxError(Box<dyn Error>);

impl BoxError {
    /// Erases the type of `error`.
    pub fn new(error: impl Error) -> Self {
        Self(Box::new(error))
    }
}

impl fmt::Debug for BoxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl fmt::Display for BoxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl std::error::Error for BoxError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source()
    }
}

impl Error for BoxError {
    fn kind(&self) -> ErrorKind {
        self.0.kind()
    }
}
