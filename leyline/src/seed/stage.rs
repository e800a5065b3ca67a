//! Lifecycle stages with their wire numbers, and the moves between them.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Where a seed is in its life. The numbers are the wire numbers of the older system; 5 and 11 are retired.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum SeedStage {
    /// The slot is empty.
    Dormant = 1,
    /// The seed exists and does not train yet.
    Germinated = 2,
    /// It learns in the shadow of the host, without effect on the host's output.
    Training = 3,
    /// Its effect is being ramped.
    Blending = 4,
    /// It acts in full and is being judged.
    Holding = 6,
    /// It is a permanent part of the host.
    Fossilized = 7,
    /// It was removed.
    Pruned = 8,
    /// Its slot is barred for some epochs.
    Embargoed = 9,
    /// Its slot is being cleared.
    Resetting = 10,
}

/// A number that is no stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0} is not a seed stage: expected 1 to 4 or 6 to 10")]
pub struct ParseStageError(pub u8);

impl SeedStage {
    /// Every stage in wire order.
    pub const ALL: [Self; 9] = [
        Self::Dormant,
        Self::Germinated,
        Self::Training,
        Self::Blending,
        Self::Holding,
        Self::Fossilized,
        Self::Pruned,
        Self::Embargoed,
        Self::Resetting,
    ];

    /// The wire number.
    #[must_use]
    pub const fn wire(self) -> u8 {
        self as u8
    }

    /// The stage with this wire number.
    ///
    /// # Errors
    /// [`ParseStageError`] for unknown and retired numbers.
    pub fn from_wire(number: u8) -> Result<Self, ParseStageError> {
        Self::ALL.into_iter().find(|stage| stage.wire() == number).ok_or(ParseStageError(number))
    }

    /// The stages that may follow this one.
    #[must_use]
    pub const fn successors(self) -> &'static [Self] {
        match self {
            Self::Dormant => &[Self::Germinated],
            Self::Germinated => &[Self::Training, Self::Pruned],
            Self::Training => &[Self::Blending, Self::Pruned],
            Self::Blending => &[Self::Holding, Self::Pruned],
            Self::Holding => &[Self::Fossilized, Self::Blending, Self::Pruned],
            Self::Fossilized => &[],
            Self::Pruned => &[Self::Embargoed],
            Self::Embargoed => &[Self::Resetting],
            Self::Resetting => &[Self::Dormant],
        }
    }

    /// Whether a seed may go from this stage to `next`.
    #[must_use]
    pub fn may_become(self, next: Self) -> bool {
        self.successors().contains(&next)
    }

    /// Whether the seed holds parameters and may still be removed.
    #[must_use]
    pub const fn is_live(self) -> bool {
        match self {
            Self::Germinated | Self::Training | Self::Blending | Self::Holding => true,
            Self::Dormant | Self::Fossilized | Self::Pruned | Self::Embargoed | Self::Resetting => false,
        }
    }

    /// Whether the seed takes part in the host's output.
    #[must_use]
    pub const fn acts_on_output(self) -> bool {
        match self {
            Self::Blending | Self::Holding | Self::Fossilized => true,
            Self::Dormant | Self::Germinated | Self::Training | Self::Pruned | Self::Embargoed | Self::Resetting => {
                false
            }
        }
    }

    /// The name in lower case.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Dormant => "dormant",
            Self::Germinated => "germinated",
            Self::Training => "training",
            Self::Blending => "blending",
            Self::Holding => "holding",
            Self::Fossilized => "fossilized",
            Self::Pruned => "pruned",
            Self::Embargoed => "embargoed",
            Self::Resetting => "resetting",
        }
    }
}

impl fmt::Display for SeedStage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wire_numbers_are_kept_and_retired_ones_refused() {
        let numbers: Vec<u8> = SeedStage::ALL.iter().map(|s| s.wire()).collect();
        assert_eq!(numbers, [1, 2, 3, 4, 6, 7, 8, 9, 10]);
        for retired in [0, 5, 11, 255] {
            assert_eq!(SeedStage::from_wire(retired), Err(ParseStageError(retired)));
        }
    }

    #[test]
    fn every_stage_but_the_permanent_one_leads_somewhere() {
        for stage in SeedStage::ALL {
            assert_eq!(stage.successors().is_empty(), stage == SeedStage::Fossilized, "{stage}");
        }
    }

    #[test]
    fn the_serialized_name_is_the_displayed_one() {
        for stage in SeedStage::ALL {
            assert_eq!(serde_json::to_string(&stage).unwrap(), format!("\"{stage}\""));
        }
    }
}
