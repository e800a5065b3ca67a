//! A labelled table of samples in host memory.
//!
//! Legend: N samples, F features per sample, C classes.

use candle_core::{Device, Tensor};

use super::Error;

/// Samples with their labels, checked once at construction.
#[derive(Debug, Clone, PartialEq)]
pub struct Table {
    inputs: Vec<f32>,
    sample_shape: Vec<usize>,
    targets: Vec<u32>,
    num_classes: usize,
}

impl Table {
    /// Takes N × F inputs in row-major order and N targets.
    ///
    /// # Errors
    /// [`Error::Table`] when the shape is empty or holds a zero, when the lengths do not agree, when an input is not
    /// finite, or when a target is not below `num_classes`.
    pub fn new(
        inputs: Vec<f32>,
        sample_shape: Vec<usize>,
        targets: Vec<u32>,
        num_classes: usize,
    ) -> Result<Self, Error> {
        let wrong = |field, found: String, expected: String| Err(Error::Table { field, found, expected });
        let num_features = sample_shape.iter().try_fold(1_usize, |product, &size| product.checked_mul(size));
        let Some(num_features) = num_features.filter(|&count| count > 0 && !sample_shape.is_empty()) else {
            return wrong("sample shape", format!("{sample_shape:?}"), "one or more sizes above 0".into());
        };
        if Some(inputs.len()) != targets.len().checked_mul(num_features) {
            return wrong(
                "number of input values",
                inputs.len().to_string(),
                format!("{} samples × {num_features} features", targets.len()),
            );
        }
        if let Some(index) = inputs.iter().position(|value| !value.is_finite()) {
            let found = format!("{} in sample {}", inputs[index], index / num_features);
            return wrong("input", found, "finite values".into());
        }
        if let Some(index) = targets.iter().position(|&target| !usize::try_from(target).is_ok_and(|t| t < num_classes))
        {
            let found = format!("{} in sample {index}", targets[index]);
            return wrong("target", found, format!("0 to {} (classes: {num_classes})", num_classes.saturating_sub(1)));
        }
        Ok(Self { inputs, sample_shape, targets, num_classes })
    }

    /// N × F values, row-major.
    pub fn inputs(&self) -> &[f32] {
        &self.inputs
    }

    /// Shape of one sample; its product is F.
    pub fn sample_shape(&self) -> &[usize] {
        &self.sample_shape
    }

    /// N labels, each below C.
    pub fn targets(&self) -> &[u32] {
        &self.targets
    }

    /// C.
    pub fn num_classes(&self) -> usize {
        self.num_classes
    }

    /// N.
    pub fn num_samples(&self) -> usize {
        self.targets.len()
    }

    /// F.
    pub fn num_features(&self) -> usize {
        self.sample_shape.iter().product()
    }

    /// The inputs of one sample, shape (F,).
    ///
    /// # Panics
    /// When `row` is not below N.
    pub fn sample(&self, row: usize) -> &[f32] {
        let num_features = self.num_features();
        &self.inputs[row * num_features..][..num_features]
    }

    /// The table of these rows, in this order.
    ///
    /// # Panics
    /// When a row is not below N.
    pub fn select(&self, rows: &[usize]) -> Self {
        let inputs = rows.iter().flat_map(|&row| self.sample(row)).copied().collect();
        let targets = rows.iter().map(|&row| self.targets[row]).collect();
        Self { inputs, sample_shape: self.sample_shape.clone(), targets, num_classes: self.num_classes }
    }

    /// The same values with samples of another shape, for example (F,) for a network that takes vectors.
    ///
    /// # Errors
    /// [`Error::Table`] when the shape does not hold F features.
    pub fn reshaped(self, sample_shape: Vec<usize>) -> Result<Self, Error> {
        Self::new(self.inputs, sample_shape, self.targets, self.num_classes)
    }

    /// The same samples with the labels reordered: sample `i` gets the label of sample `order[i]`.
    ///
    /// # Panics
    /// When `order` is not N rows long or names a row that does not exist.
    pub(super) fn relabeled(mut self, order: &[usize]) -> Self {
        assert_eq!(order.len(), self.targets.len(), "one source row per sample");
        self.targets = order.iter().map(|&row| self.targets[row]).collect();
        self
    }

    /// Rows per class, indexed by class.
    pub fn class_counts(&self) -> Vec<usize> {
        self.rows_by_class().iter().map(Vec::len).collect()
    }

    /// Row numbers per class, ascending, indexed by class.
    pub(super) fn rows_by_class(&self) -> Vec<Vec<usize>> {
        let mut rows = vec![Vec::new(); self.num_classes];
        for (row, &target) in self.targets.iter().enumerate() {
            rows[usize::try_from(target).expect("targets are below num_classes, a usize")].push(row);
        }
        rows
    }

    /// Copies the table to `device`: inputs `(N, sample_shape…)` as f32 and targets `(N,)` as u32.
    ///
    /// # Errors
    /// [`Error::Tensor`] when the device refuses.
    ///
    /// # Sync
    /// Two host-to-device copies.
    pub fn to_tensors(&self, device: &Device) -> Result<(Tensor, Tensor), Error> {
        let mut shape = vec![self.num_samples()];
        shape.extend_from_slice(&self.sample_shape);
        let inputs = Tensor::from_slice(&self.inputs, shape, device)?;
        let targets = Tensor::from_slice(&self.targets, self.num_samples(), device)?;
        Ok((inputs, targets))
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "tests compare tensors by value")]
    use candle_core::DType;

    use super::*;

    #[track_caller]
    fn check_refused(inputs: &[f32], shape: &[usize], targets: &[u32], num_classes: usize, message: &str) {
        let error = Table::new(inputs.to_vec(), shape.to_vec(), targets.to_vec(), num_classes).unwrap_err();
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
        let table = Table::new(values.clone(), vec![1, 2, 3], vec![1, 0], 2).unwrap();
        let (inputs, targets) = table.to_tensors(&Device::Cpu).unwrap();
        assert_eq!(inputs.dims(), [2, 1, 2, 3]);
        assert_eq!(inputs.flatten_all().unwrap().to_vec1::<f32>().unwrap(), values);
        assert_eq!((targets.dims(), targets.dtype()), ([2_usize].as_slice(), DType::U32));
        assert_eq!(targets.to_vec1::<u32>().unwrap(), [1, 0]);
    }

    #[test]
    fn a_shape_may_change_when_it_holds_as_many_features() {
        let table = Table::new(vec![0.0, 0.5, 1.0, 1.5], vec![1, 2], vec![0, 1], 2).unwrap();
        let flat = table.clone().reshaped(vec![2]).unwrap();
        assert_eq!((flat.sample_shape(), flat.inputs()), ([2].as_slice(), table.inputs()));
        let error = table.reshaped(vec![3]).unwrap_err().to_string();
        assert_eq!(error, "table: number of input values is 4, expected 2 samples × 3 features");
    }

    #[test]
    fn selection_keeps_each_sample_with_its_label() {
        let table = Table::new(vec![0.0, 0.5, 1.0, 1.5, 2.0, 2.5], vec![2], vec![0, 1, 2], 3).unwrap();
        let selected = table.select(&[2, 0]);
        assert_eq!(selected.inputs(), [2.0, 2.5, 0.0, 0.5]);
        assert_eq!((selected.targets(), selected.num_classes()), ([2, 0].as_slice(), 3));
    }
}
