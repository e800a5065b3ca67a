//! Hosts from their configurations: one file per kind, and what they have in common.

mod builder;
mod head;
mod cnn1d;
mod cnn2d;
mod mlp;
mod transformer;

pub(super) use builder::Builder;
pub(super) use cnn1d::cnn1d;
pub(super) use cnn2d::{Image, cnn2d};
pub(super) use mlp::mlp;
pub(super) use transformer::{Encoder, transformer};
