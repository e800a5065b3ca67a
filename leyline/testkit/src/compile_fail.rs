//! Invariant I-3: a host-side call inside a region does not compile.
//!
//! Each case stands beside a twin that differs in one line and compiles, so the line alone is what the compiler refuses.
//! Stable rustdoc does not look at the error code E0502; the continuous integration does (see `.ci/run`).
//!
//! # Attribution
//! ```
//! # use candle_core::Device;
//! # use leyline::{region::Eager, seed::SeedManager};
//! # use leyline_testkit::{fake_seed_manager::FakeSeedManager, toy};
//! let mut manager = FakeSeedManager::new(&Device::Cpu)?;
//! let batch = toy::blobs(4, 1, &Device::Cpu)?;
//! let mut eager = Eager::acquire()?;
//! let attribution = manager.attribute_batch(&eager, &batch)?;
//! # assert!(attribution.weights().is_empty());
//! # eager.record(|_| ());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//! ```compile_fail,E0502
//! # use candle_core::Device;
//! # use leyline::{region::Eager, seed::SeedManager};
//! # use leyline_testkit::{fake_seed_manager::FakeSeedManager, toy};
//! let mut manager = FakeSeedManager::new(&Device::Cpu)?;
//! let batch = toy::blobs(4, 1, &Device::Cpu)?;
//! let mut eager = Eager::acquire()?;
//! let attribution = eager.record(|_| manager.attribute_batch(&eager, &batch))?;
//! # assert!(attribution.weights().is_empty());
//! # eager.record(|_| ());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Export
//! ```
//! # use candle_core::Device;
//! # use leyline::{region::Eager, seed::SeedManager};
//! # use leyline_testkit::fake_seed_manager::FakeSeedManager;
//! let manager = FakeSeedManager::new(&Device::Cpu)?;
//! let mut eager = Eager::acquire()?;
//! let states = manager.export_seed_states(&eager)?;
//! # assert!(states.is_empty());
//! # eager.record(|_| ());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//! ```compile_fail,E0502
//! # use candle_core::Device;
//! # use leyline::{region::Eager, seed::SeedManager};
//! # use leyline_testkit::fake_seed_manager::FakeSeedManager;
//! let manager = FakeSeedManager::new(&Device::Cpu)?;
//! let mut eager = Eager::acquire()?;
//! let states = eager.record(|_| manager.export_seed_states(&eager))?;
//! # assert!(states.is_empty());
//! # eager.record(|_| ());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Orders
//! An order needs the token mutably, so the second borrow is a mutable one and the error is E0499.
//! ```
//! # use candle_core::Device;
//! # use leyline::{command::Operation, id::SeedId, region::Eager, seed::SeedManager};
//! # use leyline_testkit::fake_seed_manager::FakeSeedManager;
//! let mut manager = FakeSeedManager::new(&Device::Cpu)?;
//! let order = Operation::Cull { seed: SeedId(7) }.into();
//! let mut eager = Eager::acquire()?;
//! let refusal = manager.apply(&mut eager, &order).unwrap_err();
//! # assert_eq!(refusal.to_string(), "no seed-7 is known");
//! # eager.record(|_| ());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//! ```compile_fail,E0499
//! # use candle_core::Device;
//! # use leyline::{command::Operation, id::SeedId, region::Eager, seed::SeedManager};
//! # use leyline_testkit::fake_seed_manager::FakeSeedManager;
//! let mut manager = FakeSeedManager::new(&Device::Cpu)?;
//! let order = Operation::Cull { seed: SeedId(7) }.into();
//! let mut eager = Eager::acquire()?;
//! let refusal = eager.record(|_| manager.apply(&mut eager, &order)).unwrap_err();
//! # assert_eq!(refusal.to_string(), "no seed-7 is known");
//! # eager.record(|_| ());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Saving
//! ```
//! # use candle_core::Device;
//! # use leyline::{durable::Durable, region::Eager};
//! # use leyline_testkit::fake_seed_manager::FakeSeedManager;
//! let manager = FakeSeedManager::new(&Device::Cpu)?;
//! let mut eager = Eager::acquire()?;
//! let saved = manager.save(&eager)?;
//! # assert!(!saved.tensors.is_empty());
//! # eager.record(|_| ());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//! ```compile_fail,E0502
//! # use candle_core::Device;
//! # use leyline::{durable::Durable, region::Eager};
//! # use leyline_testkit::fake_seed_manager::FakeSeedManager;
//! let manager = FakeSeedManager::new(&Device::Cpu)?;
//! let mut eager = Eager::acquire()?;
//! let saved = eager.record(|_| manager.save(&eager))?;
//! # assert!(!saved.tensors.is_empty());
//! # eager.record(|_| ());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Restoring
//! As an order, it needs the token mutably.
//! ```
//! # use candle_core::Device;
//! # use leyline::{durable::{Durable, SavedState}, region::Eager};
//! # use leyline_testkit::fake_seed_manager::FakeSeedManager;
//! let mut manager = FakeSeedManager::new(&Device::Cpu)?;
//! let nothing = SavedState::default();
//! let mut eager = Eager::acquire()?;
//! let refusal = manager.restore(&mut eager, &nothing).unwrap_err();
//! # assert!(refusal.to_string().starts_with("the saved state has no usable"));
//! # eager.record(|_| ());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//! ```compile_fail,E0499
//! # use candle_core::Device;
//! # use leyline::{durable::{Durable, SavedState}, region::Eager};
//! # use leyline_testkit::fake_seed_manager::FakeSeedManager;
//! let mut manager = FakeSeedManager::new(&Device::Cpu)?;
//! let nothing = SavedState::default();
//! let mut eager = Eager::acquire()?;
//! let refusal = eager.record(|_| manager.restore(&mut eager, &nothing)).unwrap_err();
//! # assert!(refusal.to_string().starts_with("the saved state has no usable"));
//! # eager.record(|_| ());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
