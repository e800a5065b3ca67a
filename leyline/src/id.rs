//! Ids and indices as types, so that an epoch cannot be passed where a step is meant.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A text that is not an id of the wanted kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a {kind}: expected {expected}")]
pub struct ParseIdError {
    /// Which id was wanted.
    pub kind: &'static str,
    /// What was found.
    pub text: String,
    /// The accepted form.
    pub expected: &'static str,
}

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident, $kind:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// Accepts 1 to 64 characters of `a-z`, `0-9`, `_`, `-`.
            ///
            /// # Errors
            /// [`ParseIdError`] for anything else.
            pub fn new(text: impl Into<String>) -> Result<Self, ParseIdError> {
                let text = text.into();
                let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_' || c == '-';
                if text.is_empty() || text.len() > 64 || !text.chars().all(allowed) {
                    return Err(ParseIdError { kind: $kind, text, expected: "1 to 64 characters of a-z, 0-9, _ and -" });
                }
                Ok(Self(text))
            }

            /// The id as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl FromStr for $name {
            type Err = ParseIdError;
            fn from_str(text: &str) -> Result<Self, Self::Err> {
                Self::new(text)
            }
        }

        impl TryFrom<String> for $name {
            type Error = ParseIdError;
            fn try_from(text: String) -> Result<Self, Self::Error> {
                Self::new(text)
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> Self {
                id.0
            }
        }
    };
}

text_id!(
    /// One training run.
    RunId, "run id"
);
text_id!(
    /// A kind of seed in the registry of blueprints.
    BlueprintId, "blueprint id"
);
text_id!(
    /// A place in the host network that can hold seeds.
    SlotId, "slot id"
);

/// A seed, numbered from 1 in the order of germination; never used twice in a run. As text: `seed-7`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SeedId(pub u32);

impl fmt::Display for SeedId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed-{}", self.0)
    }
}

impl FromStr for SeedId {
    type Err = ParseIdError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.strip_prefix("seed-").and_then(|number| number.parse().ok()).map(Self).ok_or_else(|| ParseIdError {
            kind: "seed id",
            text: text.to_owned(),
            expected: "seed-N",
        })
    }
}

impl TryFrom<String> for SeedId {
    type Error = ParseIdError;
    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<SeedId> for String {
    fn from(id: SeedId) -> Self {
        id.to_string()
    }
}

macro_rules! index {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u64);

        impl $name {
            /// The index after this one.
            #[must_use]
            pub fn next(self) -> Self {
                Self(self.0 + 1)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

index!(
    /// Number of optimizer steps taken so far in the run.
    StepIndex
);
index!(
    /// Number of epochs completed so far in the run.
    EpochIndex
);
index!(
    /// Grows by at least one whenever the computation of a training step changes its structure; never shrinks in a run.
    TopologyRevision
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_id_survives_its_text_form() {
        let json = serde_json::to_string(&SeedId(7)).unwrap();
        assert_eq!(json, "\"seed-7\"");
        assert_eq!(serde_json::from_str::<SeedId>(&json).unwrap(), SeedId(7));
    }

    #[test]
    fn text_ids_refuse_what_could_leave_their_field() {
        for bad in ["", "A", "a b", "../x", "é", &"x".repeat(65)] {
            assert!(SlotId::new(bad).is_err(), "{bad:?} was accepted");
        }
        assert_eq!(SlotId::new("r0c1").unwrap().as_str(), "r0c1");
    }
}
