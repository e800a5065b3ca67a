//! A text goes on: token after token from a language model.

use std::num::NonZeroUsize;

use kasmina::GraftedModel;
use kasmina::graft::Decoder;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use crate::error::Error;
use crate::network::read;

/// How the next token is chosen from its logits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    /// What logits are divided by, finite and at least 0: below 1 likely tokens become likelier; at 0 the likeliest is taken, of
    /// equal ones the first.
    pub temperature: f64,
    /// Only so many of the likeliest tokens are drawn from; all of them when absent.
    pub top_k: Option<NonZeroUsize>,
    /// Of the draws.
    pub seed: u64,
}

/// A sequence that goes on.
///
/// The model sees at most as many tokens as its context has. When that is full, it goes on from the last half of it, whose
/// positions are counted from 0 again.
///
/// ```
/// # use std::collections::BTreeMap;
/// # use candle_core::{Device, Tensor};
/// # use kasmina::{blueprint::Registry, graft::NetworkSpec, host::HostConfig, weight::ElementType};
/// use esper_export::{Generation, Sampling};
///
/// # let host = HostConfig::LanguageModel { context: 4, width: 2, heads: 1, layers: 1, mlp_ratio: 1, tied: true, vocabulary: 3 };
/// # let spec = NetworkSpec { host, dtype: ElementType::F32, seeds: vec![] };
/// # let ramp = |(name, shape): (String, Vec<usize>)| {
/// #     let values = Tensor::arange(0_f32, shape.iter().product::<usize>() as f32, &Device::Cpu)?.sin()?;
/// #     Ok((name, values.reshape(shape)?))
/// # };
/// # let tensors = spec.tensors(&Registry::all())?.into_iter().map(ramp).collect::<candle_core::Result<BTreeMap<_, _>>>()?;
/// # let model = spec.build(tensors, &Registry::all(), &Device::Cpu)?;
/// // `model` is that of a `Network`, of 3 different tokens.
/// let sampling = Sampling { temperature: 0.0, top_k: None, seed: 1 };
/// let more: Vec<u32> = Generation::new(&model, &[0, 2], sampling)?.take(10).collect::<Result<_, _>>()?;
/// assert!(more.len() == 10 && more.iter().all(|&token| token < 3));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Generation {
    decoder: Decoder,
    sampling: Sampling,
    rng: ChaCha8Rng,
    context: usize,
    /// All of them, and how many were read of those that the model sees.
    tokens: Vec<u32>,
    start: usize,
    num_read: usize,
}

impl Generation {
    /// Behind `prompt`, of which the last tokens count where it is longer than the context.
    ///
    /// # Errors
    /// [`Error::Sampling`] for a setting that cannot work, or a prompt without a token; [`Error::Forward`] for a model that takes no
    /// tokens. Tokens that it does not know are refused by the first step.
    pub fn new(model: &GraftedModel, prompt: &[u32], sampling: Sampling) -> Result<Self, Error> {
        let wrong = |field, found: String, expected| Err(Error::Sampling { field, found, expected });
        if !(sampling.temperature.is_finite() && sampling.temperature >= 0.0) {
            return wrong("temperature", sampling.temperature.to_string(), "a finite number from 0 on");
        }
        if prompt.is_empty() {
            return wrong("prompt", "empty".to_owned(), "one token or more");
        }
        let decoder = Decoder::new(model)?;
        let context = decoder.room();
        let (tokens, start) = (prompt.to_vec(), prompt.len().saturating_sub(context));
        let rng = ChaCha8Rng::seed_from_u64(sampling.seed);
        Ok(Self { decoder, sampling, rng, context, tokens, start, num_read: 0 })
    }

    /// The next token, which is part of the sequence then.
    ///
    /// # Errors
    /// [`Error::Sampling`] for logits that are not finite; [`Error::Forward`] for a token that the model does not know; when the
    /// device fails.
    /// # Sync
    /// one device-to-host copy
    pub fn step(&mut self) -> Result<u32, Error> {
        if self.tokens.len() - self.start > self.context {
            self.start = self.tokens.len() - self.context.div_ceil(2);
            self.num_read = 0;
            self.decoder.clear()?;
        }
        let unread = &self.tokens[self.start + self.num_read..];
        let logits = self.decoder.read(unread)?;
        self.num_read += unread.len();
        let last = read(&logits.narrow(0, unread.len() - 1, 1)?)?.remove(0);
        let token = self.choose(&last)?;
        self.tokens.push(token);
        Ok(token)
    }

    fn choose(&mut self, logits: &[f32]) -> Result<u32, Error> {
        let mut order: Vec<(u32, f64)> = (0..).zip(logits.iter().map(|&logit| f64::from(logit))).collect();
        if let Some((token, logit)) = order.iter().find(|(_, logit)| !logit.is_finite()) {
            let found = format!("{logit} for the token {token}");
            return Err(Error::Sampling { field: "logits", found, expected: "finite numbers" });
        }
        // Stable: of equal ones the first stays first.
        order.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        let Sampling { temperature, top_k, .. } = self.sampling;
        let count = if temperature > 0.0 { top_k.map_or(order.len(), NonZeroUsize::get) } else { 1 };
        order.truncate(count);
        let largest = order[0].1;
        let weight = |logit: f64| if temperature > 0.0 { ((logit - largest) / temperature).exp() } else { 1.0 };
        let mut left = self.rng.random::<f64>() * order.iter().map(|(_, logit)| weight(*logit)).sum::<f64>();
        let drawn = order.iter().find(|(_, logit)| {
            left -= weight(*logit);
            left < 0.0
        });
        // The sum may be rounded up to more than the parts: then it is the first.
        Ok(drawn.unwrap_or(&order[0]).0)
    }
}

/// Without an end: as many as are asked for, or up to the first error.
impl Iterator for Generation {
    type Item = Result<u32, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.step())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use candle_core::{Device, Tensor};
    use kasmina::blueprint::Registry;
    use kasmina::graft::{NetworkSpec, SeedSpec};
    use kasmina::host::HostConfig;
    use kasmina::weight::ElementType;
    use leyline::command::Blend;
    use leyline::id::{BlueprintId, SeedId, SlotId};
    use leyline::model::{Pass, TrainableModel as _};
    use leyline::unit::Alpha;

    use super::*;

    const CONTEXT: usize = 8;
    const VOCABULARY: usize = 11;

    fn model(host: HostConfig, seeds: Vec<SeedSpec>) -> GraftedModel {
        let spec = NetworkSpec { host, dtype: ElementType::F32, seeds };
        let mut rng = ChaCha8Rng::seed_from_u64(3);
        let tensors: BTreeMap<String, Tensor> = spec
            .tensors(&Registry::all())
            .unwrap()
            .into_iter()
            .map(|(name, shape)| {
                let values: Vec<f32> = (0..shape.iter().product()).map(|_| rng.random_range(-0.8..0.8)).collect();
                (name, Tensor::from_vec(values, shape, &Device::Cpu).unwrap())
            })
            .collect();
        spec.build(tensors, &Registry::all(), &Device::Cpu).unwrap()
    }

    fn grown() -> GraftedModel {
        let seed = |id, slot: &str, blueprint: &str, alpha| SeedSpec {
            id: SeedId(id),
            slot: SlotId::new(slot).unwrap(),
            blueprint: BlueprintId::new(blueprint).unwrap(),
            width: 4,
            blend: Blend::Gate,
            alpha: Alpha::new(alpha).unwrap(),
        };
        let (context, vocabulary) = (CONTEXT, VOCABULARY);
        let host =
            HostConfig::LanguageModel { context, width: 8, heads: 2, layers: 2, mlp_ratio: 2, tied: true, vocabulary };
        model(host, vec![seed(1, "block0", "causal_attention", 1.0), seed(2, "attention1", "norm_mlp", 0.5)])
    }

    /// The same without anything that is kept: a pass over the whole window for each token.
    fn from_whole_windows(model: &GraftedModel, prompt: &[u32], sampling: Sampling, count: usize) -> Vec<u32> {
        let mut generation = Generation::new(model, prompt, sampling).unwrap();
        for _ in 0..count {
            if generation.tokens.len() - generation.start > CONTEXT {
                generation.start = generation.tokens.len() - CONTEXT.div_ceil(2);
            }
            let mut window = generation.tokens[generation.start..].to_vec();
            let last = window.len() - 1;
            // What comes after is not seen.
            window.resize(CONTEXT, 0);
            let inputs = Tensor::from_vec(window, (1, CONTEXT), &Device::Cpu).unwrap();
            let logits = model.forward(&inputs, Pass::Evaluate { overrides: &[] }).unwrap().logits;
            let logits = read(&logits.squeeze(0).unwrap().narrow(0, last, 1).unwrap()).unwrap().remove(0);
            let token = generation.choose(&logits).unwrap();
            generation.tokens.push(token);
        }
        generation.tokens.split_off(prompt.len())
    }

    #[test]
    fn what_is_kept_changes_no_token_also_beyond_the_context() {
        let model = grown();
        for (prompt, temperature, top_k) in [
            (&[1_u32][..], 0.0, None),
            (&[4, 4, 10], 1.0, None),
            (&[0, 1, 2, 3, 4, 5, 6, 7], 0.7, NonZeroUsize::new(3)),
            (&[9, 8, 7, 6, 5, 4, 3, 2, 1, 0], 1.5, NonZeroUsize::new(100)),
        ] {
            for seed in [1, 2] {
                let sampling = Sampling { temperature, top_k, seed };
                let kept: Result<Vec<u32>, _> = Generation::new(&model, prompt, sampling).unwrap().take(40).collect();
                assert_eq!(kept.unwrap(), from_whole_windows(&model, prompt, sampling, 40), "{prompt:?} {sampling:?}");
            }
        }
    }

    #[test]
    fn the_seed_alone_decides_the_draws() {
        let model = grown();
        let draw = |seed, temperature| -> Vec<u32> {
            let sampling = Sampling { temperature, top_k: None, seed };
            Generation::new(&model, &[1], sampling).unwrap().take(20).collect::<Result<_, _>>().unwrap()
        };
        assert_eq!(draw(1, 1.0), draw(1, 1.0));
        assert_ne!(draw(1, 1.0), draw(2, 1.0));
        assert_eq!(draw(1, 0.0), draw(2, 0.0), "the likeliest needs no draw");
    }

    #[test]
    fn tokens_are_drawn_as_often_as_their_logits_say() {
        let sampling = |temperature, top_k| Sampling { temperature, top_k: NonZeroUsize::new(top_k), seed: 5 };
        let logits = [0.0_f32, 2.0_f32.ln(), 2.0_f32.ln(), -1e30];
        for (sampling, expected) in [
            (sampling(1.0, 0), [0.2, 0.4, 0.4, 0.0]),
            (sampling(0.5, 0), [1.0 / 9.0, 4.0 / 9.0, 4.0 / 9.0, 0.0]),
            (sampling(1.0, 2), [0.0, 0.5, 0.5, 0.0]),
            (sampling(1.0, 1), [0.0, 1.0, 0.0, 0.0]),
            (sampling(0.0, 0), [0.0, 1.0, 0.0, 0.0]),
        ] {
            let mut generation = Generation::new(&grown(), &[1], sampling).unwrap();
            let mut counts = [0_u32; 4];
            (0..4000).for_each(|_| counts[generation.choose(&logits).unwrap() as usize] += 1);
            for (count, expected) in counts.into_iter().zip(expected) {
                // Four deviations.
                let tolerance = 4.0 * (expected * (1.0 - expected) / 4000.0_f64).sqrt();
                assert!((f64::from(count) / 4000.0 - expected).abs() <= tolerance, "{sampling:?}: {counts:?}");
            }
        }
    }

    #[test]
    fn what_cannot_work_is_refused_by_name() {
        let sampling = Sampling { temperature: 1.0, top_k: None, seed: 1 };
        let refused = |model: &GraftedModel, prompt: &[u32], sampling| {
            let found = Generation::new(model, prompt, sampling).and_then(|mut generation| generation.step());
            found.unwrap_err().to_string()
        };
        let mlp = model(HostConfig::Mlp { inputs: 2, hidden: vec![], classes: 2 }, vec![]);
        assert!(
            refused(&mlp, &[1], sampling).contains("`host` is mlp, which takes no tokens: expected language_model")
        );
        assert_eq!(refused(&grown(), &[], sampling), "`prompt` is empty: expected one token or more");
        assert!(refused(&grown(), &[11], sampling).contains("expected tokens below 11, and one is 11"));
        for temperature in [-1.0, f64::NAN, f64::INFINITY] {
            let error = refused(&grown(), &[1], Sampling { temperature, ..sampling });
            assert_eq!(error, format!("`temperature` is {temperature}: expected a finite number from 0 on"));
        }
        let mut generation = Generation::new(&grown(), &[1], sampling).unwrap();
        let error = generation.choose(&[0.0, f32::NAN]).unwrap_err().to_string();
        assert_eq!(error, "`logits` is NaN for the token 1: expected finite numbers");
    }
}
