//! Captures of trainers that are made one after the other, and what captures that are refused leave on the device.

use leyline::region::Eager;
use tolaria::aggregate::ConflictResolution;
use tolaria::trainer::{NullObserver, StepMode};

use super::{CAPTURES, made, memory};
use crate::error::Error;
use crate::gpu::growing::in_mode;
use crate::gpu::open::{Gpu, refused};
use crate::gpu::step::check_loss;
use crate::models::{Variant, Workload};
use crate::samples::{Samples, ms};
use crate::trainer::{all_of, plain_trainer, train_config};

/// Of each trainer: warm-up, one capture, replays.
const EPOCHS: u64 = 4;

/// Ten trainers in a row, on one device; each is dropped before the next one is made.
pub(super) fn trainers(gpu: &Gpu, model: &str, eager: &mut Eager, samples: &mut Samples) -> Result<(), Error> {
    let name = format!("{model}.trainer");
    for _ in 0..CAPTURES {
        let (before, began) = (memory(gpu)?, gpu.now());
        // A data set has a target for each sample, not for each token.
        let work = match model {
            "tfm5m" => Workload::sequence_ends(Variant::default(), 0, &gpu.device)?,
            _ => Workload::named(model, 0, &gpu.device)?,
        };
        let optimizer = work.optimizer;
        let config = train_config(work.batch_size, 1, optimizer, ConflictResolution::Mean, in_mode(StepMode::Graph));
        let data = all_of(work.dataset()?);
        let mut trainer = plain_trainer(config, work.num_classes, work.model, data, [0, EPOCHS], &gpu.clock)?;
        trainer.run(eager, &mut NullObserver)?;
        if let Some(refusal) = trainer.last_refusal() {
            return Err(refused(&format!("the capture of {name}"), refusal.clone()));
        }
        samples.push(format!("{name}.whole"), "ms", ms(gpu.now() - began));
        let total = trainer.graph_stats().total;
        let (Some(capture), Some(instantiate)) = (total.capture_ms, total.instantiate_ms) else {
            return Err(Error::WrongResult { what: format!("captures of {name}"), expected: 1.0, found: 0.0 });
        };
        samples.push(format!("{name}.total"), "ms", capture.total + instantiate.total);
        samples.push(format!("{name}.captures"), "count", total.captures as f64);
        let with = memory(gpu)?;
        drop(trainer);
        for (when, memory) in [("before", before), ("with", with), ("after", memory(gpu)?)] {
            samples.push(format!("{name}.memory.{when}"), "bytes", memory.reserved as f64);
        }
    }
    Ok(())
}

/// Captures of whole steps that fail at their end; each falls back to an eager step, with the loss that it should have.
pub(super) fn refused_captures(
    gpu: &Gpu,
    model: &str,
    expected: &[f64],
    eager: &mut Eager,
    samples: &mut Samples,
) -> Result<(), Error> {
    let name = format!("{model}.refused");
    let step = made(gpu, &name, model, samples)?;
    for loss in &expected[..CAPTURES] {
        let (before, began) = (memory(gpu)?, gpu.now());
        let failing = || step.run().map_err(|error| error.chain()).and_then(|()| Err("planted".to_owned()));
        let outcome = gpu.session.capture(eager, |_| failing()).map(drop);
        let is_planted = outcome.as_ref().is_err_and(|refusal| refusal.to_string().contains("planted"));
        samples.push(format!("{name}.total"), "ms", ms(gpu.now() - began));
        if !is_planted {
            let what = format!("the refusals of a failing capture of {model}");
            return Err(Error::WrongResult { what, expected: 1.0, found: 0.0 });
        }
        gpu.session.warm(|| step.run())?;
        check_loss(&name, *loss, step.last_loss()?)?;
        for (when, memory) in [("before", before), ("after", memory(gpu)?)] {
            samples.push(format!("{name}.memory.{when}"), "bytes", memory.reserved as f64);
            samples.push(format!("{name}.memory.{when}.used"), "bytes", memory.used as f64);
        }
    }
    Ok(())
}
