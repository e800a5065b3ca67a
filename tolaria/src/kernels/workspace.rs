//! What the gradient engine keeps on a GPU: the geometry of a layout, and memory for what lies between its passes.
//!
//! Everything is made once, so that a step allocates nothing and a recorded step finds all of it where it was.

use candle_core::{DType, Device, Result, Tensor};
use esper_graph::launch::THREADS;

use super::args::MAX_ROWS;
use crate::aggregate::solver_memory;
use crate::grad::Geometry;

/// Rows of a tile of the Gram matrix.
const TILE: usize = 8;
/// Chunks whose sums are added first, as in `kernels/geometry.cuh`.
const GROUP: usize = 16;
/// Words of a chunk and of a part in `kernels/geometry.cuh`.
const CHUNK_WORDS: usize = 10;
const PART_WORDS: usize = 10;
/// Dynamic shared memory that every device gives to a block.
const SHARED_BYTES: usize = 48 << 10;

/// Tables and memory for windows of up to so many rows over one geometry.
#[derive(Debug)]
pub(crate) struct Workspace {
    pub(super) num_rows: usize,
    pub(super) num_elements: usize,
    pub(super) slots: usize,
    pub(super) num_parts: usize,
    pub(super) num_chunks: usize,
    /// Groups and chunks of the part that has most.
    pub(super) most_groups: usize,
    pub(super) most_chunks: usize,
    /// First chunk of each part, and their number at the end.
    pub(super) first_chunks: Vec<usize>,
    /// First element of each part, and their number at the end.
    pub(super) starts: Vec<usize>,
    pub(super) chunks: Tensor,
    pub(super) parts: Tensor,
    pub(super) partials: Tensor,
    pub(super) groups: Tensor,
    pub(super) grams: Tensor,
    pub(super) coefficients: Tensor,
    one: Tensor,
    pub(super) squares: Tensor,
    pub(super) part_squares: Tensor,
    pub(super) domains: Tensor,
    pub(super) factors: Tensor,
    /// What the weighting needs; absent when no window is resolved.
    solver: Option<usize>,
    /// For the solver, when it needs more than shared memory.
    pub(super) memory: Option<Tensor>,
}

impl Workspace {
    /// Memory of zeros for up to `num_rows` rows, which the kernels have room for. `solver`: numbers that the weighting
    /// needs; without it there is no memory for inner products.
    pub(crate) fn new(geometry: &Geometry, num_rows: usize, solver: Option<usize>, device: &Device) -> Result<Self> {
        if num_rows == 0 || num_rows > MAX_ROWS {
            candle_core::bail!("windows of {num_rows} rows: the kernels take 1 to {MAX_ROWS}")
        }
        let (parts, chunks, slots) = (geometry.parts(), geometry.chunks(), geometry.owners().len());
        let mut first_chunks = Vec::with_capacity(parts.len() + 1);
        let mut part_words = Vec::with_capacity(parts.len() * PART_WORDS);
        let (mut first_chunk, mut first_group) = (0, 0);
        let (mut most_chunks, mut most_groups) = (0, 0);
        for (index, part) in parts.iter().enumerate() {
            let num_chunks = chunks[first_chunk..].iter().take_while(|chunk| chunk.part == index).count();
            let num_groups = num_chunks.div_ceil(GROUP);
            part_words.extend(halves(part.range.start));
            part_words.extend(halves(part.range.len()));
            part_words.extend([part.slot, part.domain(), first_chunk, num_chunks, first_group, num_groups].map(word));
            first_chunks.push(first_chunk);
            first_chunk += num_chunks;
            first_group += num_groups;
            most_chunks = most_chunks.max(num_chunks);
            most_groups = most_groups.max(num_groups);
        }
        first_chunks.push(first_chunk);
        let starts = parts.iter().map(|part| part.range.start).chain([geometry.num_elements()]).collect();
        let chunk_words: Vec<u32> = chunks
            .iter()
            .flat_map(|chunk| {
                let (own, part) = (&chunk.range, &parts[chunk.part]);
                let places = [own.start, part.range.start, part.range.len()].map(halves);
                [places[0], [own.len(), chunk.part].map(word), places[1], places[2], [word(part.domain()), 0]].concat()
            })
            .collect();
        let numbers = |count: usize| Tensor::zeros(count.max(1), DType::F64, device);
        let table = |words: Vec<u32>, width: usize| {
            let rows = words.len() / width;
            if rows == 0 {
                Tensor::zeros((1, width), DType::U32, device)
            } else {
                Tensor::from_vec(words, (rows, width), device)
            }
        };
        let num_products = if solver.is_some() { num_rows } else { 0 };
        let size = if solver.is_some() { pairs_of(tiles_of(num_rows)) * TILE * TILE } else { 0 };
        let memory = solver.map_or(0, |scratch| solver_memory(num_rows, slots, THREADS as usize, scratch));
        Ok(Self {
            num_rows,
            num_elements: geometry.num_elements(),
            slots,
            num_parts: parts.len(),
            num_chunks: chunks.len(),
            most_groups,
            most_chunks,
            first_chunks,
            starts,
            chunks: table(chunk_words, CHUNK_WORDS)?,
            parts: table(part_words, PART_WORDS)?,
            partials: numbers(chunks.len() * size)?,
            groups: numbers(first_group * size)?,
            grams: numbers(parts.len() * num_products * num_products)?,
            coefficients: Tensor::zeros(2 * num_rows, DType::F32, device)?,
            one: Tensor::ones(2, DType::F32, device)?,
            squares: numbers(chunks.len())?,
            part_squares: numbers(parts.len())?,
            domains: numbers(1 + 3 * slots)?,
            factors: Tensor::ones(parts.len().max(1), DType::F32, device)?,
            solver,
            memory: (memory * size_of::<f64>() > SHARED_BYTES).then(|| numbers(memory)).transpose()?,
        })
    }

    /// Bytes of shared memory that the solver asks for.
    pub(super) fn shared_bytes(&self, num_rows: usize) -> Result<usize> {
        let Some(scratch) = self.solver else {
            candle_core::bail!("a window is resolved in memory that was made for averages only")
        };
        let memory = solver_memory(num_rows, self.slots, THREADS as usize, scratch);
        Ok(if self.memory.is_some() { 0 } else { memory * size_of::<f64>() })
    }

    /// Coefficients of the last window of so many rows, (2 · rows,): of parts that are not isolated, then of those that
    /// are.
    pub(crate) fn coefficients(&self, num_rows: usize) -> Result<Tensor> {
        self.coefficients.narrow(0, 0, 2 * num_rows)
    }

    /// The coefficients of a row alone, (2,).
    pub(crate) fn one(&self) -> &Tensor {
        &self.one
    }

    /// Factors of the last window, one per part.
    pub(crate) fn factors(&self) -> &Tensor {
        &self.factors
    }

    /// Every tensor, with a name for messages: a recorded step points at them.
    pub(crate) fn tensors(&self) -> impl Iterator<Item = (&'static str, &Tensor)> {
        let named = [
            ("chunks of the gradient", &self.chunks),
            ("parts of the gradient", &self.parts),
            ("inner products of chunks", &self.partials),
            ("inner products of groups", &self.groups),
            ("inner products of parts", &self.grams),
            ("coefficients", &self.coefficients),
            ("coefficients of one row", &self.one),
            ("squared norms of chunks", &self.squares),
            ("squared norms of parts", &self.part_squares),
            ("squared norms of domains", &self.domains),
            ("factors", &self.factors),
        ];
        named.into_iter().chain(self.memory.as_ref().map(|memory| ("memory of the solver", memory)))
    }
}

/// Tiles that the rows are multiplied in: of the numbers that there are kernels for.
pub(super) fn tiles_of(num_rows: usize) -> usize {
    num_rows.div_ceil(TILE).next_power_of_two()
}

/// Unordered pairs of tiles.
pub(super) fn pairs_of(tiles: usize) -> usize {
    tiles * (tiles + 1) / 2
}

fn word(value: usize) -> u32 {
    u32::try_from(value).expect("parts and chunks are fewer than 2^32")
}

#[expect(clippy::cast_possible_truncation, reason = "the two halves of a 64-bit number")]
fn halves(value: usize) -> [u32; 2] {
    let value = value as u64;
    [value as u32, (value >> 32) as u32]
}
