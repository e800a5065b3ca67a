//! Fixtures for tests that wire the real crates together.
#![forbid(unsafe_code)]

pub mod decoders;
pub mod run_folder;
pub mod scripted;
pub mod short_run;

/// The examples of the guide, which are run as they stand there.
#[doc = include_str!("../../docs/how-to-extend.md")]
#[cfg(doctest)]
pub struct HowToExtend;
