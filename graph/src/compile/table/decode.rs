//! From a launch to what it does.

use super::call::Call;
use super::decoded::Decoded;
use super::entries::{Family, entries};
use super::{convolution, elementwise, grouped, indexing, norms, reduction};
use crate::compile::kernel::LaunchShape;
use crate::compile::lift::Memory;

/// The version of candle that the table holds for.
pub const CANDLE_VERSION: &str = "0.11.1";

/// What a launch of a kernel of candle, or of those for convolutions in groups, pooling and gradients of layer norm, reads, writes and computes.
///
/// Dimensions and strides that a kernel takes from device memory are read through `memory`; the result holds as long
/// as they stay what they are. None where the name is not known, the arguments are not what candle passes, or the
/// launch is too small to reach every element.
#[must_use]
pub fn decode(name: &str, launch: &LaunchShape, arguments: &[Vec<u8>], memory: &mut dyn Memory) -> Option<Decoded> {
    let Some(entry) = entries().get(name) else {
        return grouped::grouped(name, launch, arguments).or_else(|| norms::norm(name, launch, arguments));
    };
    let call = &Call::new(entry, launch, arguments)?;
    match entry.family {
        Family::Unary(operation) => elementwise::unary(call, memory, operation, entry),
        Family::Elu | Family::Power => elementwise::with_number(call, memory, entry),
        Family::Affine => elementwise::affine(call, memory, entry),
        Family::Binary(operation) => elementwise::binary(call, memory, operation, entry),
        Family::Compare(comparison) => elementwise::compare(call, memory, comparison, entry),
        Family::Cast => elementwise::cast(call, memory, entry),
        Family::Select => elementwise::select(call, memory, entry),
        Family::Fill => elementwise::fill(call, entry),
        Family::ConstSet => elementwise::const_set(call, memory, entry),
        Family::Copy2d => elementwise::copy2d(call, entry),
        Family::Reduce => reduction::reduce(call, memory, name),
        Family::ReduceSmall => reduction::reduce_small(call, memory, name),
        Family::Softmax => reduction::softmax(call),
        Family::RmsNorm => reduction::rms_norm(call),
        Family::LayerNorm => reduction::layer_norm(call),
        Family::RopeInterleaved => reduction::rope_interleaved(call),
        Family::Rope => reduction::rope(call),
        Family::RopeThd => reduction::rope_thd(call),
        Family::Sort => reduction::sort(call),
        Family::IndexSelect => indexing::index_select(call, memory),
        Family::Gather => indexing::gather(call),
        Family::IndexAdd => indexing::index_add(call),
        Family::Scatter => indexing::scatter(call, false),
        Family::ScatterAdd => indexing::scatter(call, true),
        Family::Conv1d => convolution::conv1d(call, memory, false),
        Family::ConvTranspose1d => convolution::conv1d(call, memory, true),
        Family::Conv2d => convolution::conv2d(call, memory, false),
        Family::ConvTranspose2d => convolution::conv2d(call, memory, true),
        Family::Im2Col1d => convolution::im2col1d(call, memory),
        Family::Im2Col => convolution::im2col(call, memory),
        Family::Col2Im1d => convolution::col2im1d(call),
        Family::Pool2d => convolution::pool2d(call, memory),
        Family::UpsampleNearest => convolution::upsample(call, memory, 4),
        Family::UpsampleBilinear => convolution::upsample(call, memory, 7),
    }
}
