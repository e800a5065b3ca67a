//! Passes: zeros that are filled in and never needed.

use super::block::Region;
use super::fuel::Fuel;
use super::fused::{Body, is_contiguous};
use super::kernel::{Effect, Kernel};
use super::liveness::stays;
use super::node::NodeKind;
use super::pointwise::{BinaryOp, Step};
use super::program::Program;
use super::ranges::ByteSet;

/// Drops memsets to zero of which no byte is read before it is overwritten.
pub(super) fn drop_overwritten_zeros(program: Program, fuel: &mut Fuel) -> Program {
    let is_zeroing = |kind: &NodeKind| matches!(kind, NodeKind::Memset { pattern, .. } if pattern.is_zero());
    let keep = stays(&program, is_zeroing, fuel);
    program.retain(&keep)
}

/// Turns sums with a term that a memset made zero into copies of the other term.
///
/// A copy keeps `-0.0`, which the sum makes `+0.0`: of floating-point numbers the results are equal and may differ in
/// the sign of zero. So only what a kernel left that is not pointwise is copied: a product or a reduction, which adds to
/// `+0.0` and leaves `-0.0` in rare cases only, as where everything it adds underflows. Sums of pointwise results keep
/// their addition, which costs nothing once it is fused. The memset stays; it is for
/// [`drop_overwritten_zeros`] to drop where nobody else reads it.
pub(super) fn copy_zero_sums(mut program: Program, fuel: &mut Fuel) -> Program {
    let mut zeros = ByteSet::default();
    let mut computed = ByteSet::default();
    for node in &mut program.nodes {
        if let NodeKind::Kernel(kernel) = &node.kind
            && let Some((source, destination)) = as_copy(kernel, &zeros)
            && computed.covers(&source)
            && fuel.burn()
        {
            node.kind = NodeKind::Copy { source, destination };
        }
        let is_computed = match &node.kind {
            // Of a valid program, every kernel that says what each element is says so without contradiction.
            NodeKind::Kernel(kernel) => match &kernel.effect {
                Effect::Unknown | Effect::Known => true,
                Effect::Pointwise(_) => false,
                Effect::Fused(fused) => fused.outputs.iter().all(|output| is_sum(&fused.steps, output.step)),
            },
            // The sign of zero comes along.
            NodeKind::Copy { source, .. } => computed.covers(source),
            NodeKind::Memset { .. } | NodeKind::Alloc(_) | NodeKind::Free(_) | NodeKind::Empty => false,
        };
        let is_stated =
            !matches!(&node.kind, NodeKind::Kernel(kernel) if matches!(kernel.effect, Effect::Unknown | Effect::Known));
        for write in node.kind.each_write() {
            // What it changes it may leave as it is.
            let is_changed = !is_stated && node.kind.each_read().any(|read| read.overlaps(&write.region));
            if is_changed && !zeros.covers(&write.region) {
                continue;
            }
            match (is_computed, write.is_full || zeros.covers(&write.region)) {
                (true, true) => computed.insert(&write.region),
                // What was there may still be.
                (true, false) => {}
                (false, _) => computed.remove(&write.region),
            }
        }
        if let NodeKind::Alloc(block) = node.kind {
            computed.insert(&Region::new(block, 0, program.blocks[block.0].size_bytes));
        }
        match &node.kind {
            NodeKind::Memset { region, pattern } if pattern.is_zero() => zeros.insert(region),
            kind => kind.each_write().for_each(|write| zeros.remove(&write.region)),
        }
    }
    program
}

/// Whether a step is a sum of a row: never `-0.0`.
fn is_sum(steps: &[Step], step: usize) -> bool {
    matches!(steps.get(step), Some(Step::Reduce(reduction, _)) if reduction.is_sum())
}

/// Source and destination of the copy that a kernel amounts to where the bytes in `zeros` are zero.
fn as_copy(kernel: &Kernel, zeros: &ByteSet) -> Option<(Region, Region)> {
    let steps = match &kernel.effect {
        Effect::Pointwise(pointwise) => &pointwise.steps,
        Effect::Fused(fused) => &fused.steps,
        Effect::Unknown | Effect::Known => return None,
    };
    // Most kernels compute something else: only of a sum the rest is looked at.
    let terms = sum_of(steps)?;
    let (terms, destination) = as_sum(&Body::of(kernel)?, terms)?;
    let source = match terms.map(|term| zeros.covers(&term)) {
        [true, _] => terms[1],
        [false, true] => terms[0],
        [false, false] => return None,
    };
    // Zero added to a value in place leaves nothing to copy: such a launch is rare and stays.
    (source != destination).then_some((source, destination))
}

/// The terms of a sum of two contiguous tensors, and where it goes.
fn as_sum(body: &Body, operands: [usize; 2]) -> Option<([Region; 2], Region)> {
    let [store] = body.outputs[..] else { return None };
    let terms = operands.map(|operand| &body.operands[operand]);
    let is_plain = store.step == 2 && terms.iter().all(|access| is_contiguous(&access.dims));
    is_plain.then(|| (terms.map(|access| access.region), store.region))
}

/// The operands of two loads and their sum.
fn sum_of(steps: &[Step]) -> Option<[usize; 2]> {
    match *steps {
        [Step::Load(left), Step::Load(right), Step::Binary(BinaryOp::Add, [0, 1] | [1, 0])] => Some([left, right]),
        _ => None,
    }
}
