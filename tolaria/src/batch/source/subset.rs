//! Some samples of a source, where they are.

use std::sync::Arc;

use leyline::source::{SampleSpec, SamplesMut, Source, SourceError};

/// The samples of a source at these indices, in that order.
#[derive(Debug)]
pub(crate) struct Subset {
    of: Arc<dyn Source>,
    samples: Vec<u32>,
    lengths: Option<Vec<u32>>,
    weights: Option<Vec<f64>>,
}

impl Subset {
    /// The caller has checked the indices.
    pub(crate) fn new(source: Arc<dyn Source>, samples: Vec<u32>) -> Self {
        let lengths = source.lengths().map(|lengths| of(lengths, &samples));
        let weights = source.weights().map(|weights| of(weights, &samples));
        Self { of: source, samples, lengths, weights }
    }
}

/// The numbers of these samples.
pub(crate) fn of<T: Copy>(all: &[T], samples: &[u32]) -> Vec<T> {
    samples.iter().map(|sample| all[*sample as usize]).collect()
}

impl Source for Subset {
    fn len(&self) -> usize {
        self.samples.len()
    }

    fn spec(&self) -> SampleSpec {
        self.of.spec()
    }

    fn digest(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        hasher.update(self.of.digest().as_bytes());
        for sample in &self.samples {
            hasher.update(&sample.to_le_bytes());
        }
        hasher.finalize().to_string()
    }

    fn describe(&self) -> String {
        self.of.describe()
    }

    fn read(&self, samples: &[u32], into: &mut SamplesMut<'_>) -> Result<(), SourceError> {
        self.check(samples)?;
        self.of.read(&of(&self.samples, samples), into)
    }

    fn lengths(&self) -> Option<&[u32]> {
        self.lengths.as_deref()
    }

    fn weights(&self) -> Option<&[f64]> {
        self.weights.as_deref()
    }
}
