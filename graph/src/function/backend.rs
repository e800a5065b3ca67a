//! What records and replays for a function: a session of the device, or a stand-in in tests.

use std::fmt;

use candle_core::{Device, Result, Tensor};
use leyline::region::Eager;

use crate::reason::Refusal;
use crate::stats::CaptureCost;
use crate::{Captured, Session};

/// What records and replays. Tests put a device in its place that does so on the CPU.
pub(crate) trait Backend: Clone + fmt::Debug {
    /// A recorded region.
    type Graph: fmt::Debug;

    fn open(device: &Device) -> std::result::Result<Self, Refusal>;

    /// Confirms that this thread may use the device.
    fn enter(&self) -> std::result::Result<(), Refusal>;

    fn warm<R>(&self, work: impl FnOnce() -> R) -> R;

    fn capture(
        &self,
        eager: &mut Eager,
        region: impl FnOnce() -> Result<()>,
    ) -> std::result::Result<Self::Graph, Refusal>;

    /// Records the region once more; fails when that is not what was captured.
    fn test(
        graph: &Self::Graph,
        eager: &mut Eager,
        region: impl FnOnce() -> Result<()>,
    ) -> std::result::Result<(), Refusal>;

    fn hold(graph: &mut Self::Graph, name: String, tensor: &Tensor) -> Result<()>;

    fn replay(graph: &Self::Graph) -> std::result::Result<(), Refusal>;

    fn cost(graph: &Self::Graph) -> CaptureCost;
}

impl Backend for Session {
    type Graph = Captured;

    fn open(device: &Device) -> std::result::Result<Self, Refusal> {
        Self::open(device)
    }

    fn enter(&self) -> std::result::Result<(), Refusal> {
        self.enter()
    }

    fn warm<R>(&self, work: impl FnOnce() -> R) -> R {
        self.warm(work)
    }

    fn capture(
        &self,
        eager: &mut Eager,
        region: impl FnOnce() -> Result<()>,
    ) -> std::result::Result<Captured, Refusal> {
        // The wrapper owns the function and with it what that owns, and keeps its buffers beside the graph.
        eager.record(|recording| self.record(recording, |_| region()))
    }

    fn test(
        graph: &Captured,
        eager: &mut Eager,
        region: impl FnOnce() -> Result<()>,
    ) -> std::result::Result<(), Refusal> {
        graph.test(eager, |_| region())
    }

    fn hold(graph: &mut Captured, name: String, tensor: &Tensor) -> Result<()> {
        graph.hold(name, tensor)
    }

    fn replay(graph: &Captured) -> std::result::Result<(), Refusal> {
        graph.replay()
    }

    fn cost(graph: &Captured) -> CaptureCost {
        graph.report().cost()
    }
}
