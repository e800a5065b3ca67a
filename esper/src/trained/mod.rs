//! Trained networks for those who use them: opened from a run folder or an exported folder, exported, measured.
//!
//! ```text
//!   run folder ─► checkpoint ────────► what acts ─┬─► Subject ─► evaluate, predict
//!   exported folder ──────────────────────────────┘
//! ```
//!
//! *Not here*: the format of an export and what runs it (`esper-export`), the commands (`cli`).

mod checkpoint;
mod subject;
mod confusion;

pub(crate) use checkpoint::{SEEDS, newest_checkpoint};
pub(crate) use confusion::Confusion;
pub(crate) use subject::{Origin, Subject, Trained, data_of_run};
