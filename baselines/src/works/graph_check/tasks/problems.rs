//! Every task there is, with samples and a network that learns them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use candle_core::{DType, Device, Tensor, Var};
use leyline::clock::Clock;
use leyline::task::{About, Direction, Measure, Scale, Task};
use tolaria::aggregate::ConflictResolution;
use tolaria::batch::Dataset;
use tolaria::host_read::{HostReads, read_scalar};
use tolaria::optim::OptimizerConfig;
use tolaria::plain::PlainModel;
use tolaria::task::{Classification, Flags, IGNORED, NextToken, Regression, RegressionLoss};
use tolaria::trainer::{StepMode, TrainConfig};

use crate::gpu::growing::samples;
use crate::gpu::report::Broken;
use crate::models::Draw;
use crate::trainer::{PlainParts, all_of, count, plain_parts, train_config, two_layers};
use crate::works::graph_check::frozen::execution;

/// An epoch has two windows of 32 samples and one of 13.
pub(super) const SAMPLES: usize = 77;
pub(super) const STEPS_PER_EPOCH: u64 = 3;
pub(super) const INPUTS: usize = 16;
/// Of sequences: tokens of one, and tokens that there are.
pub(super) const LENGTH: usize = 6;
pub(super) const VOCABULARY: usize = TOKENS as usize;
const TOKENS: u32 = 12;
pub(super) const ADAM_W: OptimizerConfig =
    OptimizerConfig::AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01 };

/// A task with what it is trained on.
pub(super) struct Problem {
    pub(super) name: &'static str,
    pub(super) task: Arc<dyn Task>,
    /// On the host.
    pub(super) data: Dataset,
    /// Outputs of a network, per sample or per token.
    pub(super) width: usize,
}

impl Problem {
    /// Whether a sample is a sequence of tokens, which takes a network of its own.
    pub(super) fn is_of_tokens(&self) -> bool {
        self.data.spec().inputs.dtype() == DType::U32
    }

    /// The samples on a device.
    pub(super) fn data_on(&self, device: &Device) -> Result<Dataset, Broken> {
        let whole = self.data.slice(0, self.data.len())?;
        Ok(Dataset::new(whole.inputs.to_device(device)?, whole.targets.to_device(device)?)?)
    }

    /// Windows of 32 samples in so many microbatches, by all measures of the task, with compiled steps after a few replays.
    pub(super) fn config(&self, microbatches: usize, mode: StepMode) -> TrainConfig {
        let config = train_config(32 / microbatches, microbatches, ADAM_W, ConflictResolution::Mean, execution(mode));
        let measures = self.task.measures().iter().map(|measure| measure.about().name.to_owned()).collect();
        TrainConfig { measures, eval_batch_size: count(32), ..config }
    }

    /// A network that does not grow, trained on these samples.
    pub(super) fn parts(
        &self,
        data: Dataset,
        epochs: u64,
        device: &Device,
        clock: &Arc<dyn Clock>,
    ) -> Result<PlainParts, Broken> {
        let model = if self.is_of_tokens() {
            language_model(device)?
        } else {
            two_layers(11, self.width, device, Tensor::relu)?
        };
        Ok(plain_parts(Arc::clone(&self.task), model, all_of(data), [3, epochs], clock))
    }
}

/// All that are provided, in the ways that differ, and one of a user's own, for networks on `device`.
pub(super) fn problems(device: &Device) -> Result<Vec<Problem>, Broken> {
    let weights: Vec<f32> = (1..=10).map(|class| 0.2 * class as f32).collect();
    let regression = |loss| Regression::new(loss, vec![2.0, 1.0, 0.5]);
    Ok(vec![
        classes("classification", Classification::new(10))?,
        classes("classification_weighted", Classification::new(10).with(Some(weights.clone()), 0.0, device)?)?,
        classes("classification_smoothed", Classification::new(10).with(Some(weights), 0.1, device)?)?,
        values("mse", 3, regression(RegressionLoss::Mse)?)?,
        values("mae", 3, regression(RegressionLoss::Mae)?)?,
        values("huber", 3, regression(RegressionLoss::Huber { delta: 0.3 })?)?,
        flags("binary", 1, Flags::new(1))?,
        flags("multi_label", 4, Flags::new(4).with_positive_weight(3.0)?)?,
        tokens("next_token", None, NextToken::new(VOCABULARY))?,
        tokens("next_token_ignored", Some(IGNORED), NextToken::new(VOCABULARY).with_ignored())?,
        values("own", 3, Rates::new(None))?,
    ])
}

/// The own task with a mistake.
pub(super) fn mistaken(mistake: Mistake) -> Result<Problem, Broken> {
    values("own", 3, Rates::new(Some(mistake)))
}

fn classes(name: &'static str, task: Classification) -> Result<Problem, Broken> {
    Ok(Problem { name, task: Arc::new(task), data: samples(SAMPLES, INPUTS, 10, &Device::Cpu)?, width: 10 })
}

fn values(name: &'static str, width: usize, task: impl Task + 'static) -> Result<Problem, Broken> {
    let targets = Draw::new(6, &Device::Cpu).uniform((SAMPLES, width), 1.0)?;
    vectors(name, width, targets, task)
}

fn flags(name: &'static str, width: usize, task: Flags) -> Result<Problem, Broken> {
    let mut draw = Draw::new(7, &Device::Cpu);
    let flags: Vec<f32> = (0..SAMPLES * width).map(|_| f32::from(u8::from(draw.below(3) == 0))).collect();
    vectors(name, width, Tensor::from_vec(flags, (SAMPLES, width), &Device::Cpu)?, task)
}

fn vectors(name: &'static str, width: usize, targets: Tensor, task: impl Task + 'static) -> Result<Problem, Broken> {
    let inputs = Draw::new(5, &Device::Cpu).uniform((SAMPLES, INPUTS), 1.0)?;
    Ok(Problem { name, task: Arc::new(task), data: Dataset::new(inputs, targets)?, width })
}

/// Where `ignored` is said, it stands in place of every third target, and of all of the first sample.
fn tokens(name: &'static str, ignored: Option<u32>, task: NextToken) -> Result<Problem, Broken> {
    let all = token_text(SAMPLES * LENGTH + 1);
    let is_ignored = |place: usize| place < LENGTH || place.is_multiple_of(3);
    let next = all[1..].iter().enumerate();
    let next: Vec<u32> = next.map(|(place, token)| ignored.filter(|_| is_ignored(place)).unwrap_or(*token)).collect();
    let rows = |tokens: &[u32]| Tensor::from_slice(tokens, (SAMPLES, LENGTH), &Device::Cpu);
    let data = Dataset::new(rows(&all[..SAMPLES * LENGTH])?, rows(&next)?)?;
    Ok(Problem { name, task: Arc::new(task), data, width: VOCABULARY })
}

/// A text of tokens below [`VOCABULARY`].
pub(super) fn token_text(length: usize) -> Vec<u32> {
    let mut draw = Draw::new(8, &Device::Cpu);
    (0..length).map(|_| draw.below(TOKENS)).collect()
}

/// Tokens (B, T) to logits (B, T, V) by an embedding and two layers at each position.
fn language_model(device: &Device) -> Result<PlainModel, Broken> {
    let mut draw = Draw::new(13, device);
    let mut weight = |rows, columns| Var::from_tensor(&draw.uniform((rows, columns), 0.3)?);
    let (embedding, hidden, head) = (weight(VOCABULARY, 16)?, weight(16, 24)?, weight(24, VOCABULARY)?);
    let named = [("embedding", &embedding), ("hidden", &hidden), ("head", &head)];
    let named = named.map(|(name, var)| (name.to_owned(), var.clone())).to_vec();
    Ok(PlainModel::new(named, move |tokens: &Tensor| {
        let (batch, length) = tokens.dims2()?;
        let embedded = embedding.index_select(&tokens.flatten_all()?, 0)?;
        embedded.matmul(&hidden)?.relu()?.matmul(&head)?.reshape((batch, length, VOCABULARY))
    })?)
}

/// What a task must not do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mistake {
    /// It reads its own loss on the host.
    Reads,
    /// It copies a number to the device that differs from call to call.
    Copies,
    /// Its measure reads on the host what it counts.
    ReadsCounts,
}

/// A user's own task, of operations that no other one has: Poisson regression. Outputs (B, W) are logarithms of rates.
#[derive(Debug)]
struct Rates {
    mistake: Option<Mistake>,
    num_calls: AtomicUsize,
    measures: Vec<Measure>,
}

impl Rates {
    fn new(mistake: Option<Mistake>) -> Self {
        let about = About {
            name: "mean_rate",
            title: "Mean rate",
            formula: "sum of e^output / samples",
            scale: Scale::Number,
            direction: Direction::HigherIsBetter,
        };
        let rates = move |outputs: &Tensor, _: &Tensor| {
            let rates = outputs.exp()?.sum_keepdim(1)?;
            if mistake == Some(Mistake::ReadsCounts) {
                read_scalar(&rates.sum_all()?, "a planted mistake", &mut HostReads::default())?;
            }
            Ok(rates)
        };
        let measures = vec![Measure::new(about, rates, |sums, samples| sums[0] / samples)];
        Self { mistake, num_calls: AtomicUsize::new(0), measures }
    }

    /// Leaves the values alone.
    fn err(&self, mistake: Mistake, losses: Tensor) -> candle_core::Result<Tensor> {
        match mistake {
            Mistake::Reads => {
                read_scalar(&losses.sum_all()?, "a planted mistake", &mut HostReads::default())?;
                Ok(losses)
            }
            Mistake::Copies => {
                let calls = self.num_calls.fetch_add(1, Ordering::Relaxed);
                let number = Tensor::new(&[calls as f32], losses.device())?;
                losses.broadcast_add(&number.sub(&number)?)
            }
            Mistake::ReadsCounts => Ok(losses),
        }
    }
}

impl Task for Rates {
    fn describe(&self) -> String {
        "rates".to_owned()
    }

    fn losses(&self, outputs: &Tensor, targets: &Tensor) -> candle_core::Result<Tensor> {
        let losses = (outputs.exp()? - (outputs * targets)?)?.sum(1)?;
        self.mistake.map_or(Ok(losses.clone()), |mistake| self.err(mistake, losses))
    }

    fn measures(&self) -> &[Measure] {
        &self.measures
    }

    fn check_targets(&self, targets: &Tensor) -> candle_core::Result<()> {
        let fits = targets.rank() == 2 && targets.dtype() == DType::F32;
        if fits { Ok(()) } else { candle_core::bail!("expected f32 of shape (N, W), found {:?}", targets.shape()) }
    }
}
