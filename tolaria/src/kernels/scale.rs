//! Scales of the loss.

use candle_core::{DType, Result, Tensor};
use cudarc::driver::PushKernelArg as _;
use esper_graph::launch::{Effect, address, count, declare, expect, grid, tensor_error};

use super::args::ScaleRule;
use super::module::DeviceKernels;

impl DeviceKernels {
    /// Moves the scales in `state`, (2, domains), by the factors of the parts that `probes` names.
    pub(crate) fn move_scales(&self, state: &Tensor, factors: &Tensor, probes: &Tensor, rule: ScaleRule) -> Result<()> {
        let domains = probes.elem_count();
        expect(probes, DType::U32, domains, "parts of the scales")?;
        expect(state, DType::F32, 2 * domains, "scales of the loss")?;
        expect(factors, DType::F32, factors.elem_count(), "factors")?;
        let (places, numbers, of) = (address(state)?, address(factors)?, address(probes)?);
        let num_domains = count(domains);
        let stream = self.stream();
        let function = self.function("move_scales")?;
        let mut launch = stream.launch_builder(&function);
        launch.arg(&places).arg(&numbers).arg(&of).arg(&num_domains);
        launch.arg(&rule.growth_steps).arg(&rule.largest).arg(&rule.smallest);
        // SAFETY: two numbers and a probe per domain; a probe is a part, and each part has a factor.
        let launch = || tensor_error(unsafe { launch.launch(grid(domains, 1)) });
        let effect = || {
            let effect = Effect::new().reading(numbers, 4 * factors.elem_count()).reading(of, 4 * domains);
            effect.updating(places, 8 * domains)
        };
        declare(&stream, effect, launch).map(drop)
    }
}
