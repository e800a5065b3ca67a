//! The device's memory for graphs: one pool per device, shared by all of them.

use cudarc::driver::{result, sys};

use super::driver::{check, refused};
use super::session::Session;
use crate::reason::{Refusal, Stage};

/// State of the pool, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GraphMemory {
    /// In use by graphs that run or hold memory.
    pub used: u64,
    /// Taken from the device.
    pub reserved: u64,
}

/// The most bytes that were in use at once since [`Session::restart_peak_memory`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeakMemory {
    /// By captured graphs, for what their regions allocate.
    pub graphs: u64,
    /// By tensors, static buffers, and the arenas of compiled graphs.
    pub tensors: u64,
}

impl Session {
    /// The pool now.
    ///
    /// # Errors
    /// [`Refusal::Driver`].
    pub fn graph_memory(&self) -> Result<GraphMemory, Refusal> {
        Ok(GraphMemory {
            used: self.of_graphs(sys::CUgraphMem_attribute::CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT)?,
            reserved: self.of_graphs(sys::CUgraphMem_attribute::CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT)?,
        })
    }

    fn of_graphs(&self, attribute: sys::CUgraphMem_attribute) -> Result<u64, Refusal> {
        let mut value = 0_u64;
        // SAFETY: all attributes are 64-bit numbers, and `value` is one.
        let result = unsafe {
            sys::cuDeviceGetGraphMemAttribute(self.context().cu_device(), attribute, (&raw mut value).cast())
        };
        check(result, "cuDeviceGetGraphMemAttribute", Stage::Inspect).map(|()| value)
    }

    /// Bytes that tensors of this GPU hold, of all its streams: what its current memory pool has given out.
    ///
    /// # Errors
    /// [`Refusal::Driver`].
    pub fn tensor_memory(&self) -> Result<u64, Refusal> {
        self.of_tensors(sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)
    }

    fn of_tensors(&self, attribute: sys::CUmemPool_attribute) -> Result<u64, Refusal> {
        let mut bytes = 0_u64;
        // SAFETY: the device is that of a live context, its current pool outlives the call, and the attributes that are asked
        // for are 64-bit numbers.
        let asked = unsafe {
            result::device::get_mem_pool(self.context().cu_device())
                .and_then(|pool| result::mem_pool::get_attribute(pool, attribute, (&raw mut bytes).cast()))
        };
        asked.map_err(refused("cuMemPoolGetAttribute", Stage::Inspect)).map(|()| bytes)
    }

    /// [`Self::peak_memory`] begins anew, with what is in use now.
    ///
    /// # Errors
    /// [`Refusal::Driver`].
    /// # Sync
    /// none: memory of steps that are under way counts as in use
    pub fn restart_peak_memory(&self) -> Result<(), Refusal> {
        let (device, mut zero) = (self.context().cu_device(), 0_u64);
        let of_graphs = sys::CUgraphMem_attribute::CU_GRAPH_MEM_ATTR_USED_MEM_HIGH;
        // SAFETY: the device is that of a live context; the attribute is a 64-bit number that can be set to 0, as `zero` is.
        let result = unsafe { sys::cuDeviceSetGraphMemAttribute(device, of_graphs, (&raw mut zero).cast()) };
        check(result, "cuDeviceSetGraphMemAttribute", Stage::Inspect)?;
        let of_tensors = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH;
        // SAFETY: as above; the current pool of the device outlives the call.
        let set = unsafe {
            result::device::get_mem_pool(device)
                .and_then(|pool| result::mem_pool::set_attribute(pool, of_tensors, (&raw mut zero).cast()))
        };
        set.map_err(refused("cuMemPoolSetAttribute", Stage::Inspect))
    }

    /// The most bytes in use at once, of all streams, since [`Self::restart_peak_memory`] or the start of the process.
    ///
    /// # Errors
    /// [`Refusal::Driver`].
    /// # Sync
    /// none
    pub fn peak_memory(&self) -> Result<PeakMemory, Refusal> {
        // A mark that was set to 0 may stay there until more is taken: what is in use counts in any case.
        let graphs = self.of_graphs(sys::CUgraphMem_attribute::CU_GRAPH_MEM_ATTR_USED_MEM_HIGH)?;
        let tensors = self.of_tensors(sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH)?;
        let [graphs, tensors] = [graphs.max(self.graph_memory()?.used), tensors.max(self.tensor_memory()?)];
        Ok(PeakMemory { graphs, tensors })
    }

    /// Confirms that a graph with `needed` bytes at once fits. The driver would find out at the upload, but then keep
    /// what it has taken until the process ends (seen with driver 580).
    pub(super) fn check_room(&self, needed: u64) -> Result<(), Refusal> {
        if needed <= self.available()? {
            return Ok(());
        }
        // What eager steps have freed is still held by the pool of the device.
        self.synchronize()?;
        // SAFETY: the device is that of a live context, and its current pool outlives the call.
        let trimmed = unsafe {
            result::device::get_mem_pool(self.context().cu_device()).and_then(|pool| result::mem_pool::trim_to(pool, 0))
        };
        trimmed.map_err(refused("cuMemPoolTrimTo", Stage::Inspect))?;
        let available = self.available()?;
        if needed <= available { Ok(()) } else { Err(Refusal::OutOfMemory { needed, available }) }
    }

    pub(super) fn available(&self) -> Result<u64, Refusal> {
        let (free, _) = result::mem_get_info().map_err(refused("cuMemGetInfo", Stage::Inspect))?;
        let pool = self.graph_memory()?;
        Ok(free as u64 + pool.reserved.saturating_sub(pool.used))
    }

    /// Gives memory that no graph uses back to the device.
    ///
    /// # Errors
    /// [`Refusal::Driver`].
    pub fn trim_graph_memory(&self) -> Result<(), Refusal> {
        // SAFETY: the device is that of a live context.
        let result = unsafe { sys::cuDeviceGraphMemTrim(self.context().cu_device()) };
        check(result, "cuDeviceGraphMemTrim", Stage::Inspect)
    }
}
