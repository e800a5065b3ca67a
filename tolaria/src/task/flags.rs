//! Flags that are set or not, each by itself: binary for one of them, multi-label for several.

use candle_core::{DType, Result, Tensor};
use leyline::task::{Measure, Task};

use crate::error::Error;
use crate::host_read::{self, HostReads};
use crate::measure;

/// Binary cross-entropy of logits (B, L) with targets (B, L) of `f32` that are 0 or 1, in nats, averaged over the L flags.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use tolaria::task::{Flags, Task};
///
/// let rows = |rows: &[[f32; 2]; 2]| Tensor::new(rows, &Device::Cpu);
/// let (logits, targets) = (rows(&[[0.0, 0.0], [30.0, -30.0]])?, rows(&[[0.0, 1.0], [1.0, 1.0]])?);
/// let task = Flags::new(2);
/// let losses = task.losses(&logits, &targets)?.to_vec1::<f32>()?;
/// assert!((losses[0] - 2.0_f32.ln()).abs() < 1e-6 && (losses[1] - 15.0).abs() < 1e-5);
/// assert_eq!(task.hits(&logits, &targets)?.unwrap().to_vec1::<f32>()?, [0.5, 0.5]);
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Debug)]
pub struct Flags {
    num_flags: usize,
    positive_weight: f64,
    measures: Vec<Measure>,
}

impl Flags {
    /// So many flags, which count the same whether they are set or not.
    #[must_use]
    pub fn new(num_flags: usize) -> Self {
        let measures = vec![measure::f1().by_default(), measure::auroc().by_default()];
        Self { num_flags, positive_weight: 1.0, measures }
    }

    /// With flags that are set counting so many times as much as others.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] for a weight that is not above 0.
    pub fn with_positive_weight(self, positive_weight: f64) -> std::result::Result<Self, Error> {
        if positive_weight.is_finite() && positive_weight > 0.0 {
            return Ok(Self { positive_weight, ..self });
        }
        let message = format!("expected a finite number above 0, found {positive_weight}");
        Err(Error::InvalidConfig { key: "positive_weight".to_owned(), message })
    }

    fn logits(&self, outputs: &Tensor, targets: &Tensor) -> Result<Tensor> {
        let fits = outputs.dims() == targets.dims() && matches!(*outputs.dims(), [_, flags] if flags == self.num_flags);
        super::outputs(outputs, fits, || format!("logits like the targets, {:?}", targets.dims()))
    }
}

impl Task for Flags {
    #[expect(clippy::float_cmp, reason = "the weight that was not given is exactly 1")]
    fn describe(&self) -> String {
        let text = format!("{} flags", self.num_flags);
        if self.positive_weight == 1.0 { text } else { format!("{text}, positive weight {}", self.positive_weight) }
    }

    /// Per flag, for y in {0, 1} and weight w: w y ln(1 + e^-x) + (1 - y) ln(1 + e^x).
    fn losses(&self, outputs: &Tensor, targets: &Tensor) -> Result<Tensor> {
        let logits = self.logits(outputs, targets)?;
        // ln(1 + e^-|x|), which cannot overflow.
        let small = logits.abs()?.neg()?.exp()?.affine(1.0, 1.0)?.log()?;
        let if_unset = (logits.relu()? + &small)?;
        // Of the same `relu`: where the logit is 0, its slope and that of the other add up to what is right.
        let if_set = ((logits.relu()? - &logits)? + small)?;
        let set = (if_set * targets.affine(self.positive_weight, 0.0)?)?;
        (set + (if_unset * targets.affine(-1.0, 1.0)?)?)?.mean(1)
    }

    fn hits(&self, outputs: &Tensor, targets: &Tensor) -> Result<Option<Tensor>> {
        let logits = self.logits(outputs, targets)?;
        // Above 0 where the logit has the sign of its flag, ±1. A logit that is 0 or no number predicts nothing that is set.
        let is_set = logits.relu()?.sign()?;
        let differs = (is_set - targets)?.abs()?;
        let is_number = logits.eq(&logits)?.to_dtype(DType::F32)?;
        Ok(Some((differs.affine(-1.0, 1.0)? * is_number)?.mean(1)?))
    }

    fn measures(&self) -> &[Measure] {
        &self.measures
    }

    fn loss_of_guessing(&self) -> Option<f64> {
        Some(std::f64::consts::LN_2 * self.positive_weight.max(1.0))
    }

    #[expect(clippy::float_cmp, reason = "a flag is exactly 0 or 1")]
    fn check_targets(&self, targets: &Tensor) -> Result<()> {
        let fits = matches!(*targets.dims(), [_, flags] if flags == self.num_flags) && targets.dtype() == DType::F32;
        if !fits {
            let (flags, dtype, shape) = (self.num_flags, targets.dtype(), targets.shape());
            candle_core::bail!("expected f32 of shape (N, {flags}), found {dtype:?} {shape:?}")
        }
        let values = host_read::read_vec(&targets.flatten_all()?, "targets", &mut HostReads::default())?;
        match values.iter().position(|value| *value != 0.0 && *value != 1.0) {
            None => Ok(()),
            Some(place) => {
                candle_core::bail!("expected 0 or 1, found {} at sample {}", values[place], place / self.num_flags)
            }
        }
    }
}
