//! Updates from rows that are never summed in memory, against the same in three steps: sum, scale, update.

use candle_core::{DType, Device};
use proptest::prelude::*;

use super::super::{Optimizer, OptimizerConfig};
use super::{ALL, RATE};
use crate::aggregate::{Coefficients, Combination, Factors};
use crate::cpu::to_f32;
use crate::grad::GradientBufferPool;
use crate::testing::{HOST, bits, flat, layout, parameters, random, saved_state, seed, values, vector};
use leyline::layout::ParameterLayout;

/// Every element on its own, as the definition has it, each operation rounded to `f32`.
struct Reference {
    parameter: Vec<f32>,
    moments: [Vec<f32>; 2],
    steps: i32,
}

impl Reference {
    fn step(&mut self, config: OptimizerConfig, gradient: &[f32]) {
        self.steps += 1;
        let [first, second] = &mut self.moments;
        for (index, &g) in gradient.iter().enumerate() {
            let (p, m, v) = (&mut self.parameter[index], &mut first[index], &mut second[index]);
            match config {
                OptimizerConfig::Sgd { momentum, nesterov, weight_decay } => {
                    let (momentum, rate) = (to_f32(momentum), to_f32(RATE));
                    let direction = g + *p * to_f32(weight_decay);
                    *m = *m * momentum + direction;
                    let update = match (momentum > 0.0, nesterov) {
                        (false, _) => direction,
                        (true, false) => *m,
                        (true, true) => direction + *m * momentum,
                    };
                    *p -= update * rate;
                }
                OptimizerConfig::AdamW { beta1, beta2, eps, weight_decay } => {
                    let correction = |beta: f64| 1.0 - beta.powf(f64::from(self.steps));
                    *m = *m * to_f32(beta1) + g * to_f32(1.0 - beta1);
                    *v = *v * to_f32(beta2) + (g * g) * to_f32(1.0 - beta2);
                    let root = v.sqrt() * to_f32(1.0 / correction(beta2).sqrt()) + to_f32(eps);
                    let rate = to_f32(RATE / correction(beta1));
                    *p = *p * to_f32(1.0 - RATE * weight_decay) - *m / root * rate;
                }
                OptimizerConfig::Muon { beta1, beta2, eps, weight_decay, .. } => {
                    let correction = |beta: f64| 1.0 - beta.powf(f64::from(self.steps));
                    *m += (g - *m) * to_f32(1.0 - beta1);
                    *v += (g * g - *v) * to_f32(1.0 - beta2);
                    let root = v.sqrt() * to_f32(1.0 / correction(beta2).sqrt()) + to_f32(eps);
                    let rate = to_f32(RATE / correction(beta1));
                    *p = *p * to_f32(1.0 - RATE * weight_decay) - *m / root * rate;
                }
                OptimizerConfig::Lion { beta1, beta2, weight_decay } => {
                    let direction = *m * to_f32(beta1) + g * to_f32(1.0 - beta1);
                    let sign = if direction == 0.0 { 0.0 } else { direction.signum() };
                    *p = *p * to_f32(1.0 - RATE * weight_decay) - sign * to_f32(RATE);
                    *m = *m * to_f32(beta2) + g * to_f32(1.0 - beta2);
                }
            }
        }
    }
}

fn example(lens: [usize; 4]) -> ParameterLayout {
    let [a, b, c, d] = lens;
    layout(&[("a", a, HOST, false), ("b", b, seed(1), true), ("c", c, seed(2), false), ("d", d, HOST, false)])
}

/// The rows' elements, and what they are weighted with.
struct Window {
    rows: Vec<Vec<f32>>,
    coefficients: Vec<f32>,
    factors: Vec<f32>,
}

impl Window {
    fn new(layout: &ParameterLayout, count: usize, factors: &[f32], number: u64) -> Self {
        let rows = (0..count as u64).map(|row| random(layout.num_elements(), 100 * number + row)).collect();
        let mut coefficients = random(2 * count, number);
        if number.is_multiple_of(3) {
            coefficients.fill(1.0);
        }
        let parts = layout.segments().iter().zip(factors).filter(|(segment, _)| segment.len > 0);
        Self { rows, coefficients, factors: parts.map(|(_, factor)| *factor).collect() }
    }

    fn formed(&self, layout: &ParameterLayout) -> Vec<f32> {
        let parts = layout.segments().iter().filter(|segment| segment.len > 0);
        let mut gradient = Vec::new();
        for (segment, factor) in parts.zip(&self.factors) {
            let coefficients = &self.coefficients[usize::from(segment.spec.isolated) * self.rows.len()..];
            for index in segment.offset..segment.offset + segment.len {
                let mut sum = self.rows[0][index] * coefficients[0];
                for (row, coefficient) in self.rows.iter().zip(coefficients).skip(1) {
                    sum += row[index] * coefficient;
                }
                gradient.push(sum * factor);
            }
        }
        gradient
    }

    fn combination(&self, pool: &GradientBufferPool) -> Combination {
        let lease = |row: &Vec<f32>| {
            let lease = pool.lease(row.len(), DType::F32, &Device::Cpu).unwrap();
            if !row.is_empty() {
                lease.as_tensor().slice_set(&vector(row), 0, 0).unwrap();
            }
            lease
        };
        let rows = self.rows.iter().map(lease).collect();
        let wide = |values: &[f32]| values.iter().copied().map(f64::from).collect();
        let (coefficients, factors) = (wide(&self.coefficients), wide(&self.factors));
        Combination::new(rows, Coefficients::Host(coefficients), Factors::Host(factors)).unwrap()
    }
}

/// Three steps; the parameters after each.
fn run(config: OptimizerConfig, layout: &ParameterLayout, count: usize, factors: &[f32]) -> Vec<Vec<u32>> {
    let start = random(layout.num_elements(), 5);
    let vars = parameters(layout, &start);
    let (pool, mut optimizer) = (GradientBufferPool::new(), Optimizer::new(config));
    let zeros = || vec![0.0; start.len()];
    let mut reference = Reference { parameter: start.clone(), moments: [zeros(), zeros()], steps: 0 };
    let mut results = Vec::new();
    for number in 1..4 {
        let window = Window::new(layout, count, factors, number);
        let combination = window.combination(&pool);
        let plan = optimizer.prepare(&vars, layout, RATE).unwrap();
        optimizer.apply_combination(&vars, layout, &combination, &plan, None).unwrap();
        optimizer.commit(layout, &plan);
        reference.step(config, &window.formed(layout));
        assert_eq!(bits(&flat(&vars)), bits(&reference.parameter), "{config:?}, step {number}");
        results.push(bits(&flat(&vars)));
    }
    for (name, tensor) in saved_state(&optimizer).tensors {
        let segment = layout.segments().iter().find(|segment| segment.spec.name == name).unwrap();
        let range = segment.offset..segment.offset + segment.len;
        let moments = reference.moments.iter().flat_map(|moment| &moment[range.clone()]).copied();
        let expected: Vec<f32> = moments.take(tensor.elem_count()).collect();
        assert_eq!(bits(&values(&tensor)), bits(&expected), "moments of {name}");
    }
    results
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn fused_updates_equal_sum_scale_update_bit_for_bit(
        config in prop::sample::select(ALL.to_vec()),
        count in 1_usize..10,
        lens in prop::array::uniform4(prop_oneof![0_usize..40, 2000_usize..4200]),
        factors in prop::array::uniform4(prop_oneof![Just(1.0_f32), 0.01_f32..1.0]),
    ) {
        run(config, &example(lens), count, &factors);
    }
}

#[test]
fn threads_change_no_bit() {
    let layout = example([300_000, 3, 170_001, 40]);
    for config in ALL {
        let with =
            |threads: usize| crate::cpu::with_threads(threads, || run(config, &layout, 3, &[0.5, 1.0, 0.9, 1.0]));
        assert!(with(1) == with(3), "{config:?}");
    }
}

#[test]
fn a_combination_that_does_not_fit_changes_nothing() {
    let layout = example([3, 2, 2, 1]);
    let vars = parameters(&layout, &random(8, 5));
    let before = flat(&vars);
    let pool = GradientBufferPool::new();
    let mut optimizer = Optimizer::new(ALL[3]);
    let plan = optimizer.prepare(&vars, &layout, RATE).unwrap();
    let mut window = Window::new(&layout, 2, &[1.0; 4], 1);
    let refused = |window: &Window, message: &str| {
        let error = optimizer.apply_combination(&vars, &layout, &window.combination(&pool), &plan, None).unwrap_err();
        assert_eq!(error.to_string(), message);
        assert_eq!(flat(&vars), before);
    };
    window.factors.pop();
    refused(&window, "factors of a combination: expected 4, found 3");
    window.rows.iter_mut().for_each(|row| row.truncate(7));
    refused(&window, "shape of the gradient: expected [8], found [7]");
}
