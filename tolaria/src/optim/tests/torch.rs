//! 100 steps and 100 rates as PyTorch has them.

use leyline::id::StepIndex;
use leyline::layout::{ParameterLayout, SegmentSpec};
use serde_json::Value;

use super::super::{Decay, Decays, GroupsConfig, Optimizer, OptimizerConfig, ScheduleConfig};
use super::{ADAM_W, LION, MOMENTUM, MUON, NESTEROV};
use crate::testing::{HOST, assert_close, flat, layout, parameters, seed, vector};

const STEPS: u32 = 100;
const RATE: f64 = 0.02;
/// Rounding of numbers of about 1, a few times in each of 100 steps, with gradients that follow them.
const TOLERANCE: f64 = 5e-5;

fn reference(section: &str, name: &str) -> Vec<f64> {
    let all: Value = serde_json::from_str(include_str!("../../../tests/data/torch_optimizers.json")).unwrap();
    let found: Vec<f64> = serde_json::from_value(all[section][name].clone()).unwrap();
    assert!(found.len() == if section == "rates" { 100 } else { 9 }, "{name}");
    found
}

#[track_caller]
fn check(name: &str, config: OptimizerConfig, groups: GroupsConfig) {
    assert_close(&after_all_steps(config, groups), &reference("parameters", name), TOLERANCE);
}

#[expect(clippy::cast_possible_truncation, reason = "parameters are f32")]
fn after_all_steps(config: OptimizerConfig, groups: GroupsConfig) -> Vec<f32> {
    // A matrix of the host and a vector of a seed.
    let flat_layout = layout(&[("b", 3, seed(1), false), ("a", 6, HOST, false)]);
    let with_shape = |spec: &SegmentSpec| SegmentSpec {
        shape: if spec.name == "a" { vec![2, 3] } else { spec.shape.clone() },
        ..spec.clone()
    };
    let specs = flat_layout.segments().iter().map(|segment| with_shape(&segment.spec)).collect();
    let layout = ParameterLayout::new(flat_layout.revision(), specs).unwrap();
    let start: Vec<f32> = (1..10_u8).map(|place| f64::from(place).sin() as f32).collect();
    let parameters = parameters(&flat_layout, &start);
    let mut optimizer = Optimizer::with_groups(config, groups);
    for step in 0..STEPS {
        let gradient: Vec<f32> = (1..10_u8)
            .zip(flat(&parameters))
            .map(|(place, x)| ((0.7 * f64::from(step) * f64::from(place)).cos() + 0.3 * f64::from(x)) as f32)
            .collect();
        optimizer.step(&parameters, &layout, &vector(&gradient), RATE).unwrap();
    }
    flat(&parameters)
}

#[test]
fn each_optimizer_takes_a_hundred_steps_as_its_reference() {
    let alike = GroupsConfig::default();
    check("sgd", OptimizerConfig::Sgd { momentum: 0.0, nesterov: false, weight_decay: 0.05 }, alike);
    check("momentum", MOMENTUM, alike);
    check("nesterov", NESTEROV, alike);
    check("adam_w", ADAM_W, alike);
    check("lion", LION, alike);
    check("muon", MUON, alike);
    let OptimizerConfig::Muon { momentum, beta1, beta2, eps, weight_decay, .. } = MUON else { unreachable!() };
    let plain = OptimizerConfig::Muon { momentum, nesterov: false, beta1, beta2, eps, weight_decay };
    check("muon_plain", plain, alike);
    // PyTorch's iteration has 8 bits; what it makes orthogonal is off by 1 % of a step of 0.007, a hundred times.
    assert_close(&after_all_steps(MUON, alike), &reference("parameters", "muon_rounded"), 0.02);
    check("groups", ADAM_W, GroupsConfig { decay: Decays::Matrices, seed_rate: 2.0, ..alike });
    check("frozen", ADAM_W, GroupsConfig { seed_rate: 0.0, ..alike });
}

#[test]
fn what_does_not_learn_keeps_its_bits_whatever_the_optimizer() {
    for config in super::ALL {
        let layout = layout(&[("a", 3, HOST, false), ("b", 3, seed(1), false)]);
        let parameters = parameters(&layout, &[1.5, -0.0, 3.0, 0.1, 0.2, 0.3]);
        let groups = GroupsConfig { host_rate: 0.0, ..GroupsConfig::default() };
        let mut optimizer = Optimizer::with_groups(config, groups);
        for _ in 0..3 {
            optimizer.step(&parameters, &layout, &vector(&[1.0; 6]), RATE).unwrap();
        }
        let after = flat(&parameters);
        assert_eq!(crate::testing::bits(&after[..3]), crate::testing::bits(&[1.5, -0.0, 3.0]), "{config:?}");
        assert!(after[3] < 0.1, "{config:?}");
    }
}

#[test]
fn numbers_stay_numbers_however_large_a_gradient_is() {
    for config in super::ALL {
        let layout = layout(&[("a", 3, HOST, false)]);
        let parameters = parameters(&layout, &[1.5, -0.0, 3.0]);
        let mut optimizer = Optimizer::with_groups(config, GroupsConfig::default());
        optimizer.step(&parameters, &layout, &vector(&[1e20, -1e20, 0.0]), RATE).unwrap();
        assert!(flat(&parameters).iter().all(|x| x.is_finite()), "{config:?}: {:?}", flat(&parameters));
    }
}

#[track_caller]
fn check_rates(name: &str, warmup_steps: u64, decay: Decay) {
    let schedule = ScheduleConfig { warmup_steps, decay, ..ScheduleConfig::constant(1.0) };
    assert_eq!(schedule.validate(), []);
    for (step, expected) in (0..).zip(reference("rates", name)) {
        let found = schedule.at(StepIndex(step), 100);
        assert!((found - expected).abs() < 1e-9, "{name}, step {step}: {found}, expected {expected}");
    }
}

#[test]
fn each_schedule_has_the_rates_of_its_reference() {
    check_rates("cosine", 10, Decay::Cosine { final_ratio: 0.05 });
    check_rates("linear", 0, Decay::Linear { final_ratio: 0.1 });
    check_rates("wsd", 0, Decay::Wsd { last_part: 0.2, final_ratio: 0.1 });
    let one_cycle = r#"{"learning_rate":1.0,"decay":{"kind":"one_cycle"}}"#;
    check_rates("one_cycle", 0, serde_json::from_str::<ScheduleConfig>(one_cycle).unwrap().decay);
}

/// The rule of PyTorch's `AveragedModel` with `get_ema_multi_avg_fn`: the first update copies, the others interpolate; in `f64`.
#[test]
fn averages_follow_their_rule_over_a_hundred_steps_of_every_optimizer() {
    const DECAY: f64 = 0.97;
    for config in super::ALL {
        let layout = layout(&[("a", 6, HOST, false), ("b", 3, seed(1), false)]);
        let start: Vec<f32> = (1..10_u8).map(|place| f32::from(place).sin()).collect();
        let [vars, plain_vars] = [parameters(&layout, &start), parameters(&layout, &start)];
        let mut optimizer = Optimizer::new(config).averaging(Some(DECAY));
        let mut plain = Optimizer::new(config);
        let mut expected: Vec<f64> = Vec::new();
        for step in 0..STEPS {
            let gradient: Vec<f32> = (1..10_u8).map(|place| (0.7 * step as f32 * f32::from(place)).cos()).collect();
            optimizer.step(&vars, &layout, &vector(&gradient), RATE).unwrap();
            plain.step(&plain_vars, &layout, &vector(&gradient), RATE).unwrap();
            let now = flat(&vars);
            assert_eq!(
                crate::testing::bits(&now),
                crate::testing::bits(&flat(&plain_vars)),
                "{config:?}: averages change nothing"
            );
            expected = match step {
                0 => now.iter().map(|x| f64::from(*x)).collect(),
                _ => expected.iter().zip(&now).map(|(a, x)| DECAY * a + (1.0 - DECAY) * f64::from(*x)).collect(),
            };
        }
        let before = flat(&vars);
        optimizer.exchange_averages(&vars).unwrap();
        assert_close(&flat(&vars), &expected, 1e-6);
        optimizer.exchange_averages(&vars).unwrap();
        assert_eq!(crate::testing::bits(&flat(&vars)), crate::testing::bits(&before), "{config:?}: and back");
    }
}

#[test]
fn averages_stay_in_skipped_steps_and_go_on_when_the_network_changes_or_is_restored() {
    use leyline::durable::Durable as _;
    use leyline::region::Eager;

    let small = layout(&[("a", 3, HOST, false)]);
    let vars = parameters(&small, &[1.0, 2.0, 3.0]);
    let mut optimizer = Optimizer::new(ADAM_W).averaging(Some(0.5));
    let averages = |optimizer: &Optimizer, vars: &[leyline::model::Parameter]| {
        optimizer.exchange_averages(vars).unwrap();
        let found = crate::testing::bits(&flat(vars));
        optimizer.exchange_averages(vars).unwrap();
        found
    };
    for _ in 0..3 {
        optimizer.step(&vars, &small, &vector(&[1.0, -1.0, 0.5]), RATE).unwrap();
    }
    let kept = averages(&optimizer, &vars);
    assert_ne!(kept, crate::testing::bits(&flat(&vars)));
    // A window that was not finite: its factor is no number.
    let plan = optimizer.prepare(&vars, &small, RATE).unwrap();
    let gradient = vector(&[f32::NAN; 3]);
    let factors = crate::aggregate::Factors::Host(vec![f64::NAN]);
    let skipped = crate::aggregate::Terms {
        rows: vec![&gradient],
        coefficients: &crate::aggregate::Coefficients::One,
        factors: &factors,
        workspace: None,
    };
    optimizer.apply_terms(&vars, &small, &skipped, &plan, None).unwrap();
    assert_eq!(averages(&optimizer, &vars), kept);

    let grown = layout(&[("a", 3, HOST, false), ("b", 2, seed(1), false)]);
    let mut both = vars.clone();
    both.extend(parameters(&layout(&[("b", 2, seed(1), false)]), &[5.0, 6.0]));
    optimizer.step(&both, &grown, &vector(&[0.0; 5]), RATE).unwrap();
    let all = averages(&optimizer, &both);
    assert_eq!(all[3..], crate::testing::bits(&flat(&both)[3..]), "the first update makes it the parameter");

    let saved = crate::testing::saved_state(&optimizer);
    let names: Vec<&str> = super::super::averages(&saved).map(|(name, _)| name).collect();
    assert_eq!(names, ["a", "b"]);
    let mut eager = Eager::acquire().unwrap();
    let mut again = Optimizer::new(ADAM_W).averaging(Some(0.5));
    again.restore(&mut eager, &saved).unwrap();
    assert_eq!(averages(&again, &both), all);
    let error = Optimizer::new(ADAM_W).restore(&mut eager, &saved).unwrap_err().to_string();
    assert!(error.contains("expected averages of parameters where they are kept"), "{error}");
    // Also where a rule has no moments, and so no steps.
    let mut averaging = Optimizer::new(super::PLAIN).averaging(Some(0.5));
    averaging.step(&both, &grown, &vector(&[0.0; 5]), RATE).unwrap();
    let saved = averaging.save(&eager).unwrap();
    let error = Optimizer::new(super::PLAIN).restore(&mut eager, &saved).unwrap_err();
    assert!(error.to_string().contains("expected averages of parameters where they are kept"), "{error}");

    // The seed goes, and comes back only if it was parked.
    for (parked, expected) in [(vec![seed(1)], 2), (vec![], 1)] {
        again.retain(&small, &parked);
        assert_eq!(super::super::averages(&again.save(&eager).unwrap()).count(), expected);
    }
}
