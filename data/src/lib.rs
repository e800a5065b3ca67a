//! Data sets: where samples come from, how they are checked, split and identified.
//!
//! ```text
//!   embedded digits ─┐
//!   CSV file ────────┤                                    ┌─► train ──────┐
//!   MNIST-1D recipe ─┼─► Source ─► labels permuted? ─► split ─► validation ─┼─► DataDigest of exactly these bytes
//!   IDX folder ──────┘  (checked)      (a control)        └─► test ───────┘
//! ```
//!
//! *Entry point*: [`load`]. Everything here is host memory; [`Table::to_tensors`] makes the device copies. Sizes are
//! checked before memory is taken, sums before values are used, and nothing is ever fetched: a missing file ends in an
//! error that holds the commands which fetch it.
//!
//! *Not here*: shuffling, batching and augmentation, which belong to the trainer.
#![forbid(unsafe_code)]

mod config;
mod error;
mod table;
mod source;
mod unpack;
mod csv;
mod digits;
mod mnist1d;
mod signal;
mod idx;
mod image;
mod draw;
mod split;
mod digest;

pub use config::{DataConfig, DataName, Fraction, Mnist1dConfig, Scale};
pub use digest::DataDigest;
pub use error::Error;
pub use source::{Prepared, Source, load};
pub use split::{Assignment, SplitPlan, Splits};
pub use table::Table;
