//! Seeds that are brought to a stage.

use std::sync::Arc;

use candle_core::Device;
use kasmina::KasminaConfig;
use leyline::batch::Batch;
use leyline::clock::Clock;
use leyline::command::{AlphaCurve, AlphaRamp, Operation};
use leyline::id::{BlueprintId, SeedId, SlotId};
use leyline::region::Eager;
use leyline::seed::{SeedManager as _, SeedStage};
use leyline::unit::Alpha;

use crate::error::Error;
use crate::led::Led;

const ALPHA: f64 = 0.5;
/// Enough for every gate by default.
const EPOCHS_PER_STAGE: usize = 4;

pub(super) struct Grown {
    pub(super) led: Led,
    pub(super) eager: Eager,
}

impl Grown {
    pub(super) fn new(config: KasminaConfig, clock: &Arc<dyn Clock>, eager: Eager) -> Result<Self, Error> {
        Ok(Self { led: Led::new(config, &Device::Cpu, clock)?, eager })
    }

    /// Brings an `mlp` seed in each slot to training or, from there, to blending at one half.
    pub(super) fn grow(&mut self, slots: &[String], stage: SeedStage, batch: &Batch) -> Result<(), Error> {
        let mut seeds = Vec::with_capacity(slots.len());
        for slot in slots {
            let slot = SlotId::new(slot).expect("slots have names of allowed characters");
            let blueprint = BlueprintId::new("mlp").expect("a literal of allowed characters");
            seeds.push(self.led.apply(&mut self.eager, Operation::germinate(slot, blueprint))?);
        }
        self.ripen(&seeds, batch)?;
        for &seed in &seeds {
            self.led.apply(&mut self.eager, Operation::StartTraining { seed })?;
        }
        self.ripen(&seeds, batch)?;
        if stage == SeedStage::Blending {
            let target = Alpha::new(ALPHA).expect("one half is an alpha");
            for &seed in &seeds {
                let ramp = AlphaRamp { target, steps: 0, curve: AlphaCurve::Cosine };
                self.led.apply(&mut self.eager, Operation::StartBlending { seed, ramp })?;
            }
        }
        Ok(())
    }

    fn ripen(&mut self, seeds: &[SeedId], batch: &Batch) -> Result<(), Error> {
        for _ in 0..EPOCHS_PER_STAGE {
            self.led.prove(&self.eager, seeds, batch)?;
            self.led.manager.finish_epoch(&mut self.eager, self.led.epoch)?;
        }
        Ok(())
    }
}
