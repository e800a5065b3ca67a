//! The graft: a host network with seeds at its slots, as one trainable model.
//!
//! At a slot, in order: permanent seeds, then at most one live seed.
//!
//! | role | slot's output | gradient |
//! |---|---|---|
//! | idle | h | none: the seed takes no part |
//! | shadow | h, bit for bit | from a side loss, to this seed only |
//! | acting | h + α·f(h) | from the main loss, to host and seed |
//! | permanent | h + f(h) | from the main loss, to host and seed |
//!
//! α lives in a device tensor of shape (1,) that is written in place, so a ramp does not change the computation. At
//! α = 0 exactly the branch is left out: the output is h even if f(h) is NaN (I-7), and, since no gradient reaches it,
//! the seed's parameters leave the layout.
//!
//! Everything here is tensor code that may run while a graph is captured; changing the structure is the manager's
//! part.

mod alpha_cell;
mod slot;
mod model;

pub use model::GraftedModel;
pub use slot::Role;

pub(crate) use alpha_cell::AlphaCell;
pub(crate) use slot::Graft;
