//! Convolution of images.

use candle_core::{Result, Tensor};
use esper_layers::Activation;

use super::{Window, linear};

/// (B, C, H, W) → rows (B·H·W, C).
pub(crate) fn image_to_rows(h: &Tensor) -> Result<Tensor> {
    let (num_samples, channels, height, width) = h.dims4()?;
    h.permute((0, 2, 3, 1))?.reshape((num_samples * height * width, channels))
}

/// Rows (B·H·W, C) → (B, C, H, W).
pub(crate) fn image_from_rows(rows: &Tensor, (height, width): (usize, usize)) -> Result<Tensor> {
    let (num_rows, channels) = rows.dims2()?;
    rows.reshape((num_rows / (height * width), height, width, channels))?.permute((0, 3, 1, 2))
}

/// activation(weight ∗ h + bias): `h` (B, in, H, W), `weight` (`kernel_h`·`kernel_w`·in, out) with the taps outside and
/// those along W inside those along H, `bias` (out) → (B, out, H', W').
pub(crate) fn conv2d(
    h: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    windows: [Window; 2],
    activation: Activation,
) -> Result<Tensor> {
    let (rows, sides) = unfold(h, windows)?;
    image_from_rows(&linear(&rows, weight, bias, activation)?, sides)
}

/// What each output sees, as rows (B·H'·W', `kernel_h`·`kernel_w`·C), with (H', W').
///
/// One side after the other: `kernel_h` + `kernel_w` slices instead of `kernel_h`·`kernel_w`, forward and backward.
pub(super) fn unfold(h: &Tensor, [down, across]: [Window; 2]) -> Result<(Tensor, (usize, usize))> {
    let (num_samples, channels, height, width) = h.dims4()?;
    let sides = (down.num_outputs(height), across.num_outputs(width));
    let lines = h.permute((0, 2, 3, 1))?.reshape((num_samples * height, width, channels))?;
    let seen_across = across.kernel * channels;
    let lines = across.unfold(&lines)?.reshape((num_samples, height, sides.1, seen_across))?;
    let rows = down.unfold_outer(&lines)?.reshape((num_samples * sides.0 * sides.1, down.kernel * seen_across))?;
    Ok((rows, sides))
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};
    use proptest::prelude::*;

    use super::super::testing::{Case, check, check_outputs, windows};
    use super::*;

    #[test]
    fn rows_and_images_are_two_views_of_the_same_values() {
        let h = Tensor::arange(0_f32, 24.0, &Device::Cpu).unwrap().reshape((2, 3, 2, 2)).unwrap();
        let rows = image_to_rows(&h).unwrap();
        assert_eq!(rows.dims(), [8, 3]);
        let again = image_from_rows(&rows, (2, 2)).unwrap();
        let difference = (again - h).unwrap().abs().unwrap().sum_all().unwrap();
        assert_eq!(crate::host_read::read_f32(&difference).unwrap(), [0.0]);
    }

    #[test]
    fn a_convolution_of_images_and_its_gradients_follow_the_definition() {
        for [down, across] in windows() {
            for (height, width, channels, outputs) in [(4, 5, 2, 2), (3, 3, 1, 2), (1, 1, 2, 2), (1, 4, 1, 1)] {
                let Some(case) = Case::dense([(height, down), (width, across)], channels, outputs) else { continue };
                for dtype in [DType::F32, DType::F64] {
                    check(&case, dtype, |h, weight, bias| conv2d(h, weight, bias, [down, across], Activation::None));
                }
            }
        }
    }

    #[test]
    fn a_convolution_of_bf16_is_one_of_f32_but_for_rounding() {
        let window = Window { kernel: 3, padding: 1, stride: 2 };
        let case = Case::dense([(5, window), (4, window)], 3, 2).unwrap();
        check(&case, DType::BF16, |h, weight, bias| conv2d(h, weight, bias, [window; 2], Activation::None));
    }

    prop_compose! {
        fn any_side()(kernel in 1..5_usize, padding in 0..3_usize, stride in 1..5_usize, extra in 0..6_usize)
            -> (usize, Window) {
            let length = (kernel + extra).saturating_sub(2 * padding).max(1);
            (length, Window { kernel, padding, stride })
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn images_of_any_size_are_convolved_as_defined(
            sides in [any_side(), any_side()], channels in 1..4_usize, outputs in 1..4_usize,
        ) {
            let case = Case::dense(sides, channels, outputs).unwrap();
            let windows = sides.map(|(_, window)| window);
            check_outputs(&case, DType::F64, |h, weight, bias| conv2d(h, weight, bias, windows, Activation::None));
        }
    }
}
