//! The policy: turns a measured state into orders.
//!
//! A policy is asked at the end of every epoch and answers with operations and their reasons. It signs nothing: where orders
//! are to be signed, a layer does it around any policy, which is a policy itself.
//!
//! ```
//! use leyline::command::{Operation, Order};
//! use leyline::durable::{Durable, SavedState};
//! use leyline::error::ErrorType;
//! use leyline::policy::{Decision, Policy};
//! use leyline::region::{Eager, RegionError};
//! use leyline::seed::SeedStage;
//! use leyline::state::SystemState;
//!
//! /// Lets every seed that has germinated train. It remembers nothing.
//! struct Hasty;
//!
//! impl ErrorType for Hasty {
//!     type Error = RegionError;
//! }
//!
//! impl Durable for Hasty {
//!     fn save(&self, eager: &Eager) -> Result<SavedState, RegionError> {
//!         eager.check().map(|()| SavedState::default())
//!     }
//!
//!     fn restore(&mut self, eager: &mut Eager, _saved: &SavedState) -> Result<(), RegionError> {
//!         eager.check()
//!     }
//! }
//!
//! impl Policy for Hasty {
//!     fn name(&self) -> &'static str {
//!         "hasty"
//!     }
//!
//!     fn decide(&mut self, state: &SystemState) -> Result<Decision, RegionError> {
//!         let germinated = state.seeds.iter().filter(|seed| seed.stage == SeedStage::Germinated);
//!         let start = |seed| Order::new(Operation::StartTraining { seed }, "germinated: next stage at once");
//!         Ok(Decision { orders: germinated.map(|seed| start(seed.seed_id)).collect(), waiting: Vec::new() })
//!     }
//! }
//! ```
//!
//! # For implementers
//! - **PO-1** the same states in the same order give the same operations: no clock, no ambient randomness.
//! - **PO-2** a decision names only seeds and slots of the state it was given, and only blueprints on offer there.
//! - **PO-3** a value that was not measured never counts as a good one.
//! - **PO-4** of a run all orders are signed or none. Where they are, their numbers grow by at least one from order to order, and
//!   what is signed is what is ordered, with number, reason and coverage, for the run of the state.

use serde::{Deserialize, Serialize};

use crate::command::Order;
use crate::durable::Durable;
use crate::state::SystemState;

/// Why the policy did what it did, for people.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Rationale {
    /// Short name of the rule that fired, snake case.
    pub rule: String,
    /// The values it fired on.
    pub detail: String,
}

/// What a policy wants at one decision boundary.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Decision {
    /// Operations with their reasons, in the order in which they must be applied.
    pub orders: Vec<Order>,
    /// Why there are no more of them: what the policy waits for, what it dropped.
    pub waiting: Vec<Rationale>,
}

/// Decides what happens to seeds.
#[diagnostic::on_unimplemented(note = "the numbered rules PO-1… in `leyline::policy` are the implementer's checklist")]
pub trait Policy: Durable + Send {
    /// Name of the policy, as in configuration.
    fn name(&self) -> &'static str;

    /// Looks at one decision boundary.
    ///
    /// # Errors
    /// When no decision can be made; the trainer then changes nothing.
    fn decide(&mut self, state: &SystemState) -> Result<Decision, Self::Error>;
}
