//! What can go wrong in telemetry.

use std::fmt;
use std::io;
use std::path::PathBuf;

use leyline::error::{Error as LeylineError, ErrorKind};

use crate::codec::FrameError;

/// The incomplete frame at the end of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TornTail {
    /// Where it starts.
    pub offset: u64,
    /// How many bytes of it exist.
    pub bytes: u64,
}

impl fmt::Display for TornTail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the last frame is cut off: {} bytes of it from byte {}", self.bytes, self.offset)
    }
}

/// Error of every function of this crate.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Two descriptors have the same name.
    #[error("two {what} descriptors are named `{name}`")]
    DuplicateName {
        /// `metric` or `event`.
        what: &'static str,
        /// The name.
        name: &'static str,
    },
    /// A descriptor, label or attribute has a name that is not accepted.
    #[error("`{name}` is no name of {what}: expected {expected}")]
    InvalidName {
        /// What carries the name.
        what: &'static str,
        /// The name.
        name: &'static str,
        /// What is accepted.
        expected: &'static str,
    },
    /// Two metrics would be one series in Prometheus.
    #[error("`{first}` and `{second}` would both be exported as `{prometheus}`")]
    PrometheusCollision {
        /// The exported name.
        prometheus: String,
        /// The metric that has it already.
        first: &'static str,
        /// The metric that wants it too.
        second: &'static str,
    },
    /// The worker thread did not start.
    #[error("the telemetry thread cannot be started")]
    Thread(#[source] io::Error),
    /// A file could not be used.
    #[error("cannot {action} `{}`", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// Another writer has the file.
    #[error("`{}` is being written by another process or recorder", path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// A frame is damaged or not readable by this build.
    #[error("the frame at byte {offset} is not usable")]
    Frame {
        /// Where the frame starts in the stream.
        offset: u64,
        /// What is wrong with it.
        #[source]
        source: FrameError,
    },
    /// The stream ends inside a frame: the writer was stopped in the middle of it.
    #[error("the stream ends inside the frame at byte {}: {} bytes of it are there", .0.offset, .0.bytes)]
    TornTail(TornTail),
    /// Reading a stream failed.
    #[error("cannot read the frame at byte {offset}")]
    Read {
        /// Where the frame starts in the stream.
        offset: u64,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The content of a file cannot be used.
    #[error("`{}` cannot be read as packets", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong, with the offset.
        #[source]
        source: Box<Error>,
    },
    /// A packet cannot be written as a frame.
    #[error("packet {sequence} cannot be written as a frame")]
    Encode {
        /// The packet.
        sequence: u64,
        /// Why.
        #[source]
        source: FrameError,
    },
    /// A packet cannot be written as JSON.
    #[error("packet {sequence} cannot be written as JSON")]
    Json {
        /// The packet.
        sequence: u64,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// The output refused text.
    #[error("cannot write the decoded packets")]
    Output(#[source] io::Error),
    /// A sink will never take this packet; it is not offered again.
    #[error("the sink refuses the packet")]
    Refused(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// A sink of another crate failed.
    #[error("the sink failed")]
    Sink(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl Error {
    /// Whether a [sink](crate::sink::Sink) that gave this error for a packet would give it again: the packet is the cause.
    #[must_use]
    pub fn is_for_good(&self) -> bool {
        matches!(self, Self::Encode { .. } | Self::Json { .. } | Self::Refused(_))
    }

    pub(crate) fn io(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { action, path, source }
    }

    pub(crate) fn file(path: impl Into<PathBuf>) -> impl FnOnce(Self) -> Self {
        let path = path.into();
        move |source| Self::File { path, source: Box::new(source) }
    }
}

impl LeylineError for Error {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::DuplicateName { .. } | Self::InvalidName { .. } | Self::PrometheusCollision { .. } => {
                ErrorKind::InvalidConfig
            }
            Self::Thread(_) | Self::Io { .. } | Self::Read { .. } | Self::Output(_) => ErrorKind::Io,
            Self::InUse { .. } => ErrorKind::Rejected,
            Self::Frame { .. } | Self::TornTail(_) => ErrorKind::Corrupt,
            Self::File { source, .. } => source.kind(),
            Self::Encode { .. } | Self::Json { .. } | Self::Refused(_) | Self::Sink(_) => ErrorKind::Other,
        }
    }
}
