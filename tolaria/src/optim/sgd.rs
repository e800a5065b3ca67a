//! Stochastic gradient descent with momentum.

use candle_core::{CpuStorage, InplaceOp2, InplaceOp3, Layout, Tensor, Var};

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
    /// Kernels on the CPU: `gradient` is the flat one, and the parameter's part starts at `offset`.
    pub(super) fn kernel(
        self,
        parameter: &Var,
        velocity: Option<&Tensor>,
        gradient: &Tensor,
        offset: usize,
    ) -> Result<(), Error> {
        let kernel = Kernel {
            offset,
            learning_rate: cpu::to_f32(self.learning_rate),
            momentum: cpu::to_f32(self.momentum),
            nesterov: self.nesterov,
            weight_decay: cpu::to_f32(self.weight_decay),
        };
        match velocity {
            None => parameter.inplace_op2(gradient, &Plain(kernel))?,
            Some(velocity) => {
                velocity.inplace_op3(parameter, gradient, &Velocity(kernel))?;
                parameter.inplace_op3(velocity, gradient, &Momentum(kernel))?;
            }
        }
        Ok(())
    }

    /// Candle operations: `gradient` has the shape of the parameter, `velocity` its elements.
    pub(super) fn composed(self, parameter: &Var, velocity: Option<&Tensor>, gradient: &Tensor) -> Result<(), Error> {
        let before = parameter.as_detached_tensor();
        let direction = (gradient + (&before * self.weight_decay)?)?;
        let update = match velocity {
            None => direction,
            Some(velocity) => {
                let speed = ((velocity.reshape(before.shape())? * self.momentum)? + &direction)?;
                velocity.slice_set(&speed.reshape(velocity.shape())?, 0, 0)?;
                if self.nesterov { (direction + (speed * self.momentum)?)? } else { speed }
            }
        };
        Ok(parameter.set(&(before - (update * self.learning_rate)?)?)?)
    }
}

#[derive(Debug, Clone, Copy)]
struct Kernel {
    offset: usize,
    learning_rate: f32,
    momentum: f32,
    nesterov: bool,
    weight_decay: f32,
}

impl Kernel {
    /// The part of the flat gradient that belongs to a parameter of `len` elements.
    fn part<'a>(&self, gradient: &'a CpuStorage, layout: &Layout, len: usize) -> candle_core::Result<&'a [f32]> {
        Ok(&cpu::slice::<f32>(gradient, layout)?[self.offset..self.offset + len])
    }

    fn direction(&self, gradient: f32, parameter: f32) -> f32 {
        gradient + parameter * self.weight_decay
    }
}

struct Plain(Kernel);

impl InplaceOp2 for Plain {
    fn name(&self) -> &'static str {
        "sgd"
    }

    fn cpu_fwd(&self, p: &mut CpuStorage, pl: &Layout, g: &CpuStorage, gl: &Layout) -> candle_core::Result<()> {
        let parameter = cpu::slice_mut(p, pl)?;
        let gradient = self.0.part(g, gl, parameter.len())?;
        for (p, g) in parameter.iter_mut().zip(gradient) {
            *p -= self.0.direction(*g, *p) * self.0.learning_rate;
        }
        Ok(())
    }
}

struct Velocity(Kernel);

impl InplaceOp3 for Velocity {
    fn name(&self) -> &'static str {
        "sgd-velocity"
    }

    fn cpu_fwd(
        &self,
        v: &mut CpuStorage,
        vl: &Layout,
        p: &CpuStorage,
        pl: &Layout,
        g: &CpuStorage,
        gl: &Layout,
    ) -> candle_core::Result<()> {
        let (velocity, parameter) = (cpu::slice_mut(v, vl)?, cpu::slice::<f32>(p, pl)?);
        let gradient = self.0.part(g, gl, parameter.len())?;
        for ((v, p), g) in velocity.iter_mut().zip(parameter).zip(gradient) {
            *v = *v * self.0.momentum + self.0.direction(*g, *p);
        }
        Ok(())
    }
}

struct Momentum(Kernel);

impl InplaceOp3 for Momentum {
    fn name(&self) -> &'static str {
        "sgd-momentum"
    }

    fn cpu_fwd(
        &self,
        p: &mut CpuStorage,
        pl: &Layout,
        v: &CpuStorage,
        vl: &Layout,
        g: &CpuStorage,
        gl: &Layout,
    ) -> candle_core::Result<()> {
        let (parameter, velocity) = (cpu::slice_mut(p, pl)?, cpu::slice::<f32>(v, vl)?);
        let gradient = self.0.part(g, gl, parameter.len())?;
        let Kernel { learning_rate, momentum, nesterov, .. } = self.0;
        for ((p, v), g) in parameter.iter_mut().zip(velocity).zip(gradient) {
            let update = if nesterov { self.0.direction(*g, *p) + v * momentum } else { *v };
            *p -= update * learning_rate;
        }
        Ok(())
    }
}
