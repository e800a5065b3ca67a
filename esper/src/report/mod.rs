//! The report of a run: what its folder holds, as one self-contained page and as text for the terminal.
//!
//! ```text
//!   run.json ───────┐                 ┌─► lives of seeds, events ─► charts ─┐
//!   config.toml ────┤                 │                                     ├─► report.html
//!   metrics.jsonl ──┼─► Run (checked) ┼─► tables ───────────────────────────┘
//!   summary.json ───┘                 └─► text for the terminal
//! ```
//!
//! *Entry points*: [`write()`] for the page, [`Run::read`] and [`render_text`] for the terminal; [`RunRecord`] and
//! [`Summary`] are what a run writes about itself.
//!
//! *Invariants*: the page needs no script and no other file, and says so to the browser; every text in it is escaped by
//! the template engine; what was not measured is a gap or a sentence, never a 0.
//!
//! *Not here*: anything that decides or trains.

mod error;
mod run_record;
mod summary;
mod read;
mod printable;
mod format;
mod history;
mod gradients;
mod waiting;
mod overview;
mod chart;
mod page;
mod write;
mod text;
#[cfg(test)]
pub(crate) mod testing;

pub(crate) use chart::{Across, Chart, Dot, Overlay, dots, overlays};
pub use error::ReportError;
pub(crate) use format::{count, decimal, is_ratio, percent};
pub use page::render_html;
pub(crate) use page::render_live;
pub use printable::printable;
pub use read::{
    CONFIG_FILE, METRICS_FILE, PREPARATION_FILE, RECORD_FILE, ROWS_FILE, Run, SUMMARY_FILE, read_record, read_summary,
};
pub(crate) use read::{read, read_config};
pub use run_record::{DataRecord, ResumedRecord, RunRecord, Versions};
pub use summary::{RunOutcome, SeedSummary, Summary, Tested, Which};
pub use text::render_text;
pub use waiting::{Waiting, waiting};
pub use write::{PAGE_FILE, write};
