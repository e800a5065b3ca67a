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
    Pass::Dead.run(program)
}

pub(super) fn without_dead(program: Program) -> (Program, usize) {
    let can_go = |kind: &NodeKind| match kind {
        NodeKind::Kernel(Kernel { effect, .. }) => *effect != Effect::Unknown,
        NodeKind::Memset { .. } | NodeKind::Copy { .. } | NodeKind::Empty => true,
        NodeKind::Alloc(_) | NodeKind::Free(_) => false,
    };
    let (num_before, keep) = (program.nodes.len(), stays(&program, can_go));
    let living = program.retain(&keep).without_unused_blocks();
    let num_dropped = num_before - living.nodes.len();
    (living, num_dropped)
}
