//! The cost of seeds on the CPU.

use candle_core::{Device, Tensor};
use leyline::region::Eager;

use super::{Grown, Variant, Widths, forward_backward};
use crate::error::Error;
use crate::samples::{Samples, us};
use crate::work::{Outcome, Setting, settings};

const WARM_UP: usize = 50;
const REPETITIONS: usize = 500;

const NOTES: &str = "WORK.none: forward, loss and backward of a host with six free slots (us). WORK.PHASE_K: the same with K seeds \
    of the first blueprint on offer, in the last K slots; WORK.shadow_first_K, WORK.shadow_last_K: K shadows in the \
    first and in the last K slots (with 4 of 6, two slots are in both), since a side loss runs through all \
    layers behind its seed. over_none: difference of the medians. Variants take turns";

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

pub(super) fn run(setting: &Setting) -> Result<Outcome, Error> {
    let clock = &setting.clock;
    let mut eager = Eager::acquire()?;
    let mut samples = Samples::default();
    for Work { name, widths, batch, seed_width } in WORKS {
        let (inputs, targets) = batch_of(widths, batch)?;
        // Interleaved, so that all of them see the same machine.
        let mut grown = vec![(format!("{name}.none"), Grown::new(widths, seed_width, &Device::Cpu, clock)?)];
        for variant in Variant::all() {
            let mut network = Grown::new(widths, seed_width, &Device::Cpu, clock)?;
            network.grow(&mut eager, variant)?;
            grown.push((format!("{name}.{}", variant.name()), network));
        }
        for repetition in 0..WARM_UP + REPETITIONS {
            for (name, network) in &grown {
                let began = clock.now();
                forward_backward(network.model(), &inputs, &targets)?;
                let took = clock.now() - began;
                if repetition >= WARM_UP {
                    samples.push(name, "us", us(took));
                }
            }
        }
        let base = samples.median(&grown[0].0).unwrap_or(f64::NAN);
        for (name, _) in grown {
            let median = samples.median(&name);
            samples.extend_from(format!("{name}.over_none"), "us", median.map(|median| median - base));
        }
    }
    let config = WORKS.map(|Work { name, widths, batch, seed_width }| {
        (name, format!("{widths}, batch {batch}, seed width {seed_width}"))
    });
    Ok(samples.into_result("seed-cost-cpu", "seed-cost --device cpu", NOTES, settings(config), clock.as_ref()).into())
}

/// Samples whose values do not matter for the time.
fn batch_of(Widths { inputs: features, classes, .. }: Widths, batch: usize) -> Result<(Tensor, Tensor), Error> {
    let inputs: Vec<f32> = (0..batch * features).map(|i| ((i * 7 + 3) % 11) as f32 / 11.0 - 0.5).collect();
    let classes = u32::try_from(classes).expect("a small number");
    let targets: Vec<u32> = (0..classes).cycle().take(batch).collect();
    Ok((Tensor::from_vec(inputs, (batch, features), &Device::Cpu)?, Tensor::from_vec(targets, batch, &Device::Cpu)?))
}
