//! Whole training steps three ways: eager, captured, compiled; of basic operations and of layers, in several
//! precisions, and beside the same step in PyTorch and JAX.

mod case;
mod compiling;
mod kernels;
mod phases;
mod timing;
mod ratios;
mod throughput;

use std::collections::BTreeMap;
use std::path::PathBuf;

use leyline::region::Eager;

use super::peer_torch::{self, PeerConfig};
use crate::error::Error;
use crate::gpu::cache::CacheFolders;
use crate::gpu::open::Gpu;
use crate::gpu::precision::PrecisionGuard;
use crate::models::{ALL_NAMES, Form, GPT2, Precision, Variant, known_names};
use crate::samples::Samples;
use crate::work::{Flags, Needs, Outcome, Setting, Settings, Work};

pub(super) const WORK: Work = Work::with_flags::<CompileBenchConfig>(
    "compile-bench",
    "Whole training steps: eager, captured, compiled; beside PyTorch and JAX when asked for",
    Needs::Gpu,
);

const NOTES: &str = "CASE is WORK.PRECISION.FORM; FORM: basic operations of candle (primitive) or functions of \
    esper-layers (layers). CASE.eager, .graph, .compiled: one step with its inputs and optimizer constants brought to \
    the device, each synchronised (us); ref is an epoch of 4 steps, as in the PyTorch peer. .host: until the call of such a step came back (us); .launch: the call that sets what the graph copies and launches it, in all repetitions, of which most are not waited for; of ref one of four. CASE.shared: the steps of ref as one launch, also of .device. .pipelined: mean over 100 \
    repetitions with one synchronisation. .device: the graph alone, by device events; of ref one of four. \
    CASE.speedup.graph: ratio of the medians graph / compiled. CASE.compile.cold.PHASE and .warm.PHASE: the compiler, \
    with an empty folder for generated kernels and with that of the run before (ms). CASE.stall.PHASE: steps while the \
    compiler works: draft, background, verify, each with the step it takes and synchronised (us); \
    .stall.over_eager: what the longest of them takes beyond a captured step, over the median of eager steps. CASE.nodes, .critical_path, .pass.NAME: what \
    is left after all passes and after each. torch.*, jax.*: the peers, when they were asked for. ratio.CASE: compiled over \
    the fastest of the peers, medians; .pipelined the same without synchronisation; bf16 against parameters in f32 with products in bf16, bf16_pure and bf16_stochastic against parameters in bf16. \
    tokens_per_s.CASE: of language models, by .pipelined and .enqueued; utilization.CASE, with products in bf16: times \
    operations per token (6 for each parameter but positions, and 12 L D T), over the data sheet's dense peak of the device. \
    CASE.kernel.NAME: launches of a kernel in one compiled step, added up, traced by CUPTI (us), .traced.kernels all of them; .traced: from the first beginning to the last end; .traced.launches how many. \
    Before any time was taken, parameters and loss after the same number of eager, captured and compiled steps were \
    compared bit for bit.";

/// What is measured.
#[derive(Debug, Clone, clap::Args)]
struct CompileBenchConfig {
    /// Works, of `ref`, `mlp`, `tfm5m`, `tfm30m`, `mlp4096`, and `gpt2`; all but the last when absent.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_values = ALL_NAMES, hide_default_value = true)]
    works: Vec<String>,
    /// Precisions, of `f32`, `tf32`, `bf16`, `bf16_pure`, `bf16_stochastic`; the first three when absent, and only `f32` for `ref`, those of `bf16` for `gpt2`.
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        default_value = "f32,tf32,bf16",
        hide_default_value = true
    )]
    precisions: Vec<Precision>,
    /// Traces the kernels of compiled steps, after all times were taken.
    #[arg(long)]
    kernels: bool,
    /// Measures the same works in PyTorch afterwards, and adds the ratios.
    #[arg(long)]
    with_peer: bool,
    /// Interpreter with PyTorch.
    #[arg(long, value_name = "PROGRAM", default_value = "python3", requires = "with_peer")]
    python: PathBuf,
    /// Modes of the peer, `jit` for JAX; the ratios are to the fastest of them, where all of them were measured.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "graph", requires = "with_peer")]
    peer_modes: Vec<String>,
    /// Seconds that the peer has; modes that compile take 20 for a case.
    #[arg(long, value_name = "S", default_value_t = 145, requires = "with_peer")]
    peer_budget: u64,
}

impl CompileBenchConfig {
    /// Works with their precisions, in the order in which they are measured.
    fn cases(&self) -> Result<Vec<(&'static str, Precision)>, Error> {
        let mut cases = Vec::new();
        for asked in &self.works {
            let Some(work) = ALL_NAMES.into_iter().chain([GPT2]).find(|name| name == asked) else {
                return Err(Error::UnknownWork { name: asked.clone(), known: known_names() });
            };
            let applies = |precision: &Precision| match work {
                "ref" => *precision == Precision::F32,
                GPT2 => matches!(precision, Precision::Bf16 | Precision::Bf16Pure | Precision::Bf16Stochastic),
                _ => true,
            };
            cases.extend(self.precisions.iter().copied().filter(applies).map(|precision| (work, precision)));
        }
        Ok(cases)
    }

    /// What the peer is asked for: the best that it does with the same networks.
    fn peer(&self) -> Option<PeerConfig> {
        let mut precisions: Vec<&str> = Vec::new();
        for precision in &self.precisions {
            let of = match precision {
                Precision::Bf16 => &["autocast", "bf16"][..],
                Precision::Bf16Pure | Precision::Bf16Stochastic => &["bf16"],
                Precision::F32 => &["f32"],
                Precision::Tf32 => &["tf32"],
            };
            for name in of {
                if !precisions.contains(name) {
                    precisions.push(name);
                }
            }
        }
        self.with_peer.then(|| PeerConfig {
            python: self.python.clone(),
            works: self.works.clone(),
            modes: self.peer_modes.clone(),
            precisions: precisions.into_iter().map(str::to_owned).collect(),
            num_repetitions: if self.works.iter().any(|work| work == GPT2) { 50 } else { 200 },
            budget: self.peer_budget,
            fused: true,
            joint_qkv: true,
        })
    }
}

impl Flags for CompileBenchConfig {
    fn measure(&self, setting: &Setting) -> Result<Outcome, Error> {
        let cases = self.cases()?;
        let gpu = Gpu::open(setting)?;
        let mut eager = Eager::acquire()?;
        let mut samples = Samples::default();
        let folders = CacheFolders::new(setting.clock.unix().as_nanos())?;
        let (mut facts, mut tokens) = (Settings::new(), BTreeMap::new());
        // GPT-2 of basic operations keeps dozens of gigabytes.
        let forms = |work| if work == GPT2 { &[Form::Layers][..] } else { &Form::ALL };
        let variants = || {
            let all = |&(work, precision)| forms(work).iter().map(move |&form| (work, Variant { form, precision }));
            cases.iter().flat_map(all)
        };
        for (work, variant) in variants() {
            let _guard = PrecisionGuard::set(variant.precision);
            let case = format!("{work}.{variant}");
            let folder = folders.of(&case)?;
            let (fact, of_step) = case::measure(&gpu, &mut eager, work, variant, &folder, &mut samples)?;
            facts.insert(case, fact);
            tokens.extend(of_step.map(|of_step| (work, of_step)));
        }
        for (work, variant) in variants().filter(|_| self.kernels) {
            let _guard = PrecisionGuard::set(variant.precision);
            let folder = folders.of(&format!("{work}.{variant}"))?;
            case::trace(&gpu, &mut eager, work, variant, &folder, &mut samples)?;
        }
        // What the steps keep on the device is dropped by now: the peer has it to itself.
        let peer = self.peer().map(|peer| peer_torch::run(&peer)).transpose()?;
        let mut result = gpu.result(WORK.name, NOTES, facts, samples);
        if let Some(peer) = peer {
            let peer = peer.into_result(setting.clock.as_ref());
            result.measurements.extend(peer.measurements);
            result.config.extend(peer.config.into_iter().map(|(key, value)| (format!("peer.{key}"), value)));
            let ratios = ratios::of(&cases, &self.peer_modes, &result.measurements);
            result.measurements.extend(ratios);
        }
        let device = result.environment.gpu.clone().unwrap_or_default();
        let throughput = throughput::of(&tokens, &device, &result.measurements);
        result.measurements.extend(throughput);
        Ok(result.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_is_measured_in_one_precision_and_the_peer_in_both_kinds_of_bf16() {
        let config = CompileBenchConfig { with_peer: true, ..CompileBenchConfig::by_default() };
        let cases = config.cases().unwrap();
        assert_eq!(cases.len(), 1 + 4 * 3);
        assert_eq!(cases.iter().filter(|(work, _)| *work == "ref").count(), 1);
        let peer = config.peer().unwrap();
        assert_eq!(peer.precisions, ["f32", "tf32", "autocast", "bf16"]);
        assert_eq!(peer.works, config.works);
        assert_eq!(CompileBenchConfig::by_default().peer(), None);
        let (pure, stochastic) = (Precision::Bf16Pure, Precision::Bf16Stochastic);
        for (precisions, expected) in [
            (vec![Precision::Bf16, pure, stochastic], vec!["autocast", "bf16"]),
            (vec![pure, Precision::Bf16], vec!["bf16", "autocast"]),
            (vec![stochastic], vec!["bf16"]),
        ] {
            assert_eq!(CompileBenchConfig { precisions, ..config.clone() }.peer().unwrap().precisions, expected);
        }
        let gpt2 = CompileBenchConfig { works: vec![GPT2.to_owned()], ..config.clone() };
        assert_eq!(gpt2.cases().unwrap(), [(GPT2, Precision::Bf16)], "where it is asked for, in one precision");
        let error = CompileBenchConfig { works: vec!["lenet".to_owned()], ..config }.cases().unwrap_err();
        assert!(error.to_string().contains("lenet"), "{error}");
    }
}
