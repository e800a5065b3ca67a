//! Work spread over the threads of the tensor library, which wait awake for a while: others would have to share cores with them.
//!
//! Work is cut at borders that do not depend on the number of threads, and nothing is summed across a border here, so
//! that one thread gives the same bits as many.

use std::sync::{Mutex, PoisonError};

use candle_core::utils::barrier_pool;

/// Bytes read and written below which work stays on its thread. One thread moves them in about 80 µs at 25 GB/s;
/// handing work to threads that sleep was measured at 30 to 50 µs in the median, on two busy cores.
const WORTH_THREADS: usize = 2 << 20;

/// Work on neighboring items.
pub(crate) trait Divide: Send + Sized {
    /// Number of items.
    fn len(&self) -> usize;

    /// The work on the items before `index`, and that on the others.
    fn split_at(self, index: usize) -> (Self, Self);
}

/// Whether work that moves so many bytes is to be spread over threads. With one thread it never is, so that
/// nothing but the call of this function is paid.
pub(crate) fn worth_threads(num_bytes: usize) -> bool {
    // In this order: asking for the number of threads starts them when nothing has before.
    num_bytes >= WORTH_THREADS && num_threads() > 1
}

/// Cuts `work` into pieces of `max_items` items and runs them on all threads, in any order. `run` spreads nothing itself.
pub(crate) fn for_each<W: Divide>(work: W, max_items: usize, run: &(impl Fn(W) + Sync)) {
    let rest = Mutex::new(Some(work));
    let next = || {
        let mut rest = rest.lock().unwrap_or_else(PoisonError::into_inner);
        let work = rest.take()?;
        if work.len() <= max_items.max(1) {
            return Some(work);
        }
        let (piece, others) = work.split_at(max_items.max(1));
        *rest = Some(others);
        Some(piece)
    };
    on_all_threads(&|| {
        while let Some(piece) = next() {
            run(piece);
        }
    });
}

fn num_threads() -> usize {
    #[cfg(test)]
    if let Some(num_threads) = tests::NUM_THREADS.get() {
        return num_threads;
    }
    barrier_pool().n_workers() + 1
}

fn on_all_threads(work: &(impl Fn() + Sync)) {
    #[cfg(test)]
    if let Some(num_threads) = tests::NUM_THREADS.get() {
        return std::thread::scope(|scope| (0..num_threads).for_each(|_| drop(scope.spawn(work))));
    }
    barrier_pool().execute_chunked(num_threads(), |range| range.for_each(|_| work()));
}

#[cfg(test)]
pub(crate) use tests::with_threads;

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        /// Threads of a test; absent where it takes those of the tensor library, of which there may be one.
        pub(super) static NUM_THREADS: Cell<Option<usize>> = const { Cell::new(None) };
    }

    /// What `work` gives where it is spread over so many threads.
    pub(crate) fn with_threads<R>(num_threads: usize, work: impl FnOnce() -> R) -> R {
        NUM_THREADS.set(Some(num_threads));
        let result = work();
        NUM_THREADS.set(None);
        result
    }

    impl Divide for &mut [u32] {
        fn len(&self) -> usize {
            <[u32]>::len(self)
        }

        fn split_at(self, index: usize) -> (Self, Self) {
            self.split_at_mut(index)
        }
    }

    #[test]
    fn every_item_is_met_once_in_pieces_of_the_size_asked_for() {
        for (len, max_items) in [(0, 4), (1, 0), (4, 4), (5, 4), (1000, 7)] {
            let mut items = vec![0_u32; len];
            let count = |items: &mut [u32]| {
                for_each(items, max_items, &|piece: &mut [u32]| {
                    assert!(piece.len() <= max_items.max(1));
                    piece.iter_mut().for_each(|item| *item += 1);
                });
            };
            count(&mut items);
            with_threads(3, || count(&mut items));
            assert_eq!(items, vec![2; len]);
        }
    }

    #[test]
    fn small_work_stays_on_its_thread() {
        assert!(!worth_threads(WORTH_THREADS - 1));
        assert!(!with_threads(1, || worth_threads(WORTH_THREADS)));
        assert!(with_threads(2, || worth_threads(WORTH_THREADS)));
    }
}
