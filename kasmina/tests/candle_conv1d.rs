//! The reason of decision 0005: the weight gradient of candle's own `conv1d` is not the derivative of its output.
//! When this test fails, candle was mended and the decision can be looked at again.
#![expect(clippy::disallowed_methods, reason = "a test looks at tensors")]

use candle_core::{Device, Tensor, Var};

fn numbers(shape: (usize, usize, usize), salt: usize) -> Tensor {
    let count = shape.0 * shape.1 * shape.2;
    let values: Vec<f32> = (0..count).map(|i| ((i * 37 + salt) % 19) as f32 / 19.0 - 0.5).collect();
    Tensor::from_vec(values, shape, &Device::Cpu).expect("a tensor")
}

/// Largest |gradient − difference quotient| over the weights (3, 2, kernel) of `op`; the objective is linear in them, so
/// the quotient is exact up to rounding.
fn largest_error(kernel: usize, op: impl Fn(&Tensor, &Tensor) -> candle_core::Result<Tensor>) -> f32 {
    let inputs = numbers((2, 2, 8), 3);
    let weights = Var::from_tensor(&numbers((3, 2, kernel), 5)).expect("a leaf");
    let output = |weights: &Tensor| op(&inputs, weights).expect("a convolution");
    let mix = numbers(output(&weights).dims3().expect("three dimensions"), 7);
    let objective = |weights: &Tensor| (output(weights) * &mix).and_then(|product| product.sum_all()).expect("a sum");
    let gradients = objective(weights.as_tensor()).backward().expect("a backward pass");
    let flat = |tensor: &Tensor| tensor.flatten_all().and_then(|t| t.to_vec1::<f32>()).expect("values");
    let (found, values) = (flat(gradients.get(&weights).expect("a gradient")), flat(&weights));
    let at = |index: usize, offset: f32| {
        let mut moved = values.clone();
        moved[index] += offset;
        let moved = Tensor::from_vec(moved, weights.shape(), &Device::Cpu).expect("a tensor");
        objective(&moved).to_scalar::<f32>().expect("a scalar")
    };
    (0..values.len()).map(|i| (found[i] - (at(i, 0.5) - at(i, -0.5))).abs()).fold(0.0, f32::max)
}

#[test]
fn candles_convolution_has_wrong_weight_gradients() {
    for (kernel, padding, stride) in [(1, 0, 1), (3, 0, 1), (3, 1, 1), (5, 2, 2)] {
        let error = largest_error(kernel, |x, w| x.conv1d(w, padding, stride, 1, 1));
        assert!(error > 0.1, "kernel {kernel}, padding {padding}, stride {stride}: agrees now, error {error}");
    }
}

#[test]
fn the_same_measure_finds_nothing_wrong_with_a_matrix_product() {
    let error = largest_error(1, |x, w| w.squeeze(2)?.broadcast_matmul(x));
    assert!(error < 1e-4, "{error}");
}
