//! Kernels that reduce columns: elements of one lie a row apart, and neighbors belong to other columns.
//!
//! candle takes a block per column. Here eight columns share a block, whose threads read along rows: one holds, of a column,
//! what 32 threads of candle's hold, and combines them as those do. Additions are those of the recorded kernel
//! ([`Reduction`]).

use super::helpers::bits_type;
use super::rows::{by_halves, combined, loaded, rounded};
use super::{THREADS, lone_reduction, position, signature};
use crate::compile::fused::Body;
use crate::compile::kernel::LaunchShape;
use crate::compile::pointwise::ElementType;
use crate::compile::reduction::{MAX_THREADS, Reduction, WARP, threads_of};

/// Columns of a block: 32 bytes of a row of `f32`, what memory is read in, and half as many of `bf16`.
const COLUMNS: usize = THREADS / WARP;
/// Longest column: a thread takes 32 elements at a time, up to 32 times.
const MAX_ELEMENTS: usize = WARP * MAX_THREADS;

/// How columns are shared out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ColumnsPlan {
    /// Columns, by sizes and strides.
    outer: Vec<(usize, usize)>,
    columns: usize,
    /// Elements of a column, and how far they lie apart.
    elements: usize,
    stride: usize,
    reduction: Reduction,
    element: ElementType,
}

impl ColumnsPlan {
    /// None of anything but a reduction alone, over columns whose first elements lie side by side, eight or more of them.
    pub(super) fn of(body: &Body) -> Option<Self> {
        let (reduction, element) = lone_reduction(body)?;
        let (&(elements, stride), outer) = body.operands[0].dims.split_last()?;
        let are_neighbors = outer.last().is_some_and(|&(size, stride)| stride == 1 && size >= COLUMNS);
        let is_fitting = reduction.neighbors() == 1
            && reduction != Reduction::OrderedSum
            && elements == body.columns
            && elements <= MAX_ELEMENTS
            && stride > 1
            && are_neighbors;
        let (outer, columns) = (outer.to_vec(), body.rows());
        is_fitting.then_some(Self { outer, columns, elements, stride, reduction, element })
    }

    /// Warps of candle's block.
    fn warps(&self) -> usize {
        threads_of(self.elements).div_ceil(WARP)
    }

    pub(super) fn launch(&self) -> LaunchShape {
        let blocks = u32::try_from(self.columns.div_ceil(COLUMNS)).expect("columns are counted in 31 bits");
        let threads = u32::try_from(THREADS).expect("a block has 256 threads");
        LaunchShape { grid: [blocks, 1, 1], block: [threads, 1, 1], shared_bytes: 0 }
    }

    pub(super) fn source(&self, read: usize, write: usize, num_pointers: usize) -> String {
        let Self { columns, elements, stride, reduction, element, .. } = *self;
        let bits = bits_type(element);
        let (warps, threads) = (self.warps(), threads_of(elements).max(WARP));
        let identity = format!("__uint_as_float(0x{:08X}u)", reduction.identity().to_bits());
        let mut text = signature(num_pointers);
        let mut line = |code: String| {
            text.push_str(&code);
            text.push('\n');
        };
        line(format!("  __shared__ float shared[{warps}][{COLUMNS}];"));
        line(format!("  const unsigned int place = threadIdx.x % {COLUMNS}u;"));
        line(format!("  const unsigned int warp = threadIdx.x / {COLUMNS}u;"));
        line(format!("  const unsigned int own = blockIdx.x * {COLUMNS}u + place;"));
        line(format!("  const unsigned int i = min(own, {}u);", columns - 1));
        line(format!(
            "  const {bits} *from = reinterpret_cast<const {bits} *>(p{read}) + ({});",
            position(&self.outer, 0)
        ));
        line(format!("  if (warp < {warps}u) {{\n    float partial[{WARP}];"));
        line(format!(
            "#pragma unroll\n    for (unsigned int lane = 0; lane < {WARP}u; lane++) partial[lane] = {identity};"
        ));
        line(format!("    for (unsigned int start = {WARP}u * warp; start < {elements}u; start += {threads}u) {{"));
        line(format!("#pragma unroll\n      for (unsigned int lane = 0; lane < {WARP}u; lane++) {{"));
        let condition =
            if elements.is_multiple_of(WARP) { String::new() } else { format!("if (start + lane < {elements}u) ") };
        let read = loaded(element, &format!("from[(start + lane) * {stride}u]"));
        let taken = combined(reduction, "partial[lane]", &read);
        line(format!("        {condition}partial[lane] = {taken};\n      }}\n    }}"));
        line(by_halves(reduction, "partial", WARP));
        line("    shared[warp][place] = partial[0];\n  }\n  __syncthreads();".to_owned());
        line(format!("  if (warp == 0u && own < {columns}u) {{\n    float all[{warps}];"));
        line(format!(
            "#pragma unroll\n    for (unsigned int of = 0; of < {warps}u; of++) all[of] = shared[of][place];"
        ));
        line(by_halves(reduction, "all", warps));
        let found = rounded(element, "all[0]");
        line(format!("    reinterpret_cast<{bits} *>(p{write})[own] = {found};\n  }}\n}}"));
        text
    }
}
