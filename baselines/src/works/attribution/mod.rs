//! What the seed manager measures on a batch: attribution among 16 acting seeds, and the isolation audit.

mod grown;

use std::sync::Arc;

use candle_core::{Device, Tensor};
use candle_nn::loss::cross_entropy;
use kasmina::attribution::AttributionScope;
use kasmina::host::HostConfig;
use kasmina::{Kasmina, KasminaConfig};
use leyline::batch::Batch;
use leyline::clock::Clock;
use leyline::model::{Pass, TrainableModel};
use leyline::region::Eager;
use leyline::seed::{AttributionMode, SeedManager, SeedStage};

use crate::error::Error;
use crate::samples::Samples;
use crate::work::{Needs, Outcome, Setting, Work, settings};
use grown::Grown;

const NUM_ACTING: usize = 16;
const BATCH_SIZE: usize = 32;
const INPUTS: usize = 64;
const HIDDEN: usize = 32;
const CLASSES: usize = 10;
const WARM_UP: usize = 20;
/// Without and with passes through the network.
const REPETITIONS: [usize; 2] = [5_000, 300];
const CASES: [(&str, AttributionMode, usize); 5] = [
    ("host_only", AttributionMode::HostOnly, REPETITIONS[0]),
    ("stage", AttributionMode::Stage, REPETITIONS[0]),
    ("alpha", AttributionMode::Alpha, REPETITIONS[0]),
    ("contribution", AttributionMode::Contribution, REPETITIONS[1]),
    ("probe", AttributionMode::Probe, REPETITIONS[1]),
];
const SCOPES: [(&str, AttributionScope); 2] =
    [("batch", AttributionScope::Batch), ("sample", AttributionScope::Sample)];
const NOTES: &str = "MODE.SCOPE: one call of attribute_batch with 16 blending seeds at 16 slots of a perceptron of 15 hidden layers \
    of 32, no seed in the shadow; MODE.rows: one of attribute_samples; forward: one pass without gradient through it; \
    export_seed_states: the states of the 16 seeds. audit: one isolation audit of a perceptron 64-32-10 with one seed in the shadow (audit.two: with two); audit.step: \
    forward and backward passes of a training step of the same network with one, main and side loss; audit.over_step: \
    medians; unaudited: attribute_batch (alpha) with the 16 blending seeds and one more in the shadow, in the same epoch \
    after the audit: beside alpha.batch it shows what a seed in the shadow costs where no audit is due";

pub(super) const WORK: Work = Work::new(
    "attribution",
    "Attribution among seeds in each mode, and the isolation audit, on the CPU",
    Needs::Nothing,
    run,
);

fn run(setting: &Setting) -> Result<Outcome, Error> {
    let mut found = Found { clock: Arc::clone(&setting.clock), samples: Samples::default() };
    let eager = attributions(&setting.clock, Eager::acquire()?, REPETITIONS, &mut found)?;
    audits(&setting.clock, eager, REPETITIONS, &mut found)?;
    let config = settings([
        ("acting_seeds", NUM_ACTING.to_string()),
        ("batch_size", BATCH_SIZE.to_string()),
        ("blueprint", "mlp".to_owned()),
        ("seed_width", "32".to_owned()),
        ("threads", candle_core::utils::get_num_threads().to_string()),
    ]);
    Ok(found.samples.into_result("attribution-cpu", WORK.name, NOTES, config, setting.clock.as_ref()).into())
}

fn attributions(
    clock: &Arc<dyn Clock>,
    mut eager: Eager,
    limits: [usize; 2],
    found: &mut Found,
) -> Result<Eager, Error> {
    let batch = batch()?;
    for (mode_name, mode, repetitions) in CASES {
        let repetitions = repetitions.min(if repetitions == REPETITIONS[0] { limits[0] } else { limits[1] });
        for (scope_name, scope) in SCOPES {
            let config = KasminaConfig { attribution: mode, attribution_scope: scope, ..config(NUM_ACTING - 1) };
            let mut grown = Grown::new(config, clock, eager)?;
            grown.grow(&slots(NUM_ACTING), SeedStage::Blending, &batch)?;
            found.time(&format!("{mode_name}.{scope_name}"), "us", repetitions, || {
                let attribution = grown.led.manager.attribute_batch(&grown.eager, &batch)?;
                expect("seeds with a share", attribution.weights().len(), acting(mode))?;
                expect("fallbacks", usize::from(attribution.used() != mode), 0)
            })?;
            if scope == AttributionScope::Sample {
                found.time(&format!("{mode_name}.rows"), "us", repetitions, || {
                    let samples = grown.led.manager.attribute_samples(&grown.eager, &batch)?;
                    expect("shares", samples.weights().len(), BATCH_SIZE * acting(mode))
                })?;
            }
            if mode == AttributionMode::Alpha && scope == AttributionScope::Batch {
                found.time("export_seed_states", "us", repetitions, || {
                    let states = grown.led.manager.export_seed_states(&grown.eager)?;
                    expect("states of seeds", states.len(), NUM_ACTING)
                })?;
            }
            if mode == AttributionMode::Probe && scope == AttributionScope::Batch {
                found.time("forward", "us", repetitions, || {
                    let pass = Pass::Evaluate { overrides: &[] };
                    grown.led.manager.model().forward(&batch.inputs, pass).map(drop).map_err(Error::from)
                })?;
            }
            eager = grown.eager;
        }
    }
    Ok(eager)
}

fn audits(clock: &Arc<dyn Clock>, eager: Eager, limits: [usize; 2], found: &mut Found) -> Result<(), Error> {
    let (batch, repetitions) = (batch()?, limits[1]);
    let mut grown = Grown::new(config(1), clock, eager)?;
    grown.grow(&["hidden0".to_owned()], SeedStage::Training, &batch)?;
    let audit = found.time("audit", "ms", repetitions, || audit(&mut grown, &batch))?;
    let step = found.time("audit.step", "ms", repetitions, || step(&grown.led.manager, &batch))?;
    found.samples.push("audit.over_step", "ratio", audit / step);
    grown.grow(&["input".to_owned()], SeedStage::Training, &batch)?;
    found.time("audit.two", "ms", repetitions, || self::audit(&mut grown, &batch))?;
    unaudited(clock, grown.eager, limits[0], found)
}

/// Attribution after the audit of the epoch, while a seed trains in the shadow of those that act.
fn unaudited(clock: &Arc<dyn Clock>, eager: Eager, repetitions: usize, found: &mut Found) -> Result<(), Error> {
    let batch = batch()?;
    let config = KasminaConfig { attribution: AttributionMode::Alpha, ..config(NUM_ACTING) };
    let mut grown = Grown::new(config, clock, eager)?;
    let slots = slots(NUM_ACTING + 1);
    grown.grow(&slots[..NUM_ACTING], SeedStage::Blending, &batch)?;
    grown.grow(&slots[NUM_ACTING..], SeedStage::Training, &batch)?;
    expect("audits that are due", usize::from(grown.led.manager.wants_batch(&grown.eager)), 1)?;
    grown.led.manager.attribute_batch(&grown.eager, &batch)?;
    expect("audits that are due after one", usize::from(grown.led.manager.wants_batch(&grown.eager)), 0)?;
    found.time("unaudited", "us", repetitions, || {
        let attribution = grown.led.manager.attribute_batch(&grown.eager, &batch)?;
        expect("seeds with a share", attribution.weights().len(), NUM_ACTING)
    })?;
    expect("isolation violations", usize::from(grown.led.manager.total_isolation_violations() > 0), 0)
}

fn audit(grown: &mut Grown, batch: &Batch) -> Result<(), Error> {
    let violations = grown.led.manager.audit_isolation(&grown.eager, batch)?;
    expect("isolation violations", violations.len(), 0)
}

fn step(manager: &Kasmina, batch: &Batch) -> Result<(), Error> {
    let outputs = manager.model().forward(&batch.inputs, Pass::Train)?;
    std::hint::black_box(cross_entropy(&outputs.logits, &batch.targets)?.backward()?);
    for shadow in &outputs.shadows {
        std::hint::black_box(cross_entropy(&shadow.logits, &shadow.targets(&batch.targets)?)?.backward()?);
    }
    Ok(())
}

/// Seeds that share the loss in this mode.
fn acting(mode: AttributionMode) -> usize {
    if mode == AttributionMode::HostOnly { 0 } else { NUM_ACTING }
}

/// The first slots of a perceptron, by name.
fn slots(count: usize) -> Vec<String> {
    std::iter::once("input".to_owned()).chain((0..count - 1).map(|layer| format!("hidden{layer}"))).collect()
}

fn config(num_hidden: usize) -> KasminaConfig {
    KasminaConfig::new(HostConfig::Mlp { inputs: INPUTS, hidden: vec![HIDDEN; num_hidden], classes: CLASSES })
}

/// Fixed values: they do not matter for the time.
fn batch() -> Result<Batch, Error> {
    let inputs: Vec<f32> =
        (0..BATCH_SIZE * INPUTS).map(|i| u8::try_from((i * 7 + 3) % 11).map_or(0.0, f32::from) / 11.0 - 0.5).collect();
    let targets: Vec<u32> = (0..10).cycle().take(BATCH_SIZE).collect();
    Ok(Batch {
        inputs: Tensor::from_vec(inputs, (BATCH_SIZE, INPUTS), &Device::Cpu)?,
        targets: Tensor::from_vec(targets, BATCH_SIZE, &Device::Cpu)?,
    })
}

#[expect(clippy::cast_precision_loss, reason = "counts of seeds and shares")]
fn expect(what: &str, found: usize, expected: usize) -> Result<(), Error> {
    if found == expected {
        return Ok(());
    }
    Err(Error::WrongResult { what: what.to_owned(), expected: expected as f64, found: found as f64 })
}

/// What was measured so far.
struct Found {
    clock: Arc<dyn Clock>,
    samples: Samples,
}

impl Found {
    fn time(
        &mut self,
        name: &str,
        unit: &'static str,
        repetitions: usize,
        work: impl FnMut() -> Result<(), Error>,
    ) -> Result<f64, Error> {
        self.samples.time(name, unit, [WARM_UP, repetitions], self.clock.as_ref(), work)
    }
}

#[cfg(test)]
mod tests {
    use leyline::clock::SystemClock;

    use super::*;

    #[test]
    fn every_mode_in_both_scopes_and_the_audit_are_measured() {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let mut found = Found { clock: Arc::clone(&clock), samples: Samples::default() };
        let eager = attributions(&clock, Eager::acquire().unwrap(), [2, 2], &mut found).unwrap();
        audits(&clock, eager, [2, 2], &mut found).unwrap();
        let names: Vec<String> = found.samples.into_measurements().into_keys().collect();
        let modes =
            CASES.iter().flat_map(|(mode, ..)| ["batch", "sample", "rows"].map(|what| format!("{mode}.{what}")));
        let mut expected: Vec<String> = modes.collect();
        let others =
            ["forward", "export_seed_states", "audit", "audit.step", "audit.over_step", "audit.two", "unaudited"];
        expected.extend(others.map(str::to_owned));
        expected.sort();
        assert_eq!(names, expected);
    }
}
