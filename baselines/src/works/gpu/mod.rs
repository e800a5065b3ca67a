//! Works that measure the graph manager on a GPU. Each checks what the measured code computed before it reports a time.
//!
//! ```text
//!   Setting ─► Gpu::open ─► work: warm-up, capture, n repetitions ─► Samples ─► check of values ─► BenchResult
//! ```
//!
//! *Entry points*: one function per work.

mod fit;
mod samples;
mod open;
mod step;
mod optimizer_step;
mod compiled_step;
mod precision;
mod launch_model;
mod capture_profile;
mod payload;
mod staging;
mod cold_start;
mod graph_check;
mod graph_bench;
mod compile_check;
mod compile_bench;
mod memcheck;
mod gradient_bench;
mod seed_cost;

pub use capture_profile::run as capture_profile;
pub use cold_start::{ChildReport, Jit, child as cold_start_child, run as cold_start};
pub use compile_bench::{CompileBenchConfig, run as compile_bench};
pub use compile_check::run as compile_check;
pub use fit::{Line, least_squares};
pub use gradient_bench::run as gradient_bench;
pub use graph_bench::run as graph_bench;
pub use graph_check::run as graph_check;
pub use launch_model::run as launch_model;
pub use memcheck::run as memcheck;
pub use open::Gpu;
pub use seed_cost::run as seed_cost;
pub use staging::run as staging;
