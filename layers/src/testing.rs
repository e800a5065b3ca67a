//! What the tests of several layers use.

use candle_core::{DType, Device, Result, Tensor, Var};
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

/// Numbers in [-2, 2), of a seed.
pub(crate) fn numbers(seed: u64, count: usize) -> Vec<f64> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    (0..count).map(|_| rng.random_range(-2.0..2.0)).collect()
}

/// A tensor of `f64` on the CPU.
pub(crate) fn tensor(values: &[f64], shape: &[usize]) -> Tensor {
    Tensor::new(values, &Device::Cpu).unwrap().reshape(shape).unwrap()
}

/// All elements.
#[expect(clippy::disallowed_methods, reason = "tests look at results")]
pub(crate) fn read(tensor: &Tensor) -> Vec<f64> {
    tensor.to_dtype(DType::F64).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

/// Whether the numbers agree to `tolerance`, absolutely.
pub(crate) fn assert_close(found: &[f64], expected: &[f64], tolerance: f64, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (index, (a, b)) in found.iter().zip(expected).enumerate() {
        assert!((a - b).abs() <= tolerance, "{what}: element {index} is {a}, expected {b}");
    }
}

/// Compares the gradient of the weighted sum of the results with central differences, for every element of every input.
pub(crate) fn assert_gradients(inputs: &[Tensor], run: impl Fn(&[Tensor]) -> Result<Tensor>, what: &str) {
    let variables: Vec<Var> = inputs.iter().map(|input| Var::from_tensor(input).unwrap()).collect();
    let tensors: Vec<Tensor> = variables.iter().map(|variable| variable.as_tensor().clone()).collect();
    let result = run(&tensors).unwrap();
    let weights = numbers(99, result.elem_count());
    let gradients = (&result * tensor(&weights, result.dims())).unwrap().sum_all().unwrap().backward().unwrap();
    let value = |inputs: &[Tensor]| -> f64 {
        read(&run(inputs).unwrap()).iter().zip(&weights).map(|(value, weight)| value * weight).sum()
    };
    let step = 1e-5;
    for (index, variable) in variables.iter().enumerate() {
        let found = read(gradients.get(variable).unwrap());
        let start = read(&inputs[index]);
        let expected: Vec<f64> = (0..start.len())
            .map(|element| {
                let at = |offset: f64| {
                    let mut moved = start.clone();
                    moved[element] += offset;
                    let mut inputs = inputs.to_vec();
                    inputs[index] = tensor(&moved, inputs[index].dims());
                    value(&inputs)
                };
                (at(step) - at(-step)) / (2.0 * step)
            })
            .collect();
        assert_close(&found, &expected, 1e-6, &format!("{what}, gradient of input {index}"));
    }
}
