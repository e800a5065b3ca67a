//! Cross-entropy of a batch, for what is measured beside the training: isolation, shares, and how a seed may start.

use candle_core::{Result, Tensor};

/// Mean over the samples, nats, of shape (): `logits` (B, C), `targets` (B).
pub(crate) fn mean(logits: &Tensor, targets: &Tensor) -> Result<Tensor> {
    #[expect(clippy::cast_precision_loss, reason = "batches are far below 2^53")]
    let num_samples = targets.elem_count() as f64;
    log_likelihoods(logits, targets)?.sum_all()?.affine(-1.0 / num_samples, 0.0)
}

/// Of each sample, nats, of shape (B): `logits` (B, C), `targets` (B).
pub(crate) fn per_sample(logits: &Tensor, targets: &Tensor) -> Result<Tensor> {
    log_likelihoods(logits, targets)?.squeeze(1)?.neg()
}

/// Of shape (B, 1).
fn log_likelihoods(logits: &Tensor, targets: &Tensor) -> Result<Tensor> {
    let shifted = logits.broadcast_sub(&logits.max_keepdim(1)?)?;
    let log_sums = shifted.exp()?.sum_keepdim(1)?.log()?;
    shifted.broadcast_sub(&log_sums)?.gather(&targets.unsqueeze(1)?, 1)
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Var};

    use super::*;
    use crate::host_read::read_f32;

    #[test]
    fn losses_and_gradients_have_the_bits_of_candles_own() {
        let values: Vec<f32> = (0..35_i16).map(|i| f32::from(i * 29 % 23) / 3.0 - 4.0).collect();
        let logits = Var::from_slice(&values, (7, 5), &Device::Cpu).unwrap();
        let targets = Tensor::new(&[0_u32, 4, 2, 2, 1, 3, 0], &Device::Cpu).unwrap();
        let bits = |loss: &Tensor| {
            let gradients = loss.backward().unwrap();
            let both = [loss, gradients.get(&logits).unwrap()].map(|tensor| read_f32(tensor).unwrap());
            both.concat().into_iter().map(f32::to_bits).collect::<Vec<_>>()
        };
        let own = mean(&logits, &targets).unwrap();
        assert_eq!(bits(&own), bits(&candle_nn::loss::cross_entropy(&logits, &targets).unwrap()));
        let each = read_f32(&per_sample(&logits, &targets).unwrap()).unwrap();
        let rows = candle_nn::ops::log_softmax(&logits, 1).unwrap();
        let rows = rows.gather(&targets.unsqueeze(1).unwrap(), 1).unwrap().squeeze(1).unwrap().neg().unwrap();
        assert_eq!(each, read_f32(&rows).unwrap());
    }
}
