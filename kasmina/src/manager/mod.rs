//! The seed manager itself: it owns the grafted network and the records of its seeds.
//!
//! | file | what |
//! |---|---|
//! | `kasmina.rs` | construction, and [`SeedManager`](leyline::seed::SeedManager) as one list of calls |
//! | `measurement.rs` | isolation and attribution of a batch |
//! | `costs.rs` | what network, seeds and offers cost |
//! | `operation.rs` | what each command does |
//! | `time.rs` | what the ends of steps and epochs do |
//! | `state.rs` | network and records: everything that is saved |
//! | `library.rs`, `device_cache.rs`, `arrivals.rs` | weights that come from a library |
//! | `durable.rs` | saving and bringing back |

mod kasmina;
mod state;
mod operation;
mod measurement;
mod costs;
mod time;
mod library;
mod device_cache;
mod arrivals;
mod durable;

pub use kasmina::Kasmina;
pub(crate) use kasmina::numbered;
pub use library::{LibraryConfig, OnFailure};
