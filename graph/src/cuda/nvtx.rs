//! Ranges for NVIDIA's profilers (NVTX), by the library that the CUDA toolkit brings; without a profiler a range costs a call of nothing.

use std::ffi::{CStr, c_char, c_int};
use std::fmt;

use libloading::Library;

/// File names of the library, that of CUDA 13 first.
const NAMES: [&str; 4] = ["libnvtx3interop.so.1", "libnvtx3interop.so", "libnvToolsExt.so.1", "libnvToolsExt.so"];

/// The library, loaded.
pub struct Nvtx {
    push: unsafe extern "C" fn(*const c_char) -> c_int,
    pop: unsafe extern "C" fn() -> c_int,
    /// What the two are in.
    _library: Library,
}

impl Nvtx {
    /// Loads the library. Nothing is asked of a device.
    ///
    /// # Errors
    /// A sentence with the names that were looked for, where the dynamic linker finds none of them.
    pub fn load() -> Result<Self, String> {
        // SAFETY: what the library does when it is loaded is to look for a profiler; no other of these names is known.
        let library = NAMES.iter().find_map(|name| unsafe { Library::new(*name) }.ok());
        let library = library.ok_or_else(|| format!("none of {} is found by the dynamic linker", NAMES.join(", ")))?;
        // SAFETY: the types are those of `nvtxRangePushA` and `nvtxRangePop` in the header of NVTX, versions 1 to 3.
        let (push, pop) = unsafe {
            let push = library.get::<unsafe extern "C" fn(*const c_char) -> c_int>(b"nvtxRangePushA\0");
            let pop = library.get::<unsafe extern "C" fn() -> c_int>(b"nvtxRangePop\0");
            (push.map(|function| *function), pop.map(|function| *function))
        };
        let (push, pop) = push.and_then(|push| Ok((push, pop?))).map_err(|error| error.to_string())?;
        Ok(Self { push, pop, _library: library })
    }

    /// Begins a range of this thread inside those that are open.
    pub fn push(&self, name: &CStr) {
        // SAFETY: the name ends with a zero, and is copied before the call returns.
        unsafe { (self.push)(name.as_ptr()) };
    }

    /// Ends the range of this thread that began last.
    pub fn pop(&self) {
        // SAFETY: without an open range the library does nothing.
        unsafe { (self.pop)() };
    }
}

impl fmt::Debug for Nvtx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Nvtx")
    }
}
