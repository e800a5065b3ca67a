//! From the gradient of a step to new parameters: the learning rate, the optimizer.
//!
//! ```text
//!   Combination ──Optimizer::apply_combination──┐
//!   gradient (P,) ──Optimizer::apply, step──────┴──► parameters, moments      (learning rate of the schedule)
//! ```
//!
//! A combination is summed where it is used: rows, parameter and moments are read in one pass. What happens to an element
//! is written once, in `rules.rs`. A new optimizer is its rule there, a file with its settings and constants, its line below,
//! and its variant in `config.rs`.
//!
//! *Entry points*: [`ScheduleConfig::at`], [`Optimizer::step`], [`Optimizer::apply_combination`]. *Invariant*: state
//! belongs to a parameter's name and survives changes of the topology (I-8). *Not here*: where gradients come from
//! (`grad`), how they are combined and clipped (`aggregate`).

mod config;
mod groups;
mod schedule;
// Also a part of the build script, which uses the sources; kernels of a GPU use the settings.
#[allow(dead_code, reason = "no build uses all of it")]
mod rules;
mod sgd;
mod adam_w;
mod lion;
mod muon;
mod ascending;
mod average;
mod halves;
mod rounding;
mod copies;
mod fused;
mod state;
mod plan;
mod optimizer;
mod saved;

pub use average::averages;
pub use config::OptimizerConfig;
pub use groups::{Decays, GroupsConfig};
pub use optimizer::Optimizer;
pub use plan::UpdatePlan;
pub use rounding::Rounding;
pub(crate) use rules::{Element, TABLE_WIDTH};
#[cfg(feature = "cuda")]
pub(crate) use rules::{MAX_SETTINGS, Numbers};
pub use schedule::{Decay, ScheduleConfig};

#[cfg(test)]
mod tests;
