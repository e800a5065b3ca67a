//! The same works as candle offers them: its own loss and optimizer, one launch after the other.

use candle_core::Var;
use candle_nn::{AdamW, Optimizer as _, ParamsAdamW, SGD};
use leyline::model::{Pass, TrainableModel as _};
use tolaria::optim::OptimizerConfig;

use crate::error::Error;
use crate::gpu::Gpu;
use crate::gpu::optimizer_step::unit_of;
use crate::models::Workload;
use crate::samples::{Samples, us};

const WARM_UP: usize = 10;
const REPETITIONS: usize = 200;

/// One of candle's optimizers.
enum Candle {
    Sgd(SGD),
    AdamW(AdamW),
}

/// Measures eager steps, and their ratio to the replays that were measured before.
pub(super) fn measure(gpu: &Gpu, name: &str, samples: &mut Samples) -> Result<(), Error> {
    let work = Workload::named(name, 0, &gpu.device)?;
    let variables: Vec<Var> = work.model.parameters().iter().map(|parameter| parameter.var.clone()).collect();
    let mut optimizer = match work.optimizer {
        OptimizerConfig::Sgd { .. } => Candle::Sgd(SGD::new(variables, work.learning_rate)?),
        OptimizerConfig::AdamW { beta1, beta2, eps, weight_decay } => {
            let params = ParamsAdamW { lr: work.learning_rate, beta1, beta2, eps, weight_decay };
            Candle::AdamW(AdamW::new(variables, params)?)
        }
        other @ (OptimizerConfig::Lion { .. } | OptimizerConfig::Muon { .. }) => {
            let message = format!("candle has no optimizer `{}`: expected a work with sgd or adam_w", other.name());
            return Err(candle_core::Error::Msg(message).into());
        }
    };
    let unit = unit_of(name);
    for index in 0..WARM_UP + REPETITIONS {
        let began = gpu.now();
        for step in 0..unit {
            let batch = work.batch(index * unit + step)?;
            let logits = work.model.forward(&batch.inputs, Pass::Train)?.logits;
            let loss = candle_nn::loss::cross_entropy(&logits, &batch.targets)?;
            match &mut optimizer {
                Candle::Sgd(sgd) => sgd.backward_step(&loss)?,
                Candle::AdamW(adam_w) => adam_w.backward_step(&loss)?,
            }
        }
        gpu.wait()?;
        if index >= WARM_UP {
            samples.push(format!("{name}.eager.candle"), "us", us(gpu.now() - began));
        }
    }
    let median = |what: &str| samples.median(&format!("{name}.{what}")).unwrap_or(f64::NAN);
    let ratio = median("eager.candle") / median("replay");
    samples.push(format!("{name}.speedup_over_candle"), "ratio", ratio);
    Ok(())
}
