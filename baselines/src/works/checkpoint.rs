//! What checkpoints in the middle of training cost its steps: on over off, in pairs.

use std::num::{NonZeroU64, NonZeroUsize};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use candle_core::Device;
use clap::Args;
use leyline::clock::Clock;
use leyline::error::BoxError;
use leyline::region::Eager;
use tolaria::aggregate::ConflictResolution;
use tolaria::checkpoint::{CheckpointStore, StdFs};
use tolaria::task::Classification;
use tolaria::trainer::report::EpochReport;
use tolaria::trainer::{Checkpoints, ExecutionConfig, Flow, Observer, RunEvent, Splits, StepReport, Trainer};

use crate::error::Error;
use crate::gpu::open::{open_device, result_on};
use crate::measure::Measurement;
use crate::models::{Variant, Workload};
use crate::samples::{Samples, us};
use crate::trainer::{plain_parts, repeated, train_config};
use crate::work::{Flags, Needs, Outcome, Setting, Work, settings};

pub(super) const WORK: Work = Work::with_flags::<CheckpointFlags>(
    "checkpoint",
    "What a checkpoint every 10 steps costs a step: on over off, waited for and in the background",
    Needs::Nothing,
);

/// Optimizer steps between two checkpoints.
const EVERY: u64 = 10;
/// How often the data of a work are repeated, so that an epoch is long.
const REPEATS: usize = 16;
/// Steps that are not measured: warm-up, capture, compile.
const WARM_UP: u64 = 40;
const MODES: [(&str, Option<bool>); 3] = [("off", None), ("waited", Some(false)), ("background", Some(true))];
const NOTES: &str = "mlp and tfm5m (its sequences' last tokens), AdamW, one microbatch; a step as the loop sees it, from the end of one to the end of \
    the next, but for the first of an epoch and the last of the run. Every round runs MODE off, waited (`checkpoint.in_background = false`) and background, \
    one after the other, with a checkpoint every 10 steps, durable, with every fsync. WORK.MODE.step, .p95: median and 95th percentile over the \
    steps of a round; .due: median of the steps with a checkpoint; .mean: time per step of whole stretches of 10 steps, median over them; \
    MODE.X.over_off: X over that of off in the same round; n counts rounds. .written, .skipped: checkpoints of a round that were written, and how many fewer \
    than were due; .at_risk: most steps since the newest one on the disk; .bytes: files of one; .write: from its request until it was on the disk";

#[derive(Debug, Args)]
struct CheckpointFlags {
    /// Rounds of each work.
    #[arg(long, value_name = "N", default_value = "5")]
    rounds: NonZeroUsize,
    /// Optimizer steps of a run; by default as many as the device takes in some seconds.
    #[arg(long, value_name = "N")]
    steps: Option<NonZeroU64>,
    /// Works, of `ref`, `mlp` and `tfm5m`.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "mlp,tfm5m")]
    works: Vec<String>,
}

impl Flags for CheckpointFlags {
    fn measure(&self, setting: &Setting) -> Result<Outcome, Error> {
        let device = setting.gpu.map_or(Ok(Device::Cpu), open_device)?;
        let (clock, mut samples) = (&setting.clock, Samples::default());
        let dir = tempfile::tempdir().map_err(failed)?;
        let mut lengths = Vec::new();
        for name in &self.works {
            let work = Measured::new(name, self.steps, &device)?;
            lengths.push((format!("{name}.steps"), work.num_steps.to_string()));
            for round in 0..self.rounds.get() {
                let mut off = None;
                for (mode, in_background) in MODES {
                    let at = dir.path().join(format!("{name}-{mode}-{round}"));
                    let seen = work.run(in_background.map(|on| (on, &*at)), clock)?;
                    seen.record(&format!("{name}.{mode}"), off.as_ref(), &mut samples);
                    off = off.or(Some(seen));
                    if in_background.is_some() {
                        samples.push(format!("{name}.{mode}.bytes"), "B", newest_bytes(&at)? as f64);
                        std::fs::remove_dir_all(&at).map_err(failed)?;
                    }
                }
            }
        }
        let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let common = [
            ("cores".to_owned(), cores.to_string()),
            ("rounds".to_owned(), self.rounds.to_string()),
            ("every_steps".to_owned(), EVERY.to_string()),
            ("device".to_owned(), setting.gpu.map_or("cpu".to_owned(), |gpu| format!("cuda:{gpu}"))),
        ];
        let config = settings(common.into_iter().chain(lengths));
        Ok(result_on(&device, setting, WORK.name, NOTES, config, samples)?.into())
    }
}

/// A work with its data, repeated.
struct Measured {
    name: String,
    data: Splits,
    num_classes: usize,
    batch_size: usize,
    num_steps: u64,
    device: Device,
}

impl Measured {
    fn new(name: &str, num_steps: Option<NonZeroU64>, device: &Device) -> Result<Self, Error> {
        let work = workload(name, device)?;
        let by_default = match (device.is_cpu(), name) {
            (true, "mlp") => 260,
            (true, _) => 90,
            (false, "mlp") => 4040,
            (false, _) => 1040,
        };
        Ok(Self {
            name: name.to_owned(),
            data: repeated(&work, REPEATS)?,
            num_classes: work.num_classes,
            batch_size: work.batch_size,
            num_steps: num_steps.map_or(by_default, NonZeroU64::get).max(WARM_UP + 3 * EVERY),
            device: device.clone(),
        })
    }

    fn run(&self, checkpoints: Option<(bool, &Path)>, clock: &Arc<dyn Clock>) -> Result<Seen, Error> {
        let work = workload(&self.name, &self.device)?;
        let execution = ExecutionConfig::default();
        let config = train_config(self.batch_size, 1, work.optimizer, ConflictResolution::Mean, execution);
        let task = Arc::new(Classification::new(self.num_classes));
        let mut parts = plain_parts(task, work.model, self.data.clone(), [7, self.num_steps], clock);
        parts.max_steps = NonZeroU64::new(self.num_steps);
        if let Some((in_background, dir)) = checkpoints {
            let store = CheckpointStore::open(dir, NonZeroUsize::MIN, Arc::new(StdFs)).map_err(tolaria::Error::from)?;
            parts.checkpoints = Some(Checkpoints {
                every_epochs: NonZeroU64::MAX,
                every_steps: NonZeroU64::new(EVERY),
                keep_best: false,
                in_background,
                ..Checkpoints::new(store)
            });
        }
        let mut watch = Watch { clock: Arc::clone(clock), last: None, last_due: None, seen: Seen::default() };
        let mut trainer = Trainer::new(config, parts)?;
        trainer.run(&mut Eager::acquire()?, &mut watch)?;
        if let Some((failed, error)) = trainer.failed_checkpoints() {
            let table = format!("{failed} checkpoints of {} were not written: {error}", self.name);
            return Err(Error::BrokenPromises { table });
        }
        let mut seen = watch.seen;
        // The last one is that of the end of the run.
        seen.num_due = if checkpoints.is_some() { self.num_steps.div_ceil(EVERY) } else { 0 };
        Ok(seen)
    }
}

fn workload(name: &str, device: &Device) -> Result<Workload, Error> {
    match name {
        "tfm5m" => Workload::sequence_ends(Variant::default(), 3, device),
        "mlp" => Workload::mlp(3, device),
        "ref" => Workload::reference(4, Variant::default(), 3, device),
        _ => Err(Error::UnknownWork { name: name.to_owned(), known: "ref, mlp, tfm5m".to_owned() }),
    }
}

/// What a run came to, µs.
#[derive(Debug, Default)]
struct Seen {
    steps: Vec<f64>,
    due: Vec<f64>,
    stretches: Vec<f64>,
    writes: Vec<f64>,
    num_due: u64,
    /// The newest step on the disk, and the most steps that were ahead of it.
    durable: u64,
    at_risk: u64,
}

impl Seen {
    fn risk_at(&mut self, step: u64) {
        self.at_risk = self.at_risk.max(step - self.durable);
    }

    fn numbers(&self) -> [(&'static str, Option<f64>); 4] {
        let of = |values: &[f64]| Measurement::of("us", values.to_vec());
        let median = |values| Some(of(values)?.median);
        [
            ("step", median(&self.steps)),
            ("p95", of(&self.steps).map(|steps| steps.p95)),
            ("due", median(&self.due)),
            ("mean", median(&self.stretches).map(|stretch| stretch / EVERY as f64)),
        ]
    }

    fn record(&self, prefix: &str, off: Option<&Self>, samples: &mut Samples) {
        for (index, (name, value)) in self.numbers().into_iter().enumerate() {
            samples.extend_from(format!("{prefix}.{name}"), "us", value);
            let before = off.and_then(|off| off.numbers()[index].1);
            let over = value.zip(before).map(|(on, off)| on / off);
            samples.extend_from(format!("{prefix}.{name}.over_off"), "ratio", over);
        }
        if self.num_due > 0 {
            let num_written = self.writes.len() as u64;
            samples.push(format!("{prefix}.written"), "checkpoints", num_written as f64);
            samples.push(format!("{prefix}.skipped"), "checkpoints", self.num_due.saturating_sub(num_written) as f64);
            samples.push(format!("{prefix}.at_risk"), "steps", self.at_risk as f64);
            for write in &self.writes {
                samples.push(format!("{prefix}.write"), "us", *write);
            }
        }
    }
}

/// Takes the time at the end of each step.
struct Watch {
    clock: Arc<dyn Clock>,
    last: Option<Duration>,
    last_due: Option<Duration>,
    seen: Seen,
}

impl Observer for Watch {
    fn step(&mut self, report: &StepReport<'_>) -> Flow {
        let now = self.clock.now();
        let is_due = report.step.0.is_multiple_of(EVERY);
        let is_first = report.step_of_epoch == 1;
        self.seen.risk_at(report.step.0);
        if report.step.0 > WARM_UP
            && !is_first
            && let Some(last) = self.last
        {
            self.seen.steps.push(us(now - last));
            if is_due {
                self.seen.due.push(us(now - last));
            }
        }
        if is_first {
            // The end of an epoch lies in between.
            self.last_due = None;
        }
        if is_due
            && report.step.0 >= WARM_UP
            && let Some(last) = self.last_due.replace(now)
        {
            self.seen.stretches.push(us(now - last));
        }
        self.last = Some(now);
        Flow::Continue
    }

    fn event(&mut self, event: &RunEvent<'_>) {
        if let RunEvent::CheckpointWritten { step, took_ms, .. } = event {
            self.seen.writes.push(took_ms * 1e3);
            self.seen.risk_at(step.0);
            self.seen.durable = step.0;
        }
    }

    fn epoch_finished(&mut self, _report: &EpochReport) -> Result<(), BoxError> {
        Ok(())
    }
}

/// Bytes of the files of the newest checkpoint.
fn newest_bytes(dir: &Path) -> Result<u64, Error> {
    let sum = || {
        let mut newest: Vec<_> = std::fs::read_dir(dir)?.collect::<Result<_, _>>()?;
        newest.retain(|entry| entry.file_name().to_string_lossy().starts_with("gen-"));
        newest.sort_by_key(std::fs::DirEntry::file_name);
        let Some(newest) = newest.pop() else { return Ok(0) };
        std::fs::read_dir(newest.path())?.map(|file| Ok(file?.metadata()?.len())).sum()
    };
    sum().map_err(failed)
}

fn failed(source: std::io::Error) -> Error {
    Error::File { action: "writing checkpoints to", path: std::env::temp_dir(), source }
}

#[cfg(test)]
mod tests {
    use leyline::clock::SystemClock;

    use super::*;

    #[test]
    fn a_short_run_has_every_number_of_every_mode() {
        let flags =
            CheckpointFlags { rounds: NonZeroUsize::MIN, steps: NonZeroU64::new(1), works: vec!["ref".to_owned()] };
        let outcome = flags.measure(&Setting::alone(Arc::new(SystemClock::new()), None)).unwrap();
        let numbers = &outcome.result.measurements;
        for name in ["ref.off.step", "ref.waited.step.over_off", "ref.background.mean.over_off", "ref.background.due"] {
            assert!(numbers[name].median > 0.0, "{name}");
        }
        let count = |name: &str| numbers[&format!("ref.background.{name}")].median;
        assert_eq!((count("written") + count("skipped")).to_bits(), 7.0_f64.to_bits());
        assert!(count("bytes") > 1e3);
        assert_eq!(numbers["ref.waited.skipped"].median.to_bits(), 0);
        assert_eq!(
            numbers["ref.waited.at_risk"].median.to_bits(),
            10.0_f64.to_bits(),
            "as many as there are between two"
        );
        assert!(count("at_risk") >= 10.0);
    }

    #[test]
    fn of_twenty_steps_the_19th_is_the_95th_percentile() {
        let seen = Seen { steps: (1..=20).map(f64::from).collect(), ..Seen::default() };
        assert_eq!(seen.numbers()[1], ("p95", Some(19.0)));
    }
}
