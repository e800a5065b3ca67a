//! Where the time of a compiled step goes, kernel by kernel.

use std::collections::BTreeMap;

use esper_graph::{CompiledGraph, KernelTime};

use crate::error::Error;
use crate::gpu::open::{Gpu, refused};
use crate::samples::Samples;

/// Steps that are traced, each for itself.
const STEPS: usize = 20;

/// Traces replays: inputs stay as they are, parameters go on.
pub(super) fn measure(gpu: &Gpu, case: &str, compiled: &CompiledGraph, samples: &mut Samples) -> Result<(), Error> {
    for _ in 0..STEPS {
        let traced = gpu.session.traced(|| compiled.replay());
        let (launched, kernels) = traced.map_err(|refusal| refused("a trace of kernels", refusal))?;
        launched.map_err(|refusal| refused("a compiled replay", refusal))?;
        push(samples, case, compiled.report().kernels.values().sum(), &kernels)?;
    }
    Ok(())
}

/// The kernels of one step, of which so many are known.
fn push(samples: &mut Samples, case: &str, expected: usize, kernels: &[KernelTime]) -> Result<(), Error> {
    let us = |ns: u64| ns as f64 * 1e-3;
    let mut by_name: BTreeMap<&str, u64> = BTreeMap::new();
    for kernel in kernels {
        *by_name.entry(&kernel.name).or_default() += kernel.end_ns.saturating_sub(kernel.start_ns);
    }
    let ends = (kernels.iter().map(|kernel| kernel.start_ns).min(), kernels.iter().map(|kernel| kernel.end_ns).max());
    let (Some(first), Some(last)) = ends else { return Err(Error::NothingTraced { case: case.to_owned(), expected }) };
    samples.push(format!("{case}.traced"), "us", us(last - first));
    samples.push(format!("{case}.traced.kernels"), "us", us(by_name.values().sum()));
    samples.push(format!("{case}.traced.launches"), "count", kernels.len() as f64);
    for kernel in kernels {
        // Where in the step a kernel ran, and beside which others.
        let (start_us, end_us) = (us(kernel.start_ns - first), us(kernel.end_ns.saturating_sub(first)));
        tracing::debug!(case, kernel = kernel.name, start_us, end_us);
    }
    for (name, sum) in by_name {
        samples.push(format!("{case}.kernel.{name}"), "us", us(sum));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launches_of_a_kernel_are_added_up_and_a_step_ends_with_its_last() {
        let kernel = |name: &str, start_ns, end_ns| KernelTime { name: name.to_owned(), start_ns, end_ns };
        let mut samples = Samples::default();
        push(&mut samples, "mlp", 3, &[kernel("a", 1000, 3000), kernel("b", 2000, 9000), kernel("a", 4000, 5500)])
            .unwrap();
        let found = |name: &str| samples.median(name);
        let names = ["mlp.traced", "mlp.traced.kernels", "mlp.traced.launches", "mlp.kernel.a", "mlp.kernel.b"];
        for (name, expected) in names.into_iter().zip([8.0, 10.5, 3.0, 3.5, 7.0]) {
            assert!(found(name).is_some_and(|found| (found - expected).abs() < 1e-9), "{name}: {:?}", found(name));
        }
    }

    #[test]
    fn a_trace_without_a_kernel_is_an_error_that_says_what_to_do() {
        let mut samples = Samples::default();
        let error = push(&mut samples, "mlp.f32.layers", 17, &[]).unwrap_err().to_string();
        for part in ["mlp.f32.layers", "expected the 17 launches", "LD_LIBRARY_PATH", "--kernels"] {
            assert!(error.contains(part), "{error}");
        }
        assert!(samples.into_measurements().is_empty());
    }
}
