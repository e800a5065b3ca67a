//! Broken policies: a greedy policy that is right, and one fault at a time.

use std::sync::atomic::{AtomicU64, Ordering};

use leyline::command::{AlphaCurve, AlphaRamp, Command, KeyId, Operation, Order, SignedCommand};
use leyline::durable::{Durable, SavedState};
use leyline::error::ErrorType;
use leyline::id::{RunId, SeedId};
use leyline::policy::{Decision, Policy};
use leyline::region::Eager;
use leyline::seed::{SeedStage, SeedState};
use leyline::state::SystemState;
use leyline::unit::Alpha;
use leyline_testkit::Error;
use leyline_testkit::policy::{self as rules, PolicyHarness};

use crate::fails;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    RemembersOtherRuns,
    NamesSeedsOfItsOwn,
    TakesAbsentForGood,
    RepeatsSequenceNumbers,
    SignsAnotherCommand,
    SignsAnotherReason,
    SignsAnotherCoverage,
    SignsEverySecond,
    DoesNothing,
}

#[derive(Debug)]
struct Greedy {
    fault: Fault,
    sequence: u64,
}

/// Counts policies of the faulty kind, as a clock or an ambient generator would.
static AMBIENT: AtomicU64 = AtomicU64::new(0);

impl Greedy {
    fn helps(&self, state: &SeedState) -> bool {
        match state.counterfactual {
            Some(measured) => measured.loss_gain > 0.0,
            None => self.fault == Fault::TakesAbsentForGood,
        }
    }

    fn operation(&self, seed: &SeedState) -> Option<Operation> {
        let seed_id = seed.seed_id;
        let ramp = AlphaRamp { target: Alpha::ONE, steps: 8, curve: AlphaCurve::Linear };
        match seed.stage {
            SeedStage::Germinated => Some(Operation::StartTraining { seed: seed_id }),
            SeedStage::Training if self.helps(seed) => Some(Operation::StartBlending { seed: seed_id, ramp }),
            SeedStage::Blending if seed.alpha.is_one() => Some(Operation::Hold { seed: seed_id }),
            SeedStage::Holding if self.helps(seed) => Some(Operation::Fossilize { seed: seed_id }),
            SeedStage::Holding if seed.counterfactual.is_some() => Some(Operation::Cull { seed: seed_id }),
            _ => None,
        }
    }
}

impl ErrorType for Greedy {
    type Error = Error;
}

impl Durable for Greedy {
    fn save(&self, _: &Eager) -> Result<SavedState, Error> {
        Ok(SavedState { json: self.sequence.to_string(), ..SavedState::default() })
    }

    fn restore(&mut self, _: &mut Eager, saved: &SavedState) -> Result<(), Error> {
        self.sequence = saved.json.parse().map_err(|_| Error::Saved { field: "sequence".into() })?;
        Ok(())
    }
}

impl Policy for Greedy {
    fn name(&self) -> &'static str {
        "greedy"
    }

    fn decide(&mut self, state: &SystemState) -> Result<Decision, Error> {
        let free = state.slots.iter().filter(|slot| slot.occupant.is_none() && slot.num_fossilized == 0);
        let mut operations: Vec<_> = free
            .map(|slot| Operation::germinate(slot.slot.clone(), slot.offers[0].blueprint.clone()))
            .chain(state.seeds.iter().filter_map(|seed| self.operation(seed)))
            .collect();
        match self.fault {
            Fault::DoesNothing => operations.clear(),
            Fault::NamesSeedsOfItsOwn => operations.push(Operation::Hold { seed: SeedId(77) }),
            Fault::RemembersOtherRuns if AMBIENT.fetch_add(1, Ordering::SeqCst) > 2 => operations.clear(),
            _ => {}
        }
        let mut decision = Decision::default();
        for operation in operations {
            self.sequence += u64::from(self.fault != Fault::RepeatsSequenceNumbers);
            let mut command = Command::new(state.run_id.clone(), self.sequence, 0, operation.clone(), String::new());
            match self.fault {
                Fault::SignsAnotherCommand => command.sequence += 1,
                Fault::SignsAnotherReason => "another".clone_into(&mut command.reason),
                Fault::SignsAnotherCoverage => command.input_coverage = Some(0.5),
                _ => {}
            }
            let signed = Some(SignedCommand { key_id: KeyId::default(), bytes: command.to_bytes(), tag: [0; 32] });
            let signed = signed.filter(|_| self.fault != Fault::SignsEverySecond || self.sequence.is_multiple_of(2));
            decision.orders.push(Order { sequence: Some(self.sequence), signed, ..operation.into() });
        }
        Ok(decision)
    }
}

fn greedy(fault: Fault) -> impl Fn() -> PolicyHarness<Greedy> {
    move || PolicyHarness::new(Greedy { fault, sequence: 0 }, RunId::new("broken").unwrap())
}

mod without_fault {
    use super::{Fault, greedy};

    leyline_testkit::policy_conformance!(|| greedy(Fault::None)());
}

#[test]
fn a_policy_that_depends_on_more_than_its_states_fails_po_1() {
    let make = greedy(Fault::RemembersOtherRuns);
    fails("PO-1", "boundary", || rules::po_1_equal_states_give_equal_operations(&make));
}

#[test]
fn a_seed_that_was_not_shown_fails_po_2() {
    let make = greedy(Fault::NamesSeedsOfItsOwn);
    fails("PO-2", "no such seed", || rules::po_2_a_decision_names_only_what_it_was_shown(&make));
}

#[test]
fn a_missing_measurement_that_counts_as_good_fails_po_3() {
    let make = greedy(Fault::TakesAbsentForGood);
    fails("PO-3", "is absent, not when it is bad", || rules::po_3_an_absent_measurement_is_not_a_good_one(&make));
}

#[test]
fn a_policy_that_never_acts_cannot_pass_po_3_and_po_4_unnoticed() {
    let make = greedy(Fault::DoesNothing);
    fails("PO-3", "no seed is promoted", || rules::po_3_an_absent_measurement_is_not_a_good_one(&make));
    fails("PO-4", "no order was given", || rules::po_4_sequence_numbers_grow(&make));
}

#[test]
fn a_repeated_sequence_number_fails_po_4() {
    let make = greedy(Fault::RepeatsSequenceNumbers);
    fails("PO-4", "sequence number 0 follows", || rules::po_4_sequence_numbers_grow(&make));
}

#[test]
fn a_signature_of_another_command_fails_po_4() {
    for fault in [Fault::SignsAnotherCommand, Fault::SignsAnotherReason, Fault::SignsAnotherCoverage] {
        let make = greedy(fault);
        fails("PO-4", "are another order's", || rules::po_4_sequence_numbers_grow(&make));
    }
}

#[test]
fn a_run_of_which_some_orders_are_signed_fails_po_4() {
    let make = greedy(Fault::SignsEverySecond);
    fails("PO-4", "only some orders are signed", || rules::po_4_sequence_numbers_grow(&make));
}
