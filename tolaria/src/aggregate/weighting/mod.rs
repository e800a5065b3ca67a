//! From the inner products of owners' gradients to one weight per owner.
//!
//! ```text
//!   inner products (S, S), scales (S) ──► idle ──► Owners ──► Weighting::weigh ──► weights (S) ──► a_k = Σ_s w_s C[s,k]
//! ```
//!
//! *Scale rule*: the mean of owners' gradients is all ones. Every weighting gives weights of this *sum* form, which are
//! n times those of the average form that most papers use, n being the owners that are not idle.
//!
//! *Invariants*: a weighting never fails, always ends and never gives a weight that is not finite. With fewer than two
//! owners that are not idle, or inner products that no gradients have, all weights are 1 and the result is the plain
//! gradient; what was not finite stays visible in it.
//!
//! The files of `kernels/weights/` do the same on the GPU, bit for bit: a change here is a change there. For this
//! reason the arithmetic is `+ - * /`, square roots, absolute values and comparisons, each rounded, in a fixed order.

mod owners;
mod nonnegative;
mod simplex;
mod mean;
mod pcgrad;
mod mgda;
mod upgrad;
mod cagrad;
mod aligned_mtl;
#[cfg(test)]
mod adjusted;

pub(crate) use aligned_mtl::AlignedMtl;
pub(crate) use cagrad::CaGrad;
pub(crate) use mean::Mean;
pub(crate) use mgda::Mgda;
pub(crate) use owners::{Owners, idle};
pub(crate) use pcgrad::PcGrad;
pub(crate) use upgrad::UpGrad;

/// How much of each owner's gradient the combined gradient has.
pub(crate) trait Weighting {
    /// Writes one weight per owner.
    ///
    /// `weights` comes filled with 1, and idle owners keep it. `orders` (S, S − 1) has for each owner the others, as
    /// indices in its visiting order. `scratch` grows at the first call and is kept.
    fn weigh(&self, owners: &Owners<'_>, orders: &[f64], scratch: &mut Vec<f64>, weights: &mut [f64]);

    /// Numbers of scratch memory for S owners.
    fn scratch_len(&self, count: usize) -> usize;

    /// The name in configurations and reports.
    fn name(&self) -> &'static str;
}

/// The first `len` numbers of `scratch`, which grows when it is shorter.
fn grown(scratch: &mut Vec<f64>, len: usize) -> &mut [f64] {
    if scratch.len() < len {
        scratch.resize(len, 0.0);
    }
    &mut scratch[..len]
}

/// All weights are 1 again when one of them is not finite.
fn keep_finite(weights: &mut [f64]) {
    if !weights.iter().all(|weight| weight.is_finite()) {
        weights.fill(1.0);
    }
}

#[cfg(test)]
mod tests;
