//! One of C classes.

use candle_core::{DType, Device, Result, Tensor};
use leyline::task::{Measure, Task};

use super::log_softmax::{log_softmax, only};
use crate::error::Error;
use crate::host_read::{self, HostReads};
use crate::{loss, measure};

/// Cross-entropy of logits (B, C) with targets (B,) of `u32` below C, in nats.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use tolaria::task::{Classification, Task};
///
/// let task = Classification::new(2);
/// let logits = Tensor::new(&[[0.0_f32, 0.0], [9.0, -9.0]], &Device::Cpu)?;
/// let targets = Tensor::new(&[1_u32, 0], &Device::Cpu)?;
/// let losses = task.losses(&logits, &targets)?.to_vec1::<f32>()?;
/// assert!((losses[0] - 2.0_f32.ln()).abs() < 1e-6 && losses[1] < 1e-6);
/// assert_eq!(task.hits(&logits, &targets)?.unwrap().to_vec1::<f32>()?, [0.0, 1.0]);
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Debug)]
pub struct Classification {
    num_classes: usize,
    smoothing: f64,
    weights: Option<Vec<f32>>,
    shares: Option<Shares>,
    measures: Vec<Measure>,
}

/// What a loss with weights or smoothing needs on the device.
#[derive(Debug)]
struct Shares {
    /// 0, 1, …, C - 1: (1, C) of `u32`.
    classes: Tensor,
    /// Weights of the classes, (1, C).
    weights: Tensor,
}

impl Classification {
    /// Every class counts the same.
    #[must_use]
    pub fn new(num_classes: usize) -> Self {
        let measures = vec![measure::top5(), measure::macro_f1()];
        Self { num_classes, smoothing: 0.0, weights: None, shares: None, measures }
    }

    /// With a weight per class, (C), and with `smoothing` of each target shared out evenly among all classes. The loss of a
    /// sample is multiplied by the weight of its class; weights with a mean of 1 over the samples keep the loss as large as it
    /// was. The network is on `device`.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] for another number of weights, one that is not above 0, a smoothing outside `[0, 1)`.
    /// # Sync
    /// copies the weights to the device
    pub fn with(self, weights: Option<Vec<f32>>, smoothing: f64, device: &Device) -> std::result::Result<Self, Error> {
        let wrong = |key: &str, message: String| Err(Error::InvalidConfig { key: key.to_owned(), message });
        if !(0.0..1.0).contains(&smoothing) {
            return wrong("label_smoothing", format!("expected a number from 0 to below 1, found {smoothing}"));
        }
        let classes = self.num_classes;
        if let Some(weights) = &weights {
            if weights.len() != classes {
                return wrong("class_weights", format!("expected {classes}, one per class, found {}", weights.len()));
            }
            if let Some(weight) = weights.iter().find(|weight| !(weight.is_finite() && **weight > 0.0)) {
                return wrong("class_weights", format!("expected finite numbers above 0, found {weight}"));
            }
        }
        let shares = if weights.is_none() && smoothing == 0.0 {
            None
        } else {
            let numbers = (0..classes).map(u32::try_from).collect::<std::result::Result<Vec<u32>, _>>();
            let numbers = numbers.map_err(candle_core::Error::wrap)?;
            let values = weights.clone().unwrap_or_else(|| vec![1.0; classes]);
            Some(Shares {
                classes: Tensor::from_vec(numbers, (1, classes), device)?,
                weights: Tensor::from_vec(values, (1, classes), device)?,
            })
        };
        Ok(Self { smoothing, weights, shares, ..self })
    }

    fn logits(&self, logits: &Tensor) -> Result<Tensor> {
        let fits = matches!(*logits.dims(), [_, classes] if classes == self.num_classes);
        super::outputs(logits, fits, || format!("logits (B, {})", self.num_classes))
    }

    /// (B,), with a gradient.
    fn weighted(&self, shares: &Shares, logits: &Tensor, targets: &Tensor) -> Result<Tensor> {
        let is_target = targets.unsqueeze(1)?.broadcast_eq(&shares.classes)?;
        let share = is_target.to_dtype(DType::F32)?;
        let of_sample = share.broadcast_mul(&shares.weights)?.sum_keepdim(1)?;
        let nats = log_softmax(logits)?;
        let wanted = if self.smoothing > 0.0 {
            let even = self.smoothing / self.num_classes as f64;
            (nats * share.affine(1.0 - self.smoothing, even)?)?
        } else {
            only(&is_target, &nats)?
        };
        wanted.broadcast_mul(&of_sample)?.sum(1)?.neg()
    }
}

impl Task for Classification {
    fn describe(&self) -> String {
        let mut text = format!("classification of {}", self.num_classes);
        if let Some(weights) = &self.weights {
            text += &format!(", class weights {weights:?}");
        }
        if self.smoothing > 0.0 {
            text += &format!(", label smoothing {}", self.smoothing);
        }
        text
    }

    fn losses(&self, outputs: &Tensor, targets: &Tensor) -> Result<Tensor> {
        let logits = self.logits(outputs)?;
        match &self.shares {
            None => Ok(loss::per_sample(&logits, targets)?),
            Some(shares) => self.weighted(shares, &logits, targets),
        }
    }

    fn mean_loss(&self, outputs: &Tensor, targets: &Tensor) -> Result<Tensor> {
        let logits = self.logits(outputs)?;
        match &self.shares {
            None => Ok(loss::cross_entropy(&logits, targets)?),
            Some(shares) => self.weighted(shares, &logits, targets)?.mean_all(),
        }
    }

    fn hits(&self, outputs: &Tensor, targets: &Tensor) -> Result<Option<Tensor>> {
        Ok(Some(loss::hits(&self.logits(outputs)?, targets)?))
    }

    fn num_hits(&self, outputs: &Tensor, targets: &Tensor) -> Result<Option<Tensor>> {
        Ok(Some(loss::correct(&self.logits(outputs)?, targets)?))
    }

    fn measures(&self) -> &[Measure] {
        &self.measures
    }

    fn loss_of_guessing(&self) -> Option<f64> {
        let largest = self.weights.iter().flatten().copied().reduce(f32::max).unwrap_or(1.0);
        (self.num_classes > 1).then(|| (self.num_classes as f64).ln() * f64::from(largest))
    }

    fn tensors(&self) -> Vec<Tensor> {
        self.shares.iter().flat_map(|shares| [shares.classes.clone(), shares.weights.clone()]).collect()
    }

    fn check_targets(&self, targets: &Tensor) -> Result<()> {
        if targets.rank() != 1 || targets.dtype() != DType::U32 {
            candle_core::bail!("expected u32 of shape (N,), found {:?} {:?}", targets.dtype(), targets.shape())
        }
        let classes = self.num_classes;
        let labels = host_read::read_vec_u32(targets, "labels", &mut HostReads::default())?;
        match labels.iter().position(|label| *label as usize >= classes) {
            None => Ok(()),
            Some(index) => {
                candle_core::bail!("expected classes below {classes}, found {} at sample {index}", labels[index])
            }
        }
    }
}
