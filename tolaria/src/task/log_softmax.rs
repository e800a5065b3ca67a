//! Logarithms of probabilities, with gradients, of operations that a recorded step may hold.

use candle_core::{D, Result, Tensor};

/// ln softmax over the last dimension, nats. The largest logit is subtracted first, so that no finite one overflows.
pub(super) fn log_softmax(logits: &Tensor) -> Result<Tensor> {
    // The gradient through the maximum is 0 in all.
    let shifted = logits.broadcast_sub(&logits.max_keepdim(D::Minus1)?.detach())?;
    shifted.broadcast_sub(&shifted.exp()?.sum_keepdim(D::Minus1)?.log()?)
}

/// `values` where `mask` is set, 0 elsewhere: what was left out does not matter, even where it is infinite.
pub(super) fn only(mask: &Tensor, values: &Tensor) -> Result<Tensor> {
    mask.where_cond(values, &values.zeros_like()?)
}
