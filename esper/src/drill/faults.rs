//! What a drill breaks: the clock, the disk, a sink, the policy, the seed manager. Each works until it is armed.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use esper_telemetry::sink::Sink;
use esper_telemetry::{Error as TelemetryError, Packet};
use leyline::clock::{Clock, SystemClock};
use leyline::command::Order;
use leyline::durable::{Durable, SavedState};
use leyline::error::ErrorType;
use leyline::id::EpochIndex;
use leyline::network::NetworkError;
use leyline::policy::{Decision, Policy};
use leyline::region::{Eager, RegionError};
use leyline::seed::{Applied, Costs, Evidence, SeedManager, SeedState, Transition};
use leyline::state::SystemState;
use tolaria::checkpoint::{EntryKind, Fs, FsFile, LockGuard, Open, StdFs};
use tolaria::plain::{NoPolicy, NoSeeds, PlainModel};

/// A fault that can be switched on and off.
#[derive(Debug, Clone, Default)]
pub(super) struct Switch(Arc<AtomicBool>);

impl Switch {
    pub(super) fn set(&self, is_on: bool) {
        self.0.store(is_on, Ordering::SeqCst);
    }

    pub(super) fn is_on(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// A clock on which every look takes ten milliseconds while it is armed.
#[derive(Debug, Default)]
pub(super) struct SlowClock {
    inner: SystemClock,
    pub(super) is_slow: Switch,
    looks: AtomicU64,
}

impl Clock for SlowClock {
    fn now(&self) -> Duration {
        if self.is_slow.is_on() {
            self.looks.fetch_add(1, Ordering::SeqCst);
        }
        self.inner.now() + Duration::from_millis(10 * self.looks.load(Ordering::SeqCst))
    }

    fn unix(&self) -> Duration {
        self.inner.unix()
    }
}

/// A disk on which nothing new fits while it is full.
#[derive(Debug, Default)]
pub(super) struct FullDisk {
    inner: StdFs,
    pub(super) is_full: Switch,
}

impl FullDisk {
    fn room(&self) -> io::Result<()> {
        if self.is_full.is_on() { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }
}

impl Fs for FullDisk {
    fn kind(&self, path: &Path) -> io::Result<Option<EntryKind>> {
        self.inner.kind(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.inner.list(dir)
    }

    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        self.inner.create_dir(dir)
    }

    /// A file of which only the beginning fits stays behind, as on a real disk.
    fn write_synced(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        self.inner.write_synced(path, if self.is_full.is_on() { &bytes[..bytes.len() / 2] } else { bytes })?;
        self.room()
    }

    fn open(&self, path: &Path, which: Open) -> io::Result<Box<dyn FsFile>> {
        self.inner.open(path, which)
    }

    fn copy_mode(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.inner.copy_mode(from, to)
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.room()?;
        self.inner.hard_link(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.inner.remove_file(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.inner.rename(from, to)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.inner.sync_dir(dir)
    }

    fn read(&self, path: &Path, limit: u64) -> io::Result<Vec<u8>> {
        self.inner.read(path, limit)
    }

    fn remove_dir_all(&self, dir: &Path) -> io::Result<()> {
        self.inner.remove_dir_all(dir)
    }

    fn try_lock(&self, path: &Path) -> io::Result<Option<LockGuard>> {
        self.inner.try_lock(path)
    }
}

/// A sink that takes nothing and does not come back while it is stuck.
#[derive(Debug)]
pub(super) struct StuckSink<S> {
    pub(super) inner: S,
    pub(super) is_stuck: Switch,
}

impl<S: Sink> Sink for StuckSink<S> {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn write(&mut self, packet: &Packet) -> Result<(), TelemetryError> {
        while self.is_stuck.is_on() {
            thread::sleep(Duration::from_millis(1));
        }
        self.inner.write(packet)
    }
}

/// A policy that decides nothing, and takes long for it while it is slow.
#[derive(Debug, Clone, Default)]
pub(super) struct SlowPolicy {
    pub(super) is_slow: Switch,
}

/// What is late is late by so much.
pub(super) const DELAY: Duration = Duration::from_millis(200);

impl ErrorType for SlowPolicy {
    type Error = RegionError;
}

impl Durable for SlowPolicy {
    fn save(&self, eager: &Eager) -> Result<SavedState, RegionError> {
        NoPolicy.save(eager)
    }

    fn restore(&mut self, eager: &mut Eager, saved: &SavedState) -> Result<(), RegionError> {
        NoPolicy.restore(eager, saved)
    }
}

impl Policy for SlowPolicy {
    fn name(&self) -> &'static str {
        "slow"
    }

    fn decide(&mut self, _state: &SystemState) -> Result<Decision, RegionError> {
        if self.is_slow.is_on() {
            thread::sleep(DELAY);
        }
        Ok(Decision::default())
    }
}

/// A network without seeds whose manager takes long to end an epoch while it is slow.
#[derive(Debug)]
pub(super) struct SlowSeeds {
    pub(super) inner: NoSeeds<PlainModel>,
    pub(super) is_slow: Switch,
}

impl ErrorType for SlowSeeds {
    type Error = NetworkError;
}

impl Durable for SlowSeeds {
    fn save(&self, eager: &Eager) -> Result<SavedState, NetworkError> {
        self.inner.save(eager)
    }

    fn restore(&mut self, eager: &mut Eager, saved: &SavedState) -> Result<(), NetworkError> {
        self.inner.restore(eager, saved)
    }
}

impl SeedManager for SlowSeeds {
    type Model = PlainModel;

    fn model(&self) -> &PlainModel {
        self.inner.model()
    }

    fn apply(&mut self, eager: &mut Eager, order: &Order) -> Result<Applied, NetworkError> {
        self.inner.apply(eager, order)
    }

    fn export_seed_states(&self, eager: &Eager) -> Result<Vec<SeedState>, NetworkError> {
        self.inner.export_seed_states(eager)
    }

    fn costs(&self, eager: &Eager, batch_size: usize) -> Result<Option<Costs>, NetworkError> {
        self.inner.costs(eager, batch_size)
    }

    fn record_evidence(&mut self, eager: &Eager, evidence: &[Evidence]) -> Result<(), NetworkError> {
        self.inner.record_evidence(eager, evidence)
    }

    fn finish_epoch(&mut self, eager: &mut Eager, epoch: EpochIndex) -> Result<Vec<Transition>, NetworkError> {
        if self.is_slow.is_on() {
            thread::sleep(DELAY);
        }
        self.inner.finish_epoch(eager, epoch)
    }
}
