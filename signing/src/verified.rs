//! A seed manager that carries out signed orders only, each once.

use std::sync::Arc;

use leyline::batch::Batch;
use leyline::clock::Clock;
use leyline::command::{Command, Order};
use leyline::durable::{Durable, SavedState};
use leyline::error::ErrorType;
use leyline::id::{EpochIndex, RunId, SeedId, StepIndex};
use leyline::network::Buffer;
use leyline::region::Eager;
use leyline::seed::{
    Applied, Attribution, Confirmation, Confirming, Costs, Evidence, SeedManager, SeedState, SlotState, Transition,
};
use leyline::task::Task;
use leyline::telemetry::Recorder;
use serde::de::Error as _;
use serde_json::{Map, Value};

use crate::telemetry::Instruments;
use crate::verifier::Verifier;
use crate::window::ReplayWindow;
use crate::{Error, Journal, KeyRing, Rejection};

/// Verifies orders before a seed manager sees them; of an order nothing counts but what was signed.
///
/// ```
/// use std::sync::Arc;
///
/// use candle_core::Device;
/// use esper_signing::{CommandKey, Error, Verified};
/// use leyline::command::Operation;
/// use leyline::id::{RunId, SeedId};
/// use leyline::region::Eager;
/// use leyline::seed::SeedManager;
/// use leyline::telemetry::NullRecorder;
/// use leyline_testkit::{clock::ManualClock, fake_seed_manager::FakeSeedManager};
///
/// let (manager, key) = (FakeSeedManager::new(&Device::Cpu)?, CommandKey::new([7; 32]));
/// let (clock, recorder) = (Arc::new(ManualClock::default()), Arc::new(NullRecorder));
/// let mut manager = Verified::new(manager, RunId::new("run-1")?, key, clock, recorder);
/// let unsigned = Operation::Cull { seed: SeedId(1) }.into();
/// let refusal = manager.apply(&mut Eager::acquire()?, &unsigned).unwrap_err();
/// assert!(matches!(refusal, Error::Command(rejection) if rejection.reason() == "invalid_signature"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Verified<M> {
    manager: M,
    verifier: Verifier,
    clock: Arc<dyn Clock>,
    instruments: Instruments,
}

/// The field that the layer adds to the manager's document.
pub(crate) const WINDOW: &str = "replay_window";

impl<M: SeedManager> Verified<M> {
    /// Accepts commands for `run_id` under `keys`; a [`CommandKey`](crate::CommandKey) alone counts as key 0.
    pub fn new(
        manager: M,
        run_id: RunId,
        keys: impl Into<KeyRing>,
        clock: Arc<dyn Clock>,
        recorder: Arc<dyn Recorder>,
    ) -> Self {
        let verifier = Verifier::new(run_id, keys.into());
        Self { manager, verifier, clock, instruments: Instruments::new(recorder) }
    }

    /// Writes accepted commands down before they are carried out, so that none can be replayed after a restart.
    /// Without a journal, what was accepted is remembered in memory and in saved states.
    #[must_use]
    pub fn with_journal(mut self, journal: Journal) -> Self {
        self.verifier.set_journal(journal);
        self
    }

    /// Accepts commands under these keys only. What was accepted under others stays used.
    ///
    /// # Errors
    /// What the manager says of the token.
    pub fn set_keys(&mut self, eager: &mut Eager, keys: impl Into<KeyRing>) -> Result<(), Error<M::Error>> {
        self.check(eager)?;
        self.verifier.set_keys(keys.into());
        Ok(())
    }

    /// The manager.
    pub fn inner(&self) -> &M {
        &self.manager
    }

    /// Whether the manager takes the token.
    fn check(&self, eager: &Eager) -> Result<(), Error<M::Error>> {
        self.manager.export_seed_states(eager).map(drop).map_err(Error::Inner)
    }

    fn accept(&mut self, order: &Order) -> Result<Command, Rejection> {
        let began = self.clock.now();
        let signed = order.signed.as_ref().ok_or(Rejection::InvalidSignature);
        let accepted = signed.and_then(|signed| self.verifier.accept(signed, self.clock.unix()));
        self.instruments.verified(accepted.as_ref().err(), self.clock.now().saturating_sub(began));
        accepted
    }
}

impl<M: SeedManager> ErrorType for Verified<M> {
    type Error = Error<M::Error>;
}

impl<M: SeedManager> SeedManager for Verified<M> {
    type Model = M::Model;

    fn model(&self) -> &M::Model {
        self.manager.model()
    }

    /// An order that fails a check is answered by the event `command_rejected`, one that passes by the manager. A call that
    /// breaks a region rule looks at no order and is answered by its error alone.
    ///
    /// An accepted command stays used when its operation is then refused or fails; a rejected one is not used up.
    fn apply(&mut self, eager: &mut Eager, order: &Order) -> Result<Applied, Self::Error> {
        self.check(eager)?;
        let Command { operation, reason, input_coverage, sequence, .. } = self.accept(order).map_err(Error::Command)?;
        let order = Order { input_coverage, sequence: Some(sequence), ..Order::new(operation, reason) };
        self.manager.apply(eager, &order).map_err(Error::Inner)
    }

    fn export_seed_states(&self, eager: &Eager) -> Result<Vec<SeedState>, Self::Error> {
        self.manager.export_seed_states(eager).map_err(Error::Inner)
    }

    fn export_slot_states(&self, eager: &Eager) -> Result<Vec<SlotState>, Self::Error> {
        self.manager.export_slot_states(eager).map_err(Error::Inner)
    }

    fn finish_step(&mut self, eager: &mut Eager, step: StepIndex) -> Result<(), Self::Error> {
        self.manager.finish_step(eager, step).map_err(Error::Inner)
    }

    fn finish_epoch(&mut self, eager: &mut Eager, epoch: EpochIndex) -> Result<Vec<Transition>, Self::Error> {
        self.manager.finish_epoch(eager, epoch).map_err(Error::Inner)
    }

    fn train_for(&mut self, eager: &Eager, task: &Arc<dyn Task>) -> Result<(), Self::Error> {
        self.manager.train_for(eager, task).map_err(Error::Inner)
    }

    fn wants_batch(&self, eager: &Eager) -> bool {
        self.manager.wants_batch(eager)
    }

    fn inspect_batch(&mut self, eager: &Eager, batch: &Batch) -> Result<(), Self::Error> {
        self.manager.inspect_batch(eager, batch).map_err(Error::Inner)
    }

    fn record_evidence(&mut self, eager: &Eager, evidence: &[Evidence]) -> Result<(), Self::Error> {
        self.manager.record_evidence(eager, evidence).map_err(Error::Inner)
    }

    fn confirm_on(&mut self, eager: &Eager, num_samples: u64) -> Result<(), Self::Error> {
        self.manager.confirm_on(eager, num_samples).map_err(Error::Inner)
    }

    fn costs(&self, eager: &Eager, batch_size: usize) -> Result<Option<Costs>, Self::Error> {
        self.manager.costs(eager, batch_size).map_err(Error::Inner)
    }

    fn confirming(&self, eager: &Eager) -> Result<Option<Confirming>, Self::Error> {
        self.manager.confirming(eager).map_err(Error::Inner)
    }

    fn wants_confirmation(&self, eager: &Eager) -> Result<Vec<SeedId>, Self::Error> {
        self.manager.wants_confirmation(eager).map_err(Error::Inner)
    }

    fn record_confirmation(&mut self, eager: &Eager, seed: SeedId, measured: &Confirmation) -> Result<(), Self::Error> {
        self.manager.record_confirmation(eager, seed, measured).map_err(Error::Inner)
    }

    /// Needs no order: who holds the manager may restore any state of it, too.
    fn remove_seed(&mut self, eager: &mut Eager, seed: SeedId, reason: &str) -> Result<bool, Self::Error> {
        self.manager.remove_seed(eager, seed, reason).map_err(Error::Inner)
    }

    fn statistics(&self) -> &[Buffer] {
        self.manager.statistics()
    }

    fn attribute_batch(&mut self, eager: &Eager, batch: &Batch) -> Result<Attribution, Self::Error> {
        self.manager.attribute_batch(eager, batch).map_err(Error::Inner)
    }
}

/// The state of the manager alone, in the saved state of a [`Verified`] one: for what reads checkpoints and gives no orders.
///
/// # Errors
/// When no [`Verified`] manager wrote the state.
pub fn state_of_manager(saved: &SavedState) -> Result<SavedState, serde_json::Error> {
    split(saved).map(|(inner, _)| inner)
}

fn split(saved: &SavedState) -> Result<(SavedState, ReplayWindow), serde_json::Error> {
    let mut document: Map<String, Value> = serde_json::from_str(&saved.json)?;
    let window = document.remove(WINDOW).ok_or_else(|| serde_json::Error::missing_field(WINDOW))?;
    let inner = SavedState { json: Value::Object(document).to_string(), tensors: saved.tensors.clone() };
    Ok((inner, serde_json::from_value(window)?))
}

/// The state is the manager's, whose document must be an object without the field `replay_window`, with the numbers that were accepted in a field of its own.
impl<M: SeedManager> Durable for Verified<M> {
    fn save(&self, eager: &Eager) -> Result<SavedState, Self::Error> {
        let inner = self.manager.save(eager).map_err(Error::Inner)?;
        let mut document: Map<String, Value> = serde_json::from_str(&inner.json).map_err(|_| Error::Document)?;
        let window = serde_json::to_value(self.verifier.window()).map_err(Error::Saved)?;
        if document.insert(WINDOW.to_owned(), window).is_some() {
            return Err(Error::Document);
        }
        Ok(SavedState { json: Value::Object(document).to_string(), ..inner })
    }

    /// An older state does not let in again what was accepted since.
    fn restore(&mut self, eager: &mut Eager, saved: &SavedState) -> Result<(), Self::Error> {
        self.check(eager)?;
        let (inner, window) = split(saved).map_err(Error::Saved)?;
        self.manager.restore(eager, &inner).map_err(Error::Inner)?;
        self.verifier.merge(&window);
        Ok(())
    }
}
