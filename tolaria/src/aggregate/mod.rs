//! From the gradients of one accumulation window to the gradient of one optimizer step.
//!
//! ```text
//!   g_1 … g_K, samples n_k, attribution A ──► owners' coefficients C[s,k] = A[k,s] n_k/N
//!        │                                               │
//!        ├──────────► Gram matrix (K×K, f64) ──► owners' inner products C·Gram·Cᵀ ──► PCGrad in coefficients
//!        └──────────────────────────────────────────► one linear combination Σ a_k g_k ◄──────┘
//! ```
//!
//! An *owner* is a seed that some microbatch is attributed to, or the host for the rest. Its gradient is
//! `G_s = Σ_k C[s,k] g_k`, so that `Σ_s G_s` is the plain gradient `Σ_k (n_k/N) g_k`. A *conflict* is a negative inner
//! product of two owners' gradients. All inner products that PCGrad needs follow from the Gram matrix of the
//! microbatches and every projection only changes coefficients, so no vector per owner is ever formed.
//!
//! The host's part comes first, as a [`WindowPlan`]: shares and the random orders of projections. [`combine_window`]
//! follows with device work alone, which on a GPU takes what changes from step to step out of one tensor, so that it
//! can be part of a graph.
//!
//! *Entry points*: [`WindowPlan`] and [`combine_window`]; [`aggregate`] for both at once. *Invariants*: without a conflict the result is the plain gradient bit for bit (I-7);
//! isolated segments always get the plain gradient. *Not here*: attribution (seed manager), clipping (`optim`).
//!
//! # Source
//! PCGrad: Yu et al. 2020, arXiv 2001.06782, projections onto the original gradients.

mod config;
mod report;
mod plan;
mod window;
mod shares;
mod gram;
mod pcgrad;
mod combine;
#[cfg(test)]
mod reference;
#[cfg(test)]
mod solve;

pub use config::ConflictResolution;
pub use plan::{ProjectionOrder, WindowPlan};
pub use report::{Aggregated, Combined, ConflictReport, ConflictStats, OwnerReport};
pub use window::{MicrobatchGradient, aggregate, combine_window};

#[cfg(test)]
mod tests;
