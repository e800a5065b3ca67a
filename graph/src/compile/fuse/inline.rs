//! What is read in another order than it was computed in is computed in that order, where it is read.

use super::source::Reader;
use crate::compile::fused::{Access, Body, is_contiguous, is_permutation, reordered};
use crate::compile::pointwise::{Step, UnaryOp};

/// Most bytes that are read in another order then, as a multiple of those of the result that is no longer stored.
const MAX_READ: usize = 2;

/// A reader with element-wise work taken in, where it is the only one and reads every element once, in another order, as copies of
/// transposed tensors and sums of columns do. What it reads in place of the result may be up to twice as long. Of a kernel with other
/// results, which it keeps, only a reduction takes one, and none that takes long to compute: the others mostly need it too, so that it would be done twice.
pub(super) fn inlined(reader: &Reader<'_>, access: &Access) -> Option<Body> {
    let body = &reader.body;
    if is_contiguous(&access.dims) || !is_permutation(&access.dims, body.elements) {
        return None;
    }
    let (source, mut first) = reader.source(access).filter(|(_, first)| first.columns == 1)?;
    let has_others = first.outputs.len() > 1;
    first.retain_outputs(|store| store.region == access.region);
    if has_others && (body.columns == 1 || first.steps.iter().any(takes_long)) {
        return None;
    }
    if first.operands.iter().map(|read| read.region.len()).sum::<usize>() > MAX_READ * access.region.len()
        || !first.operands.iter().all(|read| reader.is_still_there(&read.region, source))
    {
        return None;
    }
    for operand in &mut first.operands {
        operand.dims = reordered(&operand.dims, &access.dims)?;
    }
    reader.with(&first, access)
}

/// Whether a step is many instructions of the device.
fn takes_long(step: &Step) -> bool {
    use UnaryOp::{Cos, Erf, Exp, Gelu, GeluErf, Log, NormalCdf, Sigmoid, Silu, Sin, Tanh};
    matches!(
        step,
        Step::Power(..)
            | Step::Elu(..)
            | Step::Unary(Cos | Erf | Exp | Gelu | GeluErf | Log | NormalCdf | Sigmoid | Silu | Sin | Tanh, _)
    )
}
