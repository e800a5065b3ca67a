//! Isolation: shadow training must not touch the host. The audit compares, and therefore it can fail.
//!
//! The same batch runs through the network without and with the seeds in shadow training. The audit checks that
//!
//! 1. the answers agree, and so does every gradient of the main loss,
//! 2. neither pass writes a parameter outside shadow training,
//! 3. the main loss reaches no parameter of a seed in shadow training,
//! 4. every side loss reaches all parameters of its own seed and nobody else's,
//! 5. no parameter of such a seed lies in the memory of another parameter.
//!
//! Points 1 and 2 compare elements on the device and read one packed vector of counts; the others look at which
//! gradients exist. Two elements agree when they are equal or both NaN: +0 and −0 count as equal, because no layer here
//! tells them apart, and the payload of a NaN is not looked at. All else is compared to the last bit.
//!
//! ```text
//!  attribute_batch ─► Monitor (due?) ─► audit ─► violations ─► blame (which seed) ─► Ledger, counter, event, error
//! ```
//!
//! The monitor runs the audit on the first batch of an epoch in which a seed trains in the shadow, as
//! [`IsolationConfig`] says. *Not here*: what optimizers do with gradients.

mod config;
mod violation;
mod comparison;
mod audit;
mod blame;
mod ledger;
mod monitor;

pub use audit::audit;
pub use config::IsolationConfig;
pub use violation::Violation;

pub(crate) use blame::blame;
pub(crate) use ledger::Ledger;
pub(crate) use monitor::Monitor;
