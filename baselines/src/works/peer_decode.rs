//! Generated tokens in PyTorch, timed by a script that is part of this binary.

use std::path::PathBuf;

use crate::error::Error;
use crate::torch::{Quantities, run_script};
use crate::work::{Flags, Needs, Outcome, Setting, Work};

pub(super) const WORK: Work = Work::with_flags::<DecodePeerConfig>(
    "peer-decode",
    "Generating tokens in PyTorch, which must be installed",
    Needs::Torch,
);

const SCRIPT: &str = concat!(include_str!("../../torch/report.py"), include_str!("../../torch/decode.py"));

const NOTES: &str = "torch.PRECISION.FORM: one token of the model of `decode-bench`, mean of a stretch of 128 tokens after the first 64, waited for \
    once; keys and values at one address, the token chosen on the device is the next input. eager; compile: \
    `torch.compile(mode=\"reduce-overhead\", fullgraph=True)`, Inductor's kernels in a CUDA graph";

/// What the peer is asked for.
#[derive(Debug, Clone, clap::Args)]
struct DecodePeerConfig {
    /// Interpreter with PyTorch.
    #[arg(long, value_name = "PROGRAM", default_value = "python3")]
    python: PathBuf,
    /// Precisions, of `f32`, `bf16`; both when absent.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "f32,bf16", hide_default_value = true)]
    precisions: Vec<String>,
    /// Stretches that are timed.
    #[arg(long = "n", value_name = "N", default_value_t = 12)]
    num_stretches: usize,
}

impl Flags for DecodePeerConfig {
    fn measure(&self, setting: &Setting) -> Result<Outcome, Error> {
        let report: Quantities = run_script(SCRIPT, &self.python, &self.arguments())?;
        Ok(report.into_result("peer-decode", NOTES, setting.clock.as_ref()).into())
    }
}

impl DecodePeerConfig {
    /// Arguments of the script.
    fn arguments(&self) -> Vec<String> {
        vec![format!("--precisions={}", self.precisions.join(",")), format!("--n={}", self.num_stretches)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_those_of_the_script() {
        for argument in DecodePeerConfig::by_default().arguments() {
            let name = argument.split('=').next().unwrap();
            assert!(SCRIPT.contains(&format!("\"{name}\"")), "{name}");
        }
    }
}
