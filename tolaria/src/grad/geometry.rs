//! A layout as the gradient engine works on it, made once per structure of the network.
//!
//! ```text
//!   segments   [a.bias]   [a.weight      ] [(no elements)] [seed-1.weight]
//!   parts      [0      ]   [1            ]                 [2            ]
//!   chunks     [0      ]   [1     ][2    ]                 [3     ][4    ]
//! ```
//!
//! Sums over elements are formed per chunk and added in the order of the chunks, so that they depend neither on the
//! number of threads nor on the device that the chunks are spread over.

use std::ops::Range;

use leyline::id::TopologyRevision;
use leyline::layout::{Owner, ParameterLayout};

use crate::error::Error;

/// Elements of a chunk: large against what it costs to start one, small against the elements of a step.
const CHUNK_LEN: usize = 4096;
/// Chunks of a vector beyond which they get longer instead of more.
const MAX_CHUNKS: usize = 4096;

/// One segment that has elements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Part {
    /// Name of the parameter.
    pub(crate) name: String,
    /// Its elements in the flat vector.
    pub(crate) range: Range<usize>,
    /// Slot of its owner.
    pub(crate) slot: usize,
    /// Whether only the owner's side loss trains it.
    pub(crate) isolated: bool,
    /// Whether it stays as it is.
    pub(crate) frozen: bool,
}

impl Part {
    /// Whether it counts for nobody else: neither where gradients are clipped nor where they are compared.
    pub(crate) fn is_apart(&self) -> bool {
        self.isolated || self.frozen
    }

    /// What is clipped together: 0 for what the main loss moves, else a number per slot.
    pub(crate) fn domain(&self) -> usize {
        if self.is_apart() { 1 + self.slot } else { 0 }
    }
}

/// Neighboring elements of one part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub(crate) range: Range<usize>,
    /// Index of the part.
    pub(crate) part: usize,
}

/// Parts, chunks and owners of a layout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Geometry {
    revision: TopologyRevision,
    num_elements: usize,
    /// By slot.
    owners: Vec<Owner>,
    parts: Vec<Part>,
    chunks: Vec<Chunk>,
}

impl Geometry {
    /// `owners` gives each owner its slot.
    ///
    /// # Errors
    /// [`Error::LayoutMismatch`] when a segment belongs to nobody in `owners`.
    pub fn new(layout: &ParameterLayout, owners: Vec<Owner>) -> Result<Self, Error> {
        let num_elements = layout.num_elements();
        let mut parts = Vec::with_capacity(layout.segments().len());
        for segment in layout.segments().iter().filter(|segment| segment.len > 0) {
            let owner = segment.spec.owner;
            let Some(slot) = owners.iter().position(|known| *known == owner) else {
                return Err(Error::mismatch("owners of the gradient", format!("{owners:?}"), format!("{owner:?}")));
            };
            let range = segment.offset..segment.offset + segment.len;
            parts.push(Part {
                name: segment.spec.name.clone(),
                range,
                slot,
                isolated: segment.spec.isolated,
                frozen: false,
            });
        }
        let length = Self::chunk_len(num_elements);
        let cut = |(part, Part { range, .. }): (usize, &Part)| {
            let end = range.end;
            let chunk = move |start: usize| Chunk { range: start..end.min(start + length), part };
            range.clone().step_by(length).map(chunk).collect::<Vec<_>>()
        };
        let chunks = parts.iter().enumerate().flat_map(cut).collect();
        Ok(Self { revision: layout.revision(), num_elements, owners, parts, chunks })
    }

    /// The owners of a layout, each with its slot: the host first, then seeds by id.
    ///
    /// # Errors
    /// none: every segment's owner is among them
    pub fn of(layout: &ParameterLayout) -> Result<Self, Error> {
        Self::new(layout, owners_of(layout))
    }

    /// The same where the parameters of such owners stay as they are: their gradients count neither where others are clipped nor
    /// where owners are compared.
    #[must_use]
    pub fn freezing(mut self, is_frozen: impl Fn(Owner) -> bool) -> Self {
        for part in &mut self.parts {
            part.frozen = is_frozen(self.owners[part.slot]);
        }
        self
    }

    /// Elements of the longest chunk of a vector of so many elements; a multiple of 1024.
    #[must_use]
    pub fn chunk_len(num_elements: usize) -> usize {
        num_elements.div_ceil(MAX_CHUNKS).next_multiple_of(1024).max(CHUNK_LEN)
    }

    /// The structure of the network it was made for.
    #[must_use]
    pub fn revision(&self) -> TopologyRevision {
        self.revision
    }

    /// Elements of the flat vector (P).
    #[must_use]
    pub fn num_elements(&self) -> usize {
        self.num_elements
    }

    /// Owners by slot.
    #[must_use]
    pub fn owners(&self) -> &[Owner] {
        &self.owners
    }

    /// Names of the parameters that have elements, in the order of the flat vector.
    pub fn part_names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.parts.iter().map(|part| part.name.as_str())
    }

    pub(crate) fn parts(&self) -> &[Part] {
        &self.parts
    }

    pub(crate) fn chunks(&self) -> &[Chunk] {
        &self.chunks
    }
}

/// Whoever owns a segment, and the host: the host first, then seeds by id.
fn owners_of(layout: &ParameterLayout) -> Vec<Owner> {
    let mut owners: Vec<Owner> = layout.segments().iter().map(|segment| segment.spec.owner).collect();
    owners.push(Owner::Host);
    owners.sort_unstable();
    owners.dedup();
    owners
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{HOST, layout, seed};

    #[test]
    fn chunks_cover_every_element_once_and_stay_within_a_part() {
        let layout = layout(&[
            ("a", 3, HOST, false),
            ("b", 0, seed(2), false),
            ("c", 2 * CHUNK_LEN + 1, seed(1), true),
            ("d", CHUNK_LEN, seed(2), false),
        ]);
        let geometry = Geometry::of(&layout).unwrap();
        assert_eq!(geometry.owners(), [HOST, seed(1), seed(2)]);
        assert_eq!(geometry.part_names().collect::<Vec<_>>(), ["a", "c", "d"]);
        let domains: Vec<usize> = geometry.parts().iter().map(Part::domain).collect();
        assert_eq!(domains, [0, 2, 0]);
        let mut end = 0;
        for chunk in geometry.chunks() {
            let part = &geometry.parts()[chunk.part].range;
            assert!(chunk.range.start == end && chunk.range.len() <= CHUNK_LEN, "{chunk:?}");
            assert!(part.start <= chunk.range.start && chunk.range.end <= part.end, "{chunk:?} of {part:?}");
            end = chunk.range.end;
        }
        assert_eq!(end, layout.num_elements());
        assert_eq!(geometry.chunks().iter().map(|chunk| chunk.part).collect::<Vec<_>>(), [0, 1, 1, 1, 2]);
    }

    #[test]
    fn chunks_of_large_vectors_get_longer_instead_of_more() {
        for (num_elements, expected) in
            [(1, 4096), (16 << 20, 4096), ((16 << 20) + 1, 5120), (100_000_000, 24_576), (1_000_000_000, 244_736)]
        {
            assert_eq!(Geometry::chunk_len(num_elements), expected, "{num_elements}");
        }
    }

    #[test]
    fn a_segment_of_nobody_is_refused() {
        let layout = layout(&[("a", 1, seed(3), false)]);
        let error = Geometry::new(&layout, vec![HOST]).unwrap_err();
        assert!(error.to_string().starts_with("owners of the gradient: expected [Host]"), "{error}");
    }
}
