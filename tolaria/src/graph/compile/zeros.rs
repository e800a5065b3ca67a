//! Passes: zeros that are filled in and never needed.

use super::block::Region;
use super::fused::{Body, is_contiguous};
use super::kernel::Kernel;
use super::liveness::stays;
use super::node::NodeKind;
use super::pass::{Pass, PassReport};
use super::pointwise::{BinaryOp, Step};
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
/// the sign of zero. So only what a kernel left that is not pointwise is copied: a product or a reduction, which adds to
/// `+0.0` and leaves `-0.0` in rare cases only, as where everything it adds underflows. Sums of pointwise results keep
/// their addition, which costs nothing once it is fused. The memset stays; it is for [`drop_overwritten_zeros`] to drop where nobody else reads it.
#[must_use]
pub fn copy_zero_sums(program: &Program) -> (Program, PassReport) {
    let mut zeros = ByteSet::default();
    let mut computed = ByteSet::default();
    let mut rewritten = program.clone();
    let mut num_copies = 0;
    for node in &mut rewritten.nodes {
        if let NodeKind::Kernel(kernel) = &node.kind
            && let Some((source, destination)) = as_copy(kernel, &zeros)
            && computed.covers(&source)
        {
            node.kind = NodeKind::Copy { source, destination };
            num_copies += 1;
        }
        let is_computed = match &node.kind {
            NodeKind::Kernel(kernel) => Body::of(kernel).is_none(),
            // The sign of zero comes along.
            NodeKind::Copy { source, .. } => computed.covers(source),
            NodeKind::Memset { .. } | NodeKind::Alloc(_) | NodeKind::Free(_) | NodeKind::Empty => false,
        };
        for write in node.kind.writes() {
            if is_computed { computed.insert(&write.region) } else { computed.remove(&write.region) }
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
    let (terms, destination) = as_sum(&Body::of(kernel)?)?;
    let source = match terms.map(|term| zeros.covers(&term)) {
        [true, _] => terms[1],
        [false, true] => terms[0],
        [false, false] => return None,
    };
    // Zero added to a value in place leaves nothing to copy: such a launch is rare and stays.
    (source != destination).then_some((source, destination))
}

/// The terms of a sum of two contiguous tensors, and where it goes.
fn as_sum(body: &Body) -> Option<([Region; 2], Region)> {
    let [Step::Load(left), Step::Load(right), Step::Binary(BinaryOp::Add, [0, 1] | [1, 0])] = body.steps[..] else {
        return None;
    };
    let [store] = body.outputs[..] else { return None };
    let terms = [left, right].map(|operand| &body.operands[operand]);
    let is_plain = store.step == 2 && terms.iter().all(|access| is_contiguous(&access.dims));
    is_plain.then(|| (terms.map(|access| access.region), store.region))
}
