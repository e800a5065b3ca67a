//! Networks of `candle-nn`: the example, and what of them reaches the trainer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use candle_core::{DType, Device, Tensor};
use candle_nn::{Module, VarBuilder, VarMap, linear};
use leyline::model::{Pass, TrainableModel};
use leyline::region::Eager;
use tolaria::batch::Dataset;
use tolaria::plain::PlainModel;
use tolaria::task::Classification;
use tolaria::trainer::{NullObserver, Parts, Splits, TrainConfig, Trainer};

#[path = "../examples/train_candle_nn.rs"]
#[expect(unreachable_pub, reason = "the start of a program, called here by its module")]
mod example;

/// Data, network, settings and evaluation of the example, imports and braces included.
const MOST_LINES: usize = 20;

#[test]
fn a_network_of_candle_nn_is_trained_in_a_few_lines() {
    example::main().unwrap();
    let text = include_str!("../examples/train_candle_nn.rs");
    let is_code = |line: &&str| !line.trim().is_empty() && !line.trim().starts_with("//");
    let num_lines = text.lines().filter(is_code).count();
    assert!(num_lines <= MOST_LINES, "{num_lines} lines");
    // A line holds as much as rustfmt lets it hold, not as much as one can type.
    assert!(text.lines().all(|line| line.chars().count() <= 120 && line.matches(';').count() <= 1));
}

#[test]
fn variables_come_in_the_order_of_names_and_the_pass_reaches_the_function() {
    let (map, device) = (VarMap::new(), Device::Cpu);
    let build = VarBuilder::from_varmap(&map, DType::F32, &device);
    let layers: Vec<_> = ["b", "c", "a"].into_iter().map(|name| linear(2, 2, build.pp(name)).unwrap()).collect();
    let passes = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
    let counted = Arc::clone(&passes);
    let model = PlainModel::from_varmap(map.data(), move |x, pass| {
        counted[usize::from(pass == Pass::Train)].fetch_add(1, Ordering::Relaxed);
        layers.iter().try_fold(x.clone(), |x, layer| layer.forward(&x))
    });
    let model = model.unwrap();
    let names: Vec<&str> = model.parameters().iter().map(|parameter| parameter.name.as_str()).collect();
    assert_eq!(names, ["a.bias", "a.weight", "b.bias", "b.weight", "c.bias", "c.weight"]);

    let inputs = Tensor::zeros((12, 2), DType::F32, &device).unwrap();
    let data = Dataset::new(inputs, Tensor::zeros(12, DType::U32, &device).unwrap()).unwrap();
    let mut trainer = Trainer::new(
        TrainConfig::default(),
        Parts::plain(Classification::new(2), model, Splits::draw(&data, 0.25, 1).unwrap()),
    )
    .unwrap();
    trainer.run(&mut Eager::acquire().unwrap(), &mut NullObserver).unwrap();
    // One step of six samples, and the validation data once.
    assert_eq!(passes.each_ref().map(|count| count.load(Ordering::Relaxed)), [1, 1]);
}
