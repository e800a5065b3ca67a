//! A policy that decides nothing, for networks that do not grow.

use std::sync::Arc;

use leyline::durable::{Durable, SavedState};
use leyline::error::ErrorType;
use leyline::model::TrainableModel;
use leyline::policy::{Decision, Policy};
use leyline::region::{Eager, RegionError};
use leyline::state::SystemState;
use leyline::task::Task;

use super::NoSeeds;
use crate::trainer::{Parts, Splits};

/// Gives no order.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoPolicy;

impl<M: TrainableModel> Parts<NoSeeds<M>, NoPolicy> {
    /// As [`Parts::new`], of a network that does not grow.
    pub fn plain(task: impl Task + 'static, model: M, data: Splits) -> Self {
        Self::new(Arc::new(task), NoSeeds::new(model), NoPolicy, data)
    }
}

impl ErrorType for NoPolicy {
    type Error = RegionError;
}

impl Durable for NoPolicy {
    fn save(&self, eager: &Eager) -> Result<SavedState, RegionError> {
        eager.check().map(|()| SavedState::default())
    }

    fn restore(&mut self, eager: &mut Eager, _saved: &SavedState) -> Result<(), RegionError> {
        eager.check()
    }
}

impl Policy for NoPolicy {
    fn name(&self) -> &'static str {
        "none"
    }

    fn decide(&mut self, _state: &SystemState) -> Result<Decision, RegionError> {
        Ok(Decision::default())
    }
}
