//! Reference interpreter: runs a program on bytes, so that two programs can be compared.
//!
//! Element-wise kernels compute what they say, and so do gradients of rectifiers that a pass may move. All others are
//! synthetic: what a launch writes is a pseudo-random function of its name, its launch shape, its parameters and the bytes
//! it reads; never of where these bytes lie. Any floats in it are positive and finite, so that adding zero to one changes no
//! bit.
//!
//! Bytes that nobody wrote are refused where they are read; a kernel that may also write them, as the output of a library's
//! kernel may have to be declared, finds a fixed value. A step in the field has more of them: an output that is declared too
//! narrowly, or not at all. There a launch of a recorded kernel finds the fixed value wherever the program before the
//! passes has written nothing, and leaves something in each of these bytes: [`Assumed`].

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::block::{BlockId, Lifetime, Region};
use super::evaluate::evaluate_row;
use super::fused::{Access, Body, index};
use super::gates::taken_apart;
use super::kernel::{Code, Kernel};
use super::node::{NodeIndex, NodeKind};
use super::pipeline::Compiled;
use super::program::Program;

/// What a byte that nobody wrote is to a kernel that may read it all the same.
const POISON: u8 = 0xA5;
/// From so many bytes on, a block that recorded kernels alone use, and always as a whole, is one number.
const MIN_STATE_BYTES: usize = 1 << 20;
/// Most bytes that the blocks of a program may hold at one time.
pub(super) const MAX_HELD_BYTES: usize = 1 << 28;

/// What external blocks hold; of those that are one number, its bytes.
pub(crate) type Results = BTreeMap<BlockId, Vec<u8>>;

/// Why a program could not be run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InterpretError {
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
    /// The blocks hold more than the interpreter may take.
    #[error("its blocks hold {bytes} bytes at one time, and {most} are the most that are interpreted")]
    TooLarge {
        /// Bytes of the blocks.
        bytes: usize,
        /// Most that they may have.
        most: usize,
    },
    /// Whoever asked for it wants it no more.
    #[error("it was stopped, or took too long")]
    Stopped,
}

/// What a program and whatever passes make of it have in common when they are run.
#[derive(Debug, Default)]
pub(super) struct Assumed {
    /// External blocks of which only what was done to them is known, in one number.
    states: BTreeSet<BlockId>,
    /// For each kernel by its recorded node and each of its pointers: which of the bytes that are read, and which of those
    /// that may be written, nobody wrote before. Counted from the start of the region.
    unwritten: BTreeMap<usize, Vec<[Ranges; 2]>>,
}

type Ranges = Vec<Range<usize>>;

/// Whether what is assumed is taken as it is, or found out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Assuming {
    Given,
    Found,
}

/// Runs the nodes of a valid program in the order given, or as listed, and returns the external blocks.
///
/// # Errors
/// [`InterpretError::Order`] for a wrong order, [`InterpretError::Input`] for wrong `external` bytes,
/// [`InterpretError::Undefined`] where the result would depend on what was in memory before.
#[cfg(test)]
pub(crate) fn interpret(
    program: &Program,
    order: Option<&[NodeIndex]>,
    external: &Results,
) -> Result<Results, InterpretError> {
    let mut assumed = Assumed::default();
    let mut memory = Memory::new(program, external, (&mut assumed, Assuming::Given), &|| true)?;
    memory.run_all(program, order)?;
    Ok(memory.into_external(program))
}

/// Runs the part that runs once, then the program `replays` times, and returns the external blocks.
///
/// # Errors
/// As [`interpret`].
#[cfg(test)]
pub(crate) fn interpret_compiled(
    compiled: &Compiled,
    order: Option<&[NodeIndex]>,
    external: &Results,
    replays: usize,
) -> Result<Results, InterpretError> {
    let mut assumed = Assumed::default();
    let mut memory = Memory::new(&compiled.program, external, (&mut assumed, Assuming::Given), &|| true)?;
    memory.run_all(&compiled.once, None)?;
    for _ in 0..replays {
        memory.run_all(&compiled.program, order)?;
    }
    Ok(memory.into_external(&compiled.program))
}

/// Runs a program before any pass, and finds out what is to be assumed of all that passes make of it. `goes_on` is asked
/// before each node.
///
/// # Errors
/// [`InterpretError::Undefined`], [`InterpretError::TooLarge`] and [`InterpretError::Stopped`].
pub(super) fn observe(program: &Program, goes_on: &dyn Fn() -> bool) -> Result<(Results, Assumed), InterpretError> {
    let mut assumed = Assumed { states: states(program), unwritten: unwritten_slots(program) };
    check_size(program, &assumed.states)?;
    let mut memory = Memory::new(program, &inputs(program, &assumed.states), (&mut assumed, Assuming::Found), goes_on)?;
    memory.run_all(program, None)?;
    let results = memory.into_external(program);
    Ok((results, assumed))
}

/// Runs what passes made of a program, once, from the same bytes as [`observe`].
///
/// # Errors
/// As [`observe`].
pub(super) fn run_assuming(
    compiled: &Compiled,
    assumed: &mut Assumed,
    goes_on: &dyn Fn() -> bool,
) -> Result<Results, InterpretError> {
    check_size(&compiled.program, &assumed.states)?;
    let external = inputs(&compiled.program, &assumed.states);
    let mut memory = Memory::new(&compiled.program, &external, (assumed, Assuming::Given), goes_on)?;
    memory.run_all(&compiled.once, None)?;
    memory.run_all(&compiled.program, None)?;
    Ok(memory.into_external(&compiled.program))
}

/// Bytes for external blocks, the same for the same blocks.
fn inputs(program: &Program, states: &BTreeSet<BlockId>) -> Results {
    let external = external(program).filter(|(id, _)| !states.contains(id));
    external
        .map(|(id, size)| (id, (0..size).map(|at| tame(id.0.wrapping_mul(37) ^ (at.wrapping_mul(101) >> 2))).collect()))
        .collect()
}

/// A byte of which any number of them in a row is a positive finite float.
fn tame(number: usize) -> u8 {
    let [lowest, ..] = number.to_le_bytes();
    lowest & 0x3F
}

fn external(program: &Program) -> impl Iterator<Item = (BlockId, usize)> {
    let blocks = program.blocks.iter().enumerate();
    blocks.filter(|(_, block)| block.lifetime == Lifetime::External).map(|(id, block)| (BlockId(id), block.size_bytes))
}

fn check_size(program: &Program, states: &BTreeSet<BlockId>) -> Result<(), InterpretError> {
    let outside = external(program).filter(|(id, _)| !states.contains(id)).map(|(_, size)| size);
    let bytes = outside.fold(program.peak_bytes(), usize::saturating_add);
    if bytes > MAX_HELD_BYTES {
        return Err(InterpretError::TooLarge { bytes, most: MAX_HELD_BYTES });
    }
    Ok(())
}

/// What a kernel computes element by element, and what it does before that.
fn computed(kernel: &Kernel) -> Option<(Option<Kernel>, Body)> {
    match taken_apart(kernel) {
        Some((first, then)) => Some((first, Body::of(&then)?)),
        None => Some((None, Body::of(kernel)?)),
    }
}

/// Large external blocks that recorded kernels alone use, each time as a whole: a work space.
fn states(program: &Program) -> BTreeSet<BlockId> {
    let mut states: BTreeSet<BlockId> =
        external(program).filter(|&(_, size)| size >= MIN_STATE_BYTES).map(|(id, _)| id).collect();
    for node in &program.nodes {
        let recorded = matches!(&node.kind, NodeKind::Kernel(kernel) if computed(kernel).is_none());
        let written = node.kind.each_write().map(|write| write.region);
        for region in node.kind.each_read().chain(written) {
            if !recorded || region.len() != program.blocks[region.block.0].size_bytes {
                states.remove(&region.block);
            }
        }
    }
    states
}

/// The recorded kernels of which each stands for one launch, with nothing known yet of any.
fn unwritten_slots(program: &Program) -> BTreeMap<usize, Vec<[Ranges; 2]>> {
    let mut counts = BTreeMap::<usize, usize>::new();
    let recorded = program.nodes.iter().filter_map(|node| match &node.kind {
        NodeKind::Kernel(Kernel { code: Code::Recorded(recorded), .. }) => Some(*recorded),
        _ => None,
    });
    recorded.for_each(|recorded| *counts.entry(recorded).or_default() += 1);
    counts.into_iter().filter(|&(_, count)| count == 1).map(|(recorded, _)| (recorded, Vec::new())).collect()
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

/// The bytes of a block, and which of them somebody wrote; of a block that is one number, that number.
#[derive(Default)]
struct Bytes {
    values: Vec<u8>,
    is_written: Vec<bool>,
    state: Option<u64>,
}

impl Bytes {
    fn unwritten(size_bytes: usize) -> Self {
        Self { values: vec![0; size_bytes], is_written: vec![false; size_bytes], state: None }
    }
}

/// All blocks; one of the graph's own has bytes between its allocation and its release.
struct Memory<'a> {
    blocks: Vec<Bytes>,
    assumed: &'a mut Assumed,
    assuming: Assuming,
    goes_on: &'a dyn Fn() -> bool,
}

impl<'a> Memory<'a> {
    fn new(
        program: &Program,
        external: &Results,
        (assumed, assuming): (&'a mut Assumed, Assuming),
        goes_on: &'a dyn Fn() -> bool,
    ) -> Result<Self, InterpretError> {
        let mut blocks = Vec::with_capacity(program.blocks.len());
        for (index, block) in program.blocks.iter().enumerate() {
            let id = BlockId(index);
            blocks.push(match block.lifetime {
                Lifetime::External if assumed.states.contains(&id) => {
                    Bytes { state: Some(index as u64), ..Bytes::default() }
                }
                Lifetime::External => {
                    let given = external.get(&id).filter(|given| given.len() == block.size_bytes);
                    let values = given.ok_or(InterpretError::Input { block: id })?.clone();
                    Bytes { is_written: vec![true; values.len()], values, state: None }
                }
                Lifetime::Arena => Bytes::unwritten(block.size_bytes),
                Lifetime::Graph => Bytes::default(),
            });
        }
        Ok(Self { blocks, assumed, assuming, goes_on })
    }

    fn run_all(&mut self, program: &Program, order: Option<&[NodeIndex]>) -> Result<(), InterpretError> {
        let listed: Vec<NodeIndex> = (0..program.nodes.len()).map(NodeIndex).collect();
        let order = order.unwrap_or(&listed);
        check_order(program, order)?;
        order.iter().try_for_each(|&node| self.run(program, node))
    }

    fn into_external(self, program: &Program) -> Results {
        let result = |(id, _): (BlockId, usize)| {
            let block = &self.blocks[id.0];
            (id, block.state.map_or_else(|| block.values.clone(), |state| state.to_le_bytes().to_vec()))
        };
        external(program).map(result).collect()
    }

    fn run(&mut self, program: &Program, node: NodeIndex) -> Result<(), InterpretError> {
        if !(self.goes_on)() {
            return Err(InterpretError::Stopped);
        }
        match &program.nodes[node.0].kind {
            NodeKind::Kernel(kernel) => match computed(kernel) {
                Some((first, body)) => {
                    first.map_or(Ok(()), |first| self.launch(node, &first))?;
                    self.compute(node, &body)?;
                }
                None => self.launch(node, kernel)?,
            },
            NodeKind::Memset { region, pattern } => {
                let value = pattern.value.to_le_bytes();
                let bytes: Vec<u8> = (0..region.len()).map(|position| value[position % pattern.width_bytes]).collect();
                self.write(node, region, &bytes)?;
            }
            NodeKind::Copy { source, destination } => {
                let bytes = self.read(node, source)?.to_vec();
                self.write(node, destination, &bytes)?;
            }
            NodeKind::Alloc(block) => self.blocks[block.0] = Bytes::unwritten(program.blocks[block.0].size_bytes),
            NodeKind::Free(block) => self.blocks[block.0] = Bytes::default(),
            NodeKind::Empty => {}
        }
        Ok(())
    }

    /// What a recorded kernel writes.
    fn launch(&mut self, node: NodeIndex, kernel: &Kernel) -> Result<(), InterpretError> {
        let unwritten = self.unwritten_of(kernel);
        let mut hash = digest(kernel);
        for (index, pointer) in kernel.pointers.iter().enumerate() {
            let Some(region) = pointer.read else { continue };
            if let Some(state) = self.blocks[region.block.0].state {
                hash.add(state);
                continue;
            }
            let block = &self.blocks[region.block.0];
            let undefined = InterpretError::Undefined { node, block: region.block };
            let mut bytes = block.values.get(region.start..region.end).ok_or(undefined)?.to_vec();
            let mut is_known = block.is_written[region.start..region.end].to_vec();
            let may_be_output = pointer.write.is_some_and(|write| !write.is_full);
            let missing = match &unwritten {
                Some(of) => of[index][0].clone(),
                None if may_be_output => gaps(&is_known),
                None => Ranges::new(),
            };
            for range in missing {
                bytes[range.clone()].fill(POISON);
                is_known[range].fill(true);
            }
            if is_known.contains(&false) {
                return Err(undefined);
            }
            hash.add_bytes(&bytes);
        }
        for (index, pointer) in kernel.pointers.iter().enumerate() {
            let Some(write) = pointer.write else { continue };
            let mut hash = Hash(hash.0);
            hash.add(index as u64);
            let (start, end) = (write.region.start, write.region.end);
            let block = &mut self.blocks[write.region.block.0];
            if let Some(state) = &mut block.state {
                hash.add(if write.is_full { 0 } else { *state });
                *state = hash.0;
                continue;
            }
            if block.values.len() < end {
                return Err(InterpretError::Undefined { node, block: write.region.block });
            }
            let mut is_certain = vec![write.is_full; end - start];
            let always = unwritten.iter().flat_map(|of| &of[index][1]);
            always.for_each(|range| is_certain[range.clone()].fill(true));
            let written = block.values[start..end].iter_mut().zip(&mut block.is_written[start..end]);
            for (position, (is_certain, (value, is_written))) in is_certain.into_iter().zip(written).enumerate() {
                if position.is_multiple_of(8) {
                    hash.add(1);
                }
                let byte = hash.0.to_le_bytes()[position % 8];
                if is_certain || byte & 0x40 == 0 {
                    (*value, *is_written) = (byte & 0x3F, true);
                }
            }
        }
        Ok(())
    }

    /// For each pointer of a kernel, which bytes it reads and may write that nobody wrote: as they were found in the program
    /// before the passes. None where it is not known which launch of it this is.
    fn unwritten_of(&mut self, kernel: &Kernel) -> Option<Vec<[Ranges; 2]>> {
        let Code::Recorded(recorded) = kernel.code else { return None };
        let known = self.assumed.unwritten.get_mut(&recorded)?;
        if self.assuming == Assuming::Found {
            let gaps_of = |region: Region| {
                gaps(self.blocks[region.block.0].is_written.get(region.start..region.end).unwrap_or_default())
            };
            let gaps_of = |region: Option<Region>| region.map(gaps_of).unwrap_or_default();
            let pointers = kernel.pointers.iter();
            *known = pointers.map(|of| [gaps_of(of.read), gaps_of(of.write.map(|write| write.region))]).collect();
        }
        (known.len() == kernel.pointers.len()).then(|| known.clone())
    }

    /// What an element-wise kernel writes.
    fn compute(&mut self, node: NodeIndex, body: &Body) -> Result<(), InterpretError> {
        let types = body.types().expect("the types of a sound body fit");
        let mut inputs = Vec::new();
        for access in &body.operands {
            inputs.push(self.read_elements(node, body.elements, access)?);
        }
        let mut results = vec![Vec::new(); body.outputs.len()];
        let columns = body.columns;
        let compute = |row: usize| {
            evaluate_row(&body.steps, &types, columns, |operand, column| inputs[operand][row * columns + column])
        };
        for values in (0..body.rows()).map(compute) {
            for (store, result) in body.outputs.iter().zip(&mut results) {
                let count = if store.is_per_row { 1 } else { columns };
                for value in &values[store.step][..count] {
                    result.extend_from_slice(&value.to_le_bytes()[..store.element.size_bytes()]);
                }
            }
        }
        body.outputs.iter().zip(&results).try_for_each(|(store, result)| self.write(node, &store.region, result))
    }

    fn read_elements(&self, node: NodeIndex, elements: usize, access: &Access) -> Result<Vec<u64>, InterpretError> {
        let size_bytes = access.element.size_bytes();
        let element = |position: usize| {
            let start = access.region.start + index(&access.dims, position) * size_bytes;
            let bytes = self.read(node, &Region::new(access.region.block, start, start + size_bytes))?;
            let mut word = [0; 8];
            word[..size_bytes].copy_from_slice(bytes);
            Ok(u64::from_le_bytes(word))
        };
        (0..elements).map(element).collect()
    }

    fn read(&self, node: NodeIndex, region: &Region) -> Result<&[u8], InterpretError> {
        let block = &self.blocks[region.block.0];
        let is_written = block.is_written.get(region.start..region.end);
        if is_written.is_none_or(|bytes| bytes.contains(&false)) {
            return Err(InterpretError::Undefined { node, block: region.block });
        }
        Ok(&block.values[region.start..region.end])
    }

    fn write(&mut self, node: NodeIndex, region: &Region, bytes: &[u8]) -> Result<(), InterpretError> {
        let block = &mut self.blocks[region.block.0];
        let values = block.values.get_mut(region.start..region.end);
        values.ok_or(InterpretError::Undefined { node, block: region.block })?.copy_from_slice(bytes);
        block.is_written[region.start..region.end].fill(true);
        Ok(())
    }
}

/// The ranges in which nothing was written.
fn gaps(is_written: &[bool]) -> Ranges {
    let mut gaps = Ranges::new();
    for (position, _) in is_written.iter().enumerate().filter(|(_, is_written)| !**is_written) {
        match gaps.last_mut() {
            Some(gap) if gap.end == position => gap.end += 1,
            _ => gaps.push(position..position + 1),
        }
    }
    gaps
}

/// Everything that a launch is a function of but the bytes it reads: the address of a pointer counts as its distance from
/// what it reaches.
fn digest(kernel: &Kernel) -> Hash {
    let mut hash = Hash(0);
    hash.add_bytes(kernel.name.as_bytes());
    kernel.launch.grid.iter().chain(&kernel.launch.block).for_each(|&count| hash.add(count.into()));
    hash.add(kernel.launch.shared_bytes.into());
    for (word, &value) in kernel.parameters.iter().enumerate() {
        let is_pointer = kernel.pointers.iter().any(|pointer| pointer.word_index == word);
        hash.add(if is_pointer { 0 } else { value });
    }
    for pointer in &kernel.pointers {
        let written = pointer.write.map(|write| write.region);
        for region in pointer.read.iter().chain(&written) {
            hash.add((pointer.offset_bytes as u64).wrapping_sub(region.start as u64));
        }
    }
    hash
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

    /// Eight at a time, and how many there are.
    fn add_bytes(&mut self, bytes: &[u8]) {
        self.add(bytes.len() as u64);
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.add(u64::from_le_bytes(word));
        }
    }
}
