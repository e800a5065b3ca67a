//! Updates of all parameters in a few launches, from a combination of rows that is formed on the way.

use candle_core::{DType, Result};
use cudarc::driver::{DeviceRepr, PushKernelArg as _};
use esper_graph::launch::{Effect, address, blocks_of, count, declare, expect, tensor_error};

use super::args::{ParameterUpdate, UpdateArgs};
use super::module::DeviceKernels;
use super::workspace::Workspace;
use crate::optim::{MAX_SETTINGS, TABLE_WIDTH};

const MAX_PARAMETERS: usize = 160;

/// Of parameters in halves there are half as many, and the second half of `parameter` is their lower halves.
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
        let (chunks, parts) = (address(&workspace.chunks)?, address(&workspace.parts)?);
        let (coefficients, constants) = (address(args.coefficients)?, address(args.constants)?);
        let is_halved = updates.iter().any(|update| update.rest.is_some());
        let function = self.function(args.element.kernel(is_halved))?;
        let stream = self.stream();
        let most = if is_halved { MAX_PARAMETERS / 2 } else { MAX_PARAMETERS };
        for (index, few) in updates.chunks(most).enumerate() {
            let first_part = index * most;
            let table = table(few, first_part, workspace, (num_states, is_halved))?;
            let first = workspace.first_chunks[first_part];
            let num_chunks = workspace.first_chunks[first_part + few.len()] - first;
            let first_chunk = count(first);
            let mut launch = stream.launch_builder(&function);
            launch.arg(&rows).arg(&table).arg(&settings).arg(&chunks).arg(&parts);
            launch.arg(&coefficients).arg(&factors).arg(&constants).arg(&first_chunk);
            // SAFETY: `table` confirmed the size of every tensor, the others were checked above; the chunks of these
            // parts and no others take part.
            let launch = || tensor_error(unsafe { launch.launch(blocks_of(num_chunks, 1)) });
            let effect = || {
                let effect = workspace.reading_combination(&rows, args.rows.len(), coefficients, factors);
                updated(effect.reading(constants, 4 * TABLE_WIDTH * updates.len()), few, first_part, workspace, &table)
            };
            declare(&stream, effect, launch)?;
        }
        Ok(())
    }
}

/// The parameters and their moments change.
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
        let effect = match update.rest {
            None => effect.updating(table.parameter[index], 4 * length),
            Some(_) => effect
                .updating(table.parameter[index], 2 * length)
                .updating(table.parameter[MAX_PARAMETERS / 2 + index], 2 * length),
        };
        match update.moments {
            Some(moments) => effect.updating(table.moments[index], 4 * moments.elem_count()),
            None => effect,
        }
    })
}

fn table(
    updates: &[ParameterUpdate<'_>],
    first_part: usize,
    workspace: &Workspace,
    (num_states, is_halved): (usize, bool),
) -> Result<Parameters> {
    let (parameter, moments) = ([0; MAX_PARAMETERS], [0; MAX_PARAMETERS]);
    let mut table = Parameters { parameter, moments, first_part: count(first_part), padding: 0 };
    for (index, update) in updates.iter().enumerate() {
        let part = first_part + index;
        let length = workspace.starts[part + 1] - workspace.starts[part];
        expect(update.parameter, if is_halved { DType::BF16 } else { DType::F32 }, length, "a parameter")?;
        match update.rest {
            Some(rest) => {
                expect(rest, DType::I16, length, "the lower halves of a parameter")?;
                table.parameter[MAX_PARAMETERS / 2 + index] = address(rest)?;
            }
            None if is_halved => candle_core::bail!("all parameters of an update are in halves, or none"),
            None => {}
        }
        match update.moments {
            Some(moments) => {
                expect(moments, DType::F32, num_states * length, "moments")?;
                table.moments[index] = address(moments)?;
            }
            None if num_states > 0 => candle_core::bail!("every parameter needs its {num_states} moments"),
            None => {}
        }
        table.parameter[index] = address(update.parameter)?;
    }
    Ok(table)
}
