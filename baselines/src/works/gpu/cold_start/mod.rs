//! The first seconds of a process, measured in fresh processes with caches of their own for compiled kernels.
//!
//! ```text
//!   run ─► process `bench cold-start-child --jit …` per way ─► ChildReport as JSON ─► BenchResult
//! ```
//!
//! The tensor library's kernels come as PTX, which the driver compiles and keeps in a folder. A way in which they are
//! loaded is therefore measured with a folder that is empty, or with that of the run before.

pub(super) mod cache;
mod child;
mod modules;
mod parent;

pub use child::{ChildReport, Jit, child};
pub use parent::run;
