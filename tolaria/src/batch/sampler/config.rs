//! The section of the configuration, and the sampler that it comes to for some data.

use std::num::NonZeroUsize;

use leyline::id::EpochIndex;
use leyline::source::Source;
use serde::{Deserialize, Serialize};

use super::weighted::Weighted;
use super::{Sampler, bucketed};
use crate::batch::BatchConfig;

/// Which samples an epoch has, and in which order.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum SamplerConfig {
    /// Every sample once, all orders equally likely.
    #[default]
    Permutation,
    /// As many draws with replacement as there are samples, by weight.
    Weighted {
        /// Where weights come from.
        #[serde(default)]
        by: WeighedBy,
        /// Weight of each sample by its class, with `by = "class"`; absent makes all classes equally likely.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        class_weights: Option<Vec<f64>>,
    },
    /// Every sample once, those of nearly the same length together.
    Bucketed {
        /// Windows that are sorted by length at a time.
        pool: NonZeroUsize,
    },
}

/// Where the weights of samples come from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WeighedBy {
    /// The class that a sample has as its target.
    #[default]
    Class,
    /// What the source says, [`Source::weights`].
    Source,
}

impl SamplerConfig {
    /// Whether nothing is set: what is not written down, so that runs of earlier builds can be resumed.
    pub(crate) fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Every setting that cannot work, as (key, what is accepted).
    #[must_use]
    pub fn validate(&self) -> Vec<(String, String)> {
        let Self::Weighted { by, class_weights: Some(weights) } = self else { return Vec::new() };
        let mut issues = Vec::new();
        if *by == WeighedBy::Source {
            issues.push(("class_weights".to_owned(), "it to be absent where `by` is `source`".to_owned()));
        }
        if let Err(accepted) = Weighted::new(weights.iter().copied()) {
            issues.push(("class_weights".to_owned(), accepted.replace("sample", "class")));
        }
        issues
    }
}

/// The orders of a run.
#[derive(Debug, Clone)]
pub(crate) struct EpochSampler {
    seed: u64,
    kind: Kind,
}

#[derive(Debug, Clone)]
enum Kind {
    Permutation,
    Weighted(Weighted),
    Bucketed { lengths: Vec<u32>, window: usize, pool: usize },
}

impl EpochSampler {
    /// The sampler for this data. `classes` reads the class of each sample, where classes are asked for.
    ///
    /// # Errors
    /// What is expected of the data; those of `classes`.
    pub(crate) fn new<E: From<String>>(
        config: &SamplerConfig,
        seed: u64,
        batch: &BatchConfig,
        source: &dyn Source,
        classes: impl FnOnce() -> Result<Vec<u32>, E>,
    ) -> Result<Self, E> {
        let one_each = |what: &str, found: usize| {
            let expected = source.len();
            let message = || format!("{expected} {what}, one per sample, found {found}");
            if found == expected { Ok(()) } else { Err(E::from(message())) }
        };
        let kind = match config {
            SamplerConfig::Permutation => Kind::Permutation,
            SamplerConfig::Weighted { by: WeighedBy::Source, .. } => {
                let weights = source.weights().ok_or_else(|| "data that say the weight of each sample".to_owned())?;
                one_each("weights", weights.len())?;
                Kind::Weighted(Weighted::new(weights.iter().copied())?)
            }
            SamplerConfig::Weighted { by: WeighedBy::Class, class_weights: None } => {
                Kind::Weighted(Weighted::inverse_frequency(&classes()?)?)
            }
            SamplerConfig::Weighted { by: WeighedBy::Class, class_weights: Some(weights) } => {
                let classes = classes()?;
                if let Some(class) = classes.iter().find(|class| **class as usize >= weights.len()) {
                    return Err(E::from(format!("a weight for each class, found {} and class {class}", weights.len())));
                }
                Kind::Weighted(Weighted::new(classes.iter().map(|class| weights[*class as usize]))?)
            }
            SamplerConfig::Bucketed { pool } => {
                let lengths = source.lengths().ok_or_else(|| "data that say the length of each sample".to_owned())?;
                one_each("lengths", lengths.len())?;
                Kind::Bucketed { lengths: lengths.to_vec(), window: batch.samples_per_step(), pool: pool.get() }
            }
        };
        Ok(Self { seed, kind })
    }

    /// The samples of an epoch of `num_samples`.
    pub(crate) fn order(&self, epoch: EpochIndex, num_samples: usize) -> Vec<u32> {
        match &self.kind {
            Kind::Permutation => Sampler::new(self.seed).permutation(epoch, num_samples),
            Kind::Weighted(weighted) => weighted.draw(self.seed, epoch),
            Kind::Bucketed { lengths, window, pool } => bucketed::order(self.seed, epoch, lengths, *window, *pool),
        }
    }

    /// What a run that is resumed must have in common; empty for the permutation, which follows from the rest.
    pub(crate) fn describe(&self) -> String {
        match &self.kind {
            Kind::Permutation => String::new(),
            Kind::Weighted(weighted) => format!("weighted {}", weighted.digest()),
            Kind::Bucketed { lengths, window, pool } => {
                let bytes: Vec<u8> = lengths.iter().flat_map(|length| length.to_le_bytes()).collect();
                // `bucketed` was an order that had the longest samples at its end.
                format!("bucketed_by_pools {window} {pool} {}", blake3::hash(&bytes))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use leyline::source::{Field, SampleSpec, SamplesMut, SourceError};

    use super::*;

    #[derive(Debug, Default)]
    struct Said {
        lengths: Option<Vec<u32>>,
        weights: Option<Vec<f64>>,
    }

    impl Source for Said {
        fn len(&self) -> usize {
            4
        }

        fn spec(&self) -> SampleSpec {
            SampleSpec { inputs: Field::f32([]), targets: Field::u32([]) }
        }

        fn digest(&self) -> String {
            "said".to_owned()
        }

        fn read(&self, _: &[u32], _: &mut SamplesMut<'_>) -> Result<(), SourceError> {
            Err(SourceError::rejected("nothing is read here"))
        }

        fn lengths(&self) -> Option<&[u32]> {
            self.lengths.as_deref()
        }

        fn weights(&self) -> Option<&[f64]> {
            self.weights.as_deref()
        }
    }

    fn made(config: &str, said: &Said) -> Result<EpochSampler, String> {
        let config: SamplerConfig = serde_json::from_str(config).unwrap();
        let batch = BatchConfig { batch_size: NonZeroUsize::MIN, microbatches_per_step: NonZeroUsize::MIN };
        EpochSampler::new(&config, 1, &batch, said, || Ok(vec![0, 0, 2, 1]))
    }

    #[track_caller]
    fn refused(config: &str, text: &str) {
        let error = made(config, &Said::default()).unwrap_err();
        assert!(error.contains(text), "{error}");
    }

    #[test]
    fn what_the_data_do_not_say_is_named() {
        refused(r#"{"kind": "weighted", "by": "source"}"#, "the weight of each sample");
        refused(r#"{"kind": "weighted", "class_weights": [1.0, 2.0]}"#, "a weight for each class, found 2 and class 2");
        refused(r#"{"kind": "bucketed", "pool": 4}"#, "the length of each sample");
    }

    #[test]
    fn what_is_said_of_samples_is_said_of_each() {
        let said = Said { lengths: Some(vec![1; 3]), weights: Some(vec![1.0; 5]) };
        for (config, expected) in [
            (r#"{"kind": "weighted", "by": "source"}"#, "4 weights, one per sample, found 5"),
            (r#"{"kind": "bucketed", "pool": 4}"#, "4 lengths, one per sample, found 3"),
        ] {
            assert_eq!(made(config, &said).unwrap_err(), expected);
        }
    }

    #[test]
    fn settings_that_contradict_each_other_are_named() {
        let issues = |text| serde_json::from_str::<SamplerConfig>(text).unwrap().validate();
        assert_eq!(issues(r#"{"kind": "weighted", "by": "source", "class_weights": [1.0]}"#)[0].0, "class_weights");
        let [(_, accepted)] = &issues(r#"{"kind": "weighted", "class_weights": [1.0, -2.0]}"#)[..] else { panic!() };
        assert!(accepted.contains("found -2 for class 1"), "{accepted}");
        assert!(issues(r#"{"kind": "weighted"}"#).is_empty() && issues(r#"{"kind": "permutation"}"#).is_empty());
    }

    #[test]
    fn each_kind_gives_its_orders_and_tells_itself_from_others() {
        let said = Said { lengths: Some(vec![4, 1, 3, 2]), weights: Some(vec![0.0, 0.0, 1.0, 0.0]) };
        let of = |config: &str| made(config, &said).unwrap();
        let weighted = of(r#"{"kind": "weighted", "by": "source"}"#);
        assert_eq!(weighted.order(EpochIndex(0), 4), [2; 4]);
        let only_first = of(r#"{"kind": "weighted", "class_weights": [0.0, 1.0, 0.0]}"#);
        assert_eq!(only_first.order(EpochIndex(0), 4), [3; 4]);
        let plain = of(r#"{"kind": "permutation"}"#);
        assert_eq!(plain.order(EpochIndex(3), 4), Sampler::new(1).permutation(EpochIndex(3), 4));
        let bucketed = of(r#"{"kind": "bucketed", "pool": 2}"#);
        let told = [&plain, &weighted, &only_first, &bucketed].map(EpochSampler::describe);
        for (index, text) in told.iter().enumerate() {
            assert!(!told[..index].contains(text), "{told:?}");
        }
    }
}
