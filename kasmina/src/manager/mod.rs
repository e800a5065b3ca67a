//! The seed manager itself: it owns the grafted network and the records of its seeds.
//!
//! | file | what |
//! |---|---|
//! | `kasmina.rs` | construction, and [`SeedManager`](leyline::seed::SeedManager) as one list of calls |
//! | `operation.rs` | what each command does |
//! | `state.rs` | network and records: everything that is saved |
//! | `durable.rs` | saving and bringing back |

mod kasmina;
mod state;
mod operation;
mod durable;

pub use kasmina::Kasmina;
