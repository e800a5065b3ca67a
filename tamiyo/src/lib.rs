//! Policy: decides which seeds grow, from measured evidence.
//!
//! ```text
//!                 ┌─ heuristic: tracker ─ evidence ─ rules ─ placement ─┐
//!  SystemState ──►│  fixed: a clock   random: legal dice   off: nothing │──► proposals ──► risk ──► check ──► Decision
//!                 │  learned: observed alike ─ limits ─ network          │      (PO-2)
//!                 └─────────────────────────────────────────────────────┘
//! ```
//!
//! *Entry points*: [`Tamiyo::new`] with a [`TamiyoConfig`], then [`policy::heuristic`] for the rules themselves.
//! *Invariants*: PO-1 to PO-4 of [`leyline::policy`], DU-1 to DU-3 of [`leyline::durable`]. Everything that a
//! decision depends on is in the state it is given, in the configuration, or in what [`Tamiyo`] saves: no clock, no
//! ambient randomness. A measurement that is absent or not finite is never evidence.
//!
//! *Not here*: carrying commands out and refusing them at gates (seed manager), measuring counterfactuals (trainer),
//! signatures (a layer around the policy), deadlines.
#![forbid(unsafe_code)]

mod error;
mod issues;
pub mod tracker;
pub mod evidence;
pub mod policy;
mod check;
pub mod risk;
mod coverage;
mod tamiyo;
pub mod telemetry;

pub use error::Error;
pub use issues::Issues;
pub use leyline::config::ConfigIssue;
pub use policy::{PolicyKind, TamiyoConfig};
pub use tamiyo::Tamiyo;
