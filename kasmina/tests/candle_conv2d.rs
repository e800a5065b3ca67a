//! What decision 0005 would find for images: the gradients of candle's own `conv2d` and of its grouped convolutions against
//! difference quotients. They are right for square images, but strided ones of other shapes have no way back.
//! When a test fails, candle has changed and the choice of `host::layer` can be looked at again.
#![expect(clippy::disallowed_methods, reason = "a test looks at tensors")]

use candle_core::{Device, Result, Tensor, Var};

fn numbers(shape: &[usize], salt: usize) -> Tensor {
    let count = shape.iter().product::<usize>();
    let values: Vec<f32> = (0..count).map(|i| ((i * 37 + salt) % 19) as f32 / 19.0 - 0.5).collect();
    Tensor::from_vec(values, shape, &Device::Cpu).expect("a tensor")
}

fn flat(tensor: &Tensor) -> Vec<f32> {
    tensor.flatten_all().and_then(|t| t.to_vec1::<f32>()).expect("values")
}

/// Largest |gradient − difference quotient| over the inputs and over the weights of `op`; the objective is linear in
/// either, so the quotient is exact up to rounding.
fn largest_errors(
    inputs: &[usize],
    weights: &[usize],
    op: impl Fn(&Tensor, &Tensor) -> Result<Tensor>,
) -> Result<[f32; 2]> {
    let vars = [Var::from_tensor(&numbers(inputs, 3))?, Var::from_tensor(&numbers(weights, 5))?];
    let mix = numbers(op(&vars[0], &vars[1])?.dims(), 7);
    let objective = |x: &Tensor, w: &Tensor| (op(x, w)? * &mix)?.sum_all();
    let gradients = objective(&vars[0], &vars[1])?.backward()?;
    let mut errors = [0.0_f32; 2];
    for (operand, error) in errors.iter_mut().enumerate() {
        let found = flat(gradients.get(&vars[operand]).expect("a gradient"));
        for (index, found) in found.iter().enumerate() {
            let at = |offset: f32| {
                let mut both = vars.each_ref().map(|var| var.as_detached_tensor());
                let mut moved = flat(&both[operand]);
                moved[index] += offset;
                both[operand] = Tensor::from_vec(moved, vars[operand].shape(), &Device::Cpu)?;
                objective(&both[0], &both[1])?.to_scalar::<f32>()
            };
            *error = error.max((found - (at(0.5)? - at(-0.5)?)).abs());
        }
    }
    Ok(errors)
}

/// Kernel, padding, stride.
const WINDOWS: [(usize, usize, usize); 7] =
    [(1, 0, 1), (3, 0, 1), (3, 1, 1), (5, 2, 1), (3, 1, 2), (2, 0, 2), (3, 0, 3)];

/// The largest error over every operand, for all channels together and for each by itself.
fn of_images(height: usize, width: usize, (kernel, padding, stride): (usize, usize, usize)) -> [Result<f32>; 2] {
    [([3, 2, kernel, kernel], 1), ([2, 1, kernel, kernel], 2)].map(|(weights, groups)| {
        let errors = largest_errors(&[2, 2, height, width], &weights, |x, w| x.conv2d(w, padding, stride, 1, groups))?;
        Ok(errors[0].max(errors[1]))
    })
}

#[test]
fn candles_convolution_of_square_images_has_right_gradients() {
    for window in WINDOWS {
        for side in [6, 7] {
            for error in of_images(side, side, window) {
                let error = error.expect("a backward pass");
                assert!(error < 1e-4, "{window:?} on {side} × {side}: {error}");
            }
        }
    }
}

/// The way back takes what the stride leaves over along H for what it leaves over along W.
#[test]
fn candles_convolution_with_stride_has_no_way_back_where_the_sides_leave_different_rests() {
    for window in WINDOWS {
        for result in of_images(6, 7, window) {
            assert_eq!(result.is_ok(), window.2 == 1, "{window:?}: {result:?}");
        }
    }
}

#[test]
fn candles_convolution_of_signals_in_groups_is_wrong_unless_each_channel_is_a_group() {
    for window @ (kernel, padding, stride) in WINDOWS {
        let of_weights = |channels: usize, outputs: usize| {
            let shapes = ([2, channels, 8], [outputs, channels / 2, kernel]);
            largest_errors(&shapes.0, &shapes.1, |x, w| x.conv1d(w, padding, stride, 1, 2)).expect("a backward pass")[1]
        };
        let (alone, in_pairs) = (of_weights(2, 2), of_weights(4, 4));
        assert!(alone < 1e-4, "{window:?}: {alone}");
        assert!(in_pairs > 0.1, "{window:?}: agrees now, error {in_pairs}");
    }
}
