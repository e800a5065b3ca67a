//! Sums of one epoch. They grow on the device, in place; the host reads them once, at the end of the epoch.

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use leyline::layout::Owner;
use serde::{Deserialize, Serialize};

use crate::aggregate::{Field, SumsLayout, add_scaled};
use crate::error::Error;
use crate::grad::Geometry;
use crate::host_read::{self, HostReads};
use crate::trainer::gradients::{GradientTotals, OwnerTotals};

/// Sums while the epoch runs: losses and hits of the microbatches, and what the gradient engine adds about the owners
/// of its windows.
#[derive(Debug)]
pub(super) struct EpochSums {
    /// `f64`, as [`SumsLayout`] says. It stays where it is: graphs point at it.
    device: Tensor,
    geometry: Arc<Geometry>,
    host: HostSums,
}

/// What the host knows without asking the device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HostSums {
    pub(super) num_samples: u64,
    pub(super) num_steps: u64,
    pub(super) num_microbatches: u64,
    pub(super) num_pairs: u64,
    /// Sum over measured windows of the host share, and their count.
    pub(super) host_share: f64,
    pub(super) num_windows: u64,
}

/// An unfinished epoch, for a checkpoint.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SavedSums {
    host: HostSums,
    device: Vec<f64>,
}

/// A finished epoch.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct EpochTotals {
    pub(super) loss_sum: f64,
    pub(super) num_correct: f64,
    pub(super) num_samples: u64,
    pub(super) num_steps: u64,
    pub(super) num_microbatches: u64,
    /// About the owners' gradients.
    pub(super) gradients: GradientTotals,
    /// Root mean square over optimizer steps of the main gradient's norm.
    pub(super) gradient_norm: f64,
    /// Per owner: root mean square of the gradient norm of its parameters, and the fraction of healthy steps.
    pub(super) owners: Vec<(Owner, f64, f64)>,
}

fn places(geometry: &Geometry) -> SumsLayout {
    SumsLayout::new(geometry.owners().len(), geometry.parts().len())
}

impl EpochSums {
    pub(super) fn new(geometry: Arc<Geometry>, device: &Device) -> Result<Self, Error> {
        let device = Tensor::zeros(places(&geometry).len(), DType::F64, device)?;
        Ok(Self { device, geometry, host: HostSums::default() })
    }

    /// Starts over, in place.
    pub(super) fn reset(&mut self) -> Result<(), Error> {
        self.device.zero_set()?;
        self.host = HostSums::default();
        Ok(())
    }

    pub(super) fn restore(geometry: Arc<Geometry>, saved: &SavedSums, device: &Device) -> Result<Self, Error> {
        let expected = places(&geometry).len();
        if saved.device.len() != expected {
            return Err(Error::State {
                field: "sums.device",
                message: format!("expected {expected} numbers, found {}", saved.device.len()),
            });
        }
        let device = Tensor::from_slice(&saved.device, expected, device)?;
        Ok(Self { device, geometry, host: saved.host })
    }

    pub(super) fn save(&self, reads: &mut HostReads) -> Result<SavedSums, Error> {
        Ok(SavedSums { host: self.host, device: host_read::read_vec_f64(&self.device, "epoch sums", reads)? })
    }

    pub(super) fn host(&mut self) -> &mut HostSums {
        &mut self.host
    }

    /// Adds a microbatch: mean loss (scalar) times its samples, and its number of correct predictions (scalar).
    pub(super) fn add_microbatch(&self, mean_loss: &Tensor, correct: &Tensor, num_samples: usize) -> Result<(), Error> {
        let place = |place| self.device.narrow(0, place, 1);
        add_scaled(&place(SumsLayout::LOSS)?, &mean_loss.flatten_all()?, num_samples as f64)?;
        add_scaled(&place(SumsLayout::CORRECT)?, &correct.flatten_all()?, 1.0)
    }

    /// The sums on the device.
    pub(super) fn as_tensor(&self) -> &Tensor {
        &self.device
    }

    /// The one read of the epoch.
    pub(super) fn read(&self, reads: &mut HostReads) -> Result<EpochTotals, Error> {
        let sums = host_read::read_vec_f64(&self.device, "epoch sums", reads)?;
        let layout = places(&self.geometry);
        let steps = (self.host.num_steps as f64).max(1.0);
        let rms = |sum: f64| (sum / steps).sqrt();
        let of_slot = |field, slot| sums[layout.of_slot(field, slot)];
        let owners = self.geometry.owners();
        let parameters = |(slot, owner): (usize, &Owner)| {
            (*owner, rms(of_slot(Field::ParameterSquare, slot)), of_slot(Field::Healthy, slot) / steps)
        };
        Ok(EpochTotals {
            loss_sum: sums[SumsLayout::LOSS],
            num_correct: sums[SumsLayout::CORRECT],
            num_samples: self.host.num_samples,
            num_steps: self.host.num_steps,
            num_microbatches: self.host.num_microbatches,
            gradients: self.gradients(&sums),
            gradient_norm: rms(sums[SumsLayout::MAIN_SQUARE]),
            owners: owners.iter().enumerate().map(parameters).collect(),
        })
    }

    fn gradients(&self, sums: &[f64]) -> GradientTotals {
        let layout = places(&self.geometry);
        let (owners, num_parts) = (self.geometry.owners(), self.geometry.parts().len());
        let totals = |(slot, owner): (usize, &Owner)| {
            let of = |field| sums[layout.of_slot(field, slot)];
            OwnerTotals {
                owner: *owner,
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
        GradientTotals {
            windows: self.host.num_windows,
            conflicts: sums[SumsLayout::CONFLICTS],
            pairs: self.host.num_pairs as f64,
            host_share: self.host.host_share,
            owners: owners.iter().enumerate().map(totals).collect(),
            cosines: pairs.map(|(a, b)| (a, b, sums[layout.cosine(a, b)], sums[layout.cosine(b, a)])).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{HOST, layout, seed};

    fn sums() -> EpochSums {
        let geometry = Geometry::of(&layout(&[("a", 2, HOST, false), ("b", 3, seed(1), false)])).unwrap();
        EpochSums::new(Arc::new(geometry), &Device::Cpu).unwrap()
    }

    #[test]
    fn averages_are_per_sample_and_norms_per_step() {
        let mut sums = sums();
        let scalar = |v: f32| Tensor::new(v, &Device::Cpu).unwrap();
        sums.add_microbatch(&scalar(2.0), &scalar(1.0), 4).unwrap();
        sums.add_microbatch(&scalar(1.0), &scalar(2.0), 2).unwrap();
        let places = places(&sums.geometry);
        for (place, value) in [
            (SumsLayout::MAIN_SQUARE, 25.0),
            (places.of_slot(Field::ParameterSquare, 1), 8.0),
            (places.of_slot(Field::Healthy, 1), 1.0),
            (places.of_slot(Field::Weight, 1), 0.75),
            (places.cosine(0, 1), -0.5),
            (places.cosine(1, 0), 2.0),
            (places.layer(1, 0), 3.0),
            (places.layer(1, 1), 4.0),
        ] {
            let addend = Tensor::new(&[value], &Device::Cpu).unwrap();
            add_scaled(&sums.device.narrow(0, place, 1).unwrap(), &addend, 1.0).unwrap();
        }
        *sums.host() = HostSums { num_samples: 6, num_steps: 2, ..HostSums::default() };
        let mut reads = HostReads::default();
        let saved = sums.save(&mut reads).unwrap();
        let mut again = EpochSums::restore(Arc::clone(&sums.geometry), &saved, &Device::Cpu).unwrap();
        let totals = again.read(&mut reads).unwrap();
        assert_eq!(totals, sums.read(&mut reads).unwrap());
        assert!((totals.loss_sum - 10.0).abs() < 1e-12 && (totals.num_correct - 3.0).abs() < 1e-12);
        assert!((totals.gradient_norm - 12.5_f64.sqrt()).abs() < 1e-12);
        let (owner, norm, healthy) = totals.owners[1];
        assert_eq!(owner, seed(1));
        assert!((norm - 2.0).abs() < 1e-12 && (healthy - 0.5).abs() < 1e-12);
        assert_eq!(totals.gradients.cosines, [(0, 1, -0.5, 2.0)]);
        assert_eq!(totals.gradients.owners[1].layers_sq, [3.0, 4.0]);
        assert!((totals.gradients.owners[1].weight - 0.75).abs() < 1e-12);

        again.reset().unwrap();
        assert_eq!(again.read(&mut reads).unwrap(), self::sums().read(&mut reads).unwrap());
    }

    #[test]
    fn sums_of_another_network_are_refused() {
        let saved = sums().save(&mut HostReads::default()).unwrap();
        let other = Geometry::of(&layout(&[("a", 2, HOST, false)])).unwrap();
        let error = EpochSums::restore(Arc::new(other), &saved, &Device::Cpu).unwrap_err();
        assert!(error.to_string().contains("expected 17 numbers, found 34"), "{error}");
    }
}
