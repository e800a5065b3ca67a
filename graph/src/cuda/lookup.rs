//! What the device knows of an address.

use std::sync::Arc;

use cudarc::driver::sys;

use super::side::SideStream;
use crate::compile::Memory;

/// Most words that are read at once: constants are a few dozen.
const MAX_WORDS: usize = 1 << 16;

/// The memory of a device, asked from the thread that compiles. The context is current there.
#[derive(Debug)]
pub(super) struct DeviceMemory {
    side: Arc<SideStream>,
}

impl DeviceMemory {
    pub(super) fn new(side: &Arc<SideStream>) -> Self {
        Self { side: Arc::clone(side) }
    }
}

impl Memory for DeviceMemory {
    fn allocation(&mut self, address: u64) -> Option<(u64, usize)> {
        allocation(address)
    }

    fn words(&mut self, address: u64, count: usize) -> Option<Vec<u64>> {
        let end = address.checked_add(count.checked_mul(8)? as u64)?;
        let (base, bytes) = self.allocation(address)?;
        if count > MAX_WORDS || end > base + bytes as u64 {
            return None;
        }
        let mut words = vec![0; count];
        if count > 0 {
            self.side.read(address, &mut words).ok()?;
        }
        Some(words)
    }
}

/// First address and length of the allocation that an address lies in. Numbers that are no addresses are asked for too: the
/// driver says no, and nothing else happens. The context is current.
pub(super) fn allocation(address: u64) -> Option<(u64, usize)> {
    if !is_on_device(address) {
        return None;
    }
    let (mut base, mut bytes) = (0, 0);
    // SAFETY: the call writes two numbers; the address is only looked up.
    let result = unsafe { sys::cuMemGetAddressRange_v2(&raw mut base, &raw mut bytes, address) };
    (result == sys::CUresult::CUDA_SUCCESS && bytes > 0).then_some((base, bytes))
}

/// Whether it is memory of a device and not of the host.
fn is_on_device(address: u64) -> bool {
    let mut kind = 0_u32;
    // SAFETY: the attribute is a 32-bit number, and `kind` is one; the address is only looked up.
    let result = unsafe {
        sys::cuPointerGetAttribute(
            (&raw mut kind).cast(),
            sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
            address,
        )
    };
    result == sys::CUresult::CUDA_SUCCESS && kind == sys::CUmemorytype::CU_MEMORYTYPE_DEVICE as u32
}
