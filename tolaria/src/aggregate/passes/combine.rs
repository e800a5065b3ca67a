//! Linear combinations of rows, in place, and the squares of the result.

use std::cell::RefCell;
use std::ops::Range;

use crate::cpu::{self, Divide, LANES};
use crate::grad::{Chunk, Geometry};

/// Elements per block: the block being summed stays in the first-level cache while the rows pass by.
const BLOCK: usize = 2048;
/// Chunks that a thread takes at once.
const CHUNKS_PER_PIECE: usize = 4;

thread_local! {
    /// Squares of the chunks, kept from call to call.
    static SQUARES: RefCell<Vec<f64>> = const { RefCell::new(Vec::new()) };
}

/// Replaces `first` by `(c_0 g_0 + c_1 g_1) + …`, from the first row to the last, each operation rounded, then each part
/// times its factor.
///
/// # Shapes
/// rows (P,); `coefficients` (2, rows): those of parts that are not isolated, and those of parts that are; `factors`
/// (parts,)
pub(crate) fn combine(
    first: &mut [f32],
    others: &[&[f32]],
    geometry: &Geometry,
    coefficients: &[f32],
    factors: Option<&[f32]>,
) {
    run(first, geometry, &Sum { others, geometry, coefficients, factors }, None);
}

/// [`combine`] without factors, and the squared norm of each part of the result. A row alone is only measured when its coefficient is 1.
///
/// # Shapes
/// As [`combine`]; `squares` (parts,)
pub(crate) fn combine_and_square(
    first: &mut [f32],
    others: &[&[f32]],
    geometry: &Geometry,
    coefficients: &[f32],
    squares: &mut [f64],
) {
    assert_eq!(squares.len(), geometry.parts().len());
    let mut of_chunks = SQUARES.with_borrow_mut(std::mem::take);
    of_chunks.resize(geometry.chunks().len(), 0.0);
    run(first, geometry, &Sum { others, geometry, coefficients, factors: None }, Some(&mut of_chunks));
    squares.fill(0.0);
    for (chunk, square) in geometry.chunks().iter().zip(&of_chunks) {
        squares[chunk.part] += square;
    }
    SQUARES.set(of_chunks);
}

/// What the elements are replaced by.
struct Sum<'a> {
    others: &'a [&'a [f32]],
    geometry: &'a Geometry,
    coefficients: &'a [f32],
    factors: Option<&'a [f32]>,
}

fn run(first: &mut [f32], geometry: &Geometry, sum: &Sum<'_>, squares: Option<&mut [f64]>) {
    let num_rows = 1 + sum.others.len();
    assert_eq!((first.len(), sum.coefficients.len()), (geometry.num_elements(), 2 * num_rows));
    let piece = Piece { chunks: geometry.chunks(), elements: first, squares };
    if cpu::worth_threads((num_rows + 1) * geometry.num_elements() * size_of::<f32>()) {
        cpu::for_each(piece, CHUNKS_PER_PIECE, &|piece| piece.run(sum));
    } else {
        piece.run(sum);
    }
}

/// Neighboring chunks.
struct Piece<'a> {
    chunks: &'a [Chunk],
    /// Of these chunks in the row that is replaced.
    elements: &'a mut [f32],
    /// One per chunk.
    squares: Option<&'a mut [f64]>,
}

impl Divide for Piece<'_> {
    fn len(&self) -> usize {
        self.chunks.len()
    }

    fn split_at(self, index: usize) -> (Self, Self) {
        let (left, right) = self.chunks.split_at(index);
        let middle = left.iter().map(|chunk| chunk.range.len()).sum();
        let (left_elements, right_elements) = self.elements.split_at_mut(middle);
        let (left_squares, right_squares) = self.squares.map(|squares| squares.split_at_mut(index)).unzip();
        (
            Self { chunks: left, elements: left_elements, squares: left_squares },
            Self { chunks: right, elements: right_elements, squares: right_squares },
        )
    }
}

impl Piece<'_> {
    fn run(self, sum: &Sum<'_>) {
        cpu::vectorized(
            #[inline(always)]
            || self.run_vectorized(sum),
        );
    }

    #[inline(always)]
    fn run_vectorized(self, sum: &Sum<'_>) {
        let Self { chunks, mut elements, mut squares } = self;
        let num_rows = 1 + sum.others.len();
        for (index, chunk) in chunks.iter().enumerate() {
            let is_apart = sum.geometry.parts()[chunk.part].is_apart();
            let coefficients = &sum.coefficients[usize::from(is_apart) * num_rows..][..num_rows];
            let factor = sum.factors.map_or(1.0, |factors| factors[chunk.part]);
            let (here, after) = std::mem::take(&mut elements).split_at_mut(chunk.range.len());
            elements = after;
            let mut lanes = [0.0; LANES];
            for (block, range) in here.chunks_mut(BLOCK).zip(blocks(&chunk.range)) {
                cpu::weigh(block, sum.others, range, coefficients);
                cpu::scale(block, factor);
                if squares.is_some() {
                    cpu::add_products(&mut lanes, block, block);
                }
            }
            if let Some(squares) = &mut squares {
                let rest = here.as_chunks::<LANES>().1;
                squares[index] = cpu::sum_of_lanes(&lanes, rest, rest);
            }
        }
    }
}

/// The blocks of a chunk in the flat vector.
#[inline(always)]
fn blocks(range: &Range<usize>) -> impl Iterator<Item = Range<usize>> + use<> {
    let end = range.end;
    range.clone().step_by(BLOCK).map(move |start| start..end.min(start + BLOCK))
}

#[cfg(test)]
mod tests;
