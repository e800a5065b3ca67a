//! Trains a network of `candle-nn` to tell the inside of a circle: `cargo run -p tolaria --example train_candle_nn`.

use candle_core::{DType, Device, Tensor};
use candle_nn::{Module, VarBuilder, VarMap, linear};
use leyline::region::Eager;
use tolaria::trainer::{NullObserver, Parts, Splits, TrainConfig, Trainer};
use tolaria::{batch::Dataset, plain::PlainModel, task::Classification};

/// Points, network, training, evaluation.
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let points = (0..2000_u32).map(|i| (i * 367 % 1999) as f32 / 1000.0 - 1.0);
    let inputs = Tensor::from_iter(points, &Device::Cpu)?.reshape((1000, 2))?;
    let targets = inputs.sqr()?.sum(1)?.lt(0.6)?.to_dtype(DType::U32)?;

    let variables = VarMap::new();
    let build = VarBuilder::from_varmap(&variables, DType::F32, &Device::Cpu);
    let (hidden, output) = (linear(2, 16, build.pp("hidden"))?, linear(16, 2, build.pp("output"))?);
    let model = PlainModel::from_varmap(variables.data(), move |x, _| output.forward(&hidden.forward(x)?.relu()?))?;
    let parts = Parts::plain(Classification::new(2), model, Splits::draw(&Dataset::new(inputs, targets)?, 0.2, 0)?);
    let mut trainer = Trainer::new(TrainConfig::default(), Parts { num_epochs: 40, ..parts })?;
    let mut eager = Eager::acquire()?;
    trainer.run(&mut eager, &mut NullObserver)?;
    assert!(trainer.test(&eager)?.score.accuracy() > Some(0.95));
    Ok(())
}
