//! Updates of all parameters in a few launches, from a combination of rows that is formed on the way.

use candle_core::{DType, Result};
use cudarc::driver::{DeviceRepr, PushKernelArg as _};
use esper_graph::launch::{Effect, address, blocks_of, count, declare, expect, tensor_error};

use super::args::{ParameterUpdate, UpdateArgs, UpdateRule};
use super::module::DeviceKernels;
use super::workspace::Workspace;

const MAX_PARAMETERS: usize = 160;
/// Numbers per parameter in the table of constants.
const CONSTANTS: usize = 4;

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
struct Settings([f32; 5]);

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
        let (kernel, settings, needs_moments) = match args.rule {
            UpdateRule::Sgd { momentum, weight_decay, nesterov } => {
                ("update_sgd", Settings([momentum, weight_decay, f32::from(u8::from(nesterov)), 0.0, 0.0]), false)
            }
            UpdateRule::AdamW(settings) => ("update_adam_w", Settings(settings), true),
        };
        let rows = workspace.rows(args.rows)?;
        let factors = workspace.check_terms(args.rows.len(), args.coefficients, args.factors)?;
        if updates.len() != workspace.num_parts {
            candle_core::bail!("{} parameters are updated: expected {}", updates.len(), workspace.num_parts)
        }
        expect(args.constants, DType::F32, CONSTANTS * updates.len(), "optimizer constants")?;
        let (chunks, parts) = (address(&workspace.chunks)?, address(&workspace.parts)?);
        let (coefficients, constants) = (address(args.coefficients)?, address(args.constants)?);
        let function = self.function(kernel)?;
        let stream = self.stream();
        for (index, few) in updates.chunks(MAX_PARAMETERS).enumerate() {
            let first_part = index * MAX_PARAMETERS;
            let table = table(few, first_part, workspace, needs_moments)?;
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
                updated(effect.reading(constants, 16 * updates.len()), few, first_part, workspace, &table)
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
        let length = 4 * (workspace.starts[part + 1] - workspace.starts[part]);
        let effect = effect.updating(table.parameter[index], length);
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
    needs_moments: bool,
) -> Result<Parameters> {
    let (parameter, moments) = ([0; MAX_PARAMETERS], [0; MAX_PARAMETERS]);
    let mut table = Parameters { parameter, moments, first_part: count(first_part), padding: 0 };
    for (index, update) in updates.iter().enumerate() {
        let part = first_part + index;
        let length = workspace.starts[part + 1] - workspace.starts[part];
        expect(update.parameter, DType::F32, length, "a parameter")?;
        let wanted = if needs_moments { 2 } else { 1 };
        match update.moments {
            Some(moments) => {
                expect(moments, DType::F32, wanted * length, "moments")?;
                table.moments[index] = address(moments)?;
            }
            None if needs_moments => candle_core::bail!("AdamW: every parameter needs its two moments"),
            None => {}
        }
        table.parameter[index] = address(update.parameter)?;
    }
    Ok(table)
}
