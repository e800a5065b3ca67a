//! Hosts from their configurations: one file per kind, and what they have in common.

mod builder;
mod head;
mod cnn1d;
mod cnn2d;
mod language_model;
mod mlp;
mod transformer;

pub(super) use builder::{Builder, Parts};

use crate::error::Error;
use crate::host::HostConfig;

/// Adds the slots and segments of a host.
pub(super) fn assemble(config: &HostConfig, around: bool, builder: &mut Builder<'_, '_>) -> Result<(), Error> {
    match config {
        HostConfig::Mlp { inputs, hidden, classes } => mlp::mlp(builder, *inputs, hidden, *classes, around),
        HostConfig::Cnn1d { length, channels, kernel, stride, classes, pool } => {
            cnn1d::cnn1d(builder, *length, channels, (*kernel, *stride), *classes, *pool)
        }
        &HostConfig::Transformer { inputs, patch, width, heads, layers, mlp_ratio, classes } => {
            let encoder = transformer::Encoder { patch, width, heads, layers, mlp_ratio };
            transformer::transformer(builder, inputs, encoder, classes)
        }
        &HostConfig::LanguageModel { context, width, heads, layers, mlp_ratio, tied, vocabulary } => {
            let decoder = language_model::Decoder { width, heads, layers, mlp_ratio, tied };
            language_model::language_model(builder, (context, vocabulary), decoder)
        }
        HostConfig::Cnn2d { height, width, input_channels, channels, kernel, stride, classes, pool } => {
            let image = cnn2d::Image { channels: *input_channels, height: *height, width: *width };
            cnn2d::cnn2d(builder, image, channels, (*kernel, *stride), *classes, *pool)
        }
    }
}
