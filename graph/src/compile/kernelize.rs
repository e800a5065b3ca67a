//! Pass: small memsets and copies become kernels, which can be fused, and long element-wise kernels are written anew.

use super::block::{BlockId, Region};
use super::codegen::can_generate;
use super::evaluate::constant;
use super::fuel::Fuel;
use super::fused::{Access, Body, Store, is_contiguous};
use super::kernel::{Effect, Kernel};
use super::node::NodeKind;
use super::pointwise::{ElementType, Step};
use super::program::Program;

/// Longest memset or copy that becomes a kernel. The engines behind large ones are as fast as a kernel.
const MAX_BYTES: usize = 1 << 20;
/// Elements of the shortest kernel that is written anew. Candle's take one element at a time, and with those of 16 bits that
/// leaves much of the memory's speed unused.
const MIN_ELEMENTS: usize = 1 << 18;

/// Turns memsets and copies of up to 1 MiB into element-wise kernels. A kernel starts sooner than what it replaces, and
/// can be merged with its neighbors where it has their type of element. Recorded element-wise kernels of 2¹⁸ contiguous elements
/// or more become ones that take four elements at a time.
pub(super) fn kernelize(mut program: Program, fuel: &mut Fuel) -> Program {
    let elements = elements_of_blocks(&program);
    for node in &mut program.nodes {
        let body = match &node.kind {
            NodeKind::Kernel(kernel) => anew(kernel),
            kind => body_of(kind, &elements),
        };
        if let Some(body) = body.filter(can_generate)
            && fuel.burn()
        {
            node.kind = NodeKind::Kernel(body.into_kernel());
        }
    }
    program
}

/// What a long recorded kernel computes.
fn anew(kernel: &Kernel) -> Option<Body> {
    let body = Body::of(kernel).filter(|_| matches!(kernel.effect, Effect::Pointwise(_)))?;
    let is_flat = body.operands.iter().all(|access| is_contiguous(&access.dims));
    (is_flat && body.elements >= MIN_ELEMENTS).then_some(body)
}

/// The type that element-wise kernels first use a block with.
fn elements_of_blocks(program: &Program) -> Vec<Option<ElementType>> {
    let mut elements = vec![None; program.blocks.len()];
    for node in &program.nodes {
        let NodeKind::Kernel(kernel) = &node.kind else { continue };
        let mut note = |pointer: usize, element: ElementType| {
            let block = kernel.pointers.get(pointer).map(|pointer| pointer.block);
            if let Some(of) = block.and_then(|block| elements.get_mut(block.0)) {
                of.get_or_insert(element);
            }
        };
        match &kernel.effect {
            Effect::Unknown | Effect::Known => {}
            Effect::Pointwise(pointwise) => {
                pointwise.operands.iter().for_each(|operand| note(operand.pointer, operand.element));
                note(pointwise.output, pointwise.output_type);
            }
            Effect::Fused(fused) => {
                fused.operands.iter().for_each(|view| note(view.pointer, view.element));
                fused.outputs.iter().for_each(|output| note(output.pointer, output.element));
            }
        }
    }
    elements
}

fn body_of(kind: &NodeKind, elements: &[Option<ElementType>]) -> Option<Body> {
    let element_of = |block: BlockId| elements.get(block.0).copied().flatten();
    let (destination, source, known) = match kind {
        NodeKind::Memset { region, .. } => (*region, None, element_of(region.block)),
        NodeKind::Copy { source, destination } => {
            let known = element_of(destination.block).or_else(|| element_of(source.block));
            (*destination, Some(*source), known)
        }
        NodeKind::Kernel(_) | NodeKind::Alloc(_) | NodeKind::Free(_) | NodeKind::Empty => return None,
    };
    if destination.len() > MAX_BYTES {
        return None;
    }
    let fits = |element: ElementType| {
        let is_multiple = |bytes: usize| bytes.is_multiple_of(element.size_bytes());
        let starts = is_multiple(destination.start) && source.is_none_or(|source| is_multiple(source.start));
        starts && is_multiple(destination.len())
    };
    let candidates = known.into_iter().chain([ElementType::F32, ElementType::U32, ElementType::Bf16, ElementType::U8]);
    for element in candidates.filter(|element| fits(*element)) {
        let step = match kind {
            NodeKind::Memset { pattern, .. } => {
                // A pattern that starts at the region, repeated over an element.
                let value = pattern.value.to_le_bytes();
                let mut bytes = [0; 8];
                for (position, byte) in bytes.iter_mut().enumerate().take(element.size_bytes()) {
                    *byte = value[position % pattern.width_bytes];
                }
                let is_whole = element.size_bytes().is_multiple_of(pattern.width_bytes) || pattern.is_zero();
                constant(element, u64::from_le_bytes(bytes)).filter(|_| is_whole)
            }
            _ => Some(Step::Load(0)),
        };
        if let Some(step) = step {
            let num_elements = destination.len() / element.size_bytes();
            return Some(one_step(num_elements, element, step, source, destination));
        }
    }
    None
}

fn one_step(elements: usize, element: ElementType, step: Step, source: Option<Region>, destination: Region) -> Body {
    let dims = if elements == 1 { Vec::new() } else { vec![(elements, 1)] };
    let operand = |region| Access { region, element, dims: dims.clone() };
    Body {
        elements,
        columns: 1,
        operands: source.into_iter().map(operand).collect(),
        outputs: vec![Store { region: destination, element, step: 0, is_per_row: false }],
        steps: vec![step],
    }
}
