//! 100 steps and 100 rates as PyTorch has them.

use leyline::id::StepIndex;
use leyline::layout::{ParameterLayout, SegmentSpec};
use serde_json::Value;

use super::super::{Decay, Decays, GroupsConfig, Optimizer, OptimizerConfig, ScheduleConfig};
use super::{ADAM_W, LION, MOMENTUM, NESTEROV};
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
#[expect(clippy::cast_possible_truncation, reason = "parameters are f32")]
fn check(name: &str, config: OptimizerConfig, groups: GroupsConfig) {
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
    assert_close(&flat(&parameters), &reference("parameters", name), TOLERANCE);
}

#[test]
fn each_optimizer_takes_a_hundred_steps_as_its_reference() {
    let alike = GroupsConfig::default();
    check("sgd", OptimizerConfig::Sgd { momentum: 0.0, nesterov: false, weight_decay: 0.05 }, alike);
    check("momentum", MOMENTUM, alike);
    check("nesterov", NESTEROV, alike);
    check("adam_w", ADAM_W, alike);
    check("lion", LION, alike);
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
