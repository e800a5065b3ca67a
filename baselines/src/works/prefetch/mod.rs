//! Prefetch of blueprint weights: what it adds to a store, and what it does when the store dies.
//!
//! ```text
//!   6 clients, a request each at a time ─► Prefetcher, 6 workers ─► simulated store: sleeps 45 ± 8 ms, then hashes
//!        └── request to artifact ──────────────────────────────────── its own time ──┘
//!            overhead = the first minus the second, of the same request
//! ```
//!
//! Four runs: a healthy store; one that four times as many clients ask as there are workers, so that requests wait for
//! one; one that fails for good in the middle, where every request has to end in a known way and nothing wrong may be
//! kept; and requests for what is cached. *Not here*: real files, whose speed is the disk's.

mod store;
mod clients;
mod bench;

use crate::work::{Needs, Work};

pub(super) const WORK: Work = Work::new(
    "prefetch",
    "Prefetch of blueprint weights on the CPU: what it adds to a store, and a store that dies in the middle",
    Needs::Nothing,
    bench::run,
);
