//! The token that comes next, at every position of a sequence.

use candle_core::{DType, Result, Tensor};
use leyline::task::{Measure, Task};

use crate::error::Error;
use crate::host_read::{self, HostReads};
use crate::loss::{self, IGNORED};
use crate::measure;

/// Cross-entropy of logits (B, T, V) with targets (B, T) of `u32` below V, in nats, averaged over the T positions.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use tolaria::task::{IGNORED, NextToken, Task};
///
/// let logits = Tensor::zeros((1, 2, 4), candle_core::DType::F32, &Device::Cpu)?;
/// let targets = Tensor::new(&[[3_u32, IGNORED]], &Device::Cpu)?;
/// let task = NextToken::new(4).with_ignored();
/// let losses = task.losses(&logits, &targets)?.to_vec1::<f32>()?;
/// assert!((losses[0] - 4.0_f32.ln() / 2.0).abs() < 1e-6, "one position of two counts");
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Debug)]
pub struct NextToken {
    vocabulary: usize,
    has_ignored: bool,
    measures: Vec<Measure>,
}

impl NextToken {
    /// Tokens below `vocabulary` (V), each of which is a byte of text.
    #[must_use]
    pub fn new(vocabulary: usize) -> Self {
        Self { vocabulary, has_ignored: false, measures: Vec::new() }.with_bytes_per_token(Some(1.0))
    }

    /// With tokens that stand for so many bytes of text on average; where nobody knows, bits per byte are not measured.
    #[must_use]
    pub fn with_bytes_per_token(self, bytes_per_token: Option<f64>) -> Self {
        let bits = bytes_per_token.map(|bytes| measure::bits_per_byte(bytes).by_default());
        Self { measures: [measure::perplexity().by_default()].into_iter().chain(bits).collect(), ..self }
    }

    /// With targets that are [`IGNORED`].
    #[must_use]
    pub fn with_ignored(self) -> Self {
        Self { has_ignored: true, ..self }
    }

    fn logits(&self, outputs: &Tensor, targets: &Tensor) -> Result<Tensor> {
        let fits =
            outputs.rank() == 3 && outputs.dims()[..2] == *targets.dims() && outputs.dims()[2] == self.vocabulary;
        super::outputs(outputs, fits, || format!("logits {:?} by {}", targets.dims(), self.vocabulary))
    }
}

impl Task for NextToken {
    fn describe(&self) -> String {
        let ignored = if self.has_ignored { ", some ignored" } else { "" };
        format!("next of {} tokens{ignored}", self.vocabulary)
    }

    fn losses(&self, outputs: &Tensor, targets: &Tensor) -> Result<Tensor> {
        of_positions(loss::per_sample, &self.logits(outputs, targets)?, targets)?.mean(1)
    }

    fn mean_loss(&self, outputs: &Tensor, targets: &Tensor) -> Result<Tensor> {
        let rows = self.logits(outputs, targets)?.flatten_to(1)?;
        Ok(loss::cross_entropy(&rows, &targets.flatten_all()?)?)
    }

    /// Of the positions that count; a sample without any was not recognized.
    fn hits(&self, outputs: &Tensor, targets: &Tensor) -> Result<Option<Tensor>> {
        let hits = of_positions(loss::hits, &self.logits(outputs, targets)?, targets)?;
        if !self.has_ignored {
            return Ok(Some(hits.mean(1)?));
        }
        // At least 1.
        let counted = is_counted(targets)?.sum(1)?.affine(1.0, -1.0)?.relu()?.affine(1.0, 1.0)?;
        Ok(Some((hits.sum(1)? / counted)?))
    }

    fn measures(&self) -> &[Measure] {
        &self.measures
    }

    fn loss_of_guessing(&self) -> Option<f64> {
        (self.vocabulary > 1).then(|| (self.vocabulary as f64).ln())
    }

    fn check_targets(&self, targets: &Tensor) -> Result<()> {
        if targets.rank() != 2 || targets.dtype() != DType::U32 {
            candle_core::bail!("expected u32 of shape (N, T), found {:?} {:?}", targets.dtype(), targets.shape())
        }
        let tokens = host_read::read_vec_u32(&targets.flatten_all()?, "targets", &mut HostReads::default())?;
        let is_token = |token: &u32| (*token as usize) < self.vocabulary || *token == IGNORED && self.has_ignored;
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
    Ok((of_positions(loss::per_sample, logits, targets)?, is_counted(targets)?))
}

/// What `of_rows` says of rows of logits, for every position: (B, T).
fn of_positions(
    of_rows: fn(&Tensor, &Tensor) -> std::result::Result<Tensor, Error>,
    logits: &Tensor,
    targets: &Tensor,
) -> Result<Tensor> {
    of_rows(&logits.flatten_to(1)?, &targets.flatten_all()?)?.reshape(targets.shape())
}

/// 1 where a target is a token and 0 where it is ignored, (B, T), without a number from the host: tokens are far below half of
/// what `u32` can number, and [`IGNORED`] is above it.
fn is_counted(targets: &Tensor) -> Result<Tensor> {
    targets.to_dtype(DType::F32)?.affine(-1.0, f64::from(1_u32 << 31))?.relu()?.sign()
}
