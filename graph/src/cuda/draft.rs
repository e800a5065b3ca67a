//! A recording that is not made executable: what a compiler takes.

use std::fmt::{self, Display};
use std::ops::Range;
use std::thread::{self, ThreadId};

use leyline::region::Recording;

use super::capture::RecordedGraph;
use super::raw::RawGraph;
use super::read::Reading;
use super::session::Session;
use crate::compile::{Recorded, compare_recordings, forget_stack};
use crate::launch::{Declared, collect};
use crate::reason::Refusal;

/// A recorded region that was not made executable, with what its launches said they read and write.
pub struct Draft {
    pub(super) graph: RawGraph,
    stack: Range<u64>,
    pub(super) declared: Vec<Declared>,
    /// Kernels of the recording belong to it.
    pub(super) session: Session,
    /// The constants that the region uploads live as long as this thread: candle keeps them per thread.
    pub(super) thread: ThreadId,
    num_nodes: usize,
}

impl Session {
    /// Records `region`, inside a region that is open already, under the rules of [`Session::capture`]. Nothing in it
    /// runs, then or later: the draft is only read. What it consists of is looked through when it is read, so that
    /// little more than the recording itself holds up the caller.
    ///
    /// # Errors
    /// The [`Refusal`] says which rule was broken; the device can be used as before.
    pub fn draft<E: Display>(
        &self,
        recording: &Recording,
        region: impl FnOnce(&Recording) -> Result<(), E>,
    ) -> Result<Draft, Refusal> {
        let (recorded, declared) = collect(|| self.record_graph(recording, region));
        let RecordedGraph { graph, stack, .. } = recorded?;
        let num_nodes = self.check_balance(&graph)?;
        Ok(Draft { graph, stack, declared, session: self.clone(), thread: thread::current().id(), num_nodes })
    }
}

impl Draft {
    /// Confirms that this is the work that was recorded before: nothing but the places of its own memory may differ.
    ///
    /// # Errors
    /// [`Refusal::FrozenValue`].
    /// # Sync
    /// none
    pub(crate) fn agrees_with(&self, recorded: &Recorded) -> Result<(), Refusal> {
        // What was declared of launches is left aside in both: it is for the compiler.
        let mut again = Reading::of(&self.graph, &[])?.recorded;
        forget_stack(&mut again, &self.stack);
        compare_recordings(recorded, &again).map_err(|error| Refusal::frozen(&error))
    }
}

impl fmt::Debug for Draft {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Draft")
            .field("nodes", &self.num_nodes)
            .field("declared", &self.declared.len())
            .finish_non_exhaustive()
    }
}
