//! Pass: kernels add what was added to their output.

use std::collections::BTreeMap;

use super::adding::{Adding, Place, Sum};
use super::block::{Block, BlockId, Lifetime, Region};
use super::dependencies::recovered;
use super::fuel::Fuel;
use super::fused::{Body, is_contiguous};
use super::kernel::{Effect, Kernel, WORD_ALIGNMENT};
use super::lifetimes;
use super::node::NodeKind;
use super::pointwise::{BinaryOp, ElementType, Step};
use super::program::Program;
use super::work::did;

/// Most operations between a kernel and the sum with its output that are looked at.
const MAX_BETWEEN: usize = 1 << 10;

/// A sum that is nothing but the output of a kernel, read by nobody else, and a tensor: the kernel forms it, and rounds it to
/// `bf16` where that was done along the way. The tensor must be there when the kernel runs, which then waits for it, and all of it
/// be memory of the graph's own.
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
        let Some((at, made)) = uses.sum_after(&program, index, kernel, adding) else { continue };
        if !fuel.burn() {
            break;
        }
        program.nodes[index].kind = NodeKind::Kernel(made);
        program.nodes[at].kind = NodeKind::Empty;
        has_changed = true;
    }
    if !has_changed {
        return program;
    }
    let Program { blocks, nodes } = program;
    recovered(lifetimes::chain(blocks, lifetimes::operations(nodes)))
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

    /// Where the sum with the output of a kernel stands, and the kernel with it.
    fn sum_after(&self, program: &Program, index: usize, kernel: &Kernel, adding: Adding) -> Option<(usize, Kernel)> {
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
        let places = || [Some(sum.sum), sum.rounded].into_iter().flatten().map(|place| place.region);
        let is_own = |region: Region| is_own(&program.blocks, &region);
        if !(is_own(output) && is_own(sum.addend) && places().all(is_own)) {
            return None;
        }
        let is_clear = |kind: &NodeKind| {
            let writes = kind.each_write().map(|write| write.region);
            places().all(|place| kind.each_read().chain(writes.clone()).all(|region| !region.overlaps(&place)))
                && writes.clone().all(|region| !region.overlaps(&sum.addend))
        };
        did(at - index);
        let is_free = (index + 1..at).all(|between| is_clear(&program.nodes[between].kind));
        // What the kernel itself touches is not in the way either.
        Some((at, adding.given_to(kernel, &sum).filter(|_| is_free)?))
    }
}

/// Whether a region begins where vectors may, in memory that no one outside sees.
fn is_own(blocks: &[Block], region: &Region) -> bool {
    blocks[region.block.0].lifetime == Lifetime::Graph && region.start.is_multiple_of(WORD_ALIGNMENT)
}

/// What a step of a sum is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Value {
    Operand(usize),
    Zero,
    /// Of both operands, and 0 perhaps.
    Sum(bool),
    /// That rounded to `bf16`, and 0 perhaps.
    Rounded(bool),
    Other,
}

/// What an element-wise kernel adds to `output`, if it does that and perhaps rounds the sum, and nothing else.
fn sum_of(body: &Body, output: Region, adding: Adding) -> Option<Sum> {
    let element = adding.element;
    let is_plain = body.columns == 1
        && body.elements * element.size_bytes() == output.len()
        && body.operands.iter().all(|access| access.element == element && is_contiguous(&access.dims));
    let addend = match body.operands.as_slice() {
        [one, other] if is_plain && one.region == output => other.region,
        [other, one] if is_plain && one.region == output => other.region,
        _ => return None,
    };
    let mut values: Vec<Value> = Vec::with_capacity(body.steps.len());
    for step in &body.steps {
        values.push(match *step {
            Step::Load(operand) => Value::Operand(operand),
            Step::Constant(_, 0) => Value::Zero,
            Step::Convert(ElementType::Bf16, of) if values[of] == Value::Sum(false) => Value::Rounded(false),
            Step::Binary(BinaryOp::Add, [a, b]) => match (values[a], values[b]) {
                (Value::Operand(a), Value::Operand(b)) if a != b => Value::Sum(false),
                (Value::Zero, Value::Sum(false)) | (Value::Sum(false), Value::Zero) => Value::Sum(true),
                (Value::Zero, Value::Rounded(false)) | (Value::Rounded(false), Value::Zero) => Value::Rounded(true),
                _ => Value::Other,
            },
            _ => Value::Other,
        });
    }
    let (mut sum, mut rounded) = (None, None);
    for store in &body.outputs {
        let (place, adds_zero) = match values[store.step] {
            Value::Sum(adds_zero) if store.element == element => (&mut sum, adds_zero),
            Value::Rounded(adds_zero) if adding.rounded.is_some() => (&mut rounded, adds_zero),
            _ => return None,
        };
        if store.is_per_row || place.replace(Place { region: store.region, adds_zero }).is_some() {
            return None;
        }
    }
    Some(Sum { addend, sum: sum?, rounded })
}
