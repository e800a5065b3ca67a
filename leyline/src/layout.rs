//! Where each parameter lies in the flat gradient, and who owns it.
//!
//! The order is by name and never by creation or by hash map, so that two processes agree (I-8).

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind};
use crate::id::{SeedId, TopologyRevision};

/// Whose parameter it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Owner {
    /// The host network.
    Host,
    /// One seed.
    Seed(SeedId),
}

/// One parameter before it has a place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentSpec {
    /// Unique name, dotted path.
    pub name: String,
    /// Shape of the parameter.
    pub shape: Vec<usize>,
    /// Whose parameter it is.
    pub owner: Owner,
    /// Whether only the owner's side loss trains it (shadow training); the main loss does not reach it.
    pub isolated: bool,
}

/// One parameter in the flat gradient.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// Name, shape and owner.
    pub spec: SegmentSpec,
    /// First element in the flat vector.
    pub offset: usize,
    /// Elements.
    pub len: usize,
}

/// Two parameters have one name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("two parameters are named `{name}`")]
pub struct DuplicateParameter {
    /// The name.
    pub name: String,
}

impl Error for DuplicateParameter {
    fn kind(&self) -> ErrorKind {
        ErrorKind::LayoutMismatch
    }
}

/// All parameters of a model as segments of one flat vector of `num_elements` (P) elements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParameterLayout {
    revision: TopologyRevision,
    segments: Vec<Segment>,
    num_elements: usize,
}

impl ParameterLayout {
    /// Lays the parameters out in the order of their names, without gaps.
    ///
    /// # Errors
    /// [`DuplicateParameter`] when a name occurs twice.
    pub fn new(revision: TopologyRevision, mut specs: Vec<SegmentSpec>) -> Result<Self, DuplicateParameter> {
        specs.sort_by(|a, b| a.name.cmp(&b.name));
        if let Some(pair) = specs.windows(2).find(|pair| pair[0].name == pair[1].name) {
            return Err(DuplicateParameter { name: pair[0].name.clone() });
        }
        let mut offset = 0;
        let segments = specs
            .into_iter()
            .map(|spec| {
                let len = spec.shape.iter().product();
                let segment = Segment { spec, offset, len };
                offset += len;
                segment
            })
            .collect();
        Ok(Self { revision, segments, num_elements: offset })
    }

    /// The topology this layout belongs to.
    #[must_use]
    pub fn revision(&self) -> TopologyRevision {
        self.revision
    }

    /// Segments in the order of their names.
    #[must_use]
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Elements of all parameters (P).
    #[must_use]
    pub fn num_elements(&self) -> usize {
        self.num_elements
    }

    /// Elements that belong to `owner`.
    #[must_use]
    pub fn num_elements_of(&self, owner: Owner) -> usize {
        self.segments.iter().filter(|s| s.spec.owner == owner).map(|s| s.len).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(name: &str, shape: &[usize]) -> SegmentSpec {
        SegmentSpec { name: name.into(), shape: shape.into(), owner: Owner::Host, isolated: false }
    }

    #[test]
    fn the_order_of_creation_does_not_matter() {
        let names = ["a.bias", "a.weight", "b.weight", "c"];
        let specs: Vec<_> = names.iter().map(|n| spec(n, &[2, 3])).collect();
        let mut shuffled = specs.clone();
        shuffled.rotate_left(2);
        shuffled.swap(0, 1);
        let straight = ParameterLayout::new(TopologyRevision(1), specs).unwrap();
        assert_eq!(straight, ParameterLayout::new(TopologyRevision(1), shuffled).unwrap());
        assert_eq!(straight.segments()[1].offset, 6);
        assert_eq!(straight.num_elements(), 24);
    }

    #[test]
    fn a_name_may_occur_once() {
        let error = ParameterLayout::new(TopologyRevision(0), vec![spec("w", &[1]), spec("w", &[2])]).unwrap_err();
        assert_eq!(error.to_string(), "two parameters are named `w`");
    }
}
