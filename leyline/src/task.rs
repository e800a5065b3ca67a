//! What a network is trained for: a loss of every sample, and measures of how good its outputs are.
//!
//! ```text
//!   outputs, targets of a batch ──┬─ mean_loss ─► what a step follows downhill, main loss and shadows alike
//!                                 ├─ losses ────► evaluation, evidence, shares: one number per sample
//!                                 ├─ hits ──────► accuracy, where there is one
//!                                 └─ measures ──► counts that add up over batches ─► values
//! ```
//!
//! One task serves everything that asks how wrong a network is, so that no two of them can differ. The loss of a set of
//! samples is the mean over its samples; weights of samples or classes are part of the loss of each sample.
//!
//! *Shapes*: outputs (B, …) as the network gives them, targets (B, …) of `u32` or `f32` as the data give them.
//!
//! # For callers
//! Show [`Task::check_targets`] all targets before the first of them is used.
//!
//! # For implementers
//! - **TK-1** `losses` gives `f32` of shape (B,), and what a sample comes to does not depend on the others of its batch.
//! - **TK-2** `mean_loss` is the mean of `losses` but for rounding, a scalar of `f32` with a gradient for the outputs. Where it
//!   is provided, `losses` must have that gradient; where it is implemented, they need none.
//! - **TK-3** nothing is read from the device, nothing copied to it, nothing kept between calls, in counts of measures either:
//!   the results follow from the arguments and from `tensors`, which never change, so that a step with this loss and an
//!   evaluation with these measures may be recorded and replayed. An error of the device is handed on, and no number put in
//!   its place: what reads is refused by it while it is recorded, by name, and runs eagerly.
//! - **TK-4** `hits` gives `f32` in `[0, 1]` of shape (B,), for every batch or for none; `num_hits` is their sum.
//! - **TK-5** counts of a measure add up: the value of two batches together is that of the sums of their counts.
//! - **TK-6** targets that `check_targets` accepts never make another method fail or read beyond its tensors; it refuses all
//!   others, saying what is accepted.
//!
//! # A task
//! ```
//! use candle_core::{DType, Device, Result, Tensor};
//! use leyline::task::Task;
//!
//! /// How far, on average, the outputs (B, W) are from targets of the same shape.
//! #[derive(Debug)]
//! struct Distance;
//!
//! impl Task for Distance {
//!     fn describe(&self) -> String {
//!         "distance".to_owned()
//!     }
//!     fn losses(&self, outputs: &Tensor, targets: &Tensor) -> Result<Tensor> {
//!         (outputs - targets)?.abs()?.mean(1)
//!     }
//!     fn check_targets(&self, targets: &Tensor) -> Result<()> {
//!         match (targets.rank(), targets.dtype()) {
//!             (2, DType::F32) => Ok(()),
//!             found => candle_core::bail!("expected f32 of shape (N, W), found rank and type {found:?}"),
//!         }
//!     }
//! }
//!
//! let tensor = |rows: &[[f32; 2]; 2]| Tensor::new(rows, &Device::Cpu);
//! let (outputs, targets) = (tensor(&[[1.0, 2.0], [0.0, 0.0]])?, tensor(&[[1.0, 4.0], [3.0, 3.0]])?);
//! Distance.check_targets(&targets)?;
//! assert_eq!(Distance.losses(&outputs, &targets)?.to_vec1::<f32>()?, [1.0, 3.0]);
//! assert_eq!(Distance.mean_loss(&outputs, &targets)?.to_scalar::<f32>()?, 2.0);
//! # Ok::<(), candle_core::Error>(())
//! ```
//! What tempts: to divide by something of the batch, its number of targets above 0 say. Then the loss of a sample depends on
//! its neighbours (TK-1), and one that is measured alone is another than the one that was trained on.

use std::fmt;
use std::sync::Arc;

use candle_core::{Result, Tensor};
use serde::{Deserialize, Serialize};

/// A loss of every sample, and measures beside it.
#[diagnostic::on_unimplemented(note = "the numbered rules TK-1… in `leyline::task` are the implementer's checklist")]
pub trait Task: fmt::Debug + Send + Sync {
    /// Everything that decides about the loss, in one line: "classification of 10". It is stored with checkpoints, and compared
    /// before one is restored.
    fn describe(&self) -> String;

    /// The loss of each sample, (B,) of `f32` (TK-1).
    ///
    /// # Errors
    /// When shapes or types do not fit, or the device fails.
    /// # Sync
    /// none
    fn losses(&self, outputs: &Tensor, targets: &Tensor) -> Result<Tensor>;

    /// The mean of [`Self::losses`], a scalar with a gradient for the outputs (TK-2).
    ///
    /// # Errors
    /// As there.
    /// # Sync
    /// none
    fn mean_loss(&self, outputs: &Tensor, targets: &Tensor) -> Result<Tensor> {
        self.losses(outputs, targets)?.mean_all()
    }

    /// How much of each sample was recognized, (B,) of `f32` in `[0, 1]`; absent where nothing is to be recognized.
    ///
    /// # Errors
    /// As [`Self::losses`].
    /// # Sync
    /// none
    fn hits(&self, _outputs: &Tensor, _targets: &Tensor) -> Result<Option<Tensor>> {
        Ok(None)
    }

    /// The sum of [`Self::hits`], a scalar of `f32`: of every microbatch that is trained on.
    ///
    /// # Errors
    /// As [`Self::losses`].
    /// # Sync
    /// none
    fn num_hits(&self, outputs: &Tensor, targets: &Tensor) -> Result<Option<Tensor>> {
        self.hits(outputs, targets)?.map(|hits| hits.sum_all()).transpose()
    }

    /// What held-out data can be measured by beside loss and accuracy, in the order of reports.
    fn measures(&self) -> &[Measure] {
        &[]
    }

    /// The loss of guessing among all that is possible, where that is known: ln C among C classes; where it depends on the data,
    /// as with weights, the largest that it can be. Outputs that are worse are worse than none.
    fn loss_of_guessing(&self) -> Option<f64> {
        None
    }

    /// Tensors that it keeps on the device; a recorded step may read them, so they stay where they are and as they are.
    fn tensors(&self) -> Vec<Tensor> {
        Vec::new()
    }

    /// Whether all of these targets (N, …) can be trained on (TK-6).
    ///
    /// # Errors
    /// Which cannot, and what is accepted.
    /// # Sync
    /// May read the targets.
    fn check_targets(&self, targets: &Tensor) -> Result<()>;
}

/// Whether more of a measure is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// As of an accuracy.
    HigherIsBetter,
    /// As of an error.
    LowerIsBetter,
}

/// How values of a measure are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scale {
    /// A part of a whole, shown in percent.
    Ratio,
    /// A number in the unit that its formula gives.
    Number,
}

/// What is known about a measure without measuring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct About {
    /// In settings, files and labels of metrics.
    pub name: &'static str,
    /// For people.
    pub title: &'static str,
    /// What is divided by what.
    pub formula: &'static str,
    /// How values are shown.
    pub scale: Scale,
    /// Whether more is better.
    pub direction: Direction,
}

type Counts = dyn Fn(&Tensor, &Tensor) -> Result<Tensor> + Send + Sync;
type Value = dyn Fn(&[f64], f64) -> f64 + Send + Sync;

/// What is counted of outputs, and what the counts come to.
#[derive(Clone)]
pub struct Measure {
    about: About,
    is_default: bool,
    counts: Arc<Counts>,
    value: Arc<Value>,
}

impl Measure {
    /// `counts` maps outputs and targets of a batch to (rows, counts) of `f32` or `f64`; rows are added up, of all batches, in
    /// `f64`, and how many a batch has does not matter. Like a loss they stay on the device, and are recorded (TK-3). `value` maps the sums
    /// and the number of samples to the value, on the host; what is no finite number was not measured.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// use leyline::task::{About, Direction, Measure, Scale};
    ///
    /// let about = About {
    ///     name: "mean_abs_error",
    ///     title: "Mean absolute error",
    ///     formula: "sum of |output - target| / samples",
    ///     scale: Scale::Number,
    ///     direction: Direction::LowerIsBetter,
    /// };
    /// let error = Measure::new(about, |outputs, targets| (outputs - targets)?.abs(), |sums, samples| sums[0] / samples);
    /// let column = |rows: &[[f32; 1]; 2]| Tensor::new(rows, &Device::Cpu);
    /// let counts = error.counts(&column(&[[1.0], [2.0]])?, &column(&[[3.0], [2.0]])?)?;
    /// assert_eq!(counts.to_vec2::<f32>()?, [[2.0], [0.0]]);
    /// assert_eq!(error.value(&[2.0], 2.0), Some(1.0));
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    pub fn new(
        about: About,
        counts: impl Fn(&Tensor, &Tensor) -> Result<Tensor> + Send + Sync + 'static,
        value: impl Fn(&[f64], f64) -> f64 + Send + Sync + 'static,
    ) -> Self {
        Self { about, is_default: false, counts: Arc::new(counts), value: Arc::new(value) }
    }

    /// Measured where the settings name no measures.
    #[must_use]
    pub fn by_default(self) -> Self {
        Self { is_default: true, ..self }
    }

    /// What is known about it.
    #[must_use]
    pub fn about(&self) -> &About {
        &self.about
    }

    /// Whether it is measured where the settings name no measures.
    #[must_use]
    pub fn is_default(&self) -> bool {
        self.is_default
    }

    /// Counts of a batch, (rows, counts) of `f32` or `f64` (TK-3, TK-5).
    ///
    /// # Errors
    /// When shapes do not fit, or the device fails.
    /// # Sync
    /// none
    pub fn counts(&self, outputs: &Tensor, targets: &Tensor) -> Result<Tensor> {
        (self.counts)(outputs, targets)
    }

    /// The value from the sums of the counts and the number of samples; absent where that is no finite number.
    #[must_use]
    pub fn value(&self, sums: &[f64], num_samples: f64) -> Option<f64> {
        Some((self.value)(sums, num_samples)).filter(|value| value.is_finite())
    }
}

impl fmt::Debug for Measure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Measure").field("about", &self.about).finish_non_exhaustive()
    }
}
