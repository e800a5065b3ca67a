//! What the fresh process does, and when.

use std::fmt;
use std::num::NonZeroUsize;
use std::str::FromStr;
use std::time::Duration;

use candle_core::{DType, Tensor};
use esper_graph::{HostSlice, StagingLane, StagingRing};
use leyline::clock::Clock;

use super::{WORK, modules};
use crate::error::Error;
use crate::gpu::Gpu;
use crate::gpu::open::{open_device, ordinal};
use crate::gpu::step::TrainingStep;
use crate::samples::{Samples, ms};
use crate::work::{Outcome, Setting, Settings};

/// How the tensor library's kernels are loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Jit {
    /// All modules one after the other, before the first step.
    Sequential,
    /// All modules at once, a thread each, before the first step.
    Parallel,
    /// Each when the first step asks for it.
    Demand,
}

impl Jit {
    const ALL: [Self; 3] = [Self::Sequential, Self::Parallel, Self::Demand];
}

impl fmt::Display for Jit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sequential => "sequential",
            Self::Parallel => "parallel",
            Self::Demand => "demand",
        })
    }
}

impl FromStr for Jit {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|jit| jit.to_string() == name);
        known.ok_or_else(|| format!("expected one of {}", Self::ALL.map(|jit| jit.to_string()).join(", ")))
    }
}

/// Measures this process, which must have done nothing on the GPU before. Waits for the device after every part.
pub(super) fn run(jit: Jit, setting: &Setting) -> Result<Outcome, Error> {
    let ordinal = ordinal(setting)?;
    let mut laps = Laps::new(setting.clock.as_ref());
    let device = open_device(ordinal)?;
    laps.end("1_open_device");
    let gpu = Gpu::on(&device, ordinal, &setting.clock)?;
    gpu.wait()?;
    laps.end("2_open_session");
    let slots = NonZeroUsize::new(1).expect("a literal above 0");
    let mut ring = StagingRing::new(&gpu.session, slots, StagingLane::Own)?;
    let arrived = Tensor::zeros(1, DType::F32, &device)?;
    gpu.wait()?;
    laps.end("3_pinned_ring");
    // The ring spreads data with a kernel of this project: its first use loads the module with all of them.
    ring.stage(&[(HostSlice::F32(&[1.0]), &arrived)])?;
    gpu.wait()?;
    laps.end("4_own_kernels");
    if jit != Jit::Demand {
        let each = modules::load_all(&gpu.session, jit == Jit::Parallel, setting.clock.as_ref())?;
        laps.end("5_candle_modules");
        for (name, time) in each {
            laps.parts.push(format!("5_candle_modules.{name}"), "ms", ms(time));
        }
    }
    let step = TrainingStep::new("mlp", &device)?;
    gpu.wait()?;
    laps.end("6_make_model");
    for name in ["7_first_step", "8_second_step"] {
        step.run()?;
        gpu.wait()?;
        laps.end(name);
    }
    Ok(gpu.result(WORK.name, "one process", Settings::new(), laps.finish("9_all")).into())
}

/// A stopwatch with names.
struct Laps<'a> {
    clock: &'a dyn Clock,
    started: Duration,
    last: Duration,
    parts: Samples,
}

impl<'a> Laps<'a> {
    fn new(clock: &'a dyn Clock) -> Self {
        let now = clock.now();
        Self { clock, started: now, last: now, parts: Samples::default() }
    }

    fn end(&mut self, name: &str) {
        let now = self.clock.now();
        self.parts.push(name, "ms", ms(now - self.last));
        self.last = now;
    }

    fn finish(mut self, name: &str) -> Samples {
        self.parts.push(name, "ms", ms(self.clock.now() - self.started));
        self.parts
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// Every look takes 10 ms.
    #[derive(Debug, Default)]
    struct Ticking(AtomicU64);

    impl Clock for Ticking {
        fn now(&self) -> Duration {
            Duration::from_millis(10 * self.0.fetch_add(1, Ordering::Relaxed))
        }

        fn unix(&self) -> Duration {
            Duration::ZERO
        }
    }

    #[test]
    fn laps_follow_each_other_and_the_last_one_is_all_of_them() {
        let clock = Ticking::default();
        let mut laps = Laps::new(&clock);
        laps.end("first");
        laps.end("second");
        let samples = laps.finish("all");
        let medians = ["first", "second", "all"].map(|name| samples.median(name));
        assert_eq!(medians, [Some(10.0), Some(10.0), Some(30.0)]);
    }

    #[test]
    fn ways_are_read_as_they_are_written() {
        for jit in Jit::ALL {
            assert_eq!(jit.to_string().parse(), Ok(jit));
        }
        assert_eq!("eager".parse::<Jit>(), Err("expected one of sequential, parallel, demand".to_owned()));
    }
}
