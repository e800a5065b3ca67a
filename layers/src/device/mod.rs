//! What every kernel on a GPU needs: its code, addresses, and who is told what it does.

mod address;
mod array;
mod declare;
mod image;
mod kernels;
mod library;
mod plan;
mod product;
mod tuning;

pub use address::{address, address_of, tensor_error};
pub(crate) use array::{Array, Scalar, unwritten, unwritten_tensor};
pub use declare::{Declared, collect, declare};
pub use image::Image;
pub(crate) use kernels::{IMAGE, behind, count, gpu_of, is_aligned, operand};
pub(crate) use product::{Epilogue, multiply};
pub use tuning::set_tuning;
