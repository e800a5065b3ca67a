//! The page: everything the template needs, as text that only has to be escaped.

use askama::Template;
use leyline::seed::{Counterfactual, GradientHealth, SeedStage};
use leyline::state::Score;
use tolaria::trainer::report::EpochReport;

use super::chart::{Chart, Lifecycle, alphas, curves, gradients, lifecycle};
use super::format::{calendar, count, decimal, duration, percent};
use super::gradients::Gradients;
use super::history::{EventKind, Measured, SeedLife, Told, seed_events, seed_lives};
use super::overview::{Fact, facts, memory, outcome};
use super::printable::printable;
use super::waiting::{Waiting, waiting};
use super::{ReportError, Run};

/// With more commands than this, their table is folded up.
const MAX_COMMAND_ROWS: usize = 60;

/// Most rows of the table of epochs; the whole is in `metrics.jsonl`.
const MAX_EPOCH_ROWS: usize = 500;

/// Lays out the page of a run: one HTML document, well-formed as XML too, that needs no script and no other file.
///
/// # Errors
/// [`ReportError::Layout`] when the template engine fails.
pub fn render_html(run: &Run) -> Result<String, ReportError> {
    Page::of(run).render().map_err(ReportError::Layout)
}

/// The same page for a run that is under way, as [`crate::serve`] answers it: it keeps itself up to date with a script of
/// its server, which knows pages by their `revision`, and is without configuration and provenance.
///
/// # Errors
/// As there.
pub(crate) fn render_live(run: &Run, revision: u64) -> Result<String, ReportError> {
    let page = Page::of(run);
    let outcome = if run.summary.is_some() { page.outcome } else { "training" };
    Page { is_live: true, revision, outcome, ..page }.render().map_err(ReportError::Layout)
}

#[derive(Template)]
#[template(path = "report/page.html", whitespace = "minimize")]
struct Page<'a> {
    run_id: String,
    /// Whether the run is under way, and its page served.
    is_live: bool,
    /// Of the run folder that a page that is served was made from.
    revision: u64,
    outcome: &'static str,
    /// Data, device and start in a line.
    subtitle: String,
    facts: Vec<Fact>,
    notes: &'a [String],
    lifecycle: Option<Lifecycle>,
    alphas: Option<Chart>,
    charts: Vec<Chart>,
    /// Gradients of host and seeds; absent when they were not told apart.
    gradients: Option<Gradients>,
    gradient_charts: Vec<Chart>,
    /// Kinds of markers that occur.
    event_kinds: Vec<&'static str>,
    /// Tables of seeds, behind a heading when they are not to be seen at once.
    seeds: Vec<(Option<String>, Vec<SeedRow>)>,
    verdicts: Vec<VerdictRow>,
    commands: Vec<CommandRow>,
    are_commands_folded: bool,
    /// What the policy waited for.
    waiting: Vec<Waiting>,
    /// What memory was for, and how large that was.
    memory: Vec<(String, String)>,
    changes: Vec<ChangeRow>,
    epochs: Vec<EpochRow>,
    num_epochs: usize,
    config: &'a str,
    provenance: Vec<Origin>,
}

struct SeedRow {
    seed: String,
    place: String,
    stage: SeedStage,
    alpha: String,
    num_parameters: String,
    germinated: u64,
    effect: Option<Effect>,
    gradient: Option<String>,
}

struct Effect {
    gain: String,
    /// Absent where nothing is to be recognized.
    accuracy: Option<String>,
    measured: String,
}

struct VerdictRow {
    epoch: u64,
    seed: String,
    target: SeedStage,
    passed: bool,
    met: Vec<String>,
    failed: Vec<String>,
}

struct CommandRow {
    epoch: u64,
    sequence: String,
    operation: String,
    reason: String,
    refused: Option<String>,
}

struct ChangeRow {
    epoch: u64,
    seed: String,
    from: SeedStage,
    to: SeedStage,
    reason: String,
}

struct EpochRow {
    epoch: u64,
    /// The other cells, in the order of the table's head; absent ones were not measured.
    cells: Vec<Option<String>>,
}

struct Origin {
    label: &'static str,
    value: String,
    /// Whether it is to be copied letter by letter.
    is_code: bool,
}

impl<'a> Page<'a> {
    fn of(run: &'a Run) -> Self {
        let lives = seed_lives(&run.epochs);
        let events = seed_events(&run.epochs);
        let record = &run.record;
        let (first, last) = (run.epochs.first(), run.epochs.last());
        let mut kinds: Vec<EventKind> = events.iter().map(|event| event.kind).collect();
        kinds.sort_unstable();
        kinds.dedup();
        Self {
            run_id: record.run_id.to_string(),
            is_live: false,
            revision: 0,
            outcome: outcome(run),
            subtitle: format!(
                "{} on {}, started {}",
                printable(&record.data.name),
                printable(&record.device),
                calendar(record.started_unix_ms)
            ),
            facts: facts(run, &lives),
            notes: &run.notes,
            lifecycle: lifecycle(
                first.map_or(1, |report| report.epoch.0),
                last.map_or(1, |report| report.epoch.0),
                &lives,
            ),
            alphas: alphas(run, &lives, &events),
            charts: curves(run, &events),
            gradients: Gradients::of(&run.epochs),
            gradient_charts: gradients(run, &lives, &events),
            event_kinds: kinds.into_iter().map(EventKind::name).collect(),
            seeds: seed_tables(&lives),
            verdicts: lives.iter().flat_map(verdicts).collect(),
            are_commands_folded: run.epochs.iter().flat_map(commands).count() > MAX_COMMAND_ROWS,
            commands: run.epochs.iter().flat_map(commands).collect(),
            waiting: waiting(&run.epochs),
            memory: memory(run),
            changes: run.epochs.iter().flat_map(changes).collect(),
            epochs: epoch_rows(&run.epochs),
            num_epochs: run.epochs.len(),
            config: &run.config,
            provenance: provenance(run),
        }
    }
}

fn seed_tables(lives: &[SeedLife<'_>]) -> Vec<(Option<String>, Vec<SeedRow>)> {
    let told = Told::of(lives);
    let alone: Vec<SeedRow> = told.alone.iter().map(|(_, life)| SeedRow::of(life)).collect();
    let mut together: Vec<&SeedLife<'_>> = told.together.values().flatten().copied().collect();
    together.sort_by_key(|life| life.last.seed_id);
    let heading = format!("Pruned seeds ({})", together.len());
    let together = together.into_iter().map(SeedRow::of).collect();
    let tables = [(None, alone), (Some(heading), together)];
    tables.into_iter().filter(|(_, rows): &(_, Vec<SeedRow>)| !rows.is_empty()).collect()
}

impl SeedRow {
    fn of(life: &SeedLife<'_>) -> Self {
        Self {
            seed: life.last.seed_id.to_string(),
            place: format!("{} in {}", life.last.blueprint, life.last.slot),
            stage: life.fate(),
            alpha: format!("{:.2}", life.last.alpha.get()),
            num_parameters: count(life.num_parameters),
            germinated: life.germinated,
            effect: life.effect.as_ref().map(Effect::of),
            gradient: life.gradient.as_ref().map(gradient),
        }
    }
}

impl Effect {
    fn of(measured: &Measured<Counterfactual>) -> Self {
        let Counterfactual { loss_gain, std_error, accuracy_gain_pp, num_samples } = measured.value;
        let sign = if loss_gain > 0.0 { "+" } else { "" };
        Self {
            gain: format!("{sign}{} ± {} in loss", decimal(loss_gain), decimal(std_error)),
            accuracy: accuracy_gain_pp.map(|gain| format!("{gain:+.2} pp accuracy")),
            measured: format!("{} samples, epoch {}, {}", count(num_samples), measured.epoch, measured.stage),
        }
    }
}

fn gradient(measured: &Measured<GradientHealth>) -> String {
    let GradientHealth { norm, host_ratio, health } = measured.value;
    let ratio = host_ratio.map_or_else(String::new, |ratio| format!(", {ratio:.2} × host"));
    format!("norm {}{ratio}, health {}", decimal(norm), percent(health))
}

fn verdicts(life: &SeedLife<'_>) -> Vec<VerdictRow> {
    let lines = |conditions: &[String]| conditions.iter().map(|condition| printable(condition)).collect();
    life.verdicts
        .iter()
        .map(|(epoch, gate)| VerdictRow {
            epoch: *epoch,
            seed: life.last.seed_id.to_string(),
            target: gate.target,
            passed: gate.passed,
            met: lines(&gate.met),
            failed: lines(&gate.failed),
        })
        .collect()
}

fn commands(report: &EpochReport) -> impl Iterator<Item = CommandRow> {
    report.commands.iter().map(|command| CommandRow {
        epoch: report.epoch.0,
        sequence: command.sequence.map_or_else(String::new, |sequence| sequence.to_string()),
        operation: printable(&command.operation),
        reason: printable(&command.reason),
        refused: command.refused.as_deref().map(printable),
    })
}

fn changes(report: &EpochReport) -> impl Iterator<Item = ChangeRow> {
    report.transitions.iter().map(|change| ChangeRow {
        epoch: report.epoch.0,
        seed: change.seed.to_string(),
        from: change.from,
        to: change.to,
        reason: printable(&change.reason),
    })
}

/// The first, the last, and evenly spaced ones between.
fn epoch_rows(epochs: &[EpochReport]) -> Vec<EpochRow> {
    let stride = epochs.len().div_ceil(MAX_EPOCH_ROWS).max(1);
    let chosen = epochs.iter().enumerate().filter(|(index, _)| index % stride == 0 || index + 1 == epochs.len());
    chosen
        .map(|(_, report)| EpochRow {
            epoch: report.epoch.0,
            cells: vec![
                report.train.as_ref().map(|train| decimal(train.loss)),
                Some(decimal(report.validation.loss)),
                report.train.as_ref().and_then(Score::accuracy).map(percent),
                report.validation.accuracy().map(percent),
                Some(count(report.num_parameters)),
                Some(decimal(report.learning_rate)),
                report.gradient_norm.map(decimal),
                report.conflict.as_ref().map(|conflict| percent(conflict.ratio)),
                report.conflict.as_ref().map(|conflict| percent(conflict.host_share)),
                Some(duration(report.wall_s)),
            ],
        })
        .collect()
}

fn provenance(run: &Run) -> Vec<Origin> {
    let record = &run.record;
    let (versions, data) = (&record.versions, &record.data);
    let text = |label, value: String| Some(Origin { label, value, is_code: false });
    let code = |label, value: &str| Some(Origin { label, value: printable(value), is_code: true });
    let summary = run.summary.as_ref();
    [
        code("Run", record.run_id.as_str()),
        text("Started", calendar(record.started_unix_ms)),
        text("Outcome", outcome(run).to_owned()),
        summary.and_then(|summary| summary.resumed_from.as_deref()).and_then(|from| code("Resumed from", from)),
        text("Esper", printable(&format!("{} for {}", versions.esper, versions.target))),
        versions.rustc.as_deref().and_then(|rustc| text("Compiler", printable(rustc))),
        versions.git_commit.as_deref().and_then(|commit| code("Commit", commit)),
        text("Data", printable(&data.name)),
        code("Data digest", &data.digest),
        text(
            "Samples",
            format!(
                "{} training, {} validation, {} test",
                count(data.num_train),
                count(data.num_validation),
                count(data.num_test)
            ),
        ),
        text("Device", printable(&record.device)),
        text("Seed", record.seed.to_string()),
        summary.and_then(|summary| code("Folder", &summary.out)),
        code("Resume", &record.resume_command),
        code("Reproduce", &record.reproduce_command),
    ]
    .into_iter()
    .flatten()
    .collect()
}
