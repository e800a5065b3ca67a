//! The seed manager: grows a network by grafting, training, blending and removing seeds.
//!
//! ```text
//!  Dormant ─► Germinated ─► Training ─► Blending ◄─► Holding ─► Fossilized
//!                 │             │          │           │
//!                 └─────────────┴────┬─────┴───────────┘
//!                                    ▼
//!                                 Pruned ─► Embargoed ─► Resetting ─► Dormant
//! ```
//!
//! # Terms
//! *Slot*: a place in the host that can hold one live seed. *Host share*: what no seed is responsible for.
//! *Evidence*: what the trainer measured about a seed on held-out data.
//!
//! # Parts
//! | part | methods | without an implementation of one's own |
//! |---|---|---|
//! | grow | `model`, `apply`, `export_seed_states` | required |
//! | | `export_slot_states` | no slots |
//! | | `costs` | they are not known |
//! | tick | `finish_step`, `finish_epoch` | nothing moves by itself |
//! | observe | `record_evidence` | required |
//! | | `train_for` | no losses are measured |
//! | | `wants_batch`, `inspect_batch` | nothing is looked at |
//! | confirm | `confirm_on`, `confirming`, `wants_confirmation`, `record_confirmation` | nothing is confirmed |
//! | attribute | `attribute_batch` | everything belongs to the host |
//! | recover | `remove_seed` | no seed is removed |
//! | | `statistics` | there are none |
//!
//! What is provided does nothing, but asks `export_seed_states` first: a manager that refuses a token there refuses it
//! everywhere. Commands are signed and verified by layers around policies and managers; see [`crate::command`].
//!
//! # For callers
//! Every method but `model` and `statistics` asks for an [`Eager`] token, saving and restoring included, so none can be called while a region
//! is recorded. `train_for` comes before all batches, and again after the manager was made anew; so does `confirm_on`. Order within an epoch:
//! `inspect_batch` where it is wanted, `attribute_batch` per microbatch, `finish_step` per optimizer step, then `record_evidence`, `finish_epoch`,
//! `record_confirmation` for each seed that `wants_confirmation` names, `export_seed_states`, and `apply` for each order of the policy.
//!
//! # For implementers
//! - **SM-1** every method calls [`Eager::check`] first and changes nothing when it fails. The network that `model` returns
//!   has no host-side method of its own: what changes it, or reads its tensors, is a method of the manager.
//! - **SM-2** `export_seed_states` is ordered by seed id and lists every seed from germination to reset.
//! - **SM-3** `apply` takes effect whole or not at all; a refusal leaves states, layout and outputs as they were. After a blend
//!   over n steps, alpha is at its target once `finish_step` was called n times. Where no seed is exported with another `alpha_mode` than
//!   [`AlphaMode::Hold`] that is not paused, nor with `weights_pending`, `finish_step` changes nothing: a trainer may call it later.
//! - **SM-4** attribution weights are finite, at least 0, sum to at most 1, and name only seeds that can influence the
//!   loss of this batch; the rest is the host share.
//! - **SM-5** the layout's revision grows with every change of the computation and never shrinks.
//! - **SM-6** an order for an unknown seed is refused with [`ErrorKind::UnknownSeed`](crate::error::ErrorKind).
//! - **SM-7** a move the lifecycle does not allow is refused with
//!   [`ErrorKind::IllegalTransition`](crate::error::ErrorKind).
//! - **SM-8** a manager that verifies orders refuses one that is not signed, or whose tag does not verify, with
//!   [`ErrorKind::Rejected`](crate::error::ErrorKind) before anything in it is parsed, looks at what was signed alone, and
//!   accepts each number once. One that does not verify refuses an order that is signed, with the same kind.
//! - **SM-9** evidence for an unknown seed is refused, and then none of the given evidence is kept. It is exported with its
//!   epoch, and counts once: a measurement whose epoch is not after that of the one kept changes nothing.
//! - **SM-10** a paused seed takes no part in the computation; its stage, its alpha and its epochs in the stage stand still,
//!   and its age grows. Resumed, it goes on with the parameters that it had, and the trainer with their moments, which it
//!   keeps for as long as the seed is exported as paused. What was measured before does not count any more. A seed that was
//!   paused already, or was not, is a refusal.
//! - **SM-11** while the thread records that the manager was made or last used on, every method refuses the tokens of other
//!   threads with [`ErrorKind::Region`](crate::error::ErrorKind) and changes nothing: a
//!   [`ThreadBinding`](crate::region::ThreadBinding) checks both this and SM-1.
//! - **SM-12** losses that a manager measures are those of the task that `train_for` told it last. One that was told none
//!   refuses what needs a loss with [`ErrorKind::Unsupported`](crate::error::ErrorKind) and changes nothing. The task is no part
//!   of what is saved: restoring keeps the one that was told.
//! - **SM-13** a seed that `remove_seed` says it removed is out of the network, whatever its stage was: its parameters have left
//!   the layout, and its stage is not live any more. Where it says that it did not, nothing has changed.
//! - **SM-14** what `statistics` lists is saved under the name that it has there, and is no parameter. A manager around another
//!   lists what that one does.
//! - **SM-15** a manager that `confirm_on` told of samples that confirm lets no seed become permanent whose gain they did not.
//!   They are read once for each seed: what is recorded for a seed that has a confirmation changes nothing, and one for an unknown
//!   seed is refused. How many were told is no part of what is saved; how many were read is.
//!
//! # A manager without seeds
//! ```
//! use leyline::command::Order;
//! use leyline::durable::{Durable, SavedState};
//! use leyline::error::ErrorType;
//! use leyline::model::TrainableModel;
//! use leyline::network::{Network, NetworkError};
//! use leyline::region::Eager;
//! use leyline::seed::{Applied, Evidence, SeedManager, SeedState};
//!
//! struct NoSeeds<M>(Network<M>);
//!
//! impl<M: TrainableModel> ErrorType for NoSeeds<M> { type Error = NetworkError; }
//! impl<M: TrainableModel> Durable for NoSeeds<M> {
//!     fn save(&self, eager: &Eager) -> Result<SavedState, NetworkError> {
//!         self.0.save(eager)
//!     }
//!     fn restore(&mut self, eager: &mut Eager, saved: &SavedState) -> Result<(), NetworkError> {
//!         self.0.restore(eager, saved)
//!     }
//! }
//! impl<M: TrainableModel> SeedManager for NoSeeds<M> {
//!     type Model = M;
//!     fn model(&self) -> &M {
//!         self.0.model()
//!     }
//!     fn apply(&mut self, eager: &mut Eager, order: &Order) -> Result<Applied, NetworkError> {
//!         Err(self.0.refusal(eager, order))
//!     }
//!     fn export_seed_states(&self, eager: &Eager) -> Result<Vec<SeedState>, NetworkError> {
//!         Ok(self.0.check(eager).map(|()| Vec::new())?)
//!     }
//!     fn record_evidence(&mut self, eager: &Eager, evidence: &[Evidence]) -> Result<(), NetworkError> {
//!         self.0.refuse_evidence(eager, evidence)
//!     }
//! }
//! ```
//! What tempts: to export without a look at the token, since there is nothing to export. Then no provided method looks at it
//! either, and the manager fails SM-1 and SM-11; `leyline_testkit::seed_manager` shows that, and a manager with seeds.

mod stage;
mod state;
mod gate;
mod attribution;
mod evidence;
mod cost;

pub use attribution::{Attribution, AttributionError, AttributionMode};
pub use cost::{Cost, Costs};
pub use evidence::{Confirmation, Confirmed, Confirming, Counterfactual, Evidence, GradientHealth};
pub use gate::{Gate, GateReport};
pub use stage::{ParseStageError, SeedStage};
pub use state::{AlphaMode, BlueprintOffer, RampProgress, SeedState, SlotState};

use std::sync::Arc;

use crate::batch::Batch;
use crate::command::Order;
use crate::durable::Durable;
use crate::id::{EpochIndex, SeedId, StepIndex};
use crate::model::TrainableModel;
use crate::network::Buffer;
use crate::region::Eager;
use crate::task::Task;

/// A stage change that took place.
#[derive(Debug, Clone, PartialEq)]
pub struct Transition {
    /// The seed.
    pub seed: SeedId,
    /// Stage before.
    pub from: SeedStage,
    /// Stage after.
    pub to: SeedStage,
    /// Why, for people.
    pub reason: String,
}

/// What a command did.
#[derive(Debug, Clone, PartialEq)]
pub struct Applied {
    /// The seed concerned; for a germination the new one.
    pub seed: SeedId,
    /// Stage changes, in order.
    pub transitions: Vec<Transition>,
    /// Whether the computation changed: layout, gradients and captured graphs must be renewed.
    pub topology_changed: bool,
}

/// Host-side management of the seeds in one network.
#[diagnostic::on_unimplemented(note = "the numbered rules SM-1… in `leyline::seed` are the implementer's checklist")]
pub trait SeedManager: Durable {
    /// The network it manages.
    type Model: TrainableModel;

    /// The network as it is now. Its forward pass may run inside a region; the other methods here may not. A region that
    /// may be captured is given this network, and not the manager.
    fn model(&self) -> &Self::Model;

    /// Carries out an order, whole or not at all (SM-3).
    ///
    /// # Errors
    /// A typed refusal; nothing was changed.
    fn apply(&mut self, eager: &mut Eager, order: &Order) -> Result<Applied, Self::Error>;

    /// The state of every seed, ordered by seed id (SM-2).
    ///
    /// # Errors
    /// [`RegionError`](crate::region::RegionError) kinds only.
    fn export_seed_states(&self, eager: &Eager) -> Result<Vec<SeedState>, Self::Error>;

    /// The state of every slot, ordered by position in the network.
    ///
    /// # Errors
    /// As [`Self::export_seed_states`].
    fn export_slot_states(&self, eager: &Eager) -> Result<Vec<SlotState>, Self::Error> {
        self.export_seed_states(eager).map(|_| Vec::new())
    }

    /// What the network and looking at seeds cost where microbatches have so many samples (count, above 0); none where that is not known.
    ///
    /// # Errors
    /// As [`Self::export_seed_states`], and when a pass over one sample fails.
    fn costs(&self, eager: &Eager, _batch_size: usize) -> Result<Option<Costs>, Self::Error> {
        self.export_seed_states(eager).map(|_| None)
    }

    /// Ends an optimizer step: moves alpha ramps on, and nothing else that is not exported before as on its way (SM-3).
    ///
    /// # Errors
    /// When a device scalar cannot be written.
    fn finish_step(&mut self, eager: &mut Eager, _step: StepIndex) -> Result<(), Self::Error> {
        self.export_seed_states(eager).map(drop)
    }

    /// Ends an epoch: embargo and reset clocks tick, seeds grow older.
    ///
    /// # Errors
    /// As [`Self::apply`].
    fn finish_epoch(&mut self, eager: &mut Eager, _epoch: EpochIndex) -> Result<Vec<Transition>, Self::Error> {
        self.export_seed_states(eager).map(|_| Vec::new())
    }

    /// Says what the network is trained for (SM-12).
    ///
    /// # Errors
    /// [`RegionError`](crate::region::RegionError) kinds only.
    fn train_for(&mut self, eager: &Eager, _task: &Arc<dyn Task>) -> Result<(), Self::Error> {
        self.export_seed_states(eager).map(drop)
    }

    /// Whether [`Self::inspect_batch`] is to be called, once more, before the first step of an epoch.
    fn wants_batch(&self, _eager: &Eager) -> bool {
        false
    }

    /// Looks at the first microbatches of an epoch, one after the other, before any of its steps: for checks, and for seeds that are to
    /// start from data. Called for as long as [`Self::wants_batch`] says so.
    ///
    /// # Errors
    /// When a forward or backward pass fails, or a check finds what must not be.
    /// # Sync
    /// May read from the device.
    fn inspect_batch(&mut self, eager: &Eager, _batch: &Batch) -> Result<(), Self::Error> {
        self.export_seed_states(eager).map(drop)
    }

    /// Keeps what was measured about seeds, for gates and exports (SM-9).
    ///
    /// # Errors
    /// For an unknown seed.
    fn record_evidence(&mut self, eager: &Eager, evidence: &[Evidence]) -> Result<(), Self::Error>;

    /// Says on how many held-out samples gains are confirmed: samples by which nothing else is decided (SM-15).
    ///
    /// # Errors
    /// [`RegionError`](crate::region::RegionError) kinds only.
    fn confirm_on(&mut self, eager: &Eager, _num_samples: u64) -> Result<(), Self::Error> {
        self.export_seed_states(eager).map(drop)
    }

    /// What the next confirmation has to come to; none where nothing is confirmed.
    ///
    /// # Errors
    /// As [`Self::export_seed_states`].
    fn confirming(&self, eager: &Eager) -> Result<Option<Confirming>, Self::Error> {
        self.export_seed_states(eager).map(|_| None)
    }

    /// Seeds that wait for nothing but a confirmation to go on, ordered by id.
    ///
    /// # Errors
    /// As [`Self::export_seed_states`].
    fn wants_confirmation(&self, eager: &Eager) -> Result<Vec<SeedId>, Self::Error> {
        self.export_seed_states(eager).map(|_| Vec::new())
    }

    /// Keeps and judges what the confirming samples say about a seed, once (SM-15).
    ///
    /// # Errors
    /// For an unknown seed.
    fn record_confirmation(
        &mut self,
        eager: &Eager,
        seed: SeedId,
        _measured: &Confirmation,
    ) -> Result<(), Self::Error> {
        self.record_evidence(eager, &[Evidence { seed, epoch: EpochIndex(0), counterfactual: None, gradient: None }])
    }

    /// Takes a seed that gives numbers which cannot be trained on out of the network, at once: between two optimizer steps,
    /// by the trainer that found it, and without an order. Returns whether it did; a permanent seed stays (SM-13). The next
    /// [`Self::finish_epoch`] returns the change of its stage.
    ///
    /// # Errors
    /// For an unknown seed, and when the layout cannot be made.
    fn remove_seed(&mut self, eager: &mut Eager, _seed: SeedId, _reason: &str) -> Result<bool, Self::Error> {
        self.export_seed_states(eager).map(|_| false)
    }

    /// What the network changes by itself in a training pass, beside its parameters, and is not to change in a step that is left
    /// out: running statistics (SM-14). The trainer writes there what was there before such a step, on the device. Counters of
    /// random draws are not among them: draws go on.
    fn statistics(&self) -> &[Buffer] {
        &[]
    }

    /// Says how much of a microbatch's loss each seed is responsible for (SM-4).
    ///
    /// # Errors
    /// When a forward pass needed by the attribution mode fails.
    /// # Sync
    /// Depends on the mode; `stage` and `alpha` read nothing from the device.
    fn attribute_batch(&mut self, eager: &Eager, _batch: &Batch) -> Result<Attribution, Self::Error> {
        self.export_seed_states(eager).map(|_| Attribution::host_only())
    }
}
