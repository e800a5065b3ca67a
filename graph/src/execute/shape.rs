//! What an executor knows of a shape of steps.

use crate::key::GraphKey;
use crate::retest::Hypothesis;

#[derive(Debug)]
pub(super) struct Shape<I, R> {
    pub(super) key: GraphKey,
    pub(super) inputs: I,
    pub(super) num_warm: u32,
    pub(super) is_captured: bool,
    /// Whether its graph was once not compiled: then it is not tried again.
    pub(super) is_compile_refused: bool,
    /// What was captured, until it was found to be wrong. It outlives the graph: replays are to be confirmed after that
    /// has made room for another one, too.
    pub(super) tested: Option<Tested<R>>,
    pub(super) used: u64,
}

/// What was captured, and how far it was confirmed.
#[derive(Debug)]
pub(super) struct Tested<R> {
    pub(super) recorded: R,
    pub(super) hypothesis: Hypothesis,
    /// The first step after the last test.
    pub(super) since: u64,
}

impl<I, R> Shape<I, R> {
    /// Whether it is to be tested before its next replay.
    pub(super) fn is_due(&self) -> bool {
        self.tested.as_ref().is_some_and(|tested| tested.hypothesis.is_due())
    }
}
