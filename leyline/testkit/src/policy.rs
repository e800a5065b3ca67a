//! Rules PO-1 to PO-4 of [`leyline::policy`] as functions, and the harness they run on.
//!
//! The rules play whole runs against [`World`], in which the policy's own decisions make the next state.

use std::fmt;

use leyline::command::{Command, Operation, Order};
use leyline::id::RunId;
use leyline::policy::{Decision, Policy};
use leyline::state::SystemState;

use crate::rule::{must, succeed};
use crate::world::{Measurements, Outcome, World, remeasured};

/// A fresh policy with what is needed to play a run.
pub struct PolicyHarness<P> {
    /// A policy that has seen nothing. Two harnesses in a row hold equal policies.
    pub policy: P,
    /// The run that it is asked about.
    pub run_id: RunId,
    /// Epochs of the run; by default 60.
    pub num_epochs: u64,
    /// Whether it must act when everything is measured and good, after the network has reached a plateau; by default
    /// it must. Without this a policy that does nothing would pass every rule.
    pub must_act: bool,
}

impl<P: Policy> PolicyHarness<P> {
    /// A harness with the defaults named at the fields.
    pub fn new(policy: P, run_id: RunId) -> Self {
        Self { policy, run_id, num_epochs: 60, must_act: true }
    }
}

impl<P: fmt::Debug> fmt::Debug for PolicyHarness<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PolicyHarness").field("policy", &self.policy).finish_non_exhaustive()
    }
}

/// One `#[test]` per rule PO-1 to PO-4. The argument is a function or closure without arguments that builds a fresh
/// [`PolicyHarness`](crate::policy::PolicyHarness); it is called more than once per rule.
#[macro_export]
macro_rules! policy_conformance {
    ($make:expr) => {
        $crate::__one_test_per_rule!(
            policy,
            $make,
            po_1_equal_states_give_equal_operations,
            po_2_a_decision_names_only_what_it_was_shown,
            po_3_an_absent_measurement_is_not_a_good_one,
            po_4_sequence_numbers_grow,
        );
    };
}

/// PO-1: two fresh policies make the same operations of the same states.
pub fn po_1_equal_states_give_equal_operations<P: Policy>(make: &impl Fn() -> PolicyHarness<P>) {
    for outcome in [Outcome::Good, Outcome::Bad, Outcome::Absent] {
        let run = || {
            let mut lines = Vec::new();
            play("PO-1", make(), Measurements::all(outcome), |_, decision| lines.push(operations(decision)));
            lines
        };
        let (first, second) = (run(), run());
        for (boundary, (first, second)) in first.iter().zip(&second).enumerate() {
            must!("PO-1", first == second, "boundary {boundary}: {first:?} the first time, {second:?} the second");
        }
    }
}

/// PO-2: every operation names a seed or slot of the state, and a blueprint on offer in that slot.
pub fn po_2_a_decision_names_only_what_it_was_shown<P: Policy>(make: &impl Fn() -> PolicyHarness<P>) {
    for outcome in [Outcome::Good, Outcome::Bad, Outcome::Absent] {
        play("PO-2", make(), Measurements::all(outcome), |state, decision| {
            for operation in operations(decision) {
                check_named("PO-2", state, &operation);
            }
        });
    }
    let mut harness = make();
    for _ in 0..harness.num_epochs {
        let mut state =
            World::new(harness.run_id.clone(), harness.num_epochs, Measurements::all(Outcome::Good)).state();
        (state.seeds, state.slots) = (Vec::new(), Vec::new());
        let decision = succeed("PO-2", "decide", harness.policy.decide(&state));
        must!("PO-2", decision.orders.is_empty(), "orders for a network without slots: {:?}", operations(&decision));
    }
}

/// PO-3: where a bad measurement does not let a seed act more, an absent one does not either.
///
/// At every boundary of a run in which all is good, two copies of the policy with the same past look at the state once
/// with a measurement that is bad and once with the same measurement absent. Raising alpha and fossilizing are
/// promotions; the promotions without the measurement must be among those with the bad one.
pub fn po_3_an_absent_measurement_is_not_a_good_one<P: Policy>(make: &impl Fn() -> PolicyHarness<P>) {
    const RULE: &str = "PO-3";
    let good = Measurements::all(Outcome::Good);
    let (mut past, mut num_promotions) = (Vec::new(), 0);
    play(RULE, make(), good, |state, decision| {
        past.push(state.clone());
        num_promotions += promotions(state, decision).len();
    });
    must!(RULE, !make().must_act || num_promotions > 0, "no seed is promoted although everything measured is good");

    let variants: [(&str, Variant); 3] = [
        ("everything", Measurements::all),
        ("the counterfactual", |outcome| Measurements { counterfactual: outcome, ..Measurements::all(Outcome::Good) }),
        ("the gradient", |outcome| Measurements { gradient: outcome, ..Measurements::all(Outcome::Good) }),
    ];
    for (what, variant) in variants {
        let mut bad = Branch::new(RULE, make, variant(Outcome::Bad));
        let mut absent = Branch::new(RULE, make, variant(Outcome::Absent));
        for state in &past {
            let (with_bad, without) = (bad.promotions_at(state), absent.promotions_at(state));
            let extra = without.iter().find(|operation| !with_bad.contains(operation));
            if let Some(extra) = extra {
                panic!("{RULE}: epoch {}: {extra} when {what} is absent, not when it is bad", state.epoch);
            }
        }
    }
}

/// PO-4: of a run all orders are signed or none; of those that are, the numbers grow, and the signed bytes say all that the
/// order beside them says.
pub fn po_4_sequence_numbers_grow<P: Policy>(make: &impl Fn() -> PolicyHarness<P>) {
    const RULE: &str = "PO-4";
    let (mut last, mut num_orders, mut signs) = (None, 0, None);
    let must_act = make().must_act;
    play(RULE, make(), Measurements::all(Outcome::Good), |state, decision| {
        num_orders += decision.orders.len();
        for order in &decision.orders {
            let is_signed = order.signed.is_some();
            must!(
                RULE,
                *signs.get_or_insert(is_signed) == is_signed,
                "only some orders are signed: {}",
                order.operation
            );
            let Some(signed) = &order.signed else { continue };
            let Ok(command) = Command::from_bytes(&signed.bytes) else {
                panic!("{RULE}: what is signed is no command")
            };
            let (now, before) = (command.sequence, last.replace(command.sequence));
            must!(RULE, before.is_none_or(|before| now > before), "sequence number {now} follows {before:?}");
            let Command { operation, reason, input_coverage, .. } = command;
            let said = Order { input_coverage, sequence: Some(now), ..Order::new(operation, reason) };
            let is_same = said == Order { signed: None, ..order.clone() };
            must!(RULE, is_same, "the signed bytes of {now} are another order's");
            must!(RULE, command.run_id == state.run_id, "command {now} is for run {}", command.run_id);
        }
    });
    must!(RULE, !must_act || num_orders > 0, "no order was given although everything measured is good");
}

fn play<P: Policy>(
    rule: &str,
    mut harness: PolicyHarness<P>,
    measurements: Measurements,
    mut look: impl FnMut(&SystemState, &Decision),
) {
    let mut world = World::new(harness.run_id.clone(), harness.num_epochs, measurements);
    while !world.is_over() {
        let state = world.state();
        let decision = succeed(rule, "decide", harness.policy.decide(&state));
        look(&state, &decision);
        world.advance(&decision);
    }
}

/// One kind of measurement that comes out like this, the others being good.
type Variant = fn(Outcome) -> Measurements;

/// A policy that looks at a recorded run through other measurements.
struct Branch<P> {
    rule: &'static str,
    policy: P,
    measurements: Measurements,
}

impl<P: Policy> Branch<P> {
    fn new(rule: &'static str, make: &impl Fn() -> PolicyHarness<P>, measurements: Measurements) -> Self {
        Self { rule, policy: make().policy, measurements }
    }

    fn promotions_at(&mut self, state: &SystemState) -> Vec<Operation> {
        let seen = remeasured(state.clone(), self.measurements);
        let decision = succeed(self.rule, "decide", self.policy.decide(&seen));
        promotions(&seen, &decision)
    }
}

fn operations(decision: &Decision) -> Vec<Operation> {
    decision.orders.iter().map(|order| order.operation.clone()).collect()
}

/// Operations that give a seed more influence for good reasons.
fn promotions(state: &SystemState, decision: &Decision) -> Vec<Operation> {
    let raises = |operation: &Operation| match operation {
        Operation::Fossilize { .. } => true,
        Operation::StartBlending { seed, ramp } => {
            state.seeds.iter().any(|shown| shown.seed_id == *seed && ramp.target > shown.alpha)
        }
        Operation::Germinate { .. }
        | Operation::StartTraining { .. }
        | Operation::Hold { .. }
        | Operation::Cull { .. }
        | Operation::CullGradually { .. }
        | Operation::Pause { .. }
        | Operation::Resume { .. } => false,
    };
    operations(decision).into_iter().filter(raises).collect()
}

fn check_named(rule: &str, state: &SystemState, operation: &Operation) {
    if let Operation::Germinate { slot, blueprint, .. } = operation {
        let Some(shown) = state.slots.iter().find(|shown| shown.slot == *slot) else {
            panic!("{rule}: epoch {}: {operation}, but there is no such slot", state.epoch)
        };
        let offered = shown.offers.iter().any(|offer| offer.blueprint == *blueprint);
        must!(rule, offered, "epoch {}: {operation}, but it is not on offer there", state.epoch);
    }
    if let Some(seed) = operation.seed() {
        let shown = state.seeds.iter().any(|shown| shown.seed_id == seed);
        must!(rule, shown, "epoch {}: {operation}, but there is no such seed", state.epoch);
    }
}
