//! Configuration: layers of TOML, merged and checked, with the place of every value kept.
//!
//! ```text
//!   defaults ◄ defaults of the data set ◄ file ◄ flags      (later ones win, key by key)
//!        └──────────┴───────────┴──────────┘
//!                    merged tree, every key with the layer, line and column it came from
//!                       │                                    │
//!                       ▼                                    ▼
//!            EsperConfig, validated              provenance ─► config.toml of the run folder
//! ```
//!
//! *Entry points*: [`EsperConfig::load`] for the command, [`load`] for any other type. Every mistake is answered with
//! file, line and column, the key, what was found, what is accepted, and the nearest name.
//!
//! *Not here*: the meaning of a subsystem's settings; each subsystem owns and validates its section.

mod error;
mod layer;
mod tree;
mod diagnose;
mod explain;
mod load;
mod library;
mod network;
mod sections;
pub(crate) mod sizes;

pub use error::{ConfigError, Diagnostic, Place};
pub(crate) use explain::{commented, explain, meanings, nearest, origin_of, value_of};
pub use layer::Layer;
pub use library::LibraryConfig;
pub use load::{Alternative, Issue, Loaded, load};
pub use network::SeedsConfig;
pub use sections::{CheckpointConfig, DeviceName, EsperConfig, RunConfig, TelemetryConfig};

#[cfg(test)]
mod tests;
