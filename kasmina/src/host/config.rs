//! Which host network, and how large.

use serde::{Deserialize, Serialize};

use crate::config::ConfigIssue;

/// How a signal becomes a vector before the last layer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pool {
    /// Mean over positions: (B, C, L) → (B, C).
    #[default]
    Mean,
    /// All positions: (B, C, L) → (B, C·L).
    Flatten,
}

/// A host network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum HostConfig {
    /// Linear layers with `ReLU` between them, for vectors (B, inputs).
    ///
    /// Slots: `input` before the first layer, `hidden0`… after each activation.
    Mlp {
        /// Features of one sample.
        inputs: usize,
        /// Width of each hidden layer.
        hidden: Vec<usize>,
        /// Classes.
        classes: usize,
    },
    /// Blocks of 1-D convolution and `ReLU`, then a linear layer, for signals (B, length) or (B, 1, length).
    ///
    /// Convolutions are padded by `kernel / 2`. Slots: `input` after the signal was given its channel dimension,
    /// `block0`… after each activation.
    Cnn1d {
        /// Positions of one sample.
        length: usize,
        /// Channels of each block.
        channels: Vec<usize>,
        /// Positions one output sees.
        kernel: usize,
        /// Positions from one output to the next.
        stride: usize,
        /// Classes.
        classes: usize,
        /// How a signal becomes a vector before the last layer.
        #[serde(default)]
        pool: Pool,
    },
}

impl HostConfig {
    /// Largest accepted value of any size: products of three of them still fit into 64 bits.
    const MAX_SIZE: usize = 1 << 20;

    /// Everything that is wrong with the values; keys start with `host.`.
    #[must_use]
    pub fn validate(&self) -> Vec<ConfigIssue> {
        let mut issues = Vec::new();
        let mut within = |key: String, value: usize, min: usize, max: usize| {
            if !(min..=max).contains(&value) {
                issues.push(ConfigIssue::new(format!("host.{key}"), format!("is {value}: expected {min} to {max}")));
            }
        };
        match self {
            Self::Mlp { inputs, hidden, classes } => {
                within("mlp.inputs".into(), *inputs, 1, Self::MAX_SIZE);
                within("mlp.classes".into(), *classes, 2, Self::MAX_SIZE);
                for (index, &width) in hidden.iter().enumerate() {
                    within(format!("mlp.hidden[{index}]"), width, 1, Self::MAX_SIZE);
                }
            }
            Self::Cnn1d { length, channels, kernel, stride, classes, pool: Pool::Mean | Pool::Flatten } => {
                within("cnn1d.length".into(), *length, 1, Self::MAX_SIZE);
                within("cnn1d.kernel".into(), *kernel, 1, *length);
                within("cnn1d.stride".into(), *stride, 1, *length);
                within("cnn1d.classes".into(), *classes, 2, Self::MAX_SIZE);
                for (index, &width) in channels.iter().enumerate() {
                    within(format!("cnn1d.channels[{index}]"), width, 1, Self::MAX_SIZE);
                }
            }
        }
        issues
    }
}
