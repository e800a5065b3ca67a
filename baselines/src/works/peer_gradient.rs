//! Combinations of gradients in PyTorch, timed by a script that is part of this binary.

use std::path::PathBuf;

use crate::error::Error;
use crate::torch::{Quantities, run_script};
use crate::work::{Flags, Needs, Outcome, Setting, Work};

pub(super) const WORK: Work = Work::with_flags::<GradientPeerConfig>(
    "peer-gradient",
    "Combinations of gradients in PyTorch, which must be installed",
    Needs::Torch,
);

const SCRIPT: &str = concat!(include_str!("../../torch/report.py"), include_str!("../../torch/gradient.py"));

const NOTES: &str = "torch.kK.pP.FORM: K gradients of P elements to one, each repetition synchronized; jd: Gram matrix \
    on the device, projections on the host over small tensors, one product; jd_floats: over plain \
    numbers; torchjd: the library; sequential: a product and a read of it per pair. `.step` adds \
    AdamW as one fused kernel. `.error`: norm of the difference to the sequential form over its norm, \
    taken before any time. `.over_floor`: median over the bytes of two reads of the gradients and of \
    what is written, at the fastest bandwidth measured in this run. stack: the rows into one matrix, \
    which jd is given";

/// What the peer is asked for; by default the grid that the engine is measured on.
#[derive(Debug, Clone, clap::Args)]
struct GradientPeerConfig {
    /// Interpreter with PyTorch.
    #[arg(long, value_name = "PROGRAM", default_value = "python3")]
    python: PathBuf,
    /// Numbers of microbatches; 2, 4, 8 and 16 when absent.
    #[arg(
        long = "rows",
        value_name = "COUNTS",
        value_delimiter = ',',
        default_value = "2,4,8,16",
        hide_default_value = true
    )]
    num_rows: Vec<usize>,
    /// Numbers of parameters; 1, 10 and 100 million when absent.
    #[arg(
        long = "elements",
        value_name = "COUNTS",
        value_delimiter = ',',
        default_value = "1000000,10000000,100000000",
        hide_default_value = true
    )]
    num_elements: Vec<usize>,
    /// Ways of combining, of `jd`, `jd_floats`, `torchjd`, `sequential`; all when absent.
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        default_value = "jd,jd_floats,torchjd,sequential",
        hide_default_value = true
    )]
    forms: Vec<String>,
    /// Repetitions of a quantity at most; the script takes fewer where they would take too long.
    #[arg(long = "n", value_name = "N", default_value_t = 200)]
    num_repetitions: usize,
    /// On the CPU instead of a GPU.
    #[arg(long = "cpu")]
    on_cpu: bool,
}

impl Flags for GradientPeerConfig {
    fn measure(&self, setting: &Setting) -> Result<Outcome, Error> {
        let report: Quantities = run_script(SCRIPT, &self.python, &self.arguments())?;
        Ok(report.into_result("peer-gradient", NOTES, setting.clock.as_ref()).into())
    }
}

impl GradientPeerConfig {
    /// Arguments of the script.
    fn arguments(&self) -> Vec<String> {
        let list = |numbers: &[usize]| numbers.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
        vec![
            format!("--rows={}", list(&self.num_rows)),
            format!("--elements={}", list(&self.num_elements)),
            format!("--forms={}", self.forms.join(",")),
            format!("--n={}", self.num_repetitions),
            format!("--device={}", if self.on_cpu { "cpu" } else { "cuda" }),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_those_of_the_script() {
        let config = GradientPeerConfig { on_cpu: true, ..GradientPeerConfig::by_default() };
        let arguments = config.arguments();
        assert_eq!(arguments[0], "--rows=2,4,8,16");
        assert_eq!(arguments[4], "--device=cpu");
        for argument in &arguments {
            let name = argument.split('=').next().unwrap();
            assert!(SCRIPT.contains(&format!("\"{name}\"")), "{name}");
        }
        for form in &config.forms {
            assert!(SCRIPT.contains(&format!("def {form}(")), "{form}");
        }
    }
}
