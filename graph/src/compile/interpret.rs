//! Reference interpreter: runs a program on bytes, so that two programs can be compared.
//!
//! Element-wise kernels compute what they say. All others are synthetic: what a launch writes is a pseudo-random
//! function of its name, its launch shape, its parameters and the bytes it reads; never of where these bytes lie. Any
//! floats in it are positive and finite, so that adding zero to one changes no bit.
//! Bytes that nobody wrote may be read by a kernel that may also write them, as the output of a library's kernel may
//! have to be declared; they are the same in every program.

use std::collections::BTreeMap;

use super::block::{BlockId, Lifetime, Region};
use super::evaluate::evaluate;
use super::fused::{Access, Body, index};
use super::kernel::Kernel;
use super::node::{NodeIndex, NodeKind};
use super::pipeline::Compiled;
use super::program::Program;

/// What a byte that nobody wrote is to a kernel that may also write it.
const POISON: u8 = 0xA5;

/// Why a program could not be run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InterpretError {
    /// The order given is not one of all nodes, each once and after its dependencies.
    #[error("the order does not hold every node once, after its dependencies")]
    Order,
    /// An external block has no bytes or the wrong number of them.
    #[error("{block} was not given its bytes")]
    Input {
        /// The block.
        block: BlockId,
    },
    /// A node reads bytes that were never written.
    #[error("{node} reads bytes of {block} that nothing wrote")]
    Undefined {
        /// The node.
        node: NodeIndex,
        /// The block.
        block: BlockId,
    },
}

/// Runs the nodes of a valid program in the order given, or as listed, and returns the external blocks.
///
/// # Errors
/// [`InterpretError::Order`] for a wrong order, [`InterpretError::Input`] for wrong `external` bytes,
/// [`InterpretError::Undefined`] where the result would depend on what was in memory before.
pub(crate) fn interpret(
    program: &Program,
    order: Option<&[NodeIndex]>,
    external: &BTreeMap<BlockId, Vec<u8>>,
) -> Result<BTreeMap<BlockId, Vec<u8>>, InterpretError> {
    let mut memory = Memory::new(program, external)?;
    memory.run_all(program, order)?;
    Ok(memory.into_external(program))
}

/// Runs the part that runs once, then the program `replays` times, and returns the external blocks.
///
/// # Errors
/// As [`interpret`].
pub(crate) fn interpret_compiled(
    compiled: &Compiled,
    order: Option<&[NodeIndex]>,
    external: &BTreeMap<BlockId, Vec<u8>>,
    replays: usize,
) -> Result<BTreeMap<BlockId, Vec<u8>>, InterpretError> {
    let mut memory = Memory::new(&compiled.program, external)?;
    memory.run_all(&compiled.once, None)?;
    for _ in 0..replays {
        memory.run_all(&compiled.program, order)?;
    }
    Ok(memory.into_external(&compiled.program))
}

fn check_order(program: &Program, order: &[NodeIndex]) -> Result<(), InterpretError> {
    let mut is_done = vec![false; program.nodes.len()];
    for &node in order {
        let dependencies = &program.nodes.get(node.0).ok_or(InterpretError::Order)?.dependencies;
        if is_done[node.0] || dependencies.iter().any(|dependency| !is_done[dependency.0]) {
            return Err(InterpretError::Order);
        }
        is_done[node.0] = true;
    }
    if is_done.iter().all(|&done| done) { Ok(()) } else { Err(InterpretError::Order) }
}

/// The bytes of all blocks; none where nothing was written.
struct Memory {
    bytes: Vec<Vec<Option<u8>>>,
}

impl Memory {
    fn new(program: &Program, external: &BTreeMap<BlockId, Vec<u8>>) -> Result<Self, InterpretError> {
        let mut bytes = Vec::new();
        for (index, block) in program.blocks.iter().enumerate() {
            let id = BlockId(index);
            bytes.push(if block.lifetime == Lifetime::External {
                let given = external.get(&id).filter(|given| given.len() == block.size_bytes);
                given.ok_or(InterpretError::Input { block: id })?.iter().copied().map(Some).collect()
            } else {
                vec![None; block.size_bytes]
            });
        }
        Ok(Self { bytes })
    }

    fn run_all(&mut self, program: &Program, order: Option<&[NodeIndex]>) -> Result<(), InterpretError> {
        let listed: Vec<NodeIndex> = (0..program.nodes.len()).map(NodeIndex).collect();
        let order = order.unwrap_or(&listed);
        check_order(program, order)?;
        order.iter().try_for_each(|&node| self.run(node, &program.nodes[node.0].kind))
    }

    fn into_external(self, program: &Program) -> BTreeMap<BlockId, Vec<u8>> {
        let blocks = self.bytes.into_iter().zip(&program.blocks).enumerate();
        let external = blocks.filter(|(_, (_, block))| block.lifetime == Lifetime::External);
        external.map(|(block, (bytes, _))| (BlockId(block), bytes.into_iter().flatten().collect())).collect()
    }

    fn run(&mut self, node: NodeIndex, kind: &NodeKind) -> Result<(), InterpretError> {
        match kind {
            NodeKind::Kernel(kernel) => self.launch(node, kernel)?,
            NodeKind::Memset { region, pattern } => {
                let value = pattern.value.to_le_bytes();
                let width = pattern.width_bytes;
                for (position, byte) in self.slice(region).iter_mut().enumerate() {
                    *byte = Some(value[position % width]);
                }
            }
            NodeKind::Copy { source, destination } => {
                let bytes = self.read(node, source)?;
                self.write(destination, &bytes);
            }
            NodeKind::Alloc(block) | NodeKind::Free(block) => self.bytes[block.0].fill(None),
            NodeKind::Empty => {}
        }
        Ok(())
    }

    fn launch(&mut self, node: NodeIndex, kernel: &Kernel) -> Result<(), InterpretError> {
        if let Some(body) = Body::of(kernel) {
            return self.compute(node, &body);
        }
        let mut inputs = Vec::new();
        for pointer in &kernel.pointers {
            let may_be_output = pointer.write.is_some_and(|write| !write.is_full);
            inputs.push(match pointer.read {
                Some(region) if may_be_output => {
                    self.slice(&region).iter().map(|byte| byte.unwrap_or(POISON)).collect()
                }
                Some(region) => self.read(node, &region)?,
                None => Vec::new(),
            });
        }
        let state = digest(kernel, &inputs);
        for (index, pointer) in kernel.pointers.iter().enumerate() {
            let Some(write) = pointer.write else { continue };
            let mut hash = Hash(state);
            hash.add(index as u64);
            for byte in self.slice(&write.region) {
                hash.add(1);
                let [value, choice, ..] = hash.0.to_le_bytes();
                if write.is_full || choice % 2 == 0 {
                    *byte = Some(value & 0x3F);
                }
            }
        }
        Ok(())
    }

    /// What an element-wise kernel writes.
    fn compute(&mut self, node: NodeIndex, body: &Body) -> Result<(), InterpretError> {
        let types = body.types().expect("the types of a sound body fit");
        let mut inputs = Vec::new();
        for access in &body.operands {
            inputs.push(self.read_elements(node, body.elements, access)?);
        }
        let mut results = vec![Vec::new(); body.outputs.len()];
        let compute = |position: usize| evaluate(&body.steps, &types, |operand| inputs[operand][position]);
        for values in (0..body.elements).map(compute) {
            for (store, result) in body.outputs.iter().zip(&mut results) {
                result.extend_from_slice(&values[store.step].to_le_bytes()[..store.element.size_bytes()]);
            }
        }
        for (store, result) in body.outputs.iter().zip(&results) {
            self.write(&store.region, result);
        }
        Ok(())
    }

    fn read_elements(&self, node: NodeIndex, elements: usize, access: &Access) -> Result<Vec<u64>, InterpretError> {
        let size_bytes = access.element.size_bytes();
        let element = |position: usize| {
            let start = access.region.start + index(&access.dims, position) * size_bytes;
            let bytes = self.read(node, &Region::new(access.region.block, start, start + size_bytes))?;
            let mut word = [0; 8];
            word[..size_bytes].copy_from_slice(&bytes);
            Ok(u64::from_le_bytes(word))
        };
        (0..elements).map(element).collect()
    }

    fn slice(&mut self, region: &Region) -> &mut [Option<u8>] {
        &mut self.bytes[region.block.0][region.start..region.end]
    }

    fn read(&self, node: NodeIndex, region: &Region) -> Result<Vec<u8>, InterpretError> {
        let bytes = self.bytes[region.block.0][region.start..region.end].iter().copied();
        bytes.collect::<Option<_>>().ok_or(InterpretError::Undefined { node, block: region.block })
    }

    fn write(&mut self, region: &Region, bytes: &[u8]) {
        for (to, from) in self.slice(region).iter_mut().zip(bytes) {
            *to = Some(*from);
        }
    }
}

/// Everything that a launch is a function of: the address of a pointer counts as its distance from what it reaches.
fn digest(kernel: &Kernel, inputs: &[Vec<u8>]) -> u64 {
    let mut hash = Hash(0);
    kernel.name.bytes().for_each(|byte| hash.add(byte.into()));
    kernel.launch.grid.iter().chain(&kernel.launch.block).for_each(|&count| hash.add(count.into()));
    hash.add(kernel.launch.shared_bytes.into());
    for (word, &value) in kernel.parameters.iter().enumerate() {
        let is_pointer = kernel.pointers.iter().any(|pointer| pointer.word_index == word);
        hash.add(if is_pointer { 0 } else { value });
    }
    for (pointer, input) in kernel.pointers.iter().zip(inputs) {
        let written = pointer.write.map(|write| write.region);
        for region in pointer.read.iter().chain(&written) {
            hash.add((pointer.offset_bytes as u64).wrapping_sub(region.start as u64));
        }
        input.iter().for_each(|&byte| hash.add(byte.into()));
    }
    hash.0
}

/// A running hash; its step is the finalizer of `SplitMix64` (Steele, Lea and Flood 2014).
struct Hash(u64);

impl Hash {
    fn add(&mut self, value: u64) {
        let mut mixed = (self.0 ^ value.rotate_left(32)).wrapping_add(0x9E37_79B9_7F4A_7C15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        self.0 = mixed ^ (mixed >> 31);
    }
}
