//! The rules of `leyline::model` and `leyline::durable`, run on what this crate implements.

use candle_core::{DType, Device, Tensor, Var};
use leyline::durable::Durable;
use leyline::model::TrainableModel as _;
use leyline::region::Eager;
use leyline::seed::SeedManager as _;
use leyline_testkit::durable::DurableHarness;
use leyline_testkit::seed_manager::SeedManagerHarness;
use leyline_testkit::toy;
use leyline_testkit::trainable_model::TrainableModelHarness;
use leyline_testkit::values;
use tolaria::optim::{Optimizer, OptimizerConfig};
use tolaria::plain::{NoSeeds, PlainModel};

fn linear() -> PlainModel {
    let weight = Var::from_tensor(&Tensor::ones((2, 16), DType::F32, &Device::Cpu).expect("a tensor")).expect("a leaf");
    let bias = Var::zeros(2, DType::F32, &Device::Cpu).expect("a leaf");
    let named = vec![("weight".to_owned(), weight.clone()), ("bias".to_owned(), bias.clone())];
    PlainModel::new(named, move |x: &Tensor| x.matmul(&weight.t()?)?.broadcast_add(&bias)).expect("two names")
}

mod plain_model {
    use super::*;

    fn harness() -> TrainableModelHarness<PlainModel, PlainModel> {
        TrainableModelHarness::fixed(linear(), toy::blobs(8, 1, &Device::Cpu).expect("a batch"))
    }

    leyline_testkit::trainable_model_conformance!(harness);
}

/// All parameters, with all digits.
fn parameters(model: &PlainModel) -> String {
    let shown = |var: &Var| format!("{:?}", values(var));
    model.parameters().iter().map(|p| format!("{} {}\n", p.name, shown(&p.var))).collect()
}

mod no_seeds_as_manager {
    use super::*;

    fn harness() -> SeedManagerHarness<NoSeeds<PlainModel>> {
        let batch = toy::blobs(8, 1, &Device::Cpu).expect("a batch");
        let buffer = |name: &str, dtype| (name.to_owned(), Var::zeros(2, dtype, &Device::Cpu).expect("a leaf"));
        let buffers = vec![buffer("draws", DType::U32), buffer("mean", DType::F32)];
        let manager = NoSeeds::with_buffers(linear(), buffers).expect("names of their own");
        assert_eq!(manager.statistics().iter().map(|(name, _)| name).collect::<Vec<_>>(), ["mean"]);
        SeedManagerHarness::new(manager, batch).without_slots()
    }

    leyline_testkit::seed_manager_conformance!(harness);
}

mod no_seeds {
    use super::*;

    fn harness() -> DurableHarness<NoSeeds<PlainModel>> {
        DurableHarness {
            component: NoSeeds::new(linear()),
            advance: Box::new(|manager, number| {
                for parameter in manager.model().parameters() {
                    let moved = (parameter.var.as_tensor() * 0.5).and_then(|half| half + number as f64);
                    parameter.var.set(&moved.expect("a tensor")).expect("the same shape");
                }
            }),
            observe: Box::new(|manager| parameters(manager.model())),
        }
    }

    leyline_testkit::durable_conformance!(harness);
}

mod optimizer {
    use super::*;

    /// An optimizer is seen by what it does to the parameters that it is given, which it does not own.
    fn harness() -> DurableHarness<Optimizer> {
        let config = OptimizerConfig::AdamW { beta1: 0.9, beta2: 0.99, eps: 1e-8, weight_decay: 0.01 };
        let step = |optimizer: &mut Optimizer, model: &PlainModel, number: u64| {
            let gradient = Tensor::full(0.1 + number as f32, model.layout().num_elements(), &Device::Cpu);
            let gradient = gradient.expect("a tensor");
            optimizer.step(model.parameters(), model.layout(), &gradient, 0.1).expect("a step");
        };
        DurableHarness {
            component: Optimizer::new(config),
            advance: Box::new(move |optimizer, number| step(optimizer, &linear(), number)),
            observe: Box::new(move |optimizer| {
                let saved = Durable::save(optimizer, &Eager::acquire().expect("a token")).expect("a state");
                let moments = saved.tensors.iter().map(|(name, t)| format!("{name} {:?}\n", values(t)));
                moments.chain([saved.json.clone()]).collect()
            }),
        }
    }

    leyline_testkit::durable_conformance!(harness);
}
