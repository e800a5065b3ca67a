//! A store that takes its time: normally distributed, from a seed, the same for a blueprint in every run.

use std::f64::consts::TAU;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use esper_weights::{Artifact, CancelToken, HostTensor, KernelStore, StoreError};
use leyline::clock::Clock;
use leyline::id::BlueprintId;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// How long fetches take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Latency {
    pub(super) mean_ms: f64,
    pub(super) deviation_ms: f64,
    pub(super) seed: u64,
}

/// What the store has under one id.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) artifact: Artifact,
    sleep: Duration,
    /// Its last fetch, by the store's own measurement.
    fetched: Mutex<Option<Fetched>>,
}

/// One fetch.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fetched {
    pub(super) began: Duration,
    pub(super) took: Duration,
}

/// Sleeps, hashes and hands out; fails for good once so many fetches have begun.
#[derive(Debug)]
pub(super) struct SimulatedStore {
    clock: Arc<dyn Clock>,
    entries: Vec<Entry>,
    begun: AtomicU64,
    killed_after: u64,
}

impl SimulatedStore {
    /// A store of `num_entries` blueprints.
    pub(super) fn new(
        num_entries: usize,
        latency: Latency,
        killed_after: u64,
        clock: &Arc<dyn Clock>,
    ) -> Result<Self, StoreError> {
        let mut rng = ChaCha8Rng::seed_from_u64(latency.seed);
        let entry = |index: usize| {
            // As many values as a small seed has; every artifact differs.
            let values = (0..1_024_usize).map(|i| ((i * 7 + index * 13) % 1_009) as f32 / 1_009.0).collect();
            let tensor = HostTensor { name: "weight".to_owned(), shape: vec![32, 32], values };
            let ms = latency.mean_ms + latency.deviation_ms * standard_normal(&mut rng);
            Ok(Entry {
                artifact: Artifact::from_tensors(blueprint(index), &[tensor])?,
                sleep: Duration::from_secs_f64(ms.max(0.0) / 1e3),
                fetched: Mutex::new(None),
            })
        };
        let entries = (0..num_entries).map(entry).collect::<Result<_, StoreError>>()?;
        Ok(Self { clock: Arc::clone(clock), entries, begun: AtomicU64::new(0), killed_after })
    }

    /// What it has, by index.
    pub(super) fn entries(&self) -> &[Entry] {
        &self.entries
    }
}

impl Entry {
    /// Its last fetch; absent before one succeeded.
    pub(super) fn fetched(&self) -> Option<Fetched> {
        *self.fetched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl KernelStore for SimulatedStore {
    fn fetch(&self, blueprint: &BlueprintId, cancel: &CancelToken) -> Result<Artifact, StoreError> {
        if self.begun.fetch_add(1, Ordering::SeqCst) >= self.killed_after {
            return Err(std::io::Error::other("the store was killed").into());
        }
        let began = self.clock.now();
        let entry = self.entries.iter().find(|entry| entry.artifact.blueprint() == blueprint);
        let entry = entry.ok_or(StoreError::Missing)?;
        if cancel.wait(entry.sleep) {
            return Err(StoreError::Cancelled);
        }
        let (bytes, sha256) = (Arc::clone(entry.artifact.bytes()), entry.artifact.sha256());
        let artifact = Artifact::verified(blueprint.clone(), bytes, sha256, cancel)?;
        let fetched = Fetched { began, took: self.clock.now() - began };
        *entry.fetched.lock().unwrap_or_else(PoisonError::into_inner) = Some(fetched);
        Ok(artifact)
    }
}

/// Id of the n-th blueprint.
pub(super) fn blueprint(index: usize) -> BlueprintId {
    BlueprintId::new(format!("simulated-{index}")).expect("letters, digits and a dash")
}

/// A number of mean 0 and deviation 1.
///
/// # Source
/// Box and Muller, "A note on the generation of random normal deviates", 1958.
fn standard_normal(rng: &mut impl Rng) -> f64 {
    let mut unit = || (f64::from(rng.next_u32()) + 0.5) / (f64::from(u32::MAX) + 1.0);
    (-2.0 * unit().ln()).sqrt() * (TAU * unit()).cos()
}

#[cfg(test)]
mod tests {
    use leyline::clock::SystemClock;

    use super::*;

    #[test]
    fn sleeps_are_normally_distributed_and_follow_from_the_seed() {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let sleeps = |seed| -> Vec<f64> {
            let latency = Latency { mean_ms: 45.0, deviation_ms: 8.0, seed };
            let store = SimulatedStore::new(400, latency, u64::MAX, &clock).unwrap();
            store.entries().iter().map(|entry| entry.sleep.as_secs_f64() * 1e3).collect()
        };
        let found = sleeps(1);
        let mean = found.iter().sum::<f64>() / 400.0;
        let deviation = (found.iter().map(|ms| (ms - mean).powi(2)).sum::<f64>() / 399.0).sqrt();
        // Three standard errors of 400 draws.
        assert!((mean - 45.0).abs() < 1.2 && (deviation - 8.0).abs() < 0.85, "{mean} {deviation}");
        assert_eq!(found, sleeps(1));
        assert_ne!(found, sleeps(2));
    }
}
