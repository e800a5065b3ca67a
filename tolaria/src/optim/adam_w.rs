//! Adam with decoupled weight decay: settings and the constants of a step.

use super::rules::{AdamW, Element};
use crate::cpu::{SINGLE, ZERO_OR_SINGLE, is_single, is_zero_or_single, to_f32};

/// Settings as they have to be, each as (key, whether it is, what is accepted).
pub(super) fn checks(betas: [f64; 2], eps: f64, weight_decay: f64) -> Vec<(&'static str, bool, &'static str)> {
    let fraction = |value: f64| (0.0..1.0).contains(&value);
    vec![
        ("beta1", fraction(betas[0]), "a number of at least 0 and below 1"),
        ("beta2", fraction(betas[1]), "a number of at least 0 and below 1"),
        ("eps", is_single(eps), SINGLE),
        ("weight_decay", is_zero_or_single(weight_decay), ZERO_OR_SINGLE),
    ]
}

/// The update at this learning rate. `steps`: updates of the parameter so far, this one included; from 1.
pub(super) fn element(betas: [f64; 2], eps: f64, weight_decay: f64, learning_rate: f64, steps: u64) -> Element {
    let [correction1, correction2] = betas.map(|beta| 1.0 - beta.powf(steps as f64));
    let [[beta1, rest1], [beta2, rest2]] = betas.map(|beta| [beta, 1.0 - beta].map(to_f32));
    Element::AdamW(AdamW {
        beta1,
        rest1,
        beta2,
        rest2,
        eps: to_f32(eps),
        keep: to_f32(1.0 - learning_rate * weight_decay),
        step_size: to_f32(learning_rate / correction1),
        root_correction: to_f32(1.0 / correction2.sqrt()),
    })
}
