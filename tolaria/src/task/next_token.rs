//! The token that comes next, at every position of a sequence.

use candle_core::{D, DType, Device, Result, Tensor};
use leyline::task::{Measure, Task};

use super::log_softmax::{log_softmax, only};
use crate::error::Error;
use crate::host_read::{self, HostReads};
use crate::{loss, measure};

/// A target that is not predicted: padding, a prompt. It has no loss and is in no measure.
pub const IGNORED: u32 = u32::MAX;

/// Cross-entropy of logits (B, T, V) with targets (B, T) of `u32` below V, in nats, averaged over the T positions.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use tolaria::task::{IGNORED, NextToken, Task};
///
/// let logits = Tensor::zeros((1, 2, 4), candle_core::DType::F32, &Device::Cpu)?;
/// let targets = Tensor::new(&[[3_u32, IGNORED]], &Device::Cpu)?;
/// let task = NextToken::new(4).with_ignored(&Device::Cpu).unwrap();
/// let losses = task.losses(&logits, &targets)?.to_vec1::<f32>()?;
/// assert!((losses[0] - 4.0_f32.ln() / 2.0).abs() < 1e-6, "one position of two counts");
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Debug)]
pub struct NextToken {
    vocabulary: usize,
    /// The number of tokens, (1, 1) of `u32`: targets that reach it are ignored. Absent where none may be.
    limit: Option<Tensor>,
    /// 0, 1, …, V - 1, (1, 1, V), beside the limit.
    tokens: Option<Tensor>,
    measures: Vec<Measure>,
}

impl NextToken {
    /// Tokens below `vocabulary` (V), each of which is a byte of text.
    #[must_use]
    pub fn new(vocabulary: usize) -> Self {
        Self { vocabulary, limit: None, tokens: None, measures: Vec::new() }.with_bytes_per_token(1.0)
    }

    /// With tokens that stand for so many bytes of text on average.
    #[must_use]
    pub fn with_bytes_per_token(self, bytes_per_token: f64) -> Self {
        let measures = vec![measure::perplexity().by_default(), measure::bits_per_byte(bytes_per_token).by_default()];
        Self { measures, ..self }
    }

    /// With targets that are [`IGNORED`]. The network is on `device`.
    ///
    /// # Errors
    /// When the vocabulary is too large for `u32`, or the device fails.
    /// # Sync
    /// copies the tokens' numbers to the device
    pub fn with_ignored(self, device: &Device) -> std::result::Result<Self, Error> {
        let limit = u32::try_from(self.vocabulary).map_err(candle_core::Error::wrap)?;
        let tokens = Some(Tensor::arange(0, limit, device)?.reshape((1, 1, self.vocabulary))?);
        Ok(Self { limit: Some(Tensor::full(limit, (1, 1), device)?), tokens, ..self })
    }

    fn logits(&self, outputs: &Tensor, targets: &Tensor) -> Result<Tensor> {
        let fits =
            outputs.rank() == 3 && outputs.dims()[..2] == *targets.dims() && outputs.dims()[2] == self.vocabulary;
        super::outputs(outputs, fits, || format!("logits {:?} by {}", targets.dims(), self.vocabulary))
    }
}

impl Task for NextToken {
    fn describe(&self) -> String {
        let ignored = if self.limit.is_some() { ", some ignored" } else { "" };
        format!("next of {} tokens{ignored}", self.vocabulary)
    }

    fn losses(&self, outputs: &Tensor, targets: &Tensor) -> Result<Tensor> {
        of_tokens(&self.logits(outputs, targets)?, targets)?.0.mean(1)
    }

    fn mean_loss(&self, outputs: &Tensor, targets: &Tensor) -> Result<Tensor> {
        let logits = self.logits(outputs, targets)?;
        let Some(tokens) = &self.tokens else {
            let rows = logits.flatten_to(1)?;
            return loss::cross_entropy(&rows, &targets.flatten_all()?).map_err(candle_core::Error::wrap);
        };
        // An ignored target is no token, so that its whole row is 0.
        let is_target = targets.unsqueeze(2)?.broadcast_eq(tokens)?;
        let positions = targets.elem_count() as f64;
        only(&is_target, &log_softmax(&logits)?)?.sum_all()?.affine(-1.0 / positions, 0.0)
    }

    /// Of the positions that count; a sample without any was not recognized.
    fn hits(&self, outputs: &Tensor, targets: &Tensor) -> Result<Option<Tensor>> {
        let logits = self.logits(outputs, targets)?;
        let is_hit = |tokens: &Tensor| -> Result<Tensor> {
            let hits = loss::hits(&logits.flatten_to(1)?, &tokens.flatten_all()?);
            hits.map_err(candle_core::Error::wrap)?.reshape(targets.shape())
        };
        let Some(limit) = &self.limit else { return Ok(Some(is_hit(targets)?.mean(1)?)) };
        let is_token = targets.broadcast_lt(limit)?;
        let hits = is_hit(&is_token.where_cond(targets, &targets.zeros_like()?)?)?;
        let is_token = is_token.to_dtype(DType::F32)?;
        // At least 1.
        let counted = is_token.sum(1)?.affine(1.0, -1.0)?.relu()?.affine(1.0, 1.0)?;
        Ok(Some(((hits * is_token)?.sum(1)? / counted)?))
    }

    fn measures(&self) -> &[Measure] {
        &self.measures
    }

    fn loss_of_guessing(&self) -> Option<f64> {
        (self.vocabulary > 1).then(|| (self.vocabulary as f64).ln())
    }

    fn tensors(&self) -> Vec<Tensor> {
        self.limit.iter().chain(&self.tokens).cloned().collect()
    }

    fn check_targets(&self, targets: &Tensor) -> Result<()> {
        if targets.rank() != 2 || targets.dtype() != DType::U32 {
            candle_core::bail!("expected u32 of shape (N, T), found {:?} {:?}", targets.dtype(), targets.shape())
        }
        let tokens = host_read::read_vec_u32(&targets.flatten_all()?, "targets", &mut HostReads::default());
        let tokens = tokens.map_err(candle_core::Error::wrap)?;
        let is_token = |token: &u32| (*token as usize) < self.vocabulary || *token == IGNORED && self.limit.is_some();
        match tokens.iter().position(|token| !is_token(token)) {
            None => Ok(()),
            Some(place) => {
                let (limit, found, length) = (self.vocabulary, tokens[place], targets.dims()[1]);
                let (sample, position) = (place / length, place % length);
                candle_core::bail!(
                    "expected tokens below {limit}, found {found} at sample {sample}, position {position}"
                )
            }
        }
    }
}

/// The loss of every position, 0 for those that are ignored, and 1 for those that are not: both (B, T), without gradients.
pub(crate) fn of_tokens(logits: &Tensor, targets: &Tensor) -> Result<(Tensor, Tensor)> {
    let vocabulary = logits.dim(D::Minus1)? as f64;
    let is_token = targets.lt(vocabulary)?;
    let tokens = is_token.where_cond(targets, &targets.zeros_like()?)?;
    let rows = logits.flatten_to(1)?;
    let losses = loss::per_sample(&rows, &tokens.flatten_all()?).map_err(candle_core::Error::wrap)?;
    let losses = losses.reshape(targets.shape())?;
    Ok((is_token.where_cond(&losses, &losses.zeros_like()?)?, is_token.to_dtype(DType::F32)?))
}
