//! A table of samples with their targets in host memory.
//!
//! Legend: N samples, F features per sample; the rest as in [`Targets`].

use candle_core::{Device, Tensor};

use super::target::gather;
use super::{Error, Targets};

/// The inputs of N samples, row-major.
#[derive(Debug, Clone, PartialEq)]
pub enum Inputs {
    /// N × F values.
    Values(Vec<f32>),
    /// N × T tokens.
    Tokens(Vec<u32>),
}

impl Inputs {
    fn len(&self) -> usize {
        match self {
            Self::Values(values) => values.len(),
            Self::Tokens(tokens) => tokens.len(),
        }
    }

    fn select(&self, width: usize, rows: &[usize]) -> Self {
        match self {
            Self::Values(values) => Self::Values(gather(values, width, rows)),
            Self::Tokens(tokens) => Self::Tokens(gather(tokens, width, rows)),
        }
    }

    /// Copies them to `device`, as f32 or u32 of shape (N, `sample_shape`…).
    ///
    /// # Errors
    /// [`Error::Tensor`] when the device refuses, or when the shape does not hold them.
    ///
    /// # Sync
    /// One host-to-device copy.
    pub fn to_tensor(&self, sample_shape: &[usize], device: &Device) -> Result<Tensor, Error> {
        let num_samples = self.len() / sample_shape.iter().product::<usize>().max(1);
        let shape = [&[num_samples], sample_shape].concat();
        Ok(match self {
            Self::Values(values) => Tensor::from_slice(values, shape, device)?,
            Self::Tokens(tokens) => Tensor::from_slice(tokens, shape, device)?,
        })
    }
}

impl From<Vec<f32>> for Inputs {
    fn from(values: Vec<f32>) -> Self {
        Self::Values(values)
    }
}

/// Samples with their targets, checked once at construction.
#[derive(Debug, Clone, PartialEq)]
pub struct Table {
    inputs: Inputs,
    sample_shape: Vec<usize>,
    targets: Targets,
}

impl Table {
    /// Takes N × F inputs in row-major order and N targets.
    ///
    /// # Errors
    /// [`Error::Table`] when the shape is empty or holds a zero, when the lengths do not agree, when an input is not
    /// finite, or when a target is not what its kind allows.
    pub fn new(inputs: impl Into<Inputs>, sample_shape: Vec<usize>, targets: Targets) -> Result<Self, Error> {
        let inputs = inputs.into();
        let wrong = |field, found: String, expected: String| Err(Error::Table { field, found, expected });
        let num_features = sample_shape.iter().try_fold(1_usize, |product, &size| product.checked_mul(size));
        let Some(num_features) = num_features.filter(|&count| count > 0 && !sample_shape.is_empty()) else {
            return wrong("sample shape", format!("{sample_shape:?}"), "one or more sizes above 0".into());
        };
        let num_samples = targets.num_samples();
        if Some(inputs.len()) != num_samples.checked_mul(num_features) {
            return wrong(
                "number of input values",
                inputs.len().to_string(),
                format!("{num_samples} samples × {num_features} features"),
            );
        }
        if let Inputs::Values(values) = &inputs
            && let Some(index) = values.iter().position(|value| !value.is_finite())
        {
            let found = format!("{} in sample {}", values[index], index / num_features);
            return wrong("input", found, "finite values".into());
        }
        targets.check()?;
        Ok(Self { inputs, sample_shape, targets })
    }

    /// N × F values or tokens, row-major.
    pub fn inputs(&self) -> &Inputs {
        &self.inputs
    }

    /// The inputs where they are values; none of a table of tokens.
    pub fn values(&self) -> &[f32] {
        match &self.inputs {
            Inputs::Values(values) => values,
            Inputs::Tokens(_) => &[],
        }
    }

    /// Shape of one sample; its product is F.
    pub fn sample_shape(&self) -> &[usize] {
        &self.sample_shape
    }

    /// N targets.
    pub fn targets(&self) -> &Targets {
        &self.targets
    }

    /// Outputs that a network needs: [`Targets::num_outputs`].
    pub fn num_outputs(&self) -> usize {
        self.targets.num_outputs()
    }

    /// N.
    pub fn num_samples(&self) -> usize {
        self.targets.num_samples()
    }

    /// F.
    pub fn num_features(&self) -> usize {
        self.sample_shape.iter().product()
    }

    /// The values of one sample, shape (F,).
    ///
    /// # Panics
    /// When `row` is not below N, or the inputs are tokens.
    pub fn sample(&self, row: usize) -> &[f32] {
        let num_features = self.num_features();
        &self.values()[row * num_features..][..num_features]
    }

    /// The table of these rows, in this order.
    ///
    /// # Panics
    /// When a row is not below N.
    pub fn select(&self, rows: &[usize]) -> Self {
        let inputs = self.inputs.select(self.num_features(), rows);
        Self { inputs, sample_shape: self.sample_shape.clone(), targets: self.targets.select(rows) }
    }

    /// The same values with samples of another shape, for example (F,) for a network that takes vectors.
    ///
    /// # Errors
    /// [`Error::Table`] when the shape does not hold F features.
    pub fn reshaped(self, sample_shape: Vec<usize>) -> Result<Self, Error> {
        Self::new(self.inputs, sample_shape, self.targets)
    }

    /// The same samples with the targets reordered: sample `i` gets the target of sample `order[i]`.
    ///
    /// # Panics
    /// When `order` is not N rows long or names a row that does not exist.
    pub(super) fn permuted(self, order: &[usize]) -> Self {
        Self { targets: self.targets.reordered(order), ..self }
    }

    /// Rows per class, indexed by class; empty where there are no classes.
    pub fn class_counts(&self) -> Vec<usize> {
        self.targets.rows_by_class().iter().map(Vec::len).collect()
    }

    /// Copies the table to `device`: inputs `(N, sample_shape…)` as f32, or as u32 for tokens, and targets as u32 (N,) for
    /// classes and (N, T) for tokens, as f32 (N, W) for values and (N, L) for flags.
    ///
    /// # Errors
    /// [`Error::Tensor`] when the device refuses.
    ///
    /// # Sync
    /// Two host-to-device copies.
    pub fn to_tensors(&self, device: &Device) -> Result<(Tensor, Tensor), Error> {
        Ok((self.inputs.to_tensor(&self.sample_shape, device)?, self.targets.to_tensor(device)?))
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "tests compare tensors by value")]
    use candle_core::DType;

    use super::*;

    #[track_caller]
    fn check_refused(inputs: &[f32], shape: &[usize], targets: &[u32], num_classes: usize, message: &str) {
        let error =
            Table::new(inputs.to_vec(), shape.to_vec(), Targets::numbered(targets.to_vec(), num_classes)).unwrap_err();
        assert_eq!(error.to_string(), message);
    }

    #[test]
    fn parts_that_do_not_fit_together_are_refused() {
        check_refused(&[1.0], &[], &[0], 1, "table: sample shape is [], expected one or more sizes above 0");
        check_refused(&[], &[2, 0], &[0], 1, "table: sample shape is [2, 0], expected one or more sizes above 0");
        check_refused(
            &[],
            &[usize::MAX, 2],
            &[0],
            1,
            "table: sample shape is [18446744073709551615, 2], expected one or more sizes above 0",
        );
        check_refused(
            &[1.0, 2.0, 3.0],
            &[2],
            &[0],
            1,
            "table: number of input values is 3, expected 1 samples × 2 features",
        );
        check_refused(&[0.0, f32::NAN], &[1], &[0, 0], 1, "table: input is NaN in sample 1, expected finite values");
        check_refused(&[0.0, 0.0], &[1], &[0, 2], 2, "table: target is 2 in sample 1, expected 0 to 1 (classes: 2)");
    }

    #[test]
    fn tensors_hold_the_table_in_its_sample_shape() {
        let values: Vec<f32> = (0_u8..12).map(f32::from).collect();
        let table = Table::new(values.clone(), vec![1, 2, 3], Targets::numbered(vec![1, 0], 2)).unwrap();
        let (inputs, targets) = table.to_tensors(&Device::Cpu).unwrap();
        assert_eq!(inputs.dims(), [2, 1, 2, 3]);
        assert_eq!(inputs.flatten_all().unwrap().to_vec1::<f32>().unwrap(), values);
        assert_eq!((targets.dims(), targets.dtype()), ([2_usize].as_slice(), DType::U32));
        assert_eq!(targets.to_vec1::<u32>().unwrap(), [1, 0]);
    }

    #[test]
    fn a_shape_may_change_when_it_holds_as_many_features() {
        let table = Table::new(vec![0.0, 0.5, 1.0, 1.5], vec![1, 2], Targets::numbered(vec![0, 1], 2)).unwrap();
        let flat = table.clone().reshaped(vec![2]).unwrap();
        assert_eq!((flat.sample_shape(), flat.values()), ([2].as_slice(), table.values()));
        let error = table.reshaped(vec![3]).unwrap_err().to_string();
        assert_eq!(error, "table: number of input values is 4, expected 2 samples × 3 features");
    }

    #[test]
    fn selection_keeps_each_sample_with_its_label() {
        let table =
            Table::new(vec![0.0, 0.5, 1.0, 1.5, 2.0, 2.5], vec![2], Targets::numbered(vec![0, 1, 2], 3)).unwrap();
        let selected = table.select(&[2, 0]);
        assert_eq!(selected.values(), [2.0, 2.5, 0.0, 0.5]);
        assert_eq!(selected.targets(), &Targets::numbered(vec![2, 0], 3));
    }
}
