//! Inner products of the microbatches' gradients.

use std::ops::Range;

use candle_core::{DType, Tensor};

use crate::cpu;
use crate::error::Error;
use crate::host_read::{self, HostReads};
use crate::path::Path;

/// Elements per block on the CPU: the blocks of eight microbatches fit into a first-level cache.
const KERNEL_BLOCK: usize = 1024;
/// Elements per block elsewhere: bounds the memory of the copy in `f64`.
const COMPOSED_BLOCK: usize = 1 << 22;
/// What the copy to the host is counted as.
const NAME: &str = "pcgrad gram";

/// `gram[i,j] = g_i · g_j`, symmetric (K×K).
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Gram {
    size: usize,
    values: Vec<f64>,
}

impl Gram {
    /// Row-major values of a matrix with so many rows.
    #[cfg(test)]
    pub(super) fn from_values(size: usize, values: Vec<f64>) -> Self {
        assert_eq!(values.len(), size * size);
        Self { size, values }
    }

    /// Over the elements in `ranges`.
    ///
    /// # Sync
    /// none on the CPU kernel's path; one device-to-host copy of K×K numbers, named `pcgrad gram`, on the others
    pub(super) fn measure(
        path: &Path,
        rows: &[&Tensor],
        ranges: &[Range<usize>],
        reads: &mut HostReads,
    ) -> Result<Self, Error> {
        let values = match path {
            Path::Kernel => cpu::with_slices(rows, |rows| by_slices(rows, ranges))?,
            Path::Device(kernels) => host_read::read_vec_f64(&kernels.gram(rows, ranges)?, NAME, reads)?,
            Path::Composed => match composed(rows, ranges)? {
                Some(gram) => host_read::read_vec_f64(&gram, NAME, reads)?,
                None => vec![0.0; rows.len() * rows.len()],
            },
        };
        Ok(Self { size: rows.len(), values })
    }

    fn get(&self, i: usize, j: usize) -> f64 {
        self.values[i * self.size + j]
    }

    /// `aᵀ · gram · b`: the inner product of two combinations of the rows.
    pub(super) fn inner(&self, a: &[f64], b: &[f64]) -> f64 {
        let row = |i: usize| b.iter().enumerate().fold(0.0, |sum, (j, b)| sum + self.get(i, j) * b);
        a.iter().enumerate().fold(0.0, |sum, (i, a)| sum + a * row(i))
    }

    /// `Σ |a_i| |g_i|`: how large the norm of the combination can be, and the scale of its rounding errors.
    pub(super) fn scale(&self, a: &[f64]) -> f64 {
        a.iter().enumerate().fold(0.0, |sum, (i, a)| sum + a.abs() * self.get(i, i).sqrt())
    }
}

/// One pass over the rows, block by block, all pairs per block.
fn by_slices(rows: &[&[f32]], ranges: &[Range<usize>]) -> Vec<f64> {
    let size = rows.len();
    let mut values = vec![0.0; size * size];
    for block in ranges.iter().flat_map(|range| blocks(range, KERNEL_BLOCK)) {
        for i in 0..size {
            for j in i..size {
                values[i * size + j] += cpu::dot(&rows[i][block.clone()], &rows[j][block.clone()]);
            }
        }
    }
    for i in 0..size {
        for j in 0..i {
            values[i * size + j] = values[j * size + i];
        }
    }
    values
}

/// The matrix on the device; `None` when there is no element.
fn composed(rows: &[&Tensor], ranges: &[Range<usize>]) -> Result<Option<Tensor>, Error> {
    let mut sum: Option<Tensor> = None;
    for block in ranges.iter().flat_map(|range| blocks(range, COMPOSED_BLOCK)) {
        let parts: Vec<Tensor> =
            rows.iter().map(|row| row.narrow(0, block.start, block.len())).collect::<Result<_, _>>()?;
        let matrix = Tensor::stack(&parts, 0)?.to_dtype(DType::F64)?;
        let products = matrix.matmul(&matrix.t()?)?;
        sum = Some(match sum {
            Some(sum) => (sum + products)?,
            None => products,
        });
    }
    Ok(sum)
}

fn blocks(range: &Range<usize>, size: usize) -> impl Iterator<Item = Range<usize>> + use<> {
    let end = range.end;
    range.clone().step_by(size).map(move |start| start..end.min(start + size))
}
