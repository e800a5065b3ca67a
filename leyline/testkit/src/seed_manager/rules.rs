//! The rules: each function takes a constructor of harnesses and panics with the number of the rule it finds broken.

use std::collections::BTreeSet;
use std::sync::Arc;

use candle_core::Tensor;
use leyline::batch::Batch;
use leyline::command::{AlphaCurve, AlphaRamp, KeyId, Operation, Order, SignedCommand};
use leyline::durable::SavedState;
use leyline::error::ErrorKind;
use leyline::id::{EpochIndex, SeedId, StepIndex, TopologyRevision};
use leyline::layout::{Owner, Segment};
use leyline::model::TrainableModel;
use leyline::region::{Eager, declare_recording};
use leyline::seed::{Counterfactual, Evidence, SeedManager, SeedStage, SeedState, Transition};
use leyline::task::Task;
use leyline::unit::Alpha;

use crate::rule::{must, refuse, succeed};
use crate::seed_manager::driver::Driver;
use crate::seed_manager::{SeedManagerHarness, confirmation};

/// Rounding slack for sums of weights.
const SUM_SLACK: f64 = 1e-6;
/// An id that no manager has given out: ids count from 1.
pub(super) const UNKNOWN: SeedId = SeedId(900_000);

/// SM-1: every method fails with [`ErrorKind::Region`] while a capture is open on this thread, and changes nothing.
pub fn sm_1_every_method_checks_the_region_first<M: SeedManager>(make: &impl Fn() -> SeedManagerHarness<M>) {
    const RULE: &str = "SM-1";
    let mut driver = Driver::new(RULE, make());
    let seed = if driver.harness.has_slots { driver.train().0 } else { UNKNOWN };
    let before = driver.observe();
    let saved = succeed(RULE, "save", driver.harness.manager.save(&driver.eager));
    let (order, evidence) = (driver.order(Operation::Cull { seed }), [driver.evidence(seed)]);
    {
        let _capture = declare_recording();
        let Driver { harness: SeedManagerHarness { manager, batch, task, .. }, eager, .. } = &mut driver;
        refuse_every_call(
            RULE,
            "under a capture",
            manager,
            eager,
            &Arguments { batch, task, order: &order, evidence: &evidence, saved: &saved },
        );
    }
    driver.must_be_unchanged(&before, "a call refused under a capture");
    let applied = driver.harness.manager.apply(&mut driver.eager, &order);
    driver.must_be_answered("the same order after the capture", applied);
}

/// SM-11: while the manager's thread records, every method fails with [`ErrorKind::Region`] on a thread that was started
/// inside the region, and changes nothing; a manager that was only made is refused too.
pub fn sm_11_a_thread_started_inside_a_region_is_refused<M: SeedManager + Send>(
    make: &impl Fn() -> SeedManagerHarness<M>,
) {
    const RULE: &str = "SM-11";
    let mut unused = make().manager;
    let mut driver = Driver::new(RULE, make());
    let seed = if driver.harness.has_slots { driver.train().0 } else { UNKNOWN };
    let before = driver.observe();
    let saved = succeed(RULE, "save", driver.harness.manager.save(&driver.eager));
    let (order, evidence) = (driver.order(Operation::Cull { seed }), [driver.evidence(seed)]);
    {
        let Driver { harness: SeedManagerHarness { manager, batch, task, .. }, eager, .. } = &mut driver;
        let arguments = Arguments { batch, task, order: &order, evidence: &evidence, saved: &saved };
        let what = "on a thread started inside the region";
        eager.record(|_| elsewhere(RULE, |eager| refuse_every_call(RULE, what, manager, eager, &arguments)));
        let what = "of a manager that was only made, on a thread started inside the region";
        eager.record(|_| elsewhere(RULE, |eager| refuse_every_call(RULE, what, &mut unused, eager, &arguments)));
    }
    driver.must_be_unchanged(&before, "a call refused on another thread");
    let manager = &mut driver.harness.manager;
    let moved = elsewhere(RULE, |eager| manager.apply(eager, &order));
    driver.must_be_answered("the same order on another thread after the region", moved);
}

/// What the host-side methods of a manager are called with.
struct Arguments<'a> {
    batch: &'a Batch,
    task: &'a Arc<dyn Task>,
    order: &'a Order,
    evidence: &'a [Evidence],
    saved: &'a SavedState,
}

/// Fails `rule` unless each host-side method refuses this token.
#[track_caller]
fn refuse_every_call<M: SeedManager>(rule: &str, what: &str, manager: &mut M, eager: &mut Eager, with: &Arguments<'_>) {
    let name = |method: &str| format!("{method} {what}");
    let kind = ErrorKind::Region;
    refuse(rule, &name("train_for"), manager.train_for(eager, with.task), kind);
    refuse(rule, &name("inspect_batch"), manager.inspect_batch(eager, with.batch), kind);
    refuse(rule, &name("attribute_batch"), manager.attribute_batch(eager, with.batch), kind);
    refuse(rule, &name("export_seed_states"), manager.export_seed_states(eager), kind);
    refuse(rule, &name("export_slot_states"), manager.export_slot_states(eager), kind);
    refuse(rule, &name("apply"), manager.apply(eager, with.order), kind);
    refuse(rule, &name("record_evidence"), manager.record_evidence(eager, with.evidence), kind);
    confirmation::refuse_every_call(rule, name, manager, eager);
    refuse(rule, &name("remove_seed"), manager.remove_seed(eager, UNKNOWN, "contract"), kind);
    refuse(rule, &name("finish_step"), manager.finish_step(eager, StepIndex(1)), kind);
    refuse(rule, &name("finish_epoch"), manager.finish_epoch(eager, EpochIndex(1)), kind);
    refuse(rule, &name("save"), manager.save(eager), kind);
    refuse(rule, &name("restore"), manager.restore(eager, with.saved), kind);
}

/// Runs `work` on a thread of its own, with that thread's token.
fn elsewhere<R: Send>(rule: &str, work: impl FnOnce(&mut Eager) -> R + Send) -> R {
    let run = || work(&mut succeed(rule, "acquiring a token on another thread", Eager::acquire()));
    match std::thread::scope(|scope| scope.spawn(run).join()) {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// SM-2: states are ordered by id, and a seed is listed from its germination until its slot is free again.
pub fn sm_2_states_are_ordered_and_complete<M: SeedManager>(make: &impl Fn() -> SeedManagerHarness<M>) {
    const RULE: &str = "SM-2";
    let mut driver = Driver::new(RULE, make());
    if !driver.harness.has_slots {
        return driver.must_have_no_seeds();
    }
    must!(RULE, driver.seeds().is_empty(), "the harness must start without seeds");
    let mut germinated = BTreeSet::new();
    while driver.germination().is_some() {
        let seed = driver.germinate();
        must!(RULE, germinated.insert(seed), "{seed} was given out twice");
        let listed = check_order(RULE, &driver.seeds());
        must!(RULE, listed == germinated, "seeds {listed:?} are listed, expected {germinated:?}");
    }
    let seed = *germinated.first().expect("germinate panics when nothing can germinate");
    driver.must_apply(Operation::Cull { seed });
    for _ in 0..=driver.harness.max_epochs {
        let listed = check_order(RULE, &driver.seeds());
        let occupied = driver.slots().iter().any(|slot| slot.occupant == Some(seed));
        must!(
            RULE,
            listed.contains(&seed) == occupied,
            "{seed} occupies a slot: {occupied}, but is listed: {}",
            !occupied
        );
        if !occupied {
            return;
        }
        driver.finish_epoch();
    }
    panic!("{RULE}: the slot of culled {seed} is not free after {} epochs", driver.harness.max_epochs);
}

/// SM-3: a command takes effect whole, as `Applied` says, or changes nothing; a blend ends with its steps, others change nothing.
pub fn sm_3_a_refusal_changes_nothing<M: SeedManager>(make: &impl Fn() -> SeedManagerHarness<M>) {
    const RULE: &str = "SM-3";
    let mut driver = Driver::new(RULE, make());
    if !driver.harness.has_slots {
        return driver.must_have_no_seeds();
    }
    let germination = driver.germination();
    let (seed, applied) = driver.train();
    check_chain(RULE, &applied.transitions, seed, driver.stage_of(seed));
    for stage in [SeedStage::Training, SeedStage::Blending] {
        let before = driver.observe();
        for operation in germination.iter().cloned().chain([
            Operation::StartTraining { seed },
            Operation::Fossilize { seed },
            Operation::Cull { seed: UNKNOWN },
        ]) {
            let what = format!("{operation} while {seed} is {stage}");
            must!(RULE, driver.apply(operation).is_err(), "{what} was accepted");
            driver.must_be_unchanged(&before, &what);
        }
        if stage == SeedStage::Training {
            driver.must_end_a_step_unchanged("the end of a step without a ramp");
            let applied = driver.blend(seed);
            check_chain(RULE, &applied.transitions, seed, driver.stage_of(seed));
        }
    }
    driver.finish_epoch();
    let alpha = driver.seeds().into_iter().find(|state| state.seed_id == seed).map(|state| state.alpha.get());
    must!(RULE, alpha == Some(1.0), "alpha is {alpha:?} after all steps of a blend to 1");
    driver.must_end_a_step_unchanged("the end of a step after the blend");
    let applied = driver.must_apply(Operation::Cull { seed });
    check_chain(RULE, &applied.transitions, seed, driver.stage_of(seed));
}

/// SM-4: weights are finite, at least 0, sum to at most 1 with the host share, and name only seeds that can influence the loss.
pub fn sm_4_attribution_names_only_seeds_that_act<M: SeedManager>(make: &impl Fn() -> SeedManagerHarness<M>) {
    const RULE: &str = "SM-4";
    let mut driver = Driver::new(RULE, make());
    if !driver.harness.has_slots {
        return driver.must_have_no_seeds();
    }
    let check = |driver: &mut Driver<M>| {
        let Driver { harness: SeedManagerHarness { manager, batch, .. }, eager, .. } = driver;
        let attribution = succeed(RULE, "attribute_batch", manager.attribute_batch(eager, batch));
        check_weights(RULE, attribution.weights(), attribution.host_share(), &driver.seeds());
    };
    check(&mut driver);
    let seed = driver.germinate();
    check(&mut driver);
    driver.insist(Operation::StartTraining { seed });
    check(&mut driver);
    driver.blend(seed);
    check(&mut driver);
    driver.finish_epoch();
    check(&mut driver);
    driver.must_apply(Operation::Cull { seed });
    check(&mut driver);
}

/// SM-5: the revision grows exactly when a command says that the topology changed, grows with every change of the
/// layout, and never shrinks.
pub fn sm_5_the_revision_grows_with_the_computation<M: SeedManager>(make: &impl Fn() -> SeedManagerHarness<M>) {
    const RULE: &str = "SM-5";
    let mut driver = Driver::new(RULE, make());
    if !driver.harness.has_slots {
        return driver.must_have_no_seeds();
    }
    let mut last = seen(&driver);
    let mut follow = |driver: &Driver<M>, what: &str, declared: Option<bool>| {
        let now = seen(driver);
        let grew = now.0 > last.0;
        must!(RULE, now.0 >= last.0, "{what} shrank the revision from {} to {}", last.0, now.0);
        must!(RULE, grew || now.1 == last.1, "{what} changed the layout at revision {}", now.0);
        if let Some(declared) = declared {
            must!(RULE, declared == grew, "{what} says topology_changed = {declared}, but the revision grew: {grew}");
        }
        last = now;
    };
    let germination = driver.germination().expect("a harness has a free slot with an offer");
    let germinated = driver.must_apply(germination);
    let seed = germinated.seed;
    follow(&driver, "germination", Some(germinated.topology_changed));
    let trained = driver.insist(Operation::StartTraining { seed });
    must!(RULE, seen(&driver).1.iter().any(|segment| segment.spec.isolated), "training added no isolated parameter");
    follow(&driver, "the start of training", Some(trained.topology_changed));
    driver.finish_epoch();
    follow(&driver, "an epoch of training", None);
    let blended = driver.blend(seed);
    follow(&driver, "the start of blending", Some(blended.topology_changed));
    driver.finish_epoch();
    follow(&driver, "an epoch of blending", None);
    let culled = driver.must_apply(Operation::Cull { seed });
    must!(RULE, culled.topology_changed, "the removal of an acting seed changes the topology");
    follow(&driver, "the removal", Some(culled.topology_changed));
    for _ in 0..driver.harness.max_epochs.min(8) {
        driver.finish_epoch();
        follow(&driver, "an epoch after the removal", None);
    }
}

/// SM-6: every command for a seed that does not exist is refused with [`ErrorKind::UnknownSeed`].
pub fn sm_6_an_unknown_seed_is_refused<M: SeedManager>(make: &impl Fn() -> SeedManagerHarness<M>) {
    let mut driver = Driver::new("SM-6", make());
    if driver.harness.has_slots {
        driver.train();
    }
    let before = driver.observe();
    for operation in operations_on(UNKNOWN) {
        let what = operation.to_string();
        let result = driver.apply(operation);
        driver.must_be_refused(&what, result, ErrorKind::UnknownSeed, &before);
    }
}

/// SM-7: every move that the lifecycle does not allow is refused with [`ErrorKind::IllegalTransition`], and every move
/// that happens is one it allows.
pub fn sm_7_an_illegal_move_is_refused<M: SeedManager>(make: &impl Fn() -> SeedManagerHarness<M>) {
    const RULE: &str = "SM-7";
    let mut driver = Driver::new(RULE, make());
    if !driver.harness.has_slots {
        return driver.must_have_no_seeds();
    }
    let seed = driver.germinate();
    refuse_illegal_moves(&mut driver, seed, SeedStage::Germinated);
    let mut moves = driver.insist(Operation::StartTraining { seed }).transitions;
    refuse_illegal_moves(&mut driver, seed, SeedStage::Training);
    moves.extend(driver.blend(seed).transitions);
    refuse_illegal_moves(&mut driver, seed, SeedStage::Blending);
    moves.extend(driver.must_apply(Operation::Cull { seed }).transitions);
    refuse_illegal_moves(&mut driver, seed, SeedStage::Pruned);
    for _ in 0..driver.harness.max_epochs.min(8) {
        moves.extend(driver.finish_epoch());
    }
    for moved in moves {
        must!(RULE, moved.from.may_become(moved.to), "{} went from {} to {}", moved.seed, moved.from, moved.to);
    }
}

/// SM-8: where orders are verified, one that is not signed or whose tag does not verify is refused with
/// [`ErrorKind::Rejected`] whatever its bytes are, only what was signed counts, and a number is accepted once. Where they are
/// not, one that is signed is refused with the same kind.
pub fn sm_8_a_forged_order_is_rejected_unread<M: SeedManager>(make: &impl Fn() -> SeedManagerHarness<M>) {
    const RULE: &str = "SM-8";
    let mut driver = Driver::new(RULE, make());
    let SeedManagerHarness { has_slots, sign, .. } = &driver.harness;
    let verifies = sign(Order::new(Operation::Cull { seed: UNKNOWN }, "contract")).signed.is_some();
    if !verifies {
        let operation = driver.germination().unwrap_or(Operation::Cull { seed: UNKNOWN });
        let signed = Some(SignedCommand { key_id: KeyId::default(), bytes: vec![0xff; 7], tag: [0; 32] });
        let (before, order) = (driver.observe(), Order { signed, ..operation.into() });
        let result = driver.harness.manager.apply(&mut driver.eager, &order);
        return driver.must_be_refused("a signed order that nobody verified", result, ErrorKind::Rejected, &before);
    }
    if !has_slots {
        return;
    }
    let (seed, _) = driver.train();
    let before = driver.observe();
    let genuine = driver.order(Operation::Cull { seed });
    let signed = |order: &Order| order.signed.clone().expect("the harness signs");
    let (own, other) = (signed(&genuine), signed(&driver.order(Operation::Hold { seed })));
    let mut forgeries = vec![
        ("another order's tag", SignedCommand { tag: other.tag, ..own.clone() }),
        ("a zero tag", SignedCommand { tag: [0; 32], ..own.clone() }),
        ("bytes that are no command", SignedCommand { bytes: vec![0xff; 7], ..own.clone() }),
        ("no bytes", SignedCommand { bytes: Vec::new(), ..own.clone() }),
        ("another key id", SignedCommand { key_id: KeyId(own.key_id.0 ^ 1), ..own.clone() }),
    ];
    for bit in [0, 7, 255] {
        let mut forged = own.clone();
        forged.tag[bit / 8] ^= 1 << (bit % 8);
        forgeries.push(("a tag with one bit changed", forged));
    }
    for index in 0..own.bytes.len() {
        let mut forged = own.clone();
        forged.bytes[index] ^= 1;
        forgeries.push(("one byte changed", forged));
    }
    let forgeries = forgeries.into_iter().map(|(what, forged)| (what, Some(forged)));
    for (what, signed) in forgeries.chain([("no signature", None)]) {
        let forged = Order { signed, ..genuine.clone() };
        let result = driver.harness.manager.apply(&mut driver.eager, &forged);
        refuse(RULE, what, result, ErrorKind::Rejected);
    }
    driver.must_be_unchanged(&before, "a forged order");

    let disguised = Order { signed: driver.order(Operation::Cull { seed }).signed, ..Operation::Pause { seed }.into() };
    let applied = driver.harness.manager.apply(&mut driver.eager, &disguised);
    succeed(RULE, "a removal that says of itself that it is a pause", applied);
    must!(RULE, driver.stage_of(seed) == Some(SeedStage::Pruned), "an order counted for what nobody had signed");
    let Some(germination) = free_slot(&mut driver) else { return };
    let before = driver.observe();
    let repeated = driver.repeated_order(germination);
    let result = driver.harness.manager.apply(&mut driver.eager, &repeated);
    must!(RULE, result.is_err(), "a legal order with a number that was used before was accepted");
    driver.must_be_unchanged(&before, "a repeated number");
}

/// SM-9: evidence is kept and exported with its epoch, of which it counts once; when one of the named seeds is unknown, none of
/// it is kept.
pub fn sm_9_evidence_is_kept_for_all_or_for_none<M: SeedManager>(make: &impl Fn() -> SeedManagerHarness<M>) {
    const RULE: &str = "SM-9";
    let mut driver = Driver::new(RULE, make());
    if !driver.harness.has_slots {
        let evidence = [driver.evidence(UNKNOWN)];
        let result = driver.harness.manager.record_evidence(&driver.eager, &evidence);
        refuse(RULE, "evidence for an unknown seed", result, ErrorKind::UnknownSeed);
        return driver.must_have_no_seeds();
    }
    let (seed, _) = driver.train();
    let before = driver.observe();
    let (known, unknown) = (driver.evidence(seed), driver.evidence(UNKNOWN));
    for evidence in [[known, unknown], [unknown, known]] {
        let result = driver.harness.manager.record_evidence(&driver.eager, &evidence);
        must!(RULE, result.is_err(), "evidence for an unknown seed was accepted");
        driver.must_be_unchanged(&before, "refused evidence");
    }
    succeed(RULE, "record_evidence", driver.harness.manager.record_evidence(&driver.eager, &[known]));
    let states = driver.seeds();
    let state = states.iter().find(|state| state.seed_id == seed).expect("the seed is in training");
    must!(RULE, state.counterfactual == known.counterfactual, "the counterfactual given is not the one exported");
    must!(RULE, state.gradient == known.gradient, "the gradient health given is not the one exported");
    let epochs = (state.counterfactual_epoch, state.gradient_epoch);
    must!(
        RULE,
        epochs == (Some(known.epoch), Some(known.epoch)),
        "evidence of {} is exported as of {epochs:?}",
        known.epoch
    );
    let before = driver.observe();
    let worse = known.counterfactual.map(|measured| Counterfactual { loss_gain: -1.0, ..measured });
    let again = Evidence { counterfactual: worse, ..known };
    succeed(RULE, "record_evidence", driver.harness.manager.record_evidence(&driver.eager, &[again]));
    driver.must_be_unchanged(&before, "evidence of an epoch that was recorded already");
}

/// SM-10: a paused seed leaves the computation, keeps its stage and its weights, and comes back; neither is done twice.
pub fn sm_10_a_paused_seed_takes_no_part_and_comes_back<M: SeedManager>(make: &impl Fn() -> SeedManagerHarness<M>) {
    const RULE: &str = "SM-10";
    let mut driver = Driver::new(RULE, make());
    if !driver.harness.has_slots {
        return driver.must_have_no_seeds();
    }
    let (seed, _) = driver.train();
    let names = |driver: &Driver<M>| -> Vec<String> {
        driver.harness.manager.model().parameters().iter().map(|parameter| parameter.name.clone()).collect()
    };
    let (training, training_bits) = (names(&driver), driver.observe().parameters);
    driver.must_apply(Operation::Pause { seed });
    let paused = driver.observe();
    must!(RULE, names(&driver).len() < training.len(), "the parameters of a paused seed are still trained");
    let twice = driver.apply(Operation::Pause { seed });
    driver.must_be_refused("a second pause", twice, ErrorKind::Rejected, &paused);
    let blend =
        Operation::StartBlending { seed, ramp: AlphaRamp { target: Alpha::ONE, steps: 1, curve: AlphaCurve::Linear } };
    let refused = driver.apply(blend);
    driver.must_be_refused("a move of a paused seed", refused, ErrorKind::Rejected, &paused);
    let epochs = |driver: &Driver<M>| {
        driver.seeds().into_iter().find(|s| s.seed_id == seed).map(|s| (s.stage, s.epochs_in_stage))
    };
    let before = epochs(&driver);
    driver.finish_epoch();
    must!(RULE, epochs(&driver) == before, "the clock of a paused seed went on");
    driver.must_apply(Operation::Resume { seed });
    must!(RULE, names(&driver) == training, "a resumed seed does not train as before");
    must!(RULE, driver.observe().parameters == training_bits, "a pause changed parameters");
    let resumed = driver.observe();
    let again = driver.apply(Operation::Resume { seed });
    driver.must_be_refused("a second resumption", again, ErrorKind::Rejected, &resumed);
}

fn operations_on(seed: SeedId) -> [Operation; 5] {
    let ramp = AlphaRamp { target: Alpha::ONE, steps: 4, curve: AlphaCurve::Linear };
    [
        Operation::StartTraining { seed },
        Operation::StartBlending { seed, ramp },
        Operation::Hold { seed },
        Operation::Fossilize { seed },
        Operation::Cull { seed },
    ]
}

fn refuse_illegal_moves<M: SeedManager>(driver: &mut Driver<M>, seed: SeedId, stage: SeedStage) {
    let before = driver.observe();
    for operation in operations_on(seed) {
        let next = match &operation {
            Operation::Germinate { .. } => SeedStage::Germinated,
            Operation::StartTraining { .. } => SeedStage::Training,
            Operation::StartBlending { .. } => SeedStage::Blending,
            Operation::Hold { .. } => SeedStage::Holding,
            Operation::Fossilize { .. } => SeedStage::Fossilized,
            Operation::Cull { .. } | Operation::CullGradually { .. } => SeedStage::Pruned,
            // Not a move: SM-10.
            Operation::Pause { .. } | Operation::Resume { .. } => continue,
        };
        if !stage.may_become(next) {
            let what = format!("{operation} of a seed that is {stage}");
            let result = driver.apply(operation);
            driver.must_be_refused(&what, result, ErrorKind::IllegalTransition, &before);
        }
    }
}

/// The germination of a free slot, after as many epochs as an embargo lasts.
fn free_slot<M: SeedManager>(driver: &mut Driver<M>) -> Option<Operation> {
    for _ in 0..driver.harness.max_epochs {
        let germination = driver.germination();
        if germination.is_some() {
            return germination;
        }
        driver.finish_epoch();
    }
    None
}

fn seen<M: SeedManager>(driver: &Driver<M>) -> (TopologyRevision, Vec<Segment>) {
    let layout = driver.harness.manager.model().layout();
    (layout.revision(), layout.segments().to_vec())
}

fn check_order(rule: &str, states: &[SeedState]) -> BTreeSet<SeedId> {
    for pair in states.windows(2) {
        let (first, second) = (pair[0].seed_id, pair[1].seed_id);
        must!(rule, first < second, "{first} is listed before {second}");
    }
    states.iter().map(|state| state.seed_id).collect()
}

fn check_chain(rule: &str, transitions: &[Transition], seed: SeedId, now: Option<SeedStage>) {
    must!(rule, transitions.iter().all(|moved| moved.seed == seed), "a command for {seed} moved another seed");
    let last = transitions.last().map(|moved| moved.to);
    must!(rule, last.is_some() && last == now, "the transitions end at {last:?}, but {seed} is {now:?}");
    for pair in transitions.windows(2) {
        must!(rule, pair[0].to == pair[1].from, "the transitions of {seed} do not follow each other");
    }
}

fn check_weights(rule: &str, weights: &[(SeedId, f64)], host_share: f64, states: &[SeedState]) {
    let mut sum = 0.0;
    for &(seed, weight) in weights {
        must!(rule, weight.is_finite() && weight >= 0.0, "the weight of {seed} is {weight}");
        let state = states.iter().find(|state| state.seed_id == seed);
        let Some(state) = state else { panic!("{rule}: {seed} has a weight and is not exported") };
        let reaches_a_loss = state.stage.acts_on_output() || state.stage == SeedStage::Training;
        must!(rule, reaches_a_loss, "{seed} has a weight and is {}", state.stage);
        let silent = state.stage.acts_on_output() && state.alpha.is_zero();
        must!(rule, !(silent && weight > 0.0), "{seed} has the weight {weight} at alpha 0");
        sum += weight;
    }
    must!(rule, sum <= 1.0 + SUM_SLACK, "the weights sum to {sum}");
    must!(rule, (sum + host_share - 1.0).abs() <= SUM_SLACK, "weights {sum} and host share {host_share} do not make 1");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lifecycle::Lifecycle;

    #[track_caller]
    fn check(weights: &[(u32, f64)], host_share: f64, complaint: &str) {
        let mut life = Lifecycle::new(2);
        for slot in life.slots().to_vec() {
            let blueprint = slot.offers[0].blueprint.clone();
            life.apply(&Operation::germinate(slot.slot, blueprint)).unwrap();
        }
        life.apply(&Operation::StartTraining { seed: SeedId(1) }).unwrap();
        let weights: Vec<_> = weights.iter().map(|&(seed, weight)| (SeedId(seed), weight)).collect();
        let outcome = std::panic::catch_unwind(|| check_weights("SM-4", &weights, host_share, life.seeds()));
        let message = *outcome.unwrap_err().downcast::<String>().unwrap();
        assert!(message.starts_with("SM-4: ") && message.contains(complaint), "{message}");
    }

    #[test]
    fn weights_that_attribution_itself_would_refuse_fail_too() {
        check(&[(1, 1.2)], 0.0, "sum to 1.2");
        check(&[(1, f64::NAN)], 0.0, "is NaN");
        check(&[(1, -0.1)], 1.0, "is -0.1");
        check(&[(1, 0.5)], 0.9, "do not make 1");
        check(&[(2, 0.1)], 0.9, "is germinated");
        check(&[(3, 0.1)], 0.9, "not exported");
    }
}

/// SM-12: a manager that was told no task attributes a batch without one, or refuses to with
/// [`ErrorKind::Unsupported`]; of two that it was told, it uses the second.
pub fn sm_12_losses_are_those_of_the_task_told_last<M: SeedManager>(make: &impl Fn() -> SeedManagerHarness<M>) {
    const RULE: &str = "SM-12";
    let mut untold = make();
    let eager = succeed(RULE, "acquiring this thread's token", Eager::acquire());
    if let Err(error) = untold.manager.attribute_batch(&eager, &untold.batch) {
        refuse::<(), _>(RULE, "attribute_batch without a task", Err(error), ErrorKind::Unsupported);
    }
    drop(eager);
    let mut harness = make();
    let task = std::mem::replace(&mut harness.task, Arc::new(Unusable));
    let mut driver = Driver::new(RULE, harness);
    succeed(RULE, "train_for", driver.harness.manager.train_for(&driver.eager, &task));
    if driver.harness.has_slots {
        let (seed, _) = driver.train();
        driver.blend(seed);
    }
    driver.finish_epoch();
    let Driver { harness: SeedManagerHarness { manager, batch, .. }, eager, .. } = &mut driver;
    succeed(RULE, "inspect_batch with the task told last", manager.inspect_batch(eager, batch));
    succeed(RULE, "attribute_batch with the task told last", manager.attribute_batch(eager, batch));
}

/// SM-13: a seed that was removed has no parameters in the layout and is not live; otherwise nothing has changed.
pub fn sm_13_a_seed_that_was_removed_is_out_of_the_network<M: SeedManager>(make: &impl Fn() -> SeedManagerHarness<M>) {
    const RULE: &str = "SM-13";
    for is_blended in [false, true] {
        let mut driver = Driver::new(RULE, make());
        if !driver.harness.has_slots {
            return driver.must_have_no_seeds();
        }
        let (seed, _) = driver.train();
        if is_blended {
            driver.blend(seed);
        }
        let before = driver.observe();
        let Driver { harness, eager, .. } = &mut driver;
        if !succeed(RULE, "remove_seed", harness.manager.remove_seed(eager, seed, "contract")) {
            driver.must_be_unchanged(&before, "a seed that was not removed");
            continue;
        }
        let layout = driver.harness.manager.model().layout();
        let is_gone = layout.segments().iter().all(|segment| segment.spec.owner != Owner::Seed(seed));
        must!(RULE, is_gone, "{seed} was removed, and its parameters are in the layout");
        let stage = driver.stage_of(seed);
        must!(RULE, stage.is_none_or(|stage| !stage.is_live()), "{seed} was removed, and its stage is {stage:?}");
    }
}

/// Fails whenever it is asked for a loss.
#[derive(Debug)]
struct Unusable;

impl Task for Unusable {
    fn describe(&self) -> String {
        "nothing".to_owned()
    }

    fn losses(&self, _: &Tensor, _: &Tensor) -> candle_core::Result<Tensor> {
        candle_core::bail!("the task that was told first was used")
    }

    fn check_targets(&self, _: &Tensor) -> candle_core::Result<()> {
        Ok(())
    }
}
