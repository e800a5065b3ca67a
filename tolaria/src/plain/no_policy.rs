//! A policy that decides nothing, for networks that do not grow.

use std::convert::Infallible;

use leyline::durable::{Durable, SavedState};
use leyline::error::ErrorType;
use leyline::policy::{Decision, Policy};
use leyline::state::SystemState;

/// Issues no command.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoPolicy;

impl ErrorType for NoPolicy {
    type Error = Infallible;
}

impl Durable for NoPolicy {
    fn save(&self) -> Result<SavedState, Infallible> {
        Ok(SavedState::default())
    }

    fn restore(&mut self, _saved: &SavedState) -> Result<(), Infallible> {
        Ok(())
    }
}

impl Policy for NoPolicy {
    fn name(&self) -> &'static str {
        "none"
    }

    fn evaluate(&mut self, _state: &SystemState) -> Result<Decision, Infallible> {
        Ok(Decision::default())
    }
}
