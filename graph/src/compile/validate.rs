//! The rules of programs.

use super::block::{BlockId, Lifetime, Region};
use super::dependencies::ByteHistory;
use super::error::ProgramError;
use super::fused::Body;
use super::kernel::{Effect, Kernel};
use super::node::{NodeIndex, NodeKind};
use super::order::Order;
use super::program::Program;

impl Program {
    /// Checks everything that the passes rely on.
    ///
    /// # Errors
    /// The first rule that is found broken: dependencies point backward, ranges lie inside their blocks, operands fit
    /// together, a graph-owned block is used only between its allocation and its release, and of two nodes that touch
    /// the same byte with a write one is over before the other starts.
    pub fn validate(&self) -> Result<(), ProgramError> {
        if let Some(block) = self.blocks.iter().position(|block| block.size_bytes == 0) {
            return Err(ProgramError::EmptyBlock { block: BlockId(block) });
        }
        for index in 0..self.nodes.len() {
            self.check_dependencies(NodeIndex(index))?;
        }
        for index in 0..self.nodes.len() {
            self.check_operation(NodeIndex(index))?;
        }
        let order = Order::of(self);
        let found = self.check_lifetimes(&order).and_then(|()| self.check_conflicts(&order));
        // What looks like no order may be one that there was no room for.
        if order.is_exact() { found } else { found.map_err(|_| ProgramError::Tangled { nodes: self.nodes.len() }) }
    }

    fn check_dependencies(&self, node: NodeIndex) -> Result<(), ProgramError> {
        let mut next = 0;
        for &dependency in &self.nodes[node.0].dependencies {
            if dependency.0 < next || dependency >= node {
                return Err(ProgramError::Order { node, dependency });
            }
            next = dependency.0 + 1;
        }
        Ok(())
    }

    fn check_operation(&self, node: NodeIndex) -> Result<(), ProgramError> {
        let kind = &self.nodes[node.0].kind;
        if let Some(block) =
            kind.each_block().chain(kind.lifetime_of()).filter(|block| self.size(*block).is_none()).min()
        {
            return Err(ProgramError::Range { node, block });
        }
        let written = kind.each_write().map(|write| write.region);
        for region in kind.each_read().chain(written) {
            if region.is_empty() || self.size(region.block).is_none_or(|size_bytes| region.end > size_bytes) {
                return Err(ProgramError::Range { node, block: region.block });
            }
        }
        let fits = match kind {
            NodeKind::Kernel(kernel) => {
                if let Some(pointer) = (0..kernel.pointers.len()).find(|&pointer| !self.is_sound(kernel, pointer)) {
                    return Err(ProgramError::Pointer { node, pointer });
                }
                check_elements(kernel).map_err(|pointer| ProgramError::Pointer { node, pointer })?
            }
            NodeKind::Memset { region, pattern } => {
                [1, 2, 4].contains(&pattern.width_bytes)
                    && u64::from(pattern.value) >> (8 * pattern.width_bytes) == 0
                    && region.len().is_multiple_of(pattern.width_bytes)
            }
            NodeKind::Copy { source, destination } => {
                source.len() == destination.len() && !source.overlaps(destination)
            }
            NodeKind::Alloc(_) | NodeKind::Free(_) | NodeKind::Empty => true,
        };
        if fits { Ok(()) } else { Err(ProgramError::Operands { node }) }
    }

    fn is_sound(&self, kernel: &Kernel, index: usize) -> bool {
        let pointer = &kernel.pointers[index];
        let written = pointer.write.map(|write| write.region);
        let agrees = match &kernel.effect {
            Effect::Known | Effect::Pointwise(_) | Effect::Fused(_) => true,
            Effect::Unknown => {
                pointer.read == written
                    && pointer.write.is_some_and(|write| !write.is_full)
                    && pointer.read.is_some_and(|reach| self.is_all_in_reach(&reach, pointer.offset_bytes))
            }
        };
        agrees
            && pointer.word_index < kernel.parameters.len()
            && kernel.pointers[..index].iter().all(|other| other.word_index != pointer.word_index)
            && self.size(pointer.block).is_some_and(|size_bytes| pointer.offset_bytes <= size_bytes)
            && pointer.read.iter().chain(&written).all(|region| region.block == pointer.block)
    }

    /// Whether nothing lies beyond what an unknown kernel may use: all of a block, or the block's place in an arena.
    fn is_all_in_reach(&self, reach: &Region, offset_bytes: usize) -> bool {
        self.blocks.get(reach.block.0).is_some_and(|block| {
            let is_whole = reach.start == 0 && reach.end == block.size_bytes;
            (is_whole || block.lifetime == Lifetime::Arena) && (reach.start..=reach.end).contains(&offset_bytes)
        })
    }

    fn check_lifetimes(&self, order: &Order) -> Result<(), ProgramError> {
        let mut bounds = vec![(Vec::new(), Vec::new()); self.blocks.len()];
        for (index, node) in self.nodes.iter().enumerate() {
            match node.kind {
                NodeKind::Alloc(block) => bounds[block.0].0.push(NodeIndex(index)),
                NodeKind::Free(block) => bounds[block.0].1.push(NodeIndex(index)),
                NodeKind::Kernel(_) | NodeKind::Memset { .. } | NodeKind::Copy { .. } | NodeKind::Empty => {}
            }
        }
        let mut is_used = vec![false; self.blocks.len()];
        for block in self.nodes.iter().flat_map(|node| node.kind.each_block()) {
            is_used[block.0] = true;
        }
        for (index, (allocations, releases)) in bounds.iter().enumerate() {
            let block = BlockId(index);
            let is_graph_owned = self.blocks[index].lifetime == Lifetime::Graph;
            let is_right = match (allocations.as_slice(), releases.as_slice()) {
                ([], []) => !is_graph_owned || !is_used[index],
                ([_], [_]) => is_graph_owned,
                _ => false,
            };
            if !is_right {
                let (allocations, releases) = (allocations.len(), releases.len());
                return Err(ProgramError::Lifetime { block, allocations, releases });
            }
            if let ([allocation], [release]) = (allocations.as_slice(), releases.as_slice())
                && !order.is_before(*allocation, *release)
            {
                return Err(ProgramError::OutsideLifetime { node: *release, block });
            }
        }
        for (index, node) in self.nodes.iter().enumerate() {
            let node_index = NodeIndex(index);
            let is_outside = |block: &BlockId| match (bounds[block.0].0.as_slice(), bounds[block.0].1.as_slice()) {
                ([allocation], [release]) => {
                    !(order.is_before(*allocation, node_index) && order.is_before(node_index, *release))
                }
                _ => false,
            };
            if let Some(block) = node.kind.each_block().filter(is_outside).min() {
                return Err(ProgramError::OutsideLifetime { node: node_index, block });
            }
        }
        Ok(())
    }

    /// Of each byte, whoever reads comes after the last who wrote, and whoever writes after that one and all who read
    /// since: then so do all others.
    fn check_conflicts(&self, order: &Order) -> Result<(), ProgramError> {
        let mut history: Vec<ByteHistory> = self.blocks.iter().map(ByteHistory::new).collect();
        let mut needs: Vec<NodeIndex> = Vec::new();
        for (index, node) in self.nodes.iter().enumerate() {
            let second = NodeIndex(index);
            let reads = node.kind.each_read().map(|region| (region, false));
            for (region, is_write) in reads.chain(node.kind.each_write().map(|write| (write.region, true))) {
                needs.clear();
                let history = &mut history[region.block.0];
                if is_write {
                    history.write(&region, second, &mut needs);
                } else {
                    history.read(&region, second, &mut needs);
                }
                let in_no_order = |first: &&NodeIndex| **first != second && !order.is_before(**first, second);
                if let Some(&first) = needs.iter().find(in_no_order) {
                    return Err(ProgramError::Conflict { first, second, block: region.block });
                }
            }
        }
        Ok(())
    }

    fn size(&self, block: BlockId) -> Option<usize> {
        self.blocks.get(block.0).map(|block| block.size_bytes)
    }
}

/// Whether the computation of a kernel contradicts nothing; else the first pointer of an element-wise kernel that does
/// not read and write what the computation says.
fn check_elements(kernel: &Kernel) -> Result<bool, usize> {
    let (reads, writes): (Vec<usize>, Vec<usize>) = match &kernel.effect {
        Effect::Unknown | Effect::Known => return Ok(true),
        Effect::Pointwise(pointwise) => {
            (pointwise.operands.iter().map(|operand| operand.pointer).collect(), vec![pointwise.output])
        }
        Effect::Fused(fused) => (
            fused.operands.iter().map(|view| view.pointer).collect(),
            fused.outputs.iter().map(|output| output.pointer).collect(),
        ),
    };
    let Some(body) = Body::of(kernel) else { return Ok(false) };
    for (access, &index) in body.operands.iter().zip(&reads) {
        let covers = |read: Region| read.start <= access.region.start && access.region.end <= read.end;
        if !kernel.pointers[index].read.is_some_and(covers) {
            return Err(index);
        }
    }
    for (store, &index) in body.outputs.iter().zip(&writes) {
        if !kernel.pointers[index].write.is_some_and(|write| write.is_full && write.region == store.region) {
            return Err(index);
        }
    }
    let is_extra =
        |(index, pointer): &(usize, &super::kernel::Pointer)| pointer.write.is_some() && !writes.contains(index);
    kernel.pointers.iter().enumerate().find(is_extra).map_or(Ok(true), |(index, _)| Err(index))
}
