//! A seed manager that obeys every rule over [`ToyModel`] and does as it is told: no gates, a log of calls, failures on
//! demand.

use std::cell::RefCell;

use candle_core::{Device, Tensor, Var};
use leyline::batch::Batch;
use leyline::command::{Command, KeyId, Operation, SignedCommand};
use leyline::durable::{Durable, SavedState};
use leyline::error::{ErrorKind, ErrorType};
use leyline::id::{EpochIndex, RunId, StepIndex, TopologyRevision};
use leyline::model::TrainableModel;
use leyline::region::{Eager, ThreadBinding};
use leyline::seed::{
    Applied, Attribution, AttributionMode, Evidence, SeedManager, SeedStage, SeedState, SlotState, Transition,
};
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::lifecycle::Lifecycle;
use crate::toy::{Graft, Role, ToyModel, scalar};

/// A host-side call that was made and not refused at the door.
#[derive(Debug, Clone, PartialEq)]
pub enum Call {
    /// `attribute_batch` with this many samples.
    AttributeBatch(usize),
    /// `inspect_batch` with this many samples.
    InspectBatch(usize),
    /// `export_seed_states`.
    ExportSeedStates,
    /// `export_slot_states`.
    ExportSlotStates,
    /// `apply` of a command that verified.
    Apply(Operation),
    /// `record_evidence`.
    RecordEvidence(Vec<Evidence>),
    /// `finish_step`.
    FinishStep(StepIndex),
    /// `finish_epoch`.
    FinishEpoch(EpochIndex),
}

/// Two slots beside one linear layer. A seed is one more linear layer; every legal move succeeds at once.
///
/// Attribution divides half of the loss among the seeds in proportion to their alpha.
#[derive(Debug)]
pub struct FakeSeedManager {
    run_id: RunId,
    model: ToyModel,
    life: Lifecycle,
    next_sequence: u64,
    planted: RefCell<Option<ErrorKind>>,
    calls: RefCell<Vec<Call>>,
    thread: ThreadBinding,
}

/// Everything but tensors.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Saved {
    run_id: RunId,
    revision: TopologyRevision,
    next_sequence: u64,
    life: Lifecycle,
}

/// Signs a command the way [`FakeSeedManager`] verifies it. A checksum with a fixed key: no protection at all.
#[must_use]
pub fn sign(command: &Command) -> SignedCommand {
    let bytes = command.to_bytes();
    let key_id = KeyId::default();
    let tag = tag(&SignedCommand::signed_message(key_id, &bytes));
    SignedCommand { key_id, bytes, tag }
}

impl FakeSeedManager {
    /// A manager without seeds and with two free slots. Equal arguments give equal networks.
    ///
    /// # Errors
    /// When the device cannot hold the network.
    pub fn new(run_id: RunId, device: &Device) -> Result<Self, Error> {
        Ok(Self {
            run_id,
            model: ToyModel::new(0, device)?,
            life: Lifecycle::new(2),
            next_sequence: 0,
            planted: RefCell::new(None),
            calls: RefCell::new(Vec::new()),
            thread: ThreadBinding::new(),
        })
    }

    /// Makes the next call fail with this kind, without effect.
    pub fn fail_next(&self, kind: ErrorKind) {
        *self.planted.borrow_mut() = Some(kind);
    }

    /// The calls so far, in order.
    #[must_use]
    pub fn calls(&self) -> Vec<Call> {
        self.calls.borrow().clone()
    }

    fn enter(&self, eager: &Eager) -> Result<(), Error> {
        self.thread.check(eager)?;
        self.planted.borrow_mut().take().map_or(Ok(()), |kind| Err(Error::Planted(kind)))
    }

    fn log(&self, call: Call) {
        self.calls.borrow_mut().push(call);
    }

    fn verified(&self, signed: &SignedCommand) -> Result<Command, Error> {
        if tag(&SignedCommand::signed_message(signed.key_id, &signed.bytes)) != signed.tag {
            return Err(Error::Rejected("the tag does not verify"));
        }
        let command = Command::from_bytes(&signed.bytes).map_err(|_| Error::Rejected("the bytes are no command"))?;
        if command.run_id != self.run_id {
            return Err(Error::Rejected("the command is meant for another run"));
        }
        if command.sequence < self.next_sequence {
            return Err(Error::Rejected("the sequence number was used before"));
        }
        Ok(command)
    }

    /// Gives every graft the role that its seed's stage asks for.
    fn settle(&mut self, topology_changed: bool) -> Result<(), Error> {
        for state in self.life.seeds() {
            if self.model.grafts.iter().all(|graft| graft.seed != state.seed_id) {
                self.model.grafts.push(Graft::new(state.seed_id, self.model.weight.device())?);
            }
            let graft = self.model.grafts.iter_mut().find(|graft| graft.seed == state.seed_id).expect("pushed above");
            graft.role = if state.paused { Role::Idle } else { role(state.stage) };
            graft.target = state.alpha_target;
            graft.alpha.set(&scalar(state.alpha, graft.alpha.device())?)?;
        }
        let seeds = self.life.seeds();
        self.model.grafts.retain(|graft| seeds.iter().any(|state| state.seed_id == graft.seed && holds_weights(state)));
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

    fn attribute_batch(&mut self, eager: &Eager, batch: &Batch) -> Result<Attribution, Error> {
        self.enter(eager)?;
        self.log(Call::AttributeBatch(batch.num_samples()));
        let acting: Vec<_> = self.life.seeds().iter().filter(|state| state.stage.acts_on_output()).collect();
        let total: f64 = acting.iter().map(|state| state.alpha.get()).sum();
        if total <= 0.0 {
            return Ok(Attribution::host_only());
        }
        let weights = acting.iter().map(|state| (state.seed_id, 0.5 * state.alpha.get() / total)).collect();
        Ok(Attribution::new(AttributionMode::Alpha, weights)?)
    }

    fn inspect_batch(&mut self, eager: &Eager, batch: &Batch) -> Result<(), Error> {
        self.enter(eager)?;
        self.log(Call::InspectBatch(batch.num_samples()));
        Ok(())
    }

    fn export_seed_states(&self, eager: &Eager) -> Result<Vec<SeedState>, Error> {
        self.enter(eager)?;
        self.log(Call::ExportSeedStates);
        Ok(self.life.seeds().to_vec())
    }

    fn export_slot_states(&self, eager: &Eager) -> Result<Vec<SlotState>, Error> {
        self.enter(eager)?;
        self.log(Call::ExportSlotStates);
        Ok(self.life.slots().to_vec())
    }

    fn apply(&mut self, eager: &mut Eager, command: &SignedCommand) -> Result<Applied, Error> {
        self.enter(eager)?;
        let command = self.verified(command)?;
        self.log(Call::Apply(command.operation.clone()));
        let applied = self.life.apply(&command.operation)?;
        self.next_sequence = command.sequence + 1;
        self.settle(applied.topology_changed)?;
        Ok(applied)
    }

    fn record_evidence(&mut self, eager: &Eager, evidence: &[Evidence]) -> Result<(), Error> {
        self.enter(eager)?;
        self.log(Call::RecordEvidence(evidence.to_vec()));
        self.life.record(evidence)
    }

    fn finish_step(&mut self, eager: &mut Eager, step: StepIndex) -> Result<(), Error> {
        self.enter(eager)?;
        self.log(Call::FinishStep(step));
        let removed = self.life.finish_step();
        self.settle(removed)
    }

    fn finish_epoch(&mut self, eager: &mut Eager, epoch: EpochIndex) -> Result<Vec<Transition>, Error> {
        self.enter(eager)?;
        self.log(Call::FinishEpoch(epoch));
        let transitions = self.life.finish_epoch();
        self.settle(false)?;
        Ok(transitions)
    }
}

impl Durable for FakeSeedManager {
    fn save(&self, eager: &Eager) -> Result<SavedState, Error> {
        self.thread.check(eager)?;
        let saved = Saved {
            run_id: self.run_id.clone(),
            revision: self.model.layout().revision(),
            next_sequence: self.next_sequence,
            life: self.life.clone(),
        };
        let json = serde_json::to_string(&saved).map_err(|error| Error::Saved { field: error.to_string() })?;
        let mut tensors = vec![("host.weight".to_owned(), &self.model.weight), ("host.bias".into(), &self.model.bias)];
        tensors.extend(self.model.grafts.iter().map(|graft| (graft.name(), &graft.weight)));
        let copied = tensors.into_iter().map(|(name, var)| Ok((name, var.as_tensor().copy()?)));
        Ok(SavedState { json, tensors: copied.collect::<Result<_, Error>>()? })
    }

    fn restore(&mut self, eager: &mut Eager, saved: &SavedState) -> Result<(), Error> {
        self.thread.check(eager)?;
        let state: Saved =
            serde_json::from_str(&saved.json).map_err(|error| Error::Saved { field: error.to_string() })?;
        let mut other = Self::new(state.run_id, self.model.device())?;
        other.life = state.life;
        other.next_sequence = state.next_sequence;
        other.settle(false)?;
        fill(&other.model.weight, saved, "host.weight")?;
        fill(&other.model.bias, saved, "host.bias")?;
        for graft in &other.model.grafts {
            fill(&graft.weight, saved, &graft.name())?;
        }
        // A later revision than any this process has used, or the saved one: equal revisions mean equal layouts.
        let used = self.model.layout().revision();
        other.model.arrange(if state.revision > used { state.revision } else { used.next() })?;
        (other.planted, other.calls) = (std::mem::take(&mut self.planted), std::mem::take(&mut self.calls));
        *self = other;
        Ok(())
    }
}

fn fill(var: &Var, saved: &SavedState, name: &str) -> Result<(), Error> {
    let missing = || Error::Saved { field: name.to_owned() };
    let tensor: &Tensor = saved.tensors.get(name).ok_or_else(missing)?;
    if tensor.shape() != var.shape() {
        return Err(missing());
    }
    Ok(var.set(tensor)?)
}

fn role(stage: SeedStage) -> Role {
    match stage {
        SeedStage::Training => Role::Shadow,
        SeedStage::Blending | SeedStage::Holding => Role::Acting,
        SeedStage::Fossilized => Role::Permanent,
        SeedStage::Dormant
        | SeedStage::Germinated
        | SeedStage::Pruned
        | SeedStage::Embargoed
        | SeedStage::Resetting => Role::Idle,
    }
}

fn holds_weights(state: &SeedState) -> bool {
    state.stage.is_live() || state.stage == SeedStage::Fossilized
}

/// Four FNV-1a hashes with different starts. One changed byte changes each of them.
fn tag(bytes: &[u8]) -> [u8; 32] {
    let mut tag = [0; 32];
    for (lane, out) in (1_u64..).zip(tag.chunks_exact_mut(8)) {
        let start = 0xcbf2_9ce4_8422_2325_u64 ^ lane;
        let hash = bytes.iter().fold(start, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
        out.copy_from_slice(&hash.to_le_bytes());
    }
    tag
}

#[cfg(test)]
mod tests {
    use super::*;
    use leyline::error::Error as _;

    #[test]
    fn a_planted_failure_happens_once_and_without_effect() {
        let eager = Eager::acquire().unwrap();
        let mut manager = FakeSeedManager::new(RunId::new("run").unwrap(), &Device::Cpu).unwrap();
        let batch = crate::toy::blobs(4, 1, &Device::Cpu).unwrap();
        manager.fail_next(ErrorKind::DeadlineExceeded);
        let error = manager.attribute_batch(&eager, &batch).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
        assert!(manager.attribute_batch(&eager, &batch).is_ok());
        assert_eq!(manager.calls(), [Call::AttributeBatch(4)]);
    }
}
