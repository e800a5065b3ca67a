//! What is known of losses, norms and owners, summed over the windows of an epoch.

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use leyline::layout::Owner;

use super::composed::add_scaled;
use super::passes::Passes;
use super::sums::{Field, SumsLayout};
use crate::cpu;
use crate::error::Error;
use crate::grad::Geometry;
use crate::host_read::{self, HostReads};

/// What reads of the sums are counted as.
pub(crate) const EPOCH_SUMS: &str = "epoch sums";

/// Sums that grow on the device, in place, one window after the other. The host reads all of them in one copy, as seldom
/// as it wants to know.
///
/// [`GradientEngine::combine`](super::GradientEngine::combine) adds what it finds out about a window when it is given
/// [`as_tensor`](Self::as_tensor). The tensor stays where it is, so that a recorded step can point at it.
#[derive(Debug)]
pub struct SeedMetricsAccumulator {
    /// `f64`, as [`SumsLayout`] says.
    sums: Tensor,
    geometry: Arc<Geometry>,
}

/// Sums over the windows since the last [`reset`](SeedMetricsAccumulator::reset).
#[derive(Debug, Clone, PartialEq)]
pub struct SeedMetrics {
    /// Of the mean losses of microbatches, each times its samples (in the unit of the task).
    pub loss_sum: f64,
    /// Correct predictions (count).
    pub num_hits: f64,
    /// Of the squared norm of the gradient before clipping, over all parts that are not isolated.
    pub main_norm_sq: f64,
    /// Ordered pairs of owners with a negative inner product (count).
    pub conflicts: f64,
    /// Samples of windows that were left out, because the loss or the gradient was not finite (count).
    pub skipped_samples: f64,
    /// By slot: the host first, then seeds by id.
    pub owners: Vec<OwnerSums>,
    /// Two slots, the sum of their cosines, and the windows in which both had a gradient that counts as more than zero.
    pub cosines: Vec<(usize, usize, f64, f64)>,
}

/// Sums about one owner. The first three are over all windows, the others over those in which owners were told apart and
/// this one took part.
#[derive(Debug, Clone, PartialEq)]
pub struct OwnerSums {
    /// The owner.
    pub owner: Owner,
    /// Of the squared norm of the combined gradient on the owner's own parameters.
    pub parameter_sq: f64,
    /// Windows in which its parameters were updated and that was above 0 (count).
    pub healthy: f64,
    /// Windows that left its parameters as they were, because the loss or the gradient was not finite (count).
    pub skipped: f64,
    /// Windows (count).
    pub windows: f64,
    /// Of its part of the samples.
    pub weight: f64,
    /// Of the squared norm of its gradient.
    pub norm_sq: f64,
    /// Of its norm / the sum of all owners' norms.
    pub share: f64,
    /// Ordered pairs of it and another that conflict, and all such pairs (count).
    pub conflicts: f64,
    /// All ordered pairs of it and another (count).
    pub pairs: f64,
    /// Of the weight that the method gave its gradient.
    pub resolved_weight: f64,
    /// Of its alpha; 0 for the host.
    pub alpha: f64,
    /// Of its part of what seeds took over from the host; 0 for the host.
    pub host_split: f64,
    /// Of the squared norm of its gradient on each part, in the order of [`Geometry::part_names`].
    pub layers_sq: Vec<f64>,
}

impl SeedMetricsAccumulator {
    /// Sums of nothing.
    ///
    /// # Errors
    /// When the device has no room.
    /// # Sync
    /// none
    pub fn new(geometry: Arc<Geometry>, device: &Device) -> Result<Self, Error> {
        let sums = Tensor::zeros(places(&geometry).num_stored(), DType::F64, device)?;
        Ok(Self { sums, geometry })
    }

    /// As they were when their [`values`](Self::values) were taken.
    ///
    /// # Errors
    /// [`Error::State`] when they are not those of this geometry.
    pub fn restore(geometry: Arc<Geometry>, values: &[f64], device: &Device) -> Result<Self, Error> {
        let expected = places(&geometry).len();
        if values.len() != expected {
            let message = format!("expected {expected} numbers, found {}", values.len());
            return Err(Error::State { field: "sums.device", message });
        }
        // Between windows, what comes back when the next one is not finite is what there is.
        Ok(Self { sums: Tensor::new([values, values].concat(), device)?, geometry })
    }

    /// Windows that left the host's parameters as they were, in [`values`](Self::values) of this geometry; 0 in others.
    pub(crate) fn num_skipped(geometry: &Geometry, values: &[f64]) -> f64 {
        values.get(places(geometry).of_slot(Field::Skipped, 0)).copied().unwrap_or(0.0)
    }

    /// Shape (2 · sums,) of `f64`, on the device: the sums, and those of the windows before the one that is under way.
    #[must_use]
    pub fn as_tensor(&self) -> &Tensor {
        &self.sums
    }

    /// Forgets the microbatches that were added since the last window was combined.
    pub(crate) fn take_back(&self) -> candle_core::Result<()> {
        let places = places(&self.geometry).len();
        self.sums.slice_set(&self.sums.narrow(0, places, places)?.copy()?, 0, 0)
    }

    /// Starts over, in place.
    ///
    /// # Errors
    /// When the device fails.
    /// # Sync
    /// none
    pub fn reset(&self) -> Result<(), Error> {
        Ok(self.sums.zero_set()?)
    }

    /// Adds a microbatch: mean loss (scalar) times its samples, and how many of them were recognized (scalar), where a task
    /// has that.
    ///
    /// # Errors
    /// When the device fails.
    /// # Sync
    /// none
    pub fn add_microbatch(
        &self,
        mean_loss: &Tensor,
        num_hits: Option<&Tensor>,
        num_samples: usize,
    ) -> Result<(), Error> {
        if [Some(mean_loss), num_hits].into_iter().flatten().all(|sum| matches!(Passes::of(sum), Passes::Kernel)) {
            return self.add_on_cpu(mean_loss, num_hits, num_samples as f64);
        }
        let place = |place| self.sums.narrow(0, place, 1);
        add_scaled(&place(SumsLayout::LOSS)?, &mean_loss.flatten_all()?, num_samples as f64)?;
        num_hits.map_or(Ok(()), |hits| add_scaled(&place(SumsLayout::CORRECT)?, &hits.flatten_all()?, 1.0))
    }

    /// Both sums at once, without views and without tensors of `f64`.
    fn add_on_cpu(&self, mean_loss: &Tensor, num_hits: Option<&Tensor>, num_samples: f64) -> Result<(), Error> {
        let scalar = |values: &[f32]| match values {
            [value] => Ok(f64::from(*value)),
            _ => Err(Error::mismatch("elements of a sum", 1, values.len())),
        };
        let tensors: Vec<&Tensor> = [Some(mean_loss), num_hits].into_iter().flatten().collect();
        cpu::with_slices(&tensors, |values| {
            let mean_loss = scalar(values[0])?;
            let num_hits = values.get(1).map(|values| scalar(values)).transpose()?;
            cpu::with_sums(Some(&self.sums), |sums| {
                let sums = sums.expect("sums were given");
                sums[SumsLayout::LOSS] += num_samples * mean_loss;
                sums[SumsLayout::CORRECT] += num_hits.unwrap_or(0.0);
            })?;
            Ok(())
        })?
    }

    /// The sums as flat numbers, for a checkpoint.
    ///
    /// # Errors
    /// When the device fails.
    /// # Sync
    /// one device-to-host copy, counted as `epoch sums`
    pub fn values(&self, reads: &mut HostReads) -> Result<Vec<f64>, Error> {
        host_read::read_vec_f64(&self.sums.narrow(0, 0, places(&self.geometry).len())?, EPOCH_SUMS, reads)
    }

    /// The same numbers as a tensor of `f64` that later windows do not change, on the device.
    ///
    /// # Errors
    /// When the device fails.
    /// # Sync
    /// none
    pub fn copy(&self) -> Result<Tensor, Error> {
        Ok(self.sums.narrow(0, 0, places(&self.geometry).len())?.copy()?)
    }

    /// The sums.
    ///
    /// # Errors
    /// When the device fails.
    /// # Sync
    /// one device-to-host copy, counted as `epoch sums`
    pub fn read(&self, reads: &mut HostReads) -> Result<SeedMetrics, Error> {
        Ok(self.metrics(&self.values(reads)?))
    }

    /// What [`values`](Self::values) say.
    pub(crate) fn metrics(&self, sums: &[f64]) -> SeedMetrics {
        let layout = places(&self.geometry);
        let (owners, num_parts) = (self.geometry.owners(), self.geometry.parts().len());
        let of_owner = |(slot, owner): (usize, &Owner)| {
            let of = |field| sums[layout.of_slot(field, slot)];
            OwnerSums {
                owner: *owner,
                parameter_sq: of(Field::ParameterSquare),
                healthy: of(Field::Healthy),
                skipped: of(Field::Skipped),
                windows: of(Field::Windows),
                weight: of(Field::Weight),
                norm_sq: of(Field::NormSquare),
                share: of(Field::Share),
                conflicts: of(Field::Conflicts),
                pairs: of(Field::Pairs),
                resolved_weight: of(Field::Resolved),
                alpha: of(Field::Alpha),
                host_split: of(Field::Split),
                layers_sq: sums[layout.layer(slot, 0)..][..num_parts].to_vec(),
            }
        };
        let pairs = (0..owners.len()).flat_map(|a| (a + 1..owners.len()).map(move |b| (a, b)));
        SeedMetrics {
            loss_sum: sums[SumsLayout::LOSS],
            num_hits: sums[SumsLayout::CORRECT],
            main_norm_sq: sums[SumsLayout::MAIN_SQUARE],
            conflicts: sums[SumsLayout::CONFLICTS],
            skipped_samples: sums[SumsLayout::SKIPPED_SAMPLES],
            owners: owners.iter().enumerate().map(of_owner).collect(),
            cosines: pairs.map(|(a, b)| (a, b, sums[layout.cosine(a, b)], sums[layout.cosine(b, a)])).collect(),
        }
    }
}

fn places(geometry: &Geometry) -> SumsLayout {
    SumsLayout::new(geometry.owners().len(), geometry.parts().len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{HOST, layout, seed};

    fn sums() -> SeedMetricsAccumulator {
        let geometry = Geometry::of(&layout(&[("a", 2, HOST, false), ("b", 3, seed(1), false)])).unwrap();
        SeedMetricsAccumulator::new(Arc::new(geometry), &Device::Cpu).unwrap()
    }

    #[test]
    fn one_copy_has_everything_that_was_added() {
        let (sums, mut reads) = (sums(), HostReads::default());
        let scalar = |v: f32| Tensor::new(v, &Device::Cpu).unwrap();
        sums.add_microbatch(&scalar(2.0), Some(&scalar(1.0)), 4).unwrap();
        sums.add_microbatch(&scalar(1.0), Some(&scalar(2.0)), 2).unwrap();
        let places = places(&sums.geometry);
        for (place, value) in [
            (SumsLayout::MAIN_SQUARE, 25.0),
            (places.of_slot(Field::Weight, 1), 0.75),
            (places.cosine(0, 1), -0.5),
            (places.cosine(1, 0), 2.0),
            (places.layer(1, 0), 3.0),
            (places.layer(1, 1), 4.0),
        ] {
            let addend = Tensor::new(&[value], &Device::Cpu).unwrap();
            add_scaled(&sums.sums.narrow(0, place, 1).unwrap(), &addend, 1.0).unwrap();
        }
        let metrics = sums.read(&mut reads).unwrap();
        assert_eq!(reads.total(), 1);
        let found = [metrics.loss_sum, metrics.num_hits, metrics.main_norm_sq, metrics.owners[1].weight];
        for (found, expected) in found.into_iter().zip([10.0, 3.0, 25.0, 0.75]) {
            assert!((found - expected).abs() < 1e-12, "{found}, not {expected}");
        }
        assert_eq!((metrics.owners[1].owner, &metrics.owners[1].layers_sq), (seed(1), &vec![3.0, 4.0]));
        assert_eq!(metrics.cosines, [(0, 1, -0.5, 2.0)]);

        let values = sums.values(&mut reads).unwrap();
        let again = SeedMetricsAccumulator::restore(Arc::clone(&sums.geometry), &values, &Device::Cpu).unwrap();
        assert_eq!(again.read(&mut reads).unwrap(), metrics);
        again.reset().unwrap();
        assert_eq!(again.read(&mut reads).unwrap(), self::sums().read(&mut reads).unwrap());
    }

    #[test]
    fn the_kernel_of_the_cpu_adds_what_the_composition_adds() {
        let [fast, slow] = [sums(), sums()];
        let scalar = |v: f32| Tensor::new(v, &Device::Cpu).unwrap();
        for (mean_loss, correct, num_samples) in [(0.1, 3.0, 7), (f32::NAN, 0.0, 1), (1e30, 2.0, 3)] {
            let [narrow, wide] = [DType::F32, DType::F64].map(|dtype| scalar(mean_loss).to_dtype(dtype).unwrap());
            fast.add_microbatch(&narrow, Some(&scalar(correct)), num_samples).unwrap();
            slow.add_microbatch(&wide, Some(&scalar(correct)), num_samples).unwrap();
            let [found, expected] = [&fast, &slow].map(|sums| {
                let values = sums.values(&mut HostReads::default()).unwrap();
                values.into_iter().map(f64::to_bits).collect::<Vec<_>>()
            });
            assert_eq!(found, expected);
        }
        let two = Tensor::new(&[1.0_f32, 2.0], &Device::Cpu).unwrap();
        let error = fast.add_microbatch(&two, Some(&scalar(1.0)), 1).unwrap_err().to_string();
        assert_eq!(error, "elements of a sum: expected 1, found 2");
    }

    #[test]
    fn sums_of_another_network_are_refused() {
        let values = sums().values(&mut HostReads::default()).unwrap();
        let other = Arc::new(Geometry::of(&layout(&[("a", 2, HOST, false)])).unwrap());
        let error = SeedMetricsAccumulator::restore(other, &values, &Device::Cpu).unwrap_err();
        assert!(error.to_string().contains("expected 19 numbers, found 37"), "{error}");
    }
}
