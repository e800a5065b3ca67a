//! Mean cross-entropy with its gradient, as one operation.

use candle_core::{CpuStorage, CudaStorage, CustomOp2, CustomOp3, DType, Layout, Shape, Tensor};

use super::rows::{Rows, Softmax, checked, fitting};
use crate::cpu;
use crate::error::Error;
use crate::kernels::{self, DeviceKernels};
use crate::path::Path;

/// Mean cross-entropy over the batch, a scalar with a gradient for the logits: `(softmax - onehot) / B`, 0 in rows whose target
/// is [`IGNORED`](super::IGNORED).
///
/// # Units
/// nats, mean over samples
/// # Errors
/// [`Error::LayoutMismatch`] for other shapes or an empty batch; [`Error::Candle`] on the CPU for a target that is no
/// class.
/// # Sync
/// none
pub fn cross_entropy(logits: &Tensor, targets: &Tensor) -> Result<Tensor, Error> {
    // Half the memory of the largest tensors of a language model, where a kernel reads them as they are.
    let has_kernel = logits.dtype() == DType::BF16 && DeviceKernels::for_device(logits.device()).is_some();
    let logits = if has_kernel { fitting(logits, targets)?.clone() } else { checked(logits, targets)? };
    if !has_kernel {
        Path::of(&logits)?;
    }
    Ok(logits.contiguous()?.apply_op2(&targets.contiguous()?, Fused)?)
}

#[derive(Debug)]
struct Fused;

impl CustomOp2 for Fused {
    fn name(&self) -> &'static str {
        "cross-entropy"
    }

    fn cpu_fwd(
        &self,
        logits: &CpuStorage,
        logits_layout: &Layout,
        targets: &CpuStorage,
        targets_layout: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        let rows = Rows::new(logits, logits_layout, targets, targets_layout)?;
        let sum: f64 = rows.iter().filter_map(|(row, target)| Some(Softmax::of(row).nats(row[target?]))).sum();
        let mean = cpu::to_f32(sum / rows.len() as f64);
        Ok((CpuStorage::F32(vec![mean]), Shape::from(())))
    }

    fn cuda_fwd(
        &self,
        logits: &CudaStorage,
        logits_layout: &Layout,
        targets: &CudaStorage,
        targets_layout: &Layout,
    ) -> candle_core::Result<(CudaStorage, Shape)> {
        kernels::cross_entropy((logits, logits_layout), (targets, targets_layout))
    }

    fn bwd(
        &self,
        logits: &Tensor,
        targets: &Tensor,
        loss: &Tensor,
        upstream: &Tensor,
    ) -> candle_core::Result<(Option<Tensor>, Option<Tensor>)> {
        let backward = Backward { loss: loss.clone() };
        Ok((Some(logits.apply_op3_no_bwd(targets, &upstream.contiguous()?, &backward)?), None))
    }
}

#[derive(Debug)]
struct Backward {
    /// What is differentiated.
    loss: Tensor,
}

impl CustomOp3 for Backward {
    fn name(&self) -> &'static str {
        "cross-entropy-backward"
    }

    fn cpu_fwd(
        &self,
        logits: &CpuStorage,
        logits_layout: &Layout,
        targets: &CpuStorage,
        targets_layout: &Layout,
        upstream: &CpuStorage,
        upstream_layout: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        let rows = Rows::new(logits, logits_layout, targets, targets_layout)?;
        let weight = f64::from(cpu::slice::<f32>(upstream, upstream_layout)?[0]) / rows.len() as f64;
        let mut gradient = Vec::with_capacity(logits_layout.shape().elem_count());
        for (row, target) in rows.iter() {
            let Some(target) = target else {
                gradient.resize(gradient.len() + row.len(), 0.0);
                continue;
            };
            let softmax = Softmax::of(row);
            let scale = cpu::to_f32(weight / softmax.sum);
            let target = gradient.len() + target;
            gradient.extend(row.iter().map(|x| (x - softmax.max).exp() * scale));
            gradient[target] -= cpu::to_f32(weight);
        }
        Ok((CpuStorage::F32(gradient), logits_layout.shape().clone()))
    }

    fn cuda_fwd(
        &self,
        logits: &CudaStorage,
        logits_layout: &Layout,
        targets: &CudaStorage,
        targets_layout: &Layout,
        upstream: &CudaStorage,
        upstream_layout: &Layout,
    ) -> candle_core::Result<(CudaStorage, Shape)> {
        let (logits, targets, upstream) =
            ((logits, logits_layout), (targets, targets_layout), (upstream, upstream_layout));
        kernels::cross_entropy_backward(logits, targets, upstream, &self.loss)
    }
}
