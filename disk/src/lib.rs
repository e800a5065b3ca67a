//! Durable files: the file system as an argument, so that tests can make it fail, lose power and forget.
//!
//! ```text
//!   checkpoints, journal, packets, metrics, run folder ──► Fs, FsFile ──► StdFs    the operating system
//!                                                              ▲
//!                                                              └──────── testkit   what a loss of power may leave, failing calls,
//!                                                                                  a process that dies at a named point
//! ```
//! *Entry points*: [`Fs`], [`StdFs`]; [`replace_file`] for a file that is written whole or not at all.
//! *Not here*: formats. Whoever reads says what is damaged.
#![forbid(unsafe_code)]

mod fs;
mod whole;
#[cfg(feature = "testkit")]
pub mod testkit;

pub use fs::{EntryKind, Fs, FsFile, LockGuard, Open, ReadFrom, StdFs};
pub use whole::{folder_of, is_left_over, make_dirs, replace_file};
