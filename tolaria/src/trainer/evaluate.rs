//! Evaluation on held-out data, with each live seed switched on and off beside it.

use candle_core::{DType, Device, Tensor};
use leyline::error::BoxError;
use leyline::id::SeedId;
use leyline::model::{AlphaOverride, Pass, TrainableModel};
use leyline::region::Eager;
use leyline::seed::{Counterfactual, SeedStage, SeedState};
use leyline::state::{ACCURACY, Score};
use leyline::task::{Measure, Task};
use leyline::unit::Alpha;

use crate::batch::{Dataset, to_device};
use crate::error::Error;
use crate::host_read::{self, HostReads};

/// A seed to measure: the override that flips it, and whether it acts without the override.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Probe {
    /// The seed.
    pub seed: SeedId,
    /// Its alpha in the second pass.
    pub alpha: Alpha,
    /// Whether the first pass has the seed on.
    pub acts: bool,
}

impl Probe {
    /// What to measure about a seed in this state: its removal when it acts, its target when it trains in the shadow;
    /// nothing while it is paused, for then it is not in the computation.
    #[must_use]
    pub fn of(state: &SeedState) -> Option<Self> {
        if state.paused {
            return None;
        }
        match state.stage {
            SeedStage::Training => Some(Self { seed: state.seed_id, alpha: state.alpha_target, acts: false }),
            SeedStage::Blending | SeedStage::Holding if !state.alpha.is_zero() => {
                Some(Self { seed: state.seed_id, alpha: Alpha::ZERO, acts: true })
            }
            SeedStage::Blending
            | SeedStage::Holding
            | SeedStage::Dormant
            | SeedStage::Germinated
            | SeedStage::Fossilized
            | SeedStage::Pruned
            | SeedStage::Embargoed
            | SeedStage::Resetting => None,
        }
    }
}

/// Result of [`evaluate`].
#[derive(Debug, Clone, PartialEq)]
pub struct Evaluation {
    /// The network as it is.
    pub score: Score,
    /// One per probe, in their order; none where there are fewer than two samples, of which no error can be told.
    pub counterfactuals: Vec<(SeedId, Counterfactual)>,
    /// Loss off − loss on of each sample, one list per probe, in their order.
    pub gains: Vec<(SeedId, Vec<f64>)>,
}

/// What a network is evaluated on.
#[derive(Debug, Clone, Copy)]
pub struct HeldOut<'a> {
    /// All of it.
    pub data: &'a Dataset,
    /// Where the network is; batches are copied there unless they are there.
    pub device: &'a Device,
    /// Samples per forward pass, above 0.
    pub batch_size: usize,
    /// What the network is trained for.
    pub task: &'a dyn Task,
    /// What is measured of the network as it is, beside loss and accuracy: measures of the task.
    pub measures: &'a [Measure],
}

/// Evaluates the network on all of the data, and once more per probe.
///
/// # Errors
/// When a forward pass or the device fails.
/// # Sync
/// one device-to-host copy of all per-sample losses and hits, and one of the counts of each measure
pub fn evaluate<M: TrainableModel>(
    eager: &Eager,
    model: &M,
    held_out: &HeldOut<'_>,
    probes: &[Probe],
    reads: &mut HostReads,
) -> Result<Evaluation, Error> {
    eager.check()?;
    Rows::of(model, held_out, probes)?.read(held_out, probes, reads)
}

/// What an evaluation leaves on the device.
#[derive(Debug)]
pub(super) struct Rows {
    /// Losses of all samples in the first pass, in that of each probe, and then the hits likewise where there are any: (rows · N,) of `f32`.
    pub(super) per_sample: Tensor,
    /// The counts of each measure, of `f64`.
    pub(super) counts: Vec<Tensor>,
}

impl Rows {
    /// All passes over all batches.
    ///
    /// # Sync
    /// none where the data are in memory on the device
    pub(super) fn of<M: TrainableModel>(model: &M, held_out: &HeldOut<'_>, probes: &[Probe]) -> Result<Self, Error> {
        let HeldOut { data, device, batch_size, task, measures } = *held_out;
        let num_passes = 1 + probes.len();
        let mut losses = vec![Vec::new(); num_passes];
        let mut hits = vec![Vec::new(); num_passes];
        let mut counts = vec![Vec::new(); measures.len()];
        for start in (0..data.len()).step_by(batch_size) {
            let slice = data.slice(start, batch_size.min(data.len() - start))?;
            if data.tensors().is_none() {
                // Those in memory were looked at as a whole.
                let checked = task.check_targets(&slice.targets);
                checked.map_err(|error| {
                    let what = data.as_source().describe();
                    let message = format!("{what}: {error}, counted from sample {start} on");
                    Error::InvalidData { what: "targets", message }
                })?;
            }
            let batch = to_device(slice, device)?;
            for pass in 0..num_passes {
                let overrides: Vec<AlphaOverride> = match pass.checked_sub(1) {
                    None => Vec::new(),
                    Some(probe) => vec![AlphaOverride { seed: probes[probe].seed, alpha: probes[probe].alpha }],
                };
                let pass_of = Pass::Evaluate { overrides: &overrides };
                let outputs = model.forward(&batch.inputs, pass_of).map_err(|e| Error::Model(BoxError::new(e)))?;
                losses[pass].push(task.losses(&outputs.logits, &batch.targets)?);
                hits[pass].extend(task.hits(&outputs.logits, &batch.targets)?);
                if pass > 0 || measures.is_empty() {
                    continue;
                }
                // As tasks take them, whatever type of float the network computes in.
                let logits = outputs.logits.to_dtype(DType::F32)?;
                for (measure, counts) in measures.iter().zip(&mut counts) {
                    let of_batch = measure.counts(&logits, &batch.targets)?;
                    counts.push(of_batch.to_dtype(DType::F64)?.sum(0)?);
                }
            }
        }
        hits.retain(|hits| !hits.is_empty());
        let rows: Vec<Tensor> = losses.iter().chain(&hits).map(|row| Tensor::cat(row, 0)).collect::<Result<_, _>>()?;
        let counts = counts.iter().map(|counts| Tensor::stack(counts, 0)?.sum(0)).collect::<Result<_, _>>()?;
        Ok(Self { per_sample: Tensor::cat(&rows, 0)?, counts })
    }

    /// What they say.
    ///
    /// # Sync
    /// as for [`evaluate`]
    pub(super) fn read(
        &self,
        held_out: &HeldOut<'_>,
        probes: &[Probe],
        reads: &mut HostReads,
    ) -> Result<Evaluation, Error> {
        let HeldOut { data, measures, .. } = *held_out;
        let table = host_read::read_vec(&self.per_sample, "evaluation", reads)?;
        let per_sample: Vec<&[f32]> = table.chunks(data.len().max(1)).collect();
        let (losses, hits) = per_sample.split_at(1 + probes.len());
        let mut score = Score::new(mean(losses[0]), data.len() as u64);
        if let Some(hits) = hits.first() {
            score = score.with(ACCURACY, mean(hits));
        }
        for (measure, counts) in measures.iter().zip(&self.counts) {
            let sums = host_read::read_vec_f64(counts, "counts of a measure", reads)?;
            // What is no number was not measured: as JSON it could not be read again.
            if let Some(value) = measure.value(&sums, data.len() as f64) {
                score = score.with(measure.about().name, value);
            }
        }
        let (mut counterfactuals, mut gains) = (Vec::new(), Vec::new());
        for (index, probe) in probes.iter().enumerate() {
            let (base, flipped) = (0, index + 1);
            let (on, off) = if probe.acts { (base, flipped) } else { (flipped, base) };
            let hits = hits.get(on).zip(hits.get(off)).map(|(on, off)| (*on, *off));
            let of_samples = paired(losses[on], losses[off]);
            counterfactuals.extend(counterfactual(&of_samples, hits).map(|measured| (probe.seed, measured)));
            gains.push((probe.seed, of_samples));
        }
        Ok(Evaluation { score, counterfactuals, gains })
    }
}

/// Loss off − loss on of each sample.
fn paired(on: &[f32], off: &[f32]) -> Vec<f64> {
    off.iter().zip(on).map(|(off, on)| f64::from(*off) - f64::from(*on)).collect()
}

/// From the gain and, where there are any, the hits of each sample with the seed on and off.
fn counterfactual(gains: &[f64], hits: Option<(&[f32], &[f32])>) -> Option<Counterfactual> {
    if gains.len() < 2 {
        return None;
    }
    let count = gains.len() as f64;
    let gain = gains.iter().sum::<f64>() / count;
    let variance = gains.iter().map(|g| (g - gain).powi(2)).sum::<f64>() / (count - 1.0);
    Some(Counterfactual {
        loss_gain: gain,
        std_error: (variance / count).sqrt(),
        accuracy_gain_pp: hits.map(|(on, off)| 100.0 * (mean(on) - mean(off))),
        num_samples: gains.len() as u64,
    })
}

fn mean(values: &[f32]) -> f64 {
    values.iter().map(|v| f64::from(*v)).sum::<f64>() / values.len() as f64
}

#[cfg(test)]
mod tests {
    use leyline::id::{BlueprintId, SlotId};

    use super::*;
    use crate::measure::{mean_abs_error, r2, root_mean_square_error};
    use crate::plain::PlainModel;
    use crate::task::{Regression, RegressionLoss};

    #[test]
    fn what_is_measured_follows_from_the_stage_and_a_paused_seed_is_not_measured() {
        let of = |stage: SeedStage, alpha: f64, paused: bool| {
            let (slot, blueprint) = (SlotId::new("a").unwrap(), BlueprintId::new("mlp").unwrap());
            let seed = SeedState::germinated(SeedId(1), slot, blueprint, 10);
            Probe::of(&SeedState { stage, alpha: Alpha::new(alpha).unwrap(), paused, ..seed })
        };
        let probe = |alpha, acts| Some(Probe { seed: SeedId(1), alpha, acts });
        for stage in SeedStage::ALL {
            let (idle, acting) = match stage {
                SeedStage::Training => (probe(Alpha::ONE, false), probe(Alpha::ONE, false)),
                SeedStage::Blending | SeedStage::Holding => (None, probe(Alpha::ZERO, true)),
                _ => (None, None),
            };
            assert_eq!(of(stage, 0.0, false), idle, "{stage}");
            assert_eq!(of(stage, 0.5, false), acting, "{stage}");
            assert_eq!([of(stage, 0.0, true), of(stage, 0.5, true)], [None, None], "{stage}");
        }
    }

    #[test]
    fn outputs_of_half_precision_are_measured() {
        let column = |of: &[f32]| Tensor::from_slice(of, (of.len(), 1), &Device::Cpu).unwrap();
        let data = Dataset::new(column(&[0.0, 1.0, 3.0]), column(&[0.0, 2.0, 1.0])).unwrap();
        let task = Regression::new(RegressionLoss::Mse, vec![1.0]).unwrap();
        let measures = [mean_abs_error(vec![1.0]), root_mean_square_error(vec![1.0]), r2()];
        let held_out = HeldOut { data: &data, device: &Device::Cpu, batch_size: 2, task: &task, measures: &measures };
        for dtype in [DType::F32, DType::BF16, DType::F16, DType::F64] {
            let model = PlainModel::new(Vec::new(), move |inputs| inputs.to_dtype(dtype)).unwrap();
            let mut reads = HostReads::default();
            let found = evaluate(&Eager::acquire().unwrap(), &model, &held_out, &[], &mut reads).unwrap();
            for (measure, expected) in measures.iter().zip([1.0, (5.0_f64 / 3.0).sqrt(), -1.5]) {
                let value = found.score.measures.get(measure.about().name).unwrap();
                assert!((value - expected).abs() < 1e-6, "{dtype:?} {}: {value}", measure.about().name);
            }
        }
    }

    #[test]
    fn a_gain_is_paired_sample_by_sample() {
        let measured =
            counterfactual(&paired(&[1.0, 2.0, 3.0], &[1.5, 2.5, 3.5]), Some((&[1.0, 1.0, 0.0], &[1.0, 0.0, 0.0])))
                .unwrap();
        assert!((measured.loss_gain - 0.5).abs() < 1e-12);
        assert!(measured.std_error < 1e-12, "a constant gain has no spread: {}", measured.std_error);
        assert!((measured.accuracy_gain_pp.unwrap() - 100.0 / 3.0).abs() < 1e-9);
    }

    #[test]
    fn the_standard_error_is_that_of_a_mean() {
        let measured = counterfactual(&[1.0, -1.0, 1.0, -1.0], None).unwrap();
        assert_eq!(measured.accuracy_gain_pp, None, "nothing was to be recognized");
        assert!((measured.std_error - (4.0_f64 / 3.0 / 4.0).sqrt()).abs() < 1e-12);
    }

    #[test]
    fn fewer_than_two_samples_measure_nothing() {
        for (samples, is_measured) in [(0, false), (1, false), (2, true)] {
            let (on, off) = (vec![0.0; samples], vec![1.0; samples]);
            assert_eq!(counterfactual(&paired(&on, &off), Some((&on, &on))).is_some(), is_measured, "{samples}");
        }
    }
}
