//! Which counters of executions the fuzzer looks at.
//!
//! After every execution it goes through those of all the code, hundreds of thousands, where a decoder has some hundred: most of
//! the time of a fast one. It is told of those alone that what is known so far reaches, and of their neighbours. A run that goes
//! on from what another has found knows more.

use std::slice;
use std::sync::OnceLock;

/// Counters that are watched together; those of a function or two.
const BLOCK: usize = 1024;

/// Addresses of all counters, and of as many pairs of a place in the code and its kind.
static COUNTERS: OnceLock<[usize; 2]> = OnceLock::new();
static PLACES: OnceLock<usize> = OnceLock::new();

// The linker is told by `build.rs` that calls of these are calls of `__wrap_…`, and what `__real_…` is.
unsafe extern "C" {
    fn __real___sanitizer_cov_8bit_counters_init(start: *mut u8, stop: *mut u8);
    fn __real___sanitizer_cov_pcs_init(start: *const [usize; 2], stop: *const [usize; 2]);
}

#[unsafe(no_mangle)]
extern "C" fn __wrap___sanitizer_cov_8bit_counters_init(start: *mut u8, stop: *mut u8) {
    COUNTERS.set([start as usize, stop as usize]).ok();
}

#[unsafe(no_mangle)]
extern "C" fn __wrap___sanitizer_cov_pcs_init(start: *const [usize; 2], _stop: *const [usize; 2]) {
    PLACES.set(start as usize).ok();
}

/// Calls `run`, and has the blocks of counters watched that it has reached, with one before and one after each.
pub fn reached_by(run: impl FnOnce()) {
    let (Some(&[start, stop]), Some(&places)) = (COUNTERS.get(), PLACES.get()) else { return };
    // SAFETY: the bytes that the compiler laid out for counting, of which no other thread runs code yet.
    let counters = || unsafe { slice::from_raw_parts_mut(start as *mut u8, stop - start) };
    counters().fill(0);
    run();
    let reached: Vec<bool> = counters().chunks(BLOCK).map(|block| block.iter().any(|&count| count > 0)).collect();
    let is_watched = |block: usize| reached[block.saturating_sub(1)..reached.len().min(block + 2)].contains(&true);
    let mut first = 0;
    for block in 0..=reached.len() {
        if block < reached.len() && is_watched(block) {
            continue;
        }
        let (from, to) = (first * BLOCK, (block * BLOCK).min(stop - start));
        if from < to {
            // SAFETY: a part of the counters, and their places: the fuzzer takes many such parts.
            unsafe {
                __real___sanitizer_cov_8bit_counters_init((start + from) as *mut u8, (start + to) as *mut u8);
                let places = places as *const [usize; 2];
                __real___sanitizer_cov_pcs_init(places.add(from), places.add(to));
            }
        }
        first = block + 1;
    }
}
