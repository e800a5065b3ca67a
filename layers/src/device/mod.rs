//! What the kernels on a GPU need: operands, results, and calls of libraries.

mod array;
mod kernels;
mod library;
mod order;
mod plan;
mod product;

pub(crate) use array::{Array, Scalar, unwritten, unwritten_tensor};
pub(crate) use kernels::{IMAGE, behind, count, gpu_of, is_aligned, operand};
pub(crate) use order::keep_order;
pub(crate) use product::{Epilogue, multiply};
