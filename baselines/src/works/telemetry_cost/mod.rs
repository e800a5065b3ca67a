//! What telemetry costs the steps of training, with everything on, under attack, and with sinks that do not work: block by block of one run.

mod beside;
mod sinks;

use std::cell::RefCell;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use candle_core::Device;
use clap::Args;
use esper_telemetry::codec::encode_frame;
use esper_telemetry::sink::{JsonLinesSink, MemorySink, Sink, TensorBoardSink};
use esper_telemetry::{Catalogue, Counts, QueueConfig, TelemetryRecorder};
use leyline::clock::Clock;
use leyline::error::BoxError;
use leyline::id::RunId;
use leyline::region::Eager;
use leyline::telemetry::{Boundary, Health, MetricKind, Recorder};
use tolaria::task::Classification;
use tolaria::trainer::report::EpochReport;
use tolaria::trainer::{Flow, Observer, Parts, StepReport, TrainConfig, Trainer};

use self::beside::{Answers, Beside};
use self::sinks::{Breakable, Fault};
use crate::blocks::{Blocks, num_epochs, percentile};
use crate::error::Error;
use crate::gpu::open::{open_device, result_on};
use crate::models::Workload;
use crate::samples::{Samples, us};
use crate::trainer::{count, plain_parts, plain_sgd, repeated};
use crate::work::{Flags, Needs, Outcome, Setting, Surround, Work, settings};

pub(super) const WORK: Work = Work::with_flags::<TelemetryCostFlags>(
    "telemetry-cost",
    "Steps with all telemetry on, under hostile requests, and beside sinks that do not work, over steps without",
    Needs::Nothing,
);

/// A packet is published every so many steps, which is how long a short epoch is: less than one step in a hundred.
const PACKET_EVERY: u64 = 128;
/// After so long the thread that writes packets sleeps.
const PAUSE: Duration = Duration::from_millis(2);
/// Of a queue that is to overflow.
const SMALL_QUEUE: usize = 64;
/// Longest wait for what is queued.
const FLUSH: Duration = Duration::from_secs(60);
const NOTES: &str = "SGD, default execution. An epoch is a block; every other block has what is named, in the order ABBA, in one run. A step: from the end of one to the end of the next, the device waited for, the first of an epoch \
    left out. Arms share `seconds` less the stalls; one that takes longer has fewer pairs. ARM.p50, .p99: of a block with it, ._without: of one without; ._over: one over the other in a pair of blocks, one after the other; n counts pairs. .p99_over.low, .high: 95 % interval of the median of all such pairs, whatever \
    their distribution. .boundary_over: the same of the end of the epoch. nothing: neither has anything, by chance. everything: packets as frames, JSON and for TensorBoard, one every 128 steps; a metrics file, a server whose /metrics \
    and page are asked once a second, a reader of its events. Alerts are evaluated by Prometheus from what is scraped. hostile: the same with 16 clients who send malformed, huge and foreign requests, and others who stay and say \
    little, until its share of the time is over; resident_growth: memory of the process, attackers and times included, over the arm. sink_*, disk_full: one packet every 128 steps in both blocks; the sink is a file, and with the fault a pipe without reader, one that nobody \
    reads, or a byte each second, or /dev/full; sink_works: a file in both, by chance. ARM.emitted, .delivered, .dropped, .written: packets of the arm, the last counted by the sink. stalled_once: one stall of stall_s. gauge.set: one \
    gauge; phase.off: one span of a phase that nobody records; packet.encode: a frame of all metrics without labels; packet.publish: on the thread that trains, _alone: 2 ms after the one before";

#[derive(Debug, Args)]
struct TelemetryCostFlags {
    /// Pairs of blocks of each arm, at most.
    #[arg(long, value_name = "N", default_value = "40")]
    pairs: NonZeroU64,
    /// Seconds in all. What is left of them beside the stalls is shared by the arms; one that takes longer ends with the pair that is under way.
    #[arg(long, value_name = "S", default_value = "400")]
    seconds: f64,
    /// Length of a block; as many steps as that takes without telemetry.
    #[arg(long, value_name = "MS", default_value = "200")]
    block_ms: NonZeroU64,
    /// Seconds of the one stall.
    #[arg(long, value_name = "S", default_value = "60")]
    stall_s: f64,
    /// Hostile requests in all.
    #[arg(long, value_name = "N", default_value = "10000")]
    requests: NonZeroU64,
    /// What is trained.
    #[arg(long, value_name = "NAME", default_value = "ref")]
    work: String,
}

#[derive(Debug, Clone, Copy)]
struct Arm {
    name: &'static str,
    packets: Packets,
    fault: Option<Fault>,
    is_served: bool,
    is_attacked: bool,
}

/// In which blocks packets are published at steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Packets {
    Never,
    WhenOn,
    Always,
}

const NOTHING: Arm =
    Arm { name: "nothing", packets: Packets::Never, fault: None, is_served: false, is_attacked: false };
const EVERYTHING: Arm = Arm { name: "everything", packets: Packets::WhenOn, is_served: true, ..NOTHING };
const SINK: Arm = Arm { name: "sink_works", packets: Packets::Always, ..NOTHING };
const ARMS: [Arm; 8] = [
    NOTHING,
    EVERYTHING,
    Arm { name: "hostile", is_attacked: true, ..EVERYTHING },
    SINK,
    Arm { name: "sink_stalled", fault: Some(Fault::Stalled), ..SINK },
    Arm { name: "sink_closed", fault: Some(Fault::Closed), ..SINK },
    Arm { name: "sink_trickles", fault: Some(Fault::Trickles), ..SINK },
    Arm { name: "disk_full", fault: Some(Fault::Full), ..SINK },
];

impl Flags for TelemetryCostFlags {
    fn measure(&self, setting: &Setting) -> Result<Outcome, Error> {
        let device = setting.gpu.map_or(Ok(Device::Cpu), open_device)?;
        let began = setting.clock.now();
        let mut samples = Samples::default();
        direct(setting, &mut samples)?;
        let bench = Bench { flags: self, setting, device: &device };
        let alone = bench.until(Duration::from_millis(300), 1000, None, &mut samples)?;
        // Of all of them, since slow ones are part of a block too.
        let steps = self.block_ms.get() as f64 * 1e3 / (alone.iter().sum::<f64>() / alone.len() as f64);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a number of steps")]
        let steps = steps.ceil() as usize;
        let stall = Duration::from_secs_f64(self.stall_s);
        let end = (began + Duration::from_secs_f64(self.seconds)).saturating_sub(2 * stall);
        for (arm, num_left) in ARMS.into_iter().zip((1..=8).rev()) {
            let now = setting.clock.now();
            bench.run(arm, steps, now + end.saturating_sub(now) / num_left, &mut samples)?;
        }
        for (name, fault) in [("p99_without", None), ("p99", Some(Fault::Stalled))] {
            let times = bench.until(stall, steps, Some(fault), &mut samples)?;
            samples.push(format!("stalled_once.{name}"), "us", percentile(&times, 99));
        }
        let config = settings([
            ("work", self.work.clone()),
            ("pairs", self.pairs.to_string()),
            ("seconds", self.seconds.to_string()),
            ("block_ms", self.block_ms.to_string()),
            ("steps_per_block", steps.to_string()),
            ("stall_s", self.stall_s.to_string()),
            ("requests", self.requests.to_string()),
            ("device", setting.gpu.map_or("cpu".to_owned(), |gpu| format!("cuda:{gpu}"))),
        ]);
        Ok(result_on(&device, setting, WORK.name, NOTES, config, samples)?.into())
    }
}

fn start(
    sinks: Vec<Box<dyn Sink>>,
    capacity: usize,
    setting: &Setting,
) -> Result<(Arc<TelemetryRecorder>, esper_telemetry::Guard), Error> {
    let catalogue = Catalogue::new(setting.descriptors)?;
    let run = RunId::new("bench").expect("a literal of allowed characters");
    let queue = QueueConfig { capacity: count(capacity) };
    Ok(TelemetryRecorder::start(run, catalogue, sinks, queue, Arc::clone(&setting.clock))?)
}

/// Single operations, without training.
fn direct(setting: &Setting, samples: &mut Samples) -> Result<(), Error> {
    let (memory, clock) = (MemorySink::new(), setting.clock.as_ref());
    let packets = memory.packets();
    let (recorder, guard) = start(vec![Box::new(memory)], 4096, setting)?;
    let (mut gauges, mut counters) = (Vec::new(), Vec::new());
    for desc in recorder.catalogue().metrics().filter(|desc| desc.labels.is_empty()) {
        match desc.kind {
            MetricKind::Gauge => gauges.push(recorder.gauge(desc, &[])),
            MetricKind::Counter => counters.push(recorder.counter(desc, &[])),
        }
    }
    counters.iter().for_each(|counter| counter.add(1));
    for turn in 0..60 {
        let began = clock.now();
        for round in 0..1000 {
            for gauge in &gauges {
                gauge.set(std::hint::black_box(f64::from(turn * round)));
            }
        }
        let took = us(clock.now() - began) / gauges.len() as f64;
        if turn >= 10 {
            samples.push("gauge.set", "ns", took);
        }
    }
    for _ in 0..50 {
        let began = clock.now();
        for _ in 0..10_000 {
            let span = tracing::trace_span!(target: tolaria::trainer::phase::TARGET, "eager").entered();
            std::hint::black_box(&span);
        }
        samples.push("phase.off", "ns", us(clock.now() - began) / 10.0);
    }
    samples.time("packet.publish", "us", [100, 2000], clock, || {
        recorder.publish(boundary(0, 1));
        Ok(())
    })?;
    for turn in 0..550 {
        let began = clock.now();
        while clock.now() - began < PAUSE {}
        let began = clock.now();
        recorder.publish(boundary(0, 1));
        if turn >= 50 {
            samples.push("packet.publish_alone", "us", us(clock.now() - began));
        }
    }
    guard.shutdown(FLUSH);
    let packet = packets.last().expect("packets were published");
    samples.push("packet.metrics", "count", packet.metrics.len() as f64);
    samples.time("packet.encode", "us", [200, 2000], clock, || {
        let frame = encode_frame(&packet).expect("a packet of the recorder is valid");
        std::hint::black_box(frame);
        Ok(())
    })?;
    Ok(())
}

fn boundary(epoch: u64, step: u64) -> Boundary {
    use leyline::id::{EpochIndex, StepIndex};
    Boundary { epoch: EpochIndex(epoch), step: StepIndex(step), source: "bench", health: Health::default() }
}

#[derive(Clone, Copy)]
struct Bench<'a> {
    flags: &'a TelemetryCostFlags,
    setting: &'a Setting,
    device: &'a Device,
}

impl Bench<'_> {
    fn train(
        &self,
        steps: usize,
        num_epochs: u64,
        recorder: Arc<dyn Recorder>,
        observer: &mut dyn Observer,
    ) -> Result<(), Error> {
        let work = Workload::named(&self.flags.work, 3, self.device)?;
        let data = repeated(&work, steps.div_ceil(work.num_batches()))?;
        let config = TrainConfig { eval_batch_size: count(work.batch_size), ..plain_sgd(work.batch_size) };
        let task = Arc::new(Classification::new(work.num_classes));
        let parts = plain_parts(task, work.model, data, [3, num_epochs], &self.setting.clock);
        let parts = Parts { recorder, device: self.device.clone(), ..parts };
        Trainer::new(config, parts)?.run(&mut Eager::acquire()?, observer)?;
        Ok(())
    }

    /// Times of steps until so much time has gone by, µs; with packets to a sink that has this fault all the while.
    fn until(
        &self,
        length: Duration,
        steps: usize,
        fault: Option<Option<Fault>>,
        samples: &mut Samples,
    ) -> Result<Vec<f64>, Error> {
        let dir = folder()?;
        let counted = Counted::default();
        let is_on = Arc::new(AtomicBool::new(true));
        let sink = Breakable::new(&dir.path().join("packets.bin"), fault.flatten(), &is_on, &counted.num_written)?;
        let (recorder, guard) = start(vec![Box::new(sink)], SMALL_QUEUE, self.setting)?;
        let clock = self.setting.clock.as_ref();
        let mut load = Load {
            timed: Until { clock, device: self.device, length, end: None, last: None, steps: Vec::new() },
            packets: if fault.is_some() { Packets::Always } else { Packets::Never },
            is_on: Arc::clone(&is_on),
            recorder: Arc::clone(&recorder),
            beside: Rc::default(),
            num_published: 0,
        };
        self.train(steps, 1_000_000, recorder, &mut load)?;
        is_on.store(false, Ordering::SeqCst);
        let counts = guard.shutdown(FLUSH).stats.packets;
        if let Some(fault) = fault {
            let name = if fault.is_some() { "stalled_once" } else { "stalled_once_without" };
            counted.check(name, counts, load.num_published, samples)?;
        }
        Ok(load.timed.steps)
    }

    fn run(&self, arm: Arm, steps: usize, deadline: Duration, samples: &mut Samples) -> Result<(), Error> {
        let dir = folder()?;
        let counted = Counted::default();
        let is_on = Arc::new(AtomicBool::new(false));
        let first = Breakable::new(&dir.path().join("packets.bin"), arm.fault, &is_on, &counted.num_written)?;
        let mut sinks: Vec<Box<dyn Sink>> = vec![Box::new(first)];
        if arm.is_served {
            sinks.push(Box::new(JsonLinesSink::append(dir.path().join("packets.jsonl"))?));
            sinks.push(Box::new(TensorBoardSink::create(dir.path().join("tensorboard"), "bench", 0)?));
        }
        let capacity = if arm.fault.is_some() { SMALL_QUEUE } else { QueueConfig::default().capacity.get() };
        let (recorder, guard) = start(sinks, capacity, self.setting)?;
        let num_epochs = num_epochs(self.flags.pairs.get());
        // Two blocks with it follow each other, but for the first and perhaps the last.
        let num_turns = ((num_epochs + 2) / 4).max(1);
        let num_hostile = if arm.is_attacked { self.flags.requests.get().div_ceil(num_turns) } else { 0 };
        let served = Served {
            surround: self.setting.surround,
            folder: dir.path().to_owned(),
            recorder: Arc::clone(&recorder),
            clock: Arc::clone(&self.setting.clock),
            deadline,
            num_hostile: usize::try_from(num_hostile).unwrap_or(usize::MAX),
            turn: 0,
            answers: Answers::default(),
            resident_mib: Vec::new(),
            failed: None,
        };
        let (served, beside) = (Rc::new(RefCell::new(served)), Rc::<RefCell<Option<Beside>>>::default());
        let switch = {
            let (served, beside, is_on, recorder) =
                (Rc::clone(&served), Rc::clone(&beside), Arc::clone(&is_on), Arc::clone(&recorder));
            move |turns_on: bool| {
                if arm.is_served {
                    served.borrow_mut().turn(turns_on, &mut beside.borrow_mut());
                }
                is_on.store(turns_on, Ordering::SeqCst);
                // The next block begins with an empty queue.
                while !turns_on && recorder.stats().packets.in_flight() > 0 {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        };
        let clock = self.setting.clock.as_ref();
        let mut load = Load {
            timed: Blocks::new(clock, self.device, Box::new(switch), num_epochs).until(deadline),
            packets: arm.packets,
            is_on,
            recorder: Arc::clone(&recorder),
            beside,
            num_published: 0,
        };
        self.train(steps, num_epochs, recorder, &mut load)?;
        let counts = guard.shutdown(FLUSH).stats.packets;
        load.timed.record(arm.name, samples);
        counted.check(arm.name, counts, load.num_published, samples)?;
        drop(load);
        served.borrow_mut().record(arm, samples)
    }
}

fn folder() -> Result<tempfile::TempDir, Error> {
    tempfile::tempdir().map_err(|source| Error::File { action: "creating", path: std::env::temp_dir(), source })
}

/// Packets as they were written.
#[derive(Debug, Default)]
struct Counted {
    num_written: Arc<AtomicU64>,
}

impl Counted {
    /// Every packet is delivered or dropped, and those that are delivered are those that were written.
    fn check(&self, name: &str, counts: Counts, num_published: u64, samples: &mut Samples) -> Result<(), Error> {
        let written = self.num_written.load(Ordering::SeqCst);
        let Counts { emitted, delivered, dropped } = counts;
        for (part, number) in
            [("emitted", emitted), ("delivered", delivered), ("dropped", dropped), ("written", written)]
        {
            samples.push(format!("{name}.{part}"), "count", number as f64);
        }
        // The trainer and the recorder emit packets of their own.
        if emitted != delivered + dropped || delivered != written || emitted < num_published {
            let table = format!("{name}: {counts:?}, {written} written, {num_published} published at steps");
            return Err(Error::BrokenPromises { table });
        }
        Ok(())
    }
}

/// Switches the server and those who ask it.
struct Served {
    surround: Surround,
    folder: PathBuf,
    recorder: Arc<TelemetryRecorder>,
    clock: Arc<dyn Clock>,
    /// By the clock: what is not asked by then is not asked.
    deadline: Duration,
    num_hostile: usize,
    turn: usize,
    answers: Answers,
    resident_mib: Vec<f64>,
    failed: Option<Error>,
}

impl Served {
    fn turn(&mut self, turns_on: bool, beside: &mut Option<Beside>) {
        if turns_on && beside.is_none() {
            self.turn += 1;
            let folder = self.folder.join(format!("run-{}", self.turn));
            let (clock, deadline) = (Arc::clone(&self.clock), self.deadline);
            let is_late = Arc::new(move || clock.now() > deadline);
            match Beside::start(self.surround, &folder, &self.recorder, self.num_hostile, is_late) {
                Ok(started) => *beside = Some(started),
                Err(error) => self.failed = Some(error),
            }
        } else if let Some(beside) = beside.take_if(|_| !turns_on) {
            self.resident_mib.extend(resident_mib());
            self.answers += beside.end();
        }
    }

    fn record(&mut self, arm: Arm, samples: &mut Samples) -> Result<(), Error> {
        if let Some(failed) = self.failed.take() {
            return Err(failed);
        }
        let Answers { scraped, hostile, wrong } = self.answers;
        if arm.is_served && (scraped == 0 || wrong > 0) {
            return Err(Error::BrokenPromises { table: format!("{}: {:?}", arm.name, self.answers) });
        }
        if arm.is_attacked {
            samples.push(format!("{}.requests", arm.name), "count", hostile as f64);
            let growth = self.resident_mib.last().zip(self.resident_mib.first()).map(|(last, first)| last - first);
            samples.extend_from(format!("{}.resident_growth", arm.name), "MiB", growth);
        }
        Ok(())
    }
}

/// Memory of this process, where the operating system tells it.
fn resident_mib() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().trim_end_matches(" kB").parse::<f64>().ok()? / 1024.0)
}

/// Publishes packets beside the steps that `timed` times, and tells the server of them.
struct Load<O> {
    timed: O,
    packets: Packets,
    is_on: Arc<AtomicBool>,
    recorder: Arc<TelemetryRecorder>,
    beside: Rc<RefCell<Option<Beside>>>,
    num_published: u64,
}

impl<O: Observer> Observer for Load<O> {
    fn step(&mut self, report: &StepReport<'_>) -> Flow {
        if let Some(beside) = &mut *self.beside.borrow_mut() {
            beside.observer.step(report);
        }
        let publishes = match self.packets {
            Packets::Never => false,
            Packets::WhenOn => self.is_on.load(Ordering::Relaxed),
            Packets::Always => true,
        };
        if publishes && report.step.0.is_multiple_of(PACKET_EVERY) {
            self.recorder.publish(boundary(report.epoch.0, report.step.0));
            self.num_published += 1;
        }
        self.timed.step(report)
    }

    fn epoch_finished(&mut self, report: &EpochReport) -> Result<(), BoxError> {
        match &mut *self.beside.borrow_mut() {
            Some(beside) => beside.observer.epoch_finished(report),
            None => Ok(()),
        }
    }
}

/// Takes the times of steps for so long from the end of the first one on, before which a device loads its kernels.
struct Until<'a> {
    clock: &'a dyn Clock,
    device: &'a Device,
    length: Duration,
    end: Option<Duration>,
    last: Option<Duration>,
    steps: Vec<f64>,
}

impl Observer for Until<'_> {
    fn step(&mut self, report: &StepReport<'_>) -> Flow {
        // A device that is broken fails the next step.
        self.device.synchronize().ok();
        let now = self.clock.now();
        let last = self.last.replace(now).filter(|_| report.step_of_epoch > 1);
        self.steps.extend(last.map(|last| us(now - last)));
        if now < *self.end.get_or_insert(now + self.length) { Flow::Continue } else { Flow::Stop }
    }

    fn epoch_finished(&mut self, _report: &EpochReport) -> Result<(), BoxError> {
        Ok(())
    }
}
