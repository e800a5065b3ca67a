//! Policies and seed managers that are late or do what they should not, and emergencies: what becomes of the run.
#![expect(clippy::unwrap_used, reason = "a helper of a test fails the test")]

mod calls;
mod levels;
mod world;
