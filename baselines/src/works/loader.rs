//! What feeds a step: workers against none where transforms or reads are what takes the time, and a file of tokens that is larger than
//! memory should be.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::num::{NonZeroU64, NonZeroUsize};
use std::sync::Arc;
use std::time::Duration;

use candle_core::{Device, Tensor};
use clap::Args;
use esper_telemetry::sink::MemorySink;
use esper_telemetry::{Catalogue, QueueConfig, TelemetryRecorder};
use leyline::clock::Clock;
use leyline::error::BoxError;
use leyline::id::{EpochIndex, RunId};
use leyline::region::Eager;
use leyline::source::{SampleSpec, SamplesMut, Source, SourceError};
use tolaria::batch::source::{Element, TokenLayout, TokenSource};
use tolaria::batch::transform::AugmentConfig;
use tolaria::batch::{Dataset, LoaderConfig, Sampler};
use tolaria::plain::{NoPolicy, NoSeeds, PlainModel};
use tolaria::task::{Classification, NextToken};
use tolaria::trainer::report::EpochReport;
use tolaria::trainer::{NullObserver, Observer, Parts, TrainConfig, Trainer};

use crate::error::Error;
use crate::models::Draw;
use crate::samples::{Samples, ms};
use crate::trainer::{all_of, count, linear, plain_sgd};
use crate::work::{Flags, Needs, Outcome, Setting, Work, settings};

pub(super) const WORK: Work = Work::with_flags::<LoaderFlags>(
    "loader",
    "What feeds a step on the CPU: workers, transforms, samplers, files of arrays and of tokens",
    Needs::Nothing,
);

/// Channels, height and width of a picture whose transforms take longer than its step.
const PICTURE: [usize; 3] = [3, 32, 32];
const NUM_PICTURES: usize = 512;
const NUM_CLASSES: usize = 10;
const PICTURE_EPOCHS: u64 = 12;
const WORKERS: [usize; 4] = [0, 1, 2, 4];
/// Samples of a slow source, of which each read takes as long as this.
const NUM_SLOW: usize = 512;
const LATENCY: Duration = Duration::from_millis(5);
const SLOW_EPOCHS: u64 = 12;
/// Tokens of a window, and windows that are read at once.
const WINDOW: usize = 1024;
const AT_ONCE: usize = 64;
const VOCABULARY: usize = 256;
/// Width of an embedding, optimizer steps, and windows of each.
const WIDTH: usize = 16;
const TOKEN_STEPS: u64 = 200;
const TOKEN_BATCH: usize = 4;
const NOTES: &str = "pictures: 512 pictures 3x32x32, cropped, mirrored and noised anew in every epoch, 3072-64-10, batch 32; \
    .wN.epoch: wall time of an epoch with N workers; .wN.wait: time that its steps waited for samples; .wN.overlap: part of the \
    gathering for which none waited; .wN.speed_up: epoch without workers over this. slow: 512 samples of 16 numbers, batch 32, each read of which waits 5 ms. tokens: an epoch's \
    windows of 1024 of a file of u16 in the order of the permutation, by one thread; .train.step: then optimizer steps of an embedding and a linear layer, \
    256-16-256, on 4 windows each, in that order. .resident: the most memory that the process ever had until then, pages of files that it has mapped \
    included (VmHWM); .anonymous, .mapped: of its own and of mapped files at that moment (RssAnon, RssFile). Files of samples are read, not mapped: their \
    pages are the system's, which takes them back when it needs them, and in none of these figures. First epochs are not counted";

#[derive(Debug, Args)]
struct LoaderFlags {
    /// Size of the file of tokens, which is written to a temporary folder first.
    #[arg(long, value_name = "MIB", default_value_t = 64)]
    token_file_mib: u32,
}

impl Flags for LoaderFlags {
    fn measure(&self, setting: &Setting) -> Result<Outcome, Error> {
        let clock = &setting.clock;
        let mut samples = Samples::default();
        tokens(self.token_file_mib, clock, &mut samples)?;
        pictures(clock, &mut samples)?;
        slow(clock, &mut samples)?;
        let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let config = settings([
            ("cores", cores.to_string()),
            ("threads", candle_core::utils::get_num_threads().to_string()),
            ("token_file_mib", self.token_file_mib.to_string()),
        ]);
        Ok(samples.into_result(WORK.name, WORK.name, NOTES, config, clock.as_ref()).into())
    }
}

fn pictures(clock: &Arc<dyn Clock>, samples: &mut Samples) -> Result<(), Error> {
    let num_inputs: usize = PICTURE.iter().product();
    let mut draw = Draw::new(3, &Device::Cpu);
    let [channels, height, width] = PICTURE;
    let inputs = draw.uniform((NUM_PICTURES, num_inputs), 1.0)?.reshape((NUM_PICTURES, channels, height, width))?;
    let classes: Vec<u32> = (0..10).cycle().take(NUM_PICTURES).collect();
    let data = Dataset::new(inputs, Tensor::from_vec(classes, NUM_PICTURES, &Device::Cpu)?)?;
    let augment = AugmentConfig { crop: 4, flip: 0.5, noise: 0.1, picture: None };
    let mut bits = Vec::new();
    for workers in WORKERS {
        let loader = LoaderConfig { workers, ..LoaderConfig::default() };
        let config = TrainConfig { loader, augment: augment.clone(), ..plain_sgd(32) };
        let mut draw = Draw::new(5, &Device::Cpu);
        let mut weight = |rows, columns| candle_core::Var::from_tensor(&draw.uniform((rows, columns), 0.02)?);
        let (first, second) = (weight(num_inputs, 64)?, weight(64, NUM_CLASSES)?);
        let named = vec![("first".to_owned(), first.clone()), ("second".to_owned(), second.clone())];
        let model =
            PlainModel::new(named, move |x: &Tensor| x.flatten_from(1)?.matmul(&first)?.relu()?.matmul(&second))?;
        let run = Run { config, data: data.clone(), num_classes: NUM_CLASSES, num_epochs: PICTURE_EPOCHS };
        let measured = run.measure(model, clock)?;
        measured.record(&format!("pictures.w{workers}"), samples);
        push_speed_up("pictures", workers, samples);
        bits.push(measured.last_loss);
    }
    if bits.windows(2).any(|pair| pair[0].to_bits() != pair[1].to_bits()) {
        return Err(Error::BrokenPromises { table: format!("the loss depends on the number of workers: {bits:?}") });
    }
    Ok(())
}

/// Rows that come from far away: each read waits before it answers, and takes no processor while it does.
#[derive(Debug)]
struct Slow(Dataset);

impl Source for Slow {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn spec(&self) -> SampleSpec {
        self.0.spec().clone()
    }

    fn digest(&self) -> String {
        "slow".to_owned()
    }

    fn read(&self, samples: &[u32], into: &mut SamplesMut<'_>) -> Result<(), SourceError> {
        std::thread::sleep(LATENCY);
        self.0.read(samples, into)
    }
}

fn slow(clock: &Arc<dyn Clock>, samples: &mut Samples) -> Result<(), Error> {
    let inputs = Draw::new(3, &Device::Cpu).uniform((NUM_SLOW, 16), 1.0)?;
    let classes: Vec<u32> = (0..4).cycle().take(NUM_SLOW).collect();
    let memory = Dataset::new(inputs, Tensor::from_vec(classes, NUM_SLOW, &Device::Cpu)?)?;
    let data = Dataset::from_source(Arc::new(Slow(memory)))?;
    for workers in WORKERS {
        let config = TrainConfig { loader: LoaderConfig { workers, ..LoaderConfig::default() }, ..plain_sgd(32) };
        let run = Run { config, data: data.clone(), num_classes: 4, num_epochs: SLOW_EPOCHS };
        run.measure(linear()?, clock)?.record(&format!("slow.w{workers}"), samples);
        push_speed_up("slow", workers, samples);
    }
    Ok(())
}

/// The epoch without workers over that with `workers`.
fn push_speed_up(part: &str, workers: usize, samples: &mut Samples) {
    let epoch = |workers: usize| samples.median(&format!("{part}.w{workers}.epoch")).unwrap_or(f64::NAN);
    let speed_up = epoch(0) / epoch(workers);
    samples.push(format!("{part}.w{workers}.speed_up"), "ratio", speed_up);
}

/// Every window of a file of tokens once, in a random order.
fn tokens(mib: u32, clock: &Arc<dyn Clock>, samples: &mut Samples) -> Result<(), Error> {
    let mut file = tempfile::NamedTempFile::new().map_err(failed)?;
    for block in 0..mib as usize {
        let start = block << 19;
        let token = |index: usize| u16::try_from((index * 31 + index / 1009) % VOCABULARY).unwrap_or_default();
        let bytes: Vec<u8> = (start..start + (1 << 19)).flat_map(|index| token(index).to_le_bytes()).collect();
        file.write_all(&bytes).map_err(failed)?;
    }
    let layout = TokenLayout { element: Element::U16, window: count(WINDOW), vocabulary: count(VOCABULARY) };
    let started = clock.now();
    let source = TokenSource::open(file.path(), layout).map_err(tolaria::Error::from)?;
    samples.push("tokens.open", "ms", ms(clock.now() - started));
    let order = Sampler::new(1).permutation(EpochIndex(0), source.len());
    let (mut inputs, mut targets) = (vec![0_u32; AT_ONCE * WINDOW], vec![0_u32; AT_ONCE * WINDOW]);
    let started = clock.now();
    for windows in order.chunks(AT_ONCE) {
        let len = windows.len() * WINDOW;
        source
            .read(windows, &mut SamplesMut::new(&mut inputs[..len], &mut targets[..len]))
            .map_err(tolaria::Error::from)?;
    }
    let took = (clock.now() - started).as_secs_f64();
    samples.push("tokens.windows", "count", source.len() as f64);
    samples.push("tokens.rate", "tokens/s", (source.len() * WINDOW) as f64 / took);
    train_tokens(source, clock, samples)?;
    for (what, field) in [("resident", "VmHWM"), ("anonymous", "RssAnon"), ("mapped", "RssFile")] {
        samples.extend_from(format!("tokens.{what}"), "MiB", memory_mib(field));
    }
    Ok(())
}

/// Steps over a file of tokens: the first of an epoch, whose order is that of all of its windows.
fn train_tokens(source: TokenSource, clock: &Arc<dyn Clock>, samples: &mut Samples) -> Result<(), Error> {
    let mut draw = Draw::new(7, &Device::Cpu);
    let mut weight = |rows, columns| candle_core::Var::from_tensor(&draw.uniform((rows, columns), 0.1)?);
    let (embedding, output) = (weight(VOCABULARY, WIDTH)?, weight(WIDTH, VOCABULARY)?);
    let named = vec![("embedding".to_owned(), embedding.clone()), ("output".to_owned(), output.clone())];
    let model = PlainModel::new(named, move |x: &Tensor| {
        let (windows, length) = x.dims2()?;
        let inputs = embedding.index_select(&x.flatten_all()?, 0)?;
        inputs.matmul(&output)?.reshape((windows, length, VOCABULARY))
    })?;
    let train = Dataset::from_source(Arc::new(source))?;
    let first = train.slice(0, 1)?;
    let few = Dataset::new(first.inputs, first.targets)?;
    let parts = Parts {
        max_steps: NonZeroU64::new(TOKEN_STEPS),
        clock: Arc::clone(clock),
        ..Parts::new(
            Arc::new(NextToken::new(VOCABULARY)),
            NoSeeds::new(model),
            NoPolicy,
            tolaria::trainer::Splits { train, ..all_of(few) },
        )
    };
    let started = clock.now();
    Trainer::new(plain_sgd(TOKEN_BATCH), parts)?.run(&mut Eager::acquire()?, &mut NullObserver)?;
    samples.push("tokens.train.step", "ms", ms(clock.now() - started) / TOKEN_STEPS as f64);
    Ok(())
}

fn failed(source: std::io::Error) -> Error {
    Error::File { action: "writing samples to", path: std::env::temp_dir(), source }
}

/// A figure of the memory of this process; absent where the system does not say.
fn memory_mib(field: &str) -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse::<f64>().ok().map(|kib| kib / 1024.0)
}

/// One training run whose epochs are measured.
struct Run {
    config: TrainConfig,
    data: Dataset,
    num_classes: usize,
    num_epochs: u64,
}

/// An epoch: its wall time, and gauges at its end.
struct Epoch {
    took: Duration,
    gauges: BTreeMap<String, f64>,
}

struct Measured {
    epochs: Vec<Epoch>,
    last_loss: f64,
}

impl Measured {
    /// All epochs but the first one.
    fn record(&self, name: &str, samples: &mut Samples) {
        let gauges = [("tolaria.input.wait_ms", "wait", "ms"), ("tolaria.input.overlap", "overlap", "ratio")];
        for epoch in self.epochs.iter().skip(1) {
            samples.push(format!("{name}.epoch"), "ms", ms(epoch.took));
            for (gauge, what, unit) in gauges {
                samples.extend_from(format!("{name}.{what}"), unit, epoch.gauges.get(gauge).copied());
            }
        }
    }
}

impl Run {
    fn measure(self, model: PlainModel, clock: &Arc<dyn Clock>) -> Result<Measured, Error> {
        let run_id = RunId::new("loader").expect("a literal of allowed characters");
        let groups = [(tolaria::telemetry::METRICS, tolaria::telemetry::EVENTS)];
        let sink = MemorySink::new();
        let packets = sink.packets();
        let (recorder, guard) = TelemetryRecorder::start(
            run_id.clone(),
            Catalogue::new(&groups)?,
            vec![Box::new(sink)],
            QueueConfig::default(),
            Arc::clone(clock),
        )?;
        let few = Dataset::new(self.data.slice(0, 1)?.inputs, self.data.slice(0, 1)?.targets)?;
        let parts = Parts {
            run_id,
            seed: 0,
            num_epochs: self.num_epochs,
            max_steps: None,
            device: Device::Cpu,
            data: tolaria::trainer::Splits { train: self.data, ..all_of(few) },
            task: Arc::new(Classification::new(self.num_classes)),
            seeds: NoSeeds::new(model),
            policy: NoPolicy,
            checkpoints: None,
            recorder,
            clock: Arc::clone(clock),
        };
        let mut watch = Watch::new(Arc::clone(clock));
        Trainer::new(self.config, parts)?.run(&mut Eager::acquire()?, &mut watch)?;
        guard.shutdown(Duration::from_secs(5));
        let Watch { mut epochs, last_loss, .. } = watch;
        for packet in packets.all() {
            let Some(epoch) = usize::try_from(packet.epoch.0).ok().and_then(|n| epochs.get_mut(n.checked_sub(1)?))
            else {
                continue;
            };
            epoch.gauges = packet.metrics.iter().map(|metric| (metric.name.clone(), metric.value)).collect();
        }
        Ok(Measured { epochs, last_loss })
    }
}

struct Watch {
    clock: Arc<dyn Clock>,
    started: Duration,
    epochs: Vec<Epoch>,
    last_loss: f64,
}

impl Watch {
    fn new(clock: Arc<dyn Clock>) -> Self {
        let now = clock.now();
        Self { clock, started: now, epochs: Vec::new(), last_loss: f64::NAN }
    }
}

impl Observer for Watch {
    fn epoch_finished(&mut self, report: &EpochReport) -> Result<(), BoxError> {
        let now = self.clock.now();
        self.epochs.push(Epoch { took: now - self.started, gauges: BTreeMap::new() });
        (self.started, self.last_loss) = (now, report.train.as_ref().map_or(f64::NAN, |train| train.loss));
        Ok(())
    }
}
