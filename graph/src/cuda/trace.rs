//! When kernels ran, as CUPTI tells it, the library that NVIDIA's profilers are made of: those inside a graph too.

use std::alloc::{Layout, alloc, dealloc};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use libloading::Library;

use super::session::Session;
use crate::kernel_time::KernelTime;
use crate::reason::{Refusal, Stage};

/// File names of the library, that of CUDA 13 first.
const NAMES: [&str; 3] = ["libcupti.so.13", "libcupti.so.12", "libcupti.so"];
/// `CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL`.
const KERNELS: c_int = 10;
/// `CUPTI_ACTIVITY_FLAG_FLUSH_FORCED`: buffers that are not full too.
const FORCED: u32 = 1;
/// Of a buffer that records are written to.
const LAYOUT: Layout = match Layout::from_size_align(8 << 20, 8) {
    Ok(layout) => layout,
    Err(_) => panic!("a size of whole eights"),
};

type GiveBuffer = extern "C" fn(*mut *mut u8, *mut usize, *mut usize);
type TakeBuffer = extern "C" fn(*mut c_void, u32, *mut u8, usize, usize);

/// The functions that are called, from `cupti_activity.h`.
struct Cupti {
    register_callbacks: unsafe extern "C" fn(GiveBuffer, TakeBuffer) -> c_int,
    enable: unsafe extern "C" fn(c_int) -> c_int,
    disable: unsafe extern "C" fn(c_int) -> c_int,
    flush_all: unsafe extern "C" fn(u32) -> c_int,
    next_record: unsafe extern "C" fn(*mut u8, usize, *mut *mut Record) -> c_int,
    /// What they are in.
    _library: Library,
}

/// The first fields of `CUpti_ActivityKernel5` and all later ones, which have more at the end.
#[repr(C)]
struct Record {
    kind: c_int,
    caches_and_registers: u32,
    partitioned_caches: [c_int; 2],
    start_ns: u64,
    end_ns: u64,
    completed_ns: u64,
    device_context_stream: [u32; 3],
    grid_and_block: [i32; 6],
    memory: [u32; 4],
    correlation: u32,
    grid_id: i64,
    name: *const c_char,
}

const _: () = assert!(std::mem::offset_of!(Record, start_ns) == 16 && std::mem::offset_of!(Record, name) == 104);

/// Loaded at most once, or why it was not.
static CUPTI: OnceLock<Result<Cupti, String>> = OnceLock::new();
/// What the library has told since a trace began; it knows one user in a process.
static TOLD: Mutex<Vec<KernelTime>> = Mutex::new(Vec::new());
static TRACING: Mutex<()> = Mutex::new(());

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn refused(call: &'static str, message: String) -> Refusal {
    Refusal::Driver { call, stage: Stage::Launch, message }
}

fn check(code: c_int, call: &'static str) -> Result<(), Refusal> {
    if code == 0 { Ok(()) } else { Err(refused(call, format!("CUPTI's error {code}"))) }
}

impl Cupti {
    fn load() -> Result<Self, String> {
        // SAFETY: what the library does when it is loaded is to find its own parts; no other of these names is known.
        let library = NAMES.iter().find_map(|name| unsafe { Library::new(*name) }.ok());
        let library = library.ok_or_else(|| format!("none of {} is found by the dynamic linker", NAMES.join(", ")))?;
        let of = |error: libloading::Error| error.to_string();
        // SAFETY: the types are those of the header of these versions; enumerations are as wide as an `int`.
        unsafe {
            Ok(Self {
                register_callbacks: *library.get(b"cuptiActivityRegisterCallbacks\0").map_err(of)?,
                enable: *library.get(b"cuptiActivityEnable\0").map_err(of)?,
                disable: *library.get(b"cuptiActivityDisable\0").map_err(of)?,
                flush_all: *library.get(b"cuptiActivityFlushAll\0").map_err(of)?,
                next_record: *library.get(b"cuptiActivityGetNextRecord\0").map_err(of)?,
                _library: library,
            })
        }
    }
}

impl Session {
    /// Runs `work`, and tells which kernels ran on any device of this process meanwhile, in the order of their beginnings.
    /// What a kernel takes is a little more than without; those of graphs run one after the other or side by side as ever.
    /// A CUPTI of another CUDA version than the driver's may tell of none: who knows that there are some has to look.
    ///
    /// CUPTI stays in the process: launches take longer from then on, those of graphs too. What is to be timed comes
    /// before the first trace.
    ///
    /// # Errors
    /// [`Refusal::Driver`] where CUPTI is not found, or a profiler is using it.
    /// # Sync
    /// waits for the device, before and after
    pub fn traced<R>(&self, work: impl FnOnce() -> R) -> Result<(R, Vec<KernelTime>), Refusal> {
        let _one = locked(&TRACING);
        let cupti = CUPTI.get_or_init(Cupti::load).as_ref().map_err(|why| refused("loading CUPTI", why.clone()))?;
        self.synchronize()?;
        locked(&TOLD).clear();
        // SAFETY: both are functions of the types that are asked for, and there for as long as the process.
        check(unsafe { (cupti.register_callbacks)(give_buffer, take_buffer) }, "cuptiActivityRegisterCallbacks")?;
        // SAFETY: a kind of the library; nothing but times is collected.
        check(unsafe { (cupti.enable)(KERNELS) }, "cuptiActivityEnable")?;
        let result = work();
        let waited = self.synchronize();
        // SAFETY: as above; the callback that this calls takes no lock that is held here.
        let flushed = check(unsafe { (cupti.flush_all)(FORCED) }, "cuptiActivityFlushAll");
        // SAFETY: as above.
        check(unsafe { (cupti.disable)(KERNELS) }, "cuptiActivityDisable")?;
        waited.and(flushed)?;
        let mut told = std::mem::take(&mut *locked(&TOLD));
        told.sort_by_key(|kernel| kernel.start_ns);
        Ok((result, told))
    }
}

extern "C" fn give_buffer(buffer: *mut *mut u8, size: *mut usize, max_records: *mut usize) {
    // SAFETY: the library gives places to write to; the memory is freed by `take_buffer`, which it calls for every buffer.
    unsafe {
        *buffer = alloc(LAYOUT);
        *size = if (*buffer).is_null() { 0 } else { LAYOUT.size() };
        *max_records = 0;
    }
}

extern "C" fn take_buffer(_: *mut c_void, _: u32, buffer: *mut u8, _: usize, valid: usize) {
    let Some(Ok(cupti)) = CUPTI.get() else { return };
    if buffer.is_null() {
        return;
    }
    let mut told = locked(&TOLD);
    let mut next: *mut Record = null_mut();
    // SAFETY: the buffer is one of `give_buffer`, of which so many bytes were written; it is freed once, after the last look at it.
    // Only kernels were asked for, and a record of another kind is not read beyond its first field.
    unsafe {
        while (cupti.next_record)(buffer, valid, &mut next) == 0 {
            if (*next).kind != KERNELS {
                continue;
            }
            let name = if (*next).name.is_null() { c"" } else { CStr::from_ptr((*next).name) };
            told.push(KernelTime {
                name: name.to_string_lossy().into_owned(),
                start_ns: (*next).start_ns,
                end_ns: (*next).end_ns,
            });
        }
        dealloc(buffer, LAYOUT);
    }
}
