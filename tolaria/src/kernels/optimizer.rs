//! Updates of all parameters in a few launches, from a combination of rows that is formed on the way.

use candle_core::{DType, Result};
use cudarc::driver::{DeviceRepr, PushKernelArg as _};
use esper_graph::launch::{Effect, address, blocks_of, count, declare, expect, tensor_error};

use super::args::{Beside, ParameterUpdate, UpdateArgs};
use super::module::DeviceKernels;
use super::workspace::Workspace;
use crate::optim::{MAX_SETTINGS, Numbers, TABLE_WIDTH};

const MAX_PARAMETERS: usize = 160;
/// Where a launch has fewer chunks, several blocks share each of them: the device has room for more.
const ENOUGH_BLOCKS: usize = 1024;
/// A whole chunk of the least length, 4096 elements, is four turns of a block.
const MAX_SHARES: usize = 4;

/// Of parameters with something beside them there are half as many, and the second half of `parameter` is that.
#[repr(C)]
#[derive(Clone, Copy)]
struct Parameters {
    parameter: [u64; MAX_PARAMETERS],
    moments: [u64; MAX_PARAMETERS],
    first_part: u32,
    /// Named, so that it has a value: two recordings of a launch are compared byte by byte.
    padding: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Settings([f32; MAX_SETTINGS]);

// SAFETY: a plain structure of numbers, laid out as the kernel's.
unsafe impl DeviceRepr for Parameters {}
// SAFETY: as above.
unsafe impl DeviceRepr for Settings {}

impl DeviceKernels {
    /// Updates one parameter per part of the geometry, in its order, in place.
    pub(crate) fn update(
        &self,
        workspace: &Workspace,
        updates: &[ParameterUpdate<'_>],
        args: &UpdateArgs<'_>,
    ) -> Result<()> {
        let (settings, num_states) = (Settings(args.element.settings()), args.element.num_states());
        let rows = workspace.rows_to_read(args.rows)?;
        let factors = workspace.check_terms(args.rows.len(), args.coefficients, args.factors)?;
        if updates.len() != workspace.num_parts {
            candle_core::bail!("{} parameters are updated: expected {}", updates.len(), workspace.num_parts)
        }
        expect(args.constants, DType::F32, TABLE_WIDTH * updates.len(), "optimizer constants")?;
        let (chunks, coefficients) = (address(&workspace.chunks)?, address(args.coefficients)?);
        let constants = address(args.constants)?;
        let is_half = updates.iter().any(|update| update.parameter.dtype() == DType::BF16);
        let numbers = match updates.iter().find_map(|update| update.beside) {
            None if is_half => Numbers::Drawn,
            None => Numbers::Whole,
            Some(Beside::Rest(_)) => Numbers::Halves,
            Some(Beside::Copy(_)) => Numbers::Copied,
        };
        let function = self.function(args.element.kernel(numbers))?;
        let stream = self.stream();
        let has_beside = matches!(numbers, Numbers::Halves | Numbers::Copied);
        let most = if has_beside { MAX_PARAMETERS / 2 } else { MAX_PARAMETERS };
        for (index, few) in updates.chunks(most).enumerate() {
            let first_part = index * most;
            let table = table(few, first_part, workspace, (num_states, numbers))?;
            let first = workspace.first_chunks[first_part];
            let num_chunks = workspace.first_chunks[first_part + few.len()] - first;
            let first_chunk = count(first);
            let shares = (ENOUGH_BLOCKS / num_chunks.max(1)).clamp(1, MAX_SHARES);
            let mut launch = stream.launch_builder(&function);
            launch.arg(&rows).arg(&table).arg(&settings).arg(&chunks);
            launch.arg(&coefficients).arg(&factors).arg(&constants).arg(&first_chunk);
            // SAFETY: `table` confirmed the size of every tensor, the others were checked above; the chunks of these
            // parts and no others take part.
            let launch = || tensor_error(unsafe { launch.launch(blocks_of(num_chunks, shares)) });
            let effect = || {
                let effect = workspace.reading_combination(&rows, args.rows.len(), coefficients, factors);
                updated(effect.reading(constants, 4 * TABLE_WIDTH * updates.len()), few, first_part, workspace, &table)
            };
            declare(&stream, effect, launch)?;
        }
        Ok(())
    }
}

/// The parameters, what is beside them and their moments change.
fn updated(
    effect: Effect,
    updates: &[ParameterUpdate<'_>],
    first_part: usize,
    workspace: &Workspace,
    table: &Parameters,
) -> Effect {
    updates.iter().enumerate().fold(effect, |effect, (index, update)| {
        let part = first_part + index;
        let length = workspace.starts[part + 1] - workspace.starts[part];
        let own = update.parameter.dtype().size_in_bytes();
        let effect = effect.updating(table.parameter[index], own * length);
        let effect = match update.beside {
            None => effect,
            Some(_) => effect.updating(table.parameter[MAX_PARAMETERS / 2 + index], 2 * length),
        };
        match update.moments {
            Some(moments) => {
                effect.updating(table.moments[index], moments.dtype().size_in_bytes() * moments.elem_count())
            }
            None => effect,
        }
    })
}

fn table(
    updates: &[ParameterUpdate<'_>],
    first_part: usize,
    workspace: &Workspace,
    (num_states, numbers): (usize, Numbers),
) -> Result<Parameters> {
    let (parameter, moments) = ([0; MAX_PARAMETERS], [0; MAX_PARAMETERS]);
    let mut table = Parameters { parameter, moments, first_part: count(first_part), padding: 0 };
    for (index, update) in updates.iter().enumerate() {
        let part = first_part + index;
        let length = workspace.starts[part + 1] - workspace.starts[part];
        let is_half = matches!(numbers, Numbers::Halves | Numbers::Drawn);
        let dtype = if is_half { DType::BF16 } else { DType::F32 };
        expect(update.parameter, dtype, length, "a parameter")?;
        let beside = match (update.beside, numbers) {
            (Some(Beside::Rest(rest)), Numbers::Halves) => Some((rest, DType::I16, "the lower halves of a parameter")),
            (Some(Beside::Copy(copy)), Numbers::Copied) => Some((copy, DType::BF16, "the copy of a parameter")),
            (None, Numbers::Whole | Numbers::Copied | Numbers::Drawn) => None,
            _ => candle_core::bail!("all parameters of an update are in halves, or none, and those have no copies"),
        };
        if let Some((beside, dtype, what)) = beside {
            expect(beside, dtype, length, what)?;
            table.parameter[MAX_PARAMETERS / 2 + index] = address(beside)?;
        }
        match update.moments {
            Some(moments) => {
                let dtype = if numbers == Numbers::Drawn { DType::BF16 } else { DType::F32 };
                expect(moments, dtype, num_states * length, "moments")?;
                table.moments[index] = address(moments)?;
            }
            None if num_states > 0 => candle_core::bail!("every parameter needs its {num_states} moments"),
            None => {}
        }
        table.parameter[index] = address(update.parameter)?;
    }
    Ok(table)
}
