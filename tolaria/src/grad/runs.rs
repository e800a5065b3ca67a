//! Neighboring segments with one owner as one run: kernels have less to loop over.

use std::ops::Range;

use leyline::layout::{Owner, ParameterLayout};

/// Elements of the flat vector that belong together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) range: Range<usize>,
    pub(crate) owner: Owner,
    pub(crate) isolated: bool,
}

/// The runs of the flat vector, in order, without gaps and without empty ones.
pub(crate) fn runs(layout: &ParameterLayout) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for segment in layout.segments().iter().filter(|segment| segment.len > 0) {
        let (owner, isolated) = (segment.spec.owner, segment.spec.isolated);
        match runs.last_mut() {
            Some(last) if last.owner == owner && last.isolated == isolated => last.range.end += segment.len,
            _ => runs.push(Run { range: segment.offset..segment.offset + segment.len, owner, isolated }),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{HOST, layout, seed};

    #[test]
    fn neighbors_with_one_owner_become_one_run() {
        let layout = layout(&[
            ("a", 2, HOST, false),
            ("b", 0, seed(1), false),
            ("c", 3, HOST, false),
            ("d", 1, seed(1), false),
            ("e", 2, seed(1), true),
            ("f", 2, seed(1), true),
        ]);
        let run = |range, owner, isolated| Run { range, owner, isolated };
        assert_eq!(runs(&layout), [run(0..5, HOST, false), run(5..6, seed(1), false), run(6..10, seed(1), true)]);
    }
}
