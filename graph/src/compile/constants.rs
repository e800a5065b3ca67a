//! Pass: operands that hold one known number become part of the computation.

use super::block::{BlockId, Region};
use super::codegen::can_generate;
use super::evaluate::{constant, evaluate};
use super::fuel::Fuel;
use super::fused::Body;
use super::kernel::{Effect, Kernel};
use super::node::{NodeKind, Pattern};
use super::pointwise::{BinaryOp, ElementType, Step, UnaryOp};
use super::program::Program;

/// Puts the number in place of a load where every byte of an operand was filled with it, by a memset or by a kernel
/// that computes the same for all elements; a copy of such bytes becomes a memset. The operation stays, so that every bit does: `0 + g` makes `+0.0` of
/// `-0.0`. What filled the operand is for [`Pass::Dead`](super::Pass::Dead) to drop where nobody else reads it.
pub(super) fn inline_constants(mut program: Program, fuel: &mut Fuel) -> Program {
    let mut fills = Fills(vec![Vec::new(); program.blocks.len()]);
    for node in &mut program.nodes {
        let mut made = Vec::new();
        match &mut node.kind {
            NodeKind::Kernel(kernel) => {
                if may_hold_constants(kernel, &fills)
                    && let Some(mut body) = Body::of(kernel)
                {
                    let has_changed = inline(&mut body, &fills);
                    made = constant_outputs(&body);
                    if has_changed && can_generate(&body) && fuel.burn() {
                        body.retain_outputs(|_| true);
                        *kernel = body.into_kernel();
                    }
                }
            }
            NodeKind::Memset { region, pattern } => {
                made.push((
                    *region,
                    Fill::of(region.start, &pattern.value.to_le_bytes()[..pattern.width_bytes.min(4)]),
                ));
            }
            NodeKind::Copy { source, destination } => {
                if let Some(fill) = fills.of(source) {
                    let fill = fill.shifted(source.start, destination.start);
                    made.push((*destination, fill));
                    if let Some(pattern) = fill.pattern(destination)
                        && fuel.burn()
                    {
                        node.kind = NodeKind::Memset { region: *destination, pattern };
                    }
                }
            }
            NodeKind::Alloc(_) | NodeKind::Free(_) | NodeKind::Empty => {}
        }
        node.kind.each_write().for_each(|write| fills.remove(&write.region));
        made.into_iter().for_each(|(region, fill)| fills.insert(&region, fill));
    }
    program
}

/// Whether a kernel may read a known number, or computes one of nothing. Most do neither, and are passed over.
fn may_hold_constants(kernel: &Kernel, fills: &Fills) -> bool {
    let steps = match &kernel.effect {
        Effect::Unknown | Effect::Known => return false,
        Effect::Pointwise(pointwise) => &pointwise.steps,
        Effect::Fused(fused) => &fused.steps,
    };
    steps.iter().any(|step| matches!(step, Step::Constant(..)))
        || kernel.pointers.iter().any(|pointer| fills.has_any(pointer.block))
}

/// Replaces loads; says whether there was one.
fn inline(body: &mut Body, fills: &Fills) -> bool {
    let mut has_changed = false;
    for step in &mut body.steps {
        if let Step::Load(operand) = *step {
            let access = &body.operands[operand];
            let bits = fills.of(&access.region).and_then(|fill| fill.element(access.region.start, access.element));
            if let Some(number) = bits.and_then(|bits| constant(access.element, bits)) {
                *step = number;
                has_changed = true;
            }
        }
    }
    has_changed
}

/// Outputs that hold one number, which the processor computes to the bit.
fn constant_outputs(body: &Body) -> Vec<(Region, Fill)> {
    let Some(types) = body.types() else { return Vec::new() };
    let mut is_known: Vec<bool> = Vec::new();
    for (index, step) in body.steps.iter().enumerate() {
        let is_number = super::fused::inputs(step).all(|input| is_known[input]);
        is_known.push(is_number && is_exact(step, &types, types[index]));
    }
    if !body.outputs.iter().any(|store| is_known[store.step]) {
        return Vec::new();
    }
    let values = evaluate(&body.steps, &types, |_| 0);
    let known = body.outputs.iter().filter(|store| is_known[store.step]);
    known
        .map(|store| {
            let bytes = values[store.step].to_le_bytes();
            (store.region, Fill::of(store.region.start, &bytes[..store.element.size_bytes()]))
        })
        .collect()
}

/// Whether the processor gives the bits that the device gives.
fn is_exact(step: &Step, types: &[ElementType], element: ElementType) -> bool {
    match step {
        Step::Load(_) | Step::Power(..) | Step::Elu(..) | Step::Reduce(..) => false,
        Step::Constant(..) | Step::Compare(..) | Step::Select(_) => true,
        // To bf16 the processor would round twice.
        Step::Convert(to, from) => {
            *to != ElementType::Bf16 || matches!(types[*from], ElementType::F32 | ElementType::Bf16 | ElementType::U8)
        }
        Step::Unary(op, _) => match op {
            UnaryOp::Negate | UnaryOp::Abs | UnaryOp::Square | UnaryOp::Relu => true,
            UnaryOp::Sqrt | UnaryOp::Reciprocal => element == ElementType::F32,
            _ => false,
        },
        Step::Binary(op, _) => *op != BinaryOp::Divide || element == ElementType::F32,
        Step::MultiplyAdd { .. } => element == ElementType::F32,
    }
}

/// Bytes that repeat: the byte at `offset` of a block is the one at `offset % 8`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Fill([u8; 8]);

impl Fill {
    /// `bytes`, 1, 2, 4 or 8 of them, again and again from `start` on.
    fn of(start: usize, bytes: &[u8]) -> Self {
        let mut fill = [0; 8];
        for position in 0..8 {
            fill[(start + position) % 8] = bytes[position % bytes.len()];
        }
        Self(fill)
    }

    fn shifted(self, from: usize, to: usize) -> Self {
        let bytes: [u8; 8] = std::array::from_fn(|position| self.0[(from + position) % 8]);
        Self::of(to, &bytes)
    }

    /// The pattern of a memset that gives these bytes.
    fn pattern(self, region: &Region) -> Option<Pattern> {
        let [byte, half, word] = [ElementType::U8, ElementType::Bf16, ElementType::U32];
        let widths = [byte, half, word].into_iter().filter(|width| region.len().is_multiple_of(width.size_bytes()));
        widths.filter_map(|width| Some((width, self.element(region.start, width)?))).find_map(|(width, bits)| {
            let value = u32::try_from(bits).ok()?;
            Some(Pattern { value, width_bytes: width.size_bytes() })
        })
    }

    /// The element that stands at `start` and at every whole number of elements from it.
    fn element(self, start: usize, element: ElementType) -> Option<u64> {
        let size_bytes = element.size_bytes();
        let mut bytes = [0; 8];
        for (position, byte) in bytes.iter_mut().enumerate().take(size_bytes) {
            *byte = self.0[(start + position) % 8];
        }
        let repeats = Self::of(start, &bytes[..size_bytes]) == self;
        repeats.then_some(u64::from_le_bytes(bytes))
    }
}

/// What is known of the bytes of each block, by its number: ranges in ascending order that do not overlap.
#[derive(Debug)]
struct Fills(Vec<Vec<(usize, usize, Fill)>>);

impl Fills {
    fn insert(&mut self, region: &Region, fill: Fill) {
        self.remove(region);
        let Some(ranges) = self.0.get_mut(region.block.0) else { return };
        let (mut first, mut whole) =
            (ranges.partition_point(|&(from, ..)| from < region.start), (region.start, region.end));
        let mut last = first;
        if let Some(&(from, to, of)) = first.checked_sub(1).and_then(|before| ranges.get(before))
            && (to, of) == (region.start, fill)
        {
            (first, whole.0) = (first - 1, from);
        }
        if let Some(&(from, to, of)) = ranges.get(last)
            && (from, of) == (region.end, fill)
        {
            (last, whole.1) = (last + 1, to);
        }
        ranges.splice(first..last, [(whole.0, whole.1, fill)]);
    }

    fn remove(&mut self, region: &Region) {
        let Some(ranges) = self.0.get_mut(region.block.0) else { return };
        let first = ranges.partition_point(|&(_, to, _)| to <= region.start);
        let last = first + ranges[first..].partition_point(|&(from, ..)| from < region.end);
        if let Some((&(from, _, left), &(_, to, right))) = ranges[first..last].first().zip(ranges[first..last].last()) {
            let rests = [(from, region.start, left), (region.end, to, right)];
            ranges.splice(first..last, rests.into_iter().filter(|(from, to, _)| from < to));
        }
    }

    fn has_any(&self, block: BlockId) -> bool {
        self.0.get(block.0).is_some_and(|ranges| !ranges.is_empty())
    }

    /// What a whole region is filled with.
    fn of(&self, region: &Region) -> Option<Fill> {
        let ranges = self.0.get(region.block.0)?;
        ranges.iter().find(|(from, to, _)| *from <= region.start && region.end <= *to).map(|(.., fill)| *fill)
    }
}
