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

impl Session {
    /// The pool now.
    ///
    /// # Errors
    /// [`Refusal::Driver`].
    pub fn graph_memory(&self) -> Result<GraphMemory, Refusal> {
        let attribute = |name| {
            let mut value = 0_u64;
            // SAFETY: both attributes are 64-bit numbers, and `value` is one.
            let result =
                unsafe { sys::cuDeviceGetGraphMemAttribute(self.context().cu_device(), name, (&raw mut value).cast()) };
            check(result, "cuDeviceGetGraphMemAttribute", Stage::Inspect).map(|()| value)
        };
        Ok(GraphMemory {
            used: attribute(sys::CUgraphMem_attribute::CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT)?,
            reserved: attribute(sys::CUgraphMem_attribute::CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT)?,
        })
    }

    /// Bytes that tensors of this GPU hold, of all its streams: what its current memory pool has given out.
    ///
    /// # Errors
    /// [`Refusal::Driver`].
    pub fn tensor_memory(&self) -> Result<u64, Refusal> {
        let mut bytes = 0_u64;
        let used = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT;
        // SAFETY: the device is that of a live context, its current pool outlives the call, and the attribute is a 64-bit
        // number.
        let asked = unsafe {
            result::device::get_mem_pool(self.context().cu_device())
                .and_then(|pool| result::mem_pool::get_attribute(pool, used, (&raw mut bytes).cast()))
        };
        asked.map_err(refused("cuMemPoolGetAttribute", Stage::Inspect)).map(|()| bytes)
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
