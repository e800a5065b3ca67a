//! The tensor library's own kernels: portable code that the driver compiles when it is first loaded.

use candle_core::cuda_backend::kernels;
use cudarc::nvrtc::Ptx;

use super::driver::refused;
use super::session::Session;
use crate::reason::{Refusal, Stage};

/// The modules of the tensor library that training uses.
pub const LIBRARY_MODULES: [&str; 10] =
    ["affine", "binary", "cast", "conv", "fill", "indexing", "reduce", "sort", "ternary", "unary"];

impl Session {
    /// Loads a module of [`LIBRARY_MODULES`] and lets go of it. What stays is the driver's copy of the compiled code on
    /// disk, which the tensor library finds when it loads the module itself.
    ///
    /// # Errors
    /// [`Refusal::Unsupported`] for another name; [`Refusal::Driver`].
    pub fn compile_library_module(&self, name: &str) -> Result<(), Refusal> {
        let source = match name {
            "affine" => kernels::AFFINE.ptx(),
            "binary" => kernels::BINARY.ptx(),
            "cast" => kernels::CAST.ptx(),
            "conv" => kernels::CONV.ptx(),
            "fill" => kernels::FILL.ptx(),
            "indexing" => kernels::INDEXING.ptx(),
            "reduce" => kernels::REDUCE.ptx(),
            "sort" => kernels::SORT.ptx(),
            "ternary" => kernels::TERNARY.ptx(),
            "unary" => kernels::UNARY.ptx(),
            _ => return Err(Refusal::Unsupported { why: "the tensor library has no such module" }),
        };
        let loaded = self.context().load_module(Ptx::from_src(source));
        loaded.map(drop).map_err(refused("cuModuleLoadData", Stage::Open))
    }
}
