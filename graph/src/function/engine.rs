//! The graphs of one function: warm-up is counted, then its last run is captured, and replayed from then on.

use std::collections::BTreeMap;
use std::thread::{self, ThreadId};

use candle_core::{Device, Error, Result, Tensor};
use leyline::model::HostNumbers;
use leyline::region::Eager;

use super::backend::Backend;
use super::buffers::{Buffers, hold};
use super::config::GraphFunctionConfig;
use crate::cache::GraphCache;
use crate::key::{DeviceKey, ExecutionMode, GraphKey};
use crate::manager::{GraphManager, GraphMode};
use crate::reason::{Refusal, Stage};
use crate::retest::{Hypothesis, Judgment, Stale};
use crate::stats::GraphStats;

type Function<'a> = &'a dyn Fn(&[Tensor]) -> Result<Vec<Tensor>>;

static SWITCHED_OFF: Refusal = Refusal::SwitchedOff;

/// The graphs of one function, which is handed in with each call and must be the same every time.
#[derive(Debug)]
pub(crate) struct Graphs<B: Backend> {
    config: GraphFunctionConfig,
    pub(super) manager: GraphManager,
    pub(super) cache: GraphCache<Entry<B::Graph>, Refusal>,
    pub(super) warm_ups: BTreeMap<GraphKey, WarmUp>,
    num_warm_runs: u64,
    /// Every device handle seen: two handles of one physical device differ in their stream, which a key does not tell.
    devices: Vec<(Device, Option<B>)>,
    in_place: Vec<Tensor>,
}

#[derive(Debug)]
pub(super) struct Entry<G> {
    /// Dropped before the buffers that it points at.
    graph: G,
    buffers: Buffers,
    hypothesis: Hypothesis,
    /// Constants that the region uploads lie in a cache of this thread, and are gone when it ends.
    thread: ThreadId,
}

#[derive(Debug)]
pub(super) struct WarmUp {
    buffers: Buffers,
    num_runs: u32,
    used: u64,
}

enum Results {
    /// Nobody else writes to them.
    Fresh(Vec<Tensor>),
    /// The next call writes to them.
    Static(Vec<Tensor>),
}

enum Outcome {
    Static(Vec<Tensor>),
    /// With the results of an eager run if there was one.
    Refused(Refusal, Option<Vec<Tensor>>),
    /// Results of earlier calls may be wrong.
    Stale(Stale),
}

impl<B: Backend> Graphs<B> {
    pub(crate) fn new(config: GraphFunctionConfig, manager: &GraphManager) -> Self {
        Self {
            cache: GraphCache::new(config.limit, manager),
            config,
            manager: manager.clone(),
            warm_ups: BTreeMap::new(),
            num_warm_runs: 0,
            devices: Vec::new(),
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
        self.cache.stats()
    }

    pub(crate) fn last_refusal(&self, inputs: &[&Tensor]) -> Option<&Refusal> {
        if self.is_off() { Some(&SWITCHED_OFF) } else { self.cache.refused(&self.key(inputs)) }
    }

    pub(crate) fn invalidate(&mut self, inputs: &[&Tensor]) -> bool {
        let key = self.key(inputs);
        self.warm_ups.remove(&key);
        self.cache.invalidate(&key).is_some()
    }

    pub(crate) fn clear(&mut self) -> usize {
        self.warm_ups.clear();
        self.in_place.clear();
        let num_graphs = self.cache.clear();
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
        if self.cache.refused(&key).is_some() {
            self.cache.record_fallback(&key);
            return run_eagerly(inputs, function).map(Results::Fresh);
        }
        match self.replay_or_warm_up(eager, &key, inputs, function)? {
            Outcome::Static(results) => Ok(Results::Static(results)),
            // Not even eagerly: the other thread may be recording.
            Outcome::Refused(refusal @ Refusal::SharedDevice, _) => Err(Error::wrap(refusal)),
            Outcome::Refused(refusal, results) => {
                tracing::info!(%key, %refusal, "a function is not replayed");
                self.cache.refuse(key.clone(), refusal);
                self.cache.record_fallback(&key);
                results.map_or_else(|| run_eagerly(inputs, function), Ok).map(Results::Fresh)
            }
            Outcome::Stale(stale) => {
                tracing::warn!(%key, %stale, refusal = %stale.refusal, "results of a function may be wrong");
                self.cache.refuse(key, stale.refusal.clone());
                Err(Error::wrap(stale))
            }
        }
    }

    fn key(&self, inputs: &[&Tensor]) -> GraphKey {
        let device = inputs.first().map_or(&Device::Cpu, |input| input.device());
        let mut key = GraphKey::new(ExecutionMode::Infer, device);
        key.tags.clone_from(&self.config.tags);
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

    fn replay_or_warm_up(
        &mut self,
        eager: &mut Eager,
        key: &GraphKey,
        inputs: &[&Tensor],
        function: Function<'_>,
    ) -> Result<Outcome> {
        if let Some(entry) = self.cache.get(key) {
            if entry.thread == thread::current().id() {
                if entry.hypothesis.is_due() {
                    let (buffers, arguments) = (&entry.buffers, entry.buffers.arguments());
                    let tested = B::test(&entry.graph, eager, || buffers.store(&function(&arguments)?));
                    match entry.hypothesis.judge(tested) {
                        Ok(()) => {}
                        Err(Judgment::InTime(refusal)) => return Ok(Outcome::Refused(refusal, None)),
                        Err(Judgment::TooLate(stale)) => return Ok(Outcome::Stale(stale)),
                    }
                }
                return Ok(match entry.buffers.load(inputs, Stage::Launch).and_then(|()| B::replay(&entry.graph)) {
                    Ok(()) => {
                        entry.hypothesis.replayed();
                        let results = entry.buffers.results();
                        self.cache.record_replay(key, None);
                        Outcome::Static(results)
                    }
                    Err(refusal) => Outcome::Refused(refusal, None),
                });
            }
            drop(self.cache.invalidate(key));
        }
        let opened = self.open(inputs).and_then(|backend| Ok((backend, self.take_warm_up(key, inputs)?)));
        match opened {
            Ok((backend, warm_up)) => self.warm_up(eager, key, &backend, warm_up, function),
            Err(refusal) => Ok(Outcome::Refused(refusal, None)),
        }
    }

    /// Confirms that this thread may use a device that was opened before.
    fn enter(&self, inputs: &[&Tensor]) -> std::result::Result<(), Refusal> {
        let Some(first) = inputs.first() else { return Ok(()) };
        let known = self.devices.iter().find(|(known, _)| known.same_device(first.device()));
        known.and_then(|(_, backend)| backend.as_ref()).map_or(Ok(()), Backend::enter)
    }

    fn open(&mut self, inputs: &[&Tensor]) -> std::result::Result<B, Refusal> {
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
        if let Some(backend) = &self.devices[index].1 {
            return Ok(backend.clone());
        }
        let backend = B::open(device)?;
        self.devices[index].1 = Some(backend.clone());
        Ok(backend)
    }

    /// The warm-up of `key`, a new one if there is none, with the inputs in its static buffers.
    fn take_warm_up(&mut self, key: &GraphKey, inputs: &[&Tensor]) -> std::result::Result<WarmUp, Refusal> {
        let mut warm_up = match self.warm_ups.remove(key) {
            Some(warm_up) => warm_up,
            None => WarmUp { buffers: Buffers::new(inputs)?, num_runs: 0, used: 0 },
        };
        warm_up.buffers.load(inputs, Stage::Open)?;
        self.num_warm_runs += 1;
        warm_up.used = self.num_warm_runs;
        Ok(warm_up)
    }

    fn warm_up(
        &mut self,
        eager: &mut Eager,
        key: &GraphKey,
        backend: &B,
        mut warm_up: WarmUp,
        function: Function<'_>,
    ) -> Result<Outcome> {
        let arguments = warm_up.buffers.arguments();
        let ran = backend.warm(|| {
            let results = function(&arguments)?;
            Ok(match warm_up.buffers.store_warm(&arguments, &results) {
                Ok(()) => Ok(()),
                Err(refusal) => Err((refusal, detached(&results))),
            })
        });
        match ran {
            Ok(Ok(())) => {}
            Ok(Err((refusal, results))) => return Ok(Outcome::Refused(refusal, Some(results))),
            Err(error) => {
                self.put_back(key, warm_up);
                return Err(error);
            }
        }
        warm_up.num_runs += 1;
        if warm_up.num_runs < self.config.warmup_calls.get() {
            let results = warm_up.buffers.results();
            self.put_back(key, warm_up);
            return Ok(Outcome::Static(results));
        }
        let buffers = warm_up.buffers;
        // Nothing of it runs, so the results of the warm-up stay in the static outputs. The results of the recorded run
        // must be gone when the region ends.
        let captured = backend.capture(eager, || buffers.store(&function(&arguments)?));
        let results = buffers.results();
        match captured {
            Ok(mut graph) => {
                hold::<B>(&mut graph, &buffers);
                let cost = B::cost(&graph);
                let hypothesis = Hypothesis::new(HostNumbers::MayMove, false);
                let entry = Entry { graph, buffers, hypothesis, thread: thread::current().id() };
                drop(self.cache.insert(key.clone(), entry, cost));
                Ok(Outcome::Static(results))
            }
            Err(refusal) => Ok(Outcome::Refused(refusal, Some(results))),
        }
    }

    fn put_back(&mut self, key: &GraphKey, warm_up: WarmUp) {
        if self.warm_ups.len() >= self.config.limit.get() {
            let oldest = self.warm_ups.iter().min_by_key(|(_, warm_up)| warm_up.used).map(|(key, _)| key.clone());
            oldest.and_then(|oldest| self.warm_ups.remove(&oldest));
        }
        self.warm_ups.insert(key.clone(), warm_up);
    }
}

fn run_eagerly(inputs: &[&Tensor], function: Function<'_>) -> Result<Vec<Tensor>> {
    let arguments: Vec<Tensor> = inputs.iter().map(|input| input.detach()).collect();
    Ok(detached(&function(&arguments)?))
}

fn detached(results: &[Tensor]) -> Vec<Tensor> {
    results.iter().map(Tensor::detach).collect()
}
