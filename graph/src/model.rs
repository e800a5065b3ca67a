//! Models that are captured on their own, one graph per input shape.

use std::fmt;

use candle_core::{Module, Result, Tensor};
use leyline::region::Eager;

use super::compile_report::CompileReport;
use super::execute::Gpu;
use super::function::{GraphFunctionConfig, Graphs};
use super::manager::GraphManager;
use super::reason::Refusal;
use super::stats::GraphStats;

/// A model whose forward pass is captured per input shape, and replayed from then on.
///
/// A [`GraphFunction`](super::GraphFunction) of one input and one result, and its rules hold here too. The parameters
/// may be updated in place at any time; to replace them, use [`model_mut`](Self::model_mut).
///
/// # Examples
/// ```
/// use candle_core::{Device, Tensor};
/// use leyline::region::Eager;
/// use esper_graph::{GraphFunctionConfig, GraphManager, GraphModel};
///
/// let weight = Tensor::new(&[[1.0_f32], [10.0]], &Device::Cpu)?;
/// let model = move |x: &Tensor| x.matmul(&weight);
/// let mut model = GraphModel::new(model, GraphFunctionConfig::default(), &GraphManager::global());
///
/// let x = Tensor::new(&[[1.0_f32, 2.0]], &Device::Cpu)?;
/// let y = model.forward(&mut Eager::acquire()?, &x)?;
/// assert_eq!(y.to_vec2::<f32>()?, [[21.0]]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct GraphModel<M> {
    graphs: Graphs<Gpu>,
    model: M,
}

impl<M: Module> GraphModel<M> {
    /// Nothing is captured yet.
    pub fn new(model: M, config: GraphFunctionConfig, manager: &GraphManager) -> Self {
        Self { graphs: Graphs::new(config, manager), model }
    }

    /// What the model returns for `inputs`. No later call changes it, and no gradient flows through it.
    ///
    /// # Errors
    /// Those of the model, when the device fails, [`RegionError`](leyline::region::RegionError) inside a region, and
    /// [`Stale`](super::Stale) as its text: results of earlier calls may be wrong.
    /// # Sync
    /// none; a call that captures, or that drops a graph, waits for the device
    pub fn forward(&mut self, eager: &mut Eager, inputs: &Tensor) -> Result<Tensor> {
        let model = &self.model;
        let mut forward = |inputs: &[Tensor]| Ok(vec![model.forward(&inputs[0])?]);
        let mut results = self.graphs.call(eager, &[inputs], &mut forward)?;
        Ok(results.pop().expect("a forward pass has one result"))
    }
}

impl<M> GraphModel<M> {
    /// The model.
    pub fn model(&self) -> &M {
        &self.model
    }

    /// The model, to replace its parameters or its structure. Forgets all warm-ups, graphs and refusals.
    ///
    /// # Sync
    /// waits for the device when there were graphs
    pub fn model_mut(&mut self) -> &mut M {
        self.graphs.clear();
        &mut self.model
    }

    /// The model, without its graphs.
    pub fn into_inner(self) -> M {
        self.model
    }

    /// What happened so far.
    #[must_use]
    pub fn stats(&self) -> GraphStats {
        self.graphs.stats()
    }

    /// Why a call with inputs like these runs eagerly, where it is not for warm-up.
    #[must_use]
    pub fn last_refusal(&self, inputs: &Tensor) -> Option<&Refusal> {
        self.graphs.last_refusal(&[inputs])
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

    /// Forgets warm-up, graph and refusal of inputs like these. Returns whether there was a graph.
    ///
    /// # Sync
    /// waits for the device when there was one
    pub fn invalidate(&mut self, inputs: &Tensor) -> bool {
        self.graphs.invalidate(&[inputs])
    }

    /// Forgets all warm-ups, graphs and refusals. Returns the number of graphs.
    ///
    /// # Sync
    /// waits for the device when there were any
    pub fn clear(&mut self) -> usize {
        self.graphs.clear()
    }
}

impl<M> fmt::Debug for GraphModel<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GraphModel").field("graphs", &self.graphs).finish_non_exhaustive()
    }
}

// Under the model checker, caches only work inside of a model: see `manager/tests.rs`.
#[cfg(test)]
#[cfg(not(feature = "model-check"))]
mod tests {
    use candle_core::Device;
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    use super::*;
    use crate::testing::{bits, random, values};

    fn linear(num_inputs: usize, num_outputs: usize, seed: u64) -> impl Module {
        let weight = Tensor::from_vec(random(num_inputs * num_outputs, seed), (num_inputs, num_outputs), &Device::Cpu);
        let weight = weight.unwrap();
        move |inputs: &Tensor| inputs.matmul(&weight)?.relu()
    }

    fn graph_model<M: Module>(model: M) -> GraphModel<M> {
        GraphModel::new(model, GraphFunctionConfig::default(), &GraphManager::new())
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 32, rng_seed: RngSeed::Fixed(11), ..ProptestConfig::default() })]

        #[test]
        fn the_forward_pass_is_that_of_the_model(
            batches in prop::collection::vec((1_usize..5, any::<u64>()), 1..8),
            seed in any::<u64>(),
        ) {
            let mut eager = Eager::acquire().unwrap();
            let mut model = graph_model(linear(3, 2, seed));
            for (rows, seed) in batches {
                let inputs = Tensor::from_vec(random(3 * rows, seed), (rows, 3), &Device::Cpu).unwrap();
                let expected = model.model().forward(&inputs).unwrap();
                let found = model.forward(&mut eager, &inputs).unwrap();
                prop_assert_eq!(found.dims(), expected.dims());
                prop_assert_eq!(bits(&values(&found)), bits(&values(&expected)));
            }
            prop_assert_eq!(model.stats().total.captures, 0);
        }
    }

    #[test]
    fn taking_the_model_to_change_it_forgets_what_is_known_of_it() {
        let mut eager = Eager::acquire().unwrap();
        let mut model = graph_model(linear(3, 2, 0));
        let inputs = Tensor::from_vec(random(3, 1), (1, 3), &Device::Cpu).unwrap();
        model.forward(&mut eager, &inputs).unwrap();
        assert_eq!(model.last_refusal(&inputs).map(Refusal::name), Some("unsupported"));

        *model.model_mut() = linear(3, 2, 2);
        assert_eq!(model.last_refusal(&inputs), None);
        let found = model.forward(&mut eager, &inputs).unwrap();
        assert_eq!(values(&found), values(&linear(3, 2, 2).forward(&inputs).unwrap()));
        assert_eq!(values(&found), values(&model.into_inner().forward(&inputs).unwrap()));
    }

    #[test]
    fn an_error_of_the_model_is_returned() {
        let mut eager = Eager::acquire().unwrap();
        let mut model = graph_model(linear(3, 2, 0));
        let narrow = Tensor::from_vec(random(2, 1), (1, 2), &Device::Cpu).unwrap();
        let first_line = |outcome: Result<Tensor>| outcome.unwrap_err().to_string().lines().next().map(str::to_owned);
        let expected = first_line(model.model().forward(&narrow));
        assert_eq!(first_line(model.forward(&mut eager, &narrow)), expected);
        assert!(expected.unwrap().starts_with("shape mismatch"));
    }
}
