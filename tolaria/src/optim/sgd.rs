//! Stochastic gradient descent with momentum.

use candle_core::{Tensor, Var};

use super::fused::{Rule, is_finite};
use crate::cpu;
use crate::error::Error;

/// Constants of one step.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sgd {
    pub(super) learning_rate: f64,
    pub(super) momentum: f64,
    pub(super) nesterov: bool,
    pub(super) weight_decay: f64,
}

impl Sgd {
    /// The update of one element, as the kernels of the CPU run it.
    pub(super) fn rule(self) -> Rule {
        Rule::Sgd(SgdRule {
            learning_rate: cpu::to_f32(self.learning_rate),
            momentum: cpu::to_f32(self.momentum),
            nesterov: self.nesterov,
            weight_decay: cpu::to_f32(self.weight_decay),
        })
    }

    /// Candle operations: `gradient` has the shape of the parameter, `velocity` its elements.
    pub(super) fn composed(self, parameter: &Var, velocity: Option<&Tensor>, gradient: &Tensor) -> Result<(), Error> {
        let before = parameter.as_detached_tensor();
        let direction = (gradient + (&before * self.weight_decay)?)?;
        let Some(velocity) = velocity else {
            let next = (&before - (direction * self.learning_rate)?)?;
            return Ok(parameter.set(&is_finite(&next)?.where_cond(&next, &before)?)?);
        };
        let speed = velocity.reshape(before.shape())?;
        let next_speed = ((&speed * self.momentum)? + &direction)?;
        let update = if self.nesterov { (direction + (&next_speed * self.momentum)?)? } else { next_speed.clone() };
        let next = (&before - (update * self.learning_rate)?)?;
        let updates = (is_finite(&next)? * is_finite(&next_speed)?)?;
        velocity.slice_set(&updates.where_cond(&next_speed, &speed)?.reshape(velocity.shape())?, 0, 0)?;
        Ok(parameter.set(&updates.where_cond(&next, &before)?)?)
    }
}

/// Constants of one step, rounded once.
#[derive(Debug, Clone, Copy)]
pub(super) struct SgdRule {
    learning_rate: f32,
    momentum: f32,
    nesterov: bool,
    weight_decay: f32,
}

impl SgdRule {
    #[inline(always)]
    pub(super) fn update(self, parameter: &mut [f32], velocity: Option<&mut [f32]>, gradient: &[f32]) {
        match velocity {
            None => {
                for (p, g) in parameter.iter_mut().zip(gradient) {
                    *p -= self.direction(*g, *p) * self.learning_rate;
                }
            }
            Some(velocity) if self.nesterov => {
                for ((p, v), g) in parameter.iter_mut().zip(velocity).zip(gradient) {
                    let direction = self.direction(*g, *p);
                    *v = *v * self.momentum + direction;
                    *p -= (direction + *v * self.momentum) * self.learning_rate;
                }
            }
            Some(velocity) => {
                for ((p, v), g) in parameter.iter_mut().zip(velocity).zip(gradient) {
                    *v = *v * self.momentum + self.direction(*g, *p);
                    *p -= *v * self.learning_rate;
                }
            }
        }
    }

    #[inline(always)]
    fn direction(self, gradient: f32, parameter: f32) -> f32 {
        gradient + parameter * self.weight_decay
    }
}
