//! Whatever becomes of the disk, the process or the power: a run folder stays readable, and the run goes on to the same bits.
//!
//! Small here; how to run them for longer, and what came of it: `docs/testing.md`.
#![cfg(unix)]
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a helper of a test fails the test; long runs say what they did"
)]

mod job;
mod power_loss;
mod failing_calls;
mod kills;
