//! `esper policy train`: clones the rules from runs that they decide, then learns from runs of its own.
//!
//! The gradient is REINFORCE (Williams 1992) with a baseline that leaves one out (Kool, van Hoof & Welling 2019): of several runs that
//! differ in what was drawn alone, each is compared with the mean of the others. The reward is the gain of the permanent seeds, as it was
//! confirmed on samples that decide nothing else, minus prices of looking and of growth. Test data are never looked at.

use std::collections::BTreeMap;
use std::num::{NonZeroU64, NonZeroUsize};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use anyhow::Context as _;
use clap::Args;
use esper_disk::StdFs;
use tamiyo::policy::learned::{Choosing, Held, MAX_HIDDEN, Network, Row};

use crate::bench::BUILD;
use crate::config::{ConfigError, EsperConfig, Layer};
use crate::data::Prepared;
use crate::exit::{self, UsageError};
use crate::policy::episode::{Decides, Episode, run};
use crate::policy::file::{Point, Training, read, write};
use crate::policy::learn::{Learner, Taken};
use crate::run::Interrupt;
use crate::signature::SignatureArgs;
use crate::{check, output};

/// Part of the runs that the rules decide.
const CLONED: u64 = 5;
/// Steps of cloning, and their rate.
const CLONING: (usize, f64) = (400, 0.01);
/// Data and random seeds of one step of learning, and runs of each.
const GROUPS: u64 = 4;
const DRAWS: u64 = 4;
const RATE: f64 = 0.002;
const ENTROPY: f64 = 0.003;

/// Flags of `esper policy train`.
#[derive(Debug, Clone, Args)]
pub struct PolicyTrainArgs {
    /// Data sets, as for `esper train --data`.
    #[arg(long, value_name = "NAME", value_delimiter = ',', default_value = "digits")]
    pub data: Vec<String>,
    /// Runs to learn from, in all; a fifth of them are decided by the rules of `heuristic`, the others come 16 at a time, the last of them
    /// beyond `N` where it takes them.
    #[arg(long, value_name = "N", default_value_t = 400)]
    pub runs: u64,
    /// Runs with other random seeds by which rules and networks are compared at the end, for each of them; the better network is kept,
    /// and what they say of it is then too high an estimate.
    #[arg(long, value_name = "N", default_value = "20")]
    pub held_out: NonZeroU64,
    /// Random seed of the first run; those of the others follow.
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    pub first_seed: u64,
    /// Width of the hidden layer, up to 256.
    #[arg(long, value_name = "N", default_value = "32")]
    pub hidden: NonZeroUsize,
    /// Any other setting, as for `esper train`.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Runs at the same time.
    #[arg(long, value_name = "N", default_value_t = NonZeroUsize::MIN)]
    pub jobs: NonZeroUsize,
    /// Folder for the policy; it is written after every step of learning.
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Learn on from the policy in `--out`, with the same data, seeds and settings. Moments of the gradient begin anew.
    #[arg(long)]
    pub resume: bool,
    /// With which key the policy is signed.
    #[command(flatten)]
    pub signature: SignatureArgs,
}

/// A data set with its configuration.
struct Problem {
    config: EsperConfig,
    prepared: Prepared,
}

/// A run to be trained: which data, which random seed, who decides, which dice.
struct Task<'a> {
    number: u64,
    decides: &'a Decides,
    dice: u64,
}

struct School<'a> {
    args: &'a PolicyTrainArgs,
    problems: Vec<Problem>,
    interrupt: Interrupt,
}

/// Runs `esper policy train`.
///
/// # Errors
/// What makes a run impossible, before any is trained; then the first run that fails. What was learned until then is there.
pub fn command(args: &PolicyTrainArgs) -> anyhow::Result<ExitCode> {
    let signing = args.signature.of_policies()?;
    if args.hidden.get() > MAX_HIDDEN {
        return Err(UsageError(format!("--hidden is {}: expected 1 to {MAX_HIDDEN}", args.hidden)).into());
    }
    let school = School { args, problems: problems(args)?, interrupt: Interrupt::install()? };
    let mut training = Training {
        data: school.problems.iter().map(|p| (p.config.data.name.to_string(), p.prepared.digest.to_string())).collect(),
        first_seed: args.first_seed,
        set: args.set.clone(),
        runs: 0,
        commit: BUILD.commit.map(str::to_owned),
        modified: BUILD.dirty,
        curve: Vec::new(),
        held_out: None,
    };
    let cloned_dir = args.out.join("cloned");
    let keep = |dir: &PathBuf, network: &Network, training: &Training| {
        write(&StdFs, dir, network, training.clone(), signing.as_ref())
            .with_context(|| format!("writing {}", dir.display()))
    };
    let num_cloned = (args.runs / CLONED).max(1);
    let (cloned, mut learner) = if args.resume {
        let earlier = |dir| {
            read(dir, signing.as_ref()).map_err(|error| {
                UsageError(format!("--resume: {:#}; expected what the same command wrote", anyhow::Error::new(error)))
            })
        };
        let ((cloned, _), (last, found)) = (earlier(&cloned_dir)?, earlier(&args.out)?);
        let of_found = (&found.training.data, found.training.first_seed, &found.training.set);
        if of_found != (&training.data, training.first_seed, &training.set) {
            let problem = format!(
                "--resume: {} was trained with other data, seeds or settings: expected the same",
                args.out.display()
            );
            return Err(UsageError(problem).into());
        }
        if found.hidden != args.hidden.get() {
            let (asked, dir) = (args.hidden, args.out.display());
            let problem =
                format!("--hidden is {asked}: the policy in {dir} has {}, which --resume keeps", found.hidden);
            return Err(UsageError(problem).into());
        }
        (training.runs, training.curve) = (found.training.runs, found.training.curve);
        (cloned.network, Learner::of(last.network.parts())?)
    } else {
        let Some(learner) = school.clone_rules(num_cloned, &mut training)? else {
            return Ok(ExitCode::from(exit::INTERRUPTED));
        };
        let network = learner.network()?;
        keep(&cloned_dir, &network, &training)?;
        keep(&args.out, &network, &training)?;
        (network, learner)
    };
    while training.runs < args.runs {
        let held = Held { digest: format!("after {} runs", training.runs), network: learner.network()? };
        let Some(episodes) = school.drawn(held, training.runs)? else {
            return Ok(ExitCode::from(exit::INTERRUPTED));
        };
        learn(&mut learner, &episodes)?;
        training.runs += GROUPS * DRAWS;
        training.note(&episodes);
        keep(&args.out, &learner.network()?, &training)?;
    }
    let Some((held_out, network)) = school.compare(cloned, learner.network()?, training.runs)? else {
        return Ok(ExitCode::from(exit::INTERRUPTED));
    };
    let told = |(who, point): (&String, &Point)| {
        let Point { runs, reward, gain, looking, growth } = point;
        format!(
            "{who}: reward {reward:+.4} over {runs} runs: gain {gain:.4}, looking {looking:.4}, growth {growth:.4}\n"
        )
    };
    let told: String = held_out.iter().map(told).collect();
    output::print(&format!(
        "{told}kept: the better of cloned and learned, chosen by these runs, which flatter it beside rules\n"
    ))?;
    training.held_out = Some(held_out);
    keep(&args.out, &network, &training)?;
    Ok(ExitCode::SUCCESS)
}

fn problems(args: &PolicyTrainArgs) -> anyhow::Result<Vec<Problem>> {
    let of = |name: &String| {
        let layers = Layer::data(name).into_iter().collect::<Vec<_>>();
        let checked = check::check(None, Layer::flags(layers, &args.set)?)?;
        check::warn(&checked.warnings);
        if let Some(issue) = checked.loaded.config.shared_by(args.jobs) {
            return Err(ConfigError::Invalid(vec![checked.loaded.locate(issue)]).into());
        }
        Ok(Problem { config: checked.loaded.config, prepared: checked.prepared })
    };
    args.data.iter().map(of).collect()
}

impl Training {
    fn note(&mut self, episodes: &[Episode]) {
        let point = Point { runs: self.runs, ..mean(episodes) };
        let Point { reward, gain, looking, growth, .. } = point;
        output::tell(&format!(
            "{} runs: reward {reward:+.4}, gain {gain:.4}, looking {looking:.4}, growth {growth:.4}\n",
            self.runs
        ));
        self.curve.push(point);
    }
}

/// Of the problem that a drawn run is of, after so many runs: the same for all that are compared.
fn number(done: u64, index: u64) -> u64 {
    done.div_ceil(DRAWS) + index / DRAWS
}

fn mean(episodes: &[Episode]) -> Point {
    let of = |part: fn(&Point) -> f64| {
        episodes.iter().map(|episode| part(&episode.point)).sum::<f64>() / episodes.len().max(1) as f64
    };
    Point {
        runs: episodes.len() as u64,
        reward: of(|p| p.reward),
        gain: of(|p| p.gain),
        looking: of(|p| p.looking),
        growth: of(|p| p.growth),
    }
}

/// One step of the policy gradient; episodes of a group are one after the other.
fn learn(learner: &mut Learner, episodes: &[Episode]) -> anyhow::Result<()> {
    #[expect(clippy::cast_possible_truncation, reason = "a small number")]
    let group = DRAWS as usize;
    let advantage = |index: usize| {
        let of_group = &episodes[index / group * group..][..group];
        let sum: f64 = of_group.iter().map(|episode| episode.point.reward).sum();
        let own = episodes[index].point.reward;
        own - (sum - own) / (group as f64 - 1.0)
    };
    let advantages: Vec<f64> = (0..episodes.len()).map(advantage).collect();
    let size = (advantages.iter().map(|x| x * x).sum::<f64>() / advantages.len() as f64).sqrt().max(1e-6);
    #[expect(clippy::cast_possible_truncation, reason = "rounded")]
    let weighed = episodes.iter().zip(&advantages).flat_map(|(episode, advantage)| {
        episode.choices.iter().map(move |(choice, taken)| (choice, *taken, (advantage / size) as f32))
    });
    learner.step(&weighed.collect::<Vec<Taken<'_>>>(), RATE, ENTROPY)?;
    Ok(())
}

impl School<'_> {
    /// Learns what the rules do in `num_runs` runs; `None` when the user ended it.
    fn clone_rules(&self, num_runs: u64, training: &mut Training) -> anyhow::Result<Option<Learner>> {
        let tasks: Vec<Task<'_>> =
            (0..num_runs).map(|number| Task { number, decides: &Decides::Rules, dice: 0 }).collect();
        let Some(episodes) = self.run_all(&tasks)? else { return Ok(None) };
        training.runs = num_runs;
        training.note(&episodes);
        let choices: Vec<_> = episodes.iter().flat_map(|episode| &episode.choices).collect();
        let rows: Vec<Row> = choices.iter().flat_map(|(choice, _)| choice.rows.iter().copied()).collect();
        let mut learner = Learner::new(&rows, self.args.hidden.get(), self.args.first_seed)?;
        let taken: Vec<Taken<'_>> = choices.iter().map(|(choice, taken)| (choice, *taken, 1.0)).collect();
        let mut fit = 0.0;
        for step in 0..CLONING.0 {
            // To 0 at the end.
            fit = learner.step(&taken, CLONING.1 * (1.0 - step as f64 / CLONING.0 as f64), 0.0)?;
        }
        output::tell(&format!("cloned {} choices: mean probability e^{fit:.3}\n", taken.len()));
        Ok(Some(learner))
    }

    fn drawn(&self, held: Held, done: u64) -> anyhow::Result<Option<Vec<Episode>>> {
        let decides = Decides::Network(held, Choosing::Drawn);
        let of = |index: u64| Task { number: number(done, index), decides: &decides, dice: 1 + index % DRAWS };
        self.run_all(&(0..GROUPS * DRAWS).map(of).collect::<Vec<_>>())
    }

    /// Mean rewards on seeds after all others, by who decides; and the better network.
    fn compare(
        &self,
        cloned: Network,
        last: Network,
        done: u64,
    ) -> anyhow::Result<Option<(BTreeMap<String, Point>, Network)>> {
        let likeliest = |name: &str, network: &Network| {
            Decides::Network(Held { digest: name.to_owned(), network: network.clone() }, Choosing::Likeliest)
        };
        let all = [
            ("rules", Decides::Rules),
            ("cloned", likeliest("cloned", &cloned)),
            ("learned", likeliest("learned", &last)),
        ];
        let mut held_out = BTreeMap::new();
        for (name, decides) in &all {
            let of = |index| Task { number: self.args.runs.max(done) + index, decides, dice: 0 };
            let Some(episodes) = self.run_all(&(0..self.args.held_out.get()).map(of).collect::<Vec<_>>())? else {
                return Ok(None);
            };
            held_out.insert((*name).to_owned(), mean(&episodes));
        }
        let is_better = held_out["learned"].reward >= held_out["cloned"].reward;
        Ok(Some((held_out, if is_better { last } else { cloned })))
    }

    fn run(&self, task: &Task<'_>) -> anyhow::Result<Option<Episode>> {
        let num = self.problems.len() as u64;
        #[expect(clippy::cast_possible_truncation, reason = "below the number of data sets")]
        let Problem { config, prepared } = &self.problems[(task.number % num) as usize];
        let mut config = config.clone();
        config.run.seed = self.args.first_seed.wrapping_add(task.number / num);
        run(&config, prepared, task.decides, task.dice, &self.interrupt)
            .with_context(|| format!("{}, seed {}", config.data.name, config.run.seed))
    }

    /// Trains on as many threads as asked for; in the order of the tasks, whichever ended first.
    fn run_all(&self, tasks: &[Task<'_>]) -> anyhow::Result<Option<Vec<Episode>>> {
        let (next, ended) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
        let work = || {
            while let Some((index, task)) =
                Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|i| Some((i, tasks.get(i)?)))
            {
                let episode = self.run(task);
                let goes_on = matches!(episode, Ok(Some(_)));
                ended.lock().unwrap_or_else(PoisonError::into_inner).insert(index, episode);
                if !goes_on {
                    next.fetch_max(tasks.len(), Ordering::Relaxed);
                }
            }
        };
        thread::scope(|scope| (0..self.args.jobs.get()).for_each(|_| drop(scope.spawn(work))));
        ended.into_inner().unwrap_or_else(PoisonError::into_inner).into_values().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_that_are_compared_are_of_one_problem_however_many_were_made_before() {
        for done in 0..3 * DRAWS {
            for group in 0..GROUPS {
                let of = |draw| number(done, group * DRAWS + draw);
                assert!((0..DRAWS).all(|draw| of(draw) == done.div_ceil(DRAWS) + group), "{done}, {group}");
            }
        }
    }
}
