//! What can go wrong between a request and its artifact.

use std::fmt::Write as _;
use std::io;
use std::sync::Arc;

use leyline::config::ConfigIssue;
use leyline::error::{Error as LeylineError, ErrorKind};
use leyline::id::BlueprintId;

use crate::tensors::WeightsError;

/// Why a store has no artifact to give.
#[non_exhaustive]
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// The store does not have this blueprint.
    #[error("the store has no such blueprint")]
    Missing,
    /// The bytes are not those that were published.
    #[error("the bytes hash to {}, published were those of {}", hex(found), hex(expected))]
    Integrity {
        /// SHA-256 that was published.
        expected: [u8; 32],
        /// SHA-256 of the bytes.
        found: [u8; 32],
    },
    /// Reading failed.
    #[error("the store cannot be read")]
    Io(#[source] Arc<io::Error>),
    /// The bytes, or the list of what the store has, are not in their form.
    #[error("the store's content cannot be used")]
    Format(#[source] FormatError),
    /// The fetch was cancelled.
    #[error("the fetch was cancelled")]
    Cancelled,
    /// There is more of it than is accepted.
    #[error("the artifact has {bytes} bytes: accepted are {limit}")]
    TooLarge {
        /// Bytes of it, at least.
        bytes: u64,
        /// Bytes accepted.
        limit: u64,
    },
}

impl From<io::Error> for StoreError {
    fn from(source: io::Error) -> Self {
        Self::Io(Arc::new(source))
    }
}

impl From<FormatError> for StoreError {
    fn from(source: FormatError) -> Self {
        Self::Format(source)
    }
}

/// What is wrong with the form of stored content.
#[non_exhaustive]
#[derive(Debug, Clone, thiserror::Error)]
pub enum FormatError {
    /// They are not weights that go into every network.
    #[error("the weights of `{blueprint}` cannot be used")]
    Weights {
        /// Whose weights they should be.
        blueprint: BlueprintId,
        /// Why.
        #[source]
        source: WeightsError,
    },
    /// The artifact's length is not the published one, although its digest is.
    #[error("`{blueprint}` has {found} bytes: published were {expected}")]
    Length {
        /// Whose weights they should be.
        blueprint: BlueprintId,
        /// Bytes published.
        expected: u64,
        /// Bytes found.
        found: u64,
    },
    /// A name of the store leads elsewhere, or to something that is no plain file.
    #[error("`{name}` is {problem}: expected a plain file in the folder of the store")]
    NotPlain {
        /// The name.
        name: String,
        /// What it is.
        problem: &'static str,
    },
    /// The list of what the store has cannot be read.
    #[error("the manifest is not valid")]
    Manifest(#[source] Arc<serde_json::Error>),
    /// A digest of the manifest is no SHA-256.
    #[error("the digest of `{blueprint}` is `{found}`: expected 64 hexadecimal digits")]
    Digest {
        /// Whose it is.
        blueprint: BlueprintId,
        /// What was found.
        found: String,
    },
}

/// Why a request is not answered with an artifact.
#[non_exhaustive]
#[derive(Debug, Clone, thiserror::Error)]
pub enum PrefetchError {
    /// The configuration cannot be used.
    #[error("{}", issues.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Config {
        /// Everything that is wrong with it.
        issues: Vec<ConfigIssue>,
    },
    /// A worker could not be started.
    #[error("a prefetch worker cannot be started")]
    Spawn(#[source] Arc<io::Error>),
    /// Too many fetches wait for a worker.
    #[error("{limit} fetches wait for a worker already")]
    QueueFull {
        /// How many may.
        limit: usize,
    },
    /// Every thread that may be started is inside the store, and nobody waits for any of them any more.
    #[error("{threads} threads wait for the store, which has answered none of them: no more are started")]
    StoreHangs {
        /// How many.
        threads: usize,
    },
    /// The store failed too often lately.
    #[error("the store failed too often: it is asked again in {retry_in_ms} ms")]
    BreakerOpen {
        /// Time until it is tried again; 0 while trials are running.
        retry_in_ms: u64,
    },
    /// No answer came before the deadline of the ticket.
    #[error("no answer within {deadline_ms} ms")]
    TimedOut {
        /// Time the request had.
        deadline_ms: u64,
    },
    /// All requests were cancelled.
    #[error("the request was cancelled")]
    Cancelled,
    /// The store answered with an error.
    #[error("the store gave no artifact")]
    Store(#[source] StoreError),
    /// The store panicked; its worker goes on.
    #[error("the store panicked: {message}")]
    StorePanicked {
        /// What it panicked with.
        message: String,
    },
    /// The store answered with the artifact of another blueprint.
    #[error("the store answered with `{found}`: expected `{expected}`")]
    WrongArtifact {
        /// What it was asked for.
        expected: BlueprintId,
        /// What it gave.
        found: BlueprintId,
    },
    /// The ticket was issued by another prefetcher.
    #[error("the ticket was issued by another prefetcher")]
    ForeignTicket,
}

impl PrefetchError {
    /// Whether it speaks of the store's health and not of one artifact; such answers open the breaker.
    pub(crate) fn is_fault_of_store(&self) -> bool {
        match self {
            Self::Store(StoreError::Io(_) | StoreError::Integrity { .. })
            | Self::StorePanicked { .. }
            | Self::WrongArtifact { .. }
            | Self::TimedOut { .. } => true,
            Self::Store(
                StoreError::Missing | StoreError::Format(_) | StoreError::Cancelled | StoreError::TooLarge { .. },
            )
            | Self::Config { .. }
            | Self::Spawn(_)
            | Self::QueueFull { .. }
            | Self::BreakerOpen { .. }
            | Self::StoreHangs { .. }
            | Self::Cancelled
            | Self::ForeignTicket => false,
        }
    }
}

impl LeylineError for PrefetchError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Config { .. } => ErrorKind::InvalidConfig,
            Self::TimedOut { .. } => ErrorKind::DeadlineExceeded,
            Self::QueueFull { .. }
            | Self::BreakerOpen { .. }
            | Self::StoreHangs { .. }
            | Self::Cancelled
            | Self::ForeignTicket
            | Self::Store(StoreError::Missing | StoreError::TooLarge { .. } | StoreError::Cancelled) => {
                ErrorKind::Rejected
            }
            Self::WrongArtifact { .. } | Self::Store(StoreError::Integrity { .. } | StoreError::Format(_)) => {
                ErrorKind::Corrupt
            }
            Self::Spawn(_) | Self::Store(StoreError::Io(_)) => ErrorKind::Io,
            Self::StorePanicked { .. } => ErrorKind::Other,
        }
    }
}

/// Bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        write!(text, "{byte:02x}").expect("writing to a string does not fail");
        text
    })
}

/// 64 hexadecimal digits as bytes.
pub(crate) fn unhex(text: &str) -> Option<[u8; 32]> {
    let digits = text.as_bytes();
    if digits.len() != 64 {
        return None;
    }
    let mut bytes = [0_u8; 32];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let digit = |at: usize| char::from(pair[at]).to_digit(16);
        *byte = u8::try_from(digit(0)? * 16 + digit(1)?).expect("two hexadecimal digits are below 256");
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_survives_its_text_form_and_nothing_else_is_one() {
        let digest: [u8; 32] = std::array::from_fn(|i| u8::try_from(i * 8 + 7).unwrap());
        assert_eq!(unhex(&hex(&digest)), Some(digest));
        assert_eq!(unhex(&hex(&digest).to_uppercase()), Some(digest));
        for bad in ["", "0", &"0".repeat(63), &"0".repeat(65), &"g".repeat(64), &"é".repeat(32), &"+1".repeat(32)] {
            assert_eq!(unhex(bad), None, "{bad:?} was accepted");
        }
    }

    #[test]
    fn answers_about_one_artifact_are_no_fault_of_the_store() {
        let blueprint = BlueprintId::new("mlp").unwrap();
        let length = FormatError::Length { blueprint: blueprint.clone(), expected: 1, found: 2 };
        for (error, expected) in [
            (PrefetchError::Store(StoreError::Missing), false),
            (PrefetchError::Store(StoreError::Format(length)), false),
            (PrefetchError::Store(StoreError::TooLarge { bytes: 2, limit: 1 }), false),
            (PrefetchError::Store(StoreError::Cancelled), false),
            (PrefetchError::Cancelled, false),
            (PrefetchError::Store(io::Error::other("gone").into()), true),
            (PrefetchError::Store(StoreError::Integrity { expected: [0; 32], found: [1; 32] }), true),
            (PrefetchError::StorePanicked { message: "x".into() }, true),
            (PrefetchError::WrongArtifact { expected: blueprint.clone(), found: blueprint }, true),
            (PrefetchError::TimedOut { deadline_ms: 1 }, true),
        ] {
            assert_eq!(error.is_fault_of_store(), expected, "{error}");
        }
    }

    #[test]
    fn the_source_is_kept_and_not_repeated() {
        use std::error::Error as _;
        let error = PrefetchError::Store(io::Error::other("the disk is gone").into());
        let store = error.source().unwrap();
        let io = store.source().unwrap();
        let texts = [error.to_string(), store.to_string(), io.to_string()];
        assert_eq!(texts, ["the store gave no artifact", "the store cannot be read", "the disk is gone"]);
    }
}
