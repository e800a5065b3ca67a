//! Optimizers against their definition in `f64`, and the life of their state.

mod copies;
mod drawn;
mod fused;
mod halves;
mod torch;

use candle_core::{DType, Device, Tensor};
use leyline::durable::{Durable, SavedState};
use leyline::layout::ParameterLayout;
use leyline::model::Parameter;
use leyline::region::Eager;

use super::rules::{MAX_CONSTANTS, MAX_SETTINGS, SOURCES};
use super::{Optimizer, OptimizerConfig};
use crate::testing::{HOST, assert_close, bits, flat, layout, parameters, random, saved_state, seed, values, vector};

const PLAIN: OptimizerConfig = OptimizerConfig::Sgd { momentum: 0.0, nesterov: false, weight_decay: 0.0 };
const MOMENTUM: OptimizerConfig = OptimizerConfig::Sgd { momentum: 0.9, nesterov: false, weight_decay: 0.05 };
const NESTEROV: OptimizerConfig = OptimizerConfig::Sgd { momentum: 0.8, nesterov: true, weight_decay: 0.01 };
const ADAM_W: OptimizerConfig = OptimizerConfig::AdamW { beta1: 0.9, beta2: 0.99, eps: 1e-8, weight_decay: 0.1 };
const LION: OptimizerConfig = OptimizerConfig::Lion { beta1: 0.9, beta2: 0.99, weight_decay: 0.1 };
const MUON: OptimizerConfig =
    OptimizerConfig::Muon { momentum: 0.9, nesterov: true, beta1: 0.9, beta2: 0.99, eps: 1e-8, weight_decay: 0.1 };
const ALL: [OptimizerConfig; 6] = [PLAIN, MOMENTUM, NESTEROV, ADAM_W, LION, MUON];
const RATE: f64 = 0.03;

/// One number under an optimizer, written down from PyTorch's documentation of `SGD` and `AdamW`, and from the paper of Lion.
struct Reference {
    p: f64,
    moments: [f64; 2],
    steps: i32,
}

impl Reference {
    fn step(&mut self, config: OptimizerConfig, g: f64, lr: f64) {
        self.steps += 1;
        match config {
            OptimizerConfig::Sgd { momentum, nesterov, weight_decay } => {
                let g = g + weight_decay * self.p;
                self.moments[0] = momentum * self.moments[0] + g;
                self.p -= lr * if nesterov { g + momentum * self.moments[0] } else { self.moments[0] };
            }
            // A number alone is no matrix.
            OptimizerConfig::AdamW { beta1, beta2, eps, weight_decay }
            | OptimizerConfig::Muon { beta1, beta2, eps, weight_decay, .. } => {
                self.p -= lr * weight_decay * self.p;
                self.moments[0] = beta1 * self.moments[0] + (1.0 - beta1) * g;
                self.moments[1] = beta2 * self.moments[1] + (1.0 - beta2) * g * g;
                let first = self.moments[0] / (1.0 - beta1.powi(self.steps));
                let second = self.moments[1] / (1.0 - beta2.powi(self.steps));
                self.p -= lr * first / (second.sqrt() + eps);
            }
            OptimizerConfig::Lion { beta1, beta2, weight_decay } => {
                let direction = beta1 * self.moments[0] + (1.0 - beta1) * g;
                let sign = if direction > 0.0 { 1.0 } else { f64::from(-i8::from(direction < 0.0)) };
                self.p -= lr * (sign + weight_decay * self.p);
                self.moments[0] = beta2 * self.moments[0] + (1.0 - beta2) * g;
            }
        }
    }
}

struct Setup {
    layout: ParameterLayout,
    parameters: Vec<Parameter>,
    optimizer: Optimizer,
}

/// Host parameters `a` (3) and `d` (4), with those of seeds in between.
fn setup(config: OptimizerConfig, seeds: &[(&str, usize)]) -> Setup {
    let mut segments = vec![("a", 3, HOST, false), ("d", 4, HOST, false)];
    segments.extend(seeds.iter().map(|&(name, len)| (name, len, seed(1), false)));
    let layout = layout(&segments);
    let parameters = parameters(&layout, &random(layout.num_elements(), 77));
    Setup { layout, parameters, optimizer: Optimizer::new(config) }
}

impl Setup {
    fn step(&mut self, gradient: &[f32]) {
        self.optimizer.step(&self.parameters, &self.layout, &vector(gradient), RATE).unwrap();
    }

    fn gradient(&self, step: u64) -> Vec<f32> {
        random(self.layout.num_elements(), 500 + step)
    }
}

#[test]
fn updates_equal_their_definition() {
    for config in ALL {
        let mut setup = setup(config, &[("b", 2)]);
        let start = flat(&setup.parameters);
        let new = |p: &f32| Reference { p: f64::from(*p), moments: [0.0; 2], steps: 0 };
        let mut reference: Vec<Reference> = start.iter().map(new).collect();
        for step in 0..50 {
            let gradient = setup.gradient(step);
            setup.step(&gradient);
            reference.iter_mut().zip(&gradient).for_each(|(r, g)| r.step(config, f64::from(*g), RATE));
        }
        let expected: Vec<f64> = reference.iter().map(|r| r.p).collect();
        // 50 updates, each rounding numbers of about 1 a few times.
        assert_close(&flat(&setup.parameters), &expected, 2e-5);
        assert_ne!(flat(&setup.parameters), start, "nothing moved");
    }
}

#[test]
fn a_step_takes_each_parameter_from_its_place() {
    let mut setup = setup(PLAIN, &[("b", 2)]);
    let before = flat(&setup.parameters);
    let mut gradient = vec![0.0; 9];
    gradient[4] = 1.0;
    setup.step(&gradient);
    let moved: Vec<usize> = (0..9).filter(|i| bits(&flat(&setup.parameters))[*i] != before[*i].to_bits()).collect();
    assert_eq!((moved, setup.layout.segments()[1].offset), (vec![4], 3));
}

#[test]
fn the_state_of_other_parameters_survives_a_change_of_the_topology() {
    for config in [MOMENTUM, NESTEROV, ADAM_W, LION, MUON] {
        // The host alone, and the same host with a seed that is born after three steps and gone after six.
        let (mut alone, mut grown) = (setup(config, &[]), setup(config, &[]));
        let host = |gradient: &[f32]| -> Vec<f32> { gradient[..3].iter().chain(&gradient[5..]).copied().collect() };
        for step in 0..9 {
            if step == 3 || step == 6 {
                let seeds: &[(&str, usize)] = if step == 3 { &[("b", 2)] } else { &[] };
                let mut next = setup(config, seeds);
                for parameter in &mut next.parameters {
                    if let Some(kept) = grown.parameters.iter().find(|kept| kept.name == parameter.name) {
                        parameter.var = kept.var.clone();
                    }
                }
                grown.optimizer.retain(&next.layout, &[]);
                next.optimizer = grown.optimizer;
                grown = next;
            }
            let gradient = random(9, step);
            alone.step(&host(&gradient));
            let all = if (3..6).contains(&step) { gradient } else { host(&gradient) };
            grown.step(&all);
            let born = (3..6).contains(&step).then(|| step - 2);
            assert_eq!(grown.optimizer.steps_of("b"), born, "a seed counts its own steps");
            assert_eq!(grown.optimizer.steps_of("a"), Some(step + 1));
        }
        assert_eq!(bits(&flat(&alone.parameters)), bits(&flat(&grown.parameters)), "{config:?}");
    }
}

#[test]
fn a_late_parameter_starts_at_its_own_first_step() {
    // With bias correction the first update of AdamW is the learning rate, whatever the gradient.
    let config = OptimizerConfig::AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-12, weight_decay: 0.0 };
    let mut old = setup(config, &[]);
    for step in 0..20 {
        let gradient = old.gradient(step);
        old.step(&gradient);
    }
    let mut grown = setup(config, &[("b", 2)]);
    grown.optimizer = old.optimizer;
    let before = values(&grown.parameters[1].var);
    grown.step(&[0.5, 0.5, 0.5, 1e-3, -7.0, 0.5, 0.5, 0.5, 0.5]);
    let expected: Vec<f64> = before.iter().zip([-RATE, RATE]).map(|(p, move_by)| f64::from(*p) + move_by).collect();
    assert_close(&values(&grown.parameters[1].var), &expected, 1e-7);
}

#[test]
fn a_restored_optimizer_continues_bit_for_bit() {
    for config in ALL {
        let mut straight = setup(config, &[("b", 2)]);
        for step in 0..4 {
            let gradient = straight.gradient(step);
            straight.step(&gradient);
        }
        let saved = saved_state(&straight.optimizer);
        let kept = parameters(&straight.layout, &flat(&straight.parameters));
        let finish = |setup: &mut Setup| {
            for step in 4..8 {
                let gradient = setup.gradient(step);
                setup.step(&gradient);
            }
            bits(&flat(&setup.parameters))
        };
        let expected = finish(&mut straight);
        for attempt in 0..2 {
            let mut resumed = setup(config, &[("b", 2)]);
            resumed.parameters = parameters(&straight.layout, &flat(&kept));
            resumed.optimizer.restore(&mut Eager::acquire().unwrap(), &saved).unwrap();
            assert_eq!(saved_state(&resumed.optimizer).json, saved.json);
            assert_eq!(finish(&mut resumed), expected, "{config:?}: restore {attempt} changed the saved state");
        }
    }
}

#[test]
fn a_state_that_does_not_fit_is_refused_and_nothing_changes() {
    let mut setup = setup(ADAM_W, &[]);
    let gradient = setup.gradient(0);
    setup.step(&gradient);
    let good = saved_state(&setup.optimizer);
    let mut check = |change: &dyn Fn(&mut SavedState), message: &str| {
        let mut saved = good.clone();
        change(&mut saved);
        let error = setup.optimizer.restore(&mut Eager::acquire().unwrap(), &saved).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
        assert_eq!(saved_state(&setup.optimizer).json, good.json);
    };
    let replace = |from: &'static str, to: &'static str| move |s: &mut SavedState| s.json = s.json.replace(from, to);
    check(&replace("adam_w", "sgd"), "expected `adam_w`, found `sgd`");
    check(&replace(":1,\"optimizer", ":2,\"optimizer"), "expected version 1, found 2");
    check(&replace("steps", "step"), "unknown field `step`");
    check(&replace("\"a\"", "\"x\""), "there are moments of `a`, but no step count");
    check(&|s| drop(s.tensors.remove("d")), "`d` has no moments");
    let moments = |tensor: Tensor| move |s: &mut SavedState| drop(s.tensors.insert("d".into(), tensor.clone()));
    check(&moments(vector(&[0.0; 8])), "expected floats of shape (2, elements), found F32 [8]");
    check(&moments(Tensor::zeros((2, 4), DType::U32, &Device::Cpu).unwrap()), "found U32 [2, 4]");
}

#[test]
fn what_does_not_fit_is_refused_before_anything_changes() {
    let mut setup = setup(MOMENTUM, &[]);
    let before = flat(&setup.parameters);
    let mut step = |parameters: &[Parameter], gradient: &Tensor, message: &str| {
        let error = setup.optimizer.step(parameters, &setup.layout, gradient, RATE).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
        assert_eq!(setup.optimizer.steps_of("a"), None);
    };
    let parameters = parameters(&setup.layout, &before);
    step(&parameters[..1], &vector(&[0.0; 7]), "number of parameters: expected 2, found 1");
    step(&parameters, &vector(&[0.0; 6]), "shape of the gradient: expected [7], found [6]");
    let wide = vector(&[0.0; 7]).to_dtype(DType::F64).unwrap();
    step(&parameters, &wide, "parameter `a`: expected F64 on Cpu, found F32 on Cpu");
    assert_eq!(flat(&parameters), before);
}

#[test]
fn a_state_of_another_size_under_the_same_name_is_refused() {
    let mut old = setup(ADAM_W, &[("b", 2)]);
    old.step(&[0.1; 9]);
    let mut new = setup(ADAM_W, &[("b", 5)]);
    new.optimizer = old.optimizer;
    let before = flat(&new.parameters);
    let error = new.optimizer.step(&new.parameters, &new.layout, &vector(&[0.1; 12]), RATE).unwrap_err();
    assert_eq!(error.to_string(), "optimizer state of `b`: expected F32 [2, 5], found F32 [2, 2]");
    assert_eq!(flat(&new.parameters), before);
}

#[test]
fn matrices_are_updated_like_vectors_and_other_types_are_refused() {
    for config in ALL {
        let (mut vectors, mut matrices) = (setup(config, &[]), setup(config, &[]));
        for parameter in &mut matrices.parameters {
            parameter.var = candle_core::Var::from_tensor(&parameter.var.reshape((1, ())).unwrap()).unwrap();
        }
        let gradient = vectors.gradient(0);
        vectors.step(&gradient);
        let specs = matrices
            .layout
            .segments()
            .iter()
            .map(|segment| leyline::layout::SegmentSpec { shape: vec![1, segment.len], ..segment.spec.clone() });
        matrices.layout = ParameterLayout::new(matrices.layout.revision(), specs.collect()).unwrap();
        matrices.step(&gradient);
        assert_eq!(bits(&flat(&matrices.parameters)), bits(&flat(&vectors.parameters)), "{config:?}");
        for parameter in &mut vectors.parameters {
            parameter.var = candle_core::Var::from_tensor(&parameter.var.to_dtype(DType::F64).unwrap()).unwrap();
        }
        vectors.optimizer = Optimizer::new(config);
        let wide = vector(&gradient).to_dtype(DType::F64).unwrap();
        let error = vectors.optimizer.step(&vectors.parameters, &vectors.layout, &wide, RATE).unwrap_err();
        assert!(error.to_string().contains("expected F32 on the CPU or on a GPU, found F64 on Cpu"), "{error}");
    }
}

#[test]
fn rules_are_what_both_languages_read_alike() {
    for rule in SOURCES {
        assert!(rule.settings.len() <= MAX_SETTINGS && rule.constants.len() <= MAX_CONSTANTS, "{}", rule.name);
        // The last one is the weight of an average, in the table of the rule that moves the parameter.
        assert!(rule.constants.len() < MAX_CONSTANTS || rule.constants[MAX_CONSTANTS - 1] == "weight", "{}", rule.name);
        let names = [&rule.element, rule.state, rule.settings, rule.constants].concat();
        let words = rule.body.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty());
        let own = words.clone().zip(words.clone().skip(1)).filter(|(before, _)| *before == "let").map(|(_, own)| own);
        let known: Vec<&str> = names.into_iter().chain(own).chain(["let", "sqrtf", "signf", "keptf"]).collect();
        let unknown: Vec<&str> = words.filter(|word| !known.contains(word)).collect();
        assert_eq!(unknown, Vec::<&str>::new(), "{}: neither a name nor a function of both languages", rule.name);
    }
}
