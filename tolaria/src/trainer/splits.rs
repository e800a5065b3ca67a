//! Dividing one data set in three.

use leyline::id::EpochIndex;

use crate::batch::{Dataset, Sampler};
use crate::error::Error;
use crate::trainer::run::Splits;

/// No epoch of a run has this number, so that the division is drawn apart from the orders of samples.
const DIVISION: EpochIndex = EpochIndex(u64::MAX);

impl Splits {
    /// Draws validation and test part, each with this fraction of the samples, rounded down, but at least one; the rest trains.
    ///
    /// ```
    /// use candle_core::{DType, Device, Tensor};
    /// use tolaria::{batch::Dataset, trainer::Splits};
    ///
    /// let targets = Tensor::zeros(10, DType::U32, &Device::Cpu)?;
    /// let data = Dataset::new(Tensor::zeros((10, 3), DType::F32, &Device::Cpu)?, targets)?;
    /// let splits = Splits::draw(&data, 0.25, 7)?;
    /// assert_eq!([splits.train.len(), splits.validation.len(), splits.test.len()], [6, 2, 2]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] for a fraction that leaves nothing to train on; device errors.
    /// # Sync
    /// one device-to-host copy of the targets per part
    pub fn draw(data: &Dataset, held_out: f64, seed: u64) -> Result<Self, Error> {
        let order = Sampler::new(seed).permutation(DIVISION, data.len());
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of a length, not below 0")]
        let each = ((data.len() as f64 * held_out) as usize).max(1);
        if !(0.0..0.5).contains(&held_out) || 2 * each >= data.len() {
            let message = format!("expected a fraction from 0 to below 0.5 that leaves some of {} samples", data.len());
            return Err(Error::InvalidConfig { key: "held_out".to_owned(), message });
        }
        let (validation, rest) = order.split_at(each);
        let (test, train) = rest.split_at(each);
        Ok(Self { train: data.subset(train)?, validation: data.subset(validation)?, test: data.subset(test)? })
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Tensor};
    use leyline::source::Source;

    use super::*;
    use crate::testing::values;

    fn data(count: u16) -> Dataset {
        let inputs = Tensor::from_iter((0..count).map(f32::from), &Device::Cpu).unwrap().unsqueeze(1).unwrap();
        let targets = Tensor::from_iter((0..count).map(|i| u32::from(i % 2)), &Device::Cpu).unwrap();
        Dataset::new(inputs, targets).unwrap()
    }

    #[test]
    fn every_sample_is_in_one_part_and_the_seed_decides_in_which() {
        let of = |seed| {
            let Splits { train, validation, test } = Splits::draw(&data(40), 0.2, seed).unwrap();
            [train, validation, test].map(|part| values(part.inputs().unwrap()))
        };
        let parts = of(1);
        assert_eq!(parts.each_ref().map(Vec::len), [24, 8, 8]);
        let mut all = parts.concat();
        all.sort_by(f32::total_cmp);
        assert_eq!(all, (0..40_u16).map(f32::from).collect::<Vec<_>>());
        assert!(of(1) == parts && of(2) != parts);
    }

    #[test]
    fn parts_of_a_source_stay_in_it_with_what_it_says_of_samples() {
        let lengths: Vec<u32> = (0..40).collect();
        let weights: Vec<f64> = lengths.iter().map(|length| f64::from(*length) + 0.5).collect();
        let whole = data(40).with_lengths(lengths).unwrap().with_weights(weights).unwrap();
        let in_memory = Splits::draw(&whole, 0.2, 1).unwrap();
        let from_source = Splits::draw(&Dataset::from_source(whole.as_source()).unwrap(), 0.2, 1).unwrap();
        for (memory, source) in [
            (&in_memory.train, &from_source.train),
            (&in_memory.validation, &from_source.validation),
            (&in_memory.test, &from_source.test),
        ] {
            assert!(source.tensors().is_none(), "it was read");
            let all = source.slice(0, source.len()).unwrap();
            assert_eq!(values(&all.inputs), values(memory.inputs().unwrap()));
            assert_eq!((Source::lengths(source), Source::weights(source)), (memory.lengths(), memory.weights()));
            let of_inputs: Vec<f64> = values(&all.inputs).into_iter().map(|value| f64::from(value) + 0.5).collect();
            assert_eq!(source.weights().unwrap(), of_inputs);
        }
        assert_ne!(from_source.test.digest(), from_source.validation.digest());
    }

    #[test]
    fn a_division_that_leaves_nothing_is_refused() {
        for (count, held_out) in [(2, 0.0), (9, 0.5), (9, -0.1), (9, f64::NAN), (0, 0.1)] {
            assert!(Splits::draw(&data(count), held_out, 0).is_err(), "{held_out} of {count}");
        }
        assert!(Splits::draw(&data(3), 0.0, 0).is_ok());
    }
}
