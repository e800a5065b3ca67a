//! The policy: turns a measured state into commands.
//!
//! # For implementers
//! - **PO-1** the same states in the same order give the same operations: no clock, no ambient randomness.
//! - **PO-2** a decision names only seeds and slots of the state it was given, and only blueprints on offer there.
//! - **PO-3** a value that was not measured never counts as a good one.
//! - **PO-4** command sequence numbers grow by at least one from command to command.

use serde::{Deserialize, Serialize};

use crate::command::{Command, SignedCommand};
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

/// Commands for the seed manager, in the order they must be applied.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Decision {
    /// Each command as it was meant, beside its signed form.
    pub commands: Vec<(Command, SignedCommand)>,
    /// Why these: one for each command, in their order. Then why no others: what the policy waits for, what it dropped.
    pub rationale: Vec<Rationale>,
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
    fn evaluate(&mut self, state: &SystemState) -> Result<Decision, Self::Error>;
}
