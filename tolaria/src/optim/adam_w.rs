//! Adam with decoupled weight decay.

use candle_core::{Tensor, Var};

use super::fused::{Rule, is_finite};
use crate::cpu;
use crate::error::Error;

/// Constants of one step of one parameter.
#[derive(Debug, Clone, Copy)]
pub(super) struct AdamW {
    beta1: f64,
    beta2: f64,
    eps: f64,
    /// What the parameter is multiplied with.
    keep: f64,
    /// `lr / (1 - beta1^t)`.
    step_size: f64,
    /// `1 / sqrt(1 - beta2^t)`.
    root_correction: f64,
}

impl AdamW {
    /// `steps`: updates of this parameter so far, this one included; from 1.
    pub(super) fn new(learning_rate: f64, [beta1, beta2]: [f64; 2], eps: f64, weight_decay: f64, steps: u64) -> Self {
        let correction = |beta: f64| 1.0 - beta.powf(steps as f64);
        Self {
            beta1,
            beta2,
            eps,
            keep: 1.0 - learning_rate * weight_decay,
            step_size: learning_rate / correction(beta1),
            root_correction: 1.0 / correction(beta2).sqrt(),
        }
    }

    /// What changes from step to step, as the kernels of a GPU read it.
    pub(super) fn row(self) -> [f32; 4] {
        [self.keep, self.step_size, self.root_correction, 0.0].map(cpu::to_f32)
    }

    /// The update of one element, as the kernels of the CPU run it.
    pub(super) fn rule(self) -> Rule {
        Rule::AdamW(AdamWRule {
            betas: [cpu::to_f32(self.beta1), cpu::to_f32(self.beta2)],
            rests: [cpu::to_f32(1.0 - self.beta1), cpu::to_f32(1.0 - self.beta2)],
            eps: cpu::to_f32(self.eps),
            keep: cpu::to_f32(self.keep),
            step_size: cpu::to_f32(self.step_size),
            root_correction: cpu::to_f32(self.root_correction),
        })
    }

    /// Candle operations: `gradient` has the shape of the parameter.
    pub(super) fn composed(self, parameter: &Var, moments: &Tensor, gradient: &Tensor) -> Result<(), Error> {
        let before = parameter.as_detached_tensor();
        let [first, second] =
            [0, 1].map(|row| moments.narrow(0, row, 1).and_then(|moment| moment.reshape(before.shape())));
        let (first, second) = (first?, second?);
        let next_first = ((&first * self.beta1)? + (gradient * (1.0 - self.beta1))?)?;
        let next_second = ((&second * self.beta2)? + (gradient.sqr()? * (1.0 - self.beta2))?)?;
        let root = ((next_second.sqrt()? * self.root_correction)? + self.eps)?;
        let next = ((&before * self.keep)? - ((&next_first / root)? * self.step_size)?)?;
        let updates = ((is_finite(&next)? * is_finite(&next_first)?)? * is_finite(&next_second)?)?;
        let row = (1, before.elem_count());
        moments.slice_set(&updates.where_cond(&next_first, &first)?.reshape(row)?, 0, 0)?;
        moments.slice_set(&updates.where_cond(&next_second, &second)?.reshape(row)?, 0, 1)?;
        Ok(parameter.set(&updates.where_cond(&next, &before)?)?)
    }
}

/// Constants of one step, rounded once.
#[derive(Debug, Clone, Copy)]
pub(super) struct AdamWRule {
    betas: [f32; 2],
    /// `1 - beta`.
    rests: [f32; 2],
    eps: f32,
    keep: f32,
    step_size: f32,
    root_correction: f32,
}

impl AdamWRule {
    #[inline(always)]
    pub(super) fn update(self, parameter: &mut [f32], first: &mut [f32], second: &mut [f32], gradient: &[f32]) {
        for (((p, m), v), g) in parameter.iter_mut().zip(first).zip(second).zip(gradient) {
            *m = *m * self.betas[0] + g * self.rests[0];
            *v = *v * self.betas[1] + (g * g) * self.rests[1];
            let root = v.sqrt() * self.root_correction + self.eps;
            *p = *p * self.keep - *m / root * self.step_size;
        }
    }
}
