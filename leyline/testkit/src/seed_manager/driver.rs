//! Drives a seed manager through the life of a seed, and compares what can be seen of it before and after.

use candle_core::Result;
use leyline::command::{AlphaCurve, AlphaRamp, Operation, Order};
use leyline::error::Error;
use leyline::id::{EpochIndex, SeedId, StepIndex};
use leyline::layout::ParameterLayout;
use leyline::model::{Pass, TrainableModel};
use leyline::region::Eager;
use leyline::seed::{Applied, Evidence, SeedManager, SeedStage, SeedState, SlotState, Transition};
use leyline::unit::Alpha;

use crate::host_read::bits;
use crate::rule::{chain, succeed};
use crate::seed_manager::SeedManagerHarness;

/// Everything that callers can see of a manager. Bit patterns instead of floats: equality is exact.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Observation {
    seeds: Vec<SeedState>,
    slots: Vec<SlotState>,
    layout: ParameterLayout,
    pub(super) parameters: Vec<(String, Vec<u32>)>,
    logits: Vec<u32>,
}

/// A harness with a token and clocks.
pub(super) struct Driver<M> {
    rule: &'static str,
    pub(super) harness: SeedManagerHarness<M>,
    pub(super) eager: Eager,
    sequence: u64,
    step: u64,
    epoch: u64,
}

impl<M: SeedManager> Driver<M> {
    pub(super) fn new(rule: &'static str, mut harness: SeedManagerHarness<M>) -> Self {
        let eager = succeed(rule, "acquiring this thread's token", Eager::acquire());
        succeed(rule, "train_for", harness.manager.train_for(&eager, &harness.task));
        Self { rule, harness, eager, sequence: 0, step: 0, epoch: 0 }
    }

    /// An order with the next number, as the manager wants it.
    pub(super) fn order(&mut self, operation: Operation) -> Order {
        self.sequence += 1;
        self.repeated_order(operation)
    }

    /// An order with the number of the latest one.
    pub(super) fn repeated_order(&self, operation: Operation) -> Order {
        (self.harness.sign)(Order { sequence: Some(self.sequence), ..Order::new(operation, "contract") })
    }

    pub(super) fn apply(&mut self, operation: Operation) -> std::result::Result<Applied, M::Error> {
        let order = self.order(operation);
        self.harness.manager.apply(&mut self.eager, &order)
    }

    pub(super) fn must_apply(&mut self, operation: Operation) -> Applied {
        let what = operation.to_string();
        let result = self.apply(operation);
        succeed(self.rule, &what, result)
    }

    pub(super) fn seeds(&self) -> Vec<SeedState> {
        succeed(self.rule, "export_seed_states", self.harness.manager.export_seed_states(&self.eager))
    }

    pub(super) fn slots(&self) -> Vec<SlotState> {
        succeed(self.rule, "export_slot_states", self.harness.manager.export_slot_states(&self.eager))
    }

    pub(super) fn stage_of(&self, seed: SeedId) -> Option<SeedStage> {
        self.seeds().into_iter().find(|state| state.seed_id == seed).map(|state| state.stage)
    }

    /// Good evidence of the epoch that is not over yet.
    pub(super) fn evidence(&self, seed: SeedId) -> Evidence {
        (self.harness.evidence)(seed, EpochIndex(self.epoch + 1))
    }

    /// The germination of the first offer of the first free slot.
    pub(super) fn germination(&self) -> Option<Operation> {
        self.slots().into_iter().find_map(|slot| {
            let blueprint = slot.offers.into_iter().next()?.blueprint;
            slot.occupant.is_none().then_some(Operation::germinate(slot.slot, blueprint))
        })
    }

    /// A seed that has just germinated.
    pub(super) fn germinate(&mut self) -> SeedId {
        let Some(operation) = self.germination() else {
            panic!("{}: the harness has no free slot with a blueprint on offer", self.rule)
        };
        self.must_apply(operation).seed
    }

    /// A seed in shadow training.
    pub(super) fn train(&mut self) -> (SeedId, Applied) {
        let seed = self.germinate();
        let applied = self.insist(Operation::StartTraining { seed });
        (seed, applied)
    }

    /// Lets the seed blend to alpha 1 over the steps of one epoch.
    pub(super) fn blend(&mut self, seed: SeedId) -> Applied {
        let ramp = AlphaRamp { target: Alpha::ONE, steps: self.harness.steps_per_epoch, curve: AlphaCurve::Linear };
        self.insist(Operation::StartBlending { seed, ramp })
    }

    /// Applies a legal operation, and trains on with good evidence for as long as a gate refuses.
    pub(super) fn insist(&mut self, operation: Operation) -> Applied {
        let mut refusal = String::new();
        for _ in 0..=self.harness.max_epochs {
            match self.apply(operation.clone()) {
                Ok(applied) => return applied,
                Err(error) => refusal = chain(&error),
            }
            self.finish_epoch();
        }
        panic!("{}: {operation} is still refused after {} epochs: {refusal}", self.rule, self.harness.max_epochs)
    }

    /// The end of an optimizer step.
    fn finish_step(&mut self) {
        self.step += 1;
        let Self { rule, harness, eager, step, .. } = self;
        succeed(rule, "finish_step", harness.manager.finish_step(eager, StepIndex(*step)));
    }

    /// Fails the rule when the end of a step changes something.
    #[track_caller]
    pub(super) fn must_end_a_step_unchanged(&mut self, what: &str) {
        let before = self.observe();
        self.finish_step();
        self.must_be_unchanged(&before, what);
    }

    /// One epoch of steps, with good evidence for every live seed at its end.
    pub(super) fn finish_epoch(&mut self) -> Vec<Transition> {
        for _ in 0..self.harness.steps_per_epoch {
            let Self { rule, harness, eager, .. } = self;
            succeed(rule, "attribute_batch", harness.manager.attribute_batch(eager, &harness.batch));
            self.finish_step();
        }
        let live = self.seeds().into_iter().filter(|state| state.stage.is_live());
        let evidence: Vec<_> = live.map(|state| self.evidence(state.seed_id)).collect();
        self.epoch += 1;
        let Self { rule, harness, eager, epoch, .. } = self;
        succeed(rule, "record_evidence", harness.manager.record_evidence(eager, &evidence));
        succeed(rule, "finish_epoch", harness.manager.finish_epoch(eager, EpochIndex(*epoch)))
    }

    pub(super) fn observe(&self) -> Observation {
        let model = self.harness.manager.model();
        let pass = Pass::Evaluate { overrides: &[] };
        let outputs = succeed(self.rule, "forward", model.forward(&self.harness.batch.inputs, pass));
        let read = |tensor: Result<Vec<u32>>| match tensor {
            Ok(values) => values,
            Err(error) => panic!("{}: reading a tensor failed: {error}", self.rule),
        };
        Observation {
            seeds: self.seeds(),
            slots: self.slots(),
            layout: model.layout().clone(),
            parameters: model
                .parameters()
                .iter()
                .map(|parameter| (parameter.name.clone(), read(bits(parameter.var.as_tensor()))))
                .collect(),
            logits: read(bits(&outputs.logits)),
        }
    }

    /// Fails the rule when something differs from `before`, and says what.
    #[track_caller]
    pub(super) fn must_be_unchanged(&self, before: &Observation, after_what: &str) {
        let now = self.observe();
        let differs = [
            ("seed states", now.seeds != before.seeds),
            ("slot states", now.slots != before.slots),
            ("layout", now.layout != before.layout),
            ("parameters", now.parameters != before.parameters),
            ("outputs", now.logits != before.logits),
        ];
        let changed: Vec<_> = differs.into_iter().filter_map(|(what, differs)| differs.then_some(what)).collect();
        if !changed.is_empty() {
            panic!("{}: {after_what} changed {}", self.rule, changed.join(", "));
        }
    }

    /// Fails the rule unless an order is carried out, or, where there can be no seed, refused for lack of one.
    pub(super) fn must_be_answered(&self, what: &str, result: std::result::Result<Applied, M::Error>) {
        if self.harness.has_slots {
            succeed(self.rule, what, result);
        } else {
            crate::rule::refuse(self.rule, what, result, leyline::error::ErrorKind::UnknownSeed);
        }
    }

    /// What is left of a rule about seeds where there can be none.
    pub(super) fn must_have_no_seeds(&self) {
        let shown = (self.seeds().len(), self.slots().len());
        crate::rule::must!(
            self.rule,
            shown == (0, 0),
            "a manager without slots shows {} seeds, {} slots",
            shown.0,
            shown.1
        );
    }

    /// Fails the rule unless `result` is an error of `kind` that changed nothing.
    #[track_caller]
    pub(super) fn must_be_refused<T, E: Error>(
        &self,
        what: &str,
        result: std::result::Result<T, E>,
        kind: leyline::error::ErrorKind,
        before: &Observation,
    ) {
        crate::rule::refuse(self.rule, what, result, kind);
        self.must_be_unchanged(before, what);
    }
}
