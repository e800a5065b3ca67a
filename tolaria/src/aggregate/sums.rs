//! Where the sums of an epoch are in their one vector.
//!
//! ```text
//!   loss, correct, squared main norm, conflicts, skipped samples │ fields × slots │ cosines (slots × slots) │ layers (slots × parts)
//! ```
//!
//! `kernels/solve.cu` has the same places. The cosines are above the diagonal of their square, and below it is how many
//! there were. The vector has as many numbers again: the sums of the windows before, which come back when a window is not
//! finite.

/// What is summed per owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Field {
    /// Squared norm of the combined gradient on the owner's own parameters.
    ParameterSquare,
    /// Steps in which its parameters were updated and that was above 0.
    Healthy,
    /// Steps that left its parameters as they were: their gradient, or the loss, was not finite.
    Skipped,
    /// Measured windows in which the owner took part.
    Windows,
    /// Its part of the samples.
    Weight,
    /// Squared norm of its gradient.
    NormSquare,
    /// Its norm / the sum of all owners' norms.
    Share,
    /// Pairs of it with others that conflict.
    Conflicts,
    /// All pairs of it with others.
    Pairs,
    /// The weight that the method gave its gradient.
    Resolved,
    /// Alpha; 0 for the host.
    Alpha,
    /// Its part of what the seeds took over from the host; 0 for the host.
    Split,
}

const FIELDS: usize = Field::Split as usize + 1;
const OWNERS: usize = 5;

/// Places of sums for so many owners and parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SumsLayout {
    slots: usize,
    parts: usize,
}

impl SumsLayout {
    pub(crate) const LOSS: usize = 0;
    pub(crate) const CORRECT: usize = 1;
    pub(crate) const MAIN_SQUARE: usize = 2;
    pub(crate) const CONFLICTS: usize = 3;
    /// Samples of the windows that left the host's parameters as they were.
    pub(crate) const SKIPPED_SAMPLES: usize = 4;

    pub(crate) fn new(slots: usize, parts: usize) -> Self {
        Self { slots, parts }
    }

    pub(crate) fn len(self) -> usize {
        self.layer(self.slots, 0)
    }

    /// Length of the vector, with the sums of the windows before.
    pub(crate) fn num_stored(self) -> usize {
        2 * self.len()
    }

    /// First of the places of a field, one per slot.
    pub(crate) fn field(self, field: Field) -> usize {
        OWNERS + field as usize * self.slots
    }

    pub(crate) fn of_slot(self, field: Field, slot: usize) -> usize {
        self.field(field) + slot
    }

    pub(crate) fn cosine(self, i: usize, j: usize) -> usize {
        OWNERS + FIELDS * self.slots + i * self.slots + j
    }

    /// Squared norm of an owner's gradient on one part.
    pub(crate) fn layer(self, slot: usize, part: usize) -> usize {
        OWNERS + (FIELDS + self.slots) * self.slots + slot * self.parts + part
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_is_used_once() {
        let layout = SumsLayout::new(3, 5);
        let mut uses = vec![0; layout.len()];
        let fields = [
            Field::ParameterSquare,
            Field::Healthy,
            Field::Skipped,
            Field::Windows,
            Field::Weight,
            Field::NormSquare,
            Field::Share,
            Field::Conflicts,
            Field::Pairs,
            Field::Resolved,
            Field::Alpha,
            Field::Split,
        ];
        assert_eq!(fields.len(), FIELDS);
        (0..=SumsLayout::SKIPPED_SAMPLES).for_each(|place| uses[place] += 1);
        for slot in 0..3 {
            fields.iter().for_each(|field| uses[layout.of_slot(*field, slot)] += 1);
            (0..3).for_each(|other| uses[layout.cosine(slot, other)] += 1);
            (0..5).for_each(|part| uses[layout.layer(slot, part)] += 1);
        }
        assert!(uses.iter().all(|uses| *uses == 1), "{uses:?}");
    }
}
