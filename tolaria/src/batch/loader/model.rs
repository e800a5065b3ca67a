//! The loader and its workers, in the orders that a model checker tries.
//!
//! Every run takes the same schedules; a failure prints one that `shuttle::replay` repeats.

use std::sync::atomic::{AtomicUsize, Ordering};

use leyline::clock::SystemClock;
use leyline::id::EpochIndex;
use leyline::source::{Field, SampleSpec, SamplesMut, Source};
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, Runner, thread};

use super::*;
use crate::batch::{BatchConfig, windows};

const SEED: u64 = 16;
const NUM_SCHEDULES: usize = 4_000;
/// An even number: no sample has the same window in every epoch.
const NUM_SAMPLES: u32 = 4;
const LOST: u32 = 1;

/// Samples that are their numbers.
#[derive(Debug, Default)]
struct Numbers {
    num_reads: AtomicUsize,
}

impl Source for Numbers {
    fn len(&self) -> usize {
        NUM_SAMPLES as usize
    }

    fn spec(&self) -> SampleSpec {
        SampleSpec { inputs: Field::f32([1]), targets: Field::u32([]) }
    }

    fn digest(&self) -> String {
        "numbers".to_owned()
    }

    fn read(&self, samples: &[u32], into: &mut SamplesMut<'_>) -> Result<(), SourceError> {
        thread::yield_now();
        self.num_reads.fetch_add(1, Ordering::Relaxed);
        into.targets.as_u32()?.copy_from_slice(samples);
        if samples.contains(&LOST) { Err(SourceError::corrupt("numbers", "lost").of_sample(LOST)) } else { Ok(()) }
    }
}

/// A sample a window, and so a read; forwards, or backwards in odd epochs.
fn order(epoch: u64) -> Arc<EpochOrder> {
    let config = BatchConfig { batch_size: NonZeroUsize::MIN, microbatches_per_step: NonZeroUsize::MIN };
    let mut samples: Vec<u32> = (0..NUM_SAMPLES).collect();
    if epoch % 2 == 1 {
        samples.reverse();
    }
    Arc::new(EpochOrder { epoch: EpochIndex(epoch), windows: windows(samples.len(), &config), samples })
}

/// Runs `model` under random schedules, and under schedules of few but unlucky preemptions: with workers to the end, and with steps
/// that gather their own from the fifth window on.
fn explore(model: impl Fn(&mut Loader, &Numbers) + Send + Sync + Clone + 'static) {
    for short in [Duration::ZERO, Duration::MAX] {
        explore_with(short, model.clone());
    }
}

fn explore_with(short: Duration, model: impl Fn(&mut Loader, &Numbers) + Send + Sync + Clone + 'static) {
    let body = move || {
        let numbers = Arc::new(Numbers::default());
        let source: Arc<dyn Source> = Arc::<Numbers>::clone(&numbers);
        let gatherer = Arc::new(Gatherer::new(source, Vec::new(), 0, None).unwrap());
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let config = LoaderConfig { workers: 2, prefetch: NonZeroUsize::MIN };
        let mut loader = Loader::new(&gatherer, config, &clock).unwrap();
        // Whatever the clock of this machine says: no window is gathered in no time, or all are.
        loader.short = short;
        model(&mut loader, &numbers);
        // Waits for the workers, which is a deadlock if one is not sent home.
        drop((loader, gatherer));
        assert_eq!(Arc::strong_count(&numbers), 1, "a worker outlives its loader");
    };
    Runner::new(RandomScheduler::new_from_seed(SEED, NUM_SCHEDULES), Config::default()).run(body.clone());
    Runner::new(PctScheduler::new_from_seed(SEED, 3, NUM_SCHEDULES), Config::default()).run(body);
}

fn fetch(loader: &mut Loader, window: usize) {
    let sample = loader.order.samples[window];
    match loader.fetch(window) {
        Ok(batches) => {
            assert!(sample != LOST && batches.len() == 1);
            let targets = batches[0].slices().1;
            assert!(matches!(targets, esper_graph::HostSlice::U32(found) if found[..] == [sample]), "window {window}");
            loader.recycle(batches);
        }
        Err(error) => assert_eq!((sample, error.sample), (LOST, Some(LOST)), "window {window}: {error}"),
    }
}

#[test]
fn whatever_the_order_every_window_has_its_samples_or_its_error_and_no_more_are_read_than_allowed() {
    explore(|loader, numbers| {
        for epoch in 0..2 {
            let order = order(epoch);
            let before = numbers.num_reads.load(Ordering::Relaxed);
            loader.begin(Arc::clone(&order), 0);
            for window in 0..order.windows.len() {
                fetch(loader, window);
                let num_ahead = numbers.num_reads.load(Ordering::Relaxed) - before - window;
                assert!(num_ahead <= loader.ahead, "{num_ahead} windows ahead");
            }
        }
    });
}

#[test]
fn whatever_the_order_an_epoch_breaks_off_and_nothing_of_it_comes_later() {
    for fetched in 0..3 {
        explore(move |loader, _| {
            loader.begin(order(0), 1);
            (1..).take(fetched).for_each(|window| fetch(loader, window));
            loader.begin(order(1), 0);
            (0..3).for_each(|window| fetch(loader, window));
        });
    }
}
