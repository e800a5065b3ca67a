//! A network with its data and its optimizer.

use candle_core::{Device, Tensor};
use leyline::batch::Batch;
use leyline::model::{Pass, TrainableModel};
use tolaria::batch::Dataset;
use tolaria::host_read::{HostReads, read_vec};
use tolaria::optim::OptimizerConfig;
use tolaria::plain::PlainModel;

use super::{Conv2d, Conv2dConfig, Draw, Linear, Mlp, MlpConfig, Transformer, TransformerConfig, Variant};
use crate::error::Error;

/// Names of the three networks that every bench measures, the same as those of the PyTorch peer.
pub(crate) const NAMES: [&str; 3] = ["ref", "mlp", "tfm5m"];
/// All networks with published sizes, the same as those of the PyTorch peer.
pub(crate) const ALL_NAMES: [&str; 5] = ["ref", "mlp", "tfm5m", "tfm30m", "mlp4096"];
/// GPT-2, which the peer has too: of layers with products in `bf16`, and where it is asked for alone.
pub(crate) const GPT2: &str = "gpt2";

const REFERENCE_INPUTS: usize = 4;
const REFERENCE_CLASSES: usize = 4;
const REFERENCE_SAMPLES: usize = 16;
/// Batches of the larger two; a run goes round.
const NUM_BATCHES: usize = 8;

/// Everything a bench needs, on one device.
#[derive(Debug)]
pub(crate) struct Workload {
    /// One of [`ALL_NAMES`], or what else tells it apart.
    pub(crate) name: &'static str,
    /// The network.
    pub(crate) model: PlainModel,
    /// All inputs, shape (N, …), `f32`.
    pub(crate) inputs: Tensor,
    /// A class per row of logits, shape (N,) or (N·T,), `u32`.
    pub(crate) targets: Tensor,
    /// Logits of a row.
    pub(crate) num_classes: usize,
    /// Samples of a batch.
    pub(crate) batch_size: usize,
    /// The optimizer that the peer uses too.
    pub(crate) optimizer: OptimizerConfig,
    /// Its learning rate.
    pub(crate) learning_rate: f64,
    /// Tokens of a batch, of a language model, and what a step does for each.
    pub(crate) tokens: Option<Tokens>,
    /// How its network is built.
    pub(crate) variant: Variant,
    /// Steps that share a launch.
    pub(crate) steps_per_launch: usize,
}

/// What a language model learns from in a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Tokens {
    /// Of all sequences of a batch.
    pub(crate) per_step: usize,
    /// Operations of products, [`TransformerConfig::flops_per_token`].
    pub(crate) flops: f64,
}

impl Workload {
    /// All parameters, one after the other.
    ///
    /// # Sync
    /// one device-to-host copy each
    pub(crate) fn parameters(&self) -> Result<Vec<f32>, Error> {
        let mut reads = HostReads::default();
        let mut values = Vec::new();
        for parameter in self.model.parameters() {
            values.extend(read_vec(parameter.var.as_tensor(), "bench", &mut reads)?);
        }
        Ok(values)
    }

    /// The workload of a name, with its published sizes, of basic operations in `f32`.
    pub(crate) fn named(name: &str, seed: u64, device: &Device) -> Result<Self, Error> {
        Self::of(name, Variant::default(), seed, device)
    }

    /// The workload of a name, with its published sizes, built as `variant` says. All variants of a name start from the
    /// same weights and data.
    pub(crate) fn of(name: &str, variant: Variant, seed: u64, device: &Device) -> Result<Self, Error> {
        let mut draw = Draw::new(seed, device);
        match name {
            "ref" => Self::reference_of(REFERENCE_INPUTS, variant, &mut draw),
            "mlp" => Self::mlp_of("mlp", &MlpConfig::mnist(), 128, variant, &mut draw),
            "tfm5m" => Self::transformer_of("tfm5m", TransformerConfig::TFM5M, 8, variant, &mut draw),
            "tfm30m" => Self::transformer_of("tfm30m", TransformerConfig::TFM30M, 8, variant, &mut draw),
            GPT2 => Self::transformer_of(GPT2, TransformerConfig::GPT2, 8, variant, &mut draw),
            "mlp4096" => {
                let work = Self::mlp_of("mlp4096", &MlpConfig::wide(), 512, variant, &mut draw)?;
                Ok(Self { optimizer: SGD, learning_rate: 0.01, ..work })
            }
            _ => Err(Error::UnknownWork { name: name.to_owned(), known: known_names() }),
        }
    }

    /// Linear `num_inputs`→4 with bias, 16 samples in batches of 4.
    pub(crate) fn reference(num_inputs: usize, variant: Variant, seed: u64, device: &Device) -> Result<Self, Error> {
        Self::reference_of(num_inputs, variant, &mut Draw::new(seed, device))
    }

    fn reference_of(num_inputs: usize, variant: Variant, draw: &mut Draw) -> Result<Self, Error> {
        let model = draw.typed(variant.precision.of_parameters(), |draw| {
            Linear::model(num_inputs, REFERENCE_CLASSES, variant, draw)
        })?;
        Ok(Self {
            name: "ref",
            model,
            inputs: draw.uniform((REFERENCE_SAMPLES, num_inputs), 1.0)?,
            targets: classes(REFERENCE_SAMPLES, REFERENCE_CLASSES, draw.device())?,
            num_classes: REFERENCE_CLASSES,
            batch_size: 4,
            optimizer: SGD,
            learning_rate: 0.01,
            tokens: None,
            variant,
            steps_per_launch: 1,
        })
    }

    /// 784-512-512-10 with ReLU, batches of 128.
    pub(crate) fn mlp(seed: u64, device: &Device) -> Result<Self, Error> {
        Self::named("mlp", seed, device)
    }

    fn mlp_of(
        name: &'static str,
        config: &MlpConfig,
        batch_size: usize,
        variant: Variant,
        draw: &mut Draw,
    ) -> Result<Self, Error> {
        let model =
            draw.typed(variant.precision.of_parameters(), |draw| Mlp::new(config, variant, draw))?.into_model()?;
        let (Some(&num_inputs), Some(&num_classes)) = (config.widths.first(), config.widths.last()) else {
            unreachable!("a perceptron has a first and a last width")
        };
        Ok(Self {
            name,
            model,
            inputs: draw.uniform((NUM_BATCHES * batch_size, num_inputs), 1.0)?,
            targets: classes(NUM_BATCHES * batch_size, num_classes, draw.device())?,
            num_classes,
            batch_size,
            optimizer: ADAM_W,
            learning_rate: 1e-3,
            tokens: None,
            variant,
            steps_per_launch: 1,
        })
    }

    fn transformer_of(
        name: &'static str,
        config: TransformerConfig,
        batch_size: usize,
        variant: Variant,
        draw: &mut Draw,
    ) -> Result<Self, Error> {
        let model = draw.typed(variant.precision.of_parameters(), |draw| Transformer::new(config, variant, draw))?;
        let model = model.into_model()?;
        let (inputs, targets) = token_stream(config, NUM_BATCHES * batch_size, draw)?;
        Ok(Self::of_tokens(name, (model, variant), config, [inputs, targets], batch_size))
    }

    /// The transformer of about 5 million parameters that learns the token after each sequence only: one target per
    /// sample, as a data set has it.
    pub(crate) fn sequence_ends(variant: Variant, seed: u64, device: &Device) -> Result<Self, Error> {
        Self::sequence_ends_of(TransformerConfig::TFM5M, 8, variant, &mut Draw::new(seed, device))
    }

    fn sequence_ends_of(
        config: TransformerConfig,
        batch_size: usize,
        variant: Variant,
        draw: &mut Draw,
    ) -> Result<Self, Error> {
        let model = draw.typed(variant.precision.of_parameters(), |draw| Transformer::new(config, variant, draw))?;
        let model = model.into_last_model()?;
        let num_sequences = NUM_BATCHES * batch_size;
        let (inputs, targets) = token_stream(config, num_sequences, draw)?;
        let targets = targets.reshape((num_sequences, config.context_len))?;
        let targets = targets.narrow(1, config.context_len - 1, 1)?.flatten_all()?.contiguous()?;
        Ok(Self::of_tokens("tfm5m", (model, variant), config, [inputs, targets], batch_size))
    }

    fn of_tokens(
        name: &'static str,
        (model, variant): (PlainModel, Variant),
        config: TransformerConfig,
        [inputs, targets]: [Tensor; 2],
        batch_size: usize,
    ) -> Self {
        let num_classes = config.vocab_size;
        let flops = config.flops_per_token(model.layout().num_elements());
        let tokens = Some(Tokens { per_step: batch_size * config.context_len, flops });
        Self {
            name,
            model,
            inputs,
            targets,
            num_classes,
            batch_size,
            optimizer: ADAM_W,
            learning_rate: 1e-3,
            tokens,
            variant,
            steps_per_launch: 1,
        }
    }

    /// Two convolutions of stride 2 over images of 2×16×16, then an affine map to 10 classes; batches of 16.
    pub(crate) fn conv2d(variant: Variant, seed: u64, device: &Device) -> Result<Self, Error> {
        let mut draw = Draw::new(seed, device);
        let config = Conv2dConfig { inputs: 2, size: 16, channels: vec![8, 16], classes: 10 };
        let model = Conv2d::new(&config, variant, &mut draw)?.into_model()?;
        let batch_size = 16;
        let samples = NUM_BATCHES * batch_size;
        Ok(Self {
            name: "conv2d",
            model,
            inputs: draw.uniform((samples, config.inputs, config.size, config.size), 1.0)?,
            targets: classes(samples, config.classes, device)?,
            num_classes: config.classes,
            batch_size,
            optimizer: ADAM_W,
            learning_rate: 1e-3,
            tokens: None,
            variant,
            steps_per_launch: 1,
        })
    }

    /// Whole batches.
    pub(crate) fn num_batches(&self) -> usize {
        self.inputs.dims()[0] / self.batch_size
    }

    /// The batch `index % num_batches`, as contiguous views of the data. A sequence has a target per token.
    pub(crate) fn batch(&self, index: usize) -> Result<Batch, Error> {
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
    pub(crate) fn loss(&self, batch: &Batch) -> Result<Tensor, Error> {
        let logits = self.model.forward(&batch.inputs, Pass::Train)?.logits;
        Ok(tolaria::loss::cross_entropy(&logits, &batch.targets)?)
    }

    /// The data for a trainer.
    ///
    /// # Errors
    /// [`Error::Trainer`] for the transformer: a data set has one target per sample.
    /// # Sync
    /// one device-to-host copy of the targets
    pub(crate) fn dataset(&self) -> Result<Dataset, Error> {
        Ok(Dataset::new(self.inputs.clone(), self.targets.clone())?)
    }
}

/// All that [`Workload::of`] takes, for a message.
pub(crate) fn known_names() -> String {
    format!("{}, {GPT2}", ALL_NAMES.join(", "))
}

const SGD: OptimizerConfig = OptimizerConfig::Sgd { momentum: 0.0, nesterov: false, weight_decay: 0.0 };
const ADAM_W: OptimizerConfig = OptimizerConfig::AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01 };

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
mod tests;
