//! The graphs of one function: an executor whose steps are calls, one shape per key.

use candle_core::{Device, Error, Result, Tensor};
use leyline::region::{Eager, Recording};

use super::buffers::Buffers;
use super::config::GraphFunctionConfig;
use crate::compile::PassSet;
use crate::compile_report::{CompileOptions, CompileReport};
use crate::execute::{Backend, Executor, Failure, Ran, Region};
use crate::key::{DeviceKey, ExecutionMode, GraphKey};
use crate::manager::{GraphManager, GraphMode};
use crate::planted_fault::PlantedFault;
use crate::precision::{anew, half};
use crate::reason::{Refusal, Stage};
use crate::stats::GraphStats;

type Function<'a> = &'a mut dyn FnMut(&[Tensor]) -> Result<Vec<Tensor>>;

static SWITCHED_OFF: Refusal = Refusal::SwitchedOff;

/// The graphs of one function, which is handed in with each call and must be the same every time.
#[derive(Debug)]
pub(crate) struct Graphs<B: Backend> {
    config: GraphFunctionConfig,
    pub(super) manager: GraphManager,
    pub(super) executor: Executor<GraphKey, Buffers, B>,
    /// Every device handle seen: two handles of one physical device differ in their stream, which a key does not tell.
    devices: Vec<(Device, Option<B>)>,
    fault: Option<PlantedFault>,
    in_place: Vec<Tensor>,
}

enum Results {
    /// Nobody else writes to them.
    Fresh(Vec<Tensor>),
    /// The next call writes to them.
    Static(Vec<Tensor>),
}

impl<B: Backend> Graphs<B> {
    pub(crate) fn new(config: GraphFunctionConfig, manager: &GraphManager) -> Self {
        Self {
            executor: Executor::new(config.execution(), manager),
            config,
            manager: manager.clone(),
            devices: Vec::new(),
            fault: None,
            in_place: Vec::new(),
        }
    }

    pub(crate) fn call(
        &mut self,
        eager: &mut Eager,
        inputs: &[&Tensor],
        function: Function<'_>,
    ) -> Result<Vec<Tensor>> {
        match self.run(eager, inputs, function)? {
            Results::Fresh(results) => Ok(results),
            Results::Static(results) => results.iter().map(Tensor::copy).collect(),
        }
    }

    pub(crate) fn call_in_place(
        &mut self,
        eager: &mut Eager,
        inputs: &[&Tensor],
        function: Function<'_>,
    ) -> Result<&[Tensor]> {
        let (Results::Fresh(results) | Results::Static(results)) = self.run(eager, inputs, function)?;
        self.in_place = results;
        Ok(&self.in_place)
    }

    pub(crate) fn stats(&self) -> GraphStats {
        self.executor.stats()
    }

    pub(crate) fn compile_report(&self) -> Option<&CompileReport> {
        self.executor.compile_report()
    }

    pub(crate) fn compile_refusal(&self) -> Option<&Refusal> {
        self.executor.compile_refusal()
    }

    pub(crate) fn plant(&mut self, fault: PlantedFault) {
        self.fault = Some(fault);
    }

    pub(crate) fn last_refusal(&self, inputs: &[&Tensor]) -> Option<&Refusal> {
        if self.is_off() { Some(&SWITCHED_OFF) } else { self.executor.refused(&self.key(inputs)) }
    }

    pub(crate) fn invalidate(&mut self, inputs: &[&Tensor]) -> bool {
        let key = self.key(inputs);
        self.executor.forget(&key, &key)
    }

    pub(crate) fn clear(&mut self) -> usize {
        self.in_place.clear();
        let num_graphs = self.executor.clear();
        self.devices.clear();
        num_graphs
    }

    fn is_off(&self) -> bool {
        self.config.mode == GraphMode::Off || !self.manager.enabled()
    }

    fn run(&mut self, eager: &mut Eager, inputs: &[&Tensor], function: Function<'_>) -> Result<Results> {
        eager.check().map_err(Error::wrap)?;
        // What the last call returned in place is given back before new memory is taken.
        self.in_place.clear();
        if self.is_off() {
            return run_eagerly(inputs, function).map(Results::Fresh);
        }
        self.enter(inputs).map_err(Error::wrap)?;
        let key = self.key(inputs);
        if self.executor.refused(&key).is_some() {
            self.executor.count_fallback(&key);
            return run_eagerly(inputs, function).map(Results::Fresh);
        }
        match self.load(&key, inputs) {
            Ok((device, feed)) => self.step(eager, &key, (device, feed), inputs, function),
            // Not even eagerly: the other thread may be recording.
            Err(refusal @ Refusal::SharedDevice) => Err(Error::wrap(refusal)),
            Err(refusal) => {
                let num_fallbacks = self.executor.stats_of(&key).fallbacks;
                self.fall_back(&key, refusal, num_fallbacks);
                run_eagerly(inputs, function).map(Results::Fresh)
            }
        }
    }

    fn step(
        &mut self,
        eager: &mut Eager,
        key: &GraphKey,
        (device, feed): (usize, Option<B::Feed<'static>>),
        inputs: &[&Tensor],
        function: Function<'_>,
    ) -> Result<Results> {
        let backend = self.devices[device].1.as_mut().expect("a device that was opened");
        let mut call = Call { function, inputs, results: Vec::new() };
        let num_fallbacks = self.executor.stats_of(key).fallbacks;
        match self.executor.step(backend, eager, (key, 0), (&mut call, feed), &mut ()) {
            Ok(Ran::Replayed(_)) => {
                let buffers = self.executor.inputs_of(key);
                Ok(Results::Static(buffers.expect("what was replayed has buffers").results()))
            }
            Ok(Ran::Eagerly) if self.executor.refused(key).is_some() => {
                let refusal = self.executor.refused(key);
                tracing::info!(%key, refusal = refusal.map(tracing::field::display), "a function is not replayed");
                // A replay that was refused is counted already.
                if self.executor.stats_of(key).fallbacks == num_fallbacks {
                    self.executor.count_fallback(key);
                }
                self.executor.release(key, key, None);
                Ok(Results::Fresh(call.results))
            }
            Ok(Ran::Eagerly) => Ok(Results::Static(call.results)),
            Err(Failure::Region(error)) => Err(error),
            Err(Failure::Feed(refusal)) => {
                let function = call.function;
                self.fall_back(key, refusal, num_fallbacks);
                run_eagerly(inputs, function).map(Results::Fresh)
            }
            Err(Failure::Unconfirmed(found)) => {
                let stale = found.stale;
                tracing::warn!(%key, %stale, refusal = %stale.refusal, "results of a function may be wrong");
                self.executor.release(key, key, None);
                Err(Error::wrap(stale))
            }
        }
    }

    fn key(&self, inputs: &[&Tensor]) -> GraphKey {
        let device = inputs.first().map_or(&Device::Cpu, |input| input.device());
        let mut key = GraphKey::new(ExecutionMode::Infer, device);
        key.tags.clone_from(&self.config.tags);
        if let Some(half) = half() {
            key = key.tag("products", half.as_str());
        }
        let handle = self.devices.iter().position(|(known, _)| known.same_device(device));
        let handle = handle.unwrap_or(self.devices.len());
        if handle > 0 {
            key = key.tag("device handle", handle.to_string());
        }
        for (index, input) in inputs.iter().enumerate() {
            key = key.input(input);
            if !input.device().same_device(device) {
                key = key.tag(format!("device of input {index}"), DeviceKey::from(input.device()).to_string());
            }
        }
        key
    }

    /// Copies the inputs to the static ones of their key, or returns the copies for the step to make; first the index of their device.
    fn load(
        &mut self,
        key: &GraphKey,
        inputs: &[&Tensor],
    ) -> std::result::Result<(usize, Option<B::Feed<'static>>), Refusal> {
        let device = self.open(inputs)?;
        let buffers = self.executor.inputs(key, || Ok((key.clone(), Buffers::new(inputs)?)))?;
        let feed = self.devices[device].1.as_ref().and_then(|backend| backend.copies(&buffers.copies(inputs)));
        if feed.is_none() {
            buffers.load(inputs, Stage::Launch)?;
        }
        Ok((device, feed))
    }

    /// Lets go of the buffers of a key that runs eagerly from now on. It is counted unless there are more fallbacks than before this call.
    fn fall_back(&mut self, key: &GraphKey, refusal: Refusal, num_fallbacks: u64) {
        tracing::info!(%key, %refusal, "a function is not replayed");
        self.executor.release(key, key, Some(refusal));
        if self.executor.stats_of(key).fallbacks == num_fallbacks {
            self.executor.count_fallback(key);
        }
    }

    /// Confirms that this thread may use a device that was opened before.
    fn enter(&self, inputs: &[&Tensor]) -> std::result::Result<(), Refusal> {
        let Some(first) = inputs.first() else { return Ok(()) };
        let known = self.devices.iter().find(|(known, _)| known.same_device(first.device()));
        known.and_then(|(_, backend)| backend.as_ref()).map_or(Ok(()), Backend::enter)
    }

    /// The index of the inputs' device, which can record.
    fn open(&mut self, inputs: &[&Tensor]) -> std::result::Result<usize, Refusal> {
        let Some(first) = inputs.first() else {
            return Err(Refusal::Unsupported { why: "a function without inputs has no device" });
        };
        let device = first.device();
        if !inputs.iter().all(|input| input.device().same_device(device)) {
            return Err(Refusal::Unsupported { why: "the inputs are on several devices" });
        }
        let known = self.devices.iter().position(|(known, _)| known.same_device(device));
        let index = known.unwrap_or_else(|| {
            self.devices.push((device.clone(), None));
            self.devices.len() - 1
        });
        if self.devices[index].1.is_none() {
            // A call gives the bits of the function: no pass that changes any.
            let kernel_cache = self.config.compile_cache.clone();
            let options = CompileOptions {
                kernel_cache,
                is_fed: true,
                fault: self.fault,
                ..CompileOptions::new(PassSet::exact())
            };
            self.devices[index].1 = Some(B::open(device, options)?);
        }
        Ok(index)
    }
}

/// One call, as an executor takes it.
struct Call<'a> {
    function: Function<'a>,
    inputs: &'a [&'a Tensor],
    /// Of an eager run.
    results: Vec<Tensor>,
}

impl Region<Buffers> for Call<'_> {
    type Error = Error;

    fn run(&mut self, _recording: &Recording, buffers: &Buffers) -> Result<()> {
        // The results of a recorded run must be gone when the region ends.
        buffers.store(&anew(|| (self.function)(&buffers.arguments()))?)
    }

    fn run_eagerly<B: Backend>(
        &mut self,
        _eager: &mut Eager,
        warm_up: Option<&B>,
        buffers: &mut Buffers,
    ) -> Result<Option<Refusal>> {
        let Some(backend) = warm_up else {
            self.results = run_eagerly(self.inputs, self.function)?;
            return Ok(None);
        };
        backend.warm(|| {
            let arguments = buffers.arguments();
            let results = anew(|| (self.function)(&arguments))?;
            let stored = buffers.store_warm(&arguments, &results);
            self.results = if stored.is_ok() { buffers.results() } else { detached(&results) };
            Ok(stored.err())
        })
    }

    fn told(error: &Error) -> (String, Option<Refusal>) {
        (error.to_string(), None)
    }

    fn held(&self, buffers: &Buffers) -> Vec<(String, Tensor)> {
        buffers.named()
    }

    fn not_held(&self, name: &str, error: &Error) -> Option<Refusal> {
        // The executor owns them as well, so without an address to check the graph is as good as with one.
        tracing::debug!(%error, name, "the address of a static buffer is not checked");
        None
    }
}

fn run_eagerly(inputs: &[&Tensor], function: Function<'_>) -> Result<Vec<Tensor>> {
    let arguments: Vec<Tensor> = inputs.iter().map(|input| input.detach()).collect();
    Ok(detached(&function(&arguments)?))
}

fn detached(results: &[Tensor]) -> Vec<Tensor> {
    results.iter().map(Tensor::detach).collect()
}
