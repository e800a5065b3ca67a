//! The life of a seed: legal moves, the alpha ramp, and the gates that guard the moves.
//!
//! | file | what |
//! |---|---|
//! | [`table`] | every legal move with trigger, gate and effects |
//! | `record.rs` | one seed: stage, clocks, alpha, evidence, history |
//! | `history.rs` | the moves a seed has made |
//! | `alpha.rs` | the ramp of alpha |
//! | `gate/` | the conditions before a move |
//! | `confirm.rs` | how much each confirmation may err |
//! | `measured.rs` | evidence as it is written down |

pub mod table;
mod history;
mod alpha;
mod gate;
mod record;
mod measured;
mod confirm;

pub use alpha::{AlphaController, RampRunning};
pub use gate::GateConfig;
pub use history::HistoryEntry;

pub(crate) use confirm::{Confirmations, Spent};
pub(crate) use gate::{Germination, Surroundings};
pub(crate) use record::{Cause, Contradiction, Newborn, SeedRecord, judged};
