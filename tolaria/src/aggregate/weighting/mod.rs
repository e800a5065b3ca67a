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

pub(crate) use owners::{Owners, idle};
use serde::{Deserialize, Serialize};

use self::aligned_mtl::AlignedMtl;
use self::cagrad::CaGrad;
use self::mean::Mean;
use self::mgda::Mgda;
use self::pcgrad::PcGrad;
use self::upgrad::UpGrad;

/// The list of all methods: their names in settings and reports, and what finds the weights. The kernel of a name is
/// `weigh_<name>` in `kernels/weights/<name>.cuh`.
macro_rules! methods {
    ($($(#[$documentation:meta])* $method:ident = $name:literal: |$parameters:pat_param| $weighting:expr,)+) => {
        /// How conflicts between owners are resolved.
        ///
        /// Every method gives each owner's gradient a weight; with the weight 1 for all the plain gradient results. All
        /// follow from the inner products of the owners' gradients.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
        pub enum ConflictResolution {
            $($(#[$documentation])* #[serde(rename = $name)] $method,)+
        }

        impl ConflictResolution {
            /// All of them, in the order of the list.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$method),+];

            /// The name in settings and reports.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$method => $name,)+ }
            }

            /// Name of the kernel that finds the weights on a GPU.
            pub(super) fn kernel(self) -> &'static str {
                match self { $(Self::$method => concat!("solve_", $name),)+ }
            }

            /// What finds the weights.
            pub(super) fn weighting(self, parameters: &Parameters) -> Box<dyn Weighting> {
                match (self, parameters) { $((Self::$method, $parameters) => Box::new($weighting),)+ }
            }
        }
    };
}

methods! {
    /// The mean over samples.
    #[default]
    Mean = "mean": |_| Mean,
    /// Each owner's gradient loses what points against another owner's (Yu et al. 2020).
    PcGrad = "pcgrad": |_| PcGrad,
    /// The shortest vector between the owners' gradients (Désidéri 2012; Sener and Koltun 2018).
    Mgda = "mgda": |_| Mgda,
    /// The sum of the projections onto the directions that harm no owner (Quinton and Rey 2024).
    UpGrad = "upgrad": |_| UpGrad,
    /// The best worst case near the mean (Liu et al. 2021).
    CaGrad = "cagrad": |parameters| CaGrad { radius: parameters.cagrad_radius },
    /// Principal components of one length (Senushkin et al. 2023).
    AlignedMtl = "aligned_mtl": |_| AlignedMtl,
}

/// Parameters of the methods that have some; the others do not look at them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Parameters {
    /// How far CAGrad goes from the mean, as a part of its norm, in `[0, 1)`.
    pub cagrad_radius: f64,
}

impl Default for Parameters {
    fn default() -> Self {
        Self { cagrad_radius: cagrad::DEFAULT_RADIUS }
    }
}

impl Parameters {
    /// Every parameter that cannot work, as (key, what is accepted).
    pub(super) fn refusals(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        [("cagrad_radius", CaGrad::refusal(self.cagrad_radius))]
            .into_iter()
            .filter_map(|(key, text)| Some((key, text?)))
    }
}

/// How much of each owner's gradient the combined gradient has.
pub(crate) trait Weighting {
    /// Writes one weight per owner.
    ///
    /// `weights` comes filled with 1, and idle owners keep it. `orders` (S, S − 1) has for each owner the others, as
    /// indices in its visiting order. `scratch` grows at the first call and is kept.
    fn weigh(&self, owners: &Owners<'_>, orders: &[f64], scratch: &mut Vec<f64>, weights: &mut [f64]);

    /// Numbers of scratch memory for S owners.
    fn scratch_len(&self, count: usize) -> usize;

    /// What the kernel is told beside the owners; 0 where it needs nothing.
    fn parameter(&self) -> f64 {
        0.0
    }
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
