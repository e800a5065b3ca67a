//! What all checks of a diagnosis share: device, time, sizes, and what was found.

use std::collections::BTreeMap;
use std::time::Duration;

use baselines::measure::Measurement;
use candle_core::{Device, Tensor};
use esper_graph::Session;
use leyline::clock::{Clock as _, SystemClock};
use tolaria::host_read::{HostReads, read_scalar, read_vec};

use super::batch::Batch;
use super::network::{Network, Plant};
use super::sizes::Sizes;

/// Batches that steps go through in turn.
const NUM_BATCHES: u64 = 4;

#[derive(Debug)]
pub(super) struct Lab {
    pub(super) device: Device,
    /// That of the GPU, as long as the diagnosis goes on: with it all ways to run a step have the same work space, and the same bits.
    pub(super) session: Option<Session>,
    /// Why there is none.
    pub(super) missing: String,
    clock: SystemClock,
    /// When the time is over, of all sections and of the one that is looked at.
    last: Duration,
    ends: Duration,
    pub(super) sizes: Sizes,
    pub(super) num_samples: usize,
    pub(super) num_steps: usize,
    pub(super) measurements: BTreeMap<String, Measurement>,
    /// What was found in words, by name.
    pub(super) told: BTreeMap<String, String>,
    /// What is wrong.
    pub(super) failures: Vec<String>,
}

impl Lab {
    /// Nothing was found yet; nothing new is begun after so many seconds.
    pub(super) fn new(device: Device, sizes: Sizes, seconds: u64) -> Self {
        let clock = SystemClock::new();
        let last = clock.now() + Duration::from_secs(seconds);
        let (session, missing) = match Session::open(&device) {
            Ok(session) => (Some(session), String::new()),
            Err(refusal) => (None, refusal.to_string()),
        };
        Self {
            device,
            session,
            missing,
            clock,
            last,
            ends: last,
            sizes,
            num_samples: 8,
            num_steps: 20,
            measurements: BTreeMap::new(),
            told: BTreeMap::new(),
            failures: Vec::new(),
        }
    }

    pub(super) fn network(&self, plant: Option<Plant>) -> anyhow::Result<Network> {
        Network::new(self.sizes, plant, &self.device)
    }

    /// The batches of all runs that are compared.
    pub(super) fn batches(&self) -> anyhow::Result<Vec<Batch>> {
        let shape = [self.num_samples, self.sizes.max_tokens];
        (0..NUM_BATCHES).map(|seed| Batch::drawn(&self.sizes, shape, seed, &self.device)).collect()
    }

    pub(super) fn clock(&self) -> &SystemClock {
        &self.clock
    }

    pub(super) fn now(&self) -> Duration {
        self.clock.now()
    }

    /// Waits for the device.
    pub(super) fn wait(&self) -> candle_core::Result<()> {
        self.device.synchronize()
    }

    /// Begins the first of so many sections that are left, which may take twice its share of the time; whether there is any.
    pub(super) fn begins(&mut self, num_left: u32) -> bool {
        let now = self.now();
        let left = self.last.saturating_sub(now);
        self.ends = now + left * 2 / (num_left + 1);
        !left.is_zero()
    }

    /// Whether the time of the section is over.
    pub(super) fn is_over(&self) -> bool {
        self.now() >= self.ends
    }

    /// Keeps values of a quantity; returns their median, absent where nothing was measured.
    pub(super) fn keep(&mut self, name: impl Into<String>, unit: &str, values: Vec<f64>) -> Option<f64> {
        let measured = Measurement::of(unit, values)?;
        let median = measured.median;
        self.measurements.insert(name.into(), measured);
        Some(median)
    }

    /// Keeps whether something holds that must; returns it in words. What was not compared is not kept.
    pub(super) fn check(&mut self, name: &str, differing: usize, of: usize, what: &str) -> String {
        if of == 0 {
            return "nothing was compared".to_owned();
        }
        self.keep(format!("check.{name}"), "kept", vec![f64::from(u8::from(differing == 0))]);
        let told = format!("{differing} of {of} {what} differ");
        if differing > 0 {
            self.failures.push(format!("{name}: {told}"));
        }
        told
    }

    /// That only a GPU can do it.
    pub(super) fn needs_gpu(&self, what: &str) -> String {
        format!("{what}: needs a GPU ({})\n", self.missing)
    }
}

/// A loss, as bits. Waits for the device.
pub(super) fn loss_bits(loss: &Tensor) -> anyhow::Result<u64> {
    Ok(read_scalar(loss, "diagnosed_loss", &mut HostReads::default())?.to_bits())
}

/// A digest of all parameters. Waits for the device.
pub(super) fn fingerprint(network: &Network) -> anyhow::Result<blake3::Hash> {
    let mut hasher = blake3::Hasher::new();
    for variable in network.variables() {
        for value in read_vec(variable, "diagnosed_parameters", &mut HostReads::default())? {
            hasher.update(&value.to_bits().to_le_bytes());
        }
    }
    Ok(hasher.finalize())
}

/// A number or the sign that there is none.
pub(super) fn cell(value: Option<f64>, decimals: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.decimals$}"))
}
