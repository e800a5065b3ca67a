//! Pass: recorded reductions, and element-wise kernels that find each element by its strides, are written anew.

use super::codegen::can_generate;
use super::fuel::Fuel;
use super::fused::{Body, is_contiguous};
use super::kernel::{Code, Effect};
use super::node::NodeKind;
use super::program::Program;

/// Recorded reductions become kernels of the compiler's own, which read memory as it lies and add in the same order, where
/// there is code for their shape. So do element-wise kernels of which an operand is not contiguous: candle's look its strides
/// up in memory and divide by them, which takes a small one several times as long as its work.
pub(super) fn rewrite_reductions(mut program: Program, fuel: &mut Fuel) -> Program {
    for node in &mut program.nodes {
        if let NodeKind::Kernel(kernel) = &mut node.kind
            && matches!(kernel.code, Code::Recorded(_))
            && let Some(body) = Body::of(kernel).filter(can_generate)
            && (matches!(kernel.effect, Effect::Fused(_)) || is_strided(&body))
            && fuel.burn()
        {
            *kernel = body.into_kernel();
        }
    }
    program
}

fn is_strided(body: &Body) -> bool {
    body.operands.iter().any(|access| !is_contiguous(&access.dims))
}
