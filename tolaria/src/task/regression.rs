//! Real values.

use candle_core::{DType, Result, Tensor};
use leyline::task::{Measure, Task};

use super::config::RegressionLoss;
use crate::error::Error;
use crate::host_read::{self, HostReads};
use crate::measure;

/// How far outputs (B, W) are from targets (B, W) of `f32`, averaged over the W values of a sample.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use tolaria::task::{Regression, RegressionLoss, Task};
///
/// let column = |rows: &[[f32; 1]; 2]| Tensor::new(rows, &Device::Cpu);
/// let (outputs, targets) = (column(&[[0.5], [4.0]])?, column(&[[0.0], [1.0]])?);
/// for (loss, expected) in [
///     (RegressionLoss::Mse, [0.25, 9.0]),
///     (RegressionLoss::Mae, [0.5, 3.0]),
///     (RegressionLoss::Huber { delta: 1.0 }, [0.125, 2.5]),
/// ] {
///     let task = Regression::new(loss, vec![1.0]).unwrap();
///     assert_eq!(task.losses(&outputs, &targets)?.to_vec1::<f32>()?, expected);
/// }
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Debug)]
pub struct Regression {
    loss: RegressionLoss,
    width: usize,
    measures: Vec<Measure>,
}

impl Regression {
    /// `scales`: how many units of the data 1 is, for each of the W values; 1 where targets are as they were measured, the
    /// standard deviation where they are standardized. Errors are told in units of the data.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] for a scale or a delta that is not above 0, and for no values.
    pub fn new(loss: RegressionLoss, scales: Vec<f64>) -> std::result::Result<Self, Error> {
        let is_usable = |number: &f64| number.is_finite() && *number > 0.0;
        let wrong =
            |key: &str, message: &str| Err(Error::InvalidConfig { key: key.to_owned(), message: message.into() });
        if scales.is_empty() || !scales.iter().all(is_usable) {
            return wrong("scales", "expected at least one, each a finite number above 0");
        }
        if matches!(loss, RegressionLoss::Huber { delta } if !is_usable(&delta)) {
            return wrong("delta", "expected a finite number above 0");
        }
        let errors = [measure::mean_abs_error(scales.clone()), measure::root_mean_square_error(scales.clone())];
        let measures = [measure::r2()].into_iter().chain(errors).map(Measure::by_default).collect();
        Ok(Self { loss, width: scales.len(), measures })
    }
}

impl Task for Regression {
    fn describe(&self) -> String {
        format!("regression of {}, {}", self.width, self.loss)
    }

    fn losses(&self, outputs: &Tensor, targets: &Tensor) -> Result<Tensor> {
        let fits = outputs.dims() == targets.dims() && matches!(*outputs.dims(), [_, width] if width == self.width);
        let outputs = super::outputs(outputs, fits, || format!("values like the targets, {:?}", targets.dims()))?;
        let off = (outputs - targets)?;
        let losses = match self.loss {
            RegressionLoss::Mse => off.sqr()?,
            RegressionLoss::Mae => off.abs()?,
            RegressionLoss::Huber { delta } => {
                // As far as delta: off² / 2; what is beyond goes on as steep.
                let off = off.abs()?;
                let near = (&off - off.affine(1.0, -delta)?.relu()?)?;
                ((&near * &off)? - near.sqr()?.affine(0.5, 0.0)?)?
            }
        };
        losses.mean(1)
    }

    fn measures(&self) -> &[Measure] {
        &self.measures
    }

    fn check_targets(&self, targets: &Tensor) -> Result<()> {
        let fits = matches!(*targets.dims(), [_, width] if width == self.width) && targets.dtype() == DType::F32;
        if !fits {
            let (width, dtype, shape) = (self.width, targets.dtype(), targets.shape());
            candle_core::bail!("expected f32 of shape (N, {width}), found {dtype:?} {shape:?}")
        }
        let values = host_read::read_vec(&targets.flatten_all()?, "targets", &mut HostReads::default())?;
        match values.iter().position(|value| !value.is_finite()) {
            None => Ok(()),
            Some(place) => {
                candle_core::bail!("expected finite numbers, found {} at sample {}", values[place], place / self.width)
            }
        }
    }
}
