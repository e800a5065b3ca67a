//! What a capture found, and what it cost.

use std::collections::BTreeMap;
use std::time::Duration;

use super::manager::CaptureCost;

/// Nodes of a graph by kind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeCounts {
    /// Kernel launches.
    pub kernels: usize,
    /// Fills.
    pub memsets: usize,
    /// Copies within the device.
    pub device_copies: usize,
    /// Allocations.
    pub allocations: usize,
    /// Releases of allocations.
    pub frees: usize,
    /// All others.
    pub others: usize,
    /// Kernel launches by name.
    pub kernels_by_name: BTreeMap<String, usize>,
}

impl NodeCounts {
    /// All nodes.
    #[must_use]
    pub fn total(&self) -> usize {
        self.kernels + self.memsets + self.device_copies + self.allocations + self.frees + self.others
    }
}

/// What a capture took, by part.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CaptureTimes {
    /// Switching the stream to recording.
    pub begin: Duration,
    /// Running the region while it is recorded.
    pub record: Duration,
    /// Switching back.
    pub end: Duration,
    /// Looking the graph through.
    pub inspect: Duration,
    /// Making it executable.
    pub instantiate: Duration,
    /// Asking for its transfer to the device.
    pub upload: Duration,
}

impl CaptureTimes {
    /// Recording, with everything around it up to an inspected graph.
    #[must_use]
    pub fn capture(&self) -> Duration {
        self.begin + self.record + self.end + self.inspect
    }

    /// From the start to a graph that can be replayed.
    #[must_use]
    pub fn total(&self) -> Duration {
        self.capture() + self.instantiate + self.upload
    }
}

/// A finished capture.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CaptureReport {
    /// Its nodes.
    pub nodes: NodeCounts,
    /// Bytes that its allocations ask for, in total over the graph; they share memory where their lives allow it.
    pub allocated_bytes: u64,
    /// Most bytes that its allocations hold at one time.
    pub peak_bytes: u64,
    /// Bytes by which the device's memory for graphs grew; absent when that is not known.
    pub reserved_bytes: Option<u64>,
    /// What it took.
    pub times: CaptureTimes,
}

impl CaptureReport {
    /// What the capture cost, as statistics count it: the upload belongs to making the graph executable.
    #[must_use]
    pub fn cost(&self) -> CaptureCost {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        CaptureCost {
            capture_ms: ms(self.times.capture()),
            instantiate_ms: ms(self.times.instantiate + self.times.upload),
            bytes: self.reserved_bytes,
        }
    }
}
