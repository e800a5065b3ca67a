//! From the gradient of a step to new parameters: the learning rate, the optimizer.
//!
//! ```text
//!   Combination ──Optimizer::apply_combination──┐
//!   gradient (P,) ──Optimizer::apply, step──────┴──► parameters, moments      (learning rate of the schedule)
//! ```
//!
//! A combination is summed where it is used: rows, parameter and moments are read in one pass.
//!
//! *Entry points*: [`ScheduleConfig::at`], [`Optimizer::step`], [`Optimizer::apply_combination`]. *Invariant*: state
//! belongs to a parameter's name and survives changes of the topology (I-8). *Not here*: where gradients come from
//! (`grad`), how they are combined and clipped (`aggregate`).

mod config;
mod schedule;
mod sgd;
mod adam_w;
mod fused;
mod optimizer;
mod saved;

pub use config::OptimizerConfig;
pub(crate) use optimizer::TABLE_WIDTH;
pub use optimizer::{Optimizer, UpdatePlan};
pub use schedule::{Decay, ScheduleConfig};

#[cfg(test)]
mod tests;
