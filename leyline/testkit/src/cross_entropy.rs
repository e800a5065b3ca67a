//! A task for doubles and tests: classification by cross-entropy, of candle's own operations.

use candle_core::{DType, Result, Tensor};
use leyline::task::Task;

/// Cross-entropy of logits (B, C) with targets (B,) of `u32` below C, in nats.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use leyline::task::Task;
/// use leyline_testkit::cross_entropy::CrossEntropy;
///
/// let logits = Tensor::new(&[[0.0_f32, 0.0]], &Device::Cpu)?;
/// let losses = CrossEntropy.losses(&logits, &Tensor::new(&[1_u32], &Device::Cpu)?)?;
/// assert_eq!(losses.to_vec1::<f32>()?, [2.0_f32.ln()]);
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct CrossEntropy;

impl Task for CrossEntropy {
    fn describe(&self) -> String {
        "classification".to_owned()
    }

    fn losses(&self, outputs: &Tensor, targets: &Tensor) -> Result<Tensor> {
        log_likelihoods(outputs, targets)?.squeeze(1)?.neg()
    }

    fn mean_loss(&self, outputs: &Tensor, targets: &Tensor) -> Result<Tensor> {
        let num_samples = f64::from(u32::try_from(targets.elem_count()).map_err(candle_core::Error::wrap)?);
        log_likelihoods(outputs, targets)?.sum_all()?.affine(-1.0 / num_samples, 0.0)
    }

    fn hits(&self, outputs: &Tensor, targets: &Tensor) -> Result<Option<Tensor>> {
        outputs.argmax(1)?.eq(targets)?.to_dtype(DType::F32).map(Some)
    }

    fn check_targets(&self, targets: &Tensor) -> Result<()> {
        if targets.rank() == 1 && targets.dtype() == DType::U32 {
            return Ok(());
        }
        candle_core::bail!("expected u32 of shape (N,), found {:?} {:?}", targets.dtype(), targets.shape())
    }
}

/// Of shape (B, 1).
fn log_likelihoods(logits: &Tensor, targets: &Tensor) -> Result<Tensor> {
    let shifted = logits.broadcast_sub(&logits.max_keepdim(1)?)?;
    let log_sums = shifted.exp()?.sum_keepdim(1)?.log()?;
    shifted.broadcast_sub(&log_sums)?.gather(&targets.unsqueeze(1)?, 1)
}
