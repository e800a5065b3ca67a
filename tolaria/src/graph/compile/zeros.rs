//! Passes: zeros that are filled in and never needed.

use super::block::Region;
use super::kernel::{Effect, Kernel};
use super::liveness::stays;
use super::node::NodeKind;
use super::pass::{Pass, PassReport};
use super::program::Program;
use super::ranges::ByteSet;

/// Drops memsets to zero of which no byte is read before it is overwritten.
#[must_use]
pub fn drop_overwritten_zeros(program: &Program) -> (Program, PassReport) {
    let is_zeroing = |kind: &NodeKind| matches!(kind, NodeKind::Memset { pattern, .. } if pattern.is_zero());
    let rewritten = program.retain(&stays(program, is_zeroing));
    let num_dropped = program.nodes.len() - rewritten.nodes.len();
    let report = PassReport::new(Pass::OverwrittenZeros, program, &rewritten, num_dropped);
    (rewritten, report)
}

/// Turns sums with a term that a memset made zero into copies of the other term.
///
/// A copy keeps `-0.0`, which the sum makes `+0.0`: of floating-point numbers the results are equal and may differ in
/// their bits. The memset stays; it is for [`drop_overwritten_zeros`] to drop where nobody else reads it.
#[must_use]
pub fn copy_zero_sums(program: &Program) -> (Program, PassReport) {
    let mut zeros = ByteSet::default();
    let mut rewritten = program.clone();
    let mut num_copies = 0;
    for node in &mut rewritten.nodes {
        if let NodeKind::Kernel(kernel) = &node.kind
            && let Some((source, destination)) = as_copy(kernel, &zeros)
        {
            node.kind = NodeKind::Copy { source, destination };
            num_copies += 1;
        }
        match &node.kind {
            NodeKind::Memset { region, pattern } if pattern.is_zero() => zeros.insert(region),
            kind => kind.writes().iter().for_each(|write| zeros.remove(&write.region)),
        }
    }
    let report = PassReport::new(Pass::ZeroSums, program, &rewritten, num_copies);
    (rewritten, report)
}

/// Source and destination of the copy that a kernel amounts to where the bytes in `zeros` are zero.
fn as_copy(kernel: &Kernel, zeros: &ByteSet) -> Option<(Region, Region)> {
    let Effect::Sum { terms: [left, right], output } = kernel.effect else { return None };
    let destination = kernel.pointers[output].write?.region;
    let (left, right) = (kernel.pointers[left].read?, kernel.pointers[right].read?);
    let source = if zeros.covers(&left) {
        right
    } else if zeros.covers(&right) {
        left
    } else {
        return None;
    };
    // Zero added to a value in place leaves nothing to copy: such a launch is rare and stays.
    (source != destination).then_some((source, destination))
}
