//! Networks with their data; those of the table are the same that the PyTorch peer measures.
//!
//! | name | network | samples per batch | optimizer |
//! |---|---|---|---|
//! | `ref` | linear 4→4 with bias | 4 | SGD, lr 0.01 |
//! | `mlp` | 784-512-512-10, ReLU | 128 | AdamW, lr 1e-3, weight decay 0.01 |
//! | `tfm5m` | decoder of 6 pre-norm blocks, width 256, 4 heads, vocabulary and context 256 and 64 | 8 | as `mlp` |
//! | `tfm30m` | decoder of 10 pre-norm blocks, width 512, 8 heads, vocabulary and context 256 and 128 | 8 | as `mlp` |
//! | `mlp4096` | 1024-4096-4096-1000, ReLU | 512 | as `ref` |
//!
//! Each is defined once and built of basic operations or of the functions of `esper-layers`, in one of three precisions
//! ([`Variant`]). A convolutional network for images ([`Conv2d`]) is checked, not compared.
//!
//! Weights and data follow from a seed and are drawn on the CPU, so that every device starts from the same bits. A
//! forward pass can be captured: it makes no host read, constants are built once, and matrix products get contiguous
//! operands or the transpose of one.
//!
//! ```text
//!   name, Variant ──► Workload::of ──► batch(i) ──► loss(&batch) ──► backward
//! ```
//!
//! *Entry points*: [`Workload`]; [`Transformer::forward`] without a trainer. *Not here*: timing.

mod variant;
mod draw;
mod linear;
mod layer_norm;
mod mlp;
mod conv2d;
mod transformer;
mod llama;
mod workload;

pub(crate) use conv2d::{Conv2d, Conv2dConfig, largest_gradient_error};
pub use draw::Draw;
pub(crate) use draw::Variables;
pub(crate) use linear::Linear;
pub(crate) use llama::{Llama, LlamaConfig, Memory};
pub(crate) use mlp::{Mlp, MlpConfig};
pub(crate) use transformer::{Transformer, TransformerConfig};
pub(crate) use variant::{Form, Precision, Variant};
pub(crate) use workload::{ALL_NAMES, GPT2, NAMES, Tokens, Workload, known_names};
