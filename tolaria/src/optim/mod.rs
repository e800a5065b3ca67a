//! From the gradient of a step to new parameters: norms and clipping, the learning rate, the optimizer.
//!
//! ```text
//!   gradient (P,) ──measure_and_clip──► gradient (P,) ──Optimizer::step (learning rate of the schedule)──► parameters
//!                         │
//!                         └──► norms, on the device
//! ```
//!
//! *Entry points*: [`measure_and_clip`], [`ScheduleConfig::at`], [`Optimizer::step`]. *Invariants*: state belongs to a
//! parameter's name and survives changes of the topology (I-8); the gradient of an isolated seed never scales that of
//! anybody else. *Not here*: where gradients come from (`grad`, `aggregate`).

mod config;
mod schedule;
mod clip;
mod sgd;
mod adam_w;
mod optimizer;
mod saved;

pub use clip::{GradientNorms, measure_and_clip};
pub use config::OptimizerConfig;
pub(crate) use optimizer::TABLE_WIDTH;
pub use optimizer::{Optimizer, UpdatePlan};
pub use schedule::{Decay, ScheduleConfig};

#[cfg(test)]
mod tests;
