//! Broken seed managers.

use std::sync::Arc;

use candle_core::{DType, Device, Var};
use leyline::batch::Batch;
use leyline::command::{Command, KeyId, Operation, Order, SignedCommand};
use leyline::durable::{Durable, SavedState};
use leyline::error::ErrorType;
use leyline::id::{EpochIndex, RunId, SeedId, StepIndex};
use leyline::model::{Pass, TrainableModel};
use leyline::network::Buffer;
use leyline::region::Eager;
use leyline::seed::{
    Applied, Attribution, AttributionMode, Confirmation, Confirmed, Evidence, SeedManager, SeedStage, SeedState,
    SlotState, Transition,
};
use leyline::task::Task;
use leyline_testkit::Error;
use leyline_testkit::fake_seed_manager::FakeSeedManager;
use leyline_testkit::seed_manager::{self as rules, SeedManagerHarness};
use leyline_testkit::toy::{ToyModel, blobs};

use crate::fails;

/// What is wrong with the manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    AttributesUnderACapture,
    ExportsInReverse,
    ForgetsCulledSeeds,
    KeepsAHalfAppliedCommand,
    BlendsForEver,
    TrainsAtTheEndOfSteps,
    NamesASeedThatIsGone,
    SumsAboveOne,
    HidesATopologyChange,
    ReportsAnUnknownSeedAsIllegal,
    CallsAnIllegalMoveRejected,
    /// No fault: orders are verified, as for the three below.
    Verifies,
    ParsesBeforeVerifying,
    TrustsWhatIsNotSigned,
    AcceptsARepeatedNumber,
    OverlooksSignatures,
    DropsEvidence,
    KeepsHalfOfTheEvidence,
    TakesAnEpochTwice,
    LetsTheClockOfAPausedSeedRun,
    PausesTwice,
    ServesAnyToken,
    KeepsTheFirstTask,
    KeepsWhatItRemoved,
    SavesNoStatistics,
    ConfirmsAgain,
}

#[derive(Debug)]
struct Broken {
    inner: FakeSeedManager,
    fault: Fault,
    culled: Option<SeedId>,
    /// Of the last order that was verified.
    sequence: Option<u64>,
    /// What it was told first.
    task: Option<Arc<dyn Task>>,
    statistics: Vec<Buffer>,
    /// What was recorded last.
    confirmation: Option<Confirmed>,
}

/// The tag under the only key: a checksum, no protection at all.
fn tag(key_id: KeyId, bytes: &[u8]) -> [u8; 32] {
    let mut tag = [0; 32];
    for (lane, out) in (1_u64..).zip(tag.chunks_exact_mut(8)) {
        let start = 0xcbf2_9ce4_8422_2325_u64 ^ lane;
        let message = SignedCommand::signed_message(key_id, bytes);
        let hash = message.iter().fold(start, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
        out.copy_from_slice(&hash.to_le_bytes());
    }
    tag
}

/// What [`Broken`] verifies where it does.
fn sign(order: Order) -> Order {
    let sequence = order.sequence.unwrap_or_default();
    let command = Command::new(RunId::new("broken").unwrap(), sequence, 0, order.operation.clone(), String::new());
    let (key_id, bytes) = (KeyId::default(), command.to_bytes());
    let tag = tag(key_id, &bytes);
    Order { signed: Some(SignedCommand { key_id, bytes, tag }), ..order }
}

impl Broken {
    /// The operation that was signed.
    fn verified(&mut self, order: &Order) -> Result<Operation, Error> {
        let signed = order.signed.as_ref().ok_or(Error::Rejected("the order is not signed"))?;
        let parse = || Command::from_bytes(&signed.bytes).map_err(|_| Error::Saved { field: "command".into() });
        if self.fault == Fault::ParsesBeforeVerifying {
            parse()?;
        }
        if tag(signed.key_id, &signed.bytes) != signed.tag {
            return Err(Error::Rejected("the tag does not verify"));
        }
        let command = parse()?;
        let is_new = Some(command.sequence) > self.sequence || self.fault == Fault::AcceptsARepeatedNumber;
        self.sequence = is_new.then_some(command.sequence).or(self.sequence);
        let trusted = self.fault == Fault::TrustsWhatIsNotSigned;
        let operation = if trusted { order.operation.clone() } else { command.operation };
        is_new.then_some(operation).ok_or(Error::Rejected("the number was used before"))
    }
}

impl ErrorType for Broken {
    type Error = Error;
}

impl Durable for Broken {
    fn save(&self, eager: &Eager) -> Result<SavedState, Error> {
        self.inner.save(eager)
    }

    fn restore(&mut self, eager: &mut Eager, saved: &SavedState) -> Result<(), Error> {
        self.inner.restore(eager, saved)
    }
}

impl SeedManager for Broken {
    type Model = ToyModel;

    fn model(&self) -> &ToyModel {
        self.inner.model()
    }

    fn attribute_batch(&mut self, eager: &Eager, batch: &Batch) -> Result<Attribution, Error> {
        match (self.fault, self.culled) {
            (Fault::AttributesUnderACapture, _) => Ok(Attribution::host_only()),
            (Fault::ServesAnyToken, _) => Ok(eager.check().map(|()| Attribution::host_only())?),
            (Fault::NamesASeedThatIsGone, Some(seed)) => {
                Ok(Attribution::new(AttributionMode::Stage, vec![(seed, 0.5)]).unwrap())
            }
            (Fault::SumsAboveOne, _) => Ok(Attribution::new(AttributionMode::Stage, vec![(SeedId(1), 1.2)])?),
            (Fault::KeepsTheFirstTask, _) => {
                let outputs = self.inner.model().forward(&batch.inputs, Pass::Train)?;
                self.task.iter().try_for_each(|task| task.losses(&outputs.logits, &batch.targets).map(drop))?;
                self.inner.attribute_batch(eager, batch)
            }
            _ => self.inner.attribute_batch(eager, batch),
        }
    }

    fn train_for(&mut self, eager: &Eager, task: &Arc<dyn Task>) -> Result<(), Error> {
        self.task.get_or_insert_with(|| Arc::clone(task));
        self.inner.train_for(eager, task)
    }

    fn inspect_batch(&mut self, eager: &Eager, batch: &Batch) -> Result<(), Error> {
        self.inner.inspect_batch(eager, batch)
    }

    fn export_seed_states(&self, eager: &Eager) -> Result<Vec<SeedState>, Error> {
        let mut states = self.inner.export_seed_states(eager)?;
        match self.fault {
            Fault::ExportsInReverse => states.reverse(),
            Fault::ForgetsCulledSeeds => states.retain(|state| state.stage != SeedStage::Pruned),
            Fault::ConfirmsAgain => states.iter_mut().for_each(|state| state.confirmation = self.confirmation),
            Fault::LetsTheClockOfAPausedSeedRun => {
                let paused = states.iter_mut().filter(|state| state.paused);
                paused.for_each(|state| state.epochs_in_stage = state.age_epochs);
            }
            _ => {}
        }
        Ok(states)
    }

    fn export_slot_states(&self, eager: &Eager) -> Result<Vec<SlotState>, Error> {
        self.inner.export_slot_states(eager)
    }

    fn apply(&mut self, eager: &mut Eager, order: &Order) -> Result<Applied, Error> {
        let mut operation = order.operation.clone();
        let verifying = [
            Fault::Verifies,
            Fault::ParsesBeforeVerifying,
            Fault::TrustsWhatIsNotSigned,
            Fault::AcceptsARepeatedNumber,
        ];
        if verifying.contains(&self.fault) {
            self.inner.export_seed_states(eager)?;
            operation = self.verified(order)?;
        }
        let mut outcome = self.inner.apply(eager, &operation.clone().into());
        match (&mut outcome, self.fault) {
            (Ok(applied), Fault::HidesATopologyChange) => applied.topology_changed = false,
            (Err(error), Fault::ReportsAnUnknownSeedAsIllegal) => {
                if let Error::UnknownSeed { seed } = *error {
                    *error = Error::IllegalTransition { seed, stage: SeedStage::Dormant, operation: "any" };
                }
            }
            (Err(error @ Error::IllegalTransition { .. }), Fault::CallsAnIllegalMoveRejected) => {
                *error = Error::Rejected("not now");
            }
            (Err(Error::IllegalTransition { .. }), Fault::KeepsAHalfAppliedCommand) => {
                self.inner.finish_step(eager, StepIndex(0))?;
                self.inner.finish_epoch(eager, EpochIndex(0))?;
            }
            _ => {}
        }
        let paused = matches!(operation, Operation::Pause { .. });
        if self.fault == Fault::PausesTwice && paused && matches!(outcome, Err(Error::Rejected(_))) {
            outcome = Ok(Applied { seed: SeedId(1), transitions: Vec::new(), topology_changed: false });
        }
        if let Operation::Cull { seed } = operation {
            self.culled = Some(seed);
        }
        outcome
    }

    fn record_evidence(&mut self, eager: &Eager, evidence: &[Evidence]) -> Result<(), Error> {
        match self.fault {
            Fault::DropsEvidence => self.inner.record_evidence(eager, &evidence[..0]).and_then(|()| {
                let known = self.inner.export_seed_states(eager)?;
                let stranger = evidence.iter().find(|item| known.iter().all(|state| state.seed_id != item.seed));
                stranger.map_or(Ok(()), |item| Err(Error::UnknownSeed { seed: item.seed }))
            }),
            Fault::KeepsHalfOfTheEvidence => {
                evidence.iter().try_for_each(|item| self.inner.record_evidence(eager, std::slice::from_ref(item)))
            }
            Fault::TakesAnEpochTwice => {
                let known = self.inner.export_seed_states(eager)?;
                let is_known = |item: &Evidence| {
                    known.iter().any(|s| s.seed_id == item.seed && s.counterfactual_epoch == Some(item.epoch))
                };
                let taken = |item: &Evidence| {
                    let epoch = if is_known(item) { item.epoch.next() } else { item.epoch };
                    Evidence { epoch, ..*item }
                };
                self.inner.record_evidence(eager, &evidence.iter().map(taken).collect::<Vec<_>>())
            }
            _ => self.inner.record_evidence(eager, evidence),
        }
    }

    fn record_confirmation(&mut self, eager: &Eager, seed: SeedId, measured: &Confirmation) -> Result<(), Error> {
        self.inner.record_confirmation(eager, seed, measured)?;
        self.confirmation = Some(Confirmed { measured: *measured, level: 0.05, passed: true });
        Ok(())
    }

    fn remove_seed(&mut self, eager: &mut Eager, seed: SeedId, reason: &str) -> Result<bool, Error> {
        if self.fault == Fault::KeepsWhatItRemoved { Ok(true) } else { self.inner.remove_seed(eager, seed, reason) }
    }

    fn statistics(&self) -> &[Buffer] {
        &self.statistics
    }

    fn finish_step(&mut self, eager: &mut Eager, step: StepIndex) -> Result<(), Error> {
        if self.fault == Fault::BlendsForEver {
            return self.inner.export_seed_states(eager).map(drop);
        }
        if self.fault == Fault::TrainsAtTheEndOfSteps {
            let var = &self.inner.model().parameters()[0].var;
            var.set(&(var.as_tensor() + 1.0).unwrap()).unwrap();
        }
        self.inner.finish_step(eager, step)
    }

    fn finish_epoch(&mut self, eager: &mut Eager, epoch: EpochIndex) -> Result<Vec<Transition>, Error> {
        self.inner.finish_epoch(eager, epoch)
    }
}

fn broken(fault: Fault) -> impl Fn() -> SeedManagerHarness<Broken> {
    move || {
        let inner = FakeSeedManager::new(&Device::Cpu).unwrap();
        let statistics = match fault {
            Fault::SavesNoStatistics => vec![("mean".to_owned(), Var::zeros(2, DType::F32, &Device::Cpu).unwrap())],
            _ => Vec::new(),
        };
        let manager = Broken { inner, fault, culled: None, sequence: None, task: None, statistics, confirmation: None };
        SeedManagerHarness::new(manager, blobs(4, 1, &Device::Cpu).unwrap())
    }
}

#[track_caller]
fn fails_sm_8(fault: Fault, complaint: &str) {
    let make = || broken(fault)().signing(sign);
    fails("SM-8", complaint, || rules::sm_8_a_forged_order_is_rejected_unread(&make));
}

#[test]
fn a_method_that_works_under_a_capture_fails_sm_1() {
    let make = broken(Fault::AttributesUnderACapture);
    fails("SM-1", "attribute_batch under a capture was accepted", || {
        rules::sm_1_every_method_checks_the_region_first(&make);
    });
}

#[test]
fn a_method_that_works_for_a_thread_started_inside_a_region_fails_sm_11() {
    let make = broken(Fault::ServesAnyToken);
    fails("SM-11", "attribute_batch on a thread started inside the region was accepted", || {
        rules::sm_11_a_thread_started_inside_a_region_is_refused(&make);
    });
}

#[test]
fn a_task_that_is_kept_when_another_is_told_fails_sm_12() {
    let make = broken(Fault::KeepsTheFirstTask);
    fails("SM-12", "the task that was told first was used", || {
        rules::sm_12_losses_are_those_of_the_task_told_last(&make);
    });
}

#[test]
fn a_statistic_that_is_not_saved_fails_sm_14() {
    let make = broken(Fault::SavesNoStatistics);
    fails("SM-14", "`mean` is a statistic, and is not saved", || {
        rules::sm_14_statistics_are_saved_under_their_names(&make);
    });
}

#[test]
fn a_seed_that_was_removed_and_is_still_there_fails_sm_13() {
    let make = broken(Fault::KeepsWhatItRemoved);
    fails("SM-13", "seed-1 was removed, and its parameters are in the layout", || {
        rules::sm_13_a_seed_that_was_removed_is_out_of_the_network(&make);
    });
}

#[test]
fn a_gain_that_is_confirmed_again_fails_sm_15() {
    let make = broken(Fault::ConfirmsAgain);
    fails("SM-15", "the second confirmation of a seed took the place of the first", || {
        rules::sm_15_a_gain_is_confirmed_once(&make);
    });
}

#[test]
fn states_out_of_order_fail_sm_2() {
    let make = broken(Fault::ExportsInReverse);
    fails("SM-2", "seed-2 is listed before seed-1", || rules::sm_2_states_are_ordered_and_complete(&make));
}

#[test]
fn a_seed_that_disappears_when_culled_fails_sm_2() {
    let make = broken(Fault::ForgetsCulledSeeds);
    fails("SM-2", "occupies a slot: true", || rules::sm_2_states_are_ordered_and_complete(&make));
}

#[test]
fn a_refused_command_that_leaves_traces_fails_sm_3() {
    let make = broken(Fault::KeepsAHalfAppliedCommand);
    fails("SM-3", "changed seed states", || rules::sm_3_a_refusal_changes_nothing(&make));
}

#[test]
fn a_blend_that_does_not_end_fails_sm_3() {
    let make = broken(Fault::BlendsForEver);
    fails("SM-3", "after all steps of a blend to 1", || rules::sm_3_a_refusal_changes_nothing(&make));
}

#[test]
fn a_change_at_the_end_of_a_step_that_no_seed_says_fails_sm_3() {
    let make = broken(Fault::TrainsAtTheEndOfSteps);
    fails("SM-3", "the end of a step without a ramp changed parameters, outputs", || {
        rules::sm_3_a_refusal_changes_nothing(&make);
    });
}

#[test]
fn a_weight_for_a_seed_that_is_gone_fails_sm_4() {
    let make = broken(Fault::NamesASeedThatIsGone);
    fails("SM-4", "seed-1 has a weight and is pruned", || rules::sm_4_attribution_names_only_seeds_that_act(&make));
}

#[test]
fn weights_that_sum_to_1_2_fail_sm_4() {
    let make = broken(Fault::SumsAboveOne);
    fails("SM-4", "the weights sum to 1.2", || rules::sm_4_attribution_names_only_seeds_that_act(&make));
}

#[test]
fn a_topology_change_that_is_not_reported_fails_sm_5() {
    let make = broken(Fault::HidesATopologyChange);
    fails("SM-5", "topology_changed = false", || rules::sm_5_the_revision_grows_with_the_computation(&make));
}

#[test]
fn another_kind_for_an_unknown_seed_fails_sm_6() {
    let make = broken(Fault::ReportsAnUnknownSeedAsIllegal);
    fails("SM-6", "expected UnknownSeed", || rules::sm_6_an_unknown_seed_is_refused(&make));
}

#[test]
fn another_kind_for_an_illegal_move_fails_sm_7() {
    let make = broken(Fault::CallsAnIllegalMoveRejected);
    fails("SM-7", "expected IllegalTransition", || rules::sm_7_an_illegal_move_is_refused(&make));
}

#[test]
fn parsing_before_verifying_fails_sm_8() {
    fails_sm_8(Fault::ParsesBeforeVerifying, "expected Rejected");
}

#[test]
fn a_sequence_number_that_is_accepted_twice_fails_sm_8() {
    fails_sm_8(Fault::AcceptsARepeatedNumber, "a number that was used before");
}

#[test]
fn an_operation_that_nobody_signed_fails_sm_8() {
    fails_sm_8(Fault::TrustsWhatIsNotSigned, "counted for what nobody had signed");
}

#[test]
fn a_signed_order_that_nobody_verified_fails_sm_8() {
    let make = broken(Fault::OverlooksSignatures);
    fails("SM-8", "that nobody verified was accepted", || rules::sm_8_a_forged_order_is_rejected_unread(&make));
}

mod that_verifies {
    use super::{Fault, broken, sign};

    leyline_testkit::seed_manager_conformance!(|| broken(Fault::Verifies)().signing(sign));
}

#[test]
fn evidence_that_is_not_kept_fails_sm_9() {
    let make = broken(Fault::DropsEvidence);
    fails("SM-9", "is not the one exported", || rules::sm_9_evidence_is_kept_for_all_or_for_none(&make));
}

#[test]
fn evidence_kept_beside_a_refusal_fails_sm_9() {
    let make = broken(Fault::KeepsHalfOfTheEvidence);
    fails("SM-9", "refused evidence changed seed states", || rules::sm_9_evidence_is_kept_for_all_or_for_none(&make));
}

#[test]
fn evidence_of_one_epoch_that_counts_twice_fails_sm_9() {
    let make = broken(Fault::TakesAnEpochTwice);
    let complaint = "evidence of an epoch that was recorded already changed seed states";
    fails("SM-9", complaint, || rules::sm_9_evidence_is_kept_for_all_or_for_none(&make));
}

#[test]
fn a_paused_seed_whose_clock_runs_fails_sm_10() {
    let make = broken(Fault::LetsTheClockOfAPausedSeedRun);
    fails("SM-10", "the clock of a paused seed went on", || {
        rules::sm_10_a_paused_seed_takes_no_part_and_comes_back(&make);
    });
}

#[test]
fn a_seed_that_is_paused_twice_fails_sm_10() {
    let make = broken(Fault::PausesTwice);
    fails("SM-10", "a second pause was accepted", || rules::sm_10_a_paused_seed_takes_no_part_and_comes_back(&make));
}
