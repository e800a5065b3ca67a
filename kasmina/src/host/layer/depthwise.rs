//! Depthwise convolution: each channel is convolved by itself.

use candle_core::{Result, Tensor};
use esper_layers::operations::count;

use super::Window;
use super::conv2d::unfold;
use super::wide::in_wide;

/// weight ∗ h + bias, channel by channel: `h` (B, C, L), `weight` (kernel, C), `bias` (C) → rows (B·L', C).
pub(crate) fn depthwise1d(h: &Tensor, weight: &Tensor, bias: &Tensor, window: Window) -> Result<Tensor> {
    sum_over_taps(&window.unfold(&h.transpose(1, 2)?)?, weight, bias)
}

/// weight ∗ h + bias, channel by channel: `h` (B, C, H, W), `weight` (`kernel_h`·`kernel_w`, C) with the taps along W
/// inside, `bias` (C) → rows (B·H'·W', C).
pub(crate) fn depthwise2d(h: &Tensor, weight: &Tensor, bias: &Tensor, windows: [Window; 2]) -> Result<Tensor> {
    let (rows, _) = unfold(h, windows)?;
    sum_over_taps(&rows, weight, bias)
}

/// `rows` (R, taps·C) → (R, C).
///
/// All taps in one product and one sum: a product and a sum per tap would be 2·taps operations in place of two, each
/// with an own start on a GPU, for the same traffic.
fn sum_over_taps(rows: &Tensor, weight: &Tensor, bias: &Tensor) -> Result<Tensor> {
    let (taps, channels) = weight.dims2()?;
    count([rows, weight], rows.elem_count());
    in_wide(rows, |x| {
        // Wider weights act in the type of the values, as in a linear layer.
        let [weight, bias] = [weight, bias].map(|weight| weight.to_dtype(rows.dtype())?.to_dtype(x.dtype()));
        x.reshape((x.dim(0)?, taps, channels))?.broadcast_mul(&weight?)?.sum(1)?.broadcast_add(&bias?)
    })
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device, Var};

    use super::super::testing::{Case, check, windows};
    use super::super::{from_rows, image_from_rows};
    use super::*;
    use crate::host_read::read_f64;

    #[test]
    fn a_depthwise_convolution_of_signals_and_its_gradients_follow_the_definition() {
        for [_, window] in windows() {
            for (length, channels) in [(6, 3), (1, 2)] {
                let Some(case) = Case::depthwise([(1, Window::centered(1)), (length, window)], channels) else {
                    continue;
                };
                for dtype in [DType::F32, DType::F64, DType::BF16] {
                    check(&case, dtype, |h, weight, bias| {
                        let rows = depthwise1d(&h.squeeze(2)?, weight, bias, window)?;
                        from_rows(&rows, window.num_outputs(length))?.unsqueeze(2)
                    });
                }
            }
        }
    }

    #[test]
    fn a_depthwise_convolution_of_images_and_its_gradients_follow_the_definition() {
        for windows in windows() {
            for (height, width, channels) in [(4, 5, 2), (3, 3, 1), (1, 1, 2), (1, 4, 2)] {
                let Some(case) = Case::depthwise([(height, windows[0]), (width, windows[1])], channels) else {
                    continue;
                };
                for dtype in [DType::F32, DType::F64] {
                    check(&case, dtype, |h, weight, bias| {
                        let sides = (windows[0].num_outputs(height), windows[1].num_outputs(width));
                        image_from_rows(&depthwise2d(h, weight, bias, windows)?, sides)
                    });
                }
            }
        }
    }
    #[test]
    fn sums_over_many_taps_and_their_gradients_over_many_rows_are_not_lost_to_rounding() {
        let ones = |dims: &[usize]| Var::ones(dims, DType::BF16, &Device::Cpu).unwrap();
        for (num_rows, taps) in [(2, 1024), (1024, 2)] {
            let (weight, bias) = (ones(&[taps, 3]), ones(&[3]));
            let sums = sum_over_taps(&ones(&[num_rows, taps * 3]), &weight, &bias).unwrap();
            assert_eq!(sums.dtype(), DType::BF16);
            let expected = if taps == 2 { 3.0 } else { 1024.0 };
            assert!(read_f64(&sums).unwrap().iter().all(|sum| sum.to_bits() == f64::to_bits(expected)), "{sums}");
            let gradients = sums.backward().unwrap();
            for var in [weight, bias] {
                let gradient = read_f64(gradients.get(&var).unwrap()).unwrap();
                let expected = if num_rows == 2 { 2.0 } else { 1024.0 };
                assert!(gradient.iter().all(|value| value.to_bits() == f64::to_bits(expected)), "{gradient:?}");
            }
        }
    }
}
