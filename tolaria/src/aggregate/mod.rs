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
//! # Example
//! Without a trainer: the gradients of two microbatches, one of the host and one of a seed, become an optimizer step.
//!
//! ```
//! use std::sync::Arc;
//!
//! use candle_core::{DType, Device, Tensor, Var};
//! use leyline::id::{SeedId, StepIndex, TopologyRevision};
//! use leyline::layout::{Owner, ParameterLayout, SegmentSpec};
//! use leyline::model::Parameter;
//! use leyline::seed::{Attribution, AttributionMode};
//! use tolaria::aggregate::{AggregationConfig, ConflictResolution, GradientEngine, ProjectionOrder, WindowPlan};
//! use tolaria::grad::{Geometry, GradientBufferPool};
//! use tolaria::host_read::HostReads;
//! use tolaria::optim::{Optimizer, OptimizerConfig};
//!
//! let (device, seed) = (Device::Cpu, SeedId(1));
//! let spec = |name: &str, owner| SegmentSpec { name: name.into(), shape: vec![2], owner, isolated: false };
//! let specs = vec![spec("host.weight", Owner::Host), spec("seed.weight", Owner::Seed(seed))];
//! let layout = ParameterLayout::new(TopologyRevision(0), specs)?;
//! let parameter = |name: &str| Ok(Parameter { name: name.into(), var: Var::zeros(2, DType::F32, &device)? });
//! let parameters: Vec<Parameter> =
//!     ["host.weight", "seed.weight"].into_iter().map(parameter).collect::<candle_core::Result<_>>()?;
//!
//! // Once per structure of the network, for windows of up to 8 microbatches.
//! let config = AggregationConfig { method: ConflictResolution::PcGrad, ..AggregationConfig::default() };
//! let mut engine = GradientEngine::new(Arc::new(Geometry::of(&layout)?), config, 8, &device)?;
//! let pool = GradientBufferPool::new();
//! let mut optimizer = Optimizer::new(OptimizerConfig::Sgd { momentum: 0.0, nesterov: false, weight_decay: 0.0 });
//!
//! // Once per window. The gradients of a model come from `gather_gradients`.
//! let (mut rows, mut microbatches) = (Vec::new(), Vec::new());
//! for (gradient, weight) in [([1.0_f32, 0.0, 0.0, 0.0], 0.0), ([-1.0, 0.0, 1.0, 0.0], 1.0)] {
//!     let row = pool.lease_to_write(4, DType::F32, &device)?;
//!     row.as_tensor().slice_set(&Tensor::new(&gradient, &device)?, 0, 0)?;
//!     rows.push(row);
//!     microbatches.push((16, Attribution::new(AttributionMode::Probe, vec![(seed, weight)])?));
//! }
//! let order = ProjectionOrder { seed: 7, step: StepIndex(0) };
//! let plan = WindowPlan::new(&microbatches, engine.geometry().owners(), engine.config(), order)?;
//! let combination = engine.combine(rows, &plan, None, None, &mut HostReads::default())?;
//!
//! let update = optimizer.prepare(&parameters, &layout, 1.0)?;
//! optimizer.apply_combination(&parameters, &layout, &combination, &update, None)?;
//! optimizer.commit(&layout, &update);
//! // G_host = (½, 0, 0, 0) and G_seed = (−½, 0, ½, 0) conflict. Projected off each other, their sum is 2 G_host + 1½ G_seed;
//! // the mean, (0, 0, ½, 0), would leave the host's weight where it is.
//! assert_eq!(parameters[0].var.to_vec1::<f32>()?, [-0.25, 0.0]);
//! assert_eq!(parameters[1].var.to_vec1::<f32>()?, [-0.75, 0.0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! *Entry points*: [`WindowPlan`], [`GradientEngine`], [`Combination`], [`SeedMetricsAccumulator`]. *Invariants*: with the weight 1 for every owner the
//! result is, before clipping, the plain gradient bit for bit; isolated parts always get the plain gradient. *Not here*: attribution
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
mod metrics;

pub use combination::Combination;
pub(crate) use combination::{Coefficients, Factors, Terms};
pub use config::AggregationConfig;
pub use engine::GradientEngine;
pub(crate) use metrics::EPOCH_SUMS;
pub use metrics::{OwnerSums, SeedMetrics, SeedMetricsAccumulator};
pub use plan::{ProjectionOrder, WindowPlan};
pub(crate) use solve::Clipping;
#[cfg(feature = "cuda")]
pub(crate) use solve::solver_memory;
pub(crate) use sums::SumsLayout;
pub use weighting::{ConflictResolution, Parameters};

#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;
