//! Broken durable components: a counter with one tensor.

use std::collections::BTreeMap;

use candle_core::{Device, Tensor};
use leyline::durable::{Durable, SavedState};
use leyline::error::ErrorType;
use leyline::region::Eager;
use leyline_testkit::durable::{self as rules, DurableHarness};
use leyline_testkit::{Error, values};

use crate::fails;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    ForgetsTheStep,
    WritesBeforeItChecks,
    AcceptsAnyShape,
    RestoresUnderACapture,
}

#[derive(Debug)]
struct Counting {
    fault: Fault,
    step: u64,
    sum: Tensor,
}

impl ErrorType for Counting {
    type Error = Error;
}

impl Durable for Counting {
    fn save(&self, eager: &Eager) -> Result<SavedState, Error> {
        eager.check()?;
        let tensors = BTreeMap::from([("sum".to_owned(), self.sum.copy()?)]);
        Ok(SavedState { json: format!("{{\"step\":{}}}", self.step), tensors })
    }

    fn restore(&mut self, eager: &mut Eager, saved: &SavedState) -> Result<(), Error> {
        if self.fault != Fault::RestoresUnderACapture {
            eager.check()?;
        }
        let damaged = |field: &str| Error::Saved { field: field.into() };
        let digits = saved.json.strip_prefix("{\"step\":").and_then(|rest| rest.strip_suffix('}'));
        let step = digits.and_then(|digits| digits.parse().ok()).ok_or_else(|| damaged("step"))?;
        if self.fault == Fault::WritesBeforeItChecks {
            self.step = step;
        }
        let sum = saved.tensors.get("sum").ok_or_else(|| damaged("sum"))?;
        if sum.shape() != self.sum.shape() && self.fault != Fault::AcceptsAnyShape {
            return Err(damaged("sum"));
        }
        if self.fault != Fault::ForgetsTheStep {
            self.step = step;
        }
        self.sum = sum.clone();
        Ok(())
    }
}

fn counting(fault: Fault) -> impl Fn() -> DurableHarness<Counting> {
    move || DurableHarness {
        component: Counting { fault, step: 0, sum: Tensor::new(&[0.0_f32], &Device::Cpu).unwrap() },
        advance: Box::new(|counting, n| {
            counting.step += n + 1;
            counting.sum = counting.sum.affine(1.0, 0.5).unwrap();
        }),
        observe: Box::new(|counting| format!("{} {:?}", counting.step, values(&counting.sum).unwrap())),
    }
}

mod without_fault {
    use super::{Fault, counting};

    leyline_testkit::durable_conformance!(|| counting(Fault::None)());
}

#[test]
fn a_field_that_does_not_come_back_fails_du_1() {
    let make = counting(Fault::ForgetsTheStep);
    fails("DU-1", "0 advances after restore", || rules::du_1_a_restored_component_continues_as_the_saved_one(&make));
}

#[test]
fn a_half_written_restore_fails_du_2() {
    let make = counting(Fault::WritesBeforeItChecks);
    fails("DU-2", "after a refused state with no `sum`", || rules::du_2_a_failed_restore_changes_nothing(&make));
}

#[test]
fn a_tensor_of_another_shape_that_is_accepted_fails_du_2() {
    let make = counting(Fault::AcceptsAnyShape);
    fails("DU-2", "another shape of `sum` was restored", || rules::du_2_a_failed_restore_changes_nothing(&make));
}

#[test]
fn a_restore_under_a_capture_fails_du_3() {
    let make = counting(Fault::RestoresUnderACapture);
    fails("DU-3", "restore under a capture was accepted", || {
        rules::du_3_neither_call_is_possible_while_recording(&make);
    });
}

#[test]
fn a_harness_that_moves_nothing_is_noticed() {
    let make = || DurableHarness { advance: Box::new(|_, _| {}), ..counting(Fault::None)() };
    fails("DU-1", "no advance of the harness", || rules::du_1_a_restored_component_continues_as_the_saved_one(&make));
}
