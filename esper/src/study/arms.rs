//! The arms of a study: what is trained, some of it after others, whose size or cost it is to have.

use std::num::NonZeroU64;
use std::sync::Arc;

use anyhow::Context as _;
use candle_core::Device;
use kasmina::Kasmina;
use leyline::clock::SystemClock;
use leyline::model::TrainableModel as _;
use leyline::seed::SeedManager as _;
use leyline::telemetry::NullRecorder;
use tamiyo::policy::PolicyKind;
use tamiyo::policy::heuristic::EarlierConfig;
use tamiyo::policy::learned::Held;

use super::command::StudyArgs;
use super::dice::drawn;
use super::file::Run;
use crate::check::Checked;
use crate::config::{ConfigError, Diagnostic, EsperConfig, Issue, Layer};
use crate::exit::UsageError;
use crate::wire::kasmina_config;
use crate::{check, data};

/// Widths grow in such parts of those of the host, and to at most so many times of them.
const PARTS: usize = 64;
const MOST_TIMES: usize = 256;
/// The widths of a sweep, in those of the host: chosen without a look at what grows.
pub(super) const WIDTHS: [usize; 5] = [1, 2, 4, 8, 16];

/// What an arm is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A policy.
    Policy,
    /// The first policy, with nothing on offer but seeds that add noise.
    Noise,
    /// The first policy, which is told nothing of earlier runs.
    Untold,
    /// The network of the host in five widths, of which the one that is best on validation data counts, and the cost of all.
    Sweep,
    /// As many permanent seeds as the first policy kept, drawn by dice.
    RandomEqual,
    /// The network of the host with wider layers, of the size that the first policy grew to.
    Scratch(Equal),
}

/// What a network from scratch has in common with the one that was grown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Equal {
    Steps,
    Operations,
    Seconds,
}

impl Kind {
    /// What goes by this name.
    pub(super) fn of(name: &str) -> Self {
        match name {
            "noise" => Self::Noise,
            "untold" => Self::Untold,
            "sweep" => Self::Sweep,
            "random-equal" => Self::RandomEqual,
            "scratch" => Self::Scratch(Equal::Steps),
            "scratch-flops" => Self::Scratch(Equal::Operations),
            "scratch-seconds" => Self::Scratch(Equal::Seconds),
            _ => Self::Policy,
        }
    }

    /// How many other arms have to be done before.
    fn round(self) -> usize {
        match self {
            Self::Policy | Self::Noise | Self::Untold | Self::Sweep => 0,
            Self::RandomEqual | Self::Scratch(Equal::Steps) => 1,
            Self::Scratch(Equal::Operations | Equal::Seconds) => 2,
        }
    }
}

/// One training of the study, confirmed to be possible.
#[derive(Clone)]
pub(super) struct Arm {
    pub(super) data: String,
    pub(super) policy: String,
    pub(super) seed: u64,
    pub(super) set: Vec<String>,
    pub(super) config: EsperConfig,
    /// What decides where the policy is `learned`.
    pub(super) network: Option<Held>,
}

impl Arm {
    /// Whether a network decides.
    pub(super) fn is_learned(&self) -> bool {
        self.config.policy.policy == PolicyKind::Learned
    }
}

/// The arms in the order in which they can be trained: each of a list needs nothing but what came before the list.
pub(super) fn rounds(arms: &[Arm]) -> Vec<Vec<Arm>> {
    let of = |round| arms.iter().filter(|arm| Kind::of(&arm.policy).round() == round).cloned().collect::<Vec<_>>();
    (0..3).map(of).filter(|arms| !arms.is_empty()).collect()
}

/// The policies that cannot be together, by what is wrong, and names that are there twice: their runs would count twice.
pub(super) fn check_names(args: &StudyArgs) -> Result<(), UsageError> {
    for (flag, names) in [("--data", &args.data), ("--policies", &args.policies)] {
        if let Some((_, again)) = names.iter().enumerate().find(|(index, name)| names[..*index].contains(name)) {
            return Err(UsageError(format!("{flag}: `{again}` is there twice; expected each once")));
        }
    }
    let kinds: Vec<Kind> = args.policies.iter().map(|name| Kind::of(name)).collect();
    let follows = |kind: &Kind| !matches!(kind, Kind::Policy | Kind::Sweep);
    let problem = if kinds.first() != Some(&Kind::Policy) && kinds.iter().any(follows) {
        "`scratch` is as large as what the first policy grows, `random-equal` keeps as many seeds, and `noise` and `untold` are decided about by it; expected a policy before them"
    } else if kinds.iter().any(|kind| kind.round() == 2) && !kinds.contains(&Kind::Scratch(Equal::Steps)) {
        "`scratch-flops` and `scratch-seconds` are as long as `scratch` makes them; expected `scratch` too"
    } else if let Some(first) = args.policies.first().filter(|first| {
        let reads = [PolicyKind::Heuristic, PolicyKind::Learned].map(PolicyKind::name);
        kinds.contains(&Kind::Untold) && !reads.contains(&first.as_str())
    }) {
        &format!(
            "`untold` is `{first}` again, which does not read `policy.heuristic.earlier`; expected `heuristic` or `learned` first"
        )
    } else {
        return Ok(());
    };
    Err(UsageError(format!("--policies: {problem}")))
}

/// Every training of the study, in order.
///
/// A random seed changes neither what is read nor what fits, so each policy on each data set is looked at once.
pub(super) fn arms(args: &StudyArgs) -> Result<Vec<Arm>, ConfigError> {
    let (mut arms, mut mistakes, mut warnings) = (Vec::new(), Vec::new(), Vec::new());
    for data in &args.data {
        let mut configs: Vec<(String, EsperConfig)> = Vec::new();
        for policy in &args.policies {
            match config(args, data, policy) {
                Ok((config, doubts)) => {
                    warnings.extend(doubts);
                    match Kind::of(policy) {
                        Kind::Sweep => configs.extend(WIDTHS.map(|times| (of_sweep(times), wider(&config, times, 1)))),
                        _ => configs.push((policy.clone(), config)),
                    }
                }
                Err(ConfigError::Invalid(found)) => mistakes.extend(found),
                Err(other) => return Err(other),
            }
        }
        let set = settings(args, data);
        for seed in (u64::from(args.first_seed)..).take(args.seeds) {
            arms.extend(configs.iter().map(|(policy, config)| {
                let (mut config, policy) = (config.clone(), policy.clone());
                (config.run.seed, config.data.split_seed) = (seed, seed);
                Arm { data: data.clone(), policy, seed, set: set.clone(), config, network: None }
            }));
        }
    }
    // Arms have their mistakes in common.
    let once = |told: Vec<Diagnostic>| {
        let new = |index: &usize| !told[..*index].contains(&told[*index]);
        (0..told.len()).filter(new).map(|index| told[index].clone()).collect::<Vec<_>>()
    };
    if !mistakes.is_empty() {
        return Err(ConfigError::Invalid(once(mistakes)));
    }
    check::warn(&once(warnings));
    Ok(arms)
}

/// The settings for a data set: those of `DATA:KEY=VALUE` are for DATA alone.
fn settings(args: &StudyArgs, data: &str) -> Vec<String> {
    let of_data = |setting: &String| {
        let of = |name: &&String| setting.strip_prefix(name.as_str()).is_some_and(|rest| rest.starts_with(':'));
        match args.data.iter().find(of) {
            None => Some(setting.clone()),
            Some(name) => (name == data).then(|| setting[name.len() + 1..].to_owned()),
        }
    };
    args.set.iter().filter_map(of_data).collect()
}

/// The configuration of a policy on a data set with the first random seed, and what is doubtful about it.
fn config(args: &StudyArgs, data: &str, policy: &str) -> Result<(EsperConfig, Vec<Diagnostic>), ConfigError> {
    let first = u64::from(args.first_seed);
    let mut set = settings(args, data);
    let kind = Kind::of(policy);
    let policy = match kind {
        Kind::Policy => policy,
        Kind::Untold => args.policies.first().map_or("", String::as_str),
        Kind::Sweep | Kind::Scratch(_) => PolicyKind::Off.name(),
        Kind::RandomEqual => PolicyKind::Fixed.name(),
        Kind::Noise => {
            // What the first policy prefers is not on offer.
            let of_noise = [
                "seeds.noise_blueprint=true",
                "seeds.blueprints=[\"noise\"]",
                "policy.heuristic.germination.blueprints=[]",
            ];
            set.extend(of_noise.map(str::to_owned));
            args.policies.first().map_or("", String::as_str)
        }
    };
    let flags = |seed: u64| {
        let (seed, seeds) = (seed.to_string(), format!("--first-seed {first} --seeds {}", args.seeds));
        let named = [
            Layer::text_flag(&format!("--data {data}"), "data.name", data),
            Layer::text_flag(&format!("--policies {policy}"), "policy.policy", policy),
            Layer::flag(&seeds, "run.seed", &seed),
            Layer::flag(&seeds, "data.split_seed", &seed),
        ];
        Layer::flags(named.into_iter().flatten().collect(), &set)
    };
    // A setting may say the same as the first seed, but then not as the last one.
    flags(first + args.seeds as u64 - 1)?;
    let Checked { loaded, warnings, .. } = check::check(None, flags(first)?)?;
    if loaded.config.run.out.is_some() {
        let issue = Issue::new("run.out", "is of no use: a study has no run folders; expected no such key");
        return Err(ConfigError::Invalid(vec![loaded.locate(issue)]));
    }
    if loaded.config.train.early_stop.is_some() {
        let problem = "ends arms by different samples: `off`, `scratch`, `sweep` and `random-equal` keep none back to confirm gains on, and \
                       would stop by all validation data, the others by a part; expected no such key in a study";
        return Err(ConfigError::Invalid(vec![loaded.locate(Issue::new("train.early_stop", problem))]));
    }
    if let Some(issue) = loaded.config.shared_by(args.jobs) {
        return Err(ConfigError::Invalid(vec![loaded.locate(issue)]));
    }
    let mut config = loaded.config;
    if kind == Kind::Untold {
        config.policy.heuristic.earlier = EarlierConfig::default();
    }
    Ok((config, warnings))
}

/// The host's layers, `times` / `of` as wide.
fn wider(config: &EsperConfig, times: usize, of: usize) -> EsperConfig {
    EsperConfig { host: config.host.scaled(times, of), ..config.clone() }
}

/// The arm as what came before lets it be: of the size, and for the time, of what was grown beside it.
pub(super) fn settled(arm: Arm, args: &StudyArgs, runs: &[Run], before: &[Arm]) -> anyhow::Result<Arm> {
    let beside = |policy: &str| {
        let is_beside = |run: &&Run| run.data == arm.data && run.seed == arm.seed && run.policy == policy;
        runs.iter().find(is_beside).with_context(|| format!("{}, seed {}: no run of {policy}", arm.data, arm.seed))
    };
    let first = args.policies.first().map_or("", String::as_str);
    let grown = || beside(first);
    let share = match Kind::of(&arm.policy) {
        Kind::Policy | Kind::Noise | Kind::Untold | Kind::Sweep => return Ok(arm),
        Kind::RandomEqual => {
            let config = drawn(&arm.config, first, grown()?.num_fossilized);
            let config = config.with_context(|| format!("{}, random-equal, seed {}", arm.data, arm.seed))?;
            return Ok(Arm { config, ..arm });
        }
        Kind::Scratch(Equal::Steps) => {
            let config = widened(&arm.config, grown()?.parameters)?;
            return Ok(Arm { config: config.with_context(|| format!("{}: no host of that size", arm.data))?, ..arm });
        }
        Kind::Scratch(Equal::Operations) => {
            let total = |run: &Run| run.operations.map(|counted| counted.total() as f64);
            total(grown()?).zip(total(beside("scratch")?)).context("operations are counted on the CPU alone")?
        }
        Kind::Scratch(Equal::Seconds) => {
            grown()?.seconds.zip(beside("scratch")?.seconds).context("a run without its time")?
        }
    };
    let scratch = before.iter().find(|one| one.data == arm.data && one.seed == arm.seed && one.policy == "scratch");
    let config = scratch.context("the arm `scratch`")?.config.clone();
    Ok(Arm { config: lasting(config, beside("scratch")?.steps, share.0 / share.1), ..arm })
}

/// The same for `share` of its `steps`.
#[expect(
    clippy::cast_possible_truncation,
    reason = "steps and epochs are counted far below 2^53, and a share is positive"
)]
#[expect(clippy::cast_sign_loss, reason = "the same")]
fn lasting(mut config: EsperConfig, steps: u64, share: f64) -> EsperConfig {
    let steps = ((steps as f64 * share).round() as u64).max(1);
    let epochs = (config.run.epochs.get() as f64 * share).ceil() as u64 + 1;
    config.run.max_steps = NonZeroU64::new(steps);
    config.run.epochs = NonZeroU64::new(epochs).unwrap_or(NonZeroU64::MIN);
    config
}

/// With the least network of the host's form that has as many parameters; none within [`MOST_TIMES`] its width.
fn widened(config: &EsperConfig, wanted: usize) -> anyhow::Result<Option<EsperConfig>> {
    let train = data::load(&config.data)?.splits.train;
    let is_enough = |times: usize| -> anyhow::Result<bool> {
        let of = kasmina_config(&wider(config, times, PARTS), &train);
        let of = of.map_err(|issues| anyhow::anyhow!("a wider host: {issues:?}"))?;
        let network = Kasmina::new(of, &Device::Cpu, Arc::new(SystemClock::new()), Arc::new(NullRecorder))?;
        Ok(network.model().layout().num_elements() >= wanted)
    };
    let (mut less, mut enough) = (PARTS - 1, PARTS);
    while !is_enough(enough)? {
        (less, enough) = (enough, 2 * enough);
        if enough > MOST_TIMES * PARTS {
            return Ok(None);
        }
    }
    while enough - less > 1 {
        let middle = usize::midpoint(less, enough);
        *(if is_enough(middle)? { &mut enough } else { &mut less }) = middle;
    }
    Ok(Some(wider(config, enough, PARTS)))
}

/// The arm of a sweep with the host's layers so many times as wide.
fn of_sweep(times: usize) -> String {
    format!("sweep-{times}")
}

/// Whether an arm is one width of a sweep.
pub(super) fn is_of_sweep(policy: &str) -> bool {
    WIDTHS.into_iter().any(|times| of_sweep(times) == policy)
}

/// What the sweeps come to that are done: on each data set with each random seed the network that is best on validation data, by its
/// accuracy and then by its loss, at the cost of all.
pub(super) fn swept(runs: &[Run]) -> Vec<Run> {
    let narrow = runs.iter().filter(|run| run.policy == of_sweep(WIDTHS[0]));
    let sweep = |first: &Run| {
        let of = |times| {
            let is_of = |run: &&Run| run.data == first.data && run.seed == first.seed && run.policy == of_sweep(times);
            runs.iter().find(is_of)
        };
        let all: Vec<&Run> = WIDTHS.into_iter().map(of).collect::<Option<_>>()?;
        let mut best = all[0];
        for run in &all[1..] {
            let ((accuracy, loss), (most, least)) = (run.validation?, best.validation?);
            if accuracy > most || (accuracy >= most && loss < least) {
                best = run;
            }
        }
        Some(Run {
            policy: "sweep".to_owned(),
            steps: all.iter().map(|run| run.steps).sum(),
            seconds: all.iter().map(|run| run.seconds).sum(),
            operations: all.iter().map(|run| run.operations).try_fold(Default::default(), |sum, one| Some(sum + one?)),
            ..best.clone()
        })
    };
    narrow.filter_map(sweep).collect()
}
