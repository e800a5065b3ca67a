//! A seed manager whose seeds are brought to a stage by orders, as a policy would.

use std::sync::Arc;

use candle_core::Device;
use kasmina::{Kasmina, KasminaConfig};
use leyline::batch::Batch;
use leyline::clock::Clock;
use leyline::command::{AlphaCurve, AlphaRamp, Operation, Order};
use leyline::id::{BlueprintId, EpochIndex, SeedId, SlotId};
use leyline::region::Eager;
use leyline::seed::{Counterfactual, Evidence, GradientHealth, SeedManager, SeedStage};
use leyline::telemetry::NullRecorder;
use leyline::unit::Alpha;

use crate::error::Error;

const ALPHA: f64 = 0.5;
/// Enough for every gate by default.
const EPOCHS_PER_STAGE: usize = 4;

pub(super) struct Grown {
    pub(super) manager: Kasmina,
    pub(super) eager: Eager,
    epoch: EpochIndex,
}

impl Grown {
    pub(super) fn new(config: KasminaConfig, clock: &Arc<dyn Clock>, eager: Eager) -> Result<Self, Error> {
        let manager = Kasmina::new(config, &Device::Cpu, Arc::clone(clock), Arc::new(NullRecorder))?;
        Ok(Self { manager, eager, epoch: EpochIndex(0) })
    }

    /// Brings an `mlp` seed in each slot to training or, from there, to blending at one half.
    pub(super) fn grow(&mut self, slots: &[String], stage: SeedStage, batch: &Batch) -> Result<(), Error> {
        let mut seeds = Vec::with_capacity(slots.len());
        for slot in slots {
            let slot = SlotId::new(slot).expect("slots have names of allowed characters");
            let blueprint = BlueprintId::new("mlp").expect("a literal of allowed characters");
            seeds.push(self.send(Operation::germinate(slot, blueprint))?);
        }
        self.ripen(&seeds, batch)?;
        for &seed in &seeds {
            self.send(Operation::StartTraining { seed })?;
        }
        self.ripen(&seeds, batch)?;
        if stage == SeedStage::Blending {
            let target = Alpha::new(ALPHA).expect("one half is an alpha");
            for &seed in &seeds {
                let ramp = AlphaRamp { target, steps: 0, curve: AlphaCurve::Cosine };
                self.send(Operation::StartBlending { seed, ramp })?;
            }
        }
        Ok(())
    }

    fn send(&mut self, operation: Operation) -> Result<SeedId, Error> {
        Ok(self.manager.apply(&mut self.eager, &Order::new(operation, "measured"))?.seed)
    }

    /// Ends epochs with evidence on which every gate opens.
    fn ripen(&mut self, seeds: &[SeedId], batch: &Batch) -> Result<(), Error> {
        for _ in 0..EPOCHS_PER_STAGE {
            if self.manager.wants_batch(&self.eager) {
                self.manager.inspect_batch(&self.eager, batch)?;
            }
            let measured = Counterfactual { loss_gain: 0.2, std_error: 0.01, accuracy_gain_pp: 1.5, num_samples: 64 };
            let gradient = GradientHealth { norm: 0.1, host_ratio: Some(1.0), health: 1.0 };
            let evidence: Vec<Evidence> = seeds
                .iter()
                .map(|&seed| Evidence {
                    seed,
                    epoch: self.epoch.next(),
                    counterfactual: Some(measured),
                    gradient: Some(gradient),
                })
                .collect();
            self.manager.record_evidence(&self.eager, &evidence)?;
            self.epoch = self.epoch.next();
            self.manager.finish_epoch(&mut self.eager, self.epoch)?;
        }
        Ok(())
    }
}
