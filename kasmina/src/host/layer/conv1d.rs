//! Convolution of signals.

use candle_core::{Result, Tensor};
use esper_layers::Activation;

use super::{Window, linear};

/// (B, C, L) → rows (B·L, C).
pub(crate) fn to_rows(h: &Tensor) -> Result<Tensor> {
    let (num_samples, channels, length) = h.dims3()?;
    h.transpose(1, 2)?.reshape((num_samples * length, channels))
}

/// Rows (B·L, C) → (B, C, L).
pub(crate) fn from_rows(rows: &Tensor, length: usize) -> Result<Tensor> {
    let (num_rows, channels) = rows.dims2()?;
    rows.reshape((num_rows / length, length, channels))?.transpose(1, 2)
}

/// activation(weight ∗ h + bias): `h` (B, in, L), `weight` (kernel·in, out) with the taps outside, `bias` (out) → rows
/// (B·L', out), L' = (L + 2·padding − kernel) / stride + 1.
pub(crate) fn conv1d(
    h: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    (padding, stride): (usize, usize),
    activation: Activation,
) -> Result<Tensor> {
    let window = Window { kernel: weight.dim(0)? / h.dim(1)?, padding, stride };
    linear(&window.unfold(&h.transpose(1, 2)?)?, weight, bias, activation)
}

#[cfg(test)]
mod tests {
    use candle_core::DType;

    use super::super::testing::{Case, check};
    use super::*;

    #[test]
    fn a_convolution_and_its_gradients_follow_the_definition() {
        for (kernel, padding, stride) in [
            (1, 0, 1),
            (1, 0, 2),
            (2, 1, 1),
            (3, 1, 1),
            (3, 1, 2),
            (3, 0, 3),
            (3, 1, 5),
            (4, 2, 3),
            (5, 2, 2),
            (7, 3, 1),
        ] {
            for (length, channels, outputs) in [(7, 2, 3), (8, 1, 2), (1, 2, 2)] {
                let window = Window { kernel, padding, stride };
                let Some(case) = Case::dense([(1, Window::centered(1)), (length, window)], channels, outputs) else {
                    continue;
                };
                for dtype in [DType::F32, DType::F64, DType::BF16] {
                    check(&case, dtype, |h, weight, bias| {
                        let rows = conv1d(&h.squeeze(2)?, weight, bias, (padding, stride), Activation::None)?;
                        from_rows(&rows, window.num_outputs(length))?.unsqueeze(2)
                    });
                }
            }
        }
    }
}
