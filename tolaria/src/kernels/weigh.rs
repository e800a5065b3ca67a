//! Gradients that are weighed on their way into a row.

use candle_core::{DType, Result, Tensor};
use cudarc::driver::{DeviceRepr, PushKernelArg as _};
use esper_graph::launch::{Effect, address, declare, expect, grid, tensor_error};

use super::module::DeviceKernels;
use crate::grad::Weight;

const MAX_SOURCES: usize = 64;

#[repr(C)]
#[derive(Clone, Copy)]
struct Sources {
    address: [u64; MAX_SOURCES],
    offset: [u64; MAX_SOURCES],
    length: [u64; MAX_SOURCES],
}

// SAFETY: a plain structure of numbers, laid out as the kernel's.
unsafe impl DeviceRepr for Sources {}

impl DeviceKernels {
    /// Puts `f32` tensors to their offsets in `flat`, each element by `weight`, in a launch for up to 64 of them. Sources that are not
    /// contiguous are made so first.
    pub(crate) fn weigh(&self, flat: &Tensor, sources: &[(usize, &Tensor)], weight: &Weight<'_>) -> Result<()> {
        let whole = sources.iter().map(|(at, tensor)| Ok((*at, tensor.contiguous()?))).collect::<Result<Vec<_>>>()?;
        expect(flat, DType::F32, flat.elem_count(), "a row of gradients")?;
        let scale = weight.scale.map_or(Ok(0), |scale| {
            expect(scale, DType::F32, 1, "the scale of a loss")?;
            address(scale)
        })?;
        let (base, adds) = (address(flat)?, u32::from(weight.adds));
        let function = self.function("weigh_sources")?;
        let stream = self.stream();
        for few in whole.chunks(MAX_SOURCES) {
            // The kernel is told where the first of these starts, so that all it touches follows its pointers.
            let start = few.iter().map(|(offset, _)| *offset).min().unwrap_or(0);
            let row = base + 4 * start as u64;
            let mut table = Sources { address: [0; MAX_SOURCES], offset: [0; MAX_SOURCES], length: [0; MAX_SOURCES] };
            let mut effect = Effect::new();
            for (index, (offset, tensor)) in few.iter().enumerate() {
                let length = tensor.elem_count();
                expect(tensor, DType::F32, length, "a gradient")?;
                if offset + length > flat.elem_count() {
                    candle_core::bail!("{length} elements at {offset} do not fit into {flat:?}")
                }
                let place = row + 4 * (offset - start) as u64;
                (table.address[index], table.offset[index]) = (address(tensor)?, (offset - start) as u64);
                table.length[index] = length as u64;
                if length > 0 {
                    effect = effect.reading(table.address[index], 4 * length);
                    let place_of = if weight.adds { Effect::updating } else { Effect::writing };
                    effect = place_of(effect, place, 4 * length);
                }
            }
            let effect = if scale == 0 { effect } else { effect.reading(scale, 4) };
            let longest = few.iter().map(|(_, tensor)| tensor.elem_count()).max().unwrap_or(0);
            let mut launch = stream.launch_builder(&function);
            launch.arg(&table).arg(&row).arg(&weight.coefficient).arg(&adds).arg(&scale);
            // SAFETY: every source is as long as the table says, and lies inside the row.
            let launch = || tensor_error(unsafe { launch.launch(grid(longest, few.len())) });
            declare(&stream, || effect, launch)?;
        }
        Ok(())
    }
}
