//! `esper decisions`: of every decision of a run what was observed after it; and whether the policy decides the same anew.

use std::fmt::Write as _;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;
use clap::Args;
use leyline::clock::SystemClock;
use leyline::id::SeedId;
use leyline::policy::Policy as _;
use leyline::seed::SeedStage;
use leyline::state::Score;
use leyline::telemetry::NullRecorder;
use serde::Serialize;
use tolaria::trainer::report::{CommandRecord, EpochReport};

use crate::config::{EsperConfig, Layer};
use crate::policy::Kept;
use crate::report::{self, METRICS_FILE, Run, SUMMARY_FILE, printable};
use crate::{exit, output, wire};

/// Flags of `esper decisions`.
#[derive(Debug, Clone, Args)]
pub(super) struct DecisionsArgs {
    /// Folder that `esper train` wrote.
    run_dir: PathBuf,
    /// Epochs after a decision over which its effect is observed.
    #[arg(long, value_name = "EPOCHS", default_value = "5")]
    window: NonZeroU64,
    /// Show the policy what it was shown, epoch by epoch, and compare what it says: exit code 1 where that differs, or
    /// cannot be compared to the end of the run.
    #[arg(long)]
    replay: bool,
    /// Print one JSON object a line.
    #[arg(long)]
    json: bool,
}

/// One command and what was observed after it. What was not measured, or lies after the end of the run, is absent.
#[derive(Debug, Serialize)]
struct Observed<'a> {
    /// The epoch at whose end it was given.
    epoch: u64,
    #[serde(flatten)]
    command: &'a CommandRecord,
    seed: Option<SeedId>,
    /// Validation loss that it was decided on, nats or the unit of the task.
    loss: f64,
    /// Validation loss at the end of the window minus that before: what happened, by this decision or not.
    loss_change: Option<f64>,
    /// The change over as many epochs before it: what went on anyhow.
    loss_change_before: Option<f64>,
    accuracy_change: Option<f64>,
    /// Parameters at the end of the window, after its last commands, minus those of the epoch that the command ended.
    parameters_change: Option<i64>,
    /// Other commands that were carried out from that epoch to the end of the window (count).
    num_others: Option<u64>,
    /// Where the seed is at the end of the window.
    stage: Option<SeedStage>,
}

/// The seed that a command speaks of; for a germination the one that it made.
fn seed_of(report: &EpochReport, command: &CommandRecord) -> Option<SeedId> {
    if command.refused.is_some() {
        return None;
    }
    let mut words = command.operation.split(' ');
    match (words.next(), words.clone().find_map(|word| word.parse::<SeedId>().ok())) {
        (Some("germinate"), _) => {
            let slot = words.nth(2)?;
            let germinated = report.transitions.iter().filter(|change| change.to == SeedStage::Germinated);
            let mut of_slot = germinated
                .filter(|change| report.seeds.iter().any(|s| s.seed_id == change.seed && s.slot.as_str() == slot));
            of_slot.next().map(|change| change.seed)
        }
        (_, seed) => seed,
    }
}

fn observe(epochs: &[EpochReport], window: u64) -> Vec<Observed<'_>> {
    let at = |epoch: u64| epochs.binary_search_by_key(&epoch, |report| report.epoch.0).ok().map(|i| &epochs[i]);
    let mut observed = Vec::new();
    for report in epochs {
        let epoch = report.epoch.0;
        let end = at(epoch.saturating_add(window));
        let begin = epoch.checked_sub(window).and_then(at);
        let change = |from: &Score, to: &Score| to.loss - from.loss;
        // A report has those after its commands, of which this one is; nothing was there before the first epoch but the host.
        let size_before = match epoch.checked_sub(1).and_then(at) {
            Some(before) => Some(before.num_parameters),
            None => report.asked.as_ref().filter(|_| epoch == 1).map(|asked| asked.host_parameters),
        };
        for command in &report.commands {
            let seed = seed_of(report, command);
            let carried_out = |end: &EpochReport| {
                let window = epochs.iter().filter(|other| (epoch..=end.epoch.0).contains(&other.epoch.0));
                window.flat_map(|other| &other.commands).filter(|other| other.refused.is_none()).count() as u64
            };
            observed.push(Observed {
                epoch,
                command,
                seed,
                loss: report.validation.loss,
                loss_change: end.map(|end| change(&report.validation, &end.validation)),
                loss_change_before: begin.map(|begin| change(&begin.validation, &report.validation)),
                accuracy_change: end.and_then(|end| Some(end.validation.accuracy()? - report.validation.accuracy()?)),
                parameters_change: end.and_then(|end| end.num_parameters.checked_signed_diff(size_before?)),
                num_others: end.map(|end| carried_out(end) - u64::from(command.refused.is_none())),
                stage: end.zip(seed).and_then(|(end, seed)| {
                    end.seeds.iter().find(|state| state.seed_id == seed).map(|state| state.stage)
                }),
            });
        }
    }
    observed
}

/// What a policy said, as a run writes it down.
type Said = Vec<(String, String)>;

/// What came of asking anew.
#[derive(Debug, Serialize)]
struct Replayed {
    /// Epochs at whose ends the policy said what it had said (count).
    same: u64,
    /// Where it did not, or could not be compared any further.
    difference: Option<String>,
}

fn replay(config: &EsperConfig, run: &Run) -> anyhow::Result<Replayed> {
    let networks = Box::new(Kept::of(&run.dir, &run.epochs));
    let mut policy = wire::policy(config, Some(networks), Arc::new(SystemClock::new()), Arc::new(NullRecorder))?;
    let mut same = 0;
    for (report, number) in run.epochs.iter().zip(1..) {
        let epoch = report.epoch.0;
        let ends = |problem: String| Replayed { same, difference: Some(format!("epoch {epoch}: {problem}")) };
        if epoch != number {
            return Ok(ends(format!("expected epoch {number}: what the policy was shown before is not known")));
        }
        // A policy that is frozen, late or blocked may or may not have seen the epoch, and remembers accordingly.
        let unanswered = ["emergency", "policy_late", "policy_busy", "policy_blocked", "policy_error"];
        if let Some(why) = report.waiting.iter().find(|why| unanswered.contains(&why.rule.as_str())) {
            return Ok(ends(format!(
                "{} ({}); what the policy remembers from there on is not known",
                why.rule, why.detail
            )));
        }
        let Some(asked) = &report.asked else {
            return Ok(ends("what the policy was shown was not written down, by an earlier version".to_owned()));
        };
        let decision =
            policy.decide(asked).with_context(|| format!("asking the policy at the end of epoch {epoch}"))?;
        let said: Said = decision.orders.into_iter().map(|order| (order.operation.to_string(), order.reason)).collect();
        let before: Said =
            report.commands.iter().map(|command| (command.operation.clone(), command.reason.clone())).collect();
        if said != before || decision.waiting != report.waiting {
            return Ok(ends(format!(
                "the run has {before:?}, waiting for {:?}; the policy says {said:?}, waiting for {:?}",
                report.waiting, decision.waiting
            )));
        }
        same += 1;
    }
    // What was not compared is not the same.
    let difference = match &run.summary {
        Some(summary) if same < summary.epochs => Some(format!(
            "epoch {}: {METRICS_FILE} does not have it, and {SUMMARY_FILE} speaks of {} epochs",
            same + 1,
            summary.epochs
        )),
        _ => (same == 0).then(|| "there is no epoch to compare".to_owned()),
    };
    Ok(Replayed { same, difference })
}

/// Runs the sub-command.
///
/// # Errors
/// When the folder holds no run, or a file of it cannot be read; the error names file and line.
pub(super) fn command(args: &DecisionsArgs) -> anyhow::Result<ExitCode> {
    let run = Run::read(&args.run_dir).with_context(|| format!("reading the run in {}", args.run_dir.display()))?;
    output::tell(&run.notes.iter().map(|note| format!("note: {note}\n")).collect::<String>());
    let observed = observe(&run.epochs, args.window.get());
    let mut text = String::new();
    for one in &observed {
        if args.json {
            writeln!(text, "{}", serde_json::to_string(one)?)?;
        } else {
            text.push_str(&told(one, args.window.get()));
        }
    }
    if !args.json && observed.is_empty() {
        text.push_str("no decision\n");
    }
    let mut code = ExitCode::SUCCESS;
    if args.replay {
        let path = args.run_dir.join(report::CONFIG_FILE);
        let config = EsperConfig::load(None, vec![Layer::file(&path)?])?.config;
        let replayed = replay(&config, &run)?;
        match (&replayed.difference, args.json) {
            (_, true) => writeln!(text, "{}", serde_json::to_string(&replayed)?)?,
            (None, _) => {
                writeln!(text, "replayed: the policy decides the same at the ends of {} epochs", replayed.same)?
            }
            (Some(difference), _) => {
                writeln!(text, "replayed: the same for {} epochs, then {difference}", replayed.same)?
            }
        }
        if replayed.difference.is_some() {
            code = ExitCode::from(exit::FAILED);
        }
    }
    output::print(&text)?;
    Ok(code)
}

fn told(one: &Observed<'_>, window: u64) -> String {
    let Observed { epoch, command, loss, .. } = one;
    let mut text =
        format!("epoch {epoch}: {}, since {}\n  ", printable(&command.operation), printable(&command.reason));
    match (&command.refused, one.loss_change) {
        (Some(why), _) => text += &format!("refused: {}", printable(why)),
        (None, None) => text += &format!("loss {loss:.4}; the run has no epoch {} yet", epoch + window),
        (None, Some(change)) => {
            text += &format!("loss {loss:.4}, {change:+.4} over {window} epochs");
            if let Some(before) = one.loss_change_before {
                text += &format!(" ({before:+.4} over as many before)");
            }
            if let Some(change) = one.accuracy_change {
                text += &format!(", accuracy {:+.2} pp", 100.0 * change);
            }
            if let Some(change) = one.parameters_change.filter(|change| *change != 0) {
                text += &format!(", {change:+} parameters");
            }
            if let (Some(seed), Some(stage)) = (one.seed, one.stage) {
                text += &format!("; {seed} {stage}");
            }
            if let Some(others) = one.num_others.filter(|others| *others > 0) {
                text += &format!("; {others} other commands");
            }
        }
    }
    text + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::testing::epoch;

    #[test]
    fn a_size_is_compared_with_that_before_the_command() {
        let command =
            CommandRecord { sequence: None, operation: "cull seed-1".to_owned(), reason: String::new(), refused: None };
        let of = |number, num_parameters| EpochReport { num_parameters, ..epoch(number) };
        let epochs = [of(1, 100), EpochReport { commands: vec![command], ..of(2, 60) }, of(3, 60)];
        let found = observe(&epochs, 1);
        assert_eq!(found[0].parameters_change, Some(-40), "{found:?}");
        assert_eq!(observe(&epochs[1..], 1)[0].parameters_change, None, "what was there before is not known");
    }
}
