//! The passes of the gradient engine.

use std::fmt;

use candle_core::{DType, Result, Tensor};
use cudarc::driver::{DeviceRepr, LaunchConfig, PushKernelArg as _};
use esper_graph::launch::{Effect, THREADS, address, blocks_of, count, declare, expect, tensor_error};

use super::args::{MAX_ROWS, SolveArgs};
use super::module::DeviceKernels;
use super::workspace::{Workspace, pairs_of, tiles_of};
use crate::aggregate::{Clipping, SumsLayout, WindowPlan};

/// Chunks of a part that are added in one go; of more, groups are added first.
const FEW_CHUNKS: usize = 128;

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Rows {
    pub(super) row: [u64; MAX_ROWS],
    count: u32,
    /// 1 for a row alone, of `bf16`.
    is_half: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Window {
    rows: u32,
    slots: u32,
    arguments: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Sums {
    base: u64,
    slots: u32,
    parts: u32,
}

// SAFETY: plain structures of numbers, laid out as the kernels'.
unsafe impl DeviceRepr for Rows {}
// SAFETY: as above.
unsafe impl DeviceRepr for Window {}
// SAFETY: as above.
unsafe impl DeviceRepr for Sums {}

impl DeviceKernels {
    /// Inner products, coefficients, norms and factors of a window, left in `workspace`; the owners are added to the
    /// sums. The rows are read once.
    pub(crate) fn resolve(&self, workspace: &Workspace, rows: &[&Tensor], args: &SolveArgs<'_>) -> Result<()> {
        let table = workspace.rows(rows)?;
        let (num_rows, slots, num_parts) = (rows.len(), workspace.slots, workspace.num_parts);
        let tiles = tiles_of(num_rows);
        let size = pairs_of(tiles) * 64;
        expect(args.arguments, DType::F64, args.arguments.elem_count(), "arguments of a window")?;
        let shared_bytes = workspace.shared_bytes(num_rows)?;
        if args.arguments.elem_count() < WindowPlan::num_arguments(num_rows, slots) {
            candle_core::bail!(
                "{} arguments are too few for {num_rows} rows and {slots} owners",
                args.arguments.elem_count()
            )
        }
        let sums = workspace.sums(args.sums)?;
        let window = Window { rows: count(num_rows), slots: count(slots), arguments: address(args.arguments)? };
        let (chunks, parts) = (address(&workspace.chunks)?, address(&workspace.parts)?);
        let (partials, groups) = (address(&workspace.partials)?, address(&workspace.groups)?);
        let (grams, coefficients) = (address(&workspace.grams)?, address(&workspace.coefficients)?);
        let squares = address(&workspace.part_squares)?;
        let (size, tiles_u32, rows_u32, parts_u32) = (count(size), count(tiles), count(num_rows), count(num_parts));
        let stream = self.stream();
        if num_parts > 0 {
            let function = self.function(match tiles {
                1 => "gram_chunks_1",
                2 => "gram_chunks_2",
                4 => "gram_chunks_4",
                _ => "gram_chunks_8",
            })?;
            let mut launch = stream.launch_builder(&function);
            launch.arg(&table).arg(&chunks).arg(&partials);
            // SAFETY: `rows` confirmed that every chunk is in every row; there is a place per chunk and pair of tiles.
            let launch = || tensor_error(unsafe { launch.launch(blocks_of(workspace.num_chunks, 1)) });
            declare(&stream, || updating(workspace.reading_rows(&table, num_rows), &workspace.partials), launch)?;

            let by_groups = workspace.most_chunks > FEW_CHUNKS;
            if by_groups {
                let function = self.function("gram_groups")?;
                let mut launch = stream.launch_builder(&function);
                launch.arg(&parts).arg(&partials).arg(&size).arg(&groups);
                // SAFETY: the table names groups that exist.
                let launch = || tensor_error(unsafe { launch.launch(blocks_of(num_parts, workspace.most_groups)) });
                let effect = || updating(reading(workspace.reading_parts(), &workspace.partials), &workspace.groups);
                declare(&stream, effect, launch)?;
            }

            let function = self.function("gram_parts")?;
            let (sums_of, of_groups) = (if by_groups { groups } else { partials }, i32::from(by_groups));
            let mut launch = stream.launch_builder(&function);
            launch.arg(&parts).arg(&sums_of).arg(&of_groups).arg(&tiles_u32).arg(&rows_u32).arg(&grams);
            // SAFETY: a matrix per part, of at most the rows that the workspace was made for.
            let launch = || tensor_error(unsafe { launch.launch(blocks_of(num_parts, pairs_of(tiles))) });
            let source = if by_groups { &workspace.groups } else { &workspace.partials };
            let effect = || updating(reading(workspace.reading_parts(), source), &workspace.grams);
            declare(&stream, effect, launch)?;
        }
        let memory = workspace.memory.as_ref().map_or(Ok(0), address)?;
        let function = self.function(args.kernel)?;
        let mut launch = stream.launch_builder(&function);
        launch.arg(&grams).arg(&parts).arg(&parts_u32).arg(&window).arg(&args.parameter).arg(&memory);
        launch.arg(&coefficients).arg(&sums);
        let shape =
            LaunchConfig { grid_dim: (1, 1, 1), block_dim: (THREADS, 1, 1), shared_mem_bytes: count(shared_bytes) };
        // SAFETY: arguments for all owners, working memory as `solver_memory` says, sums of the right length.
        let launch = || tensor_error(unsafe { launch.launch(shape) });
        let resolved = || {
            let effect = reading(reading(workspace.reading_parts(), &workspace.grams), args.arguments);
            added(effect, args.sums)
        };
        let effect = || {
            let effect = updating(resolved(), &workspace.coefficients);
            workspace.memory.iter().fold(effect, updating)
        };
        declare(&stream, effect, launch)?;
        if num_parts > 0 {
            let function = self.function("part_norms")?;
            let mut launch = stream.launch_builder(&function);
            launch.arg(&grams).arg(&parts).arg(&window).arg(&coefficients).arg(&squares).arg(&sums);
            // SAFETY: a block and a place per part; a window has fewer rows than a block has threads.
            let launch = || tensor_error(unsafe { launch.launch(blocks_of(num_parts, 1)) });
            let effect = || updating(reading(resolved(), &workspace.coefficients), &workspace.part_squares);
            declare(&stream, effect, launch)?;
        }
        if args.only_measures { Ok(()) } else { self.clip_factors(workspace, args.clipping, args.sums) }
    }

    /// Combines `rows` into the first with `coefficients`, (2, rows), and leaves the factors of the parts in
    /// `workspace`. A single row stays as it is.
    pub(crate) fn average(
        &self,
        workspace: &Workspace,
        rows: &[&Tensor],
        coefficients: &Tensor,
        clipping: Clipping,
        sums: Option<&Tensor>,
    ) -> Result<()> {
        let table = workspace.rows_to_read(rows)?;
        expect(coefficients, DType::F32, 2 * rows.len(), "coefficients")?;
        let (chunks, parts) = (address(&workspace.chunks)?, address(&workspace.parts)?);
        let (squares, part_squares) = (address(&workspace.squares)?, address(&workspace.part_squares)?);
        let coefficients = address(coefficients)?;
        let stream = self.stream();
        if workspace.num_parts > 0 {
            let function = self.function("combine_and_square")?;
            let mut launch = stream.launch_builder(&function);
            launch.arg(&table).arg(&chunks).arg(&coefficients).arg(&squares);
            // SAFETY: `rows` confirmed that every chunk is in every row; a place per chunk.
            let launch = || tensor_error(unsafe { launch.launch(blocks_of(workspace.num_chunks, 1)) });
            let effect = || {
                let effect = workspace.reading_combination(&table, rows.len(), coefficients, 0);
                let effect = if rows.len() > 1 { updating(effect, rows[0]) } else { effect };
                updating(effect, &workspace.squares)
            };
            declare(&stream, effect, launch)?;
            let function = self.function("square_parts")?;
            let mut launch = stream.launch_builder(&function);
            launch.arg(&parts).arg(&squares).arg(&part_squares);
            // SAFETY: a block and a place per part.
            let launch = || tensor_error(unsafe { launch.launch(blocks_of(workspace.num_parts, 1)) });
            let effect = || updating(reading(workspace.reading_parts(), &workspace.squares), &workspace.part_squares);
            declare(&stream, effect, launch)?;
        }
        self.clip_factors(workspace, clipping, sums)
    }

    /// Replaces the first row by the combination of all, scaled by `factors` of the parts where there are any.
    pub(crate) fn combine_rows(
        &self,
        workspace: &Workspace,
        rows: &[&Tensor],
        coefficients: &Tensor,
        factors: Option<&Tensor>,
    ) -> Result<()> {
        let table = workspace.rows(rows)?;
        let factors = workspace.check_terms(rows.len(), coefficients, factors)?;
        if workspace.num_chunks == 0 {
            return Ok(());
        }
        let (chunks, coefficients) = (address(&workspace.chunks)?, address(coefficients)?);
        let stream = self.stream();
        let function = self.function("combine_rows")?;
        let mut launch = stream.launch_builder(&function);
        launch.arg(&table).arg(&chunks).arg(&coefficients).arg(&factors);
        // SAFETY: `rows` confirmed that every chunk is in every row, `check_terms` the sizes of the others.
        let launch = || tensor_error(unsafe { launch.launch(blocks_of(workspace.num_chunks, 1)) });
        let effect = || updating(workspace.reading_combination(&table, rows.len(), coefficients, factors), rows[0]);
        declare(&stream, effect, launch).map(drop)
    }

    fn clip_factors(&self, workspace: &Workspace, clipping: Clipping, sums: Option<&Tensor>) -> Result<()> {
        let table = workspace.sums(sums)?;
        let (squares, parts) = (address(&workspace.part_squares)?, address(&workspace.parts)?);
        let (domains, factors) = (address(&workspace.domains)?, address(&workspace.factors)?);
        let (num_parts, slots) = (count(workspace.num_parts), count(workspace.slots));
        let (max_norm, num_samples) = (clipping.max_norm.unwrap_or(f64::INFINITY), clipping.num_samples as f64);
        let stream = self.stream();
        let function = self.function("clip_factors")?;
        let mut launch = stream.launch_builder(&function);
        launch.arg(&squares).arg(&parts).arg(&num_parts).arg(&slots).arg(&max_norm);
        launch.arg(&num_samples).arg(&domains).arg(&factors).arg(&table);
        // SAFETY: a square and a factor per part, three numbers per owner and one more, sums of the right length.
        let launch = || tensor_error(unsafe { launch.launch(blocks_of(1, 1)) });
        let effect = || {
            let effect = reading(workspace.reading_parts(), &workspace.part_squares);
            added(updating(updating(effect, &workspace.domains), &workspace.factors), sums)
        };
        declare(&stream, effect, launch).map(drop)
    }
}

impl Workspace {
    /// The table of rows, which must cover the geometry and start where four elements can be read at once.
    pub(super) fn rows(&self, rows: &[&Tensor]) -> Result<Rows> {
        self.rows_of(DType::F32, rows)
    }

    /// [`Self::rows`] for who only reads a row alone: that may be of `bf16`.
    pub(super) fn rows_to_read(&self, rows: &[&Tensor]) -> Result<Rows> {
        let is_half = matches!(rows, [row] if row.dtype() == DType::BF16);
        self.rows_of(if is_half { DType::BF16 } else { DType::F32 }, rows)
    }

    fn rows_of(&self, dtype: DType, rows: &[&Tensor]) -> Result<Rows> {
        if rows.is_empty() || rows.len() > self.num_rows {
            candle_core::bail!("a window of {} rows: expected 1 to {}", rows.len(), self.num_rows)
        }
        let mut table = Rows { row: [0; MAX_ROWS], count: count(rows.len()), is_half: u32::from(dtype == DType::BF16) };
        for (place, row) in table.row.iter_mut().zip(rows) {
            expect(row, dtype, self.num_elements, "a row of a window")?;
            *place = address(row)?;
            if !place.is_multiple_of(16) {
                candle_core::bail!("a row of a window starts at {place:#x}: expected a multiple of 16")
            }
        }
        Ok(table)
    }

    /// What a kernel reads that goes through all rows: them and the chunks.
    fn reading_rows(&self, rows: &Rows, count: usize) -> Effect {
        let chunks = reading(Effect::new(), &self.chunks);
        let bytes = self.num_elements * if rows.is_half == 1 { 2 } else { 4 };
        rows.row[..count].iter().fold(chunks, |effect, row| effect.reading(*row, bytes))
    }

    /// What a kernel reads that combines rows, beside constants of its own. `factors` is 0 where there are none.
    pub(super) fn reading_combination(&self, rows: &Rows, count: usize, coefficients: u64, factors: u64) -> Effect {
        let effect = self.reading_rows(rows, count).reading(coefficients, 8 * count);
        if factors == 0 { effect } else { effect.reading(factors, 4 * self.num_parts.max(1)) }
    }

    fn reading_parts(&self) -> Effect {
        reading(Effect::new(), &self.parts)
    }

    /// Confirms the sizes of coefficients and factors; gives the address of the factors, 0 without them.
    pub(super) fn check_terms(&self, num_rows: usize, coefficients: &Tensor, factors: Option<&Tensor>) -> Result<u64> {
        expect(coefficients, DType::F32, 2 * num_rows, "coefficients")?;
        let Some(factors) = factors else { return Ok(0) };
        expect(factors, DType::F32, self.num_parts.max(1), "factors")?;
        address(factors)
    }

    fn sums(&self, sums: Option<&Tensor>) -> Result<Sums> {
        let (slots, parts) = (count(self.slots), count(self.num_parts));
        let Some(sums) = sums else { return Ok(Sums { base: 0, slots, parts }) };
        let length = SumsLayout::new(self.slots, self.num_parts).num_stored();
        expect(sums, DType::F64, length, "sums of an epoch")?;
        Ok(Sums { base: address(sums)?, slots, parts })
    }
}

const CHECKED: &str = "an address that was taken before the launch";

fn reading(effect: Effect, tensor: &Tensor) -> Effect {
    effect.reading(address(tensor).expect(CHECKED), bytes_of(tensor))
}

/// Also for what is written in part: what is not stays as it was.
fn updating(effect: Effect, tensor: &Tensor) -> Effect {
    effect.updating(address(tensor).expect(CHECKED), bytes_of(tensor))
}

fn added(effect: Effect, sums: Option<&Tensor>) -> Effect {
    sums.into_iter().fold(effect, updating)
}

fn bytes_of(tensor: &Tensor) -> usize {
    tensor.elem_count() * tensor.dtype().size_in_bytes()
}

impl fmt::Debug for Rows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rows").field("count", &self.count).finish_non_exhaustive()
    }
}
