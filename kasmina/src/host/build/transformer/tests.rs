//! The encoder learns, and sees order through its positions alone.

use candle_core::{DType, Device, Tensor, Var};
use candle_nn::loss::cross_entropy;
use candle_nn::optim::{AdamW, Optimizer as _, ParamsAdamW};
use leyline::model::Parameter;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use super::MeanOfNorm;
use crate::host::network::HostLayer as _;
use crate::host::{Host, HostConfig};
use crate::host_read::read_f32;
use crate::weight::{Init, View, WeightSource, WeightSpec};

const LENGTH: usize = 4;
const PATCH: usize = 2;

fn host(seed: u64) -> Host {
    let config = HostConfig::Transformer {
        inputs: LENGTH * PATCH,
        patch: PATCH,
        width: 8,
        heads: 2,
        layers: 2,
        mlp_ratio: 2,
        classes: LENGTH,
    };
    assert_eq!(config.validate(), []);
    Host::build(&config, false, &mut WeightSource::draw(ChaCha8Rng::seed_from_u64(seed)), &Device::Cpu).unwrap()
}

fn logits(host: &Host, inputs: &Tensor, view: View) -> Tensor {
    let lifted = host.lift(inputs, view).unwrap();
    (0..host.slots().len()).fold(lifted, |h, index| host.segment(index, h, view).unwrap())
}

fn parameters(host: &Host) -> Vec<&Parameter> {
    host.weights().flat_map(|set| set.parameters()).collect()
}

/// All tokens of a sample agree but for one, whose position is the class: neither a single token nor an average over
/// positions tells it.
fn odd_one_out(num_samples: usize, seed: u64) -> (Tensor, Tensor) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let (mut inputs, mut targets) = (Vec::new(), Vec::new());
    for _ in 0..num_samples {
        let odd = rng.random_range(0..LENGTH);
        let mut token = || -> [f32; PATCH] { std::array::from_fn(|_| rng.random_range(-2.0..2.0)) };
        let (common, other) = (token(), token());
        inputs.extend((0..LENGTH).flat_map(|position| if position == odd { other } else { common }));
        targets.push(u32::try_from(odd).unwrap());
    }
    let inputs = Tensor::from_vec(inputs, (num_samples, LENGTH * PATCH), &Device::Cpu).unwrap();
    (inputs, Tensor::from_vec(targets, num_samples, &Device::Cpu).unwrap())
}

fn loss_on(host: &Host, samples: &(Tensor, Tensor)) -> f32 {
    read_f32(&cross_entropy(&logits(host, &samples.0, View::Frozen), &samples.1).unwrap()).unwrap()[0]
}

#[test]
fn it_learns_what_only_all_tokens_together_tell() {
    let host = host(1);
    let held_out = odd_one_out(256, 99);
    let before = loss_on(&host, &held_out);
    assert!((before - 4.0_f32.ln()).abs() < 0.5, "{before}");
    let vars: Vec<Var> = parameters(&host).into_iter().map(|parameter| parameter.var.clone()).collect();
    let settings = ParamsAdamW { lr: 0.01, weight_decay: 0.0, ..ParamsAdamW::default() };
    let mut optimizer = AdamW::new(vars, settings).unwrap();
    for step in 0..300 {
        let (inputs, targets) = odd_one_out(64, step);
        optimizer.backward_step(&cross_entropy(&logits(&host, &inputs, View::Live), &targets).unwrap()).unwrap();
    }
    let after = loss_on(&host, &held_out);
    assert!(after < 0.5 * before, "held-out loss {before} → {after}");
}

/// The same samples with their tokens in reverse.
fn reversed(inputs: &Tensor) -> Tensor {
    let order = Tensor::from_iter((0..u32::try_from(LENGTH).unwrap()).rev(), &Device::Cpu).unwrap();
    inputs.reshape(((), LENGTH, PATCH)).unwrap().index_select(&order, 1).unwrap().flatten_from(1).unwrap()
}

fn largest_difference(a: &Tensor, b: &Tensor) -> f32 {
    let (a, b) = (read_f32(a).unwrap(), read_f32(b).unwrap());
    a.iter().zip(&b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn the_order_of_tokens_matters_through_positions_alone() {
    let host = host(2);
    let (inputs, _) = odd_one_out(5, 7);
    let difference = |host: &Host| {
        largest_difference(&logits(host, &inputs, View::Frozen), &logits(host, &reversed(&inputs), View::Frozen))
    };
    assert!(difference(&host) > 1e-3);
    let parameters = parameters(&host);
    let positions = parameters.iter().find(|parameter| parameter.name == "host.embedding.positions").unwrap();
    positions.var.set(&positions.var.zeros_like().unwrap()).unwrap();
    assert!(difference(&host) < 1e-5);
}

/// Along its own gradient each tensor changes the loss by the squared norm of the gradient.
#[test]
fn every_weight_has_the_gradient_that_differences_show() {
    let host = host(3);
    let samples = odd_one_out(16, 5);
    let loss = cross_entropy(&logits(&host, &samples.0, View::Live), &samples.1).unwrap();
    let gradients = loss.backward().unwrap();
    for parameter in parameters(&host) {
        let (name, var) = (&parameter.name, &parameter.var);
        let gradient = gradients.get(var).unwrap_or_else(|| panic!("no gradient for {name}"));
        let norm = read_f32(&gradient.sqr().unwrap().sum_all().unwrap()).unwrap()[0].sqrt();
        assert!(norm > 1e-4, "{name} has a gradient of norm {norm}");
        let start = var.as_detached_tensor().copy().unwrap();
        let step = 0.02;
        let at = |offset: f32| {
            let along = gradient.affine(f64::from(offset / norm), 0.0).unwrap();
            var.set(&(&start + along).unwrap()).unwrap();
            loss_on(&host, &samples)
        };
        let slope = (at(step) - at(-step)) / (2.0 * step);
        var.set(&start).unwrap();
        assert!((slope - norm).abs() < 0.02 * norm + 1e-4, "{name}: {slope} along a gradient of norm {norm}");
    }
}

#[test]
fn held_fixed_it_passes_gradients_to_its_inputs_and_to_no_weight() {
    let host = host(4);
    let inputs = Var::ones((2, LENGTH * PATCH), DType::F32, &Device::Cpu).unwrap();
    let gradients = logits(&host, &inputs, View::Frozen).sqr().unwrap().sum_all().unwrap().backward().unwrap();
    assert!(gradients.get(&inputs).is_some());
    assert!(parameters(&host).iter().all(|parameter| gradients.get(&parameter.var).is_none()));
}

#[test]
fn the_mean_over_many_positions_is_not_lost_to_rounding() {
    // Equal features are normalized to 0, so that every position is the shift.
    let specs = [WeightSpec::new("scale", [4], Init::Ones), WeightSpec::new("shift", [4], Init::Ones)];
    let mut source = WeightSource::draw(ChaCha8Rng::seed_from_u64(1)).with_dtype(DType::BF16);
    let pool = MeanOfNorm { weights: source.build("pool", &specs, &Device::Cpu).unwrap() };
    let mean = pool.forward(&Tensor::ones((2, 1024, 4), DType::BF16, &Device::Cpu).unwrap(), View::Live).unwrap();
    assert_eq!((mean.dtype(), mean.dims()), (DType::BF16, [2, 4].as_slice()));
    assert_eq!(read_f32(&mean).unwrap(), [1.0; 8]);
}
