//! Exported networks: what a run leaves for use, its format, and a library that runs it.
//!
//! ```text
//!   trained network ─► Export::write ─► DIR/model.json + DIR/model.safetensors ─► Network::load ─► logits, predictions
//! ```
//!
//! [`Export::to_onnx`] writes the network for programs that run ONNX. The format is described in `docs/export.md`, so that any program can read it. An export holds the network as it acts: the
//! host, and the seeds that are permanent or are being blended in, at the α that they had. Seeds that only train in the
//! shadow are no part of it.
//!
//! *Entry points*: [`Network::load`] to use one, [`Generation`] for language models, [`Export::write`] to make one. *Not here*: training, policies, signatures,
//! telemetry. How samples are read and prepared is what [`Preparation`] does.
#![forbid(unsafe_code)]

pub mod error;
mod document;
mod files;
mod network;
mod prediction;
mod generate;
mod write;
mod onnx;

pub use document::{DOCUMENT_FILE, Document, FORMAT, WEIGHTS_FILE, WeightsRecord};
pub use error::Error;
pub use esper_data::Preparation;
pub use generate::{Generation, Sampling};
pub use network::Network;
pub use onnx::ONNX_FILE;
pub use prediction::Prediction;
pub use write::{Export, IfPresent};
