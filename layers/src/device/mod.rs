//! What the kernels on a GPU need: operands, results, and calls of libraries.

mod array;
mod kernels;
mod library;
mod order;
mod plan;
mod product;
mod provided;
mod split;
mod transpose;

pub(crate) use array::{Array, Scalar, unwritten, unwritten_tensor};
pub(crate) use kernels::{IMAGE, allow_shared_memory, behind, count, gpu_of, is_aligned, is_of_hopper, operand};
pub(crate) use order::keep_order;
pub(crate) use product::{Epilogue, multiply};
pub(crate) use provided::product_of_tensors;
pub(crate) use split::is_ready;
