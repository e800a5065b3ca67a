//! What became of the seeds of runs: the counts that `policy.heuristic.earlier` tells a later run.

use std::collections::{BTreeMap, BTreeSet};

use leyline::seed::SeedStage;
use tamiyo::policy::heuristic::EarlierTries;

use super::settings::Settings;
use crate::exit::UsageError;
use crate::report::{Run, printable};

/// What has to be the same for seeds of one run to say anything of those of another.
const SECTIONS: &[&str] = &["data", "host", "seeds", "policy.blend", "run.epochs", "run.max_steps"];
/// The policies that keep what was worth it. Dice and schedules cull or keep for other reasons.
const WEIGHS: &[&str] = &["\"heuristic\"", "\"learned\""];

/// Counts the seeds whose life ended, by slot, blueprint and size; those that lived when their run ended are left out. With them the runs
/// that do not count, as their policy does not weigh seeds, and why.
///
/// # Errors
/// A run that is given twice; no run whose policy weighs seeds; runs that differ in data, host, seeds, blend or length; a run that did not
/// write down what was on offer; no seed whose life ended.
pub(crate) fn earlier(runs: &[(Run, Settings)]) -> Result<(Vec<EarlierTries>, Vec<String>), UsageError> {
    let mut given = BTreeSet::new();
    if let Some((run, _)) = runs.iter().find(|(run, _)| !given.insert(run.record.run_id.to_string())) {
        let (dir, id) = (run.dir.display(), &run.record.run_id);
        return Err(UsageError(format!("{dir} is the run {id}, which was given before: expected each run once")));
    }
    // Runs of before there was a choice say nothing of it.
    let policy = |settings: &Settings| settings.get("policy.policy").unwrap_or(WEIGHS[0]).to_owned();
    let (runs, others): (Vec<_>, Vec<_>) =
        runs.iter().partition(|(_, settings)| WEIGHS.contains(&policy(settings).as_str()));
    let left_out = others.iter().map(|(run, settings)| {
        let dir = run.dir.display();
        printable(&format!(
            "{dir} is left out: `policy.policy` is {}; expected runs that `heuristic` or `learned` decided",
            policy(settings)
        ))
    });
    let left_out: Vec<String> = left_out.collect();
    if runs.is_empty() {
        return Err(UsageError(left_out.join("\n")));
    }
    let of_host: Vec<Settings> =
        runs.iter().map(|(_, settings)| settings.clone().without_chance().of_sections(SECTIONS)).collect();
    if let Some(key) = Settings::different(&of_host.iter().collect::<Vec<_>>()).first() {
        let other = of_host.iter().position(|one| one.get(key) != of_host[0].get(key)).unwrap_or(0);
        let told = |index: usize| {
            format!("{} in {}", of_host[index].get(key).unwrap_or("not set"), runs[index].0.dir.display())
        };
        let problem = format!(
            "`{key}` is {}, and {}: expected runs of one host on the same data, blended alike and of one length",
            told(0),
            told(other)
        );
        return Err(UsageError(problem));
    }
    let mut tries: Vec<EarlierTries> = Vec::new();
    for (run, _) in runs {
        for one in of_run(run)? {
            match tries.iter_mut().find(|known| known.is_of_pair_of(&one)) {
                Some(known) => (known.tries, known.kept) = (known.tries + one.tries, known.kept + one.kept),
                None => tries.push(one),
            }
        }
    }
    if tries.is_empty() {
        return Err(UsageError("no seed of these runs was kept or removed; expected runs that tried some".to_owned()));
    }
    tries.sort_by(|a, b| (a.grown, &a.slot, &a.blueprint).cmp(&(b.grown, &b.slot, &b.blueprint)));
    Ok((tries, left_out))
}

/// One for each seed of the run whose life ended.
fn of_run(run: &Run) -> Result<Vec<EarlierTries>, UsageError> {
    let (mut live, mut ended, mut grown) = (BTreeMap::new(), Vec::new(), false);
    for report in &run.epochs {
        let mut is_kept = false;
        for change in &report.transitions {
            match change.to {
                SeedStage::Germinated => {
                    let state = report.seeds.iter().find(|state| state.seed_id == change.seed);
                    let offer = state.zip(report.asked.as_ref()).and_then(|(state, asked)| {
                        let slot = asked.slots.iter().find(|slot| slot.slot == state.slot)?;
                        let offer = slot.offers.iter().find(|offer| offer.blueprint == state.blueprint)?;
                        Some((state, offer.num_parameters))
                    });
                    let (state, parameters) = offer.ok_or_else(|| {
                        let (dir, epoch, seed) = (run.dir.display(), report.epoch, change.seed);
                        UsageError(format!(
                            "{dir}: epoch {epoch} does not say what {seed} was on offer as; expected a run of this version"
                        ))
                    })?;
                    let (slot, blueprint) = (state.slot.clone(), state.blueprint.clone());
                    live.insert(change.seed, EarlierTries { slot, blueprint, parameters, grown, tries: 1, kept: 0 });
                }
                SeedStage::Fossilized => {
                    ended.extend(live.remove(&change.seed).map(|one| EarlierTries { kept: 1, ..one }));
                    is_kept = true;
                }
                SeedStage::Pruned => ended.extend(live.remove(&change.seed)),
                SeedStage::Dormant
                | SeedStage::Training
                | SeedStage::Blending
                | SeedStage::Holding
                | SeedStage::Embargoed
                | SeedStage::Resetting => {}
            }
        }
        // What germinates at the same boundary was decided before.
        grown |= is_kept;
    }
    Ok(ended)
}
