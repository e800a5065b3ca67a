//! Random valid programs.

use proptest::prelude::*;

use super::conflicts;
use crate::compile::fused::merged;
use crate::compile::{
    BinaryOp, Block, BlockId, Code, Comparison, Effect, ElementType, Fused, Kernel, LaunchShape, Lifetime, Node,
    NodeKind, Operand, Output, Pattern, Pointer, Pointwise, Program, Reduction, Region, Step, UnaryOp, View,
};

/// Numbers that a step picks blocks and ranges with, each modulo what there is.
type Picks = [usize; 8];

/// Programs of about 10 to 60 nodes on up to three external blocks, in the order of one stream or in a looser one.
pub(super) fn programs() -> impl Strategy<Value = Program> {
    let external = prop::collection::vec((1..120_usize, 1..7_usize).prop_map(|(count, of)| count * of), 1..4);
    let steps = prop::collection::vec((0..27_u8, prop::array::uniform8(0..4096_usize)), 4..30);
    (external, steps, any::<bool>()).prop_map(|(external, steps, is_chain)| {
        let mut builder = Builder::new(external);
        for (kind, picks) in steps {
            builder.step(kind, picks);
        }
        builder.finish(is_chain)
    })
}

struct Builder {
    blocks: Vec<Block>,
    /// Blocks that can be used now; all their bytes are defined.
    live: Vec<BlockId>,
    kinds: Vec<NodeKind>,
}

impl Builder {
    fn new(external: Vec<usize>) -> Self {
        let block = |size_bytes| Block { size_bytes, lifetime: Lifetime::External };
        let blocks: Vec<Block> = external.into_iter().map(block).collect();
        Self { live: (0..blocks.len()).map(BlockId).collect(), blocks, kinds: Vec::new() }
    }

    fn step(&mut self, kind: u8, picks: Picks) {
        let target = self.region(picks[0], picks[1], picks[2]);
        match kind {
            0 | 1 => self.allocate(picks),
            2 => self.free(picks[0]),
            3 => self.zero(target),
            4 => {
                let pattern = Pattern { value: 0x1234, width_bytes: 2 };
                let region = Region::new(target.block, target.start, target.start + target.len() / 2 * 2);
                if !region.is_empty() {
                    self.kinds.push(NodeKind::Memset { region, pattern });
                }
            }
            5 => self.copy(target, picks),
            6 => self.sum(target, picks),
            7 => {
                // A gradient: zeros, and what is added to them.
                self.zero(target);
                self.sum(target, picks);
            }
            8 => {
                self.zero(target);
                let source = self.region(picks[3], picks[4], picks[5]);
                self.kernel(vec![reading(source), writing(target, true)], Effect::Known, picks[6]);
            }
            9 => {
                let size = |block: BlockId| self.blocks[block.0].size_bytes;
                let blocks = [self.block(picks[0]), self.block(picks[3])];
                let pointer = |block: BlockId| Pointer::unknown(0, block, picks[1].min(size(block)), size(block));
                let pointers = blocks.map(pointer).to_vec();
                self.kernel(pointers, Effect::Unknown, picks[6]);
            }
            10 => self.kinds.push(NodeKind::Empty),
            13..=15 => self.derive(picks),
            16 | 17 => self.update(picks),
            18 | 20 | 21 => self.snapshot(picks),
            19 => self.constant(picks),
            22 | 23 => self.deliver(picks),
            // Not in programs that are long.
            24 if self.kinds.len() > 18 => {}
            25 | 26 if self.kinds.len() > 4 => {}
            24 if picks[0].is_multiple_of(2) => self.rows(picks),
            24 => self.columns(picks),
            25 => self.gate(picks),
            26 => self.later(picks),
            _ => {
                let (source, other) =
                    (self.region(picks[3], picks[4], picks[5]), self.region(picks[6], picks[7], picks[2]));
                let bare = Pointer::new(0, self.block(picks[7]), 0);
                let pointers = match picks[5] % 4 {
                    0 => vec![reading(source), writing(target, true)],
                    1 => vec![reading(source), reading(other), writing(target, false), bare],
                    2 => vec![reading(source), writing(target, true), writing(other, false)],
                    _ => vec![writing(target, true), bare],
                };
                self.kernel(pointers, Effect::Known, picks[6]);
            }
        }
    }

    fn allocate(&mut self, picks: Picks) {
        let block = BlockId(self.blocks.len());
        let size_bytes = 1 + if picks[1].is_multiple_of(4) { picks[2] } else { picks[2] % 600 };
        let source = self.region(picks[3], picks[4], picks[5]);
        self.blocks.push(Block { size_bytes, lifetime: Lifetime::Graph });
        self.kinds.push(NodeKind::Alloc(block));
        let whole = Region::new(block, 0, size_bytes);
        match picks[6] % 3 {
            0 => self.zero(whole),
            1 => self.kernel(vec![reading(source), writing(whole, true)], Effect::Known, picks[7]),
            _ => {
                let middle = picks[7] % size_bytes;
                self.kernel(vec![writing(Region::new(block, middle, size_bytes), true)], Effect::Known, picks[7]);
                if middle > 0 {
                    self.zero(Region::new(block, 0, middle));
                }
            }
        }
        self.live.push(block);
    }

    /// A new block, each element computed from those of a block of the same size.
    fn derive(&mut self, picks: Picks) {
        let source = self.block(picks[0]);
        let size_bytes = self.blocks[source.0].size_bytes;
        let block = BlockId(self.blocks.len());
        self.blocks.push(Block { size_bytes, lifetime: Lifetime::Graph });
        self.kinds.push(NodeKind::Alloc(block));
        self.elementwise(source, block, picks);
        self.live.push(block);
    }

    /// A new block with the bytes of another, read at once.
    fn snapshot(&mut self, picks: Picks) {
        let source = self.block(picks[0]);
        let size_bytes = self.blocks[source.0].size_bytes;
        let block = BlockId(self.blocks.len());
        self.blocks.push(Block { size_bytes, lifetime: Lifetime::Graph });
        self.kinds.push(NodeKind::Alloc(block));
        let whole = |block| Region::new(block, 0, size_bytes);
        self.kinds.push(NodeKind::Copy { source: whole(source), destination: whole(block) });
        self.live.push(block);
        if picks[1].is_multiple_of(2) {
            self.publish(block);
        }
    }

    /// A new block that is computed to be copied to an external one, and not used again.
    fn deliver(&mut self, picks: Picks) {
        let destination = BlockId(picks[0] % self.num_external());
        let room = self.blocks[destination.0].size_bytes;
        let start = picks[1] % room / 16 * 16;
        let size_bytes = 1 + picks[2] % (room - start);
        let source = self.region(picks[3], picks[4], picks[5]);
        let block = BlockId(self.blocks.len());
        self.blocks.push(Block { size_bytes, lifetime: Lifetime::Graph });
        self.kinds.push(NodeKind::Alloc(block));
        let whole = Region::new(block, 0, size_bytes);
        self.kernel(vec![reading(source), writing(whole, true)], Effect::Known, picks[6]);
        let destination = Region::new(destination, start, start + size_bytes);
        self.kinds.push(NodeKind::Copy { source: whole, destination });
        self.kinds.push(NodeKind::Free(block));
    }

    fn num_external(&self) -> usize {
        self.blocks.iter().take_while(|block| block.lifetime == Lifetime::External).count()
    }

    /// A new block that holds the same in every replay, and is not written again.
    fn constant(&mut self, picks: Picks) {
        let size_bytes = self.blocks[self.block(picks[0]).0].size_bytes * 4;
        let block = BlockId(self.blocks.len());
        self.blocks.push(Block { size_bytes, lifetime: Lifetime::Graph });
        self.kinds.push(NodeKind::Alloc(block));
        let pattern = Pattern { value: 0x3F80_0000, width_bytes: 4 };
        self.kinds.push(NodeKind::Memset { region: Region::new(block, 0, size_bytes), pattern });
        self.publish(block);
        self.kinds.push(NodeKind::Free(block));
    }

    /// A block that is there, computed from one of the same size or from itself.
    fn update(&mut self, picks: Picks) {
        let target = self.block(picks[0]);
        let size_bytes = self.blocks[target.0].size_bytes;
        let same: Vec<BlockId> =
            self.live.iter().copied().filter(|block| self.blocks[block.0].size_bytes == size_bytes).collect();
        self.elementwise(same[picks[5] % same.len()], target, picks);
    }

    /// Computes all of `target` from all of `source` and a third tensor, which may be broadcast or transposed.
    fn elementwise(&mut self, source: BlockId, target: BlockId, picks: Picks) {
        let size_bytes = self.blocks[target.0].size_bytes;
        let element = match picks[1] % 4 {
            0 => ElementType::U8,
            1 if size_bytes.is_multiple_of(2) => ElementType::Bf16,
            _ if size_bytes.is_multiple_of(4) => ElementType::F32,
            _ => ElementType::U8,
        };
        let elements = size_bytes / element.size_bytes();
        let rows = [5, 3, 2, 1].into_iter().find(|rows| elements.is_multiple_of(*rows)).unwrap_or(1);
        let shape = vec![rows, elements / rows];
        let other = self.block(picks[2]);
        let other_bytes = self.blocks[other.0].size_bytes;
        let (strides, len) = match picks[3] % 3 {
            0 => (Some(vec![0, 0]), 1),
            1 => (Some(vec![1, rows]), elements),
            _ => (None, elements),
        };
        let len = len * element.size_bytes();
        let is_usable = len <= other_bytes && (other != target || (strides.is_none() && other_bytes == size_bytes));
        let whole = |block: BlockId, len: usize| Region::new(block, 0, len);
        let mut pointers = vec![reading(whole(source, size_bytes)), writing(whole(target, size_bytes), true)];
        let mut operands = vec![Operand { pointer: 0, element, strides: None }];
        let mut steps = vec![Step::Load(0)];
        if is_usable {
            pointers.push(reading(whole(other, len)));
            operands.push(Operand { pointer: 2, element, strides });
            steps.push(Step::Load(1));
        } else {
            steps.push(Step::Constant(element, 3.0_f64.to_bits()));
        }
        steps.push(match picks[4] % 6 {
            0 => Step::Binary(BinaryOp::Add, [0, 1]),
            1 => Step::Binary(BinaryOp::Subtract, [1, 0]),
            2 => Step::Binary(BinaryOp::Multiply, [0, 1]),
            3 if element == ElementType::F32 => Step::Binary(BinaryOp::MaximumNumber, [0, 1]),
            3 => Step::Binary(BinaryOp::Maximum, [0, 1]),
            _ => Step::Compare(Comparison::Less, [0, 1]),
        });
        if matches!(steps[2], Step::Compare(..)) {
            steps.push(Step::Select([2, 0, 1]));
        }
        if element == ElementType::F32 {
            // Not a bare sum: of a float, the pass for these would change the sign of a zero.
            let (factor, term) = (2.5_f32.to_bits(), f32::to_bits(-1.0));
            steps.push(Step::MultiplyAdd { value: steps.len() - 1, factor, term });
        } else if picks[4] % 4 == 1 {
            steps.push(Step::Unary(UnaryOp::Square, steps.len() - 1));
        }
        let pointwise = Pointwise { shape, operands, output: 1, output_type: element, steps };
        self.kernel(pointers, Effect::Pointwise(Box::new(pointwise)), picks[6]);
    }

    /// A matrix of `f32`, made of bytes that are there.
    fn matrix(&mut self, [rows, columns]: [usize; 2], picks: Picks) -> BlockId {
        let source = self.region(picks[3], picks[4], picks[5]);
        let block = self.floats(rows * columns);
        let whole = Region::new(block, 0, 4 * rows * columns);
        self.kernel(vec![reading(source), writing(whole, true)], Effect::Known, picks[7]);
        block
    }

    fn floats(&mut self, count: usize) -> BlockId {
        let block = BlockId(self.blocks.len());
        self.blocks.push(Block { size_bytes: 4 * count, lifetime: Lifetime::Graph });
        self.kinds.push(NodeKind::Alloc(block));
        block
    }

    /// A kernel with a place for a rectifier's gradient, anything in between, and that gradient.
    fn gate(&mut self, picks: Picks) {
        let count = 4 * (1 + picks[1] % 3);
        let of = |block| Region::new(block, 0, 4 * count);
        let [left, right] = [self.region(picks[3], picks[4], picks[5]), self.region(picks[6], picks[7], picks[2])];
        let (output, gradient) = (self.matrix([1, count], picks), self.floats(count));
        self.named("thin_gradient_f32", vec![reading(left), reading(right), writing(of(gradient), true)], &[0; 6]);
        self.live.extend([output, gradient]);
        self.anything(picks);
        let result = self.floats(count);
        let pointers = vec![reading(of(output)), reading(of(gradient)), writing(of(result), true)];
        self.named("linear_gradient_f32", pointers, &[count as u64, 1]);
        self.live.push(result);
    }

    /// What is computed from a matrix is read later, as it lies or across, by one or by two; in between anything, which may read and
    /// write what was computed. Two or three results may have the same elements.
    fn later(&mut self, picks: Picks) {
        let (rows, columns) = (2 + picks[1] % 4, 2 + picks[2] % 4);
        let (count, element) = (rows * columns, ElementType::F32);
        let source = self.matrix([rows, columns], picks);
        let results: Vec<BlockId> = (0..2 + picks[6] / 2 % 2).map(|_| self.floats(count)).collect();
        let (kept, others) = (results[0], &results[1..]);
        let output = |index| Output { pointer: 1 + index, element, step: 1, is_per_row: false };
        let mut outputs: Vec<Output> = (0..results.len()).map(output).collect();
        outputs[0].step += picks[3] % 2;
        let computed = Fused {
            elements: count,
            columns: 1,
            operands: vec![View { pointer: 0, element, dims: vec![(count, 1)] }],
            outputs,
            steps: vec![Step::Load(0), Step::Unary(UnaryOp::Square, 0), Step::Unary(UnaryOp::Negate, 1)],
        };
        let whole = |block| Region::new(block, 0, 4 * count);
        let mut pointers = vec![reading(whole(source))];
        pointers.extend(results.iter().map(|&block| writing(whole(block), true)));
        self.kernel(pointers, Effect::Fused(Box::new(computed)), picks[7]);
        self.live.push(source);
        self.live.extend(others);
        let mut between = picks;
        if picks[6].is_multiple_of(2) {
            // What `anything` picks first.
            between[3] = self.live.len();
            self.live.push(kept);
        }
        self.anything(between);
        self.live.retain(|&block| block != kept);
        for _ in 0..=picks[5] % 2 {
            let result = self.floats(count);
            let strides = picks[4].is_multiple_of(2).then(|| vec![1, columns]);
            let operands = vec![Operand { pointer: 0, element, strides }];
            let read = Pointwise { shape: vec![columns, rows], operands, ..unary(count, UnaryOp::Abs) };
            self.pointwise(kept, result, read);
            self.live.push(result);
        }
        self.kinds.push(NodeKind::Free(kept));
    }

    /// Any step but those that free something or have one in between themselves.
    fn anything(&mut self, picks: Picks) {
        let kind = u8::try_from(picks[0] % 22).expect("few kinds") + 3;
        let mut others = picks;
        others.rotate_left(3);
        self.step(kind, others);
    }

    /// A kernel that passes know by its name: pointers, then numbers.
    fn named(&mut self, name: &str, pointers: Vec<Pointer>, numbers: &[u64]) {
        self.kernel(pointers, Effect::Known, 0);
        let Some(NodeKind::Kernel(kernel)) = self.kinds.last_mut() else { return };
        kernel.name = name.to_owned();
        kernel.parameters = [&vec![0; kernel.pointers.len()], numbers].concat();
        kernel.argument_bytes = vec![8; kernel.parameters.len()];
        (0..).zip(&mut kernel.pointers).for_each(|(index, pointer)| pointer.word_index = index);
    }

    /// Rows of a matrix, computed element by element, are reduced; what that gives is scaled and subtracted from the rows,
    /// and the squares are reduced again.
    fn rows(&mut self, picks: Picks) {
        let (rows, columns) = (32 + picks[1] % 3, 4 * (1 + picks[2] % 3));
        let (strided, element) = ([columns, 1], ElementType::F32);
        let whole = Pointwise { shape: vec![rows, columns], ..unary(rows * columns, UnaryOp::Square) };
        let matrix = self.matrix([rows, columns], picks);
        // In place, or beside it.
        let squares = if picks[4].is_multiple_of(3) { matrix } else { self.floats(rows * columns) };
        self.pointwise(matrix, squares, whole.clone());
        let reduction =
            [Reduction::Sum, Reduction::Maximum, Reduction::Minimum, Reduction::StridedSum][picks[6] % 16 / 4];
        let of_rows = self.floats(rows);
        self.reduce(squares, of_rows, ([rows, columns], strided), reduction);
        let scaled = if picks[5].is_multiple_of(2) { of_rows } else { self.floats(rows) };
        self.pointwise(of_rows, scaled, unary(rows, UnaryOp::Sqrt));
        let centered = if picks[3].is_multiple_of(2) { squares } else { self.floats(rows * columns) };
        let operand = |pointer, strides| Operand { pointer, element, strides };
        let difference = Pointwise {
            shape: vec![rows, columns],
            operands: vec![operand(0, None), operand(2, Some(vec![1, 0]))],
            output: 1,
            output_type: element,
            steps: vec![Step::Load(0), Step::Load(1), Step::Binary(BinaryOp::Subtract, [0, 1])],
        };
        let bytes = |count| 4 * count;
        let pointers = vec![
            reading(Region::new(squares, 0, bytes(rows * columns))),
            writing(Region::new(centered, 0, bytes(rows * columns)), true),
            reading(Region::new(scaled, 0, bytes(rows))),
        ];
        self.kernel(pointers, Effect::Pointwise(Box::new(difference)), picks[7]);
        let again = self.floats(rows);
        self.reduce(centered, again, ([rows, columns], strided), Reduction::Sum);
        self.publish(again);
        let mut blocks = vec![matrix, squares, of_rows, scaled, centered, again];
        blocks.dedup();
        blocks.sort_unstable();
        blocks.dedup();
        if picks[0].is_multiple_of(2) {
            self.publish(centered);
        }
        for block in blocks {
            if picks[0].is_multiple_of(8) {
                self.live.push(block);
            } else {
                self.kinds.push(NodeKind::Free(block));
            }
        }
    }

    /// The columns of a matrix are reduced, and what that gives is added to zeros, as gradients are, or made into something else.
    fn columns(&mut self, picks: Picks) {
        let (rows, columns) = (2 + picks[1] % 70, 5 + picks[2] % 20);
        let matrix = self.matrix([rows, columns], picks);
        let sums = self.floats(columns);
        let reduction = [Reduction::StridedSum, Reduction::Maximum][picks[6] % 2];
        self.reduce(matrix, sums, ([columns, rows], [1, columns]), reduction);
        let result = self.floats(columns);
        let whole = |block: BlockId| Region::new(block, 0, 4 * columns);
        match picks[3] % 4 {
            0 => self.pointwise(sums, result, unary(columns, UnaryOp::Square)),
            1 => {
                // With a number of its own for each, and others read the former too.
                let pointers = vec![reading(whole(sums)), reading(whole(matrix)), writing(whole(result), true)];
                let mut product = Pointwise::sum(columns, ElementType::F32, [1, 0], 2);
                product.steps[2] = Step::Binary(BinaryOp::Multiply, [0, 1]);
                self.kernel(pointers, Effect::Pointwise(Box::new(product)), picks[7]);
                self.publish(sums);
            }
            _ => {
                self.zero(whole(result));
                let in_place = reading(whole(result)).writing(0, 4 * columns);
                self.kernel(vec![reading(whole(sums)), in_place], sum_of(4 * columns, [1, 0], 1), picks[7]);
            }
        }
        self.publish(result);
        self.kinds.extend([matrix, sums, result].map(NodeKind::Free));
    }

    /// A recorded reduction of rows, of which elements and rows lie as far apart as the strides say.
    fn reduce(
        &mut self,
        source: BlockId,
        target: BlockId,
        ([rows, columns], strides): ([usize; 2], [usize; 2]),
        reduction: Reduction,
    ) {
        let element = ElementType::F32;
        let reduced = Fused {
            elements: rows * columns,
            columns,
            operands: vec![View { pointer: 0, element, dims: merged(&[rows, columns], Some(&strides)) }],
            outputs: vec![Output { pointer: 1, element, step: 1, is_per_row: true }],
            steps: vec![Step::Load(0), Step::Reduce(reduction, 0)],
        };
        let whole = |block: BlockId, count: usize| Region::new(block, 0, 4 * count);
        let pointers = vec![reading(whole(source, rows * columns)), writing(whole(target, rows), true)];
        self.kernel(pointers, Effect::Fused(Box::new(reduced)), columns);
    }

    /// All of `target`, of `f32`, from all of `source`.
    fn pointwise(&mut self, source: BlockId, target: BlockId, pointwise: Pointwise) {
        let bytes = 4 * pointwise.shape.iter().product::<usize>();
        let pointers = vec![reading(Region::new(source, 0, bytes)), writing(Region::new(target, 0, bytes), true)];
        self.kernel(pointers, Effect::Pointwise(Box::new(pointwise)), bytes);
    }

    fn free(&mut self, pick: usize) {
        let owned: Vec<BlockId> = self.live.iter().copied().filter(|block| self.is_owned(*block)).collect();
        if !owned.is_empty() {
            let block = owned[pick % owned.len()];
            if !pick.is_multiple_of(4) {
                self.publish(block);
            }
            self.live.retain(|other| *other != block);
            self.kinds.push(NodeKind::Free(block));
        }
    }

    /// Lets all of a block have a say in what the first external block holds.
    fn publish(&mut self, block: BlockId) {
        let whole = |block: BlockId| Region::new(block, 0, self.blocks[block.0].size_bytes);
        let pointers = vec![reading(whole(block)), writing(whole(BlockId(0)), false)];
        self.kernel(pointers, Effect::Known, block.0);
    }

    fn zero(&mut self, region: Region) {
        self.kinds.push(NodeKind::Memset { region, pattern: Pattern::ZERO });
    }

    fn copy(&mut self, target: Region, picks: Picks) {
        let source = self.region(picks[3], picks[4], picks[5]);
        let (source, destination) = same_length(source, target);
        if !source.overlaps(&destination) {
            self.kinds.push(NodeKind::Copy { source, destination });
        }
    }

    /// `target += source`, or the sum of two written elsewhere.
    fn sum(&mut self, target: Region, picks: Picks) {
        let source = self.region(picks[3], picks[4], picks[5]);
        let (source, term) = same_length(source, target);
        let other = self.region(picks[6], picks[7], picks[2]);
        let output = Region::new(other.block, other.start, other.start + term.len());
        let is_apart = |region: &Region| *region == output || !region.overlaps(&output);
        if picks[7].is_multiple_of(2)
            && output.end <= self.blocks[output.block.0].size_bytes
            && is_apart(&term)
            && is_apart(&source)
        {
            let effect = sum_of(term.len(), [0, 1], 2);
            if output != term && output != source {
                self.kernel(vec![reading(term), reading(source), writing(output, true)], effect, picks[6]);
            }
        } else if !source.overlaps(&term) {
            let effect = sum_of(term.len(), [1, 0], 1);
            let in_place = reading(term).writing(term.start, term.end);
            self.kernel(vec![reading(source), in_place], effect, picks[6]);
        }
    }

    fn kernel(&mut self, mut pointers: Vec<Pointer>, effect: Effect, pick: usize) {
        for (index, pointer) in pointers.iter_mut().enumerate() {
            pointer.word_index = 1 + index;
        }
        let mut parameters = vec![pick as u64 % 5];
        parameters.extend(pointers.iter().map(|pointer| 0x7f00_0000 + pointer.offset_bytes as u64));
        let name = format!("kernel_{}", pick % 7);
        let launch = LaunchShape { grid: [1, 1, 1], block: [32, 1, 1], shared_bytes: 0 };
        self.kinds.push(NodeKind::Kernel(Kernel {
            name,
            code: Code::Recorded(0),
            launch,
            argument_bytes: vec![8; parameters.len()],
            parameters,
            pointers,
            effect,
        }));
    }

    /// Frees what is left; the nodes are a chain, or wait for what they must and here and there for more.
    fn finish(mut self, is_chain: bool) -> Program {
        let owned: Vec<BlockId> = self.live.iter().copied().filter(|block| self.is_owned(*block)).collect();
        for block in owned {
            if !block.0.is_multiple_of(4) {
                self.publish(block);
            }
            self.kinds.push(NodeKind::Free(block));
        }
        let dependencies = |index: usize| -> Vec<usize> {
            let has_to_wait =
                |&other: &usize| conflicts(&self.kinds[other], &self.kinds[index]) || (other + index).is_multiple_of(9);
            if is_chain { index.checked_sub(1).into_iter().collect() } else { (0..index).filter(has_to_wait).collect() }
        };
        let nodes =
            self.kinds.iter().enumerate().map(|(index, kind)| Node::new(kind.clone(), dependencies(index))).collect();
        Program { blocks: self.blocks, nodes }
    }

    fn is_owned(&self, block: BlockId) -> bool {
        self.blocks[block.0].lifetime == Lifetime::Graph
    }

    fn block(&self, pick: usize) -> BlockId {
        self.live[pick % self.live.len()]
    }

    /// Some bytes of a block that can be used; often all of them.
    fn region(&self, block: usize, start: usize, len: usize) -> Region {
        let block = self.block(block);
        let size = self.blocks[block.0].size_bytes;
        if start.is_multiple_of(3) {
            return Region::new(block, 0, size);
        }
        let start = start % size;
        Region::new(block, start, start + 1 + len % (size - start))
    }
}

fn unary(elements: usize, op: UnaryOp) -> Pointwise {
    let element = ElementType::F32;
    Pointwise {
        shape: vec![elements],
        operands: vec![Operand { pointer: 0, element, strides: None }],
        output: 1,
        output_type: element,
        steps: vec![Step::Load(0), Step::Unary(op, 0)],
    }
}

fn sum_of(elements: usize, terms: [usize; 2], output: usize) -> Effect {
    Effect::Pointwise(Box::new(Pointwise::sum(elements, ElementType::U8, terms, output)))
}

fn reading(region: Region) -> Pointer {
    Pointer::new(0, region.block, region.start).reading(region.start, region.end)
}

fn writing(region: Region, is_full: bool) -> Pointer {
    let pointer = Pointer::new(0, region.block, region.start);
    if is_full { pointer.writing(region.start, region.end) } else { pointer.writing_some(region.start, region.end) }
}

fn same_length(first: Region, second: Region) -> (Region, Region) {
    let len = first.len().min(second.len());
    let cut = |region: Region| Region::new(region.block, region.start, region.start + len);
    (cut(first), cut(second))
}
