//! Executable contracts and test doubles for implementers of `leyline`: a dev-dependency, never a normal one.
//!
//! ```text
//!   harness (yours) ─► rule functions, one per numbered rule ─► one #[test] each ─► "SM-4: …" when it fails
//!   doubles (ours)  ─► stand in for the subsystems that yours must not depend on
//! ```
//!
//! # For implementers
//! Write one function that builds a fresh harness, and call the macro in `tests/contract.rs`. Every numbered rule of
//! the contract becomes a test that carries its number, so a wrong implementation fails its rule by name:
//!
//! ```
//! use candle_core::Device;
//! use leyline_testkit::fake_seed_manager::FakeSeedManager;
//! use leyline_testkit::seed_manager::SeedManagerHarness;
//! use leyline_testkit::toy;
//!
//! fn harness() -> SeedManagerHarness<FakeSeedManager> {
//!     SeedManagerHarness::new(
//!         FakeSeedManager::new(&Device::Cpu).expect("a fake"), // your manager, no seed in it
//!         toy::blobs(8, 1, &Device::Cpu).expect("a batch"),    // a batch its network accepts
//!     )
//! }
//!
//! leyline_testkit::seed_manager_conformance!(harness);
//! # fn main() { leyline_testkit::seed_manager::sm_4_attribution_names_only_seeds_that_act(&harness); }
//! ```
//!
//! Two implementers in one file: put each call into a module of its own.
//!
//! | macro | harness | rules |
//! |---|---|---|
//! | [`seed_manager_conformance!`] | [`seed_manager::SeedManagerHarness`] | SM-1 to SM-15 |
//! | [`trainable_model_conformance!`] | [`trainable_model::TrainableModelHarness`] | TM-1 to TM-5 |
//! | [`policy_conformance!`] | [`policy::PolicyHarness`] | PO-1 to PO-4 |
//! | [`recorder_conformance!`] | [`recorder::RecorderHarness`] | TE-1 to TE-3 |
//! | [`task_conformance!`] | [`task::TaskHarness`] | TK-1 to TK-6 |
//! | [`durable_conformance!`] | [`durable::DurableHarness`] | DU-1 to DU-3 |
//! | [`source_conformance!`] | [`source::SourceHarness`] | SO-1 to SO-5 |
//!
//! *Invariants*: I-2, and I-3 in [`compile_fail`]. *Not here*: real subsystems; the fakes hold what the rules demand and
//! nothing more.
#![forbid(unsafe_code)]

extern crate self as leyline_testkit;

mod error;
mod rule;
mod host_read;
mod lifecycle;
pub mod clock;
pub mod toy;
pub mod cross_entropy;
pub mod fake_seed_manager;
pub mod fake_policy;
pub mod recording_recorder;
pub mod world;
pub mod seed_manager;
pub mod trainable_model;
pub mod policy;
pub mod recorder;
pub mod task;
pub mod durable;
pub mod source;
pub mod compile_fail;

pub use error::Error;
pub use host_read::values;
pub use lifecycle::Lifecycle;
