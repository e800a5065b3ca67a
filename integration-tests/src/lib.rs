//! Fixtures for tests that wire the real crates together.
#![forbid(unsafe_code)]

pub mod scripted;
pub mod short_run;
