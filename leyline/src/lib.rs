//! Contracts of Esper: the traits, plain types and region tokens through which the subsystems meet, and nothing else.
//!
//! ```text
//!   trainer ──forward──► TrainableModel ◄──owns── SeedManager ◄──apply── Order
//!      │                  (ParameterLayout)          │                        ▲
//!      │ Eager token: proof that nothing is captured │ SeedState, Evidence    │ Decision
//!      └──────────────► Recorder                     └──► SystemState ──► Policy
//! ```
//!
//! *Entry points*: [`region`] first, then [`model::TrainableModel`], [`seed::SeedManager`], [`policy::Policy`] and
//! [`telemetry::Recorder`]. *Invariants*: I-1, I-3, I-8 of `ARCHITECTURE.md`. *Not here*: behaviour, threads, input
//! and output, anything about a device beyond candle's own types.
//!
//! Who depends on this crate: every subsystem, and anybody who implements one of its traits. `leyline-testkit` holds
//! the executable form of the numbered rules.
#![forbid(unsafe_code)]

pub mod error;
pub mod config;
pub mod id;
pub mod unit;
pub mod clock;
pub mod region;
pub mod batch;
pub mod source;
pub mod task;
pub mod layout;
pub mod model;
pub mod durable;
pub mod network;
pub mod seed;
pub mod command;
pub mod state;
pub mod policy;
pub mod telemetry;
