//! The graft: a host network with seeds at its slots, as one trainable model.
//!
//! At a slot, in order: permanent seeds, then at most one live seed.
//!
//! | role | slot's output | gradient |
//! |---|---|---|
//! | idle | h | none: the seed takes no part |
//! | shadow | h, bit for bit | from a side loss, to this seed only |
//! | acting | y(h, f(h), α) | from the main loss, to host and seed |
//! | fading | y(h, f(h), α) | from the main loss, to the host only |
//! | permanent | y(h, f(h), 1) | from the main loss, to host and seed |
//!
//! y is the blend of the seed ([`blend`] has the formulas), h + α·f(h) by default. A side loss sees the seed at α = 1,
//! through the same blend.
//!
//! α lives in a device tensor of shape (1,) that is written in place, so a ramp does not change the computation. At
//! α = 0 exactly the branch is left out: the output is h even if f(h) is NaN (I-7), and, since no gradient reaches it,
//! the seed's parameters leave the layout. What is recorded under one revision of the layout therefore never runs at
//! α = 0: the revision grows before the first step there.
//!
//! Everything here is tensor code that may run while a graph is captured; changing the structure is the manager's
//! part.

mod alpha_cell;
pub mod blend;
mod slot;
mod seen;
mod model;
mod cost;
mod decoder;
mod spec;

pub use decoder::Decoder;
pub use model::GraftedModel;
pub use slot::Role;
pub use spec::{NetworkSpec, SeedSpec};

pub(crate) use alpha_cell::{AlphaCell, rounded};
pub(crate) use blend::SeedBlend;
pub(crate) use slot::Graft;
pub(crate) use spec::slot_of;
