//! Gates: conditions that a seed must meet before it may go on.
//!
//! | gate | before | conditions |
//! |---|---|---|
//! | G0 | germinated | the slot is free; the blueprint is known, fits and passes its shape probe; parameter budgets |
//! | G1 | training | the stage; the weights are there; not paused; isolation is audited and no leak was found |
//! | G2 | blending | epochs, gradient health, gain and its stability; isolation was audited and no leak was found; latency of a forward pass |
//! | G3 | holding | the ramp has ended at 1 |
//! | G4 | fossilized | epochs, gain and its stability; parameter budgets |
//! | G5 | dormant | no graft and no parameter is left; the embargo is over; the history is complete |
//!
//! What was not measured fails its condition: what is absent or no number, what was measured in another stage, before a
//! pause or more than [`GateConfig::max_evidence_age_epochs`] ago, a gain over fewer than two samples, which have no standard
//! error, and isolation without an audit in the present stage. Without audits
//! ([`check_every_epochs`](crate::isolation::IsolationConfig::check_every_epochs) = 0) no seed passes G1 or G2. Evidence of one
//! epoch counts once. Going back from holding to blending, and removal, have no gate. A resumption passes G1 with the
//! conditions that apply to a seed in any stage: the weights are there, isolation is audited, and no leak was found.
//!
//! # Score
//! The mean of a degree per condition: 1 when it is met, else the share of what is needed that is there, at most 0.99,
//! and 0 where there is no such share. Shares: epochs done of epochs needed; health, stability and bound of the gain
//! against their least value (when that is above 0); budget against what would be used; latency budget against latency;
//! alpha of the ramp against 1. So the score is 1 exactly when every condition is met, which is when the seed may pass.

mod config;
mod conditions;
mod evaluate;
#[cfg(test)]
mod tests;

pub use config::GateConfig;

pub(super) use evaluate::{Aged, Subject, evaluate, evaluate_germination};
pub(crate) use evaluate::{Germination, MIN_SAMPLES, Surroundings};
