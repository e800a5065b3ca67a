//! Lifting as a whole.

use std::collections::{BTreeMap, BTreeSet};

use super::declared::Groups;
use super::effects::Effects;
use super::error::LiftError;
use super::memory::Memory;
use super::resolve::resolve;
use super::space::{Read, Space};
use crate::compile::block::Region;
use crate::compile::node::Node;
use crate::compile::program::Program;
use crate::compile::recorded::Recorded;

/// A recorded graph as a program, and where its blocks lie.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Lifted {
    /// The program; the words of pointers are zero, and kernels name their recorded node.
    pub program: Program,
    /// Base address of each block that is [`External`](super::super::Lifetime::External); none for the others.
    pub addresses: Vec<Option<u64>>,
    /// How often each kernel was launched of which nothing is known.
    pub unknown_kernels: BTreeMap<String, usize>,
}

/// Turns a recorded graph into a program.
///
/// Of a kernel, what the region declared counts first, then what the table of known kernels says, then the rule for
/// matrix products; of the others nothing is known. Dependencies stay as they were recorded.
///
/// # Errors
/// [`LiftError`] where a node has no counterpart in programs, or addresses contradict each other: the captured graph
/// is to be used as it is.
///
/// # Sync
/// One copy from the device to the host per tensor shape that kernels read from device memory.
///
/// # Examples
/// ```
/// use esper_graph::compile::{LaunchShape, Memory, Recorded, RecordedKind, RecordedNode, lift};
///
/// /// One allocation of 64 bytes.
/// struct Device;
///
/// impl Memory for Device {
///     fn allocation(&mut self, address: u64) -> Option<(u64, usize)> {
///         (0x10_0000..0x10_0040).contains(&address).then_some((0x10_0000, 64))
///     }
///
///     fn words(&mut self, _address: u64, _count: usize) -> Option<Vec<u64>> {
///         None
///     }
/// }
///
/// // exp of 16 contiguous numbers, in place: count, dimensions, shape, from, to.
/// let arguments = [16_u64, 1, 0, 0x10_0000, 0x10_0000].map(|word| word.to_le_bytes().to_vec()).to_vec();
/// let launch = LaunchShape { grid: [1; 3], block: [32, 1, 1], shared_bytes: 0 };
/// let kind = RecordedKind::Kernel { name: "uexp_f32".to_owned(), launch, arguments, is_of_library: false };
/// let recorded = Recorded { nodes: vec![RecordedNode { kind, dependencies: Vec::new() }], ..Recorded::default() };
/// let lifted = lift(&recorded, &mut Device)?;
/// assert_eq!(lifted.addresses, [Some(0x10_0000)]);
/// assert!(lifted.program.to_string().contains("(x0 r[0..64] word 3, x0 w[0..64] word 4)"));
/// # Ok::<(), esper_graph::compile::LiftError>(())
/// ```
pub fn lift(recorded: &Recorded, memory: &mut dyn Memory) -> Result<Lifted, LiftError> {
    let mut distrusted = BTreeSet::new();
    loop {
        let (lifted, trusted) = attempt(recorded, memory, &distrusted)?;
        // Dimensions that a node may overwrite are no constants: once more without them.
        let written = written(&lifted.program);
        let num_before = distrusted.len();
        distrusted.extend(trusted.iter().filter(|(_, region)| overlaps(&written, region)).map(|(read, _)| *read));
        if distrusted.len() == num_before {
            return Ok(lifted);
        }
    }
}

fn attempt(
    recorded: &Recorded,
    memory: &mut dyn Memory,
    distrusted: &BTreeSet<Read>,
) -> Result<(Lifted, Vec<(Read, Region)>), LiftError> {
    let mut space = Space::new(recorded, memory, distrusted);
    let mut groups = Groups::of_recorded(recorded)?;
    let mut resolved = resolve(recorded, &mut space, &mut groups)?;
    groups.distrust(&mut resolved);
    let trusted = space.trusted();
    let mut effects = Effects::new(&groups, &space.blocks, &resolved);
    let mut nodes: Vec<Node> = Vec::with_capacity(resolved.len());
    // The operations that each recorded node became.
    let mut made: Vec<std::ops::Range<usize>> = Vec::with_capacity(resolved.len());
    for (node, of) in resolved.into_iter().enumerate() {
        let mut dependencies = Vec::new();
        for &dependency in &recorded.nodes[node].dependencies {
            let range = made.get(dependency).ok_or(LiftError::Dependency { node, dependency })?;
            dependencies.extend(range.clone());
        }
        let first = nodes.len();
        let kinds = effects.operations(node, of)?;
        nodes.extend(kinds.into_iter().map(|kind| Node::new(kind, dependencies.iter().copied())));
        made.push(first..nodes.len());
    }
    let unknown_kernels = effects.unknown_kernels;
    let program = Program { blocks: space.blocks, nodes };
    Ok((Lifted { program, addresses: space.addresses, unknown_kernels }, trusted))
}

/// All that nodes write, sorted.
fn written(program: &Program) -> Vec<Region> {
    let writes = program.nodes.iter().flat_map(|node| node.kind.writes());
    let mut regions: Vec<Region> = writes.map(|write| write.region).collect();
    regions.sort_unstable_by_key(|region| (region.block, region.start, region.end));
    regions.dedup();
    regions
}

fn overlaps(sorted: &[Region], region: &Region) -> bool {
    let first = sorted.partition_point(|other| other.block < region.block);
    sorted[first..].iter().take_while(|other| other.block == region.block).any(|other| other.overlaps(region))
}
