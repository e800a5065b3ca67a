//! Kernels that reduce columns, with element-wise work before and after: elements of one lie a row apart, and neighbors belong to other
//! columns.
//!
//! candle takes a block per column. Here eight columns or more share a block, whose threads read along rows: one holds, of a column,
//! what 32 threads of candle's hold, and combines them as those do. Additions are those of the recorded kernel
//! ([`Reduction`]). An element is computed where it is taken, and what comes after the reduction by the thread that has its result.
//!
//! A column is what a [`Body`] calls a row.

use super::expression::expression;
use super::helpers::{bits_type, value_type};
use super::rows::{by_halves, combined, loaded, stored};
use super::{THREADS, position, signature};
use crate::compile::fused::{Body, inputs};
use crate::compile::kernel::LaunchShape;
use crate::compile::pointwise::Step;
use crate::compile::reduction::{MAX_THREADS, Reduction, WARP, threads_of};

/// Fewest columns of a block: 32 bytes of a row of `f32`, what memory is read in, and half as many of `bf16`.
const MIN_COLUMNS: usize = THREADS / WARP;
/// Most: of these a row of `f32` is read in 128 bytes.
const MAX_COLUMNS: usize = 32;
/// Longest column: a thread takes 32 elements at a time, up to 32 times.
const MAX_ELEMENTS: usize = WARP * MAX_THREADS;

/// Sizes and strides, the last the fastest.
type Dims = Vec<(usize, usize)>;

/// How columns are shared out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ColumnsPlan {
    columns: usize,
    /// Elements of a column.
    elements: usize,
    /// Of each operand, where columns begin, and where the elements of one lie from there.
    operands: Vec<[Dims; 2]>,
    /// Of each step, when it is computed.
    parts: Vec<Part>,
    /// The step that reduces, how, and the step that gives it the elements.
    reduced: (usize, Reduction, usize),
}

/// When a step is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// Once per column, before its elements, which need it.
    Before,
    /// For each element.
    Element,
    /// The reduction itself, and what is one number per column and not needed before it.
    After,
    /// Nobody needs it.
    Never,
}

impl ColumnsPlan {
    /// None of anything but one reduction with work before and after it, or of columns that do not lie side by side, eight or more
    /// of them: of an operand that differs within columns, eight neighbors are read at once or are the same.
    pub(super) fn of(body: &Body) -> Option<Self> {
        let mut reductions = body.steps.iter().enumerate().filter_map(|(index, step)| match *step {
            Step::Reduce(reduction, of) => Some((index, reduction, of)),
            _ => None,
        });
        let (Some(reduced), None) = (reductions.next(), reductions.next()) else { return None };
        let (_, reduction, of) = reduced;
        let is_fitting = reduction.neighbors() == 1
            && reduction != Reduction::OrderedSum
            && body.columns <= MAX_ELEMENTS
            && body.outputs.iter().all(|store| store.is_per_row);
        if !is_fitting {
            return None;
        }
        let operands: Option<Vec<_>> = body.operands.iter().map(|access| split(&access.dims, body.columns)).collect();
        let (operands, is_one) = (operands?, body.one_per_row());
        let mut apart = body.steps.iter().zip(&is_one).filter_map(|(step, is_one)| match step {
            Step::Load(operand) if !is_one => Some(operands[*operand][0].last()),
            _ => None,
        });
        let are_neighbors =
            apart.clone().all(|dim| dim.is_some_and(|&(size, stride)| stride <= 1 && size >= MIN_COLUMNS))
                && apart.any(|dim| dim.is_some_and(|&(_, stride)| stride == 1));
        let parts = parts(&body.steps, &is_one, of);
        are_neighbors.then(|| Self { columns: body.rows(), elements: body.columns, operands, parts, reduced })
    }

    /// Warps of candle's block.
    fn warps(&self) -> usize {
        threads_of(self.elements).div_ceil(WARP)
    }

    /// Columns of a block: as many as leave no thread without work, if that is not too many.
    fn at_once(&self) -> usize {
        (THREADS / self.warps()).clamp(MIN_COLUMNS, MAX_COLUMNS)
    }

    pub(super) fn launch(&self) -> LaunchShape {
        let blocks = u32::try_from(self.columns.div_ceil(self.at_once())).expect("columns are counted in 31 bits");
        let threads = u32::try_from(THREADS).expect("a block has 256 threads");
        LaunchShape { grid: [blocks, 1, 1], block: [threads, 1, 1], shared_bytes: 0 }
    }

    pub(super) fn source(&self, body: &Body, reads: &[usize], writes: &[usize], num_pointers: usize) -> String {
        let Self { columns, elements, reduced: (result, reduction, of), .. } = *self;
        let (warps, wide, threads) = (self.warps(), self.at_once(), threads_of(elements).max(WARP));
        let identity = format!("__uint_as_float(0x{:08X}u)", reduction.identity().to_bits());
        let mut text = signature(num_pointers);
        let mut line = |code: String| {
            text.push_str(&code);
            text.push('\n');
        };
        line(format!("  __shared__ float shared[{warps}][{wide}];"));
        line(format!("  const unsigned int place = threadIdx.x % {wide}u;"));
        line(format!("  const unsigned int warp = threadIdx.x / {wide}u;"));
        line(format!("  const unsigned int own = blockIdx.x * {wide}u + place;"));
        line(format!("  const unsigned int i = min(own, {}u);", columns - 1));
        for (step, load) in self.in_part(Part::Element, body) {
            let Step::Load(operand) = load else { continue };
            let (bits, at) = (bits_type(body.operands[*operand].element), position(&self.operands[*operand][0], 0));
            let from = format!("reinterpret_cast<const {bits} *>(p{}) + ({at})", reads[*operand]);
            line(format!("  const {bits} *from{step} = {from};"));
        }
        self.steps(&mut line, Part::Before, body, reads);
        line(format!("  if (warp < {warps}u) {{\n    float partial[{WARP}];"));
        line(format!(
            "#pragma unroll\n    for (unsigned int lane = 0; lane < {WARP}u; lane++) partial[lane] = {identity};"
        ));
        line(format!("    for (unsigned int start = {WARP}u * warp; start < {elements}u; start += {threads}u) {{"));
        line(format!("#pragma unroll\n      for (unsigned int lane = 0; lane < {WARP}u; lane++) {{"));
        line("  const unsigned int i = start + lane;".to_owned());
        let is_ragged = !elements.is_multiple_of(WARP);
        if is_ragged {
            line(format!("  if (i < {elements}u) {{"));
        }
        self.steps(&mut line, Part::Element, body, reads);
        line(format!("  partial[lane] = {};", combined(reduction, "partial[lane]", &format!("s{of}"))));
        if is_ragged {
            line("  }".to_owned());
        }
        line("      }\n    }".to_owned());
        line(by_halves(reduction, "partial", WARP));
        line("    shared[warp][place] = partial[0];\n  }\n  __syncthreads();".to_owned());
        line(format!("  if (warp == 0u && own < {columns}u) {{\n    float all[{warps}];"));
        line(format!(
            "#pragma unroll\n    for (unsigned int of = 0; of < {warps}u; of++) all[of] = shared[of][place];"
        ));
        line(by_halves(reduction, "all", warps));
        line(format!("  const float s{result} = all[0];"));
        self.steps(&mut line, Part::After, body, reads);
        for (store, pointer) in body.outputs.iter().zip(writes) {
            let (bits, value) = (bits_type(store.element), stored(store.element, &format!("s{}", store.step)));
            line(format!("  reinterpret_cast<{bits} *>(p{pointer})[own] = {value};"));
        }
        line("  }\n}".to_owned());
        text
    }

    /// The steps of a part but for the reduction, one after the other; `reads` are the addresses of operands.
    fn steps(&self, line: &mut impl FnMut(String), part: Part, body: &Body, reads: &[usize]) {
        let types = body.types().expect("the types of a sound body fit");
        for (index, step) in self.in_part(part, body) {
            let value = match step {
                Step::Reduce(..) => continue,
                Step::Load(operand) if part == Part::Element => {
                    let within = position(&self.operands[*operand][1], 0);
                    loaded(types[index], &format!("from{index}[{within}]"))
                }
                Step::Load(operand) => {
                    let at = position(&self.operands[*operand][0], 0);
                    let (bits, pointer) = (bits_type(types[index]), reads[*operand]);
                    loaded(types[index], &format!("reinterpret_cast<const {bits} *>(p{pointer})[{at}]"))
                }
                other => expression(other, &types).expect("a kernel is made of steps that have code"),
            };
            line(format!("  const {} s{index} = {value};", value_type(types[index])));
        }
    }

    fn in_part<'a>(&'a self, part: Part, body: &'a Body) -> impl Iterator<Item = (usize, &'a Step)> {
        body.steps.iter().enumerate().filter(move |(index, _)| self.parts[*index] == part)
    }
}

/// Dimensions over columns, and those over the elements of one; none where a dimension is of both and its parts do not make it whole.
fn split(dims: &[(usize, usize)], elements: usize) -> Option<[Dims; 2]> {
    let mut parts = [Vec::new(), Vec::new()];
    let mut inner = 1;
    for &(size, stride) in dims.iter().rev() {
        // Of this dimension, what belongs to one column.
        let within = size.min((elements / inner).max(1));
        if !size.is_multiple_of(within) || (inner < elements && !elements.is_multiple_of(inner)) {
            return None;
        }
        parts[1].push((within, stride));
        parts[0].push((size / within, stride * within));
        inner *= size;
    }
    Some(parts.map(|dims: Dims| dims.into_iter().rev().filter(|(size, _)| *size > 1).collect()))
}

/// Of each step, when it is computed, where the step `of` gives the elements that are reduced.
fn parts(steps: &[Step], is_one: &[bool], of: usize) -> Vec<Part> {
    let mut is_needed = vec![false; steps.len()];
    is_needed[of] = true;
    for index in (0..=of).rev() {
        if is_needed[index] {
            inputs(&steps[index]).for_each(|input| is_needed[input] = true);
        }
    }
    let part = |(is_needed, is_one)| match (is_needed, is_one) {
        (true, true) => Part::Before,
        (true, false) => Part::Element,
        (false, true) => Part::After,
        (false, false) => Part::Never,
    };
    is_needed.into_iter().zip(is_one.iter().copied()).map(part).collect()
}
