//! A seed manager that obeys every rule over [`ToyModel`] and does as it is told: no gates.

use candle_core::Device;
use leyline::batch::Batch;
use leyline::command::{Operation, Order};
use leyline::durable::{Durable, SavedState};
use leyline::error::ErrorType;
use leyline::id::{EpochIndex, SeedId, StepIndex, TopologyRevision};
use leyline::model::TrainableModel;
use leyline::network::{copies, write_back};
use leyline::region::{Eager, ThreadBinding};
use leyline::seed::{Applied, Attribution, AttributionMode, Evidence, SeedManager, SeedState, SlotState, Transition};
use leyline_testkit::toy::ToyModel;
use leyline_testkit::{Error, Lifecycle};
use serde::Deserialize;

/// Two slots beside one linear layer. A seed is one more linear layer; every legal move succeeds at once.
/// Attribution divides half of the loss among the seeds in proportion to their alpha.
#[derive(Debug)]
pub struct FakeSeedManager {
    model: ToyModel,
    life: Lifecycle,
    thread: ThreadBinding,
}

impl FakeSeedManager {
    /// A manager without seeds and with two free slots. Equal arguments give equal networks.
    ///
    /// # Errors
    /// When the device cannot hold the network.
    pub fn new(device: &Device) -> Result<Self, Error> {
        Ok(Self { model: ToyModel::new(0, device)?, life: Lifecycle::new(2), thread: ThreadBinding::new() })
    }

    /// Gives every graft the role that its seed's stage asks for.
    fn settle(&mut self, topology_changed: bool) -> Result<(), Error> {
        self.model.graft_as(self.life.seeds())?;
        let revision = self.model.layout().revision();
        self.model.arrange(if topology_changed { revision.next() } else { revision })
    }
}

impl ErrorType for FakeSeedManager {
    type Error = Error;
}

impl SeedManager for FakeSeedManager {
    type Model = ToyModel;

    fn model(&self) -> &ToyModel {
        &self.model
    }

    fn apply(&mut self, eager: &mut Eager, order: &Order) -> Result<Applied, Error> {
        self.thread.check(eager)?;
        order.check_verified()?;
        let applied = self.life.apply(&order.operation)?;
        self.settle(applied.topology_changed).map(|()| applied)
    }

    fn export_seed_states(&self, eager: &Eager) -> Result<Vec<SeedState>, Error> {
        self.thread.check(eager)?;
        Ok(self.life.seeds().to_vec())
    }

    fn export_slot_states(&self, eager: &Eager) -> Result<Vec<SlotState>, Error> {
        self.thread.check(eager)?;
        Ok(self.life.slots().to_vec())
    }

    fn finish_step(&mut self, eager: &mut Eager, _step: StepIndex) -> Result<(), Error> {
        self.thread.check(eager)?;
        let removed = self.life.finish_step();
        self.settle(removed)
    }

    fn finish_epoch(&mut self, eager: &mut Eager, _epoch: EpochIndex) -> Result<Vec<Transition>, Error> {
        self.thread.check(eager)?;
        let transitions = self.life.finish_epoch();
        self.settle(false).map(|()| transitions)
    }

    fn record_evidence(&mut self, eager: &Eager, evidence: &[Evidence]) -> Result<(), Error> {
        self.thread.check(eager)?;
        self.life.record(evidence)
    }

    fn remove_seed(&mut self, eager: &mut Eager, seed: SeedId, reason: &str) -> Result<bool, Error> {
        self.apply(eager, &Order::new(Operation::Cull { seed }, reason)).map(|_| true)
    }

    fn attribute_batch(&mut self, eager: &Eager, _batch: &Batch) -> Result<Attribution, Error> {
        self.thread.check(eager)?;
        let acting = self.life.seeds().iter().filter(|state| state.stage.acts_on_output() && !state.alpha.is_zero());
        let total: f64 = acting.clone().map(|state| state.alpha.get()).sum();
        let weights = acting.map(|state| (state.seed_id, 0.5 * state.alpha.get() / total)).collect();
        Ok(Attribution::new(AttributionMode::Alpha, weights)?)
    }
}

impl Durable for FakeSeedManager {
    fn save(&self, eager: &Eager) -> Result<SavedState, Error> {
        self.thread.check(eager)?;
        let json = serde_json::json!({ "revision": self.model.layout().revision(), "life": self.life }).to_string();
        Ok(SavedState { json, tensors: copies(self.model.tensors())? })
    }

    fn restore(&mut self, eager: &mut Eager, saved: &SavedState) -> Result<(), Error> {
        self.thread.check(eager)?;
        let document: serde_json::Value = serde_json::from_str(&saved.json)?;
        let revision = TopologyRevision::deserialize(&document["revision"])?;
        let mut other = Self { life: Lifecycle::deserialize(&document["life"])?, ..Self::new(self.model.device())? };
        other.settle(false)?;
        write_back(other.model.tensors(), &saved.tensors)?;
        // A later revision than any this process has used, or the saved one: equal revisions mean equal layouts.
        other.model.arrange(revision.max(self.model.layout().revision().next()))?;
        *self = other;
        Ok(())
    }
}
