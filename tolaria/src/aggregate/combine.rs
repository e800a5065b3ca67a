//! Linear combinations of gradients, in place.

use std::ops::Range;

use candle_core::{CpuStorage, InplaceOp1, Layout, Tensor};

use crate::cpu;
use crate::error::Error;
use crate::path::Path;

/// Elements per block: the block being summed stays in the first-level cache while the rows pass by.
const BLOCK: usize = 2048;

/// Elements, and the coefficient of each row there.
pub(super) type Term<'a> = (Range<usize>, &'a [f64]);

/// Replaces the elements of `rows[0]` named by `terms` by `Σ_k c_k rows[k]`, summed from the first row to the last.
///
/// # Shapes
/// rows (P,) of one type and device; one coefficient per row
/// # Sync
/// none
pub(super) fn combine(path: &Path, rows: &[&Tensor], terms: &[Term<'_>]) -> Result<(), Error> {
    let (first, others) = rows.split_first().expect("a window has at least one microbatch");
    match path {
        Path::Kernel => Ok(first.inplace_op1(&Combine { others, terms })?),
        Path::Device(kernels) => {
            for (range, coefficients) in terms {
                let coefficients: Vec<f32> = coefficients.iter().copied().map(cpu::to_f32).collect();
                let coefficients = Tensor::from_vec(coefficients, rows.len(), first.device())?;
                kernels.combine(rows, &coefficients, range)?;
            }
            Ok(())
        }
        Path::Composed => {
            for (range, coefficients) in terms {
                let mut sum: Option<Tensor> = None;
                for (row, coefficient) in rows.iter().zip(*coefficients) {
                    let part = (row.narrow(0, range.start, range.len())? * *coefficient)?;
                    sum = Some(match sum {
                        Some(sum) => (sum + part)?,
                        None => part,
                    });
                }
                if let Some(sum) = sum {
                    first.slice_set(&sum, 0, range.start)?;
                }
            }
            Ok(())
        }
    }
}

struct Combine<'a> {
    others: &'a [&'a Tensor],
    terms: &'a [Term<'a>],
}

impl InplaceOp1 for Combine<'_> {
    fn name(&self) -> &'static str {
        "combine-gradients"
    }

    fn cpu_fwd(&self, first: &mut CpuStorage, layout: &Layout) -> candle_core::Result<()> {
        let first = cpu::slice_mut(first, layout)?;
        cpu::with_slices(self.others, |others| {
            for (range, coefficients) in self.terms {
                let coefficients: Vec<f32> = coefficients.iter().copied().map(cpu::to_f32).collect();
                for start in range.clone().step_by(BLOCK) {
                    let block = start..range.end.min(start + BLOCK);
                    combine_block(
                        &mut first[block.clone()],
                        others.iter().map(|row| &row[block.clone()]),
                        &coefficients,
                    );
                }
            }
        })
    }
}

fn combine_block<'a>(sum: &mut [f32], others: impl Iterator<Item = &'a [f32]>, coefficients: &[f32]) {
    for value in sum.iter_mut() {
        *value *= coefficients[0];
    }
    for (row, coefficient) in others.zip(&coefficients[1..]) {
        for (sum, value) in sum.iter_mut().zip(row) {
            *sum += value * coefficient;
        }
    }
}
