//! The ways in which isolation can be broken.

use std::fmt;

use leyline::id::SeedId;

/// A way in which isolation is broken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Violation {
    /// The network answers differently with the seeds in shadow training.
    OutputDiffers {
        /// Logits that differ (count).
        num_differing: u64,
    },
    /// The main loss has another gradient with them.
    GradientDiffers {
        /// The parameter.
        parameter: String,
        /// Elements that differ (count).
        num_differing: u64,
    },
    /// A forward or backward pass writes a parameter, whosever it is.
    ParameterWritten {
        /// The parameter.
        parameter: String,
        /// Elements that changed (count).
        num_differing: u64,
    },
    /// The main loss reaches a parameter of a seed in shadow training, or of one that does not train.
    MainLossReachesSeed {
        /// The seed.
        seed: SeedId,
        /// The parameter.
        parameter: String,
    },
    /// A side loss reaches a parameter of somebody else.
    SideLossReachesOther {
        /// The seed whose side loss it is.
        seed: SeedId,
        /// The parameter.
        parameter: String,
    },
    /// A side loss does not reach a parameter of its own seed.
    SideLossMissesSeed {
        /// The seed.
        seed: SeedId,
        /// The parameter.
        parameter: String,
    },
    /// A parameter of a seed that is in shadow training or does not train lies in the storage of another one: an update of
    /// one is one of both.
    SharedStorage {
        /// The seed.
        seed: SeedId,
        /// Its parameter.
        parameter: String,
        /// The other parameter.
        other: String,
    },
}

impl Violation {
    /// Whose it is; none when that cannot be told from the comparison of whole networks.
    #[must_use]
    pub fn seed(&self) -> Option<SeedId> {
        match self {
            Self::OutputDiffers { .. } | Self::GradientDiffers { .. } | Self::ParameterWritten { .. } => None,
            Self::MainLossReachesSeed { seed, .. }
            | Self::SideLossReachesOther { seed, .. }
            | Self::SideLossMissesSeed { seed, .. }
            | Self::SharedStorage { seed, .. } => Some(*seed),
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutputDiffers { num_differing } => write!(f, "the answer differs in {num_differing} logits"),
            Self::GradientDiffers { parameter, num_differing } => {
                write!(f, "the gradient of {parameter} differs in {num_differing} elements")
            }
            Self::ParameterWritten { parameter, num_differing } => {
                write!(f, "a pass writes {num_differing} elements of {parameter}")
            }
            Self::MainLossReachesSeed { seed: _, parameter } => write!(f, "the main loss reaches {parameter}"),
            Self::SideLossReachesOther { seed, parameter } => write!(f, "the side loss of {seed} reaches {parameter}"),
            Self::SideLossMissesSeed { seed, parameter } => write!(f, "the side loss of {seed} misses {parameter}"),
            Self::SharedStorage { seed: _, parameter, other } => {
                write!(f, "{parameter} lies in the memory of {other}")
            }
        }
    }
}
