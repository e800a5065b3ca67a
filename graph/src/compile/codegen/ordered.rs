//! Kernels that add a few elements one after the other, a thread per sum: wherever they lie.

use super::helpers::bits_type;
use super::rows::{loaded, stored};
use super::{THREADS, position, signature};
use crate::compile::fused::Body;
use crate::compile::kernel::LaunchShape;
use crate::compile::pointwise::{ElementType, Step};
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
    element: ElementType,
}

impl OrderedPlan {
    /// None of anything but such sums alone.
    pub(super) fn of(body: &Body) -> Option<Self> {
        let (Reduction::OrderedSum, element) = lone_reduction(body)? else { return None };
        let access = &body.operands[0];
        let whole = [(body.rows(), body.columns), (body.columns, 1)];
        let dims = if matches!(access.dims[..], [(_, 1)]) { &whole[..] } else { &access.dims[..] };
        let (&(elements, stride), outer) = dims.split_last()?;
        let is_fitting = elements == body.columns;
        is_fitting.then(|| Self { outer: outer.to_vec(), sums: body.rows(), elements, stride, element })
    }

    pub(super) fn launch(&self) -> LaunchShape {
        let blocks = u32::try_from(self.sums.div_ceil(THREADS)).expect("sums are counted in 31 bits");
        let threads = u32::try_from(THREADS).expect("a block has 256 threads");
        LaunchShape { grid: [blocks, 1, 1], block: [threads, 1, 1], shared_bytes: 0 }
    }

    pub(super) fn source(&self, pointer: usize, write: usize, num_pointers: usize) -> String {
        let Self { outer, sums, elements, stride, element } = self;
        let (bits, read) = (bits_type(*element), loaded(*element, &format!("from[of * {stride}u]")));
        format!(
            "{}  const unsigned int i = blockIdx.x * {THREADS}u + threadIdx.x;\n  if (i < {sums}u) {{
    const {bits} *from = reinterpret_cast<const {bits} *>(p{pointer}) + ({});\n    float sum = 0.0f;
#pragma unroll\n    for (unsigned int of = 0; of < {elements}u; of++) sum = __fadd_rn(sum, {read});
    reinterpret_cast<{bits} *>(p{write})[i] = {};\n  }}\n}}\n",
            signature(num_pointers),
            position(outer, 0),
            rounded(*element, "sum")
        )
    }
}

/// The reduction that a kernel is, and nothing else, and the type of what it reads and writes.
fn lone_reduction(body: &Body) -> Option<(Reduction, ElementType)> {
    let ([access], [store]) = (&body.operands[..], &body.outputs[..]) else { return None };
    let reduction = match body.steps[..] {
        [Step::Load(0), Step::Reduce(reduction, 0)] => reduction,
        [Step::Load(0), Step::Convert(ElementType::F32, 0), Step::Reduce(reduction, 1), Step::Convert(to, 2)]
            if to == access.element =>
        {
            reduction
        }
        _ => return None,
    };
    let is_plain = matches!(access.element, ElementType::F32 | ElementType::Bf16);
    (is_plain && store.is_per_row && store.step + 1 == body.steps.len()).then_some((reduction, access.element))
}

/// What is in memory of a sum.
fn rounded(element: ElementType, sum: &str) -> String {
    if element == ElementType::Bf16 { stored(element, &format!("bf16_round({sum})")) } else { sum.to_owned() }
}
