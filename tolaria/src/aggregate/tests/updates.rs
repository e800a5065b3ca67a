//! Updates with a combination that is not formed are those with the formed one.

use proptest::prelude::*;

use super::window::{Window, windows};
use super::{MEAN, METHODS, PATHS, cases};
use crate::aggregate::AggregationConfig;
use crate::aggregate::passes::Passes;
use crate::grad::GradientBufferPool;
use crate::optim::{Optimizer, OptimizerConfig};
use crate::testing::{bits, flat, parameters, random, saved_state, values};

const OPTIMIZERS: [OptimizerConfig; 4] = [
    OptimizerConfig::Sgd { momentum: 0.0, nesterov: false, weight_decay: 0.0 },
    OptimizerConfig::Sgd { momentum: 0.9, nesterov: false, weight_decay: 0.05 },
    OptimizerConfig::Sgd { momentum: 0.8, nesterov: true, weight_decay: 0.01 },
    OptimizerConfig::AdamW { beta1: 0.9, beta2: 0.99, eps: 1e-8, weight_decay: 0.1 },
];

/// Parameters and moments after three steps, the gradients formed or not.
fn train(
    window: &Window,
    config: &AggregationConfig,
    optimizer: OptimizerConfig,
    path: &Passes,
    form: bool,
) -> Vec<u32> {
    let parameters = parameters(&window.layout, &random(window.layout.num_elements(), 77));
    let mut optimizer = Optimizer::new(optimizer);
    let pool = GradientBufferPool::new();
    for step in 0..3 {
        let mut window = window.clone();
        window.rows.rotate_left(step);
        window.order.step.0 += step as u64;
        let (combination, _) = window.combine(path, config, &pool, None);
        if form {
            let gradient = combination.materialize_on(path, &window.geometry()).unwrap();
            optimizer.step(&parameters, &window.layout, gradient.as_tensor(), 0.05).unwrap();
        } else {
            let plan = optimizer.prepare(&parameters, &window.layout, 0.05).unwrap();
            optimizer.apply_combination(&parameters, &window.layout, &combination, &plan, None).unwrap();
            optimizer.commit(&window.layout, &plan);
        }
    }
    assert_eq!(pool.stats().outstanding, 0);
    let moments = saved_state(&optimizer).tensors.values().flat_map(values).collect::<Vec<_>>();
    bits(&[flat(&parameters), moments].concat())
}

proptest! {
    #![proptest_config(cases(40))]

    #[test]
    fn updates_from_rows_are_those_from_the_gradient_bit_for_bit(
        window in windows(false),
        method in prop::sample::select(METHODS.to_vec()),
        clip_norm in prop_oneof![Just(None), Just(Some(0.05)), Just(Some(1.0))],
    ) {
        let config = AggregationConfig { method, clip_norm, ..MEAN };
        for optimizer in OPTIMIZERS {
            let [found, expected] = [false, true].map(|form| train(&window, &config, optimizer, &PATHS[0], form));
            prop_assert!(found == expected, "{:?} {:?}", config, optimizer);
        }
    }
}
