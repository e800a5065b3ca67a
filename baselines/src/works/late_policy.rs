//! What a policy that sleeps, panics, answers late, garbage or far too much costs the steps of training: block by block of one run.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use candle_core::Device;
use clap::Args;
use leyline::command::{Operation, Order};
use leyline::durable::{Durable, SavedState};
use leyline::error::ErrorType;
use leyline::id::SeedId;
use leyline::policy::{Decision, Policy};
use leyline::region::{Eager, RegionError};
use leyline::state::SystemState;
use tolaria::plain::NoSeeds;
use tolaria::task::Classification;
use tolaria::trainer::{BreakerConfig, Parts, SafetyConfig, TrainConfig, Trainer};

use crate::blocks::{Blocks, num_epochs};
use crate::error::Error;
use crate::gpu::open::{open_device, result_on};
use crate::models::Workload;
use crate::samples::Samples;
use crate::trainer::{count, plain_sgd, repeated};
use crate::work::{Flags, Needs, Outcome, Setting, Work, settings};

pub(super) const WORK: Work = Work::with_flags::<LatePolicyFlags>(
    "late-policy",
    "Steps beside a policy that sleeps, panics, answers late, garbage or too much, over steps beside one that answers",
    Needs::Nothing,
);

/// Of a policy that sleeps or is late; the others are waited for.
const DEADLINE_MS: u64 = 50;
const NOTES: &str = "SGD, default execution; the policy is on a thread of its own and has 50 ms at the end of each epoch where it sleeps or is late. An epoch is a block; the answer before every other \
    block is the fault, in the order ABBA, in one run. A step: from the end of one to the end of the next, the device waited for, the first of an epoch left out. ACT.p50, .p99: of a block after the fault, ._without: after an answer; \
    ._over: one over the other in a pair of blocks, one after the other; n counts pairs. .p99_over.low, .high: 95 % interval of the median of all such pairs, whatever their distribution. .boundary_over: the same of the end \
    of the epoch, where the fault is waited for. answers: no fault in either, by chance";

#[derive(Debug, Args)]
struct LatePolicyFlags {
    /// Pairs of blocks of each fault.
    #[arg(long, value_name = "N", default_value = "14")]
    pairs: NonZeroU64,
    /// Optimizer steps of a block, rounded up to whole rounds of the data.
    #[arg(long, value_name = "N", default_value = "200")]
    steps: NonZeroU64,
    /// What is trained; by default `mlp4096` on a GPU and `mlp` on the CPU.
    #[arg(long, value_name = "NAME")]
    work: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Act {
    Answer,
    /// Until the block is over.
    Sleep,
    Panic,
    /// In the block.
    Late,
    Garbage,
    Flood,
}

const ACTS: [(&str, Act); 6] = [
    ("answers", Act::Answer),
    ("sleeps", Act::Sleep),
    ("panics", Act::Panic),
    ("answers_late", Act::Late),
    ("garbage", Act::Garbage),
    ("floods", Act::Flood),
];

#[derive(Debug)]
struct Odd {
    act: Act,
    is_on: Arc<AtomicBool>,
    /// How often it did what it is to do, and how often it had slept enough.
    num_acts: Arc<AtomicU64>,
    num_awake: Arc<AtomicU64>,
    /// Opened when the block is over.
    gate: Receiver<()>,
}

impl ErrorType for Odd {
    type Error = RegionError;
}

impl Durable for Odd {
    fn save(&self, eager: &Eager) -> Result<SavedState, RegionError> {
        eager.check().map(|()| SavedState::default())
    }

    fn restore(&mut self, eager: &mut Eager, _saved: &SavedState) -> Result<(), RegionError> {
        eager.check()
    }
}

impl Policy for Odd {
    fn name(&self) -> &'static str {
        "odd"
    }

    fn decide(&mut self, _state: &SystemState) -> Result<Decision, RegionError> {
        if !self.is_on.load(Ordering::SeqCst) {
            return Ok(Decision::default());
        }
        self.num_acts.fetch_add(1, Ordering::SeqCst);
        let orders = match self.act {
            Act::Answer => Vec::new(),
            Act::Sleep => {
                self.gate.recv().ok();
                self.num_awake.fetch_add(1, Ordering::SeqCst);
                Vec::new()
            }
            // As a panic, without the lines that one writes.
            Act::Panic => std::panic::resume_unwind(Box::new("as it is told")),
            Act::Late => {
                std::thread::sleep(Duration::from_millis(DEADLINE_MS + 10));
                self.num_awake.fetch_add(1, Ordering::SeqCst);
                vec![Order::new(Operation::Cull { seed: SeedId(1) }, "late"); 9]
            }
            Act::Garbage => (0..1000).map(garbage).collect(),
            Act::Flood => vec![Order::new(Operation::Cull { seed: SeedId(1) }, "flood"); 100_000],
        };
        Ok(Decision { orders, waiting: Vec::new() })
    }
}

/// Orders about what is not there, with reasons that are no text.
fn garbage(index: u32) -> Order {
    let operation = match index % 3 {
        0 => Operation::Cull { seed: SeedId(u32::MAX - index) },
        1 => Operation::Fossilize { seed: SeedId(index) },
        _ => {
            Operation::germinate("no-such-slot".parse().expect("a name"), "no_such_blueprint".parse().expect("a name"))
        }
    };
    Order::new(operation, "\u{0}\u{fffd}\n\u{1b}[2J".repeat(8))
}

impl Flags for LatePolicyFlags {
    fn measure(&self, setting: &Setting) -> Result<Outcome, Error> {
        let device = setting.gpu.map_or(Ok(Device::Cpu), open_device)?;
        let mut samples = Samples::default();
        for (name, act) in ACTS {
            self.run(act, &device, setting)?.record(name, &mut samples);
        }
        let config = settings([
            ("work", self.work(setting).to_owned()),
            ("pairs", self.pairs.to_string()),
            ("steps_per_block", self.steps.to_string()),
            ("device", setting.gpu.map_or("cpu".to_owned(), |gpu| format!("cuda:{gpu}"))),
        ]);
        Ok(result_on(&device, setting, WORK.name, NOTES, config, samples)?.into())
    }
}

impl LatePolicyFlags {
    fn work(&self, setting: &Setting) -> &str {
        let by_default = if setting.gpu.is_some() { "mlp4096" } else { "mlp" };
        self.work.as_deref().unwrap_or(by_default)
    }

    fn run<'a>(&self, act: Act, device: &Device, setting: &'a Setting) -> Result<Blocks<'a>, Error> {
        let work = Workload::named(self.work(setting), 3, device)?;
        let batches = work.inputs.dim(0)? / work.batch_size;
        let data = repeated(&work, usize::try_from(self.steps.get()).unwrap_or(usize::MAX).div_ceil(batches))?;
        let (open, gate) = channel();
        let [num_acts, num_awake] = [(); 2].map(|()| Arc::new(AtomicU64::new(0)));
        let is_on = Arc::new(AtomicBool::new(false));
        let policy = Odd {
            act,
            is_on: Arc::clone(&is_on),
            num_acts: Arc::clone(&num_acts),
            num_awake: Arc::clone(&num_awake),
            gate,
        };
        let num_epochs = num_epochs(self.pairs.get());
        let num_begun = Arc::clone(&num_acts);
        let switch = move |is_faulty| {
            if is_on.swap(is_faulty, Ordering::SeqCst) && matches!(act, Act::Sleep | Act::Late) {
                // What slept beside the block that ends is asked again after it.
                open.send(()).ok();
                while num_awake.load(Ordering::SeqCst) < num_begun.load(Ordering::SeqCst) {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        };
        let mut blocks = Blocks::new(setting.clock.as_ref(), device, Box::new(switch), num_epochs);
        let task = Arc::new(Classification::new(work.num_classes));
        let parts = Parts::new(task, NoSeeds::new(work.model), policy, data);
        let clock = Arc::clone(&setting.clock);
        let parts = Parts { num_epochs, device: device.clone(), clock, ..parts };
        // However often it fails, it is asked again.
        let breaker = BreakerConfig { failures: u32::MAX, ..BreakerConfig::default() };
        let deadline_ms = if matches!(act, Act::Sleep | Act::Late) { DEADLINE_MS } else { 60_000 };
        let safety = SafetyConfig { policy_ms: NonZeroU64::new(deadline_ms), breaker, ..SafetyConfig::default() };
        let config = TrainConfig { safety, eval_batch_size: count(work.batch_size), ..plain_sgd(work.batch_size) };
        Trainer::new(config, parts)?.run(&mut Eager::acquire()?, &mut blocks)?;
        let (asked, faulty) = (num_acts.load(Ordering::SeqCst), blocks.num_faulty());
        if asked != faulty {
            let table = format!("the policy that {act:?} did so before {asked} of {faulty} blocks");
            return Err(Error::BrokenPromises { table });
        }
        Ok(blocks)
    }
}

#[cfg(test)]
mod tests {
    use leyline::clock::SystemClock;

    use super::*;

    #[test]
    fn every_fault_comes_before_every_other_block_and_has_its_ratios() {
        let flags = LatePolicyFlags { pairs: NonZeroU64::MIN, steps: NonZeroU64::MIN, work: Some("ref".into()) };
        let outcome = flags.measure(&Setting::alone(Arc::new(SystemClock::new()), None)).unwrap();
        for (name, _) in ACTS {
            let over = &outcome.result.measurements[&format!("{name}.p99_over")];
            assert!(over.n == 1 && over.median > 0.0, "{name}");
        }
    }
}
