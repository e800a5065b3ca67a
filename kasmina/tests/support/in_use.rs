//! Bytes in use by a whole test binary, which has one test: an allocator that counts.
// The only way to see memory in use is to be the allocator, and that interface is unsafe.
#![allow(unsafe_code)]
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicIsize, Ordering};

/// The system's allocator, counting the bytes in use.
struct Counting;

static IN_USE: AtomicIsize = AtomicIsize::new(0);
static MOST: AtomicIsize = AtomicIsize::new(0);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn count(bytes: usize, sign: isize) {
    let bytes = sign * isize::try_from(bytes).unwrap_or(isize::MAX);
    let now = IN_USE.fetch_add(bytes, Ordering::Relaxed) + bytes;
    MOST.fetch_max(now, Ordering::Relaxed);
}

// SAFETY: every call goes to the system's allocator unchanged; counting does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 1);
        // SAFETY: the caller's promise about `layout` is the one that is asked for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 1);
        // SAFETY: as in `alloc`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count(layout.size(), -1);
        count(new_size, 1);
        // SAFETY: the pointer came from the system's allocator, with this layout.
        unsafe { System.realloc(pointer, layout, new_size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(layout.size(), -1);
        // SAFETY: as in `realloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// Bytes in use.
pub(crate) fn in_use() -> isize {
    IN_USE.load(Ordering::Relaxed)
}

/// The most bytes in use at once since the call before.
pub(crate) fn most_in_use() -> isize {
    MOST.swap(in_use(), Ordering::Relaxed)
}
