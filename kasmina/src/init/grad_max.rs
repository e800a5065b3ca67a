//! The first layer of a new seed, chosen so that the gradient of the last one is large.
//!
//! A bottleneck computes f(h) = W₂ᵀ·a, a = relu(W₁ᵀ·x), with W₂ = 0 and x = (h, 1), so that W₁ contains the bias. Let the
//! rows hₙ be the values at the slot for every sample and position of a batch, and gₙ = ∂L/∂fₙ the gradients of the loss
//! with respect to what the seed computes there. They are taken through the blend of the seed, in full as in shadow
//! training, at f = 0: that is where a newborn seed is, so that they are exact whatever the blend. Then
//!
//! ```text
//!   ∂L/∂W₂ = Σₙ aₙ·gₙᵀ                                       M = Σₙ gₙ·xₙᵀ  (C×(C+1))
//! ```
//!
//! Without `relu`, unit j with weights w contributes the row (M·w)ᵀ, and among orthogonal w of one norm the sum of ‖M·w‖²
//! is largest for the right singular vectors of M with the largest singular values (Evci et al. 2022, arXiv 2201.05125).
//!
//! With `relu` this is an approximation. Units come in pairs (w, −w): relu(z) − relu(−z) = z, so the two rows r₊ and r₋
//! of a pair satisfy r₊ − r₋ = (M·w)ᵀ, hence ‖r₊‖² + ‖r₋‖² ≥ ½·‖M·w‖². The singular vectors maximize this bound, not the
//! gradient. A convolution is chosen at its center tap alone, and of the last layer's gradient only that of its center tap
//! is considered. The bias is one of the features, and not zero: where the gradients of a batch do not sum to zero, a
//! unit's constant part is much of what a drawn unit has.
//!
//! Each pair takes one singular vector; units that are left over, where the width is odd or exceeds twice the rank of M,
//! stay as drawn. Weights get the expected norm of a drawn unit: a larger one would make the gradient larger without
//! pointing anywhere better.

use std::ops::Range;

use candle_core::{DType, Tensor, Var};
use esper_layers::operations::looking;
use leyline::batch::Batch;
use leyline::task::Task;
use nalgebra::{DMatrix, SVD};

use crate::blueprint::{DownLayer, SeedModule};
use crate::error::Error;
use crate::graft::{GraftedModel, SeedBlend};
use crate::host::SlotShape;
use crate::host_read::read_f64;
use crate::weight::{Init, WeightSpec};

/// Largest number of channels for which singular vectors are computed; with more, a seed starts as drawn. An optimized build
/// took 0.05 s for 256 channels, 1.6 s for 784 and 10 s for 1024.
const MAX_FEATURES: usize = 784;
/// Samples whose gradients are taken in one pass.
const SAMPLES_AT_ONCE: usize = 64;
/// Singular values below this part of the largest are rounding: sums of `f32` have 24 significant bits.
const RELATIVE_RANK: f64 = 1e-5;
/// Iterations for the singular vectors; they converge within a few per vector.
const MAX_ITERATIONS: usize = 100_000;

/// Rewrites the first layer of `module`, which is not in the network yet, and says whether it did: not where the blueprint
/// names no such layer, or the batch has no finite gradient at the slot. `blend`, `width` and the slot are those of the seed.
///
/// # Errors
/// When the network does not take the batch, or the device fails; the module must not be used then.
/// # Sync
/// One device-to-host copy.
pub(crate) fn grad_max(
    model: &GraftedModel,
    slot_index: usize,
    taught: (&Batch, &dyn Task),
    module: &SeedModule,
    blend: &SeedBlend,
    width: usize,
) -> Result<bool, Error> {
    let slot = model.host().slots()[slot_index].shape;
    let blueprint = module.blueprint();
    let specs = blueprint.weights(slot, width);
    let Some(layer) = blueprint.down_layer(slot) else { return Ok(false) };
    let Some(norm) = expected_norm(&specs[layer.weight], layer.bias.is_some()) else { return Ok(false) };
    if slot.seen_channels().max(slot.channels()) > MAX_FEATURES {
        return Ok(false);
    }
    let (batch, task) = taught;
    let mut sum: Option<Tensor> = None;
    for start in (0..batch.num_samples()).step_by(SAMPLES_AT_ONCE) {
        let num_samples = SAMPLES_AT_ONCE.min(batch.num_samples() - start);
        let part = |tensor: &Tensor| tensor.narrow(0, start, num_samples);
        let part = Batch { inputs: part(&batch.inputs)?, targets: part(&batch.targets)? };
        let (h, gradient) = looking(|| model.slot_gradient((&part, task), slot_index, blend))?;
        let mut x = blueprint.down_inputs(&rows(&h, slot, slot.seen_channels())?)?;
        if layer.bias.is_some() {
            x = Tensor::cat(&[&x, &Tensor::ones((x.dim(0)?, 1), x.dtype(), x.device())?], 1)?;
        }
        // The loss is a mean over the part.
        let moment = (moment(&rows(&gradient, slot, slot.channels())?, &x)? * num_samples as f64)?;
        sum = Some(sum.map_or_else(|| Ok(moment.clone()), |sum| sum + &moment)?);
    }
    let Some(moment) = sum else { return Ok(false) };
    let directions = directions(read_f64(&moment)?, moment.dim(1)?, width / 2);
    if directions.is_empty() {
        return Ok(false);
    }
    point(module, layer, &directions, norm, width)?;
    Ok(true)
}

/// Gives the first units of the layer weights of `norm` along ± the directions, whose last feature is the bias.
fn point(
    module: &SeedModule,
    layer: DownLayer,
    directions: &[Vec<f64>],
    norm: f64,
    width: usize,
) -> candle_core::Result<()> {
    let vars: Vec<_> = module.weights().entries().map(|(_, var)| var).collect();
    let num_chosen = 2 * directions.len();
    let keep: Vec<f32> = (0..width).map(|unit| if unit < num_chosen { 0.0 } else { 1.0 }).collect();
    let rewrite = |var: &Var, chosen: Vec<f32>| {
        let (device, dtype) = (var.device(), var.dtype());
        let keep = Tensor::from_slice(&keep, width, device)?.to_dtype(dtype)?;
        let chosen = Tensor::from_vec(chosen, var.shape(), device)?.to_dtype(dtype)?;
        var.set(&(var.as_detached_tensor().broadcast_mul(&keep)? + chosen)?)
    };
    let weight = vars[layer.weight];
    let num_rows = weight.dim(0)?;
    let num_features = num_rows / layer.num_taps;
    rewrite(weight, chosen(directions, norm, 0..num_features, (num_rows, width), layer.num_taps / 2 * num_features))?;
    if let Some(bias) = layer.bias {
        rewrite(vars[bias], chosen(directions, norm, num_features..num_features + 1, (1, width), 0))?;
    }
    Ok(())
}

/// Root of the mean square of a drawn unit's norm; none for weights that are not drawn. Weights and biases are drawn alike.
#[expect(clippy::cast_precision_loss, reason = "a fan-in is far below 2^53")]
fn expected_norm(weight: &WeightSpec, has_bias: bool) -> Option<f64> {
    let fan_in = weight.shape[0] + usize::from(has_bias);
    match weight.init {
        Init::Uniform { bound } => Some(f64::from(bound) * (fan_in as f64 / 3.0).sqrt()),
        Init::Zeros | Init::Ones => None,
    }
}

/// What has so many channels at the slot as rows (positions of all samples, channels).
fn rows(h: &Tensor, slot: SlotShape, channels: usize) -> candle_core::Result<Tensor> {
    let channels_last = match slot {
        SlotShape::Vector { .. } | SlotShape::Around { .. } | SlotShape::Sequence { .. } | SlotShape::Causal { .. } => {
            h.clone()
        }
        SlotShape::Signal { .. } => h.transpose(1, 2)?,
        SlotShape::Image { .. } => h.permute((0, 2, 3, 1))?,
    };
    channels_last.reshape(((), channels))
}

/// Σ gₙ·xₙᵀ.
fn moment(gradient: &Tensor, x: &Tensor) -> candle_core::Result<Tensor> {
    // A product of `bf16` would be rounded to 8 bits.
    let wide = if x.dtype() == DType::BF16 { DType::F32 } else { x.dtype() };
    let (gradient, x) = (gradient.to_dtype(wide)?.t()?.contiguous()?, x.to_dtype(wide)?.contiguous()?);
    gradient.matmul(&x)
}

/// Right singular vectors of the matrix with `num_columns`, largest singular value first, at most `most`.
fn directions(moment: Vec<f64>, num_columns: usize, most: usize) -> Vec<Vec<f64>> {
    // The iteration would not end on values that are not finite.
    if most == 0 || num_columns == 0 || !moment.iter().all(|value| value.is_finite()) {
        return Vec::new();
    }
    let matrix = DMatrix::from_row_slice(moment.len() / num_columns, num_columns, &moment);
    let Some(svd) = SVD::try_new(matrix, false, true, f64::EPSILON, MAX_ITERATIONS) else { return Vec::new() };
    let (Some(vectors), values) = (svd.v_t, svd.singular_values) else { return Vec::new() };
    let least = values.get(0).map_or(f64::INFINITY, |largest| largest * RELATIVE_RANK);
    let is_used = |value: f64| value > 0.0 && value >= least;
    vectors
        .row_iter()
        .zip(values.iter())
        .take_while(|(_, value)| is_used(**value))
        .take(most)
        .map(|(vector, _)| vector.iter().copied().collect())
        .collect()
}

/// A matrix with units 2i and 2i + 1 along ± `features` of direction i from row `first` on, and 0 elsewhere.
#[expect(clippy::cast_possible_truncation, reason = "weights are drawn in f32, too")]
fn chosen(
    directions: &[Vec<f64>],
    norm: f64,
    features: Range<usize>,
    (num_rows, width): (usize, usize),
    first: usize,
) -> Vec<f32> {
    let mut matrix = vec![0.0; num_rows * width];
    for (pair, direction) in directions.iter().enumerate() {
        for (row, value) in (first..).zip(&direction[features.clone()]) {
            let (at, value) = (row * width + 2 * pair, (norm * value) as f32);
            matrix[at] = value;
            matrix[at + 1] = -value;
        }
    }
    matrix
}

#[cfg(test)]
mod tests;
