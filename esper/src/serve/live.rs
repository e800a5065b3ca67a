//! What the thread that trains tells, at the cost of a store: how far the run is.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use serde::Serialize;

/// How far a run is.
#[derive(Debug, Default)]
pub(crate) struct Live {
    epochs: AtomicU64,
    revision: AtomicU64,
    step: AtomicU64,
    state: AtomicU8,
}

/// [`Live`] at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) struct Now {
    pub(super) state: State,
    /// Epochs completed.
    pub(super) epoch: u64,
    /// How often the run folder has changed: a run that went back has epochs of the same numbers again.
    pub(super) revision: u64,
    /// Optimizer steps taken.
    pub(super) step: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum State {
    /// No step was taken yet.
    #[default]
    Starting,
    Training,
    /// Its results are written.
    Ended,
}

impl Live {
    /// A step was taken.
    pub(crate) fn step(&self, step: u64) {
        self.step.store(step, Ordering::Relaxed);
        self.set_state(State::Training);
    }

    /// So many epochs are completed, and their lines, and no others, are in the run folder.
    pub(crate) fn epochs(&self, epochs: u64) {
        self.epochs.store(epochs, Ordering::Relaxed);
        self.revision.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn set_state(&self, state: State) {
        self.state.store(state as u8, Ordering::Relaxed);
    }

    pub(super) fn now(&self) -> Now {
        let states = [State::Starting, State::Training, State::Ended];
        let state = states.into_iter().find(|&state| state as u8 == self.state.load(Ordering::Relaxed));
        let [epoch, revision, step] =
            [&self.epochs, &self.revision, &self.step].map(|number| number.load(Ordering::Relaxed));
        Now { state: state.unwrap_or_default(), epoch, revision, step }
    }
}
