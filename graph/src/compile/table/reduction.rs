//! Kernels that make one element of many, or work on rows.

use super::call::{Call, product};
use super::decoded::{Decoded, Use};
use super::layout::{Layout, words};
use crate::compile::fused::{Fused, Output, View, merged};
use crate::compile::lift::Memory;
use crate::compile::pointwise::{ElementType, Step};
use crate::compile::reduction::{EIGHT, QUAD, Reduction, WARP, threads_of};

fn of(uses: Vec<Use>) -> Option<Decoded> {
    Some(Decoded { uses, pointwise: None, reduced: None })
}

/// The input of a reduction, with the dimensions it runs over last.
fn reduced(call: &Call<'_>, memory: &mut dyn Memory) -> Option<(Layout, Vec<Use>)> {
    let (num_dims, address) = (call.count(2).filter(|&count| count <= 16)?, call.address(3)?);
    let words = words(memory, address, 2 * num_dims)?;
    let (dims, strides) = words.split_at(num_dims);
    let layout = Layout { dims: dims.to_vec(), strides: strides.to_vec() };
    let reading = (num_dims > 0).then(|| Use::reading(3, address, words.len() * 8));
    let uses = reading.into_iter().chain([call.reading(4, layout.extent()?)?]).collect();
    Some((layout, uses))
}

/// One block per output.
pub(super) fn reduce(call: &Call<'_>, memory: &mut dyn Memory, name: &str) -> Option<Decoded> {
    let (layout, mut uses) = reduced(call, memory)?;
    let num_outputs = usize::try_from(call.launch.grid[0]).ok()?;
    if layout.len()? != call.count(0)? || !call.is_one_dimensional() {
        return None;
    }
    uses.push(call.writing(5, num_outputs)?);
    let reduced = rows_of(call, &layout, name, uses.len());
    Some(Decoded { uses, pointwise: None, reduced })
}

/// What each row is reduced to, where the order of additions is known: of `f32` and `bf16`, by the threads that candle launches, and of
/// contiguous rows those whose 16 bytes can be read at once.
fn rows_of(call: &Call<'_>, layout: &Layout, name: &str, num_uses: usize) -> Option<Fused> {
    let (rows, columns) = (usize::try_from(call.launch.grid[0]).ok()?, call.count(1)?);
    let threads = usize::try_from(call.launch.block[0]).ok()?;
    if rows == 0 || columns < 2 || product(&[rows, columns])? != layout.len()? || threads != threads_of(columns) {
        return None;
    }
    let are_read_at_once =
        |count| columns.is_multiple_of(count) && call.address(4).is_some_and(|at| at.is_multiple_of(16));
    let (reduction, element) = match name {
        "fast_sum_f32" | "fast_sum_bf16" if threads < WARP => return None,
        "fast_sum_f32" if !layout.is_contiguous() => (Reduction::StridedSum, ElementType::F32),
        "fast_sum_f32" if are_read_at_once(QUAD) => (Reduction::Sum, ElementType::F32),
        "fast_max_f32" => (Reduction::Maximum, ElementType::F32),
        "fast_min_f32" => (Reduction::Minimum, ElementType::F32),
        "fast_sum_bf16" if !layout.is_contiguous() => (Reduction::StridedSum, ElementType::Bf16),
        "fast_sum_bf16" if are_read_at_once(EIGHT) => (Reduction::EightsSum, ElementType::Bf16),
        "fast_max_bf16" => (Reduction::MaximumOrNan, ElementType::Bf16),
        "fast_min_bf16" => (Reduction::MinimumOrNan, ElementType::Bf16),
        _ => return None,
    };
    Some(each_row(reduction, element, layout, [rows, columns], num_uses))
}

/// A reduction of each of so many rows, which the last but one use reads and the last one writes: as `f32`, and rounded in the end.
fn each_row(
    reduction: Reduction,
    element: ElementType,
    layout: &Layout,
    [rows, columns]: [usize; 2],
    num_uses: usize,
) -> Fused {
    let steps = match element {
        ElementType::F32 => vec![Step::Load(0), Step::Reduce(reduction, 0)],
        of => vec![Step::Load(0), Step::Convert(ElementType::F32, 0), Step::Reduce(reduction, 1), Step::Convert(of, 2)],
    };
    Fused {
        elements: rows * columns,
        columns,
        operands: vec![View { pointer: num_uses - 2, element, dims: merged(&layout.dims, Some(&layout.strides)) }],
        outputs: vec![Output { pointer: num_uses - 1, element, step: steps.len() - 1, is_per_row: true }],
        steps,
    }
}

/// One thread per output, which adds one element after the other.
pub(super) fn reduce_small(call: &Call<'_>, memory: &mut dyn Memory, name: &str) -> Option<Decoded> {
    let (layout, mut uses) = reduced(call, memory)?;
    let num_outputs = call.count(0)?;
    let columns = call.count(1)?;
    if layout.len()? != product(&[num_outputs, columns])? || !call.has_threads(num_outputs) {
        return None;
    }
    uses.push(call.writing(5, num_outputs)?);
    let element = match name {
        "fast_sum_small_f32" => Some(ElementType::F32),
        "fast_sum_small_bf16" => Some(ElementType::Bf16),
        _ => None,
    };
    let is_told = num_outputs > 0 && (2..=WARP).contains(&columns);
    let of_rows = |element| each_row(Reduction::OrderedSum, element, &layout, [num_outputs, columns], uses.len());
    let reduced = element.filter(|_| is_told).map(of_rows);
    Some(Decoded { uses, pointwise: None, reduced })
}

/// A row per block and thread in x; threads in y share it.
pub(super) fn softmax(call: &Call<'_>) -> Option<Decoded> {
    let [rows, threads] = [call.launch.grid[0], call.launch.block[0]].map(|count| usize::try_from(count).ok());
    if call.launch.grid[1..] != [1, 1] || call.launch.block[2] != 1 {
        return None;
    }
    let numel = product(&[rows?, threads?, call.count(2)?])?;
    of(vec![call.reading(0, numel)?, call.writing(1, numel)?])
}

/// Elements of all rows and of one, of a normalization whose last arguments are columns, threads of a row, epsilon.
fn rows(call: &Call<'_>, columns: usize) -> Option<(usize, usize)> {
    let [blocks, rows] = [call.launch.grid[0], call.launch.block[1]].map(|count| usize::try_from(count).ok());
    let (num_columns, row_threads) = (call.count(columns)?, call.count(columns + 1)?);
    let threads = usize::try_from(call.launch.block[0]).ok()?;
    let is_covered = threads >= row_threads.min(num_columns) && row_threads > 0;
    if !is_covered || call.launch.grid[1..] != [1, 1] || call.launch.block[2] != 1 {
        return None;
    }
    Some((product(&[blocks?, rows?, num_columns])?, num_columns))
}

/// An input that may be null.
fn optional(call: &Call<'_>, argument: usize, count: usize) -> Option<Vec<Use>> {
    if call.address(argument).is_none() {
        return Some(Vec::new());
    }
    Some(vec![call.reading(argument, count)?])
}

pub(super) fn rms_norm(call: &Call<'_>) -> Option<Decoded> {
    let (numel, columns) = rows(call, 3)?;
    let mut uses = vec![call.reading(0, numel)?, call.writing(1, numel)?];
    uses.extend(optional(call, 2, columns)?);
    of(uses)
}

pub(super) fn layer_norm(call: &Call<'_>) -> Option<Decoded> {
    let (numel, columns) = rows(call, 4)?;
    let mut uses = vec![call.reading(0, numel)?, call.writing(1, numel)?];
    uses.extend(optional(call, 2, columns)?);
    uses.extend(optional(call, 3, columns)?);
    of(uses)
}

/// Pairs of all of `numel` elements are turned by angles that repeat after `period`; with a batch stride, each batch
/// has angles of its own.
fn turned(call: &Call<'_>, numel: usize, period: usize, batch_stride: usize) -> Option<Decoded> {
    if !numel.is_multiple_of(2) || numel == 0 || !call.has_threads(numel / 2) {
        return None;
    }
    let last_batch = (numel - 2).checked_div(batch_stride).unwrap_or(0);
    let angles = product(&[last_batch + 1, period / 2])?;
    of(vec![call.reading(0, numel)?, call.reading(1, angles)?, call.reading(2, angles)?, call.writing(3, numel)?])
}

pub(super) fn rope_interleaved(call: &Call<'_>) -> Option<Decoded> {
    let (rows, row) = (call.count(4)?, call.count(5)?);
    if !row.is_multiple_of(2) {
        return None;
    }
    turned(call, product(&[rows, row])?, row, call.count(6)?)
}

pub(super) fn rope(call: &Call<'_>) -> Option<Decoded> {
    let (rows, row, head) = (call.count(4)?, call.count(5)?, call.count(6)?);
    if !head.is_multiple_of(2) || head == 0 || !row.is_multiple_of(head) {
        return None;
    }
    turned(call, product(&[rows, row])?, row, call.count(7)?)
}

pub(super) fn rope_thd(call: &Call<'_>) -> Option<Decoded> {
    let [batch, time, heads, head] = [4, 5, 6, 7].map(|argument| call.count(argument));
    let (batch, time, heads, head) = (batch?, time?, heads?, head?);
    if !head.is_multiple_of(2) {
        return None;
    }
    turned(call, product(&[batch, time, heads, head])?, product(&[time, head])?, call.count(8)?)
}

/// The order of each row; a block per row.
pub(super) fn sort(call: &Call<'_>) -> Option<Decoded> {
    let rows = usize::try_from(call.launch.grid[0]).ok()?;
    let (columns, padded) = (call.count(2)?, call.count(3)?);
    if !call.is_one_dimensional() || padded < columns || call.launch.block[0] == 0 {
        return None;
    }
    let numel = product(&[rows, columns])?;
    of(vec![call.reading(0, numel)?, call.writing(1, numel)?])
}
