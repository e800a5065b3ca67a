//! Networks that grow while their steps are compiled: every change of structure starts over, and no bit is lost.

use std::sync::Arc;
use std::time::Duration;

use candle_core::Device;
use kasmina::ActivationCheckpointing;
use kasmina::host::{HostConfig, Pool};
use leyline::clock::Clock;
use leyline::region::Eager;
use tolaria::trainer::{StepMode, TrainPrecision};

use super::MIN_STEPS;
use super::networks::{ADAM_W, MUON, SGD};
use crate::gpu::growing::{CLASSES, Growing};
use crate::gpu::open::Gpu;
use crate::gpu::ran::{Ran, same};
use crate::gpu::report::{Broken, Report};

/// Compiled steps of a run, percent. Structures that last for a few epochs are captured, and gone before they are compiled.
const SHARE: u64 = 10;
/// After each step of the compiled run.
const PAUSE: Duration = Duration::from_millis(4);

pub(super) fn run(gpu: &Gpu, eager: &mut Eager, report: &mut Report) {
    for (name, growing) in grafts() {
        report.check(format!("compiled.{name}"), |_| {
            let captured = grown(&keeping_all(&growing), StepMode::Graph, &gpu.device, &gpu.clock, eager)?;
            let compiled = grown(&growing, StepMode::Compiled, &gpu.device, &gpu.clock, eager)?;
            if compiled.parameters.len() <= compiled.start.len() {
                return Err(Broken("nothing grew".to_owned()));
            }
            same(&captured, &compiled, [MIN_STEPS, SHARE])
        });
    }
}

fn grafts() -> Vec<(String, Growing)> {
    let mut grafts = Vec::new();
    for (name, optimizer) in [("sgd", SGD), ("adam_w", ADAM_W), ("muon", MUON)] {
        for microbatches in [1, 4] {
            let growing = Growing::small(microbatches, optimizer);
            grafts.push((format!("graft.{name}.accumulation{microbatches}"), growing));
        }
        // Of the hosts, Muon has something of its own to do where there are matrices alone.
        for (host_name, host) in hosts().into_iter().filter(|(host, _)| name != "muon" || host.starts_with("language"))
        {
            grafts.push((format!("{host_name}.{name}"), Growing { host, ..Growing::small(1, optimizer) }));
        }
    }
    let (_, language_model) = hosts().into_iter().last().expect("there are hosts");
    for (name, growing) in [
        ("graft", Growing::small(4, ADAM_W)),
        ("language_model_tied", Growing { host: language_model, ..Growing::small(1, ADAM_W) }),
    ] {
        for precision in [TrainPrecision::Bf16Pure, TrainPrecision::Bf16Stochastic] {
            grafts.push((format!("{name}.{}", precision.name()), Growing { precision, ..growing.clone() }));
        }
    }
    let stochastic = Growing { precision: TrainPrecision::Bf16Stochastic, ..Growing::small(1, MUON) };
    grafts.push(("graft.muon.bf16_stochastic".to_owned(), stochastic));
    for (name, host) in hosts().into_iter().filter(|(host, _)| !host.contains("conv")) {
        let checkpointing = ActivationCheckpointing::Blocks;
        grafts.push((format!("{name}.recomputed"), Growing { host, checkpointing, ..Growing::small(4, ADAM_W) }));
    }
    grafts
}

/// The same with all activations kept for the backward pass: what is computed again has the same bits.
fn keeping_all(growing: &Growing) -> Growing {
    Growing { checkpointing: ActivationCheckpointing::None, ..growing.clone() }
}

/// The other kinds of host, for samples of 16 features, and for windows of tokens.
fn hosts() -> [(&'static str, HostConfig); 5] {
    let (kernel, stride, classes) = (3, 2, CLASSES);
    let language_model = |tied| HostConfig::LanguageModel {
        context: 6,
        width: 8,
        heads: 2,
        layers: 1,
        mlp_ratio: 2,
        tied,
        vocabulary: 11,
    };
    [
        (
            "conv1d",
            HostConfig::Cnn1d { length: 16, channels: vec![6, 8], kernel, stride, classes, pool: Pool::Flatten },
        ),
        (
            "host_conv2d",
            HostConfig::Cnn2d {
                height: 4,
                width: 4,
                input_channels: 1,
                channels: vec![6, 8],
                kernel,
                stride,
                classes,
                pool: Pool::Mean,
            },
        ),
        (
            "host_transformer",
            HostConfig::Transformer { inputs: 16, patch: 4, width: 8, heads: 2, layers: 1, mlp_ratio: 2, classes },
        ),
        ("language_model", language_model(false)),
        ("language_model_tied", language_model(true)),
    ]
}

fn grown(
    growing: &Growing,
    mode: StepMode,
    device: &Device,
    clock: &Arc<dyn Clock>,
    eager: &mut Eager,
) -> Result<Ran, Broken> {
    let pause = |_| if mode == StepMode::Compiled { PAUSE } else { Duration::ZERO };
    Ran::of(growing.with_mode(mode).trainer_on(device, clock)?, eager, pause)
}

#[cfg(test)]
mod tests {
    use leyline::clock::SystemClock;

    use super::*;

    #[test]
    fn each_of_them_grows_and_two_runs_are_the_same() {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let mut eager = Eager::acquire().unwrap();
        let shown = [
            "graft.sgd.accumulation1",
            "conv1d.sgd",
            "host_conv2d.sgd",
            "host_transformer.recomputed",
            "language_model_tied.recomputed",
        ];
        for (name, growing) in grafts().into_iter().filter(|(name, _)| shown.contains(&name.as_str())) {
            let mut run = |growing: &Growing| {
                let ran = grown(growing, StepMode::Graph, &Device::Cpu, &clock, &mut eager);
                ran.map_err(|broken| broken.0).unwrap()
            };
            let [first, second] = [run(&keeping_all(&growing)), run(&growing)];
            assert!(first.parameters.len() > first.start.len(), "{name} did not grow");
            let text = same(&first, &second, [MIN_STEPS, 0]).map_err(|broken| broken.0).unwrap();
            assert!(text.contains("0 of "), "{name}: {text}");
        }
    }
}
