//! The life of a seed: legal moves, the alpha ramp, and the gates that guard the moves.
//!
//! | gate | guards | evidence |
//! |---|---|---|
//! | G0 | → germinated | the slot is free, the blueprint exists, fits and passes its shape probe |
//! | G1 | → training | the stage is germinated |
//! | G2 | training → blending | epochs in training, gradient health, gain on held-out data |
//! | G3 | blending → holding | the ramp has ended at 1 |
//! | G5 | holding → fossilized | epochs in holding, gain on held-out data |
//!
//! What was not measured in the present stage fails its gate. Going back from holding to blending, and removal, have
//! no gate. G4 of the older system is retired. G0 shows as typed refusals of a germination, since no seed exists yet.

mod alpha;
mod gate;
mod record;
mod measured;

pub use alpha::{AlphaController, RampRunning};
pub use gate::GateConfig;

pub(crate) use record::SeedRecord;
