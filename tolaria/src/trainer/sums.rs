//! Sums of one epoch. They grow on the device, in place; the host reads them once, at the end of the epoch.

use candle_core::{CpuStorage, DType, Device, InplaceOp2, Layout, Tensor};
use leyline::layout::Owner;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::graph::kernels::{DeviceKernels, FoldKind};
use crate::host_read::{self, HostReads};

const LOSS: usize = 0;
const CORRECT: usize = 1;
const MAIN_NORM_SQ: usize = 2;
const CONFLICTS: usize = 3;
const OWNERS: usize = 4;

/// Sums while the epoch runs.
#[derive(Debug)]
pub(super) struct EpochSums {
    /// `f64`: loss, correct, squared norm of the main gradient, conflicting pairs, then the squared norms and the
    /// healthy steps of the owners. It stays where it is: graphs point at it.
    device: Tensor,
    owners: Vec<Owner>,
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
    /// Sum over aggregated windows of the host share, and their count.
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
    pub(super) num_conflicts: f64,
    pub(super) num_pairs: u64,
    pub(super) host_share: Option<f64>,
    /// Root mean square over optimizer steps of the main gradient's norm.
    pub(super) gradient_norm: f64,
    /// Per owner: root mean square of its gradient norm, and the fraction of healthy steps.
    pub(super) owners: Vec<(Owner, f64, f64)>,
}

impl EpochSums {
    pub(super) fn new(owners: Vec<Owner>, device: &Device) -> Result<Self, Error> {
        let device = Tensor::zeros(OWNERS + 2 * owners.len(), DType::F64, device)?;
        Ok(Self { device, owners, host: HostSums::default() })
    }

    /// Starts over, in place where the owners are the same. Whether the sums are somewhere else now.
    pub(super) fn reset(&mut self, owners: Vec<Owner>, device: &Device) -> Result<bool, Error> {
        if owners != self.owners {
            *self = Self::new(owners, device)?;
            return Ok(true);
        }
        self.device.zero_set()?;
        self.host = HostSums::default();
        Ok(false)
    }

    pub(super) fn restore(owners: Vec<Owner>, saved: &SavedSums, device: &Device) -> Result<Self, Error> {
        let expected = OWNERS + 2 * owners.len();
        if saved.device.len() != expected {
            return Err(Error::State {
                field: "sums.device",
                message: format!("expected {expected} numbers, found {}", saved.device.len()),
            });
        }
        let device = Tensor::from_slice(&saved.device, expected, device)?;
        Ok(Self { device, owners, host: saved.host })
    }

    pub(super) fn save(&self, reads: &mut HostReads) -> Result<SavedSums, Error> {
        Ok(SavedSums { host: self.host, device: host_read::read_vec_f64(&self.device, "epoch sums", reads)? })
    }

    pub(super) fn owners(&self) -> &[Owner] {
        &self.owners
    }

    pub(super) fn host(&mut self) -> &mut HostSums {
        &mut self.host
    }

    /// Adds a microbatch: mean loss (scalar) times its samples, and its number of correct predictions (scalar).
    pub(super) fn add_microbatch(&self, mean_loss: &Tensor, correct: &Tensor, num_samples: usize) -> Result<(), Error> {
        add_scaled(&self.device.narrow(0, LOSS, 1)?, &mean_loss.flatten_all()?, num_samples as f64)?;
        add_scaled(&self.device.narrow(0, CORRECT, 1)?, &correct.flatten_all()?, 1.0)
    }

    /// The sums on the device.
    pub(super) fn as_tensor(&self) -> &Tensor {
        &self.device
    }

    /// Adds a window's conflicting pairs (one element of `f64`).
    pub(super) fn add_conflicts(&self, pairs: &Tensor) -> Result<(), Error> {
        add_scaled(&self.device.narrow(0, CONFLICTS, 1)?, &pairs.flatten_all()?, 1.0)
    }

    /// Adds an optimizer step: squared norm of the main gradient (scalar) and of each owner's gradient (owners,).
    pub(super) fn add_norms(&self, main_sq: &Tensor, owners_sq: &Tensor) -> Result<(), Error> {
        add_scaled(&self.device.narrow(0, MAIN_NORM_SQ, 1)?, &main_sq.flatten_all()?, 1.0)?;
        let count = self.owners.len();
        add_scaled(&self.device.narrow(0, OWNERS, count)?, owners_sq, 1.0)?;
        count_healthy(&self.device.narrow(0, OWNERS + count, count)?, owners_sq)
    }

    /// The one read of the epoch.
    pub(super) fn read(&self, reads: &mut HostReads) -> Result<EpochTotals, Error> {
        let sums = host_read::read_vec_f64(&self.device, "epoch sums", reads)?;
        let steps = (self.host.num_steps as f64).max(1.0);
        let rms = |sum: f64| (sum / steps).sqrt();
        let count = self.owners.len();
        Ok(EpochTotals {
            loss_sum: sums[LOSS],
            num_correct: sums[CORRECT],
            num_samples: self.host.num_samples,
            num_steps: self.host.num_steps,
            num_microbatches: self.host.num_microbatches,
            num_conflicts: sums[CONFLICTS],
            num_pairs: self.host.num_pairs,
            host_share: (self.host.num_windows > 0).then(|| self.host.host_share / self.host.num_windows as f64),
            gradient_norm: rms(sums[MAIN_NORM_SQ]),
            owners: (0..count)
                .map(|i| (self.owners[i], rms(sums[OWNERS + i]), sums[OWNERS + count + i] / steps))
                .collect(),
        })
    }
}

/// `sum += scale * addend`, in place, elementwise; `sum` is `f64`.
fn add_scaled(sum: &Tensor, addend: &Tensor, scale: f64) -> Result<(), Error> {
    fold(sum, addend, FoldKind::AddScaled(scale))
}

/// Adds 1 to each count whose squared norm is finite and above 0.
fn count_healthy(counts: &Tensor, norms_sq: &Tensor) -> Result<(), Error> {
    fold(counts, norms_sq, FoldKind::CountHealthy)
}

fn fold(sum: &Tensor, addend: &Tensor, kind: FoldKind) -> Result<(), Error> {
    match DeviceKernels::for_device(sum.device()) {
        Some(kernels) => kernels.fold(sum, addend, kind)?,
        None => sum.inplace_op2(&addend.to_dtype(DType::F64)?, &Fold(kind))?,
    }
    Ok(())
}

struct Fold(FoldKind);

impl InplaceOp2 for Fold {
    fn name(&self) -> &'static str {
        "epoch-sums-fold"
    }

    fn cpu_fwd(
        &self,
        sum: &mut CpuStorage,
        sum_layout: &Layout,
        addend: &CpuStorage,
        addend_layout: &Layout,
    ) -> candle_core::Result<()> {
        let (Some((s0, s1)), Some((a0, a1))) = (sum_layout.contiguous_offsets(), addend_layout.contiguous_offsets())
        else {
            candle_core::bail!("epoch sums must be contiguous")
        };
        let (CpuStorage::F64(sum), CpuStorage::F64(addend)) = (sum, addend) else {
            candle_core::bail!("epoch sums must be f64")
        };
        for (sum, addend) in sum[s0..s1].iter_mut().zip(&addend[a0..a1]) {
            *sum += match self.0 {
                FoldKind::AddScaled(scale) => scale * addend,
                FoldKind::CountHealthy => f64::from(*addend > 0.0 && addend.is_finite()),
            };
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn averages_are_per_sample_and_norms_per_step() {
        let owners = vec![Owner::Host, Owner::Seed(leyline::id::SeedId(1))];
        let mut sums = EpochSums::new(owners, &Device::Cpu).unwrap();
        let scalar = |v: f32| Tensor::new(v, &Device::Cpu).unwrap();
        sums.add_microbatch(&scalar(2.0), &scalar(1.0), 4).unwrap();
        sums.add_microbatch(&scalar(1.0), &scalar(2.0), 2).unwrap();
        sums.add_norms(&scalar(9.0), &Tensor::new(&[9.0_f32, 0.0], &Device::Cpu).unwrap()).unwrap();
        sums.add_norms(&scalar(16.0), &Tensor::new(&[16.0_f32, 4.0], &Device::Cpu).unwrap()).unwrap();
        *sums.host() = HostSums { num_samples: 6, num_steps: 2, ..HostSums::default() };
        let mut reads = HostReads::default();
        let saved = sums.save(&mut reads).unwrap();
        let again = EpochSums::restore(sums.owners.clone(), &saved, &Device::Cpu).unwrap();
        let totals = again.read(&mut reads).unwrap();
        assert_eq!(totals, sums.read(&mut reads).unwrap());
        assert!((totals.loss_sum - 10.0).abs() < 1e-12 && (totals.num_correct - 3.0).abs() < 1e-12);
        assert!((totals.gradient_norm - 12.5_f64.sqrt()).abs() < 1e-12);
        assert!((totals.owners[1].2 - 0.5).abs() < 1e-12, "a zero gradient is not healthy");
        assert!(EpochSums::restore(vec![Owner::Host], &saved, &Device::Cpu).is_err());
    }
}
