//! Seed manager: grafts small modules ("seeds") into a host network, trains them without touching the host, blends
//! them in when measured evidence allows it, and makes them permanent or removes them.
//!
//! ```text
//!                         Order ─► manager ─► lifecycle (stage, alpha, gates) ─► graft (GraftedModel)
//!                                     ▲                                            │ host + blueprint
//!     Evidence, step and epoch ends ──┘                                            ▼
//!                              SeedState, SlotState, Attribution          logits and shadows
//! ```
//!
//! *Entry points*: [`Kasmina`] with its [`KasminaConfig`], then [`graft::GraftedModel`]. *Invariants*: I-1, I-3, I-7
//! and I-8 of `ARCHITECTURE.md`. *Not here*: deciding about seeds (policy), signatures (a layer around the manager), losses and optimizers (trainer), where
//! metrics go (telemetry).
#![forbid(unsafe_code)]

pub mod error;
pub mod config;
pub mod weight;
pub mod host;
pub mod blueprint;
pub mod init;
pub mod graft;
pub mod lifecycle;
pub mod attribution;
pub mod isolation;
pub mod telemetry;
pub mod manager;
mod host_read;

pub use config::{ActivationCheckpointing, ConfigIssue, KasminaConfig};
pub use error::Error;
pub use graft::GraftedModel;
pub use host_read::num_host_reads;
pub use manager::Kasmina;
