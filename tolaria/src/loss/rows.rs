//! What the kernels share: the check of shapes, and the softmax of one row.

use candle_core::{CpuStorage, DType, Layout, Tensor};

use crate::cpu;
use crate::error::Error;

/// A target that is not predicted: padding, a prompt. Its row has no loss, no gradient and no hit, whatever its logits are, and
/// counts as a row of its batch.
pub const IGNORED: u32 = u32::MAX;

/// The logits (B, C) in `f32`, with B and C above 0 and targets (B,). Those of another type lose nothing by that.
pub(super) fn checked(logits: &Tensor, targets: &Tensor) -> Result<Tensor, Error> {
    Ok(fitting(logits, targets)?.to_dtype(DType::F32)?)
}

/// The logits as they are, (B, C) of a float type with B and C above 0, and targets (B,).
pub(super) fn fitting<'a>(logits: &'a Tensor, targets: &Tensor) -> Result<&'a Tensor, Error> {
    if !matches!(logits.dtype(), DType::F32 | DType::BF16 | DType::F16) {
        return Err(Error::mismatch("logits", "f32, bf16 or f16", logits.dtype().as_str().to_owned()));
    }
    match *logits.dims() {
        [batch, classes] if batch > 0 && classes > 0 => {
            if *targets.dims() == [batch] && targets.dtype() == DType::U32 {
                return Ok(logits);
            }
            let found = format!("{:?} {:?}", targets.dtype(), targets.dims());
            Err(Error::mismatch("targets", format!("U32 [{batch}]"), found))
        }
        ref dims => Err(Error::mismatch("logits", "(B, C) with at least one element", format!("{dims:?}"))),
    }
}

/// Rows of the logits with the target of each.
pub(super) struct Rows<'a> {
    logits: &'a [f32],
    targets: &'a [u32],
    classes: usize,
}

impl<'a> Rows<'a> {
    pub(super) fn new(
        logits: &'a CpuStorage,
        logits_layout: &Layout,
        targets: &'a CpuStorage,
        targets_layout: &Layout,
    ) -> candle_core::Result<Self> {
        let classes = logits_layout.shape().dims2()?.1;
        let targets = cpu::slice::<u32>(targets, targets_layout)?;
        if let Some(target) = targets.iter().find(|target| **target as usize >= classes && **target != IGNORED) {
            candle_core::bail!("target {target} is no class: expected a number below {classes}")
        }
        Ok(Self { logits: cpu::slice::<f32>(logits, logits_layout)?, targets, classes })
    }

    pub(super) fn len(&self) -> usize {
        self.targets.len()
    }

    /// Each row with its target, where it has one.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&'a [f32], Option<usize>)> {
        let target = |target: &u32| (*target != IGNORED).then_some(*target as usize);
        self.logits.chunks_exact(self.classes).zip(self.targets.iter().map(target))
    }
}

/// What the softmax of a row is normalized with: `softmax(x) = exp(x - max) / sum`. NaN in a row makes `sum` NaN.
pub(super) struct Softmax {
    pub(super) max: f32,
    pub(super) sum: f64,
}

impl Softmax {
    pub(super) fn of(row: &[f32]) -> Self {
        let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        Self { max, sum: row.iter().map(|x| f64::from((x - max).exp())).sum() }
    }

    /// `-ln softmax(x)` in nats. The maximum is never added back: `1e30 + ln 2` would be `1e30`.
    pub(super) fn nats(&self, x: f32) -> f64 {
        self.sum.ln() - (f64::from(x) - f64::from(self.max))
    }
}
