//! A tiny model and data: 16 inputs, 4 classes, one linear layer, grafts that are linear layers too.

mod data;
mod model;

pub use data::{NUM_CLASSES, NUM_INPUTS, blobs};
pub(crate) use model::Graft;
pub use model::ToyModel;
