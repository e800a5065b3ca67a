//! Reductions of rows: what candle's kernels compute, addition by addition.
//!
//! A block of candle's has a thread per element, at most 1024 and a power of two. A thread starts at the identity and takes
//! elements as far apart as there are threads; of a contiguous tensor a sum takes four neighbors at a time, which are added
//! to each other first. Then 32 threads combine by halves, and so do their results. What has no element adds `+0.0`, which
//! changes no bit: no partial sum is `-0.0`, since each starts at `+0.0`. Sums of up to 32 elements are another kernel of candle's,
//! in which one thread adds them one after the other.
//!
//! Numbers of `bf16` are reduced as `f32`, and the result is rounded once; of contiguous rows a thread adds eight neighbors one after the
//! other. (`f16` is added in `f16`, and is not here.)
//!
//! The larger or smaller of two is the same in any order, with `-0.0 < +0.0`. What is not a number is passed over, or, among numbers of
//! `bf16`, is the result.

use super::evaluate::binary;
use super::pointwise::{BinaryOp, ElementType};

/// Threads of a block of candle's, at most.
pub(super) const MAX_THREADS: usize = 1024;
/// Neighbors that a sum of contiguous rows adds to each other first.
pub(super) const QUAD: usize = 4;
/// Neighbors of `bf16` that a thread adds one after the other.
pub(super) const EIGHT: usize = 8;
/// Threads that combine first, and results that combine then.
pub(super) const WARP: usize = 32;

/// One number of those of a row, all `f32`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reduction {
    /// Their sum, of fours that lie side by side: the length of a row is a multiple of 4.
    Sum,
    /// Their sum, of elements that are taken one by one.
    StridedSum,
    /// Their sum, of eights that lie side by side and are taken one by one: the length of a row is a multiple of 8.
    EightsSum,
    /// Their sum, each added to that of those before it: of 32 at most.
    OrderedSum,
    /// The largest; what is not a number is passed over, and a row of nothing else gives minus infinity.
    Maximum,
    /// The smallest; what is not a number is passed over, and a row of nothing else gives infinity.
    Minimum,
    /// The largest, or no number where one of them is none.
    MaximumOrNan,
    /// The smallest, or no number where one of them is none.
    MinimumOrNan,
}

impl Reduction {
    /// What a thread starts at.
    pub(super) fn identity(self) -> f32 {
        match self {
            Self::Sum | Self::StridedSum | Self::EightsSum | Self::OrderedSum => 0.0,
            Self::Maximum | Self::MaximumOrNan => f32::NEG_INFINITY,
            Self::Minimum | Self::MinimumOrNan => f32::INFINITY,
        }
    }

    /// How two partial results become one.
    pub(super) fn operation(self) -> BinaryOp {
        match self {
            Self::Sum | Self::StridedSum | Self::EightsSum | Self::OrderedSum => BinaryOp::Add,
            Self::Maximum => BinaryOp::MaximumNumber,
            Self::Minimum => BinaryOp::MinimumNumber,
            Self::MaximumOrNan => BinaryOp::Maximum,
            Self::MinimumOrNan => BinaryOp::Minimum,
        }
    }

    /// Whether the result depends on the order.
    pub(super) fn is_sum(self) -> bool {
        self.operation() == BinaryOp::Add
    }

    /// What the length of a row is a multiple of.
    pub(super) fn neighbors(self) -> usize {
        match self {
            Self::Sum => QUAD,
            Self::EightsSum => EIGHT,
            _ => 1,
        }
    }

    /// Two partial results, by their bits.
    pub(super) fn combined(self, left: u64, right: u64) -> u64 {
        binary(self.operation(), ElementType::F32, left, right)
    }

    /// What candle's kernel gives for a row, by the bits of its elements.
    pub(super) fn of(self, row: &[u64]) -> u64 {
        if self == Self::OrderedSum {
            let start = u64::from(self.identity().to_bits());
            return row.iter().fold(start, |sum, element| self.combined(sum, *element));
        }
        let threads = threads_of(row.len());
        let mut partial = vec![u64::from(self.identity().to_bits()); threads.next_multiple_of(WARP)];
        for (number, neighbors) in row.chunks(self.neighbors()).enumerate() {
            let partial = &mut partial[number % threads];
            if self == Self::Sum {
                let together = neighbors.iter().copied().reduce(|left, right| self.combined(left, right));
                *partial = together.map_or(*partial, |together| self.combined(*partial, together));
            } else {
                *partial = neighbors.iter().fold(*partial, |partial, element| self.combined(partial, *element));
            }
        }
        let warps: Vec<u64> = partial.chunks(WARP).map(|warp| self.by_halves(warp)).collect();
        self.by_halves(&warps)
    }

    /// Up to 32 partial results as one: those of the second half are added to those of the first, again and again.
    pub(super) fn by_halves(self, partial: &[u64]) -> u64 {
        let mut lanes = [u64::from(self.identity().to_bits()); WARP];
        lanes[..partial.len()].copy_from_slice(partial);
        let mut half = WARP / 2;
        while half > 0 {
            for lane in 0..half {
                lanes[lane] = self.combined(lanes[lane], lanes[lane + half]);
            }
            half /= 2;
        }
        lanes[0]
    }
}

/// Threads of the block with which candle reduces a row.
pub(super) fn threads_of(columns: usize) -> usize {
    columns.min(MAX_THREADS).next_power_of_two()
}
