//! What a kernel stores in two places is stored in one.

use crate::compile::block::Region;
use crate::compile::copies::{forward, users};
use crate::compile::fuel::Fuel;
use crate::compile::fused::{Body, Store};
use crate::compile::kernel::Effect;
use crate::compile::node::NodeKind;
use crate::compile::program::Program;

/// Lets those who read one of two results with the same elements read the other, where nobody writes over either too early: the second
/// is a copy of the first, and is not stored then.
pub(super) fn join_results(program: &mut Program, fuel: &mut Fuel) {
    let mut users = users(program);
    for node in 0..program.nodes.len() {
        let NodeKind::Kernel(kernel) = &program.nodes[node].kind else { continue };
        let Some(mut body) = Body::of(kernel).filter(|_| matches!(kernel.effect, Effect::Fused(_))) else { continue };
        let num_before = body.outputs.len();
        for [first, second] in same_results(&body) {
            let is_there = |region: Region| body.outputs.iter().any(|store| store.region == region);
            if is_there(first) && is_there(second) && forward(program, &mut users, node, [first, second], fuel) {
                body.retain_outputs(|store| store.region != second);
            }
        }
        if body.outputs.len() < num_before {
            program.nodes[node].kind = NodeKind::Kernel(body.into_kernel());
        }
    }
}

/// Pairs of results with the same elements, each both ways around.
fn same_results(body: &Body) -> Vec<[Region; 2]> {
    let mut pairs = Vec::new();
    for one in &body.outputs {
        let is_same =
            |other: &&Store| other.region != one.region && (other.step, other.is_per_row) == (one.step, one.is_per_row);
        pairs.extend(body.outputs.iter().filter(is_same).map(|other| [one.region, other.region]));
    }
    pairs
}
