//! A network with its data and its optimizer.

use candle_core::{Device, Tensor};
use leyline::batch::Batch;
use leyline::model::{Pass, TrainableModel};
use tolaria::batch::Dataset;
use tolaria::host_read::{HostReads, read_vec};
use tolaria::optim::OptimizerConfig;
use tolaria::plain::PlainModel;

use super::{Draw, Linear, Mlp, MlpConfig, Transformer, TransformerConfig};
use crate::error::Error;

/// Names of the three networks, the same as those of the PyTorch peer.
pub const NAMES: [&str; 3] = ["ref", "mlp", "tfm5m"];

const REFERENCE_INPUTS: usize = 4;
const REFERENCE_CLASSES: usize = 4;
const REFERENCE_SAMPLES: usize = 16;
/// Batches of the larger two; a run goes round.
const NUM_BATCHES: usize = 8;

/// Everything a bench needs, on one device.
#[derive(Debug)]
pub struct Workload {
    /// One of [`NAMES`].
    pub name: &'static str,
    /// The network.
    pub model: PlainModel,
    /// All inputs, shape (N, …), `f32`.
    pub inputs: Tensor,
    /// A class per row of logits, shape (N,) or (N·T,), `u32`.
    pub targets: Tensor,
    /// Classes.
    pub num_classes: usize,
    /// Samples of a batch.
    pub batch_size: usize,
    /// The optimizer that the peer uses too.
    pub optimizer: OptimizerConfig,
    /// Its learning rate.
    pub learning_rate: f64,
}

impl Workload {
    /// All parameters, one after the other.
    ///
    /// # Errors
    /// When the device fails.
    /// # Sync
    /// one device-to-host copy each
    pub fn parameters(&self) -> Result<Vec<f32>, Error> {
        let mut reads = HostReads::default();
        let mut values = Vec::new();
        for parameter in self.model.parameters() {
            values.extend(read_vec(parameter.var.as_tensor(), "bench", &mut reads)?);
        }
        Ok(values)
    }

    /// The workload of a name, with its published sizes.
    ///
    /// # Errors
    /// [`Error::UnknownWork`]; when the device fails.
    /// # Sync
    /// none
    pub fn named(name: &str, seed: u64, device: &Device) -> Result<Self, Error> {
        match name {
            "ref" => Self::reference(REFERENCE_INPUTS, seed, device),
            "mlp" => Self::mlp(seed, device),
            "tfm5m" => Self::transformer(seed, device),
            _ => Err(Error::UnknownWork { name: name.to_owned(), known: NAMES.join(", ") }),
        }
    }

    /// Linear `num_inputs`→4 with bias, 16 samples in batches of 4.
    ///
    /// # Errors
    /// When the device fails.
    /// # Sync
    /// none
    pub fn reference(num_inputs: usize, seed: u64, device: &Device) -> Result<Self, Error> {
        let mut draw = Draw::new(seed, device);
        let model = Linear::model(num_inputs, REFERENCE_CLASSES, &mut draw)?;
        Ok(Self {
            name: "ref",
            model,
            inputs: draw.uniform((REFERENCE_SAMPLES, num_inputs), 1.0)?,
            targets: classes(REFERENCE_SAMPLES, REFERENCE_CLASSES, device)?,
            num_classes: REFERENCE_CLASSES,
            batch_size: 4,
            optimizer: OptimizerConfig::Sgd { momentum: 0.0, nesterov: false, weight_decay: 0.0 },
            learning_rate: 0.01,
        })
    }

    /// 784-512-512-10 with ReLU, batches of 128.
    ///
    /// # Errors
    /// When the device fails.
    /// # Sync
    /// none
    pub fn mlp(seed: u64, device: &Device) -> Result<Self, Error> {
        let config = MlpConfig::mnist();
        Self::mlp_of(&config, 128, seed, device)
    }

    fn mlp_of(config: &MlpConfig, batch_size: usize, seed: u64, device: &Device) -> Result<Self, Error> {
        let mut draw = Draw::new(seed, device);
        let (Some(&num_inputs), Some(&num_classes)) = (config.widths.first(), config.widths.last()) else {
            unreachable!("a perceptron has a first and a last width")
        };
        let model = Mlp::new(config, &mut draw)?.into_model()?;
        Ok(Self {
            name: "mlp",
            model,
            inputs: draw.uniform((NUM_BATCHES * batch_size, num_inputs), 1.0)?,
            targets: classes(NUM_BATCHES * batch_size, num_classes, device)?,
            num_classes,
            batch_size,
            optimizer: adam_w(),
            learning_rate: 1e-3,
        })
    }

    /// The transformer of about 5 million parameters, batches of 8 sequences of 64 tokens.
    ///
    /// # Errors
    /// When the device fails.
    /// # Sync
    /// none
    pub fn transformer(seed: u64, device: &Device) -> Result<Self, Error> {
        Self::transformer_of(TransformerConfig::TFM5M, 8, seed, device)
    }

    fn transformer_of(config: TransformerConfig, batch_size: usize, seed: u64, device: &Device) -> Result<Self, Error> {
        let mut draw = Draw::new(seed, device);
        let model = Transformer::new(config, &mut draw)?.into_model()?;
        let (inputs, targets) = token_stream(config, NUM_BATCHES * batch_size, &mut draw)?;
        Ok(Self {
            name: "tfm5m",
            model,
            inputs,
            targets,
            num_classes: config.vocab_size,
            batch_size,
            optimizer: adam_w(),
            learning_rate: 1e-3,
        })
    }

    /// Whole batches.
    #[must_use]
    pub fn num_batches(&self) -> usize {
        self.inputs.dims()[0] / self.batch_size
    }

    /// The batch `index % num_batches`, as contiguous views of the data. A sequence has a target per token.
    ///
    /// # Errors
    /// When the device fails.
    /// # Sync
    /// none
    pub fn batch(&self, index: usize) -> Result<Batch, Error> {
        let start = index % self.num_batches() * self.batch_size;
        let rows_per_sample = self.targets.elem_count() / self.inputs.dims()[0];
        Ok(Batch {
            inputs: self.inputs.narrow(0, start, self.batch_size)?,
            targets: self.targets.narrow(0, start * rows_per_sample, self.batch_size * rows_per_sample)?,
        })
    }

    /// Mean cross-entropy over the rows of logits, a scalar with a gradient.
    ///
    /// # Units
    /// nats
    /// # Errors
    /// When shapes do not fit; when the device fails.
    /// # Sync
    /// none
    pub fn loss(&self, batch: &Batch) -> Result<Tensor, Error> {
        let logits = self.model.forward(&batch.inputs, Pass::Train)?.logits;
        Ok(tolaria::loss::cross_entropy(&logits, &batch.targets)?)
    }

    /// The data for a trainer.
    ///
    /// # Errors
    /// [`Error::Trainer`] for the transformer: a data set has one target per sample.
    /// # Sync
    /// one device-to-host copy of the targets
    pub fn dataset(&self) -> Result<Dataset, Error> {
        Ok(Dataset::new(self.inputs.clone(), self.targets.clone(), self.num_classes)?)
    }

    /// Elements of all parameters.
    #[must_use]
    pub fn num_parameters(&self) -> usize {
        self.model.layout().num_elements()
    }
}

fn adam_w() -> OptimizerConfig {
    OptimizerConfig::AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01 }
}

fn classes(count: usize, num_classes: usize, device: &Device) -> candle_core::Result<Tensor> {
    let num_classes = u32::try_from(num_classes).expect("few classes");
    Tensor::from_vec((0..num_classes).cycle().take(count).collect::<Vec<_>>(), count, device)
}

/// Sequences in which a token leaves four choices for the next one, so that there is something to learn.
fn token_stream(
    config: TransformerConfig,
    num_sequences: usize,
    draw: &mut Draw,
) -> candle_core::Result<(Tensor, Tensor)> {
    let vocab_size = u32::try_from(config.vocab_size).expect("a small vocabulary");
    let len = config.context_len;
    let (mut inputs, mut targets) = (Vec::new(), Vec::new());
    for _ in 0..num_sequences {
        let mut token = draw.below(vocab_size);
        for _ in 0..len {
            inputs.push(token as f32);
            token = (5 * token + draw.below(4)) % vocab_size;
            targets.push(token);
        }
    }
    let targets = Tensor::from_vec(targets, num_sequences * len, draw.device())?;
    Ok((Tensor::from_vec(inputs, (num_sequences, len), draw.device())?, targets))
}

#[cfg(test)]
mod tests {
    use candle_core::DType;
    use leyline::model::Parameter;
    use tolaria::host_read::{HostReads, read_scalar, read_vec};

    use super::*;

    const TINY: TransformerConfig =
        TransformerConfig { num_blocks: 2, width: 16, num_heads: 2, vocab_size: 8, context_len: 6 };

    fn tiny() -> [Workload; 3] {
        let widths = vec![6, 8, 8, 3];
        [
            Workload::reference(4, 1, &Device::Cpu).unwrap(),
            Workload::mlp_of(&MlpConfig { widths }, 5, 1, &Device::Cpu).unwrap(),
            Workload::transformer_of(TINY, 4, 1, &Device::Cpu).unwrap(),
        ]
    }

    fn number(tensor: &Tensor) -> f64 {
        read_scalar(tensor, "test", &mut HostReads::default()).unwrap()
    }

    #[test]
    fn parameters_are_as_many_as_published() {
        for (name, expected) in [("ref", 20), ("mlp", 669_706), ("tfm5m", 4_886_528)] {
            let work = Workload::named(name, 0, &Device::Cpu).unwrap();
            assert_eq!((work.name, work.num_parameters()), (name, expected));
        }
        assert_eq!(Workload::reference(16, 0, &Device::Cpu).unwrap().num_parameters(), 68);
        let error = Workload::named("resnet", 0, &Device::Cpu).unwrap_err();
        assert!(error.to_string().contains("ref, mlp, tfm5m"), "{error}");
    }

    #[test]
    fn every_parameter_receives_a_gradient_that_is_not_0() {
        for work in tiny() {
            let gradients = work.loss(&work.batch(0).unwrap()).unwrap().backward().unwrap();
            for Parameter { name, var } in work.model.parameters() {
                let gradient = gradients.get(var).unwrap_or_else(|| panic!("{}: {name} has no gradient", work.name));
                assert_eq!(gradient.dims(), var.dims(), "{name}");
                let largest = number(&gradient.abs().unwrap().max_all().unwrap());
                // A key bias shifts all scores of a query alike: its gradient is 0 but for rounding.
                let moves = largest > 0.0 || name.ends_with("key.bias");
                assert!(moves && largest.is_finite(), "{}: {name} {largest}", work.name);
            }
        }
    }

    #[test]
    fn the_loss_falls_over_20_steps() {
        for work in tiny() {
            let batch = work.batch(0).unwrap();
            let before = number(&work.loss(&batch).unwrap());
            for _ in 0..20 {
                let gradients = work.loss(&batch).unwrap().backward().unwrap();
                for parameter in work.model.parameters() {
                    let update = (gradients.get(&parameter.var).unwrap() * 0.2).unwrap();
                    parameter.var.set(&(parameter.var.as_tensor() - update).unwrap()).unwrap();
                }
            }
            let after = number(&work.loss(&batch).unwrap());
            assert!(after < 0.95 * before, "{}: {before} -> {after}", work.name);
        }
    }

    #[test]
    fn batches_go_round_and_have_a_target_per_row_of_logits() {
        for work in tiny() {
            let batch = work.batch(1).unwrap();
            let logits = work.model.forward(&batch.inputs, Pass::Train).unwrap().logits;
            assert_eq!(logits.dims(), [batch.targets.elem_count(), work.num_classes]);
            assert!(batch.inputs.is_contiguous() && batch.targets.is_contiguous());
            let again = work.batch(1 + work.num_batches()).unwrap();
            let values = |tensor: &Tensor| {
                let tensor = tensor.to_dtype(DType::F32).unwrap().flatten_all().unwrap();
                read_vec(&tensor, "test", &mut HostReads::default()).unwrap()
            };
            assert_eq!(values(&batch.inputs), values(&again.inputs));
            assert_eq!(values(&batch.targets), values(&again.targets));
            assert_ne!(values(&batch.inputs), values(&work.batch(0).unwrap().inputs), "{}", work.name);
        }
    }

    #[test]
    fn targets_of_a_sequence_are_its_inputs_one_later() {
        let work = Workload::transformer_of(TINY, 4, 1, &Device::Cpu).unwrap();
        let mut reads = HostReads::default();
        let inputs = read_vec(&work.inputs.flatten_all().unwrap(), "test", &mut reads).unwrap();
        let targets = read_vec(&work.targets.to_dtype(DType::F32).unwrap(), "test", &mut reads).unwrap();
        for (ids, next) in inputs.chunks(6).zip(targets.chunks(6)) {
            assert_eq!(ids[1..], next[..5]);
        }
    }

    #[test]
    fn only_works_with_one_target_per_sample_fit_a_data_set() {
        let fits = tiny().map(|work| work.dataset().is_ok());
        assert_eq!(fits, [true, true, false]);
    }
}
