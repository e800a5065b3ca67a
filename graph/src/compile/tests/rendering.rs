//! Random programs as recordings at random addresses, lifted again.

use std::collections::BTreeMap;

use proptest::prelude::*;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::programs::programs;
use super::recordings::{Device, chain};
use super::{inputs, run};
use crate::compile::{
    Block, BlockId, DeclaredEffect, Effect, Kernel, Lifetime, Lifted, Node, NodeKind, Pointer, Program, Recorded,
    RecordedKind, Region, compare_twins, interpret, lift,
};

/// Whether the address of a pointer lies in a region.
fn is_in(pointer: &Pointer, region: &Region) -> bool {
    region.block == pointer.block && (region.start..region.end).contains(&pointer.offset_bytes)
}

fn hull(regions: impl Iterator<Item = Region>) -> Option<Region> {
    regions.reduce(|one, other| Region::new(one.block, one.start.min(other.start), one.end.max(other.end)))
}

/// What can be said of a kernel by a declaration: what it reads, and what it writes as a whole.
fn spans(kernel: &Kernel) -> (Vec<Region>, Vec<Region>) {
    let full = kernel.pointers.iter().filter(|pointer| pointer.write.is_some_and(|write| write.is_full));
    let writes: Vec<Region> = full.clone().filter_map(|pointer| Some(pointer.write?.region)).collect();
    let plain = kernel.pointers.iter().filter(|pointer| pointer.write.is_none_or(|write| write.is_full));
    (plain.filter_map(|pointer| pointer.read).collect(), writes)
}

/// A kernel whose pointers reach what the spans say for their address.
fn reached(kernel: &Kernel, size: &impl Fn(BlockId) -> usize) -> Kernel {
    let (reads, writes) = spans(kernel);
    let is_known = kernel.effect != Effect::Unknown && !writes.is_empty();
    let mut reached = kernel.clone();
    reached.effect = if is_known { Effect::Known } else { Effect::Unknown };
    for pointer in &mut reached.pointers {
        let Pointer { word_index, block, offset_bytes, .. } = *pointer;
        let read = hull(reads.iter().filter(|region| is_in(pointer, region)).copied());
        let write = hull(writes.iter().filter(|region| is_in(pointer, region)).copied());
        let bare = Pointer::new(word_index, block, offset_bytes);
        *pointer = match (is_known, read, write) {
            (false, ..) | (true, None, None) => Pointer::unknown(word_index, block, offset_bytes, size(block)),
            (true, read, write) => {
                let reading = read.map_or(bare, |region| bare.reading(region.start, region.end));
                write.map_or(reading, |region| reading.writing(region.start, region.end))
            }
        };
    }
    reached
}

/// The program with nothing in it that a recording cannot tell: kernels are unknown, or reach what was declared for
/// the address of each pointer, or all of its block; nodes are a chain; no pointer lies at the end of its block.
fn tellable(program: &Program) -> Program {
    let size = |block: BlockId| program.blocks[block.0].size_bytes;
    let mut told = program.clone();
    for node in &mut told.nodes {
        let NodeKind::Kernel(kernel) = &mut node.kind else { continue };
        for pointer in &mut kernel.pointers {
            pointer.offset_bytes = pointer.offset_bytes.min(size(pointer.block) - 1);
        }
        // What one pointer reaches can lie around another: until nothing changes.
        while let changed = reached(kernel, &size)
            && changed != *kernel
        {
            *kernel = changed;
        }
    }
    let nodes = told.nodes.iter().enumerate();
    told.nodes = nodes.map(|(index, node)| Node::new(node.kind.clone(), index.checked_sub(1))).collect();
    told
}

/// Addresses for the blocks of a program. Those of the graph are taken when they are allocated, now and then where
/// another block was.
struct Addresses {
    of_block: BTreeMap<BlockId, u64>,
    live: Vec<(u64, u64)>,
    freed: Vec<u64>,
    rng: ChaCha8Rng,
    num_reused: usize,
}

impl Addresses {
    fn new(program: &Program, seed: u64) -> Self {
        let mut next = 0x10_0000;
        let mut of_block = BTreeMap::new();
        for (index, block) in program.blocks.iter().enumerate() {
            if block.lifetime == Lifetime::External {
                of_block.insert(BlockId(index), next);
                next += block.size_bytes as u64;
            }
        }
        Self { of_block, live: Vec::new(), freed: Vec::new(), rng: ChaCha8Rng::seed_from_u64(seed), num_reused: 0 }
    }

    fn allocate(&mut self, block: BlockId, bytes: usize) -> u64 {
        let bytes = bytes as u64;
        loop {
            let reused = if self.rng.random_bool(0.8) { self.freed.choose(&mut self.rng).copied() } else { None };
            let address = reused.unwrap_or_else(|| 0x1000_0000 + 256 * self.rng.random_range(0..1 << 20));
            if self.live.iter().all(|&(start, end)| address + bytes <= start || end <= address) {
                self.num_reused += usize::from(reused.is_some());
                self.live.push((address, address + bytes));
                self.of_block.insert(block, address);
                return address;
            }
        }
    }

    fn free(&mut self, block: BlockId) -> u64 {
        let address = self.of_block[&block];
        self.live.retain(|&(start, _)| start != address);
        self.freed.push(address);
        address
    }

    fn span(&self, region: &Region) -> (u64, usize) {
        (self.of_block[&region.block] + region.start as u64, region.len())
    }
}

/// A program as the driver would tell it, the memory outside it, and how many addresses were used twice.
fn rendered(program: &Program, seed: u64) -> (Recorded, Device, Addresses) {
    let mut addresses = Addresses::new(program, seed);
    let external = program.blocks.iter().enumerate().filter(|(_, block)| block.lifetime == Lifetime::External);
    let allocations: Vec<(u64, usize)> =
        external.map(|(index, block)| (addresses.of_block[&BlockId(index)], block.size_bytes)).collect();
    let mut declared = Vec::new();
    let mut kinds = Vec::new();
    for (index, node) in program.nodes.iter().enumerate() {
        kinds.push(match &node.kind {
            NodeKind::Alloc(block) => {
                let bytes = program.blocks[block.0].size_bytes;
                RecordedKind::Alloc { address: addresses.allocate(*block, bytes), bytes }
            }
            NodeKind::Free(block) => RecordedKind::Free { address: addresses.free(*block) },
            NodeKind::Memset { region, pattern } => {
                let (address, bytes) = addresses.span(region);
                let (value, value_bytes) = (pattern.value, pattern.width_bytes);
                RecordedKind::Memset {
                    address,
                    value,
                    value_bytes,
                    width: bytes / value_bytes,
                    height: 1,
                    pitch_bytes: 0,
                }
            }
            NodeKind::Copy { source, destination } => {
                let ((source, bytes), (destination, _)) = (addresses.span(source), addresses.span(destination));
                RecordedKind::Copy { source, destination, bytes }
            }
            NodeKind::Empty => RecordedKind::Empty,
            NodeKind::Kernel(kernel) => {
                if kernel.effect == Effect::Known {
                    let (reads, writes) = spans(kernel);
                    let told = |regions: Vec<Region>| regions.iter().map(|region| addresses.span(region)).collect();
                    declared.push(DeclaredEffect { nodes: index..index + 1, reads: told(reads), writes: told(writes) });
                }
                let mut words = kernel.parameters.clone();
                for pointer in &kernel.pointers {
                    words[pointer.word_index] = addresses.of_block[&pointer.block] + pointer.offset_bytes as u64;
                }
                let arguments = words.iter().map(|word| word.to_le_bytes().to_vec()).collect();
                RecordedKind::Kernel {
                    name: kernel.name.clone(),
                    launch: kernel.launch,
                    arguments,
                    is_of_library: false,
                }
            }
        });
    }
    (Recorded { declared, ..chain(kinds) }, Device::with(&allocations), addresses)
}

/// What external blocks hold after a run, by their address.
fn results(lifted: &Lifted, given: &BTreeMap<u64, Vec<u8>>) -> BTreeMap<u64, Vec<u8>> {
    let program = &lifted.program;
    let address = |block: &BlockId| lifted.addresses[block.0];
    let external = (0..program.blocks.len()).map(BlockId).filter_map(|block| Some((block, address(&block)?)));
    let inputs = external.map(|(block, address)| (block, given[&address].clone())).collect();
    let results = interpret(program, None, &inputs).expect("a program that can be run");
    results.into_iter().map(|(block, bytes)| (address(&block).expect("external"), bytes)).collect()
}

proptest! {
    #[test]
    fn a_lifted_recording_computes_what_the_program_it_was_made_of_does(program in programs(), seed: u64) {
        let program = tellable(&program);
        let (recorded, mut device, addresses) = rendered(&program, seed);
        let lifted = lift(&recorded, &mut device).map_err(|error| TestCaseError::fail(format!("{error:?}")))?;
        prop_assert_eq!(lifted.program.validate(), Ok(()));
        let given = inputs(&program).into_iter().map(|(block, bytes)| (addresses.of_block[&block], bytes)).collect();
        let expected = run(&program, None).expect("a program that can be run");
        // A block outside that no node uses is none of the lifted program.
        for (address, bytes) in results(&lifted, &given) {
            let block = expected.keys().find(|block| addresses.of_block[*block] == address).expect("a known block");
            prop_assert_eq!(&bytes, &expected[block]);
        }
        let dependencies = |program: &Program| program.nodes.iter().map(|node| node.dependencies.clone()).collect::<Vec<_>>();
        prop_assert_eq!(dependencies(&lifted.program), dependencies(&program));
        let sizes = |blocks: &[Block]| {
            let mut sizes: Vec<usize> =
                blocks.iter().filter(|of| of.lifetime == Lifetime::Graph).map(|of| of.size_bytes).collect();
            sizes.sort_unstable();
            sizes
        };
        prop_assert_eq!(sizes(&lifted.program.blocks), sizes(&program.blocks));
    }

    #[test]
    fn two_recordings_of_a_program_are_twins(program in programs(), seed: u64) {
        let program = tellable(&program);
        let sides = [seed, seed ^ 1].map(|seed| {
            let (recorded, mut device, _) = rendered(&program, seed);
            let lifted = lift(&recorded, &mut device).expect("a recording that can be lifted");
            (recorded, lifted)
        });
        let compared = compare_twins((&sides[0].0, &sides[0].1), (&sides[1].0, &sides[1].1));
        let has_moved = program.blocks.iter().any(|block| block.lifetime == Lifetime::Graph);
        let is_right = compared.as_ref().is_ok_and(|num_moved| (*num_moved > 0) == has_moved);
        prop_assert!(is_right, "{:?}", compared);
    }

    #[test]
    fn a_changed_byte_of_an_argument_is_found(program in programs(), seed: u64, pick: usize, bit in 0..64_u32) {
        let program = tellable(&program);
        prop_assume!(program.nodes.iter().any(|node| matches!(node.kind, NodeKind::Kernel(_))));
        let lifted = |(mut recorded, mut device, _): (Recorded, Device, Addresses), change: bool| {
            if change {
                let kernels = recorded.nodes.iter_mut().filter_map(|node| match &mut node.kind {
                    RecordedKind::Kernel { arguments, .. } => Some(arguments),
                    _ => None,
                });
                let mut words: Vec<&mut Vec<u8>> = kernels.flatten().collect();
                let (num_words, byte) = (words.len(), (bit / 8) as usize);
                words[pick % num_words][byte] ^= 1 << (bit % 8);
            }
            lift(&recorded, &mut device).map(|lifted| (recorded, lifted))
        };
        let first = lifted(rendered(&program, seed), false).expect("a recording that can be lifted");
        // The change may already be refused when it is lifted: an address that no memory holds.
        if let Ok(second) = lifted(rendered(&program, seed ^ 1), true) {
            prop_assert!(compare_twins((&first.0, &first.1), (&second.0, &second.1)).is_err());
        }
    }
}

#[test]
fn random_recordings_use_addresses_twice_and_hold_declared_and_unknown_kernels() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;

    let mut runner = TestRunner::deterministic();
    let (mut num_reused, mut num_declared, mut num_unknown) = (0, 0, 0);
    for seed in 0..100 {
        let program = tellable(&programs().new_tree(&mut runner).expect("a program").current());
        let (recorded, mut device, addresses) = rendered(&program, seed);
        num_reused += usize::from(addresses.num_reused > 0);
        num_declared += usize::from(!recorded.declared.is_empty());
        num_unknown += usize::from(!lift(&recorded, &mut device).expect("liftable").unknown_kernels.is_empty());
    }
    assert!(num_reused >= 15 && num_declared >= 60 && num_unknown >= 40, "{num_reused} {num_declared} {num_unknown}");
}
