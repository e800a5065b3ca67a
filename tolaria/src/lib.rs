//! Trainer: turns batches into parameter updates and reports what happened.
//!
//! ```text
//!   Dataset ─► batch ─► forward, loss, backward ─► grad ─► aggregate ─► optim ─► sums ─► Recorder, Observer
//!                          ▲ layout                          ▲ attribution         │
//!                     SeedManager ◄──────── orders ───────── Policy ◄── SystemState ┘
//! ```
//!
//! *Entry points*: [`trainer::Trainer::run`]; [`plain`] to train any candle function; [`checkpoint`] for what is on
//! disk. *Invariants*: I-1, I-3, I-5, I-6, I-8 of `ARCHITECTURE.md`. *Not here*: deciding about seeds (policy),
//! building seeds (seed manager), exporting metrics (telemetry).
#![deny(unsafe_code)]

pub mod error;
mod cpu;
// Launches kernels of this crate.
#[allow(unsafe_code)]
mod kernels;
mod path;
mod rng;
pub mod host_read;
pub mod batch;
pub mod loss;
pub mod measure;
pub mod task;
pub mod random;
pub mod grad;
pub mod aggregate;
pub mod optim;
pub mod checkpoint;
pub mod trainer;
pub mod plain;
pub mod telemetry;
#[cfg(test)]
mod testing;

pub use error::Error;
