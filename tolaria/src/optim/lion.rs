//! Lion: settings and the constants of a step.

use super::rules::{Element, Lion};
use crate::cpu::{ZERO_OR_SINGLE, is_zero_or_single, to_f32};

/// Settings as they have to be, each as (key, whether it is, what is accepted).
pub(super) fn checks(betas: [f64; 2], weight_decay: f64) -> Vec<(&'static str, bool, &'static str)> {
    let fraction = |value: f64| (0.0..1.0).contains(&value);
    vec![
        ("beta1", fraction(betas[0]), "a number of at least 0 and below 1"),
        ("beta2", fraction(betas[1]), "a number of at least 0 and below 1"),
        ("weight_decay", is_zero_or_single(weight_decay), ZERO_OR_SINGLE),
    ]
}

/// The update at this learning rate.
pub(super) fn element(betas: [f64; 2], weight_decay: f64, learning_rate: f64) -> Element {
    let [[beta1, rest1], [beta2, rest2]] = betas.map(|beta| [beta, 1.0 - beta].map(to_f32));
    let keep = to_f32(1.0 - learning_rate * weight_decay);
    Element::Lion(Lion { beta1, rest1, beta2, rest2, keep, learning_rate: to_f32(learning_rate) })
}
