//! Broken tasks: the mean of squares, with one fault each.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use candle_core::{DType, Device, Result, Tensor};
use leyline::task::{About, Direction, Measure, Scale, Task};
use leyline_testkit::task::{self as rules, TaskHarness};

use crate::fails;

type Make = Box<dyn Fn() -> TaskHarness>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    DividesByTheBatch,
    DetachesTheMean,
    CountsItsCalls,
    MeasuresItsCalls,
    CountsAHitTwice,
    AveragesCounts,
    AcceptsAnyTargets,
}

#[derive(Debug)]
struct Squares {
    fault: Fault,
    calls: AtomicU32,
    measures: Vec<Measure>,
}

const ERROR: About = About {
    name: "error",
    title: "Error",
    formula: "mean of |output - target|",
    scale: Scale::Number,
    direction: Direction::LowerIsBetter,
};

impl Task for Squares {
    fn describe(&self) -> String {
        "squares".to_owned()
    }

    fn losses(&self, outputs: &Tensor, targets: &Tensor) -> Result<Tensor> {
        let losses = (outputs - targets)?.sqr()?.mean(1)?;
        match self.fault {
            Fault::DividesByTheBatch => losses.affine(1.0 / losses.dims1()? as f64, 0.0),
            Fault::CountsItsCalls => losses.affine(1.0, f64::from(self.calls.fetch_add(1, Ordering::Relaxed))),
            _ => Ok(losses),
        }
    }

    fn mean_loss(&self, outputs: &Tensor, targets: &Tensor) -> Result<Tensor> {
        let mean = self.losses(outputs, targets)?.mean_all()?;
        Ok(if self.fault == Fault::DetachesTheMean { mean.detach() } else { mean })
    }

    fn hits(&self, outputs: &Tensor, targets: &Tensor) -> Result<Option<Tensor>> {
        let hits = (outputs - targets)?.abs()?.le(1.0)?.to_dtype(DType::F32)?.mean(1)?;
        let times = if self.fault == Fault::CountsAHitTwice { 2.0 } else { 1.0 };
        Ok(Some(hits.affine(times, 0.0)?))
    }

    fn measures(&self) -> &[Measure] {
        &self.measures
    }

    fn check_targets(&self, targets: &Tensor) -> Result<()> {
        if targets.rank() == 2 || self.fault == Fault::AcceptsAnyTargets {
            return Ok(());
        }
        candle_core::bail!("expected targets (N, W)")
    }
}

fn squares(fault: Fault) -> impl Fn() -> TaskHarness {
    move || {
        let calls = AtomicU32::new(0);
        let counts = move |outputs: &Tensor, targets: &Tensor| -> Result<Tensor> {
            let off = (outputs - targets)?.abs()?;
            match fault {
                Fault::AveragesCounts => off.mean_keepdim(0),
                Fault::MeasuresItsCalls => off.affine(1.0, f64::from(calls.fetch_add(1, Ordering::Relaxed))),
                _ => Ok(off),
            }
        };
        let error = Measure::new(ERROR, counts, |sums, num_samples| sums.iter().sum::<f64>() / num_samples);
        let tensor = |rows: &[[f32; 2]; 3]| Tensor::new(rows, &Device::Cpu).unwrap();
        TaskHarness {
            task: Arc::new(Squares { fault, calls: AtomicU32::new(0), measures: vec![error] }),
            outputs: tensor(&[[0.5, 1.0], [3.0, -2.0], [0.0, 0.25]]),
            targets: tensor(&[[0.0, 1.5], [1.0, 1.0], [0.0, 0.5]]),
            refused: vec![(Tensor::new(&[1_u32], &Device::Cpu).unwrap(), "expected targets (N, W)")],
        }
    }
}

mod without_fault {
    use super::{Fault, squares};

    leyline_testkit::task_conformance!(|| squares(Fault::None)());
}

#[test]
fn each_fault_fails_its_rule() {
    for (fault, rule, complaint, run) in [
        (Fault::DividesByTheBatch, "TK-1", "and alone", rules::tk_1_the_loss_of_a_sample_is_its_own as fn(&Make)),
        (
            Fault::DetachesTheMean,
            "TK-2",
            "no gradient for the outputs",
            rules::tk_2_the_mean_is_that_of_the_losses_and_has_their_gradient,
        ),
        (Fault::CountsItsCalls, "TK-3", "other losses the second time", rules::tk_3_equal_arguments_give_equal_bits),
        (Fault::MeasuresItsCalls, "TK-3", "other counts of error", rules::tk_3_equal_arguments_give_equal_bits),
        (Fault::CountsAHitTwice, "TK-4", "not between 0 and 1", rules::tk_4_hits_are_parts_and_add_up),
        (Fault::AveragesCounts, "TK-5", "of its parts", rules::tk_5_counts_add_up),
        (Fault::AcceptsAnyTargets, "TK-6", "were accepted", rules::tk_6_targets_are_accepted_or_refused_before),
    ] {
        let make: Make = Box::new(squares(fault));
        fails(rule, complaint, || run(&make));
    }
}
