//! Values of slots that seeds of later slots see.

use std::collections::BTreeMap;

use candle_core::{Result, Tensor};

use crate::host::Host;

/// Those of one pass, by the place of the slot.
#[derive(Debug, Clone, Default)]
pub(super) struct Seen(BTreeMap<usize, Tensor>);

impl Seen {
    /// Keeps the value of a slot behind its seeds, where a later slot sees it.
    pub(super) fn keep(&mut self, host: &Host, slot_index: usize, h: &Tensor) {
        if host.is_seen(slot_index) {
            self.0.insert(slot_index, h.clone());
        }
    }

    /// What the seeds of a slot see; none where that is its own value.
    pub(super) fn at(&self, host: &Host, slot_index: usize) -> Option<&Tensor> {
        self.0.get(&host.slots()[slot_index].sees?)
    }

    /// Those of the first samples, through which no gradient flows.
    pub(super) fn detached(&self, num_samples: usize) -> Result<Self> {
        let part = |(index, h): (&usize, &Tensor)| Ok((*index, h.narrow(0, 0, num_samples)?.detach()));
        self.0.iter().map(part).collect::<Result<_>>().map(Self)
    }
}
