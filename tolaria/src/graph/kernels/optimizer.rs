//! Updates of all parameters in a few launches.

use candle_core::{DType, Result, Tensor};
use cudarc::driver::{DeviceRepr, PushKernelArg as _};

use super::args::ParameterUpdate;
use super::module::{DeviceKernels, expect, grid};
use crate::graph::cuda::{address, tensor_error};

const MAX_PARAMETERS: usize = 48;
/// Numbers per parameter in the table of constants.
const CONSTANTS: usize = 4;

#[repr(C)]
#[derive(Clone, Copy)]
struct Parameters {
    parameter: [u64; MAX_PARAMETERS],
    moments: [u64; MAX_PARAMETERS],
    offset: [u64; MAX_PARAMETERS],
    length: [u64; MAX_PARAMETERS],
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Settings([f32; 5]);

// SAFETY: a plain structure of numbers, laid out as the kernel's.
unsafe impl DeviceRepr for Parameters {}
// SAFETY: as above.
unsafe impl DeviceRepr for Settings {}

impl DeviceKernels {
    /// SGD. `constants` (parameters, 4) of `f32`: the learning rate comes first.
    pub(crate) fn sgd(
        &self,
        updates: &[ParameterUpdate<'_>],
        gradient: &Tensor,
        constants: &Tensor,
        [momentum, weight_decay]: [f32; 2],
        nesterov: bool,
    ) -> Result<()> {
        let settings = Settings([momentum, weight_decay, f32::from(u8::from(nesterov)), 0.0, 0.0]);
        self.update("sgd", settings, updates, gradient, constants)
    }

    /// AdamW. `constants` (parameters, 4) of `f32`: keep, step size, root correction; `settings`: β₁, 1 − β₁, β₂,
    /// 1 − β₂, ε.
    pub(crate) fn adam_w(
        &self,
        updates: &[ParameterUpdate<'_>],
        gradient: &Tensor,
        constants: &Tensor,
        settings: [f32; 5],
    ) -> Result<()> {
        if updates.iter().any(|update| update.moments.is_none()) {
            candle_core::bail!("AdamW: every parameter needs its two moments")
        }
        self.update("adam_w", Settings(settings), updates, gradient, constants)
    }

    fn update(
        &self,
        kernel: &'static str,
        settings: Settings,
        updates: &[ParameterUpdate<'_>],
        gradient: &Tensor,
        constants: &Tensor,
    ) -> Result<()> {
        expect(constants, DType::F32, CONSTANTS * updates.len(), "optimizer constants")?;
        let function = self.function(kernel)?;
        let (flat, all_constants) = (address(gradient)?, address(constants)?);
        let stream = self.stream();
        for (index, chunk) in updates.chunks(MAX_PARAMETERS).enumerate() {
            let table = table(chunk, gradient)?;
            let longest = chunk.iter().map(|update| update.parameter.elem_count()).max().unwrap_or(0);
            let constants = all_constants + (index * MAX_PARAMETERS * CONSTANTS * size_of::<f32>()) as u64;
            let mut launch = stream.launch_builder(&function);
            launch.arg(&table).arg(&settings).arg(&flat).arg(&constants);
            // SAFETY: `table` confirmed the size of every tensor, `expect` that of the constants.
            tensor_error(unsafe { launch.launch(grid(longest, chunk.len())) })?;
        }
        Ok(())
    }
}

fn table(updates: &[ParameterUpdate<'_>], gradient: &Tensor) -> Result<Parameters> {
    let mut table = Parameters {
        parameter: [0; MAX_PARAMETERS],
        moments: [0; MAX_PARAMETERS],
        offset: [0; MAX_PARAMETERS],
        length: [0; MAX_PARAMETERS],
    };
    for (index, update) in updates.iter().enumerate() {
        let length = update.parameter.elem_count();
        expect(update.parameter, DType::F32, length, "a parameter")?;
        if update.offset + length > gradient.elem_count() || gradient.dtype() != DType::F32 {
            candle_core::bail!("a parameter of {length} elements at {} is not in {gradient:?}", update.offset)
        }
        if let Some(moments) = update.moments {
            expect(moments, DType::F32, length * moments.dims()[0], "moments")?;
            table.moments[index] = address(moments)?;
        }
        table.parameter[index] = address(update.parameter)?;
        table.offset[index] = update.offset as u64;
        table.length[index] = length as u64;
    }
    Ok(table)
}
