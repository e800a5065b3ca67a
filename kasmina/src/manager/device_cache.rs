//! Fetched weights that are on the device already, for the next seed of the same blueprint.

use std::sync::Arc;

use candle_core::Tensor;
use esper_weights::Artifact;
use leyline::id::BlueprintId;
use leyline::telemetry::{Counter, Gauge, Recorder};

use crate::telemetry::metrics;

/// Tensors by name, as a module has them.
pub(super) type Weights = Arc<Vec<(String, Tensor)>>;

/// The weights used last, up to a number of artifacts.
#[derive(Debug)]
pub(super) struct DeviceCache {
    capacity: usize,
    /// Most recently used last.
    entries: Vec<Entry>,
    num_hits: u64,
    num_attached: u64,
    size: Gauge,
    hit_rate: Gauge,
    evictions: Counter,
}

#[derive(Debug)]
struct Entry {
    blueprint: BlueprintId,
    sha256: [u8; 32],
    weights: Weights,
}

impl DeviceCache {
    #[expect(clippy::cast_precision_loss, reason = "a capacity is a small count")]
    pub(super) fn new(capacity: usize, recorder: &dyn Recorder) -> Self {
        recorder.gauge(&metrics::CACHE_GPU_CAPACITY, &[]).set(capacity as f64);
        let size = recorder.gauge(&metrics::CACHE_GPU_SIZE, &[]);
        size.set(0.0);
        Self {
            capacity,
            entries: Vec::new(),
            num_hits: 0,
            num_attached: 0,
            size,
            hit_rate: recorder.gauge(&metrics::CACHE_GPU_HIT_RATE, &[]),
            evictions: recorder.counter(&metrics::CACHE_GPU_EVICTIONS, &[]),
        }
    }

    /// The weights of this artifact, if they are kept. Whoever uses them copies them, so that two seeds never share a
    /// tensor.
    pub(super) fn get(&mut self, artifact: &Artifact) -> Option<Weights> {
        let is_it = |entry: &Entry| entry.blueprint == *artifact.blueprint() && entry.sha256 == artifact.sha256();
        let index = self.entries.iter().position(is_it)?;
        let entry = self.entries.remove(index);
        let weights = Arc::clone(&entry.weights);
        self.entries.push(entry);
        Some(weights)
    }

    /// Weights were attached: those from here, or others. What was found and did not fit is neither.
    pub(super) fn count(&mut self, is_hit: bool) {
        self.num_attached += 1;
        self.num_hits += u64::from(is_hit);
        self.report();
    }

    /// Whether it is worth copying weights for it.
    pub(super) fn keeps_any(&self) -> bool {
        self.capacity > 0
    }

    /// Keeps the weights of this artifact, and lets go of those used longest ago where there are too many.
    pub(super) fn insert(&mut self, artifact: &Artifact, weights: Vec<(String, Tensor)>) {
        let (blueprint, sha256) = (artifact.blueprint().clone(), artifact.sha256());
        self.entries.retain(|entry| entry.blueprint != blueprint || entry.sha256 != sha256);
        self.entries.push(Entry { blueprint, sha256, weights: Arc::new(weights) });
        let num_over = self.entries.len().saturating_sub(self.capacity);
        self.entries.drain(..num_over);
        // What is never kept is not dropped either.
        self.evictions.add(if self.keeps_any() { num_over as u64 } else { 0 });
        self.report();
    }

    /// Lets go of all of them; how many there were.
    pub(super) fn clear(&mut self) -> usize {
        let num = std::mem::take(&mut self.entries).len();
        self.report();
        num
    }

    #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
    fn report(&self) {
        self.size.set(self.entries.len() as f64);
        let rate = self.num_hits as f64 / self.num_attached.max(1) as f64;
        self.hit_rate.set_or_clear((self.num_attached > 0).then_some(rate));
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};
    use esper_weights::HostTensor;
    use leyline::telemetry::NullRecorder;
    use leyline_testkit::recording_recorder::RecordingRecorder;

    use super::*;

    fn artifact(name: &str, value: f32) -> Artifact {
        let tensor = HostTensor { name: "w".into(), shape: vec![1], values: vec![value] };
        Artifact::from_tensors(BlueprintId::new(name).unwrap(), &[tensor]).unwrap()
    }

    fn weights() -> Vec<(String, Tensor)> {
        vec![("w".to_owned(), Tensor::zeros(1, DType::F32, &Device::Cpu).unwrap())]
    }

    #[test]
    fn what_was_used_longest_ago_goes_first_and_other_bytes_are_another_entry() {
        let mut cache = DeviceCache::new(2, &NullRecorder);
        let [a, b, other] = [artifact("a", 1.0), artifact("b", 2.0), artifact("a", 3.0)];
        cache.insert(&a, weights());
        cache.insert(&b, weights());
        assert!(cache.get(&a).is_some() && cache.get(&other).is_none());
        cache.insert(&other, weights());
        assert!(cache.get(&b).is_none(), "it was used longest ago");
        assert!(cache.get(&a).is_some() && cache.get(&other).is_some());
        assert_eq!(cache.clear(), 2);
    }

    #[test]
    fn the_hit_rate_is_that_of_attached_weights_and_absent_before_the_first() {
        let recorder = RecordingRecorder::new();
        let mut cache = DeviceCache::new(1, &recorder);
        let rate = || recorder.gauge_value("kasmina.cache.gpu_hit_rate", &[]);
        cache.insert(&artifact("a", 1.0), weights());
        assert!(cache.get(&artifact("a", 1.0)).is_some());
        assert_eq!(rate(), None, "a look attaches nothing");
        for (is_hit, expected) in [(false, 0.0), (true, 0.5), (false, 1.0 / 3.0)] {
            cache.count(is_hit);
            assert_eq!(rate(), Some(expected));
        }
    }

    #[test]
    fn a_capacity_of_zero_keeps_nothing() {
        let mut cache = DeviceCache::new(0, &NullRecorder);
        cache.insert(&artifact("a", 1.0), weights());
        assert_eq!((cache.get(&artifact("a", 1.0)).is_none(), cache.clear()), (true, 0));
    }
}
