//! A seed manager that is led by orders, as by a policy, past gates that open on good evidence.

use std::sync::Arc;

use candle_core::Device;
use kasmina::{Kasmina, KasminaConfig};
use leyline::batch::Batch;
use leyline::clock::Clock;
use leyline::command::{Operation, Order};
use leyline::id::{EpochIndex, SeedId};
use leyline::region::Eager;
use leyline::seed::{Counterfactual, Evidence, GradientHealth, SeedManager as _};
use leyline::task::Task;
use leyline::telemetry::NullRecorder;
use tolaria::task::Classification;

use crate::error::Error;

/// The manager.
pub(crate) struct Led {
    pub(crate) manager: Kasmina,
    /// Of the latest evidence.
    pub(crate) epoch: EpochIndex,
}

impl Led {
    pub(crate) fn new(config: KasminaConfig, device: &Device, clock: &Arc<dyn Clock>) -> Result<Self, Error> {
        let manager = Kasmina::new(config, device, Arc::clone(clock), Arc::new(NullRecorder))?;
        Ok(Self { manager, epoch: EpochIndex(0) })
    }

    /// Carries out an operation; the seed that it was about.
    pub(crate) fn apply(&mut self, eager: &mut Eager, operation: Operation) -> Result<SeedId, Error> {
        Ok(self.manager.apply(eager, &Order::new(operation, "measured"))?.seed)
    }

    /// An audit on `batch` where one is due, and the evidence of a new epoch, on which every gate opens.
    pub(crate) fn prove(&mut self, eager: &Eager, seeds: &[SeedId], batch: &Batch) -> Result<(), Error> {
        let task: Arc<dyn Task> = Arc::new(Classification::new(self.manager.config().host.num_outputs()));
        self.manager.train_for(eager, &task)?;
        if self.manager.wants_batch(eager) {
            self.manager.inspect_batch(eager, batch)?;
        }
        self.epoch = self.epoch.next();
        let gain = Counterfactual { loss_gain: 0.5, std_error: 0.01, accuracy_gain_pp: Some(1.0), num_samples: 1_000 };
        let health = GradientHealth { norm: 1.0, host_ratio: Some(1.0), health: 1.0 };
        let of = |&seed| Evidence { seed, epoch: self.epoch, counterfactual: Some(gain), gradient: Some(health) };
        Ok(self.manager.record_evidence(eager, &seeds.iter().map(of).collect::<Vec<_>>())?)
    }
}
