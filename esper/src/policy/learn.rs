//! How a network learns: the gradient of the log-probabilities of what was taken, each with a weight, and Adam.
//!
//! With the weight 1 for what rules took this is behavior cloning; with an advantage it is REINFORCE (Williams 1992). Options that were
//! not allowed are not in the softmax, as in a run.

use candle_core::{D, DType, Device, Result, Tensor, Var};
use tamiyo::policy::learned::{Choice, NUM_FEATURES, NUM_OUTPUTS, Network, NetworkError, Parts, Row};

const LARGEST_INPUT: f32 = 10.0;
/// Smallest scale of a feature: one that hardly varies says little.
const SMALLEST_SCALE: f64 = 0.05;
const BETAS: [f64; 2] = [0.9, 0.999];
/// Largest norm of a gradient.
const LARGEST_NORM: f64 = 1.0;
/// In place of a logit that is none.
const NO_LOGIT: f32 = -1e9;

/// A choice, the index of what was taken, and how much that counts.
pub(super) type Taken<'a> = (&'a Choice, usize, f32);

/// A network that learns.
pub(super) struct Learner {
    mean: Vec<f32>,
    scale: Vec<f32>,
    /// W (H, F), b (H), weights (K, H) and biases (K) of the outputs, with their moments.
    parameters: Vec<(Var, [Tensor; 2])>,
    steps: i32,
}

/// Numbers in [-1, 1), from a seed.
fn numbers(seed: u64, count: usize) -> Vec<f32> {
    let mut reader = blake3::Hasher::new().update(b"esper.policy.network").update(&seed.to_le_bytes()).finalize_xof();
    let mut draw = || {
        let mut bytes = [0_u8; 3];
        reader.fill(&mut bytes);
        #[expect(clippy::cast_precision_loss, reason = "24 bits")]
        let number = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], 0]) as f32;
        number / 8_388_608.0 - 1.0
    };
    (0..count).map(|_| draw()).collect()
}

impl Learner {
    /// A network that has learned nothing yet, with features scaled as in `rows`.
    pub(super) fn new(rows: &[Row], hidden: usize, seed: u64) -> Result<Self> {
        let moment = |feature: usize, of: &dyn Fn(f64) -> f64| {
            rows.iter().map(|row| of(f64::from(row[feature]))).sum::<f64>() / rows.len().max(1) as f64
        };
        let means: Vec<f64> = (0..NUM_FEATURES).map(|feature| moment(feature, &|x| x)).collect();
        #[expect(clippy::cast_possible_truncation, reason = "rounded")]
        let scale =
            |feature: usize| moment(feature, &|x| (x - means[feature]).powi(2)).sqrt().max(SMALLEST_SCALE) as f32;
        #[expect(clippy::cast_precision_loss, reason = "small counts")]
        let sized = |count: usize, inputs: usize, seed: u64| {
            numbers(seed, count).into_iter().map(|x| x / (inputs as f32).sqrt()).collect::<Vec<f32>>()
        };
        Self::of(&Parts {
            scale: (0..NUM_FEATURES).map(scale).collect(),
            #[expect(clippy::cast_possible_truncation, reason = "rounded")]
            mean: means.iter().map(|mean| *mean as f32).collect(),
            hidden_weight: sized(hidden * NUM_FEATURES, NUM_FEATURES, seed),
            hidden_bias: vec![0.0; hidden],
            output_weight: sized(NUM_OUTPUTS * hidden, hidden, !seed),
            output_bias: vec![0.0; NUM_OUTPUTS],
        })
    }

    /// A network that learns on.
    pub(super) fn of(parts: &Parts) -> Result<Self> {
        let hidden = parts.hidden_bias.len();
        let parameter = |numbers: &[f32], shape: &[usize]| -> Result<(Var, [Tensor; 2])> {
            let tensor = Tensor::from_slice(numbers, shape, &Device::Cpu)?;
            let none = tensor.zeros_like()?;
            Ok((Var::from_tensor(&tensor)?, [none.clone(), none]))
        };
        let parameters = vec![
            parameter(&parts.hidden_weight, &[hidden, NUM_FEATURES])?,
            parameter(&parts.hidden_bias, &[hidden])?,
            parameter(&parts.output_weight, &[NUM_OUTPUTS, hidden])?,
            parameter(&parts.output_bias, &[NUM_OUTPUTS])?,
        ];
        Ok(Self { mean: parts.mean.clone(), scale: parts.scale.clone(), parameters, steps: 0 })
    }

    /// The network as it is now.
    #[expect(clippy::disallowed_methods, reason = "the network is on the CPU")]
    pub(super) fn network(&self) -> anyhow::Result<Network> {
        let numbers = |index: usize| -> Result<Vec<f32>> { self.parameters[index].0.flatten_all()?.to_vec1() };
        let parts = Parts {
            mean: self.mean.clone(),
            scale: self.scale.clone(),
            hidden_weight: numbers(0)?,
            hidden_bias: numbers(1)?,
            output_weight: numbers(2)?,
            output_bias: numbers(3)?,
        };
        Network::new(parts).map_err(|error: NetworkError| anyhow::Error::new(error).context("learning diverged"))
    }

    /// One step against −Σ weight·ln p(taken) / n − `entropy`·(mean entropy); returns the mean of ln p(taken). Nothing taken is no step.
    #[expect(clippy::disallowed_methods, reason = "the network is on the CPU")]
    #[expect(clippy::cast_possible_truncation, reason = "indices of some thousand logits")]
    pub(super) fn step(&mut self, taken: &[Taken<'_>], rate: f64, entropy: f64) -> Result<f32> {
        if taken.is_empty() {
            return Ok(0.0);
        }
        let device = &Device::Cpu;
        let width = taken.iter().map(|(choice, ..)| choice.options.len()).max().unwrap_or(1);
        let (mut rows, mut indices, mut masks, mut chosen, mut weights) = (vec![], vec![], vec![], vec![], vec![]);
        for (choice, index, weight) in taken {
            let first = rows.len() / NUM_FEATURES;
            for row in &choice.rows {
                let shown = row.iter().zip(&self.mean).zip(&self.scale);
                rows.extend(shown.map(|((x, mean), scale)| ((x - mean) / scale).clamp(-LARGEST_INPUT, LARGEST_INPUT)));
            }
            let places = choice.options.iter().map(|(row, output)| ((first + row) * NUM_OUTPUTS + output) as u32);
            indices.extend(places.chain(std::iter::repeat(0)).take(width));
            masks.extend((0..width).map(|option| if option < choice.options.len() { 0.0 } else { NO_LOGIT }));
            chosen.push(*index as u32);
            weights.push(*weight);
        }
        let num = taken.len();
        let rows = Tensor::from_vec(rows.clone(), (rows.len() / NUM_FEATURES, NUM_FEATURES), device)?;
        let [w, b, v, c] = [0, 1, 2, 3].map(|index: usize| self.parameters[index].0.as_tensor());
        let units = rows.matmul(&w.t()?)?.broadcast_add(b)?.tanh()?;
        let outputs = units.matmul(&v.t()?)?.broadcast_add(c)?.flatten_all()?;
        let indices = Tensor::from_vec(indices, num * width, device)?;
        let logits = outputs.index_select(&indices, 0)?.reshape((num, width))?;
        let logits = (logits + Tensor::from_vec(masks, (num, width), device)?)?;
        let shifted = logits.broadcast_sub(&logits.max_keepdim(D::Minus1)?.detach())?;
        let log_p = shifted.broadcast_sub(&shifted.exp()?.sum_keepdim(D::Minus1)?.log()?)?;
        let of_taken = log_p.gather(&Tensor::from_vec(chosen, (num, 1), device)?, D::Minus1)?.squeeze(1)?;
        let weights = Tensor::from_vec(weights, num, device)?;
        // A masked option has p = 0 and no part in the sum; its ln p is finite.
        let negative_entropy = (log_p.exp()? * &log_p)?.sum_all()?;
        let loss = ((&of_taken * weights)?.sum_all()?.neg()? + (negative_entropy * entropy)?)?;
        let gradients = (loss / num as f64)?.backward()?;
        self.adam(&gradients, rate)?;
        of_taken.mean_all()?.to_dtype(DType::F32)?.to_scalar()
    }

    #[expect(clippy::disallowed_methods, reason = "the network is on the CPU")]
    fn adam(&mut self, gradients: &candle_core::backprop::GradStore, rate: f64) -> Result<()> {
        let mut norm = 0.0_f64;
        for (parameter, _) in &self.parameters {
            if let Some(gradient) = gradients.get(parameter) {
                norm += f64::from(gradient.sqr()?.sum_all()?.to_scalar::<f32>()?);
            }
        }
        let clip = (LARGEST_NORM / norm.sqrt().max(LARGEST_NORM)).min(1.0);
        self.steps += 1;
        let corrected = BETAS.map(|beta| 1.0 - beta.powi(self.steps));
        for (parameter, [first, second]) in &mut self.parameters {
            let Some(gradient) = gradients.get(parameter) else { continue };
            let gradient = (gradient * clip)?;
            *first = ((&*first * BETAS[0])? + (&gradient * (1.0 - BETAS[0]))?)?;
            *second = ((&*second * BETAS[1])? + (gradient.sqr()? * (1.0 - BETAS[1]))?)?;
            let size = ((&*second / corrected[1])?.sqrt()? + 1e-8)?;
            let step = ((&*first / corrected[0])? / size)?;
            parameter.set(&(parameter.as_tensor() - (step * rate)?)?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tamiyo::policy::learned::About;

    use super::*;

    /// One row; its first feature says which of two options is right.
    fn choice(right: usize) -> Choice {
        let mut row = [0.0; NUM_FEATURES];
        row[0] = if right == 0 { -1.0 } else { 1.0 };
        Choice { about: About::Germination, rows: vec![row], options: vec![(0, 3), (0, 4)] }
    }

    fn learner(choices: &[Choice]) -> Learner {
        let rows: Vec<Row> = choices.iter().flat_map(|choice| choice.rows.clone()).collect();
        Learner::new(&rows, 8, 1).unwrap()
    }

    #[test]
    fn what_was_taken_becomes_likely_and_the_same_in_a_run() {
        let choices = [choice(0), choice(1)];
        let mut learner = learner(&choices);
        let taken = [(&choices[0], 0, 1.0), (&choices[1], 1, 1.0)];
        let mut told = 0.0;
        for _ in 0..200 {
            told = learner.step(&taken, 0.02, 0.0).unwrap();
        }
        let network = learner.network().unwrap();
        let found: Vec<f64> = choices.iter().zip([0, 1]).map(|(c, right)| network.probabilities(c)[right]).collect();
        assert!(found.iter().all(|p| *p > 0.95), "{found:?}");
        let mean = found.iter().map(|p| p.ln()).sum::<f64>() / 2.0;
        assert!((f64::from(told) - mean).abs() < 0.01, "{told} while learning, {mean} in a run");
    }

    #[test]
    fn what_has_a_negative_advantage_becomes_unlikely_and_entropy_is_kept_where_it_has_a_price() {
        let choices = [choice(0)];
        let probability = |weight: f32, entropy: f64| {
            let mut learner = learner(&choices);
            for _ in 0..100 {
                learner.step(&[(&choices[0], 0, weight)], 0.02, entropy).unwrap();
            }
            learner.network().unwrap().probabilities(&choices[0])[0]
        };
        assert!(probability(-1.0, 0.0) < 0.1 && probability(1.0, 0.0) > 0.9);
        assert!(probability(1.0, 3.0) < 0.9, "{}", probability(1.0, 3.0));
    }
}
