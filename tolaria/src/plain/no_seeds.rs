//! A seed manager without seeds, for networks that do not grow.

use leyline::command::Order;
use leyline::durable::{Durable, SavedState};
use leyline::error::ErrorType;
use leyline::model::TrainableModel;
use leyline::network::{Buffer, Network, NetworkError};
use leyline::region::Eager;
use leyline::seed::{Applied, Evidence, SeedManager, SeedState};

/// Owns a network and refuses every order.
#[derive(Debug)]
pub struct NoSeeds<M>(Network<M>);

impl<M: TrainableModel> NoSeeds<M> {
    /// Wraps `model`, which changes nothing but its parameters.
    pub fn new(model: M) -> Self {
        Self(Network::new(model))
    }

    /// Wraps `model`, which in training changes `buffers` beside its parameters: counters of random draws
    /// ([`DrawCounter::as_var`](crate::random::DrawCounter::as_var)), running statistics. See [`Network::with_buffers`]. Those
    /// of a float type stay as they were in a step that is left out.
    ///
    /// # Errors
    /// [`NetworkError::Twice`] when two of them, or one and a parameter, have one name.
    pub fn with_buffers(model: M, buffers: Vec<Buffer>) -> Result<Self, NetworkError> {
        Network::with_buffers(model, buffers).map(Self)
    }
}

impl<M: TrainableModel> ErrorType for NoSeeds<M> {
    type Error = NetworkError;
}

impl<M: TrainableModel> Durable for NoSeeds<M> {
    fn save(&self, eager: &Eager) -> Result<SavedState, NetworkError> {
        self.0.save(eager)
    }

    fn restore(&mut self, eager: &mut Eager, saved: &SavedState) -> Result<(), NetworkError> {
        self.0.restore(eager, saved)
    }
}

impl<M: TrainableModel> SeedManager for NoSeeds<M> {
    type Model = M;

    fn model(&self) -> &M {
        self.0.model()
    }

    fn apply(&mut self, eager: &mut Eager, order: &Order) -> Result<Applied, NetworkError> {
        Err(self.0.refusal(eager, order))
    }

    fn export_seed_states(&self, eager: &Eager) -> Result<Vec<SeedState>, NetworkError> {
        Ok(self.0.check(eager).map(|()| Vec::new())?)
    }

    fn statistics(&self) -> &[Buffer] {
        self.0.statistics()
    }

    fn record_evidence(&mut self, eager: &Eager, evidence: &[Evidence]) -> Result<(), NetworkError> {
        self.0.refuse_evidence(eager, evidence)
    }
}
