//! The static inputs and outputs of a function's graph.

use candle_core::{Error, Result, Tensor, Var};

use crate::reason::{Refusal, Stage};

/// The tensors that a graph reads and writes.
#[derive(Debug)]
pub(crate) struct Buffers {
    inputs: Vec<Var>,
    outputs: Vec<Var>,
}

impl Buffers {
    pub(super) fn new(inputs: &[&Tensor]) -> std::result::Result<Self, Refusal> {
        let inputs = inputs.iter().map(|input| buffer_like(input)).collect::<Result<_>>();
        Ok(Self { inputs: inputs.map_err(refused(Stage::Open))?, outputs: Vec::new() })
    }

    /// What the function is called with. No gradient is followed through them, so that its intermediate results are
    /// gone as soon as they are used.
    pub(super) fn arguments(&self) -> Vec<Tensor> {
        self.inputs.iter().map(Var::as_detached_tensor).collect()
    }

    pub(super) fn results(&self) -> Vec<Tensor> {
        self.outputs.iter().map(Var::as_detached_tensor).collect()
    }

    /// All of them, by name.
    pub(super) fn named(&self) -> Vec<(String, Tensor)> {
        let named = |what: &str, buffers: &[Var]| -> Vec<(String, Tensor)> {
            let name = |(index, buffer): (usize, &Var)| (format!("{what} {index}"), buffer.as_tensor().clone());
            buffers.iter().enumerate().map(name).collect()
        };
        [named("input", &self.inputs), named("output", &self.outputs)].concat()
    }

    /// Each input with the buffer that it is copied to.
    pub(super) fn copies<'a>(&'a self, inputs: &[&'a Tensor]) -> Vec<(&'a Tensor, &'a Tensor)> {
        inputs.iter().copied().zip(self.inputs.iter().map(Var::as_tensor)).collect()
    }

    pub(super) fn load(&self, inputs: &[&Tensor], stage: Stage) -> std::result::Result<(), Refusal> {
        self.inputs.iter().zip(inputs).try_for_each(|(buffer, input)| buffer.set(input)).map_err(refused(stage))
    }

    /// Makes the static outputs if there are none that fit, and copies the results there.
    pub(super) fn store_warm(&mut self, arguments: &[Tensor], results: &[Tensor]) -> std::result::Result<(), Refusal> {
        let is_elsewhere = |result: &Tensor| !result.device().same_device(arguments[0].device());
        if results.iter().any(is_elsewhere) {
            return Err(Refusal::Unsupported { why: "a result is on another device than the inputs" });
        }
        let fits =
            |(buffer, result): (&Var, &Tensor)| buffer.shape() == result.shape() && buffer.dtype() == result.dtype();
        if self.outputs.len() != results.len() || !self.outputs.iter().zip(results).all(fits) {
            self.outputs = results.iter().map(buffer_like).collect::<Result<_>>().map_err(refused(Stage::Open))?;
        }
        self.store(results).map_err(refused(Stage::Open))
    }

    pub(super) fn store(&self, results: &[Tensor]) -> Result<()> {
        if self.outputs.len() != results.len() {
            candle_core::bail!("{} results, and {} in warm-up", results.len(), self.outputs.len());
        }
        self.outputs.iter().zip(results).try_for_each(|(buffer, result)| buffer.set(result))
    }
}

/// A contiguous buffer. A variable, because only these can be overwritten with elements of any type and strides.
fn buffer_like(tensor: &Tensor) -> Result<Var> {
    Var::zeros(tensor.shape(), tensor.dtype(), tensor.device())
}

fn refused(stage: Stage) -> impl Fn(Error) -> Refusal {
    move |error| {
        // The lines after the first are a backtrace.
        let message = error.to_string().lines().next().unwrap_or_default().to_owned();
        Refusal::Driver { call: "a copy to a static buffer", stage, message }
    }
}
