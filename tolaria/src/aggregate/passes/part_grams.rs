//! Inner products of all pairs of rows, per part, in one read of the rows.
//!
//! A chunk is taken in blocks that fit into a first-level cache. A block is widened to `f64` once, then every tile of
//! row pairs passes over it, its sums in registers.

use std::cell::RefCell;

use pulp::{Simd, WithSimd};

use crate::cpu::{self, Divide, LANES};
use crate::grad::{Chunk, Geometry};

/// Bytes of the widened block, in a first-level cache of 32 to 48 KiB.
const BLOCK_BYTES: usize = 28 << 10;
/// Bytes of a cache line, that no vector of the block is to straddle.
const CACHE_LINE: usize = 64;
/// Sums kept until they are added in order, when chunks are spread over threads.
const MAX_PARTIALS: usize = 1 << 17;
/// Chunks that a thread takes at once.
const CHUNKS_PER_PIECE: usize = 2;

type Lanes = [f64; LANES];

thread_local! {
    static SCRATCH: RefCell<Scratch> = const { RefCell::new(Scratch { wide: Vec::new(), sums: Vec::new(), partials: Vec::new() }) };
}

/// Memory of one thread, kept from call to call.
#[derive(Debug, Default)]
struct Scratch {
    /// The widened block, row by row.
    wide: Vec<f64>,
    /// The lanes of each pair.
    sums: Vec<Lanes>,
    /// Sums of pairs, chunk by chunk.
    partials: Vec<f64>,
}

/// The symmetric matrices `g_i · g_j` of every part.
///
/// # Shapes
/// `rows` (P,) each; `grams` (parts, rows, rows)
pub(crate) fn part_grams(rows: &[&[f32]], geometry: &Geometry, grams: &mut [f64]) {
    let size = rows.len();
    let num_pairs = size * (size + 1) / 2;
    assert_eq!(grams.len(), geometry.parts().len() * size * size);
    grams.fill(0.0);
    let chunks = geometry.chunks();
    let threads = cpu::worth_threads(size * geometry.num_elements() * size_of::<f32>());
    // The partial sums of a group of chunks are added before the next group starts, which bounds their memory.
    let group = (MAX_PARTIALS / num_pairs.max(1)).max(1);
    let mut partials = SCRATCH.with_borrow_mut(|scratch| std::mem::take(&mut scratch.partials));
    for chunks in chunks.chunks(group) {
        partials.resize(chunks.len() * num_pairs, 0.0);
        let piece = Piece { chunks, partials: &mut partials, num_pairs };
        if threads {
            cpu::for_each(piece, CHUNKS_PER_PIECE, &|piece| piece.run(rows));
        } else {
            piece.run(rows);
        }
        for (chunk, sums) in chunks.iter().zip(partials.chunks_exact(num_pairs.max(1))) {
            let gram = &mut grams[chunk.part * size * size..][..size * size];
            for ((i, j), sum) in pairs(size).zip(sums) {
                gram[i * size + j] += sum;
            }
        }
    }
    SCRATCH.with_borrow_mut(|scratch| scratch.partials = partials);
    for gram in grams.chunks_exact_mut((size * size).max(1)) {
        for (i, j) in pairs(size) {
            gram[j * size + i] = gram[i * size + j];
        }
    }
}

/// Pairs with `i <= j`, row by row.
fn pairs(size: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..size).flat_map(move |i| (i..size).map(move |j| (i, j)))
}

/// Neighboring chunks.
struct Piece<'a> {
    chunks: &'a [Chunk],
    /// (chunks, pairs).
    partials: &'a mut [f64],
    num_pairs: usize,
}

impl Divide for Piece<'_> {
    fn len(&self) -> usize {
        self.chunks.len()
    }

    fn split_at(self, index: usize) -> (Self, Self) {
        let (left, right) = self.chunks.split_at(index);
        let (left_partials, right_partials) = self.partials.split_at_mut(index * self.num_pairs);
        (
            Self { chunks: left, partials: left_partials, num_pairs: self.num_pairs },
            Self { chunks: right, partials: right_partials, num_pairs: self.num_pairs },
        )
    }
}

impl Piece<'_> {
    fn run(self, rows: &[&[f32]]) {
        SCRATCH.with_borrow_mut(|scratch| {
            pulp::Arch::new().dispatch(Pass { piece: self, rows, scratch });
        });
    }
}

struct Pass<'a, 'b> {
    piece: Piece<'a>,
    rows: &'b [&'b [f32]],
    scratch: &'b mut Scratch,
}

impl WithSimd for Pass<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        // As many sums as there are registers for.
        if S::F64_LANES >= LANES { self.run::<S, 4>(simd) } else { self.run::<S, 3>(simd) }
    }
}

impl Pass<'_, '_> {
    #[inline(always)]
    fn run<S: Simd, const TILE: usize>(self, simd: S) {
        let Self { piece, rows, scratch } = self;
        if rows.is_empty() {
            return;
        }
        let size = rows.len();
        let max_columns = (BLOCK_BYTES / size_of::<Lanes>() / size).max(8);
        scratch.wide.resize((size * max_columns + 1) * LANES, 0.0);
        let aligned = scratch.wide.as_ptr().align_offset(CACHE_LINE).min(LANES);
        let wide = &mut scratch.wide[aligned..];
        scratch.sums.resize(piece.num_pairs, [0.0; LANES]);
        let sums = scratch.sums.as_mut_slice();
        for (chunk, partials) in piece.chunks.iter().zip(piece.partials.chunks_exact_mut(piece.num_pairs)) {
            sums.fill([0.0; LANES]);
            let full = chunk.range.start + chunk.range.len() / LANES * LANES;
            for start in (chunk.range.start..full).step_by(max_columns * LANES) {
                let end = full.min(start + max_columns * LANES);
                let columns = (end - start) / LANES;
                let wide = &mut wide[..size * columns * LANES];
                for (wide, row) in wide.chunks_exact_mut(columns * LANES).zip(rows) {
                    // Over elements: a loop over lanes would be turned into a scatter.
                    for (wide, value) in wide.iter_mut().zip(&row[start..end]) {
                        *wide = f64::from(*value);
                    }
                }
                Block { simd, size, columns, wide }.add::<TILE>(sums);
            }
            for (((i, j), sums), partial) in pairs(size).zip(sums.iter()).zip(partials) {
                let rest = full..chunk.range.end;
                *partial = cpu::sum_of_lanes(sums, &rows[i][rest.clone()], &rows[j][rest]);
            }
        }
    }
}

/// Widened elements of all rows.
struct Block<'a, S> {
    simd: S,
    /// Rows.
    size: usize,
    /// Lanes of a row.
    columns: usize,
    wide: &'a [f64],
}

impl<S: Simd> Block<'_, S> {
    /// Adds the products to the lanes of all pairs.
    #[inline(always)]
    fn add<const TILE: usize>(&self, sums: &mut [Lanes]) {
        for i in (0..self.size).step_by(TILE) {
            for j in (i..self.size).step_by(TILE) {
                match (i == j, (self.size - j).min(TILE)) {
                    (true, 4) => self.add_tile::<4, 4, true>([i, j], sums),
                    (true, 3) => self.add_tile::<3, 3, true>([i, j], sums),
                    (true, 2) => self.add_tile::<2, 2, true>([i, j], sums),
                    (true, _) => self.add_tile::<1, 1, true>([i, j], sums),
                    (false, 4) => self.add_tile::<TILE, 4, false>([i, j], sums),
                    (false, 3) => self.add_tile::<TILE, 3, false>([i, j], sums),
                    (false, 2) => self.add_tile::<TILE, 2, false>([i, j], sums),
                    (false, _) => self.add_tile::<TILE, 1, false>([i, j], sums),
                }
            }
        }
    }

    /// Rows from `i` with those from `j`. `DIAGONAL`: whether they are the same rows, so that half of the pairs do.
    #[inline(always)]
    fn add_tile<const R: usize, const C: usize, const DIAGONAL: bool>(&self, [i, j]: [usize; 2], sums: &mut [Lanes]) {
        // Vectors per row of lanes. Lanes are independent, so that each vector of them is a pass of its own.
        let vectors = LANES / S::F64_LANES;
        let row = |index: usize| {
            let lanes = &self.wide[index * self.columns * LANES..][..self.columns * LANES];
            &S::as_simd_f64s(lanes).0[..self.columns * vectors]
        };
        let a: [&[S::f64s]; R] = std::array::from_fn(|r| row(i + r));
        let b: [&[S::f64s]; C] = std::array::from_fn(|c| row(j + c));
        let sums = S::as_mut_simd_f64s(sums.as_flattened_mut()).0;
        for vector in 0..vectors {
            let at = |r: usize, c: usize| self.pair(i + r, j + c) * vectors + vector;
            let mut tile = [[self.simd.splat_f64s(0.0); C]; R];
            for r in 0..R {
                for c in if DIAGONAL { r } else { 0 }..C {
                    tile[r][c] = sums[at(r, c)];
                }
            }
            for column in 0..self.columns {
                let column = column * vectors + vector;
                for r in 0..R {
                    for c in if DIAGONAL { r } else { 0 }..C {
                        // A product of two `f32` is exact in `f64`: fused with the sum or not, the bits are the same.
                        tile[r][c] = self.simd.mul_add_e_f64s(a[r][column], b[c][column], tile[r][c]);
                    }
                }
            }
            for r in 0..R {
                for c in if DIAGONAL { r } else { 0 }..C {
                    sums[at(r, c)] = tile[r][c];
                }
            }
        }
    }

    /// Index of a pair in the order of [`pairs`].
    #[inline(always)]
    fn pair(&self, i: usize, j: usize) -> usize {
        // Rows before i have `size`, `size - 1`, … pairs.
        i * (2 * self.size + 1 - i) / 2 + j - i
    }
}

#[cfg(test)]
mod tests;
