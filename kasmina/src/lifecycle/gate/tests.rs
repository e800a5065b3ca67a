//! Each gate with evidence around its thresholds.

use leyline::command::{AlphaCurve, AlphaRamp};
use leyline::seed::{Confirmation, Confirmed, Confirming, Counterfactual, Gate, GateReport, GradientHealth, SeedStage};
use leyline::unit::Alpha;
use proptest::prelude::*;

use crate::lifecycle::gate::{Aged, Germination, Subject, Surroundings, evaluate, evaluate_germination};
use crate::lifecycle::table::{Condition, MOVES, Move, Trigger};
use crate::lifecycle::{AlphaController, GateConfig, HistoryEntry};

const HEALTHY: GradientHealth = GradientHealth { norm: 0.3, host_ratio: Some(1.0), health: 1.0 };
const USEFUL: Counterfactual =
    Counterfactual { loss_gain: 0.1, std_error: 0.01, accuracy_gain_pp: Some(1.0), num_samples: 100 };
const AROUND: Surroundings = Surroundings {
    network_parameters: 100,
    in_network: false,
    embargo_epochs: 3,
    audit_every_epochs: 4,
    confirming: None,
};

fn resting(alpha: f64) -> AlphaController {
    AlphaController::new(Alpha::new(alpha).unwrap())
}

/// Measured in the epoch that just ended.
fn now<T>(value: T) -> Option<Aged<T>> {
    Some(Aged { value, age: Some(0) })
}

fn running() -> AlphaController {
    let mut alpha = resting(0.0);
    alpha.retarget(AlphaRamp { target: Alpha::ONE, steps: 3, curve: AlphaCurve::Linear }).unwrap();
    alpha
}

fn verdict(config: &GateConfig, subject: &Subject<'_>, around: Surroundings, gate: Gate) -> GateReport {
    let row = MOVES.iter().find(|row| row.gate == Some(gate) && row.trigger != Trigger::Resume).unwrap();
    evaluate(config, subject, around, row).unwrap()
}

/// `failed`: a part of each failed condition, in order.
#[track_caller]
fn check_report(report: &GateReport, failed: &[&str]) {
    assert_eq!(report.failed.len(), failed.len(), "{report:?}");
    for (found, part) in report.failed.iter().zip(failed) {
        assert!(found.contains(part), "`{found}` does not contain `{part}`");
    }
    assert_eq!(report.passed, failed.is_empty());
    assert_eq!(report.passed, report.score >= 1.0, "{report:?}");
    assert!((0.0..=1.0).contains(&report.score), "{report:?}");
    assert!(!report.met.is_empty() || !report.passed, "a passed gate says what was met");
}

#[track_caller]
fn check_with(config: &GateConfig, subject: Subject<'_>, gate: Gate, failed: &[&str]) {
    check_report(&verdict(config, &subject, AROUND, gate), failed);
}

#[track_caller]
fn check(subject: Subject<'_>, gate: Gate, failed: &[&str]) {
    check_with(&GateConfig::default(), subject, gate, failed);
}

fn subject(stage: SeedStage, epochs_in_stage: u64, alpha: &AlphaController) -> Subject<'_> {
    Subject {
        stage,
        epochs_in_stage,
        paused: false,
        weights_pending: false,
        isolation_violations: 0,
        num_parameters: 40,
        prewarm_ms: None,
        alpha,
        epochs_since_audit: Some(1),
        counterfactual: now(USEFUL),
        gradient: now(HEALTHY),
        stability: Some(1.0),
        confirmation: None,
        last_move: None,
    }
}

#[test]
fn germination_has_a_report_with_every_condition() {
    let config = GateConfig { max_seed_parameters: Some(40), max_total_parameters: Some(100), ..GateConfig::default() };
    let good = Germination {
        slot_is_free: true,
        blueprint_is_known: true,
        blueprint_fits: true,
        shape_is_kept: true,
        num_parameters: 40,
        network_parameters: 100,
    };
    let check = |germination: Germination, failed: &[&str]| {
        check_report(&evaluate_germination(&config, &germination), failed);
    };
    check(good, &[]);
    check(Germination { slot_is_free: false, blueprint_fits: false, ..good }, &["slot free", "blueprint fits"]);
    check(Germination { blueprint_is_known: false, shape_is_kept: false, ..good }, &["blueprint known", "shape kept"]);
    check(Germination { num_parameters: 41, ..good }, &["41 parameters of the seed, needs at most 40"]);
    check(Germination { network_parameters: 101, ..good }, &["101 parameters of the network, needs at most 100"]);
}

#[test]
fn training_starts_from_germination_with_weights_and_without_a_leak() {
    let alpha = resting(0.0);
    let good = subject(SeedStage::Germinated, 0, &alpha);
    let gate = Gate::GradientHealth;
    check(good, gate, &[]);
    check(subject(SeedStage::Holding, 0, &alpha), gate, &["stage holding"]);
    check(Subject { weights_pending: true, ..good }, gate, &["weights pending"]);
    check(Subject { paused: true, ..good }, gate, &["paused"]);
    check(Subject { isolation_violations: 2, ..good }, gate, &["2 isolation violations"]);
}

#[test]
fn a_resumption_needs_weights_and_no_leak_in_whatever_stage() {
    let alpha = resting(0.4);
    for row in MOVES.iter().filter(|row| row.trigger == Trigger::Resume) {
        let good = Subject { paused: true, ..subject(row.from, 0, &alpha) };
        let judge = |subject| evaluate(&GateConfig::default(), &subject, AROUND, row).unwrap();
        check_report(&judge(good), &[]);
        check_report(&judge(Subject { weights_pending: true, ..good }), &["weights pending"]);
        check_report(&judge(Subject { isolation_violations: 1, ..good }), &["1 isolation violations"]);
    }
}

#[test]
fn blending_needs_time_a_healthy_gradient_and_a_certain_gain() {
    let alpha = resting(0.0);
    let good = subject(SeedStage::Training, 4, &alpha);
    let gate = Gate::Stability;
    check(good, gate, &[]);
    check(Subject { epochs_in_stage: 3, ..good }, gate, &["3 epochs in training, needs 4"]);
    check(Subject { gradient: None, ..good }, gate, &["gradient health not measured"]);
    for (health, passes) in [
        (0.7, true),
        (1.0, true),
        (0.699, false),
        (-1.0, false),
        (1.1, false),
        (f64::INFINITY, false),
        (f64::NAN, false),
    ] {
        let failed: &[&str] = if passes { &[] } else { &["gradient health"] };
        check(Subject { gradient: now(GradientHealth { health, ..HEALTHY }), ..good }, gate, failed);
    }
    let exploding = GradientHealth { norm: f64::INFINITY, ..HEALTHY };
    check(Subject { gradient: now(exploding), ..good }, gate, &["gradient norm inf"]);
    check(Subject { counterfactual: None, ..good }, gate, &["loss gain not measured"]);
    for (loss_gain, std_error, passes) in [
        (0.1, 0.078, true),
        (0.1, 0.079, false),
        (0.0, 0.0, false),
        (-0.1, 0.01, false),
        (f64::NAN, 0.01, false),
        (0.1, f64::NAN, false),
        (0.1, -1.0, false),
        (f64::INFINITY, 0.01, false),
    ] {
        let measured = Counterfactual { loss_gain, std_error, ..USEFUL };
        let failed: &[&str] = if passes { &[] } else { &["loss gain"] };
        check(Subject { counterfactual: now(measured), ..good }, gate, failed);
    }
    let nobody = Counterfactual { num_samples: 0, ..USEFUL };
    check(Subject { counterfactual: now(nobody), ..good }, gate, &["loss gain not measured"]);
    check(Subject { isolation_violations: 1, ..good }, gate, &["1 isolation violations"]);
}

#[test]
fn a_gain_must_be_steady_where_a_gain_is_asked_for() {
    let (alpha, full) = (resting(0.0), resting(1.0));
    let steady = GateConfig { min_stability: 0.5, ..GateConfig::default() };
    for (good, gate) in [
        (subject(SeedStage::Training, 4, &alpha), Gate::Stability),
        (subject(SeedStage::Holding, 2, &full), Gate::SystemImpact),
    ] {
        for (stability, passes) in [(0.5, true), (0.49, false), (f64::NAN, false)] {
            let failed: &[&str] = if passes { &[] } else { &["stability"] };
            check_with(&steady, Subject { stability: Some(stability), ..good }, gate, failed);
            check(Subject { stability: Some(stability), ..good }, gate, &[]);
        }
        check_with(&steady, Subject { stability: None, ..good }, gate, &["stability not measured"]);
        check(Subject { stability: None, ..good }, gate, &[]);
    }
    let lenient = GateConfig { require_gain: false, ..steady };
    let unmeasured = Subject { counterfactual: None, stability: None, ..subject(SeedStage::Training, 4, &alpha) };
    check_with(&lenient, unmeasured, Gate::Stability, &[]);
}

#[test]
fn a_seed_that_is_too_slow_or_was_not_timed_may_not_blend() {
    let alpha = resting(0.0);
    let good = subject(SeedStage::Training, 4, &alpha);
    let config = GateConfig { latency_budget_ms: Some(2.0), ..GateConfig::default() };
    for (prewarm_ms, failed) in [
        (Some(2.0), None),
        (Some(2.5), Some("latency 2.500 ms")),
        (Some(f64::NAN), Some("latency NaN")),
        (None, Some("latency not measured")),
    ] {
        check_with(&config, Subject { prewarm_ms, ..good }, Gate::Stability, failed.as_slice());
    }
}

#[test]
fn holding_needs_the_end_of_a_ramp_to_one() {
    let (ended, partial, running) = (resting(1.0), resting(0.5), running());
    let gate = Gate::Interface;
    check(subject(SeedStage::Blending, 0, &ended), gate, &[]);
    check(subject(SeedStage::Blending, 9, &partial), gate, &["alpha target 0.5"]);
    check(subject(SeedStage::Blending, 9, &running), gate, &["alpha ramp Up"]);
    let patient = GateConfig { blending_min_epochs: 3, ..GateConfig::default() };
    check_with(&patient, subject(SeedStage::Blending, 2, &ended), gate, &["2 epochs in blending, needs 3"]);
    check_with(&patient, subject(SeedStage::Blending, 3, &ended), gate, &[]);
}

#[test]
fn becoming_permanent_needs_time_a_gain_above_the_threshold_and_room() {
    let alpha = resting(1.0);
    let good = subject(SeedStage::Holding, 2, &alpha);
    let gate = Gate::SystemImpact;
    check(good, gate, &[]);
    check(Subject { epochs_in_stage: 1, ..good }, gate, &["1 epochs in holding, needs 2"]);
    check(Subject { counterfactual: None, ..good }, gate, &["loss gain not measured"]);
    let demanding = GateConfig { min_loss_gain: 0.2, ..GateConfig::default() };
    check_with(&demanding, good, gate, &["needs > 0.2"]);
    for (max_seed_parameters, max_total_parameters, failed) in [
        (Some(40), Some(100), &[][..]),
        (Some(39), Some(99), &["40 parameters of the seed", "100 parameters of the network"]),
    ] {
        let config = GateConfig { max_seed_parameters, max_total_parameters, ..GateConfig::default() };
        check_with(&config, good, gate, failed);
    }
}

#[test]
fn a_slot_is_free_when_nothing_of_the_seed_is_left() {
    let alpha = resting(0.0);
    let embargoed = |to, epochs_in_stage| HistoryEntry {
        age_epochs: 9,
        from: SeedStage::Embargoed,
        to,
        epochs_in_stage,
        reason: String::new(),
    };
    let (whole, short) = (embargoed(SeedStage::Resetting, 2), embargoed(SeedStage::Resetting, 1));
    let elsewhere = embargoed(SeedStage::Pruned, 2);
    let good = Subject { num_parameters: 0, last_move: Some(&whole), ..subject(SeedStage::Resetting, 1, &alpha) };
    let judge = |subject: Subject<'_>, around: Surroundings, failed: &[&str]| {
        check_report(&verdict(&GateConfig::default(), &subject, around, Gate::Reset), failed);
    };
    judge(good, AROUND, &[]);
    judge(good, Surroundings { in_network: true, ..AROUND }, &["a graft is left"]);
    judge(Subject { num_parameters: 7, ..good }, AROUND, &["7 parameters left"]);
    judge(Subject { last_move: Some(&short), ..good }, AROUND, &["2 epochs in embargoed, needs 3"]);
    judge(Subject { last_move: Some(&short), epochs_in_stage: 2, ..good }, AROUND, &[]);
    judge(Subject { last_move: Some(&elsewhere), ..good }, AROUND, &["history incomplete"]);
    judge(Subject { last_move: None, ..good }, AROUND, &["0 epochs in embargoed", "history incomplete"]);
}

/// Everything that a gate measures, missing, old, no number or of too few samples.
#[test]
fn no_gate_passes_on_what_was_not_measured() {
    let (zero, full, running, nan) = (resting(0.0), resting(1.0), running(), f64::NAN);
    let strict = GateConfig { min_stability: 0.5, latency_budget_ms: Some(1.0), ..GateConfig::default() };
    let germinated = subject(SeedStage::Germinated, 0, &zero);
    let training = Subject { prewarm_ms: Some(0.5), ..subject(SeedStage::Training, 4, &zero) };
    let (blending, holding) = (subject(SeedStage::Blending, 0, &full), subject(SeedStage::Holding, 2, &full));
    let served = HistoryEntry {
        age_epochs: 9,
        from: SeedStage::Embargoed,
        to: SeedStage::Resetting,
        epochs_in_stage: 3,
        reason: String::new(),
    };
    let resetting = Subject { num_parameters: 0, last_move: Some(&served), ..subject(SeedStage::Resetting, 0, &zero) };
    let gain = |loss_gain, std_error, num_samples| {
        now(Counterfactual { loss_gain, std_error, accuracy_gain_pp: Some(0.0), num_samples })
    };
    let health = |health, norm| now(GradientHealth { health, norm, host_ratio: None });
    let aged = |age| (Some(Aged { value: USEFUL, age }), Some(Aged { value: HEALTHY, age }));
    let ((old_gain, old_health), (lost_gain, lost_health)) = (aged(Some(2)), aged(None));
    let unwatched = Surroundings { audit_every_epochs: 0, ..AROUND };

    let check = |what: &str, subject: Subject<'_>, around: Surroundings, gate: Gate, failed: &str| {
        let report = verdict(&strict, &subject, around, gate);
        let is_named = report.failed.iter().any(|condition| condition.contains(failed));
        assert!(!report.passed && is_named, "{gate}, {what}: {report:?}");
    };
    for (gate, good) in [
        (Gate::GradientHealth, germinated),
        (Gate::Stability, training),
        (Gate::Interface, blending),
        (Gate::SystemImpact, holding),
        (Gate::Reset, resetting),
    ] {
        check_report(&verdict(&strict, &good, AROUND, gate), &[]);
    }
    for (gate, good) in [(Gate::Stability, training), (Gate::SystemImpact, holding)] {
        for (what, counterfactual, failed) in [
            ("no gain", None, "loss gain not measured"),
            ("an old gain", old_gain, "loss gain measured 2 epochs ago, needs at most 1"),
            ("a gain of no known epoch", lost_gain, "loss gain not measured in an epoch that is known"),
            ("no sample", gain(1.0, 0.0, 0), "loss gain not measured: 0 samples"),
            ("one sample", gain(1.0, 0.0, 1), "loss gain not measured: 1 samples"),
            ("a gain that is no number", gain(nan, 0.1, 9), "loss gain NaN"),
            ("an infinite gain", gain(f64::INFINITY, 0.1, 9), "loss gain inf"),
            ("an error that is no number", gain(1.0, nan, 9), "standard error NaN"),
            ("an infinite error", gain(1.0, f64::INFINITY, 9), "standard error inf"),
            ("a negative error", gain(1.0, -1.0, 9), "standard error -1"),
        ] {
            check(what, Subject { counterfactual, ..good }, AROUND, gate, failed);
        }
        check("no stability", Subject { stability: None, ..good }, AROUND, gate, "stability not measured");
        check("a stability of NaN", Subject { stability: Some(nan), ..good }, AROUND, gate, "stability NaN");
    }
    for (what, gradient, failed) in [
        ("no gradient", None, "gradient health not measured"),
        ("an old gradient", old_health, "gradient health measured 2 epochs ago, needs at most 1"),
        ("a gradient of no known epoch", lost_health, "gradient health not measured in an epoch that is known"),
        ("a health that is no number", health(nan, 1.0), "gradient health NaN"),
        ("a norm that is no number", health(1.0, nan), "gradient norm NaN"),
        ("an infinite norm", health(1.0, f64::INFINITY), "gradient norm inf"),
        ("a negative norm", health(1.0, -1.0), "gradient norm -1"),
    ] {
        check(what, Subject { gradient, ..training }, AROUND, Gate::Stability, failed);
    }
    for (what, prewarm_ms) in [("no latency", None), ("a latency of NaN", Some(nan))] {
        check(what, Subject { prewarm_ms, ..training }, AROUND, Gate::Stability, "latency ");
    }
    for (what, epochs_since_audit, failed) in [
        ("no audit", None, "isolation not measured: no audit in this stage"),
        ("an old audit", Some(5), "isolation measured 5 epochs ago, needs at most 4"),
    ] {
        check(what, Subject { epochs_since_audit, ..training }, AROUND, Gate::Stability, failed);
    }
    for (gate, good) in [(Gate::GradientHealth, germinated), (Gate::Stability, training)] {
        check("no audits", good, unwatched, gate, "isolation not measured: `isolation.check_every_epochs` is 0");
    }
    check("a ramp", Subject { alpha: &running, ..blending }, AROUND, Gate::Interface, "alpha ramp");
    check("no history", Subject { last_move: None, ..resetting }, AROUND, Gate::Reset, "history incomplete");
    for row in MOVES.iter().filter(|row| row.trigger == Trigger::Resume) {
        let report = evaluate(&strict, &subject(row.from, 0, &zero), unwatched, row).unwrap();
        check_report(&report, &["isolation not measured"]);
    }
}

#[test]
fn how_old_evidence_may_be_is_a_setting() {
    let alpha = resting(1.0);
    for max_evidence_age_epochs in 0..3 {
        let config = GateConfig { max_evidence_age_epochs, ..GateConfig::default() };
        for age in 0..5 {
            let counterfactual = Some(Aged { value: USEFUL, age: Some(age) });
            let holding = Subject { counterfactual, ..subject(SeedStage::Holding, 2, &alpha) };
            let report = verdict(&config, &holding, AROUND, Gate::SystemImpact);
            assert_eq!(report.passed, age <= max_evidence_age_epochs, "{report:?}");
        }
    }
}

#[test]
fn a_row_without_a_gate_has_no_verdict() {
    let alpha = resting(1.0);
    for row in MOVES.iter().filter(|row| row.gate.is_none()) {
        assert_eq!(evaluate(&GateConfig::default(), &subject(row.from, 0, &alpha), AROUND, row), None, "{row:?}");
    }
}

#[test]
fn a_score_is_the_mean_degree() {
    let alpha = resting(0.0);
    let blending = Move::find(SeedStage::Training, Condition::Active, Trigger::StartBlending).unwrap();
    let half = Subject { epochs_in_stage: 2, ..subject(SeedStage::Training, 2, &alpha) };
    let report = evaluate(&GateConfig::default(), &half, AROUND, blending).unwrap();
    // Epochs, health, norm, gain, isolation: one of the five is half done.
    assert!((report.score - 4.5 / 5.0).abs() < 1e-12, "{report:?}");
}

#[test]
fn what_is_not_met_counts_by_the_share_that_is_there_and_a_wrong_measurement_for_nothing() {
    #[track_caller]
    fn check(config: &GateConfig, subject: Subject<'_>, around: Surroundings, gate: Gate, degree: f64) {
        let report = verdict(config, &subject, around, gate);
        assert_eq!(report.failed.len(), 1, "{report:?}");
        let met = report.met.len() as f64;
        assert!((report.score * (met + 1.0) - met - degree).abs() < 1e-9, "{report:?}");
    }
    let (off, full) = (resting(0.0), resting(1.0));
    let (training, holding) = (subject(SeedStage::Training, 4, &off), subject(SeedStage::Holding, 2, &full));
    let usual = GateConfig::default();
    let sick = Subject { gradient: now(GradientHealth { health: 0.35, ..HEALTHY }), ..training };
    check(&usual, sick, AROUND, Gate::Stability, 0.5);
    let steady = GateConfig { min_stability: 0.5, ..usual.clone() };
    check(&steady, Subject { stability: Some(0.125), ..training }, AROUND, Gate::Stability, 0.25);
    let quick = GateConfig { latency_budget_ms: Some(1.0), ..usual.clone() };
    check(&quick, Subject { prewarm_ms: Some(2.0), ..training }, AROUND, Gate::Stability, 0.5);
    let demanding = GateConfig { min_loss_gain: 0.2, ..usual.clone() };
    let exact = |loss_gain, std_error| now(Counterfactual { loss_gain, std_error, ..USEFUL });
    check(&demanding, Subject { counterfactual: exact(0.05, 0.0), ..holding }, AROUND, Gate::SystemImpact, 0.25);
    // Where any gain would do there is no share of it.
    check(&usual, Subject { counterfactual: exact(0.1, -1.0), ..training }, AROUND, Gate::Stability, 0.0);
    // How near a confirmation came is nobody's business.
    let around = Surroundings { confirming: Some(NEXT), ..AROUND };
    for p_value in [0.3, 0.5, 1.0] {
        let confirmation = Some(Confirmed { measured: Confirmation { p_value, ..READ }, level: 0.25, passed: false });
        check(&usual, Subject { confirmation, ..training }, around, Gate::Stability, 0.0);
    }
}

const NEXT: Confirming =
    Confirming { num_samples: 180, needed_samples: 50, level: 0.025, min_gain: 0.005, num_read: 0, num_confirmed: 0 };
const READ: Confirmation = Confirmation { loss_gain: 0.1, p_value: 0.01, worst: 1.0, num_samples: 180 };

#[test]
fn where_gains_are_confirmed_blending_and_permanence_ask_for_it_and_how_much_depends_on_a_seed_proves_nothing() {
    let around = Surroundings { confirming: Some(NEXT), ..AROUND };
    let (off, full) = (resting(0.0), resting(1.0));
    let training = subject(SeedStage::Training, 4, &off);
    let holding = subject(SeedStage::Holding, 2, &full);
    let check = |subject: Subject<'_>, around, gate, failed: &[&str]| {
        check_report(&verdict(&GateConfig::default(), &subject, around, gate), failed);
    };
    for (subject, gate) in [(training, Gate::Stability), (holding, Gate::SystemImpact)] {
        check(subject, around, gate, &["gain not confirmed"]);
        let few = Confirming { num_samples: 49, ..NEXT };
        let powerless = Surroundings { confirming: Some(few), ..around };
        check(subject, powerless, gate, &["no power with 49 samples to confirm on, needs 50"]);
        let read = |passed, p_value| {
            let measured = Confirmation { p_value, ..READ };
            Subject { confirmation: Some(Confirmed { measured, level: 0.025, passed }), ..subject }
        };
        check(read(true, 0.01), around, gate, &[]);
        check(read(true, 0.0), around, gate, &[]);
        check(read(false, 0.03), around, gate, &["p 3.00e-2, needs at most 2.50e-2"]);
    }
    // What is above the bound of an epoch is not above that of a test at 2.5 %.
    let weak = Counterfactual { loss_gain: 0.024, std_error: 0.01, ..USEFUL };
    let weak = Subject { counterfactual: now(weak), ..training };
    check(weak, AROUND, Gate::Stability, &[]);
    check(weak, around, Gate::Stability, &["loss gain 0.02400", "gain not confirmed"]);
    // A seed that acts can only show that it does harm.
    let confirmed = Some(Confirmed { measured: READ, level: 0.025, passed: true });
    for (loss_gain, failed) in [(5.0, vec![]), (-0.01, vec![]), (-0.02, vec!["effect -0.02000, upper bound"])] {
        let counterfactual = now(Counterfactual { loss_gain, ..USEFUL });
        check(Subject { confirmation: confirmed, counterfactual, ..holding }, around, Gate::SystemImpact, &failed);
    }
    for broken in [
        Counterfactual { num_samples: 1, ..USEFUL },
        Counterfactual { std_error: -0.01, ..USEFUL },
        Counterfactual { loss_gain: -5.0, std_error: f64::INFINITY, ..USEFUL },
        Counterfactual { loss_gain: f64::INFINITY, ..USEFUL },
    ] {
        let unharmed = Subject { confirmation: confirmed, counterfactual: now(broken), ..holding };
        check(unharmed, around, Gate::SystemImpact, &["effect "]);
    }
}

#[test]
fn a_gate_that_is_switched_off_asks_for_nothing_but_what_a_life_cannot_do_without_and_no_other_does() {
    let full = resting(1.0);
    let bad = Subject { isolation_violations: 1, counterfactual: None, ..subject(SeedStage::Germinated, 0, &full) };
    for off in Gate::ALL {
        let config = GateConfig { off: vec![off], blending_min_epochs: 1, ..GateConfig::default() };
        for gate in &Gate::ALL[1..] {
            assert_eq!(verdict(&config, &bad, AROUND, *gate).passed, *gate == off, "{gate:?} with {off:?} off");
        }
    }
    let all = GateConfig { off: Gate::ALL.to_vec(), ..GateConfig::default() };
    let (partial, running) = (resting(0.5), running());
    check_with(&all, Subject { weights_pending: true, ..bad }, Gate::GradientHealth, &["weights pending"]);
    check_with(&all, Subject { alpha: &partial, ..bad }, Gate::Interface, &["alpha target 0.5"]);
    check_with(&all, Subject { alpha: &running, ..bad }, Gate::Interface, &["alpha ramp Up"]);
}

fn any_float() -> impl Strategy<Value = f64> {
    prop_oneof![
        4 => -2.0..2.0_f64,
        1 => prop::sample::select(vec![f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -0.0, 1.0]),
    ]
}

proptest! {
    #[test]
    fn a_score_is_one_exactly_for_a_seed_that_may_pass(
        gate in prop::sample::select(Gate::ALL[1..].to_vec()),
        stage in prop::sample::select(SeedStage::ALL.to_vec()),
        (epochs_in_stage, isolation_violations) in (0..8_u64, 0..2_u64),
        (paused, weights_pending, in_network) in (any::<bool>(), any::<bool>(), any::<bool>()),
        (loss_gain, std_error, health, norm) in (any_float(), any_float(), any_float(), any_float()),
        stability in prop::option::of(any_float()),
        prewarm_ms in prop::option::of(any_float()),
        (min_loss_gain, min_stability) in (-1.0..1.0_f64, 0.0..=1.0_f64),
        alpha in 0.0..=1.0_f64,
    ) {
        let alpha = resting(alpha);
        let subject = Subject {
            epochs_in_stage,
            isolation_violations,
            paused,
            weights_pending,
            stability,
            prewarm_ms,
            counterfactual: now(Counterfactual { loss_gain, std_error, ..USEFUL }),
            gradient: now(GradientHealth { health, norm, host_ratio: None }),
            ..subject(stage, 0, &alpha)
        };
        let config = GateConfig {
            min_loss_gain,
            min_stability,
            latency_budget_ms: Some(1.0),
            max_total_parameters: Some(99),
            ..GateConfig::default()
        };
        let report = verdict(&config, &subject, Surroundings { in_network, ..AROUND }, gate);
        prop_assert_eq!(report.passed, report.failed.is_empty());
        prop_assert_eq!(report.passed, report.score >= 1.0, "{:?}", &report);
        prop_assert!((0.0..=1.0).contains(&report.score), "{:?}", &report);
    }
}
