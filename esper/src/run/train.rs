//! The command itself.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use esper_disk::{Fs, StdFs};
use esper_signing::Journal;
use esper_telemetry::sink::{FrameSink, JsonLinesSink, Sink, TensorBoardSink};
use esper_telemetry::{Catalogue, QueueConfig, TelemetryRecorder};
use leyline::clock::{Clock, SystemClock};
use leyline::id::RunId;
use leyline::layout::Owner;
use leyline::model::TrainableModel as _;
use leyline::region::Eager;
use leyline::seed::SeedManager as _;
use leyline::state::{ACCURACY, Score};
use leyline::telemetry::Recorder;
use tolaria::checkpoint::{CheckpointStore, Signing};
use tolaria::trainer::{Checkpoints, Outcome, Resumed, SignalFile};

use crate::check;
use crate::config::{CheckpointConfig, EsperConfig};
use crate::data::DataName;
use crate::exit;
use crate::output;
use crate::policy;
use crate::progress::{Progress, ProgressMode, require_terminal};
use crate::report::{self, DataRecord, RunOutcome, RunRecord, SeedSummary, Summary, Tested, Versions, Which};
use crate::run::Interrupt;
use crate::run::emergency::Orders;
use crate::run::folder::RunFolder;
use crate::run::metrics_log::MetricsLog;
use crate::run::otlp::OtlpArgs;
use crate::run::plan::{self, Plan};
use crate::run::resume;
use crate::run::verdict::verdict;
use crate::run::watch::Watch;
use crate::serve::{Live, ServeArgs};
use crate::signature::SignatureArgs;
use crate::wire::{DESCRIPTORS, EsperTrainer, Surroundings, assemble, placement};

/// Longest wait for telemetry to reach the disk at the end.
const FLUSH: Duration = Duration::from_secs(5);

/// Flags of `esper train`.
#[derive(Debug, Clone, Args)]
pub struct TrainArgs {
    /// TOML file with settings; see `esper check-config`.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// `digits`, `mnist1d`, `mnist`, `fashion-mnist`, or the path of a file of your own, with its format before it where the name does
    /// not tell it: `text:FILE`.
    #[arg(long, value_name = "NAME|PATH")]
    pub data: Option<String>,
    /// A `tokenizer.json` that turns a text into tokens; without it they are its bytes.
    #[arg(long, value_name = "FILE")]
    pub tokenizer: Option<String>,
    /// `cpu`, or `cuda:N` in a build with the `cuda` feature.
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<String>,
    /// Whether data are kept on the GPU: `auto`, where they fit into `run.gpu_dataset_mib`; `on`; `off`.
    #[arg(long, value_name = "WHETHER")]
    pub gpu_dataset: Option<String>,
    /// `heuristic`, `off`, `fixed`, `random` or `learned`.
    #[arg(long, value_name = "NAME")]
    pub policy: Option<String>,
    /// Folder with the network of `learned`, as `esper policy train` writes it; looked at after every epoch.
    #[arg(long, value_name = "DIR")]
    pub policy_file: Option<PathBuf>,
    /// Passes over the training data.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub epochs: Option<String>,
    /// Optimizer steps after which the run ends, if that is before the end of its epochs.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub max_steps: Option<String>,
    /// Seed of everything random.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub seed: Option<String>,
    /// Run folder; must be new or empty unless `--resume` is given. Default: a name of its own,
    /// `runs/DATA-POLICY-SEED-TIME-RANDOM`.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Continue the run in `--out` from its newest checkpoint that verifies, with its configuration. When it ends, how
    /// often it is evaluated and which checkpoints it keeps may differ, so may how its steps reach the device.
    #[arg(long, requires = "out")]
    pub resume: bool,
    /// Any other setting, for example `--set train.batch.batch_size=16`; may be given several times.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// With which key checkpoints are signed and read.
    #[command(flatten)]
    pub signature: SignatureArgs,
    /// Print one JSON object with the summary as the last line on standard output.
    #[arg(long)]
    pub json: bool,
    /// Shows the run on the whole terminal: curves, seeds, events. `q` stops it and writes a checkpoint.
    #[arg(long, conflicts_with = "progress")]
    pub tui: bool,
    /// How progress is shown on standard error.
    #[arg(long, value_enum, default_value_t = ProgressMode::Auto)]
    pub progress: ProgressMode,
    /// Folder for event files of TensorBoard with every metric, for `tensorboard --logdir DIR`; made where it is missing.
    #[arg(long, value_name = "DIR")]
    pub tensorboard: Option<PathBuf>,
    /// Whether and where the run can be watched.
    #[command(flatten)]
    pub serve: ServeArgs,
    /// Whether and where its telemetry is sent.
    #[command(flatten)]
    pub otlp: OtlpArgs,
}

/// Runs `esper train`.
///
/// # Errors
/// Usage errors before anything is written; afterwards the first failure. The run folder then says so too.
pub fn train(args: &TrainArgs) -> anyhow::Result<ExitCode> {
    if args.tui {
        require_terminal()?;
    }
    train_on(args, Arc::new(StdFs), Interrupt::install()?, &|text| output::print(text))
}

/// As [`train`], with the run folder on another file system, without handlers of signals, and with what is printed thrown
/// away: for tests. Data and files that are only read are those of the operating system.
///
/// # Errors
/// As there.
pub fn train_quietly(args: &TrainArgs, fs: Arc<dyn Fs>) -> anyhow::Result<ExitCode> {
    train_on(args, fs, Interrupt::default(), &|_| Ok(()))
}

fn train_on(
    args: &TrainArgs,
    fs: Arc<dyn Fs>,
    interrupt: Interrupt,
    print: &dyn Fn(&str) -> io::Result<()>,
) -> anyhow::Result<ExitCode> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let started = clock.now();
    let signing = args.signature.signing()?;
    let plan = Plan::of(args, &fs, clock.unix().as_secs())?;
    // Before anything is written.
    policy::networks(&plan.loaded.config, args.signature.of_policies()?, None)?;
    let (config, prepared) = (&plan.loaded.config, &plan.prepared);
    check::tell_data(prepared);
    check::warn(&plan.warnings);
    if let Some(warning) = policy::warning(config, &prepared.digest.to_string()) {
        output::tell(&format!("warning: {warning}\n"));
    }
    let bound = args.serve.bind()?;
    let collector = args.otlp.collector()?;
    let (folder, record) = match &plan.name {
        Some(name) => begin(name, &plan, fs, &*clock)?,
        None => {
            let mut folder = RunFolder::open(fs, &plan.folder)?;
            let record = resume::check(&folder, config, prepared, signing.clone(), unix_ms(&*clock))?;
            folder.lock()?;
            (folder, record)
        }
    };

    let mut sinks = sinks(args, config, &folder, &record.run_id, clock.unix())?;
    sinks.extend(collector.map(|collector| collector.sink(&record.run_id, &clock)));
    let (recorder, guard) = TelemetryRecorder::start(
        record.run_id.clone(),
        Catalogue::new(DESCRIPTORS)?,
        sinks,
        QueueConfig { capacity: config.telemetry.queue_packets },
        Arc::clone(&clock),
    )?;
    let around = Surroundings {
        networks: policy::networks(
            config,
            args.signature.of_policies()?,
            Some((Arc::clone(folder.fs()), folder.path())),
        )?,
        run_id: record.run_id.clone(),
        checkpoints: Some(checkpoints(config, &folder, signing)?),
        command_journal: Some(Journal::open_on(&**folder.fs(), &folder.command_journal())?),
        recorder: Arc::clone(&recorder) as Arc<dyn Recorder>,
        clock: Arc::clone(&clock),
    };
    let mut trainer = assemble(config, prepared, around)?;
    let signal = |error| anyhow::Error::new(error).context(format!("opening {}", folder.emergency().display()));
    trainer.signal_emergencies_to(SignalFile::open(&folder.emergency()).map_err(signal)?);
    let _orders = Orders::listen(&folder.emergency(), trainer.emergency()).map_err(signal)?;
    let host_parameters = trainer.seeds().model().layout().num_elements_of(Owner::Host) as u64;
    let mut eager = Eager::acquire()?;
    let is_new = plan.name.is_some();
    let resumed = if is_new { None } else { trainer.resume(&mut eager).context("resuming")? };
    let (epochs, step) = trainer.progress();
    recorder.resumed_at(epochs, step);
    if !is_new {
        folder.write(report::RECORD_FILE, &(serde_json::to_string_pretty(&record)? + "\n"))?;
        // Perhaps for more epochs.
        folder.write(report::CONFIG_FILE, &plan.loaded.to_toml()?)?;
    }

    let log = MetricsLog::open(Arc::clone(folder.fs()), &folder.metrics(), epochs)?;
    folder.remove(report::SUMMARY_FILE)?;
    let mut progress = if args.tui {
        Progress::on_screen(trainer.num_epochs(), Arc::clone(&clock), interrupt.clone())
            .context("taking the terminal")?
    } else {
        Progress::new(args.progress, trainer.num_epochs())
    };
    if args.tui && !is_new {
        report::Run::read(folder.path())?.epochs.iter().for_each(|report| progress.earlier(report));
    }
    note_start(&mut progress, &folder, is_new, resumed.as_ref());
    if let Some(placed) = placement(config, &prepared.splits)? {
        let place = if placed.is_on_gpu { "on the GPU" } else { "on the host, every batch is copied" };
        progress.note(&format!("data {place}: {}", placed.reason));
    }
    let live = Arc::new(Live::default());
    live.epochs(epochs.0);
    let server = match bound {
        Some(bound) => {
            progress.note(&format!("live page {}", bound.url()));
            Some(bound.start(folder.path().to_owned(), &recorder, Arc::clone(&live))?)
        }
        None => None,
    };
    let mut watch = Watch::new(log, &*recorder, progress, interrupt, live);
    let ended = trainer.run(&mut eager, &mut watch);
    watch.progress().finish();
    let logged = watch.finish();
    if let (Ok(_), Some(reason)) = (&ended, trainer.end_reason()) {
        watch.progress().note(&reason);
    }

    // What is tested may be another network, of which no packet is to tell.
    guard.end_run(FLUSH);

    let earlier_s = record.resumed.as_ref().map_or(0.0, |resumed| resumed.earlier_s);
    let closed = summarize(&mut trainer, &mut eager, config, &folder, &ended, host_parameters, resumed.as_ref())
        .and_then(|summary| {
            let summary = Summary { wall_s: earlier_s + (clock.now() - started).as_secs_f64(), ..summary };
            folder.write(report::SUMMARY_FILE, &(serde_json::to_string_pretty(&summary)? + "\n"))?;
            Ok((summary, report::write(&**folder.fs(), folder.path())))
        });
    drop(server);
    // A program that reads the result is told of a failure too.
    let printed = match &closed {
        Ok((summary, page)) if ended.is_ok() || args.json => {
            result_text(args, &folder, page.as_deref().ok(), summary).and_then(|text| Ok(print(&text)?))
        }
        Ok(_) | Err(_) => Ok(()),
    };
    // The failure of the run comes before a failure to describe it.
    ended.with_context(|| format!("training (what there is stays in {})", folder.path().display()))?;
    let (summary, page) = closed?;
    logged?;
    printed?;
    page.context("writing the report")?;
    match (summary.outcome, summary.reason) {
        (RunOutcome::Interrupted, _) => Ok(ExitCode::from(exit::INTERRUPTED)),
        (RunOutcome::Halted, _) => Ok(ExitCode::from(exit::HALTED)),
        (RunOutcome::Completed, _) => Ok(ExitCode::SUCCESS),
        (RunOutcome::Diverged | RunOutcome::Failed, reason) => Err(anyhow::Error::msg(reason.unwrap_or_default())),
    }
}

/// Makes the folder of a new run. With its `config.toml`, which comes last, the run can be resumed.
fn begin(name: &str, plan: &Plan, fs: Arc<dyn Fs>, clock: &dyn Clock) -> anyhow::Result<(RunFolder, RunRecord)> {
    let folder = RunFolder::create(fs, &plan.folder)?;
    let (config, prepared) = (&plan.loaded.config, &plan.prepared);
    let record = RunRecord {
        run_id: plan::run_id(name)?,
        versions: Versions::of_this_build(),
        data: DataRecord {
            name: config.data.name.to_string(),
            digest: prepared.digest.to_string(),
            tokenizer: prepared.preparation.tokenizer.as_ref().map(|file| file.digest.clone()),
            num_train: prepared.splits.train.num_samples() as u64,
            num_validation: prepared.splits.validation.num_samples() as u64,
            num_test: prepared.splits.test.num_samples() as u64,
        },
        device: config.run.device.to_string(),
        seed: config.run.seed,
        started_unix_ms: unix_ms(clock),
        resumed: None,
        resume_command: format!("esper train --resume --out {}", for_shell(folder.path())),
        reproduce_command: format!("esper train --config {} --out NEW_DIR", for_shell(&folder.config())),
    };
    folder.write(report::RECORD_FILE, &(serde_json::to_string_pretty(&record)? + "\n"))?;
    folder.write(report::PREPARATION_FILE, &(serde_json::to_string_pretty(&prepared.preparation)? + "\n"))?;
    if matches!(config.data.name, DataName::File(_)) {
        folder.write(report::ROWS_FILE, &(serde_json::to_string(&prepared.splits.assignment)? + "\n"))?;
    }
    folder.write(report::CONFIG_FILE, &plan.loaded.to_toml()?)?;
    Ok((folder, record))
}

/// A path as one word of a shell, which is no flag.
fn for_shell(path: &Path) -> String {
    let shown = path.display().to_string();
    let text = if shown.starts_with('-') { format!("./{shown}") } else { shown };
    let is_plain = text.chars().all(|c| c.is_ascii_alphanumeric() || "_./-".contains(c));
    if is_plain { text } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

fn unix_ms(clock: &dyn Clock) -> u64 {
    u64::try_from(clock.unix().as_millis()).unwrap_or(u64::MAX)
}

fn sinks(
    args: &TrainArgs,
    config: &EsperConfig,
    folder: &RunFolder,
    run_id: &RunId,
    now: Duration,
) -> anyhow::Result<Vec<Box<dyn Sink>>> {
    let mut sinks: Vec<Box<dyn Sink>> = Vec::new();
    let limit = u64::from(config.telemetry.max_mib.get()) << 20;
    if config.telemetry.frames {
        sinks.push(Box::new(FrameSink::append_on(Arc::clone(folder.fs()), folder.packets())?.with_limit(limit)));
    }
    if config.telemetry.jsonl {
        sinks.push(Box::new(
            JsonLinesSink::append_on(Arc::clone(folder.fs()), folder.packets_text())?.with_limit(limit),
        ));
    }
    if let Some(dir) = &args.tensorboard {
        let sink = TensorBoardSink::create_on(Arc::clone(folder.fs()), dir, run_id.as_str(), now.as_secs())?;
        sinks.push(Box::new(sink.with_limit(limit)));
    }
    Ok(sinks)
}

fn checkpoints(config: &EsperConfig, folder: &RunFolder, signing: Option<Signing>) -> anyhow::Result<Checkpoints> {
    let store = CheckpointStore::open(folder.checkpoints(), config.checkpoint.keep_last, Arc::clone(folder.fs()))?;
    let store = store.with_signing(signing);
    let CheckpointConfig { every_epochs, every_steps, keep_best, in_background, .. } = config.checkpoint;
    let config_digest = plan::digest(config);
    Ok(Checkpoints { store, every_epochs, every_steps, keep_best, in_background, config_digest })
}

fn passed_over(at: &Resumed) -> impl Iterator<Item = String> {
    let text = |(generation, reason): &(String, String)| {
        format!("checkpoint {generation} does not verify and is passed over: {reason}")
    };
    at.skipped.iter().map(text)
}

fn note_start(progress: &mut Progress, folder: &RunFolder, is_new: bool, resumed: Option<&Resumed>) {
    let shown = folder.path().display();
    match resumed {
        Some(at) => {
            passed_over(at).for_each(|text| progress.note(&text));
            if !at.is_compared {
                progress.note(
                    "the checkpoint does not say which batches and data it was trained with: they are not compared",
                );
            }
            progress.note(&format!("resuming {shown} from {} (epoch {}, step {})", at.generation, at.epoch, at.step));
        }
        None if is_new => progress.note(&format!("run folder {shown}")),
        None => progress.note(&format!("{shown} has no checkpoint yet: starting from the beginning")),
    }
}

fn summarize(
    trainer: &mut EsperTrainer,
    eager: &mut Eager,
    config: &EsperConfig,
    folder: &RunFolder,
    ended: &Result<Outcome, tolaria::Error>,
    host_parameters: u64,
    resumed: Option<&Resumed>,
) -> anyhow::Result<Summary> {
    let history = report::Run::read(folder.path())?;
    let (outcome, reason) = verdict(ended, trainer.end_reason(), &history.epochs, trainer.task().loss_of_guessing());
    let (epoch, step) = trainer.progress();
    let parameters = trainer.seeds().model().layout().num_elements() as u64;
    let seeds = trainer.seeds().export_seed_states(eager)?.iter().map(SeedSummary::from).collect();
    // The test data are looked at once, when nothing can be decided any more.
    let is_over = matches!(ended, Ok(Outcome::Completed | Outcome::MaxSteps | Outcome::EarlyStopped));
    let (tested, test) = if is_over { Some(test(trainer, eager, config)?) } else { None }.unzip();
    Ok(Summary {
        test_accuracy: test.as_ref().and_then(Score::accuracy),
        test_loss: test.as_ref().map(|score| score.loss),
        test_measures: test.map_or_else(BTreeMap::new, |score| {
            score.measures.into_iter().filter(|(name, _)| name != ACCURACY).collect()
        }),
        validation_accuracy: history.epochs.last().and_then(|epoch| epoch.validation.accuracy()),
        epochs: epoch.0,
        steps: step.0,
        parameters,
        host_parameters,
        wall_s: 0.0,
        out: folder.path().display().to_string(),
        resumed_from: resumed.map(|at| at.generation.clone()),
        outcome,
        reason,
        best: trainer.best(),
        tested,
        seeds,
        waiting: report::waiting(&history.epochs),
        warnings: policy::warnings(folder.path(), &history.record.data.name, &history.record.data.digest)?,
        memory: trainer.memory().iter().map(|(part, bytes)| ((*part).to_owned(), *bytes)).collect(),
    })
}

/// Evaluates the network that the run comes to on the test data: that of the best evaluation, where it was kept. The trainer
/// stays where that network was.
fn test(trainer: &mut EsperTrainer, eager: &mut Eager, config: &EsperConfig) -> anyhow::Result<(Tested, Score)> {
    let (epoch, step) = trainer.progress();
    let last = (Which::Last, epoch, step);
    let best = trainer.best().filter(|_| config.checkpoint.keep_best);
    // Telemetry is over, and tells of none that is passed over.
    let warn = |at: &Resumed| passed_over(at).for_each(|text| tracing::warn!("{text}"));
    let kept = if best.is_some() { trainer.restore_best(eager).context("reading the best checkpoint")? } else { None };
    kept.iter().for_each(warn);
    let (network, epoch, step) = match (best, kept) {
        (Some(best), Some(kept)) if kept.step == best.step => (Which::Best, best.epoch, best.step),
        // Best while none was kept, in an earlier part of the run.
        (_, Some(_)) => {
            trainer.resume(eager).context("reading the last checkpoint")?.iter().for_each(warn);
            last
        }
        (_, None) => last,
    };
    let parameters = trainer.seeds().model().layout().num_elements() as u64;
    Ok((Tested { network, epoch, step, parameters }, trainer.test(eager)?.score))
}

fn result_text(args: &TrainArgs, folder: &RunFolder, page: Option<&Path>, summary: &Summary) -> anyhow::Result<String> {
    Ok(if args.json {
        serde_json::to_string(summary)? + "\n"
    } else {
        let page = page.map_or_else(String::new, |page| format!("report: {}\n", page.display()));
        report::render_text(&report::Run::read(folder.path())?) + &page
    })
}
