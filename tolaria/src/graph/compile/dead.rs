//! Pass: nodes whose results nobody reads go.

use super::kernel::{Effect, Kernel};
use super::liveness::stays;
use super::node::NodeKind;
use super::pass::{Pass, PassReport};
use super::program::Program;

/// Drops kernels, memsets and copies that write nothing which a later node or the owner of an external block reads,
/// empty nodes, and the allocations that nobody uses then. Launches of unknown kernels stay: they may do what no
/// pointer shows.
#[must_use]
pub fn drop_dead(program: &Program) -> (Program, PassReport) {
    let can_go = |kind: &NodeKind| match kind {
        NodeKind::Kernel(Kernel { effect, .. }) => *effect != Effect::Unknown,
        NodeKind::Memset { .. } | NodeKind::Copy { .. } | NodeKind::Empty => true,
        NodeKind::Alloc(_) | NodeKind::Free(_) => false,
    };
    let living = program.retain(&stays(program, can_go)).without_unused_blocks();
    let num_dropped = program.nodes.len() - living.nodes.len();
    let report = PassReport::new(Pass::Dead, program, &living, num_dropped);
    (living, report)
}
