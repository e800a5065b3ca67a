//! Functions of tensors that are captured on their own, one graph per input shape.

mod config;
mod buffers;
mod engine;

use std::fmt;

use candle_core::{Result, Tensor};
use leyline::region::Eager;

use super::compile_report::CompileReport;
use super::execute::Gpu;
use super::manager::GraphManager;
use super::planted_fault::PlantedFault;
use super::reason::Refusal;
use super::stats::GraphStats;

pub use config::GraphFunctionConfig;
pub(super) use engine::Graphs;

/// A function of tensors that is captured per input shape, and replayed from then on.
///
/// The first [`warmup_calls`](GraphFunctionConfig::warmup_calls) calls with inputs of one shape run `F` eagerly; the
/// last of them also captures it. Whenever that is not possible, `F` runs eagerly: see [`Refusal`], and
/// [`last_refusal`](Self::last_refusal) for the one that holds.
///
/// # Contract
/// 1. A call returns what `F` returns for the same inputs, bit for bit, whether it ran or was replayed. Gradients do not
///    flow through it.
/// 2. A capture follows an eager run of the same call, on the same thread. A graph is replayed on the thread of its
///    capture only; the first call on another thread starts a new warm-up.
/// 3. A key that was refused is not captured again before [`invalidate`](Self::invalidate), [`clear`](Self::clear) or
///    [`GraphManager::invalidate_all`].
/// 4. On the CPU, and while switched off, nothing is captured and no static buffer exists.
/// 5. Before the first replay of a graph, and after 1, 2, 4, … more, `F` is recorded once more and compared with the graph.
///    Where a number or a tensor of the host has changed, the key is refused ([`Refusal::FrozenValue`]). If replays
///    since the last test may have used the old one, that call fails with [`Stale`](super::Stale); later ones run `F`.
///    Replays of a graph that made room for another one are not tested any more: a [`limit`](GraphFunctionConfig::limit) that
///    holds all shapes in use avoids that.
/// 6. After [`compile_warmup_calls`](GraphFunctionConfig::compile_warmup_calls) replays a graph is compiled in the
///    background, by passes that keep every bit. The compiled one is replayed once it left the results of the captured
///    one in [`compile_verify_calls`](GraphFunctionConfig::compile_verify_calls) calls; where it did not, or cannot be
///    made, the captured one goes on ([`last_compile_refusal`](Self::last_compile_refusal)).
///
/// # For implementers
/// `F` must depend on nothing but its inputs and tensors that it owns. A replay runs none of its code: a number that was
/// computed on the host, a branch taken, a side effect belong to the capture; a number that moves comes in through a
/// [`DeviceScalar`](super::DeviceScalar). The tensors it owns may change their
/// elements in place (`Var::set`), and must not be replaced by others without [`clear`](Self::clear). `F` must keep no
/// tensor that it makes: that refuses the capture, and the numbers of the kept tensor read as not finite.
///
/// # Examples
/// ```
/// use candle_core::{Device, Tensor};
/// use leyline::region::Eager;
/// use esper_graph::{GraphFunction, GraphFunctionConfig, GraphManager};
///
/// let double = |inputs: &[Tensor]| Ok(vec![inputs[0].affine(2.0, 0.0)?]);
/// let mut double = GraphFunction::new(double, GraphFunctionConfig::default(), &GraphManager::global());
///
/// let mut eager = Eager::acquire()?;
/// let x = Tensor::new(&[1.0_f32, 2.0], &Device::Cpu)?;
/// let results = double.call(&mut eager, &[&x])?;
/// assert_eq!(results[0].to_vec1::<f32>()?, [2.0, 4.0]);
/// assert_eq!(double.stats().total.captures, 0); // the CPU replays nothing
/// assert_eq!(double.last_refusal(&[&x]).map(|refusal| refusal.name()), Some("unsupported"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct GraphFunction<F> {
    graphs: Graphs<Gpu>,
    function: F,
}

impl<F: FnMut(&[Tensor]) -> Result<Vec<Tensor>>> GraphFunction<F> {
    /// Nothing is captured yet.
    pub fn new(function: F, config: GraphFunctionConfig, manager: &GraphManager) -> Self {
        Self { graphs: Graphs::new(config, manager), function }
    }

    /// The results of the function. No later call changes them.
    ///
    /// # Errors
    /// Those of the function, when the device fails, [`RegionError`](leyline::region::RegionError) inside a region, and
    /// [`Stale`](super::Stale) as its text: results of earlier calls may be wrong.
    /// # Sync
    /// none; a call that captures, or that drops a graph, waits for the device
    pub fn call(&mut self, eager: &mut Eager, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        self.graphs.call(eager, inputs, &mut self.function)
    }

    /// The results of the function, without the copy that [`call`](Self::call) makes of a replay's results.
    ///
    /// They hold until the next call. A clone of one shares its memory, and is overwritten with it.
    ///
    /// # Errors
    /// As for [`call`](Self::call).
    /// # Sync
    /// as for [`call`](Self::call)
    pub fn call_in_place(&mut self, eager: &mut Eager, inputs: &[&Tensor]) -> Result<&[Tensor]> {
        self.graphs.call_in_place(eager, inputs, &mut self.function)
    }
}

impl<F> GraphFunction<F> {
    /// What happened so far.
    #[must_use]
    pub fn stats(&self) -> GraphStats {
        self.graphs.stats()
    }

    /// Why a call with inputs like these runs eagerly, where it is not for warm-up.
    #[must_use]
    pub fn last_refusal(&self, inputs: &[&Tensor]) -> Option<&Refusal> {
        self.graphs.last_refusal(inputs)
    }

    /// What the compiler did to the last graph that it compiled; absent before.
    #[must_use]
    pub fn compile_report(&self) -> Option<&CompileReport> {
        self.graphs.compile_report()
    }

    /// Why the last graph that could not be compiled could not; it is replayed as it was captured.
    #[must_use]
    pub fn last_compile_refusal(&self) -> Option<&Refusal> {
        self.graphs.compile_refusal()
    }

    /// Plants a fault in whatever is compiled of devices not seen yet; for tests of the checks only.
    #[doc(hidden)]
    pub fn plant(&mut self, fault: PlantedFault) {
        self.graphs.plant(fault);
    }

    /// Forgets warm-up, graph and refusal of inputs like these. Returns whether there was a graph.
    ///
    /// # Sync
    /// waits for the device when there was one
    pub fn invalidate(&mut self, inputs: &[&Tensor]) -> bool {
        self.graphs.invalidate(inputs)
    }

    /// Forgets all warm-ups, graphs and refusals. Returns the number of graphs.
    ///
    /// # Sync
    /// waits for the device when there were any
    pub fn clear(&mut self) -> usize {
        self.graphs.clear()
    }
}

impl<F> fmt::Debug for GraphFunction<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GraphFunction").field("graphs", &self.graphs).finish_non_exhaustive()
    }
}

#[cfg(test)]
pub(crate) mod tests;
