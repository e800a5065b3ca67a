//! Isolation: shadow training must not touch the host. The audit compares, and therefore it can fail.
//!
//! The same batch runs through the network without and with the seeds in shadow training. The audit checks that
//!
//! 1. the answers agree, and so does every gradient of the main loss,
//! 2. neither pass writes a parameter: of the host, of another seed or of the writer itself,
//! 3. the main loss reaches no parameter of a seed in shadow training, nor of one that does not train,
//! 4. every side loss reaches all parameters of its own seed and nobody else's,
//! 5. no parameter of such a seed lies in the storage of another parameter.
//!
//! Parameters are those of the layout and the tensors of every other seed in the network: germinated, paused, fading, or
//! blending at α = 0. The latter do not train now; what is done to them shows when they act or train again.
//!
//! Points 1 and 2 compare elements on the device and read one packed vector of counts; points 3 and 4 look at which
//! gradients exist. Point 5 compares where the tensor library keeps the storages of whole tensors: clones and views of one
//! tensor share theirs, whatever part of it they show. It does not compare addresses on the device: two storages over one piece
//! of its memory are not found.
//! Two elements agree when they are equal or both NaN: +0 and −0 count as equal, because no layer here
//! tells them apart, and the payload of a NaN is not looked at. All else is compared to the last bit.
//!
//! ```text
//!  inspect_batch, attribute_batch ─► Monitor (due?) ─► audit ─► violations ─► blame (which seed)
//!                                                                                └─► Ledger, counter, event, error
//! ```
//!
//! The monitor runs the audit on the batch of `inspect_batch`, the first of an epoch, if a seed trains in the shadow then,
//! as [`IsolationConfig`] says; where a caller skips that, on the first batch that is attributed. *Not here*: what
//! optimizers do with gradients.

mod config;
mod violation;
mod comparison;
mod audit;
mod blame;
mod ledger;
mod monitor;

pub use audit::{Audited, audit};
pub use config::IsolationConfig;
pub use violation::Violation;

pub(crate) use blame::blame;
pub(crate) use ledger::Ledger;
pub(crate) use monitor::Monitor;
