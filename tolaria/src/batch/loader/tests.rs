//! The loader against a source that can be told to fail, to panic and to be slow.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use leyline::clock::SystemClock;
use leyline::id::EpochIndex;
use leyline::source::{Field, SampleSpec, SamplesMut, Source};

use super::*;
use crate::batch::transform::{AugmentConfig, SampleRandom, Transform};
use crate::batch::{BatchConfig, Sampler, windows};
use crate::testing::values;

const NUM_SAMPLES: usize = 53;

#[derive(Debug, Default)]
struct Rows {
    /// Samples that cannot be read.
    lost: Option<u32>,
    /// Samples whose reading panics.
    deadly: Option<u32>,
    num_read: AtomicUsize,
}

impl Source for Rows {
    fn len(&self) -> usize {
        NUM_SAMPLES
    }

    fn spec(&self) -> SampleSpec {
        SampleSpec { inputs: Field::f32([1, 2, 2]), targets: Field::u32([]) }
    }

    fn digest(&self) -> String {
        "rows".to_owned()
    }

    fn read(&self, samples: &[u32], into: &mut SamplesMut<'_>) -> Result<(), SourceError> {
        self.num_read.fetch_add(samples.len(), Ordering::Relaxed);
        // Some windows are slower than those after them.
        std::thread::sleep(Duration::from_micros(u64::from(samples[0] % 3) * 300));
        assert!(self.deadly.is_none_or(|deadly| !samples.contains(&deadly)), "the disk is on fire");
        if let Some(lost) = self.lost.filter(|lost| samples.contains(lost)) {
            return Err(SourceError::corrupt("rows.bin", "it is shorter").of_sample(lost));
        }
        for (row, sample) in into.inputs.as_f32()?.chunks_exact_mut(4).zip(samples) {
            row.copy_from_slice(&[0.0, 1.0, 2.0, 3.0].map(|place| place + *sample as f32));
        }
        into.targets.as_u32()?.copy_from_slice(samples);
        Ok(())
    }
}

fn order(epoch: u64) -> Arc<EpochOrder> {
    let count = |n| NonZeroUsize::new(n).unwrap();
    let config = BatchConfig { batch_size: count(3), microbatches_per_step: count(2) };
    let samples = Sampler::new(4).permutation(EpochIndex(epoch), NUM_SAMPLES);
    Arc::new(EpochOrder { epoch: EpochIndex(epoch), samples, windows: windows(NUM_SAMPLES, &config) })
}

fn gatherer(source: &Arc<Rows>, transforms: Vec<Arc<dyn Transform>>) -> Arc<Gatherer> {
    let source: Arc<dyn Source> = Arc::<Rows>::clone(source);
    Arc::new(Gatherer::new(source, transforms, 11, None).unwrap())
}

fn loader(gatherer: &Arc<Gatherer>, workers: usize, prefetch: usize) -> Loader {
    with_clock(gatherer, workers, prefetch, Arc::new(SystemClock::new()))
}

fn with_clock(gatherer: &Arc<Gatherer>, workers: usize, prefetch: usize, clock: Arc<dyn Clock>) -> Loader {
    Loader::new(gatherer, LoaderConfig { workers, prefetch: NonZeroUsize::new(prefetch).unwrap() }, &clock).unwrap()
}

type Rowed = Vec<(Vec<f32>, Vec<f32>)>;

fn rowed(gatherer: &Gatherer, mut batches: Vec<HostBatch>) -> Rowed {
    let taken = batches.iter_mut().map(|batch| batch.take(gatherer.spec()).unwrap());
    taken.map(|b| (values(&b.inputs), values(&b.targets.to_dtype(candle_core::DType::F32).unwrap()))).collect()
}

/// All windows of some epochs, gathered without a worker.
fn alone(gatherer: &Gatherer, epochs: u64) -> Vec<Rowed> {
    let mut all = Vec::new();
    for order in (0..epochs).map(order) {
        for window in &order.windows {
            let mut batches = Vec::new();
            gatherer.gather(&order, window, &mut batches, &mut Progress::default()).unwrap();
            all.push(rowed(gatherer, batches));
        }
    }
    all
}

#[test]
fn every_number_of_workers_gives_the_windows_of_none_in_their_order() {
    let augment = AugmentConfig { crop: 1, flip: 0.5, noise: 0.1, picture: None };
    for transforms in [Vec::new(), augment.transforms()] {
        let gatherer = gatherer(&Arc::default(), transforms);
        let expected = alone(&gatherer, 2);
        assert_eq!(expected.len(), 18);
        for (workers, prefetch) in [(1, 1), (1, 4), (4, 1), (4, 3), (16, 2)] {
            let mut loader = loader(&gatherer, workers, prefetch);
            let mut found = Vec::new();
            for order in (0..2).map(order) {
                loader.begin(Arc::clone(&order), 0);
                for window in 0..order.windows.len() {
                    found.push(rowed(&gatherer, loader.fetch(window).unwrap()));
                }
            }
            assert!(found == expected, "{workers} workers, {prefetch} ahead");
        }
    }
}

/// Goes on by as much whenever it is looked at.
#[derive(Debug, Default)]
struct Ticking {
    now_ns: AtomicU64,
    tick_ns: AtomicU64,
}

impl Clock for Ticking {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.now_ns.fetch_add(self.tick_ns.load(Ordering::Relaxed), Ordering::Relaxed))
    }

    fn unix(&self) -> Duration {
        self.now()
    }
}

#[test]
fn a_step_gathers_its_own_while_that_takes_no_time_and_samples_stay_the_same() {
    let gatherer = gatherer(&Arc::default(), Vec::new());
    let expected = alone(&gatherer, 12);
    let clock = Arc::new(Ticking::default());
    let shared: Arc<dyn Clock> = Arc::<Ticking>::clone(&clock);
    // One worker: windows come in their order.
    let mut loader = with_clock(&gatherer, 1, 4, shared);
    let (mut found, mut ahead) = (Vec::new(), Vec::new());
    for epoch in 0..12 {
        let order = order(epoch);
        loader.begin(Arc::clone(&order), 0);
        for window in 0..order.windows.len() {
            // Gathering takes long in the third epoch, and no time before and after.
            let tick = if epoch == 2 { SHORT } else { Duration::ZERO };
            clock.tick_ns.store(u64::try_from(tick.as_nanos()).unwrap(), Ordering::Relaxed);
            found.push(rowed(&gatherer, loader.fetch(window).unwrap()));
            if window == 4 {
                ahead.push(loader.next - 1 - window);
            }
        }
    }
    assert!(found == expected);
    // What was asked for at the fourth window is there at the fifth. From the third epoch on it takes 32 short ones in a row, which
    // end with the fifth window of the seventh epoch.
    assert_eq!(ahead, [2, 0, 3, 3, 3, 3, 3, 0, 0, 0, 0, 0], "windows that were asked for ahead");
}

#[test]
fn an_epoch_can_begin_in_the_middle_and_break_off_anywhere() {
    let gatherer = gatherer(&Arc::default(), AugmentConfig { noise: 1.0, ..AugmentConfig::default() }.transforms());
    let expected = alone(&gatherer, 1);
    let mut loader = loader(&gatherer, 3, 2);
    for from in [0, 4, 8, 2] {
        loader.begin(order(0), from);
        for (window, expected) in expected.iter().enumerate().skip(from).take(2) {
            let batches = loader.fetch(window).unwrap();
            assert!(rowed(&gatherer, batches) == *expected, "window {window} of an epoch begun at {from}");
        }
    }
}

#[test]
fn no_more_windows_are_read_ahead_than_were_allowed() {
    let source: Arc<Rows> = Arc::default();
    let mut loader = loader(&gatherer(&source, Vec::new()), 2, 2);
    loader.begin(order(0), 0);
    drop(loader.fetch(0).unwrap());
    // Nobody asks for more; what is under way ends.
    while loader.num_under_way > 0 {
        loader.receive().unwrap();
    }
    assert_eq!(source.num_read.load(Ordering::Relaxed), 4 * 6);
}

#[test]
fn buffers_come_back_and_hold_other_samples_then() {
    let gatherer = gatherer(&Arc::default(), Vec::new());
    let expected = alone(&gatherer, 1);
    let mut loader = loader(&gatherer, 1, 1);
    loader.begin(order(0), 0);
    for (window, expected) in expected.iter().enumerate() {
        let batches = loader.fetch(window).unwrap();
        let inputs = |batch: &HostBatch| match batch.slices().0 {
            esper_graph::HostSlice::F32(values) => values.to_vec(),
            _ => unreachable!("inputs are f32"),
        };
        let found: Vec<Vec<f32>> = batches.iter().map(inputs).collect();
        assert!(found.iter().eq(expected.iter().map(|(inputs, _)| inputs)), "window {window}");
        loader.recycle(batches);
        assert_eq!(loader.idle.len(), 1);
    }
}

/// The error of the first epoch, after how many windows.
fn failure(source: Rows, transforms: Vec<Arc<dyn Transform>>, workers: usize) -> (usize, SourceError) {
    let source = Arc::new(source);
    let gatherer = gatherer(&source, transforms);
    let mut loader = loader(&gatherer, workers, 2);
    loader.begin(order(0), 0);
    let failed = (0..9).find_map(|window| loader.fetch(window).err().map(|error| (window, error))).unwrap();
    drop((loader, gatherer));
    assert_eq!(Arc::strong_count(&source), 1, "a worker outlives its loader");
    failed
}

/// A transform that panics at a sample.
#[derive(Debug)]
struct Deadly(u32);

impl Transform for Deadly {
    fn describe(&self) -> String {
        "deadly".to_owned()
    }

    fn apply(&self, sample: &mut SamplesMut<'_>, _: &SampleSpec, _: &mut SampleRandom) -> Result<(), SourceError> {
        assert_ne!(sample.targets.as_u32()?[0], self.0, "no such color");
        Ok(())
    }
}

#[test]
fn a_read_that_fails_and_a_worker_that_panics_are_errors_of_their_window_with_the_sample() {
    let samples = &order(0).samples;
    let (lost, its_batch) = (samples[20], &samples[18..21]);
    for workers in [1, 4] {
        let (window, error) = failure(Rows { lost: Some(lost), ..Rows::default() }, Vec::new(), workers);
        assert_eq!((window, error.kind, error.sample), (3, ErrorKind::Corrupt, Some(lost)));
        assert_eq!(error.to_string(), format!("sample {lost} of rows.bin: it is shorter"));

        let (window, error) = failure(Rows { deadly: Some(lost), ..Rows::default() }, Vec::new(), workers);
        assert_eq!((window, error.kind), (3, ErrorKind::Other));
        let list = its_batch.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let text = format!("the loader panicked while it read the samples {list}: the disk is on fire");
        assert!(error.to_string().contains(&text), "{error}");

        let (window, error) = failure(Rows::default(), vec![Arc::new(Deadly(lost))], workers);
        assert_eq!((window, error.kind, error.sample), (3, ErrorKind::Other, Some(lost)));
        assert!(error.to_string().contains("no such color"), "{error}");
    }
}

#[test]
fn a_loader_that_is_dropped_in_the_middle_leaves_no_thread_behind() {
    let source: Arc<Rows> = Arc::default();
    for fetched in 0..4 {
        let gatherer = gatherer(&source, Vec::new());
        let mut loader = loader(&gatherer, 4, 2);
        loader.begin(order(0), 0);
        (0..fetched).for_each(|window| drop(loader.fetch(window).unwrap()));
        drop((loader, gatherer));
        assert_eq!(Arc::strong_count(&source), 1, "after {fetched} windows");
    }
}

#[test]
fn sizes_out_of_range_are_named() {
    let config: LoaderConfig = serde_json::from_str(r#"{"workers": 257, "prefetch": 65}"#).unwrap();
    let keys: Vec<String> = config.validate().into_iter().map(|(key, accepted)| format!("{key}: {accepted}")).collect();
    assert_eq!(keys, ["workers: 0 to 256", "prefetch: 1 to 64"]);
    assert_eq!((LoaderConfig::default().workers, LoaderConfig::default().validate()), (0, vec![]));
}
