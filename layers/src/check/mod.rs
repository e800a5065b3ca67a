//! Checks of the layers on a device against the same in `f64` on the CPU.
//!
//! Each case is a name, its largest error relative to the largest value in `f64`, and the error allowed.

mod compare;
mod decoding;
mod linear;
mod norm_attention;
mod product;

pub use decoding::decoding_cases;
pub use linear::linear_cases;
pub use norm_attention::norm_attention_cases;
pub use product::product_cases;
