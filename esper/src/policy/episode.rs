//! One run for a policy to learn from: what was chosen in it, and what that came to.

use std::sync::Arc;

use anyhow::Context as _;
use esper_layers::operations::counted;
use leyline::clock::SystemClock;
use leyline::command::Operation;
use leyline::error::BoxError;
use leyline::id::{RunId, StepIndex};
use leyline::region::Eager;
use leyline::seed::{SeedManager as _, SeedStage, SeedState};
use leyline::telemetry::NullRecorder;
use tamiyo::PolicyKind;
use tamiyo::policy::learned::{Choice, Choosing, Held, Networks, Teacher, Trace};
use tamiyo::risk::RiskRule;
use tolaria::trainer::report::EpochReport;
use tolaria::trainer::{Flow, Observer, RunEvent};

use crate::config::{DeviceName, EsperConfig};
use crate::data::Prepared;
use crate::policy::{One, Point};
use crate::run::Interrupt;
use crate::wire::{Surroundings, answering_parameters, assemble, is_whole, policy_config};

/// What looking costs: of the validation loss, for as much compute as the network takes.
const PRICE_OF_LOOKING: f64 = 0.1;
/// What growth costs: of the validation loss, for e times the parameters.
const PRICE_OF_GROWTH: f64 = 0.01;

/// Who decides in a run.
#[derive(Debug, Clone)]
pub(super) enum Decides {
    /// The rules of `heuristic`.
    Rules,
    /// A network.
    Network(Held, Choosing),
}

/// A run that is over.
#[derive(Debug)]
pub(super) struct Episode {
    pub(super) point: Point,
    /// Choices with the index of what was taken.
    pub(super) choices: Vec<(Choice, usize)>,
}

struct Watch<'a> {
    interrupt: &'a Interrupt,
    reports: Vec<EpochReport>,
}

impl Observer for Watch<'_> {
    fn step_finished(&mut self, _step: StepIndex) -> Flow {
        if self.interrupt.asked() { Flow::Stop } else { Flow::Continue }
    }

    fn event(&mut self, event: &RunEvent<'_>) {
        if let RunEvent::RolledBack { epoch, .. } = event {
            self.reports.retain(|report| report.epoch <= *epoch);
        }
    }

    fn epoch_finished(&mut self, report: &EpochReport) -> Result<(), BoxError> {
        self.reports.push(report.clone());
        Ok(())
    }
}

/// Trains with a policy whose generator begins with `dice`; `None` when the user ended it. Test data are not looked at.
pub(super) fn run(
    config: &EsperConfig,
    prepared: &Prepared,
    decides: &Decides,
    dice: u64,
    interrupt: &Interrupt,
) -> anyhow::Result<Option<Episode>> {
    let mut config = config.clone();
    config.policy.learned.seed = dice;
    // What is held back beside a network is no choice of its own.
    config.policy.risk.off = RiskRule::ALL.to_vec();
    let (networks, teacher): (Option<Box<dyn Networks>>, Teacher) = match decides {
        Decides::Rules => {
            config.policy.policy = PolicyKind::Heuristic;
            (None, Teacher::Rules)
        }
        Decides::Network(held, choosing) => {
            config.policy.policy = PolicyKind::Learned;
            config.policy.learned.choose = *choosing;
            (Some(Box::new(One(held.clone()))), Teacher::Network(held.clone()))
        }
    };
    let around = Surroundings {
        run_id: RunId::new("episode")?,
        checkpoints: None,
        command_journal: None,
        networks,
        recorder: Arc::new(NullRecorder),
        clock: Arc::new(SystemClock::new()),
    };
    let mut trainer = assemble(&config, prepared, around)?;
    let mut watch = Watch { interrupt, reports: Vec::new() };
    let mut eager = Eager::acquire()?;
    let (outcome, operations) = counted(|| trainer.run(&mut eager, &mut watch));
    if !is_whole(outcome?)? {
        return Ok(None);
    }
    let states = trainer.seeds().export_seed_states(&eager)?;
    let permanent = states.iter().filter(|state| state.stage == SeedStage::Fossilized);
    let gain = permanent.filter_map(|state| gain(state, &watch.reports)).fold(0.0, |sum, gain| sum + gain);
    let grown = answering_parameters(&trainer) as f64;
    let of_network = (operations.training + operations.evaluation) as f64;
    // What a GPU replays is not counted.
    let is_counted = config.run.device == DeviceName::Cpu && of_network > 0.0;
    let looking = if is_counted { operations.looking as f64 / of_network } else { estimate(&config, &watch.reports) };
    let point = point(&watch.reports, gain, looking, grown)?;
    Ok(Some(Episode { point, choices: choices(&config, teacher, &watch.reports)? }))
}

/// The confirmed gain of a seed, as a fraction of the validation loss when it was confirmed.
fn gain(seed: &SeedState, reports: &[EpochReport]) -> Option<f64> {
    let measured = seed.confirmation?.measured;
    let is_confirmed = |report: &&EpochReport| {
        report.seeds.iter().any(|state| state.seed_id == seed.seed_id && state.confirmation.is_some())
    };
    Some(measured.loss_gain / reports.iter().find(is_confirmed)?.validation.loss)
}

/// What looking took, in runs of the network, where nobody counted.
fn estimate(config: &EsperConfig, reports: &[EpochReport]) -> f64 {
    let in_shadow =
        |report: &EpochReport| report.seeds.iter().filter(|s| s.stage == SeedStage::Training).count() as f64;
    let shadow = reports.iter().map(in_shadow).fold(0.0, |sum, seeds| sum + seeds);
    shadow * config.policy.heuristic.looking.epoch_cost / config.run.epochs.get() as f64
}

fn point(reports: &[EpochReport], gain: f64, looking: f64, grown: f64) -> anyhow::Result<Point> {
    let first = reports.first().context("a run without epochs")?;
    let growth = (grown / first.asked.as_ref().map_or(grown, |asked| asked.host_parameters as f64)).ln();
    let reward = gain - PRICE_OF_LOOKING * looking - PRICE_OF_GROWTH * growth;
    Ok(Point { runs: 1, reward, gain, looking, growth })
}

/// What was chosen, from what the policy was shown; it must come to the orders that the run was given.
fn choices(config: &EsperConfig, teacher: Teacher, reports: &[EpochReport]) -> anyhow::Result<Vec<(Choice, usize)>> {
    let policy = policy_config(config);
    let mut trace = Trace::new(&policy, teacher);
    let mut all = Vec::new();
    for report in reports {
        let Some(asked) = &report.asked else { break };
        let shown = trace.decide(asked);
        let mut said: Vec<String> = shown
            .proposals
            .into_iter()
            .filter_map(|proposal| proposal.operation)
            .map(|mut operation| {
                if let Operation::Germinate { blend, .. } = &mut operation {
                    blend.clone_from(&policy.blend);
                }
                operation.to_string()
            })
            .collect();
        let mut given: Vec<String> = report.commands.iter().map(|command| command.operation.clone()).collect();
        said.sort();
        given.sort();
        anyhow::ensure!(said == given, "epoch {}: the run was given {given:?}, the policy says {said:?}", report.epoch);
        all.extend(shown.choices);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check;
    use crate::config::Layer;

    #[test]
    fn what_looking_took_is_counted_and_not_estimated() {
        let layers = Layer::data("digits").into_iter().collect();
        let set = ["run.epochs=40", "policy.heuristic.looking.epoch_cost=9"].map(str::to_owned);
        let checked = check::check(None, Layer::flags(layers, &set).unwrap()).unwrap();
        let (config, prepared) = (checked.loaded.config, checked.prepared);
        let (episode, found) =
            counted(|| run(&config, &prepared, &Decides::Rules, 0, &Interrupt::default()).unwrap().unwrap());
        assert!(found.looking > 0, "a seed was looked at");
        let expected = found.looking as f64 / (found.training + found.evaluation) as f64;
        assert!((episode.point.looking - expected).abs() < 1e-12, "{} for {expected}", episode.point.looking);
    }

    #[test]
    fn a_seed_that_trains_in_the_shadow_is_no_growth() {
        let layers = Layer::data("digits").into_iter().collect();
        let soon = ["stability.epochs=0", "plateau.patience_epochs=1", "plateau.min_relative_gain=1.0"];
        let soon = [&soon[..], &["germination.min_epoch=1", "looking.max_share=0.9"]].concat();
        let mut set: Vec<String> = soon.iter().map(|one| format!("policy.heuristic.{one}")).collect();
        // Ended before the policy thinks of the end.
        let ends = ["run.epochs=40", "train.early_stop.patience=5", "train.early_stop.min_delta=100.0"];
        set.extend(ends.map(str::to_owned));
        let checked = check::check(None, Layer::flags(layers, &set).unwrap()).unwrap();
        let (config, prepared) = (checked.loaded.config, checked.prepared);
        let episode = run(&config, &prepared, &Decides::Rules, 0, &Interrupt::default()).unwrap().unwrap();
        assert!(episode.point.looking > 0.0, "a seed was looked at");
        assert!(episode.point.growth.abs() < 1e-12, "{}", episode.point.growth);
    }
}
