//! Doubles for tests of whoever writes files.
//!
//! | double | what it is |
//! |---|---|
//! | [`SimFs`] | a disk in memory; after every effect it knows all that a loss of power may leave ([`CrashPoint`]) |
//! | [`MirrorFs`] | the operating system's disk, whose every effect a [`SimFs`] is told |
//! | [`FaultFs`] | any of them with a call that fails, or at which the process dies; and the list of calls |

mod image;
mod sim;
mod mirror;
mod fault;

pub use fault::{Failure, FaultFs, Which};
pub use mirror::MirrorFs;
pub use sim::{CrashPoint, SimFs};
