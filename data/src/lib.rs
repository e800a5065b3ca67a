//! Data sets: where samples come from, how they are checked, prepared, split and identified.
//!
//! ```text
//!   embedded digits, MNIST-1D recipe, MNIST files ───────────────┐
//!   a file of one's own ─► Format ─► Records ─► which targets? ─► split ─► Preparation: learned from the training part
//!                          (checked)            (and why)           │             │
//!                                                                   ▼             ▼  applied to all parts, and to other files
//!                                              train, validation, test ─► DataDigest of exactly these bytes
//! ```
//!
//! *Entry points*: [`load`], and [`Preparation::apply`] for another file. Everything here is host memory; [`Table::to_tensors`]
//! makes the device copies. Sizes are checked before memory is taken, sums before values are used, and nothing is ever
//! fetched: a missing file ends in an error that holds the commands which fetch it.
//!
//! *Not here*: shuffling, batching and augmentation, which belong to the trainer.
#![forbid(unsafe_code)]

mod config;
mod error;
mod target;
mod table;
mod source;
mod unpack;
mod column;
mod format;
mod target_plan;
mod preparation;
mod tokenizer;
mod digits;
mod mnist1d;
mod signal;
mod image;
mod draw;
mod split;
mod digest;

pub use config::{
    ColumnRef, ColumnRefs, DataConfig, DataName, Delimiter, Fraction, Header, Missing, Mnist1dConfig, Scale,
    TargetChoice,
};
pub use digest::DataDigest;
pub use error::Error;
pub use preparation::{Applied, ColumnPlan, FeatureKind, FeaturePlan, Preparation, Scaling};
pub use source::{Prepared, load};
pub use split::{Assignment, SplitPlan, Splits};
pub use table::{Inputs, Table};
pub use target::{TargetKind, Targets};
pub use target_plan::TargetPlan;
pub use tokenizer::{Tokenizer, TokenizerFile};
