//! What growth in depth saves a language model, in seconds: half of the blocks first, twice as many later, beside all of them
//! from the first step.
//!
//! ```text
//!   text ─► windows ─┬─► all blocks, N steps ───────────────────────────► loss of held-out windows at the end
//!                    └─► half of them, part of N ─► grown ─► all blocks ─► seconds until that loss is reached
//! ```

mod grown;
mod race;
mod text;

use std::num::{NonZeroU64, NonZeroUsize};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use candle_core::Device;
use clap::Args;
use leyline::region::Eager;

use self::grown::Growth;
use self::race::{Race, Run};
use self::text::Text;
use crate::error::Error;
use crate::gpu::open::{open_device, result_on};
use crate::models::TransformerConfig;
use crate::plot::{Curve, log_log_svg};
use crate::samples::Samples;
use crate::work::{Attachment, Flags, Needs, Outcome, Setting, Work, settings};

pub(super) const WORK: Work = Work::with_flags::<GrowthFlags>(
    "growth-at-scale",
    "Seconds in which a language model that grows in depth reaches the loss of the same one from scratch",
    Needs::Nothing,
);

const NOTES: &str = "A decoder-only transformer over bytes; layers, products in bf16, compiled steps. scratch: all blocks from the first step, for so many steps. KIND.pP: half of the blocks for P percent of those steps, then all of them until the held-out \
    loss is at most that of scratch at its end (same seed), or for as many steps again. identity: each block is followed by a copy of itself whose two output projections are 0, so that the network computes what it did; stack: the blocks, \
    then copies of them all, so that it does not. null: identity after 0 steps, for at most twice the steps of scratch, which is a network from scratch with other initial weights, every second block of which adds 0 at first: what its ratio differs from 1 by, in either direction, is chance and that start. Blocks are copied by the work: no seed, gate or policy takes part. After growth a new trainer begins: fresh \
    moments and averages, rates rise again over so many steps as config says (rise), steps are captured and compiled anew. All arms: AdamW, the same warm-up at first, then a constant rate, since a fall would end at a step that is chosen before; what is evaluated is the average of parameters over \
    the last steps (ema_decay). seconds: from before the network is made, with all captures and compilations; each evaluation is left out together with the step before it, and the last step of each epoch (in every arm alike). seconds.ARM.seedN, samples: at each evaluation, in their order; \
    loss.ARM.seedN.stepK: nats per byte of held-out windows after step K, those of the small network counted; tokens = K x tokens_per_step. final.seedN: scratch at its end. ratio.ARM.seedN: seconds to reach that / seconds of scratch to its end, both told at evaluations alone, so that ratios move by about every / steps; absent where it was not reached. A run of `every` steps comes first and is not told: it pays for what the driver compiles on a fresh machine. \
    reached.ARM: share of the seeds that did";

/// What is trained, and for how long.
#[derive(Debug, Args)]
struct GrowthFlags {
    /// A file of text: its bytes are the tokens, its last twentieth is held out.
    #[arg(long, value_name = "FILE", default_value = "text")]
    text: PathBuf,
    /// Blocks of the whole network, an even number.
    #[arg(long, value_name = "N", default_value = "12", value_parser = even)]
    blocks: usize,
    /// Features of a token, a multiple of 64.
    #[arg(long, value_name = "N", default_value = "512", value_parser = whole_heads)]
    width: usize,
    /// Bytes of a window.
    #[arg(long, value_name = "N", default_value = "256")]
    context: NonZeroUsize,
    /// Windows of a step.
    #[arg(long, value_name = "N", default_value = "32")]
    batch: NonZeroUsize,
    /// Steps from scratch, a multiple of `--every`.
    #[arg(long, value_name = "N", default_value = "3000", value_parser = clap::value_parser!(u64).range(1..=MAX_STEPS))]
    steps: u64,
    /// Steps from one evaluation to the next.
    #[arg(long, value_name = "N", default_value = "75", value_parser = clap::value_parser!(u64).range(1..=MAX_STEPS))]
    every: u64,
    /// Held-out windows, at equal distances.
    #[arg(long, value_name = "N", default_value = "512")]
    held_out: NonZeroUsize,
    /// Ways to grow, in their order: `identity.pP` and `stack.pP` after P percent of the steps, a whole number of steps; `null`.
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "identity.p50,stack.p50,identity.p75,stack.p75,null"
    )]
    arms: Vec<Arm>,
    /// Steps over which rates rise anew once the network has grown.
    #[arg(long, value_name = "N", default_value = "100", value_parser = clap::value_parser!(u64).range(..=MAX_STEPS))]
    rise: u64,
    /// The first random seed, so that an arm that was chosen on some can be shown on others.
    #[arg(long, value_name = "N", default_value = "0", value_parser = clap::value_parser!(u64).range(..race::MAX_SEEDS))]
    first_seed: u64,
    /// How many random seeds, from the first on; the last there is is 999.
    #[arg(long, value_name = "N", default_value = "3", value_parser = clap::value_parser!(u64).range(1..=race::MAX_SEEDS))]
    seeds: u64,
    /// No run starts after so many seconds; what is left is absent.
    #[arg(long, value_name = "S", default_value = "460")]
    budget: NonZeroU64,
}

/// Of a run: so many, in epochs of any length, end before its epochs do.
const MAX_STEPS: u64 = race::EPOCHS;

/// A way to the whole network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Arm {
    growth: Growth,
    /// Of the steps from scratch, with the small network.
    percent: u64,
}

impl FromStr for Arm {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "null" {
            return Ok(Self { growth: Growth::Identity, percent: 0 });
        }
        let found = text.split_once(".p").and_then(|(kind, percent)| {
            let growth = Growth::ALL.into_iter().find(|growth| growth.name() == kind)?;
            let percent = percent.parse().ok().filter(|percent| (1..=100).contains(percent))?;
            Some(Self { growth, percent })
        });
        found.ok_or_else(|| "expected identity.pP or stack.pP with P from 1 to 100, or null".to_owned())
    }
}

impl Arm {
    fn name(self) -> String {
        if self.percent == 0 { "null".to_owned() } else { format!("{}.p{}", self.growth.name(), self.percent) }
    }

    /// Those of the small network, and at most those of the whole one. The null has nothing before, so it may take twice as many as scratch:
    /// with as many alone it could be faster, but not slower.
    fn steps(self, scratch: u64) -> [u64; 2] {
        [scratch * self.percent / 100, if self.percent == 0 { 2 * scratch } else { scratch }]
    }
}

impl Flags for GrowthFlags {
    fn measure(&self, setting: &Setting) -> Result<Outcome, Error> {
        self.check()?;
        let device = setting.gpu.map_or(Ok(Device::Cpu), open_device)?;
        let mut eager = Eager::acquire()?;
        let text = Text::read(&self.text)?;
        let sizes = [self.context.get(), self.batch.get(), self.held_out.get()];
        let race = Race {
            config: TransformerConfig {
                num_blocks: self.blocks,
                width: self.width,
                num_heads: self.width / HEAD,
                vocab_size: 256,
                context_len: self.context.get(),
                is_tied: false,
            },
            batch: self.batch.get(),
            every: self.every,
            rise: self.rise,
            data: text.splits(&self.text, sizes, &device)?,
            device: &device,
            clock: &setting.clock,
        };
        let samples = self.runs(&race, &mut eager)?;
        let plots = ["seconds", "tokens"].map(|axis| self.plot(axis, &samples.1));
        let config = settings([
            ("text_sha256", text.sha256()),
            ("text_bytes", text.num_bytes().to_string()),
            ("held_out", format!("{} windows at equal distances in the last 5 % of the text", self.held_out)),
            ("blocks", self.blocks.to_string()),
            ("width", self.width.to_string()),
            ("context", self.context.to_string()),
            ("batch", self.batch.to_string()),
            ("tokens_per_step", self.tokens_per_step().to_string()),
            ("steps", self.steps.to_string()),
            ("every", self.every.to_string()),
            ("arms", self.arm_names()),
            ("first_seed", self.first_seed.to_string()),
            ("seeds", self.seeds.to_string()),
            ("rise", self.rise.to_string()),
            ("optimizer", race.described()),
            ("device", setting.gpu.map_or("cpu".to_owned(), |gpu| format!("cuda:{gpu}"))),
        ]);
        let result = result_on(&device, setting, WORK.name, NOTES, config, samples.0)?;
        Ok(Outcome { result, attachments: plots.into() })
    }
}

/// Features of a head.
const HEAD: usize = 64;

impl GrowthFlags {
    fn tokens_per_step(&self) -> usize {
        self.batch.get() * self.context.get()
    }

    fn arm_names(&self) -> String {
        self.arms.iter().map(|arm| arm.name()).collect::<Vec<_>>().join(",")
    }

    /// What no flag shows alone.
    ///
    /// # Errors
    /// [`Error::Flag`], with what is accepted.
    fn check(&self) -> Result<(), Error> {
        let Self { steps, every, arms, first_seed, seeds, .. } = self;
        let refused = |flag, found: String, expected: String| Err(Error::Flag { flag, found, expected });
        if !steps.is_multiple_of(*every) {
            let expected =
                format!("steps that divide the {steps} of --steps, such as {}", largest_divisor(*steps, *every));
            return refused("--every", every.to_string(), expected);
        }
        for (index, arm) in arms.iter().enumerate() {
            if arms[..index].contains(arm) {
                return refused("--arms", format!("{} twice", arm.name()), "each of them once".to_owned());
            }
            if !(steps * arm.percent).is_multiple_of(100) {
                return refused("--arms", arm.name(), format!("whole steps of the {steps} of --steps"));
            }
        }
        if first_seed + seeds > race::MAX_SEEDS {
            let expected = format!("at most {} from {first_seed} on", race::MAX_SEEDS - first_seed);
            return refused("--seeds", seeds.to_string(), expected);
        }
        Ok(())
    }

    /// What was measured, and the runs of the first seed, by name.
    fn runs(&self, race: &Race<'_>, eager: &mut Eager) -> Result<(Samples, Vec<(String, Run)>), Error> {
        let (mut samples, mut first) = (Samples::default(), Vec::new());
        let steps = self.steps;
        let began = race.clock.now();
        let is_over = || race.clock.now().saturating_sub(began) > Duration::from_secs(self.budget.get());
        // The first run on a machine pays for what the driver compiles of candle's kernels: one that is not told.
        race.scratch(eager, 0, self.every)?;
        for seed in self.first_seed..self.first_seed + self.seeds {
            if is_over() {
                break;
            }
            let scratch = race.scratch(eager, seed, steps)?;
            let Some(end) = scratch.points.iter().find(|point| point.step == steps).copied() else {
                let (what, last) = ("the last evaluation from scratch".to_owned(), scratch.points.last());
                let found = last.map_or(0, |point| point.step) as f64;
                return Err(Error::WrongResult { what, expected: steps as f64, found });
            };
            samples.push(format!("final.seed{seed}"), "nats", end.loss);
            keep("scratch", seed, &scratch, &mut samples);
            if seed == self.first_seed {
                first.push(("scratch".to_owned(), scratch));
            }
            for &arm in &self.arms {
                if is_over() {
                    break;
                }
                let name = arm.name();
                let run = race.grown(eager, seed, arm.growth, arm.steps(steps), end.loss)?;
                keep(&name, seed, &run, &mut samples);
                let reached = run.points.iter().find(|point| point.is_whole && point.loss <= end.loss);
                samples.push(format!("reached.{name}"), "ratio", f64::from(u8::from(reached.is_some())));
                if let Some(point) = reached {
                    samples.push(format!("ratio.{name}.seed{seed}"), "ratio", point.seconds / end.seconds);
                    samples.push(format!("ratio.{name}"), "ratio", point.seconds / end.seconds);
                }
                if seed == self.first_seed {
                    first.push((name, run));
                }
            }
        }
        Ok((samples, first))
    }

    fn plot(&self, axis: &str, runs: &[(String, Run)]) -> Attachment {
        let per_step = self.tokens_per_step() as f64;
        let curve = |(name, run): &(String, Run)| {
            let points = run
                .points
                .iter()
                .map(|point| (if axis == "tokens" { point.step as f64 * per_step } else { point.seconds }, point.loss));
            Curve { label: name.clone(), points: points.collect() }
        };
        let curves: Vec<Curve> = runs.iter().map(curve).collect();
        let text = log_log_svg("Held-out loss, first seed", [axis, "nats per byte"], &curves);
        Attachment { file_name: format!("{}-{axis}.svg", WORK.name), text }
    }
}

/// The curve of a run.
fn keep(arm: &str, seed: u64, run: &Run, samples: &mut Samples) {
    for point in &run.points {
        samples.push(format!("loss.{arm}.seed{seed}.step{:05}", point.step), "nats", point.loss);
        samples.push(format!("seconds.{arm}.seed{seed}"), "s", point.seconds);
    }
    samples.extend_from(format!("compiled_steps.{arm}.seed{seed}"), "count", run.compiled_steps.map(|n| n as f64));
}

/// Of `steps`, at most `most`, which is not 0.
fn largest_divisor(steps: u64, most: u64) -> u64 {
    (1..=most.min(steps)).rev().find(|every| steps.is_multiple_of(*every)).unwrap_or(1)
}

fn even(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|n: &usize| *n > 0 && n.is_multiple_of(2)).ok_or_else(|| "expected 2, 4, 6, …".to_owned())
}

fn whole_heads(text: &str) -> Result<usize, String> {
    let width = text.parse().ok().filter(|n: &usize| *n > 0 && n.is_multiple_of(HEAD));
    width.ok_or_else(|| format!("expected a multiple of {HEAD}"))
}

#[cfg(test)]
mod tests;
