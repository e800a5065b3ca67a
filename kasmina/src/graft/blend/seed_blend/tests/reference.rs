//! Every mode as plain loops over `f64`, written from the formulas and not from the tensor code.

use leyline::command::{Blend, ConfidenceGate};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::host::SlotShape;

/// Values of one blend at one slot.
#[derive(Debug, Clone)]
pub(super) struct Problem {
    pub(super) blend: Blend,
    pub(super) slot: SlotShape,
    pub(super) num_samples: usize,
    pub(super) h: Vec<f64>,
    pub(super) f: Vec<f64>,
    /// Weight of each output in the objective.
    pub(super) objective: Vec<f64>,
    /// Tensors of the gate with their shapes; none for other modes.
    pub(super) gate: Vec<(Vec<f64>, Vec<usize>)>,
}

impl Problem {
    pub(super) fn random(blend: Blend, slot: SlotShape, num_samples: usize, seed: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut draw = |count: usize| (0..count).map(|_| rng.random_range(-1.5..1.5)).collect::<Vec<f64>>();
        let count = slot.batch(num_samples).iter().product();
        let (h, f, objective) = (draw(count), draw(count), draw(count));
        let (channels, hidden) = (slot.channels(), (slot.channels() / 4).max(8));
        let shapes = [vec![channels, hidden], vec![hidden], vec![hidden, 1], vec![1]];
        let gate = shapes.map(|shape| (draw(shape.iter().product()), shape));
        let gate = if blend == Blend::Gate { gate.to_vec() } else { Vec::new() };
        Self { blend, slot, num_samples, h, f, objective, gate }
    }

    /// Elements of a channel that are judged together: the positions of a sample, but for a causal slot.
    fn num_together(&self) -> usize {
        if matches!(self.slot, SlotShape::Causal { .. }) { 1 } else { self.slot.num_positions() }
    }

    /// Sample and channel of an element; of a causal slot each position is a sample.
    fn place(&self, index: usize) -> (usize, usize) {
        let (channels, positions) = (self.slot.channels(), self.num_together());
        let (sample, within) = (index / (channels * positions), index % (channels * positions));
        let channel = match self.slot {
            SlotShape::Sequence { features, .. } | SlotShape::Causal { features, .. } => within % features,
            SlotShape::Vector { .. }
            | SlotShape::Around { .. }
            | SlotShape::Signal { .. }
            | SlotShape::Image { .. } => within / positions,
        };
        (sample, channel)
    }

    /// Means over positions, per sample and channel.
    #[allow(clippy::cast_precision_loss, reason = "a few positions")]
    fn means(&self, values: &[f64]) -> Vec<Vec<f64>> {
        let num_judged = values.len() / (self.slot.channels() * self.num_together());
        let mut means = vec![vec![0.0; self.slot.channels()]; num_judged];
        for (index, value) in values.iter().enumerate() {
            let (sample, channel) = self.place(index);
            means[sample][channel] += value / self.num_together() as f64;
        }
        means
    }

    fn confidence(&self, settings: &ConfidenceGate) -> Vec<f64> {
        let gate = |scores: &Vec<f64>| {
            let sum: f64 = scores.iter().map(|score| score.exp()).sum();
            let mut probabilities: Vec<f64> = scores.iter().map(|score| score.exp() / sum).collect();
            probabilities.sort_by(f64::total_cmp);
            let margin = probabilities[probabilities.len() - 1] - probabilities[probabilities.len() - 2];
            logistic(settings.steepness() * (margin - settings.threshold())).clamp(settings.low(), settings.high())
        };
        self.means(&self.f).iter().map(gate).collect()
    }

    fn learned(&self) -> Vec<f64> {
        let hidden = self.gate[1].0.len();
        let gate = |pooled: &Vec<f64>| {
            let mut score = self.gate[3].0[0];
            for unit in 0..hidden {
                let mut sum = self.gate[1].0[unit];
                for (channel, value) in pooled.iter().enumerate() {
                    sum += value * self.gate[0].0[channel * hidden + unit];
                }
                score += sum.max(0.0) * self.gate[2].0[unit];
            }
            logistic(score)
        };
        self.means(&self.h).iter().map(gate).collect()
    }

    /// y, with the confidence of each sample as given.
    fn output_with(&self, alpha: f64, confidence: &[f64]) -> Vec<f64> {
        let learned = if self.blend == Blend::Gate { self.learned() } else { Vec::new() };
        let mix = |index: usize| {
            let ((sample, channel), h, f) = (self.place(index), self.h[index], self.f[index]);
            match &self.blend {
                Blend::Residual => h + alpha * f,
                Blend::Convex => (1.0 - alpha) * h + alpha * f,
                Blend::Channel(weights) => {
                    let weight = alpha * weights.get()[channel];
                    (1.0 - weight) * h + weight * f
                }
                Blend::Confidence(_) => {
                    let weight = alpha * confidence[sample];
                    (1.0 - weight) * h + weight * f
                }
                Blend::Multiply => h * (1.0 + alpha * f.tanh()),
                Blend::Gate => h + alpha * learned[sample] * f,
            }
        };
        (0..self.h.len()).map(mix).collect()
    }

    fn fixed_confidence(&self) -> Vec<f64> {
        match &self.blend {
            Blend::Confidence(settings) => self.confidence(settings),
            Blend::Residual | Blend::Convex | Blend::Channel(_) | Blend::Multiply | Blend::Gate => Vec::new(),
        }
    }

    pub(super) fn output(&self, alpha: f64) -> Vec<f64> {
        self.output_with(alpha, &self.fixed_confidence())
    }

    /// Central differences of the objective by h, f and each tensor of the gate; the confidence is held fixed.
    pub(super) fn gradients(&self, alpha: f64) -> Vec<Vec<f64>> {
        const STEP: f64 = 1e-6;
        let confidence = self.fixed_confidence();
        let objective = |problem: &Self| -> f64 {
            problem.output_with(alpha, &confidence).iter().zip(&self.objective).map(|(y, weight)| y * weight).sum()
        };
        let slope = |which: usize, index: usize| {
            let at = |offset: f64| {
                let mut moved = self.clone();
                let values = match which {
                    0 => &mut moved.h,
                    1 => &mut moved.f,
                    _ => &mut moved.gate[which - 2].0,
                };
                values[index] += offset;
                objective(&moved)
            };
            (at(STEP) - at(-STEP)) / (2.0 * STEP)
        };
        let lengths = [self.h.len(), self.f.len()].into_iter().chain(self.gate.iter().map(|(values, _)| values.len()));
        lengths.enumerate().map(|(which, len)| (0..len).map(|index| slope(which, index)).collect()).collect()
    }
}

fn logistic(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}
