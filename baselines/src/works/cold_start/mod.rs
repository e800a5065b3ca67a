//! The first seconds of a process, measured in fresh processes with caches of their own for compiled kernels.
//!
//! ```text
//!   parent ─► process `bench cold-start --jit …` per way: child ─► its result as a file ─► result of all
//! ```
//!
//! The tensor library's kernels come as PTX, which the driver compiles and keeps in a folder. A way in which they are
//! loaded is therefore measured with a folder that is empty, or with that of the run before.

mod child;
mod modules;
mod parent;

use crate::error::Error;
use crate::work::{Flags, Needs, Outcome, Setting, Work};
use child::Jit;

pub(super) const WORK: Work = Work::with_flags::<ColdStart>(
    "cold-start",
    "The first seconds of a process, with and without compiled kernels",
    Needs::Gpu,
);

#[derive(Debug, clap::Args)]
struct ColdStart {
    /// Measures this process alone, which loads kernels this way: what the process without this flag starts.
    #[arg(long, value_name = "WAY", hide = true)]
    jit: Option<Jit>,
    /// This program is that of `candle/esper`, which has machine code for the tensor library's kernels: nothing is loaded ahead, and the
    /// driver must have compiled nothing.
    #[arg(long)]
    with_candle: bool,
}

impl Flags for ColdStart {
    fn measure(&self, setting: &Setting) -> Result<Outcome, Error> {
        self.jit.map_or_else(|| parent::run(setting, self.with_candle), |jit| child::run(jit, setting))
    }
}
