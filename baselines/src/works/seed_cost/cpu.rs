//! The cost of seeds on the CPU.

use std::collections::BTreeMap;
use std::sync::Arc;

use candle_core::{Device, Tensor};
use leyline::clock::Clock;
use leyline::region::Eager;

use super::network::us;
use super::{Grown, Variant, Widths, forward_backward};
use crate::environment::Environment;
use crate::error::Error;
use crate::measure::Measurement;
use crate::result::{BenchResult, SCHEMA};

const WARM_UP: usize = 50;
const REPETITIONS: usize = 500;

struct Work {
    name: &'static str,
    widths: Widths,
    batch: usize,
    seed_width: usize,
}

const WORKS: [Work; 2] = [
    Work {
        name: "digits",
        widths: Widths { inputs: 64, hidden: &[32, 32, 32, 32, 32], classes: 10 },
        batch: 32,
        seed_width: 16,
    },
    Work {
        name: "mlp",
        widths: Widths { inputs: 784, hidden: &[256, 256, 256, 256, 256], classes: 10 },
        batch: 128,
        seed_width: 32,
    },
];

pub(in crate::works) fn run(clock: &Arc<dyn Clock>) -> Result<BenchResult, Error> {
    let mut eager = Eager::acquire()?;
    let mut measurements = BTreeMap::new();
    for Work { name, widths, batch, seed_width } in WORKS {
        let (inputs, targets) = batch_of(widths, batch)?;
        // Interleaved, so that all of them see the same machine.
        let mut grown =
            vec![(format!("{name}.none"), Grown::new(widths, seed_width, &Device::Cpu, clock)?, Vec::new())];
        for variant in Variant::all() {
            let mut network = Grown::new(widths, seed_width, &Device::Cpu, clock)?;
            network.grow(&mut eager, variant)?;
            grown.push((format!("{name}.{}", variant.name()), network, Vec::new()));
        }
        for repetition in 0..WARM_UP + REPETITIONS {
            for (_, network, times) in &mut grown {
                let began = clock.now();
                forward_backward(network.model(), &inputs, &targets)?;
                if repetition >= WARM_UP {
                    times.push(us(clock.now() - began));
                }
            }
        }
        let base = Measurement::of("us", grown[0].2.clone()).map_or(f64::NAN, |none| none.median);
        for (name, _, times) in grown {
            let Some(measured) = Measurement::of("us", times) else { continue };
            let over = Measurement::of("us", vec![measured.median - base]);
            measurements.extend(over.map(|over| (format!("{name}.over_none"), over)));
            measurements.insert(name, measured);
        }
    }
    Ok(BenchResult {
        schema: SCHEMA,
        name: "seed-cost-cpu".to_owned(),
        command: "cargo run --release -p esper -- bench seed-cost --device cpu --out DIR".to_owned(),
        notes: "WORK.none: forward, loss and backward of a host with six free slots (us). WORK.PHASE_K: the same with K seeds \
                of the first blueprint on offer, in the last K slots; WORK.shadow_first_K, WORK.shadow_last_K: K shadows in the \
                first and in the last K slots (with 4 of 6, two slots are in both), since a side loss runs through all \
                layers behind its seed. over_none: difference of the medians. Variants take turns"
            .to_owned(),
        environment: Environment::detect(clock.as_ref()),
        config: WORKS
            .iter()
            .map(|Work { name, widths, batch, seed_width }| {
                ((*name).to_owned(), format!("{widths}, batch {batch}, seed width {seed_width}"))
            })
            .collect(),
        measurements,
        metrics: Vec::new(),
    })
}

/// Samples whose values do not matter for the time.
fn batch_of(Widths { inputs: features, classes, .. }: Widths, batch: usize) -> Result<(Tensor, Tensor), Error> {
    let inputs: Vec<f32> = (0..batch * features).map(|i| ((i * 7 + 3) % 11) as f32 / 11.0 - 0.5).collect();
    let classes = u32::try_from(classes).expect("a small number");
    let targets: Vec<u32> = (0..classes).cycle().take(batch).collect();
    Ok((Tensor::from_vec(inputs, (batch, features), &Device::Cpu)?, Tensor::from_vec(targets, batch, &Device::Cpu)?))
}
