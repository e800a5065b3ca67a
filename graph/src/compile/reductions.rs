//! Pass: recorded reductions are written anew.

use super::codegen::can_generate;
use super::fuel::Fuel;
use super::fused::Body;
use super::kernel::{Code, Effect};
use super::node::NodeKind;
use super::program::Program;

/// Recorded reductions become kernels of the compiler's own, which read memory as it lies and add in the same order, where
/// there is code for their shape.
pub(super) fn rewrite_reductions(mut program: Program, fuel: &mut Fuel) -> Program {
    for node in &mut program.nodes {
        if let NodeKind::Kernel(kernel) = &mut node.kind
            && matches!((&kernel.code, &kernel.effect), (Code::Recorded(_), Effect::Fused(_)))
            && let Some(body) = Body::of(kernel).filter(can_generate)
            && fuel.burn()
        {
            *kernel = body.into_kernel();
        }
    }
    program
}
