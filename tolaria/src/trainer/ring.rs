//! Known-good states in the memory of the device: what a run goes back to first.

use std::collections::{BTreeMap, VecDeque};

use leyline::durable::SavedState;
use leyline::id::StepIndex;

use crate::checkpoint::Snapshot;

/// States of one run, the oldest first. The latest is known to be good once steps after it were.
#[derive(Debug, Default)]
pub(super) struct Ring {
    states: VecDeque<Kept>,
}

#[derive(Debug)]
struct Kept {
    snapshot: Snapshot,
    bytes: u64,
    is_good: bool,
}

impl Ring {
    /// Memory of all states.
    pub(super) fn bytes(&self) -> u64 {
        self.states.iter().map(|kept| kept.bytes).sum()
    }

    /// Makes room for a state of about so many bytes, or of the size of the last one. The oldest ones go, but never the last
    /// good one. False where it does not fit beside that one.
    pub(super) fn make_room(&mut self, budget: u64, bytes: u64) -> bool {
        let bytes = self.states.back().map_or(bytes, |last| last.bytes.max(bytes));
        while self.bytes().saturating_add(bytes) > budget {
            if self.num_good() < 2 {
                return false;
            }
            self.states.pop_front();
        }
        true
    }

    /// Keeps a state, which may turn out not to be good, in the place of one of which that is not known.
    pub(super) fn push(&mut self, snapshot: Snapshot) {
        self.forget_doubtful();
        let bytes = size(&snapshot.components);
        self.states.push_back(Kept { snapshot, bytes, is_good: false });
    }

    /// The steps since the latest state were good, and so is that one.
    pub(super) fn confirm(&mut self) {
        self.states.iter_mut().for_each(|kept| kept.is_good = true);
    }

    /// Lets go of a state that is not known to be good.
    pub(super) fn forget_doubtful(&mut self) {
        self.states.retain(|kept| kept.is_good);
    }

    /// The newest state that is known to be good. A copy shares its tensors.
    pub(super) fn newest(&self) -> Option<Snapshot> {
        self.states.iter().rev().find(|kept| kept.is_good).map(|kept| kept.snapshot.clone())
    }

    /// Lets go of the newest good state, for it did not help.
    pub(super) fn drop_newest(&mut self) {
        self.forget_doubtful();
        self.states.pop_back();
    }

    /// States that are known to be good.
    pub(super) fn num_good(&self) -> usize {
        self.states.iter().filter(|kept| kept.is_good).count()
    }

    /// Whether there is no state at all.
    pub(super) fn is_empty(&self) -> bool {
        self.states.is_empty()
    }

    /// Where the latest state was taken.
    pub(super) fn last_step(&self) -> Option<StepIndex> {
        self.states.back().map(|kept| kept.snapshot.meta.step)
    }
}

/// Bytes that the components of a state hold in memory.
pub(super) fn size(components: &BTreeMap<String, SavedState>) -> u64 {
    let of_component = |state: &SavedState| {
        let tensors = state.tensors.values().map(|tensor| tensor.elem_count() * tensor.dtype().size_in_bytes());
        (tensors.sum::<usize>() + state.json.len()) as u64
    };
    components.values().map(of_component).sum()
}
