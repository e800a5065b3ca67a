//! Kernels that add a few elements one after the other, a thread per sum: wherever they lie.

use super::{THREADS, position, signature};
use crate::compile::fused::Body;
use crate::compile::kernel::LaunchShape;
use crate::compile::pointwise::Step;
use crate::compile::reduction::Reduction;

/// Sums of elements that lie as far apart from each other, alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OrderedPlan {
    /// Where the sums begin, by sizes and strides.
    outer: Vec<(usize, usize)>,
    sums: usize,
    /// Elements of a sum, and how far they lie apart.
    elements: usize,
    stride: usize,
}

impl OrderedPlan {
    /// None of anything but such sums alone.
    pub(super) fn of(body: &Body) -> Option<Self> {
        let ([access], [store]) = (&body.operands[..], &body.outputs[..]) else { return None };
        let [Step::Load(0), Step::Reduce(Reduction::OrderedSum, 0)] = body.steps[..] else { return None };
        let whole = [(body.rows(), body.columns), (body.columns, 1)];
        let dims = if matches!(access.dims[..], [(_, 1)]) { &whole[..] } else { &access.dims[..] };
        let (&(elements, stride), outer) = dims.split_last()?;
        let is_fitting = store.step == 1 && store.is_per_row && elements == body.columns;
        is_fitting.then(|| Self { outer: outer.to_vec(), sums: body.rows(), elements, stride })
    }

    pub(super) fn launch(&self) -> LaunchShape {
        let blocks = u32::try_from(self.sums.div_ceil(THREADS)).expect("sums are counted in 31 bits");
        let threads = u32::try_from(THREADS).expect("a block has 256 threads");
        LaunchShape { grid: [blocks, 1, 1], block: [threads, 1, 1], shared_bytes: 0 }
    }

    pub(super) fn source(&self, read: usize, write: usize, num_pointers: usize) -> String {
        let Self { outer, sums, elements, stride } = self;
        format!(
            "{}  const unsigned int i = blockIdx.x * {THREADS}u + threadIdx.x;\n  if (i < {sums}u) {{
    const float *from = reinterpret_cast<const float *>(p{read}) + ({});\n    float sum = 0.0f;
#pragma unroll\n    for (unsigned int of = 0; of < {elements}u; of++) sum = __fadd_rn(sum, from[of * {stride}u]);
    reinterpret_cast<float *>(p{write})[i] = sum;\n  }}\n}}\n",
            signature(num_pointers),
            position(outer, 0)
        )
    }
}
