//! What the tests of several blueprints use: tensors of `f64`, and gradients against differences.

use candle_core::{DType, Device, Tensor, Var};
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use crate::blueprint::Blueprint;
use crate::host::SlotShape;

/// Numbers in [-2, 2), of a seed.
pub(super) fn numbers(seed: u64, count: usize) -> Vec<f64> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    (0..count).map(|_| rng.random_range(-2.0..2.0)).collect()
}

pub(super) fn tensor(values: &[f64], dims: &[usize]) -> Tensor {
    Tensor::new(values, &Device::Cpu).unwrap().reshape(dims).unwrap()
}

/// All elements in row-major order.
#[expect(clippy::disallowed_methods, reason = "tests look at results")]
pub(super) fn read(tensor: &Tensor) -> Vec<f64> {
    tensor.to_dtype(DType::F64).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

/// Weights of which none is zero.
pub(super) fn awake(blueprint: &dyn Blueprint, slot: SlotShape, width: usize) -> Vec<Tensor> {
    let specs = blueprint.weights(slot, width);
    (2..).zip(&specs).map(|(seed, spec)| tensor(&numbers(seed, spec.num_elements()), &spec.shape)).collect()
}

/// The value at a slot as a blueprint sees it, channels second.
pub(super) fn seen(slot: SlotShape, num_samples: usize) -> Vec<usize> {
    let mut dims = slot.batch(num_samples);
    if slot.is_channels_last() {
        dims.swap(1, 2);
    }
    dims
}

/// Compares the gradient of a weighted sum of f(h) with central differences, for every element of `h` and of all weights.
#[track_caller]
pub(super) fn assert_gradients(blueprint: &dyn Blueprint, slot: SlotShape, width: usize) {
    assert!(blueprint.fits(slot), "{slot}");
    let dims = seen(slot, 2);
    let mut vars = vec![Var::from_tensor(&tensor(&numbers(1, dims.iter().product()), &dims)).unwrap()];
    vars.extend(awake(blueprint, slot, width).iter().map(|weight| Var::from_tensor(weight).unwrap()));
    let objective = || {
        let weights: Vec<Tensor> = vars[1..].iter().map(|var| var.as_tensor().clone()).collect();
        let delta = blueprint.delta(&weights, &vars[0]).unwrap();
        assert_eq!(delta.dims(), dims);
        let mix = tensor(&numbers(99, delta.elem_count()), &dims);
        (delta * mix).unwrap().sum_all().unwrap()
    };
    let gradients = objective().backward().unwrap();
    let step = 1e-5;
    for (index, var) in vars.iter().enumerate() {
        let found = read(gradients.get(var).unwrap_or_else(|| panic!("{slot}: no gradient for operand {index}")));
        let start = read(var);
        for (element, found) in found.into_iter().enumerate() {
            let at = |offset: f64| {
                let mut moved = start.clone();
                moved[element] += offset;
                var.set(&tensor(&moved, var.dims())).unwrap();
                read(&objective())[0]
            };
            let expected = (at(step) - at(-step)) / (2.0 * step);
            at(0.0);
            assert!(
                (found - expected).abs() < 1e-5 * (1.0 + expected.abs()),
                "{slot}, operand {index}, element {element}: {found} against {expected}"
            );
        }
    }
}
