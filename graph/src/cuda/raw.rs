//! Graphs as the driver hands them out: destroyed when they are dropped, on whatever thread that is.

use std::sync::Arc;

use cudarc::driver::{CudaContext, result, sys};

use super::driver::{enter, refused};
use crate::reason::{Refusal, Stage};

/// A graph that is destroyed unless it is taken.
#[derive(Debug)]
pub(super) struct RawGraph(Option<sys::CUgraph>);

// SAFETY: the driver's graphs may be used from any thread, one at a time; this is the only handle.
unsafe impl Send for RawGraph {}

impl RawGraph {
    /// What the driver returned, which may be nothing.
    pub(super) fn new(graph: Option<sys::CUgraph>) -> Self {
        Self(graph.filter(|graph| !graph.is_null()))
    }

    /// A graph without nodes.
    pub(super) fn empty() -> Result<Self, Refusal> {
        let mut graph = std::ptr::null_mut();
        // SAFETY: the call writes a handle to `graph`.
        let result = unsafe { sys::cuGraphCreate(&raw mut graph, 0) };
        result.result().map_err(refused("cuGraphCreate", Stage::Compile)).map(|()| Self::new(Some(graph)))
    }

    /// The handle, for as long as `self`.
    pub(super) fn get(&self) -> Option<sys::CUgraph> {
        self.0
    }

    /// The handle; the caller destroys it.
    pub(super) fn into_raw(mut self) -> sys::CUgraph {
        self.0.take().expect("a graph that was checked")
    }
}

impl Drop for RawGraph {
    fn drop(&mut self) {
        if let Some(graph) = self.0.take() {
            // SAFETY: the graph's executable forms do not need it to run, and nobody else has the handle.
            if let Err(error) = unsafe { result::graph::destroy(graph) } {
                tracing::debug!(%error, "a graph was not destroyed");
            }
        }
    }
}

/// An executable graph that was never launched.
#[derive(Debug)]
pub(super) struct RawExec {
    exec: Option<sys::CUgraphExec>,
    context: Arc<CudaContext>,
}

// SAFETY: as for `RawGraph`.
unsafe impl Send for RawExec {}

impl RawExec {
    /// Makes a graph executable. The context is current.
    pub(super) fn instantiate(graph: &RawGraph, context: &Arc<CudaContext>) -> Result<Self, Refusal> {
        let graph = graph.get().ok_or(Refusal::Empty)?;
        // SAFETY: the graph is live and used by this thread alone.
        let exec = unsafe { result::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0)) };
        let exec = exec.map_err(refused("cuGraphInstantiate", Stage::Compile))?;
        Ok(Self { exec: Some(exec), context: Arc::clone(context) })
    }

    /// The handle; the caller destroys it.
    pub(super) fn into_raw(mut self) -> sys::CUgraphExec {
        self.exec.take().expect("taken once")
    }
}

impl Drop for RawExec {
    fn drop(&mut self) {
        if let Some(exec) = self.exec.take() {
            let entered = enter(&self.context);
            // SAFETY: no launch is under way, there was none, and the handle is not used again.
            let destroyed = unsafe { result::graph::exec_destroy(exec) };
            if entered.is_err() || destroyed.is_err() {
                tracing::debug!(?entered, ?destroyed, "a graph that was never used was not destroyed");
            }
        }
    }
}
