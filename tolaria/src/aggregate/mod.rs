//! From the gradients of one accumulation window to the gradient of one optimizer step.
//!
//! ```text
//!   g_1 … g_K ──one read──► inner products per part ──solve──► owners' weights ──► coefficients c_k, factors ──┐
//!        │       (K×K, f64)        ▲                   │                                                       ▼
//!        │          shares C[s,k] = A[k,s] n_k/N       └─► sums of the epoch       optimizer, in one more read of the g_k
//!        └─────────────────────────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! # Terms
//! *Owner*: a seed that some microbatch is attributed to, or the host for the rest. Its gradient is
//! `G_s = Σ_k C[s,k] g_k`, so that `Σ_s G_s` is the plain gradient `Σ_k (n_k/N) g_k`. *Conflict*: a negative inner product
//! of two owners' gradients. *Weighting*: gives every owner's gradient a weight. *Part*: a parameter that has elements.
//!
//! All that a weighting needs follows from the inner products of the microbatches, and all that it changes are
//! coefficients, so that no vector per owner is ever formed. The combination itself is formed where the optimizer uses
//! it. Squared norms, of the whole and of each part, follow from the same matrix.
//!
//! The host's part comes first, as a [`WindowPlan`]: shares and the random orders of projections. What
//! [`GradientEngine::combine`] does is device work alone, and on a GPU takes what changes from step to step out of one
//! tensor, so that it can be part of a graph.
//!
//! *Entry points*: [`WindowPlan`], [`GradientEngine`], [`Combination`]. *Invariants*: with the weight 1 for every owner the
//! result is the plain gradient bit for bit (I-7); isolated parts always get the plain gradient. *Not here*: attribution
//! (seed manager), updates (`optim`).

mod config;
mod plan;
mod sums;
mod weighting;
mod solve;
mod passes;
mod composed;
mod combination;
mod engine;

pub use combination::Combination;
pub(crate) use combination::{Coefficients, Factors, Terms};
pub(crate) use composed::add_scaled;
pub use config::{AggregationConfig, ConflictResolution};
pub use engine::GradientEngine;
pub use plan::{ProjectionOrder, WindowPlan};
#[cfg(feature = "cuda")]
pub(crate) use solve::solver_memory;
pub(crate) use sums::{Field, SumsLayout};

#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;
