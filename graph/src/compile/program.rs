//! Programs: nodes in a valid order, and the blocks they use.

use std::ops::Range;

use super::block::{Block, Lifetime};
use super::fuel::Fuel;
use super::node::{Node, NodeIndex, NodeKind};

/// A captured graph, free of addresses and of the driver.
///
/// Nodes stand in one valid order; only their dependencies have to be kept. The passes take programs that
/// [`Program::validate`] accepts.
///
/// # Examples
/// ```
/// use esper_graph::compile::Program;
///
/// let program: Program = "blocks x0=8 g1=64
///     %0 alloc g1
///     %1 kernel spread known (x0 r[0..8], g1 w[0..64])
///     %2 kernel gather known (g1 r[0..64], x0 w[0..8])
///     %3 free g1".parse()?;
/// assert_eq!(program.validate(), Ok(()));
/// assert_eq!((program.num_dependencies(), program.critical_path(), program.peak_bytes()), (3, 4, 64));
/// # Ok::<(), esper_graph::compile::ParseError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Program {
    /// All blocks; one that no node uses does no harm, so that the others keep their number.
    pub blocks: Vec<Block>,
    /// All nodes; each depends on earlier ones only.
    pub nodes: Vec<Node>,
}

impl Program {
    /// Number of dependencies, all nodes together.
    #[must_use]
    pub fn num_dependencies(&self) -> usize {
        self.nodes.iter().map(|node| node.dependencies.len()).sum()
    }

    /// Nodes on the longest chain of dependencies; allocations and releases count.
    #[must_use]
    pub fn critical_path(&self) -> usize {
        let mut depth: Vec<usize> = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            let longest = node.dependencies.iter().map(|dependency| depth[dependency.0]).max();
            depth.push(longest.unwrap_or(0) + 1);
        }
        depth.into_iter().max().unwrap_or(0)
    }

    /// Most bytes held at one time by arenas and graph-owned blocks when the nodes run one after the other as listed.
    #[must_use]
    pub fn peak_bytes(&self) -> usize {
        let arenas = self.blocks.iter().filter(|block| block.lifetime == Lifetime::Arena);
        let mut held = arenas.fold(0, |sum: usize, block| sum.saturating_add(block.size_bytes));
        let mut peak = held;
        for node in &self.nodes {
            match node.kind {
                NodeKind::Alloc(block) => held = held.saturating_add(self.blocks[block.0].size_bytes),
                NodeKind::Free(block) => held = held.saturating_sub(self.blocks[block.0].size_bytes),
                NodeKind::Kernel(_) | NodeKind::Memset { .. } | NodeKind::Copy { .. } | NodeKind::Empty => {}
            }
            peak = peak.max(held);
        }
        peak
    }

    /// The nodes for which `keep` is true. Two that were ordered, through whatever was in between, still are; two that
    /// were not are not.
    pub(super) fn retain(self, keep: &[bool]) -> Self {
        if keep.iter().all(|is_kept| *is_kept) {
            return self;
        }
        // What each node stands for, as a range of a list: a kept node for itself, one that goes for all that it
        // waited for.
        let mut stands_for: Vec<Range<usize>> = Vec::with_capacity(self.nodes.len());
        let mut list: Vec<NodeIndex> = Vec::with_capacity(self.nodes.len());
        let mut nodes = Vec::with_capacity(self.nodes.len());
        let mut dependencies: Vec<NodeIndex> = Vec::new();
        for (mut node, &is_kept) in self.nodes.into_iter().zip(keep) {
            dependencies.clear();
            for dependency in &node.dependencies {
                dependencies.extend_from_slice(&list[stands_for[dependency.0].clone()]);
            }
            dependencies.sort_unstable();
            dependencies.dedup();
            let start = list.len();
            if is_kept {
                list.push(NodeIndex(nodes.len()));
                node.dependencies.clear();
                node.dependencies.extend_from_slice(&dependencies);
                nodes.push(node);
            } else {
                list.extend_from_slice(&dependencies);
            }
            stands_for.push(start..list.len());
        }
        Self { blocks: self.blocks, nodes }
    }

    /// Drops allocations and releases of blocks that no other node holds an address in, block by block.
    pub(super) fn without_unused_blocks(self, fuel: &mut Fuel) -> Self {
        let mut stays = vec![false; self.blocks.len()];
        for block in self.nodes.iter().flat_map(|node| node.kind.each_block()) {
            stays[block.0] = true;
        }
        for node in &self.nodes {
            if let NodeKind::Alloc(block) = node.kind {
                stays[block.0] = stays[block.0] || !fuel.burn();
            }
        }
        let keep: Vec<bool> =
            self.nodes.iter().map(|node| node.kind.lifetime_of().is_none_or(|block| stays[block.0])).collect();
        self.retain(&keep)
    }
}
