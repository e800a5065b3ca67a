//! Whole training steps three ways: eager, captured, compiled; of basic operations and of layers, in several
//! precisions, and beside PyTorch's CUDA graph of the same step.

mod case;
mod compiling;
mod phases;
mod timing;
mod ratios;

use std::collections::BTreeMap;

use leyline::region::Eager;

use super::cold_start::cache::CacheFolders;
use super::open::Gpu;
use super::precision::PrecisionGuard;
use super::samples::Samples;
use crate::error::Error;
use crate::works::models::{ALL_NAMES, Form, Precision, Variant};
use crate::works::peer_torch::{self, PeerConfig};
use crate::works::{Outcome, Setting};

const NOTES: &str = "CASE is WORK.PRECISION.FORM; FORM: basic operations of candle (primitive) or functions of \
    esper-layers (layers). CASE.eager, .graph, .compiled: one step with its inputs and optimizer constants brought to \
    the device, each synchronised (us); ref is an epoch of 4 steps, as in the PyTorch peer. .pipelined: mean over 100 \
    repetitions with one synchronisation. .device: the graph alone, by device events; of ref one of four. \
    CASE.speedup.graph: ratio of the medians graph / compiled. CASE.compile.cold.PHASE and .warm.PHASE: the compiler, \
    with an empty folder for generated kernels and with that of the run before (ms). CASE.stall.PHASE: steps while the \
    compiler works: draft, background, verify, each with the step it takes and synchronised (us); \
    .stall.over_eager: what the longest of them takes beyond a captured step, over the median of eager steps. CASE.nodes, .critical_path, .pass.NAME: what \
    is left after all passes and after each. torch.*: the peer, when it was asked for. ratio.CASE: compiled over \
    the peer's graph, medians; .pipelined the same without synchronisation; bf16 against autocast over parameters in f32. \
    Before any time was taken, parameters and loss after the same number of eager, captured and compiled steps were \
    compared bit for bit.";

/// What is measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompileBenchConfig {
    /// Works, of `ref`, `mlp`, `tfm5m`, `tfm30m`, `mlp4096`.
    pub works: Vec<String>,
    /// Precisions; `ref` is measured in `f32` only.
    pub precisions: Vec<Precision>,
    /// The peer for the same works and precisions, in the same run; none when absent.
    pub peer: Option<PeerConfig>,
}

impl Default for CompileBenchConfig {
    /// All works in all precisions, without the peer.
    fn default() -> Self {
        Self { works: ALL_NAMES.map(str::to_owned).to_vec(), precisions: Precision::ALL.to_vec(), peer: None }
    }
}

impl CompileBenchConfig {
    /// Works with their precisions, in the order in which they are measured.
    fn cases(&self) -> Result<Vec<(&'static str, Precision)>, Error> {
        let mut cases = Vec::new();
        for asked in &self.works {
            let Some(work) = ALL_NAMES.into_iter().find(|name| name == asked) else {
                return Err(Error::UnknownWork { name: asked.clone(), known: ALL_NAMES.join(", ") });
            };
            let applies = |precision: &Precision| *precision == Precision::F32 || work != "ref";
            cases.extend(self.precisions.iter().copied().filter(applies).map(|precision| (work, precision)));
        }
        Ok(cases)
    }

    /// The arguments that ask for this, as the command line has them.
    fn arguments(&self) -> String {
        let precisions: Vec<&str> = self.precisions.iter().map(|precision| precision.name()).collect();
        let mut arguments = format!(" --works {} --precisions {}", self.works.join(","), precisions.join(","));
        if let Some(peer) = &self.peer {
            arguments += &format!(" --with-peer --peer-modes {}", peer.modes.join(","));
        }
        arguments
    }

    /// What the peer is asked for: the best that it does with the same networks.
    fn peer(&self) -> Option<PeerConfig> {
        let precisions = self.precisions.iter().flat_map(|precision| match precision {
            Precision::Bf16 => vec!["autocast", "bf16"],
            precision => vec![precision.name()],
        });
        self.peer.clone().map(|peer| PeerConfig {
            works: self.works.clone(),
            precisions: precisions.map(str::to_owned).collect(),
            fused: true,
            joint_qkv: true,
            ..peer
        })
    }
}

/// Measures every case.
///
/// # Errors
/// [`Error::NeedsGpu`]; [`Error::UnknownWork`]; [`Error::WrongResult`] when steps do not give the bits of eager ones;
/// [`Error::Refused`] when a step could not be compiled; [`Error::Peer`].
pub fn run(config: &CompileBenchConfig, setting: &Setting) -> Result<Outcome, Error> {
    let cases = config.cases()?;
    let gpu = Gpu::open(setting)?;
    let mut eager = Eager::acquire()?;
    let mut samples = Samples::default();
    let folders = CacheFolders::new(setting.clock.unix().as_nanos())?;
    let mut facts = BTreeMap::new();
    for &(work, precision) in &cases {
        let _guard = PrecisionGuard::set(precision);
        for form in Form::ALL {
            let variant = Variant { form, precision };
            let case = format!("{work}.{variant}");
            let folder = folders.of(&case)?;
            let fact = case::measure(&gpu, &mut eager, work, variant, &folder, &mut samples)?;
            facts.insert(case, fact);
        }
    }
    // What the steps keep on the device is dropped by now: the peer has it to itself.
    let peer = config.peer().map(|peer| peer_torch::run(&peer)).transpose()?;
    let mut result = gpu.result("compile-bench", NOTES, &[], samples);
    result.config = facts;
    result.command += &config.arguments();
    if let Some(peer) = peer {
        let peer = peer.into_result(setting.clock.as_ref());
        result.measurements.extend(peer.measurements);
        result.config.extend(peer.config.into_iter().map(|(key, value)| (format!("peer.{key}"), value)));
        let ratios = ratios::of(&cases, &result.measurements);
        result.measurements.extend(ratios);
    }
    Ok(result.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_is_measured_in_one_precision_and_the_peer_in_both_kinds_of_bf16() {
        let config = CompileBenchConfig { peer: Some(PeerConfig::default()), ..CompileBenchConfig::default() };
        let cases = config.cases().unwrap();
        assert_eq!(cases.len(), 1 + 4 * 3);
        assert_eq!(cases.iter().filter(|(work, _)| *work == "ref").count(), 1);
        let peer = config.peer().unwrap();
        assert_eq!(peer.precisions, ["f32", "tf32", "autocast", "bf16"]);
        assert_eq!(peer.works, config.works);
        assert_eq!(CompileBenchConfig::default().peer(), None);
        let arguments = " --works ref,mlp,tfm5m,tfm30m,mlp4096 --precisions f32,tf32,bf16";
        assert_eq!(CompileBenchConfig::default().arguments(), arguments);
        let modes = PeerConfig::default().modes.join(",");
        assert_eq!(config.arguments(), format!("{arguments} --with-peer --peer-modes {modes}"));
        let error = CompileBenchConfig { works: vec!["lenet".to_owned()], ..config }.cases().unwrap_err();
        assert!(error.to_string().contains("lenet"), "{error}");
    }
}
