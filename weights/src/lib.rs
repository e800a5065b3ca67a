//! Weights of seeds: the one form in which they are stored, stores that hand them out, and a prefetch that asks for them
//! when a seed germinates, so that no step ever waits for a store.
//!
//! ```text
//!  request ─► cache ──hit──────────────────────────────────────────► Ticket (ready at once)
//!               │miss
//!               ▼
//!            flight of this blueprint ─► breaker ─► bounded queue ─► worker ─► KernelStore::fetch
//!            (n tickets, one fetch)        │refused   │full                     │ bytes, hashed and checked
//!                                          ▼          ▼                         ▼
//!                                        error      error      Artifact ─► cache and every ticket in time
//! ```
//!
//! Terms: an *artifact* is the weights of one blueprint, as the bytes that were hashed; a *flight* is one fetch with
//! everybody who waits for it; a *ticket* is one request, with a deadline of its own.
//!
//! *Entry points*: [`Weights`], [`DirectoryStore`], [`publish`](publish()) and [`Prefetcher`]. *Not here*: modules that take weights, and what becomes of
//! a seed whose weights do not come (seed manager).
//!
//! # For callers
//! [`Prefetcher::request`] and [`Prefetcher::poll`] never wait for a store: they hold one lock, and that only while
//! maps are changed. A ticket is decided once and stays so: ready, or failed with a typed error. A ticket whose
//! deadline passed is [`PrefetchError::TimedOut`], whatever the store answers later.
//!
//! # For implementers of [`KernelStore`]
//! - KS-1: the artifact has the id that was asked for, and its digest was compared with a pinned one where there is
//!   one. An artifact under another id is refused.
//! - KS-2: a blueprint that is not there is [`StoreError::Missing`]: an answer, not a fault.
//! - KS-3: look at the [`CancelToken`] now and then; nobody wants the answer once it is raised. A store that does not
//!   look keeps its thread until it returns. The thread is given up and replaced; when as many hang as
//!   [`PrefetchConfig::abandoned`] allows beside the workers, requests are refused until one comes back.
//!
//! # What happens when
//! | the store | the tickets of the flight | the breaker | the cache |
//! |---|---|---|---|
//! | answers in time | ready | success | takes it |
//! | answers after the last deadline | timed out already | a failure, counted at the deadline | takes nothing |
//! | answers after the last cancellation | cancelled already | neither | takes nothing |
//! | has no such blueprint; its artifact is too large or no safetensors | that error | neither | takes nothing |
//! | fails, damages bytes, answers with another blueprint, panics | that error | failure | takes nothing |
//! | never returns | timed out at their deadlines | failure, once begun; a trial counts begun or not | takes nothing |
//!
//! A late answer is thrown away although it may be sound: its token was raised, so it counts as cancelled. A store
//! that is slower than the deadline calls for a longer deadline, not for a cache that hides it.
#![forbid(unsafe_code)]

pub mod tensors;
pub mod cancel;
pub mod error;
pub mod artifact;
pub mod store;
pub mod directory;
pub mod publish;
pub mod config;
mod cache;
mod flights;
pub mod ticket;
pub mod stats;
mod prefetcher;

pub use artifact::{Artifact, HostTensor};
pub use cancel::{CancelSource, CancelToken};
pub use config::PrefetchConfig;
pub use directory::DirectoryStore;
pub use error::{FormatError, PrefetchError, StoreError};
pub use prefetcher::Prefetcher;
pub use publish::{IfPublished, PublishError, publish};
pub use stats::PrefetchStats;
pub use store::KernelStore;
pub use tensors::{Weights, WeightsError};
pub use ticket::{Outcome, Poll, Ticket};

/// When a failing store is left alone.
pub use esper_safety::{BreakerConfig, BreakerState};

/// Types of stored elements.
pub use safetensors::Dtype;
