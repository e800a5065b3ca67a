//! Losses and hits per sample, without gradients.

use candle_core::{CpuStorage, CustomOp2, Layout, Shape, Tensor};

use super::rows::{Rows, Softmax, checked};
use crate::cpu;
use crate::error::Error;
use crate::path::Path;

/// Cross-entropy of each sample, shape (B,), detached.
///
/// # Units
/// nats
/// # Errors
/// As [`cross_entropy`](super::cross_entropy).
/// # Sync
/// none
pub fn per_sample(logits: &Tensor, targets: &Tensor) -> Result<Tensor, Error> {
    let logits = &checked(logits, targets)?;
    match Path::of(logits)? {
        Path::Kernel => per_row(logits, targets, |row, target| cpu::to_f32(Softmax::of(row).nats(row[target]))),
        Path::Device(kernels) => Ok(kernels.per_sample(&logits.detach(), targets)?),
    }
}

/// 1 for each sample whose target has the largest logit, else 0; shape (B,) of `f32`. Of equal logits the first counts.
///
/// # Errors
/// As [`cross_entropy`](super::cross_entropy).
/// # Sync
/// none
pub fn hits(logits: &Tensor, targets: &Tensor) -> Result<Tensor, Error> {
    let logits = &checked(logits, targets)?;
    match Path::of(logits)? {
        Path::Kernel => per_row(logits, targets, |row, target| f32::from(u8::from(is_hit(row, target)))),
        Path::Device(kernels) => Ok(kernels.hits(logits, targets)?),
    }
}

/// Hits of the batch, a scalar of `f32`; see [`hits`].
///
/// # Errors
/// As [`cross_entropy`](super::cross_entropy).
/// # Sync
/// none
pub fn correct(logits: &Tensor, targets: &Tensor) -> Result<Tensor, Error> {
    let logits = &checked(logits, targets)?;
    match Path::of(logits)? {
        Path::Kernel => Ok(logits.contiguous()?.apply_op2_no_bwd(&targets.contiguous()?, &CountHits)?),
        Path::Device(kernels) => Ok(kernels.sum(&kernels.hits(logits, targets)?)?),
    }
}

/// A NaN beside the target does not hide that nothing was recognized: every comparison with it fails.
fn is_hit(row: &[f32], target: usize) -> bool {
    let best = row[target];
    row[..target].iter().all(|x| *x < best) && row[target + 1..].iter().all(|x| *x <= best)
}

fn per_row(logits: &Tensor, targets: &Tensor, f: fn(&[f32], usize) -> f32) -> Result<Tensor, Error> {
    Ok(logits.contiguous()?.apply_op2_no_bwd(&targets.contiguous()?, &PerRow(f))?)
}

struct PerRow(fn(&[f32], usize) -> f32);

impl CustomOp2 for PerRow {
    fn name(&self) -> &'static str {
        "score-per-row"
    }

    fn cpu_fwd(
        &self,
        logits: &CpuStorage,
        logits_layout: &Layout,
        targets: &CpuStorage,
        targets_layout: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        let rows = Rows::new(logits, logits_layout, targets, targets_layout)?;
        let scores: Vec<f32> =
            rows.iter().map(|(row, target)| target.map_or(0.0, |target| (self.0)(row, target))).collect();
        Ok((CpuStorage::F32(scores), Shape::from(rows.len())))
    }
}

struct CountHits;

impl CustomOp2 for CountHits {
    fn name(&self) -> &'static str {
        "count-hits"
    }

    fn cpu_fwd(
        &self,
        logits: &CpuStorage,
        logits_layout: &Layout,
        targets: &CpuStorage,
        targets_layout: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        let rows = Rows::new(logits, logits_layout, targets, targets_layout)?;
        let count = rows.iter().filter(|(row, target)| target.is_some_and(|target| is_hit(row, target))).count();
        Ok((CpuStorage::F32(vec![cpu::to_f32(count as f64)]), Shape::from(())))
    }
}
