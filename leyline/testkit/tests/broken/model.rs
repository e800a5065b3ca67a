//! Broken models: two linear layers, of which one may be in shadow training.

use std::cell::Cell;

use candle_core::{DType, Device, Tensor, Var};
use leyline::batch::Batch;
use leyline::error::ErrorType;
use leyline::id::{SeedId, TopologyRevision};
use leyline::layout::{Owner, ParameterLayout, SegmentSpec};
use leyline::model::{HostNumbers, Outputs, Parameter, Pass, Shadow, TrainableModel};
use leyline_testkit::Error;
use leyline_testkit::toy::{NUM_CLASSES, NUM_INPUTS, blobs};
use leyline_testkit::trainable_model::{self as rules, TrainableModelHarness};
use leyline_testkit::values;

use crate::fails;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    ListsParametersInReverse,
    LooksAtTheValues,
    LetsTheShadowReachTheHost,
    AcceptsUnknownOverrides,
    KeepsTheRevision,
    CountsItsPasses,
}

#[derive(Debug)]
struct Broken {
    fault: Fault,
    parameters: Vec<Parameter>,
    layout: ParameterLayout,
    num_passes: Cell<u8>,
}

const SEED: SeedId = SeedId(1);

impl Broken {
    fn new(fault: Fault) -> Self {
        let var = || Var::ones((NUM_CLASSES, NUM_INPUTS), DType::F32, &Device::Cpu).unwrap();
        let mut parameters: Vec<_> =
            ["host.weight", "seed-1.weight"].map(|name| Parameter { name: name.into(), var: var() }).into();
        if fault == Fault::ListsParametersInReverse {
            parameters.reverse();
        }
        Self { fault, parameters, layout: layout(TopologyRevision(0), true), num_passes: Cell::new(0) }
    }

    fn stop_shadow_training(&mut self) {
        let revision = TopologyRevision(u64::from(self.fault != Fault::KeepsTheRevision));
        self.layout = layout(revision, false);
    }
}

fn layout(revision: TopologyRevision, isolated: bool) -> ParameterLayout {
    let spec = |name: &str, owner, isolated| SegmentSpec {
        name: name.into(),
        shape: vec![NUM_CLASSES, NUM_INPUTS],
        owner,
        isolated,
    };
    let specs = vec![spec("host.weight", Owner::Host, false), spec("seed-1.weight", Owner::Seed(SEED), isolated)];
    ParameterLayout::new(revision, specs).unwrap()
}

impl ErrorType for Broken {
    type Error = Error;
}

impl TrainableModel for Broken {
    fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    fn layout(&self) -> &ParameterLayout {
        &self.layout
    }

    fn host_numbers(&self) -> HostNumbers {
        HostNumbers::Fixed
    }

    fn forward(&self, inputs: &Tensor, pass: Pass<'_>) -> Result<Outputs, Error> {
        if self.fault == Fault::LooksAtTheValues && values(inputs)?.iter().any(|value| value.is_nan()) {
            return Err(Error::Rejected("the inputs are not finite"));
        }
        if let Pass::Evaluate { overrides: [unknown, ..] } = pass
            && self.fault != Fault::AcceptsUnknownOverrides
        {
            return Err(Error::UnknownSeed { seed: unknown.seed });
        }
        let layer = |name: &str| {
            let parameter = self.parameters.iter().find(|parameter| parameter.name == name).unwrap();
            inputs.matmul(&parameter.var.t()?)
        };
        let mut logits = layer("host.weight")?;
        if self.fault == Fault::CountsItsPasses {
            self.num_passes.set(self.num_passes.get().wrapping_add(1));
            logits = (logits * f64::from(self.num_passes.get()))?;
        }
        let host = if self.fault == Fault::LetsTheShadowReachTheHost { logits.clone() } else { logits.detach() };
        let shadow = Shadow { seed: SEED, logits: (host + layer("seed-1.weight")?)? };
        let training = pass == Pass::Train && self.layout.segments()[1].spec.isolated;
        Ok(Outputs { logits, shadows: if training { vec![shadow] } else { Vec::new() } })
    }
}

fn broken(fault: Fault) -> impl Fn() -> TrainableModelHarness<Broken, Broken> {
    let batch: Batch = blobs(4, 1, &Device::Cpu).unwrap();
    move || {
        let mut harness = TrainableModelHarness::fixed(Broken::new(fault), batch.clone());
        harness.changes.push(Box::new(Broken::stop_shadow_training));
        harness
    }
}

#[test]
fn parameters_out_of_order_fail_tm_1() {
    let make = broken(Fault::ListsParametersInReverse);
    fails("TM-1", "the layout has", || rules::tm_1_parameters_and_layout_agree(&make));
}

#[test]
fn a_forward_pass_that_looks_at_values_fails_tm_2() {
    let make = broken(Fault::LooksAtTheValues);
    fails("TM-2", "forward over NaN", || rules::tm_2_forward_may_be_captured(&make));
}

#[test]
fn a_shadow_that_reaches_the_host_fails_tm_3() {
    let make = broken(Fault::LetsTheShadowReachTheHost);
    fails("TM-3", "the shadow of seed-1 reaches", || rules::tm_3_losses_reach_their_own_parameters_only(&make));
}

#[test]
fn an_override_of_an_unknown_seed_that_is_accepted_fails_tm_3() {
    let make = broken(Fault::AcceptsUnknownOverrides);
    fails("TM-3", "an override of an unknown seed", || rules::tm_3_losses_reach_their_own_parameters_only(&make));
}

#[test]
fn a_layout_that_changes_at_the_same_revision_fails_tm_4() {
    let make = broken(Fault::KeepsTheRevision);
    fails("TM-4", "the layout changed while", || rules::tm_4_the_layout_changes_with_its_revision(&make));
}

#[test]
fn a_number_of_the_host_that_moves_with_each_pass_fails_tm_5() {
    let rule = rules::tm_5_a_fixed_number_of_the_host_does_not_move;
    fails("TM-5", "the same batch gives other outputs after 1 more passes", || rule(&broken(Fault::CountsItsPasses)));
    rule(&broken(Fault::LooksAtTheValues));
}
