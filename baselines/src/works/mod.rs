//! The works that can be measured.
//!
//! | name | measures | needs |
//! |---|---|---|
//! | `reference` | the trainer on the smallest workload | the CPU |
//! | `prefetch` | prefetch of blueprint weights, with a store that dies | the CPU |
//! | `attribution` | attribution among seeds, and the isolation audit | the CPU |
//! | `launch-model` | launches of kernels, eager against one replay | a GPU |
//! | `capture-profile` | captures by part, fresh and reused | a GPU |
//! | `staging` | copies to the device beside computation | a GPU |
//! | `cold-start` | the first seconds of a process | a GPU |
//! | `graph-check` | what graphs promise: bits, refusals, memory | a GPU |
//! | `graph-bench` | whole training steps, eager against replayed | a GPU |
//! | `compile-check` | what compiled steps promise: bits, layers, planted faults | a GPU |
//! | `compile-bench` | whole training steps, compiled, in both forms and several precisions | a GPU, for ratios PyTorch |
//! | `memcheck` | a run under NVIDIA's memory checker | a GPU, compute-sanitizer |
//! | `peer-torch` | the shared works in PyTorch | a GPU, PyTorch |
//! | `gradient-cpu` | combinations of gradients, against vector by vector | the CPU |
//! | `gradient-bench` | combinations of gradients and whole steps | a GPU |
//! | `seed-cost` | a forward and backward pass with free slots and with seeds in each phase of life | the CPU or a GPU |
//! | `peer-gradient` | combinations of gradients in PyTorch | a GPU, PyTorch |

mod reference;
mod attribution;
pub mod models;
pub mod peer_torch;
pub mod gradient;
mod seed_cost;
mod prefetch;
pub mod launch_plot;
mod outcome;
pub mod gpu;

use std::sync::Arc;

use leyline::clock::Clock;

pub use outcome::{Attachment, Outcome};

use crate::error::Error;
use crate::result::BenchResult;
use gpu::{CompileBenchConfig, Gpu};
use gradient::torch::GradientPeerConfig;
use peer_torch::PeerConfig;

/// Names accepted by [`run`].
pub const NAMES: &[&str] = &[
    "reference",
    "attribution",
    "launch-model",
    "capture-profile",
    "staging",
    "cold-start",
    "graph-check",
    "graph-bench",
    "compile-check",
    "compile-bench",
    "memcheck",
    "peer-torch",
    "gradient-cpu",
    "gradient-bench",
    "seed-cost",
    "peer-gradient",
    "prefetch",
];

/// What a work is given.
#[derive(Debug, Clone)]
pub struct Setting {
    /// Takes the times.
    pub clock: Arc<dyn Clock>,
    /// Number of the GPU; none for the CPU, on which only some works run.
    pub gpu: Option<usize>,
}

/// Measures one work.
///
/// # Errors
/// [`Error::UnknownWork`] for another name, [`Error::NeedsGpu`] where there is none, else what the work fails with.
pub fn run(name: &str, setting: &Setting) -> Result<Outcome, Error> {
    match name {
        "reference" => Ok(reference::run(&setting.clock)?.into()),
        "attribution" => Ok(attribution::run(&setting.clock)?.into()),
        "gradient-cpu" => Ok(gradient::on_cpu(&setting.clock)?.into()),
        "prefetch" => Ok(prefetch::run(&setting.clock)?.into()),
        "gradient-bench" => gpu::gradient_bench(setting),
        "seed-cost" if setting.gpu.is_none() => Ok(seed_cost::on_cpu(&setting.clock)?.into()),
        "seed-cost" => gpu::seed_cost(setting),
        "launch-model" => gpu::launch_model(setting),
        "capture-profile" => gpu::capture_profile(setting),
        "staging" => gpu::staging(setting),
        "cold-start" => gpu::cold_start(setting),
        "graph-check" => gpu::graph_check(setting),
        "graph-bench" => gpu::graph_bench(setting),
        "compile-check" => gpu::compile_check(setting),
        "compile-bench" => compile_bench(&CompileBenchConfig::default(), setting),
        "memcheck" => gpu::memcheck(setting),
        "peer-torch" => {
            // Closed again at once: the peer has a process of its own.
            drop(Gpu::open(setting)?);
            peer(&PeerConfig::default(), setting)
        }
        "peer-gradient" => {
            drop(Gpu::open(setting)?);
            gradient_peer(&GradientPeerConfig::default(), setting)
        }
        _ => Err(Error::UnknownWork { name: name.to_owned(), known: NAMES.join(", ") }),
    }
}

/// Measures compiled steps as `config` says, beside PyTorch when it asks for that.
///
/// # Errors
/// [`Error::NeedsGpu`] where there is none, else what the work fails with.
pub fn compile_bench(config: &CompileBenchConfig, setting: &Setting) -> Result<Outcome, Error> {
    gpu::compile_bench(config, setting)
}

/// Measures the shared works in PyTorch as `config` says.
///
/// # Errors
/// [`Error::Peer`].
pub fn peer(config: &PeerConfig, setting: &Setting) -> Result<Outcome, Error> {
    let result: BenchResult = peer_torch::run(config)?.into_result(setting.clock.as_ref());
    Ok(result.into())
}

/// Measures combinations of gradients in PyTorch as `config` says.
///
/// # Errors
/// [`Error::Peer`].
pub fn gradient_peer(config: &GradientPeerConfig, setting: &Setting) -> Result<Outcome, Error> {
    let result: BenchResult = gradient::torch::run(config)?.into_result(setting.clock.as_ref());
    Ok(result.into())
}

#[cfg(test)]
mod tests {
    use leyline::clock::SystemClock;

    use super::*;

    #[test]
    fn works_of_a_gpu_say_that_they_need_one() {
        let setting = Setting { clock: Arc::new(SystemClock::new()), gpu: None };
        let on_cpu = ["reference", "attribution", "gradient-cpu", "prefetch", "seed-cost"];
        for name in NAMES.iter().filter(|name| !on_cpu.contains(name)) {
            let error = run(name, &setting).unwrap_err();
            assert!(matches!(error, Error::NeedsGpu { .. }), "{name}: {error}");
            assert!(error.to_string().starts_with("this work needs a GPU: "), "{error}");
        }
    }

    #[test]
    fn an_unknown_name_is_answered_with_those_there_are() {
        let setting = Setting { clock: Arc::new(SystemClock::new()), gpu: None };
        let error = run("launch", &setting).unwrap_err().to_string();
        assert!(NAMES.iter().all(|name| error.contains(name)), "{error}");
    }
}
