//! Replayed steps beside the CUDA graph of the same work in PyTorch, and where their time goes.

use std::fmt;

use crate::models::NAMES;
use crate::result::BenchResult;

/// One work in both.
#[derive(Debug, Clone, PartialEq)]
pub struct PeerRow {
    /// The work.
    pub work: &'static str,
    /// Median of a replayed step, µs.
    pub replay_us: f64,
    /// Median of the peer's graph, µs.
    pub peer_us: f64,
    /// Of the replay, the time of one graph on the device, µs; `ref` replays four.
    pub device_us: f64,
    /// Nodes of the graph: kernels, fills, copies, allocations and releases, others.
    pub nodes: [f64; 5],
}

/// The works that both results hold.
#[derive(Debug, Clone, PartialEq)]
pub struct PeerRatios {
    /// In the order of the works.
    pub rows: Vec<PeerRow>,
}

impl PeerRatios {
    /// From a result of `graph-bench` and one of `peer-torch`; works that one of them lacks are left out.
    #[must_use]
    pub fn new(graphs: &BenchResult, peer: &BenchResult) -> Self {
        let row = |work: &'static str| {
            let ours = |what: &str| Some(graphs.measurements.get(&format!("{work}.{what}"))?.median);
            let nodes = ["kernels", "memsets", "copies", "memory", "others"].map(|kind| ours(&format!("nodes.{kind}")));
            let [Some(kernels), Some(fills), Some(copies), Some(memory), Some(others)] = nodes else { return None };
            Some(PeerRow {
                work,
                replay_us: ours("replay")?,
                peer_us: peer.measurements.get(&format!("torch.{work}.graph"))?.median,
                device_us: ours("replay.device")?,
                nodes: [kernels, fills, copies, memory, others],
            })
        };
        Self { rows: NAMES.into_iter().filter_map(row).collect() }
    }
}

impl fmt::Display for PeerRatios {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "work    replay us  peer us  ratio  device us  kernels  fills  copies  memory  others")?;
        for row in &self.rows {
            let [kernels, fills, copies, memory, others] = row.nodes;
            writeln!(
                f,
                "{:<6} {:>10.1} {:>8.1} {:>6.2} {:>10.1} {kernels:>8} {fills:>6} {copies:>7} {memory:>7} {others:>7}",
                row.work,
                row.replay_us,
                row.peer_us,
                row.replay_us / row.peer_us,
                row.device_us,
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn committed(name: &str) -> BenchResult {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("perf/wp100");
        BenchResult::read(&folder.join(format!("{name}.json"))).unwrap()
    }

    #[test]
    fn committed_results_give_a_row_per_work() {
        let ratios = PeerRatios::new(&committed("graph-bench"), &committed("peer-torch"));
        assert_eq!(ratios.rows.iter().map(|row| row.work).collect::<Vec<_>>(), NAMES);
        assert!(ratios.rows.iter().all(|row| row.replay_us > row.device_us && row.peer_us > 0.0), "{ratios}");
        assert_eq!(ratios.to_string().lines().count(), 1 + NAMES.len());
    }

    #[test]
    fn a_work_that_one_side_lacks_is_left_out() {
        let mut peer = committed("peer-torch");
        peer.measurements.remove("torch.mlp.graph");
        let works: Vec<_> =
            PeerRatios::new(&committed("graph-bench"), &peer).rows.into_iter().map(|row| row.work).collect();
        assert_eq!(works, ["ref", "tfm5m"]);
    }
}
