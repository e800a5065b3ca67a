//! What a network is trained for: the tasks that are provided, and the settings that choose one.
//!
//! | task | outputs | targets | loss of a sample | recognized | measures |
//! |---|---|---|---|---|---|
//! | [`Classification`] | (B, C) | (B,) `u32` | cross-entropy, nats | largest logit is the target's | top-5, macro F1 |
//! | [`Regression`] | (B, W) | (B, W) `f32` | squared, absolute or Huber error, mean over W | – | R², MAE, RMSE |
//! | [`Flags`] | (B, L) | (B, L) `f32`, 0 or 1 | binary cross-entropy, nats, mean over L | share of the flags that are right | F1, AUROC |
//! | [`NextToken`] | (B, T, V) | (B, T) `u32` | cross-entropy, nats, mean over T | share of the tokens with the largest logit | perplexity, bits per byte |
//!
//! *Entry points*: [`TaskConfig::task`] for settings, the tasks themselves in code. One of your own implements
//! [`Task`]; `examples/own_task.rs` shows one. *Not here*: what a network has as outputs, which is the
//! network's own, and reading any result.

mod classification;
mod config;
mod flags;
mod log_softmax;
mod next_token;
mod regression;

pub use crate::loss::IGNORED;
pub use classification::Classification;
pub use config::{ClassWeights, LossName, NamedWeights, RegressionLoss, TargetFacts, TaskConfig};
pub use flags::Flags;
pub use leyline::task::Task;
pub use next_token::NextToken;
pub(crate) use next_token::of_tokens;
pub use regression::Regression;

use candle_core::{DType, Tensor};

/// The outputs, when their shape is one that fits: `f32`, whatever type of float the network computes in.
fn outputs(outputs: &Tensor, fits: bool, expected: impl FnOnce() -> String) -> candle_core::Result<Tensor> {
    if !fits {
        candle_core::bail!("outputs: expected {}, found {:?}", expected(), outputs.dims())
    }
    outputs.to_dtype(DType::F32)
}

#[cfg(test)]
mod tests;
