//! Pass: nodes whose results nobody reads go.

use super::fuel::Fuel;
use super::kernel::{Effect, Kernel};
use super::liveness::stays;
use super::node::NodeKind;
use super::program::Program;

/// Drops kernels, memsets and copies that write nothing which a later node or the owner of an external block reads,
/// empty nodes, and the allocations that nobody uses then. Launches of unknown kernels stay: they may do what no
/// pointer shows.
pub(super) fn drop_dead(program: Program, fuel: &mut Fuel) -> Program {
    let can_go = |kind: &NodeKind| match kind {
        NodeKind::Kernel(Kernel { effect, .. }) => *effect != Effect::Unknown,
        NodeKind::Memset { .. } | NodeKind::Copy { .. } | NodeKind::Empty => true,
        NodeKind::Alloc(_) | NodeKind::Free(_) => false,
    };
    let keep = stays(&program, can_go, fuel);
    program.retain(&keep).without_unused_blocks(fuel)
}
