//! Many runs beside each other: what each came to, how their curves compare, and what is different on average.
//!
//! ```text
//!   DIR/*/{run.json, config.toml, summary.json} ─► Row ─► table, JSON
//!   RUN …/metrics.jsonl ─► arms: runs that differ in nothing but random seeds ─► pairs, intervals, one page
//!                       └─► seeds that ended, by slot, blueprint and size ─► what later runs are told
//! ```
//!
//! *Entry points*: [`Row::read`], [`Comparison::of`], [`earlier`]. *Not here*: the commands (`cli`), curves (`report`).

mod row;
mod settings;
mod comparison;
mod page;
mod earlier;

pub(crate) use comparison::{Arm, Comparison, Difference};
pub(crate) use earlier::earlier;
pub(crate) use page::render_page;
pub(crate) use row::{Row, table};
pub(crate) use settings::Settings;
