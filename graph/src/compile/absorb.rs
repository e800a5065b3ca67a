//! Pass: kernels add what was added to their output.

use std::collections::BTreeMap;

use super::adding::Adding;
use super::block::{Block, BlockId, Lifetime, Region};
use super::dependencies::recovered;
use super::fuel::Fuel;
use super::fused::{Body, is_contiguous};
use super::kernel::{Effect, Kernel};
use super::lifetimes;
use super::node::NodeKind;
use super::pointwise::{BinaryOp, ElementType, Step};
use super::program::Program;
use super::work::did;

/// Most operations between a kernel and the sum with its output that are looked at.
const MAX_BETWEEN: usize = 1 << 10;
/// What addresses of operands are a multiple of.
const ALIGNMENT: usize = 16;

/// A sum that is nothing but the output of a kernel, read by nobody else, and a tensor: the kernel forms it, and rounds it to
/// `bf16` where that was done along the way. The tensor must be there when the kernel runs.
///
/// Where nothing can be absorbed the program stays as it is; else it has the dependencies that its data ask for, as after
/// [`Pass::Fuse`](super::Pass::Fuse).
pub(super) fn absorb_sums(mut program: Program, fuel: &mut Fuel) -> Program {
    let can_add = |kind: &NodeKind| matches!(kind, NodeKind::Kernel(Kernel { effect: Effect::Adding(_), .. }));
    if !program.nodes.iter().any(|node| can_add(&node.kind)) {
        return program;
    }
    let uses = Uses::of(&program);
    let mut has_changed = false;
    for index in 0..program.nodes.len() {
        let NodeKind::Kernel(kernel) = &program.nodes[index].kind else { continue };
        let Effect::Adding(adding) = kernel.effect else { continue };
        let Some((at, sum)) = uses.sum_after(&program, index, kernel, adding) else { continue };
        if !fuel.burn() {
            break;
        }
        if let NodeKind::Kernel(kernel) = &mut program.nodes[index].kind {
            adding.give(kernel, sum.addend, sum.sum, sum.rounded);
        }
        program.nodes[at].kind = NodeKind::Empty;
        has_changed = true;
    }
    if !has_changed {
        return program;
    }
    let Program { blocks, nodes } = program;
    recovered(lifetimes::chain(blocks, lifetimes::operations(nodes)))
}

/// A sum that a kernel may form.
struct Sum {
    addend: Region,
    sum: Region,
    rounded: Option<Region>,
}

/// The operations that use each block, in the order listed.
struct Uses(BTreeMap<BlockId, Vec<usize>>);

impl Uses {
    fn of(program: &Program) -> Self {
        let mut uses: BTreeMap<BlockId, Vec<usize>> = BTreeMap::new();
        for (index, node) in program.nodes.iter().enumerate() {
            for block in node.kind.blocks() {
                uses.entry(block).or_default().push(index);
            }
        }
        Self(uses)
    }

    /// The sum with the output of a kernel, and where it stands.
    fn sum_after(&self, program: &Program, index: usize, kernel: &Kernel, adding: Adding) -> Option<(usize, Sum)> {
        if adding.body(kernel).is_some() {
            return None;
        }
        let output = adding.region(kernel)?;
        let [writer, at] = *self.0.get(&output.block)?.as_slice() else { return None };
        if writer != index || at - index > MAX_BETWEEN {
            return None;
        }
        let NodeKind::Kernel(reader) = &program.nodes[at].kind else { return None };
        let sum = sum_of(&Body::of(reader)?, output, adding)?;
        let is_own = |region: &Region| is_own(&program.blocks, region);
        let made = || [Some(sum.sum), sum.rounded].into_iter().flatten();
        let is_placed = is_own(&output)
            && is_own(&sum.addend)
            && made().all(|region| is_own(&region) && region.block != sum.addend.block)
            && sum.sum.start.abs_diff(output.start).is_multiple_of(ALIGNMENT);
        // What the kernel itself touches is touched row by row.
        let is_clear = |kind: &NodeKind, is_kernel: bool| {
            let writes = kind.each_write().map(|write| write.region);
            let touched = kind.each_read().chain(writes.clone());
            made().all(|made| touched.clone().all(|region| !region.overlaps(&made)))
                && writes.filter(|region| !(is_kernel && *region == output)).all(|region| !region.overlaps(&sum.addend))
        };
        did(at - index);
        let is_free = (index..at).all(|between| is_clear(&program.nodes[between].kind, between == index));
        (is_placed && is_free).then_some((at, sum))
    }
}

/// Whether a region begins where vectors may, in memory that no one outside sees.
fn is_own(blocks: &[Block], region: &Region) -> bool {
    blocks[region.block.0].lifetime == Lifetime::Graph && region.start.is_multiple_of(ALIGNMENT)
}

/// What an element-wise kernel adds to `output`, if it does that and perhaps rounds the sum, and nothing else.
fn sum_of(body: &Body, output: Region, adding: Adding) -> Option<Sum> {
    let Adding { element, .. } = adding;
    let is_plain = body.columns == 1
        && body.elements * element.size_bytes() == output.len()
        && body.operands.iter().all(|access| access.element == element && is_contiguous(&access.dims));
    let [one, other] = body.operands.as_slice() else { return None };
    let addend = match [one.region == output, other.region == output] {
        [true, false] => other.region,
        [false, true] => one.region,
        [true, true] | [false, false] => return None,
    };
    let is_load = |step: usize| matches!(body.steps.get(step), Some(Step::Load(_)));
    let is_sum = |step: usize| matches!(body.steps.get(step), Some(Step::Binary(BinaryOp::Add, [a, b])) if a != b && is_load(*a) && is_load(*b));
    let is_rounded =
        |step: usize| matches!(body.steps.get(step), Some(Step::Convert(ElementType::Bf16, sum)) if is_sum(*sum));
    let (mut sum, mut rounded) = (None, None);
    for store in &body.outputs {
        let place = match store.element {
            of if of == element && is_sum(store.step) => &mut sum,
            ElementType::Bf16 if adding.rounded.is_some() && is_rounded(store.step) => &mut rounded,
            _ => return None,
        };
        if store.is_per_row || place.replace(store.region).is_some() {
            return None;
        }
    }
    (is_plain && addend.block != output.block).then_some(Sum { addend, sum: sum?, rounded })
}
