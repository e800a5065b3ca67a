//! Memory that one step frees and the next one asks for.

use std::hint::black_box;
use std::sync::Once;

/// Just below the largest block whose freeing teaches the allocator something.
const LARGE: usize = (32 << 20) - (64 << 10);

/// Has the process keep freed memory for the next step, up to 64 MiB, where the allocator is that of glibc; elsewhere
/// nothing changes.
///
/// That allocator gives blocks from 128 KiB on back to the system, and the next step pays for every page of them again: on the
/// CPU that was a quarter of a step of a perceptron (decision 12). It raises its bound to the largest block that it has
/// seen freed, of up to 32 MiB, and keeps twice as much. The block that teaches it is never touched, and costs no memory.
pub(crate) fn keep_freed() {
    static KEPT: Once = Once::new();
    KEPT.call_once(|| {
        let mut block = Vec::<u8>::new();
        // Where there is no room for it nothing is kept.
        if block.try_reserve_exact(LARGE).is_ok() {
            drop(black_box(block));
        }
    });
}
