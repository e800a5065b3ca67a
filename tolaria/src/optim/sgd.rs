//! Stochastic gradient descent: settings and the constants of a step.

use super::rules::{Element, Momentum, Nesterov, Sgd};
use crate::cpu::{ZERO_OR_SINGLE, is_zero_or_single, to_f32};

/// Settings as they have to be, each as (key, whether it is, what is accepted).
pub(super) fn checks(momentum: f64, nesterov: bool, weight_decay: f64) -> Vec<(&'static str, bool, &'static str)> {
    vec![
        ("momentum", (0.0..1.0).contains(&momentum), "a number of at least 0 and below 1"),
        ("nesterov", !nesterov || momentum > 0.0, "false, or a momentum above 0"),
        ("weight_decay", is_zero_or_single(weight_decay), ZERO_OR_SINGLE),
    ]
}

/// The update at this learning rate; without momentum nothing is remembered.
pub(super) fn element(momentum: f64, nesterov: bool, weight_decay: f64, learning_rate: f64) -> Element {
    let is_plain = momentum <= 0.0;
    let [momentum, weight_decay, learning_rate] = [momentum, weight_decay, learning_rate].map(to_f32);
    if is_plain {
        Element::Sgd(Sgd { weight_decay, learning_rate })
    } else if nesterov {
        Element::Nesterov(Nesterov { momentum, weight_decay, learning_rate })
    } else {
        Element::Momentum(Momentum { momentum, weight_decay, learning_rate })
    }
}
