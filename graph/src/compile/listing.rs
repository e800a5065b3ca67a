//! A program as text: one line per node.

use std::fmt;

use super::block::{Lifetime, Region};
use super::fused::Body;
use super::kernel::{Effect, Kernel};
use super::node::NodeKind;
use super::program::Program;

/// Longest name that is written out: those of matrix products run to hundreds of characters.
const MAX_NAME: usize = 60;

impl fmt::Display for Program {
    /// Position, what it does, bytes that it reads and writes, and what it waits for. Blocks are `x` for external,
    /// `a` for arenas, `g` for what the graph allocates.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, node) in self.nodes.iter().enumerate() {
            write!(f, "{index:>5} ")?;
            match &node.kind {
                NodeKind::Kernel(kernel) => write_kernel(f, kernel)?,
                NodeKind::Memset { pattern, .. } => write!(f, "memset {:#x}", pattern.value)?,
                NodeKind::Copy { .. } => f.write_str("copy")?,
                NodeKind::Alloc(block) => write!(f, "alloc {block}")?,
                NodeKind::Free(block) => write!(f, "free {block}")?,
                NodeKind::Empty => f.write_str("empty")?,
            }
            for region in node.kind.reads() {
                write!(f, " r:{}", self.text_of(&region))?;
            }
            for write in node.kind.writes() {
                write!(f, " w{}:{}", if write.is_full { "" } else { "?" }, self.text_of(&write.region))?;
            }
            let before: Vec<String> = node.dependencies.iter().map(|of| of.0.to_string()).collect();
            writeln!(f, " after [{}]", before.join(" "))?;
        }
        Ok(())
    }
}

impl Program {
    fn text_of(&self, region: &Region) -> String {
        let kind = match self.blocks.get(region.block.0).map(|block| block.lifetime) {
            Some(Lifetime::External) => "x",
            Some(Lifetime::Arena) => "a",
            Some(Lifetime::Graph) => "g",
            None => "?",
        };
        format!("{kind}{}[{}+{}]", region.block.0, region.start, region.len())
    }
}

fn write_kernel(f: &mut fmt::Formatter<'_>, kernel: &Kernel) -> fmt::Result {
    let name: String = kernel.name.chars().take(MAX_NAME).collect();
    let [blocks, threads] = [kernel.launch.grid, kernel.launch.block].map(|shape| shape.iter().product::<u32>());
    write!(f, "{name} <{blocks}x{threads}>")?;
    if kernel.effect == Effect::Unknown {
        f.write_str(" unknown")?;
    }
    if let Some(body) = Body::of(kernel) {
        write!(f, " {:?}", body.steps)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::compile::{Block, BlockId, Lifetime, Node, NodeKind, Pattern, Program, Region};

    #[test]
    fn every_node_is_a_line_with_its_bytes_and_what_it_waits_for() {
        let block = |lifetime| Block { size_bytes: 64, lifetime };
        let region = |block, end| Region::new(BlockId(block), 0, end);
        let fill = NodeKind::Memset { region: region(0, 8), pattern: Pattern::ZERO };
        let copy = NodeKind::Copy { source: region(0, 8), destination: region(1, 8) };
        let program = Program {
            blocks: vec![block(Lifetime::Arena), block(Lifetime::External)],
            nodes: vec![Node::new(fill, []), Node::new(copy, [0])],
        };
        let expected = "    0 memset 0x0 w:a0[0+8] after []\n    1 copy r:a0[0+8] w:x1[0+8] after [0]\n";
        assert_eq!(program.to_string(), expected);
    }
}
