//! Rules TM-1 to TM-5 of [`leyline::model`] as functions, and the harness they run on.
//!
//! TM-2 is only partly testable without a device: the rule runs `forward` inside a region, and checks that names,
//! shapes and errors do not depend on the values of the inputs. A read of the device must be found by counting.

use std::collections::BTreeSet;
use std::fmt;

use candle_core::Tensor;
use candle_core::backprop::GradStore;
use leyline::batch::Batch;
use leyline::id::SeedId;
use leyline::layout::Owner;
use leyline::model::{AlphaOverride, HostNumbers, Outputs, Pass, TrainableModel};
use leyline::region::Eager;
use leyline::unit::Alpha;

use crate::host_read::bits;
use crate::rule::{must, succeed};

/// Changes something about the owner of a model.
pub type Change<O> = Box<dyn FnMut(&mut O)>;

/// A model inside whatever can change its topology. The rules hold before the first and after every change.
pub struct TrainableModelHarness<O, M> {
    /// The model, or the manager that owns it.
    pub owner: O,
    /// Where the model is.
    pub model: fn(&O) -> &M,
    /// A batch that the model accepts.
    pub batch: Batch,
    /// Changes to carry out in turn, for example: germinate and train a seed, blend it, cull it. May be empty.
    pub changes: Vec<Change<O>>,
}

impl<M: TrainableModel> TrainableModelHarness<M, M> {
    /// A model whose topology nothing changes.
    pub fn fixed(model: M, batch: Batch) -> Self {
        Self { owner: model, model: |model| model, batch, changes: Vec::new() }
    }
}

impl<O: fmt::Debug, M> fmt::Debug for TrainableModelHarness<O, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TrainableModelHarness").field("owner", &self.owner).finish_non_exhaustive()
    }
}

/// One `#[test]` per rule TM-1 to TM-5. The argument is a function or closure without arguments that builds a fresh
/// [`TrainableModelHarness`](crate::trainable_model::TrainableModelHarness).
#[macro_export]
macro_rules! trainable_model_conformance {
    ($make:expr) => {
        $crate::__one_test_per_rule!(
            trainable_model,
            $make,
            tm_1_parameters_and_layout_agree,
            tm_2_forward_may_be_captured,
            tm_3_losses_reach_their_own_parameters_only,
            tm_4_the_layout_changes_with_its_revision,
            tm_5_a_fixed_number_of_the_host_does_not_move,
        );
    };
}

/// TM-1: parameters and layout list the same names and shapes in the same order, ordered by name.
pub fn tm_1_parameters_and_layout_agree<O, M: TrainableModel>(make: &impl Fn() -> TrainableModelHarness<O, M>) {
    const RULE: &str = "TM-1";
    after_every_change(make(), |model, _| {
        let (parameters, segments) = (model.parameters(), model.layout().segments());
        let names: Vec<_> = parameters.iter().map(|parameter| parameter.name.as_str()).collect();
        let laid_out: Vec<_> = segments.iter().map(|segment| segment.spec.name.as_str()).collect();
        must!(RULE, names == laid_out, "parameters are {names:?}, the layout has {laid_out:?}");
        must!(RULE, names.is_sorted_by(|a, b| a < b), "the names are not in order: {names:?}");
        for (parameter, segment) in parameters.iter().zip(segments) {
            let (real, planned) = (parameter.var.dims(), segment.spec.shape.as_slice());
            must!(RULE, real == planned, "`{}` has shape {real:?}, the layout says {planned:?}", parameter.name);
        }
    });
}

/// TM-2: `forward` works inside a region, and nothing but values depends on the values of the inputs.
pub fn tm_2_forward_may_be_captured<O, M: TrainableModel>(make: &impl Fn() -> TrainableModelHarness<O, M>) {
    const RULE: &str = "TM-2";
    after_every_change(make(), |model, batch| {
        let mut eager = succeed(RULE, "acquiring this thread's token", Eager::acquire());
        for pass in [Pass::Train, Pass::Evaluate { overrides: &[] }] {
            let mut shape = |what: &str, inputs: candle_core::Result<Tensor>| {
                let inputs = inputs.expect("arithmetic on the inputs of the harness");
                let outputs = eager.record(|_| model.forward(&inputs, pass));
                shape_of(&succeed(RULE, &format!("forward over {what} inside a region"), outputs))
            };
            let expected = shape("the batch", Ok(batch.inputs.clone()));
            for (what, inputs) in [
                ("zeros", batch.inputs.affine(0.0, 0.0)),
                ("large numbers", batch.inputs.affine(1e6, 0.0)),
                ("NaN", batch.inputs.affine(0.0, f64::NAN)),
            ] {
                let found = shape(what, inputs);
                must!(RULE, found == expected, "{what} as inputs give outputs {found:?}, the batch gave {expected:?}");
            }
        }
    });
}

/// TM-3: the loss of a shadow reaches the isolated parameters of its seed, the loss of the logits all others, and
/// neither reaches more; evaluation has no shadows and refuses unknown seeds.
pub fn tm_3_losses_reach_their_own_parameters_only<O, M: TrainableModel>(
    make: &impl Fn() -> TrainableModelHarness<O, M>,
) {
    const RULE: &str = "TM-3";
    after_every_change(make(), |model, batch| {
        let segments = model.layout().segments();
        let named = |wanted: &dyn Fn(Owner, bool) -> bool| -> BTreeSet<&str> {
            let chosen = segments.iter().filter(|segment| wanted(segment.spec.owner, segment.spec.isolated));
            chosen.map(|segment| segment.spec.name.as_str()).collect()
        };
        let outputs = succeed(RULE, "forward", model.forward(&batch.inputs, Pass::Train));
        let reached = reached(RULE, model, &outputs.logits);
        let expected = named(&|_, isolated| !isolated);
        must!(RULE, reached == expected, "the loss of the logits reaches {reached:?}, expected {expected:?}");

        let shadows: Vec<SeedId> = outputs.shadows.iter().map(|shadow| shadow.seed).collect();
        must!(RULE, shadows.is_sorted_by(|a, b| a < b), "the shadows are not in order: {shadows:?}");
        let isolated: BTreeSet<Owner> =
            segments.iter().filter(|segment| segment.spec.isolated).map(|segment| segment.spec.owner).collect();
        let owners: BTreeSet<Owner> = shadows.iter().map(|seed| Owner::Seed(*seed)).collect();
        must!(RULE, isolated == owners, "isolated parameters belong to {isolated:?}, shadows to {owners:?}");
        for shadow in &outputs.shadows {
            let (of_shadow, of_network) = (shadow.logits.dims(), outputs.logits.dims());
            let is_part = of_shadow[1..] == of_network[1..] && (1..=of_network[0]).contains(&of_shadow[0]);
            must!(RULE, is_part, "the shadow of {} has another shape than logits of the first samples", shadow.seed);
            let reached = self::reached(RULE, model, &shadow.logits);
            let expected = named(&|owner, isolated| isolated && owner == Owner::Seed(shadow.seed));
            let seed = shadow.seed;
            must!(RULE, reached == expected, "the shadow of {seed} reaches {reached:?}, expected {expected:?}");
        }

        let evaluated = model.forward(&batch.inputs, Pass::Evaluate { overrides: &[] });
        must!(RULE, succeed(RULE, "evaluation", evaluated).shadows.is_empty(), "evaluation has shadows");
        let overrides = [AlphaOverride { seed: SeedId(900_000), alpha: Alpha::ONE }];
        let outcome = model.forward(&batch.inputs, Pass::Evaluate { overrides: &overrides });
        must!(RULE, outcome.is_err(), "an override of an unknown seed was accepted");
    });
}

/// TM-4: another layout has another revision; a forward pass changes neither.
pub fn tm_4_the_layout_changes_with_its_revision<O, M: TrainableModel>(
    make: &impl Fn() -> TrainableModelHarness<O, M>,
) {
    const RULE: &str = "TM-4";
    let mut last = None;
    after_every_change(make(), |model, batch| {
        let now = model.layout().clone();
        succeed(RULE, "forward", model.forward(&batch.inputs, Pass::Train));
        must!(RULE, *model.layout() == now, "a forward pass changed the layout");
        if let Some(last) = last.replace(now.clone()) {
            let same = last.segments() == now.segments();
            let (from, to) = (last.revision(), now.revision());
            must!(RULE, same || to > from, "the layout changed while its revision went from {from} to {to}");
        }
    });
}

/// TM-5: where the model promises it, passes over the same batch give the same bits, whatever passes lie between them.
///
/// A model that draws on the device moves its counter with each pass, and is to be checked without drawing.
pub fn tm_5_a_fixed_number_of_the_host_does_not_move<O, M: TrainableModel>(
    make: &impl Fn() -> TrainableModelHarness<O, M>,
) {
    const RULE: &str = "TM-5";
    after_every_change(make(), |model, batch| {
        if model.host_numbers() == HostNumbers::MayMove {
            return;
        }
        let passes = [Pass::Train, Pass::Evaluate { overrides: &[] }];
        let outputs = |pass| {
            let Outputs { logits, shadows } = succeed(RULE, "forward", model.forward(&batch.inputs, pass));
            let all = std::iter::once(logits).chain(shadows.into_iter().map(|shadow| shadow.logits));
            all.map(|logits| bits(&logits).expect("logits can be read")).collect::<Vec<_>>()
        };
        let first = passes.map(outputs);
        let one = batch.inputs.narrow(0, 0, 1).expect("a batch has a sample");
        for (turn, pass) in [passes[1], passes[0], passes[0], passes[1]].into_iter().enumerate() {
            succeed(RULE, "forward over one sample", model.forward(&one, pass));
            let again = passes.map(outputs);
            must!(RULE, again == first, "the same batch gives other outputs after {} more passes", 3 * turn + 1);
        }
    });
}

fn after_every_change<O, M>(mut harness: TrainableModelHarness<O, M>, mut check: impl FnMut(&M, &Batch)) {
    check((harness.model)(&harness.owner), &harness.batch);
    for change in &mut harness.changes {
        change(&mut harness.owner);
        check((harness.model)(&harness.owner), &harness.batch);
    }
}

fn shape_of(outputs: &Outputs) -> (Vec<usize>, Vec<(SeedId, Vec<usize>)>) {
    let shadows = outputs.shadows.iter().map(|shadow| (shadow.seed, shadow.logits.dims().to_vec()));
    (outputs.logits.dims().to_vec(), shadows.collect())
}

/// Names of the parameters that get a gradient from a loss of `logits`. The mean square stands for any loss.
fn reached<'m, M: TrainableModel>(rule: &str, model: &'m M, logits: &Tensor) -> BTreeSet<&'m str> {
    let backward = || -> candle_core::Result<GradStore> { logits.sqr()?.mean_all()?.backward() };
    let gradients = match backward() {
        Ok(gradients) => gradients,
        Err(error) => panic!("{rule}: the backward pass failed: {error}"),
    };
    let with_gradient = model.parameters().iter().filter(|parameter| gradients.get(&parameter.var).is_some());
    with_gradient.map(|parameter| parameter.name.as_str()).collect()
}
