//! Work spread over the threads of rayon.
//!
//! Work is cut at borders that do not depend on the number of threads, and nothing is summed across a border here, so
//! that one thread gives the same bits as many.

/// Bytes read and written below which work stays on its thread. One thread moves them in about 160 µs at 25 GB/s;
/// handing work to threads that sleep was measured at 30 to 50 µs in the median and 6 µs at best, on two busy cores.
const WORTH_THREADS: usize = 4 << 20;

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
    num_bytes >= WORTH_THREADS && rayon::current_num_threads() > 1
}

/// Cuts `work` into pieces of at most `max_items` items and runs them on all threads, in any order.
pub(crate) fn for_each<W: Divide>(work: W, max_items: usize, run: &(impl Fn(W) + Sync)) {
    let len = work.len();
    if len <= max_items.max(1) {
        return run(work);
    }
    let (left, right) = work.split_at(len.div_ceil(2));
    rayon::join(|| for_each(left, max_items, run), || for_each(right, max_items, run));
}

#[cfg(test)]
mod tests {
    use super::*;

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
            for_each(items.as_mut_slice(), max_items, &|piece: &mut [u32]| {
                assert!(piece.len() <= max_items.max(1));
                piece.iter_mut().for_each(|item| *item += 1);
            });
            assert_eq!(items, vec![1; len]);
        }
    }

    #[test]
    fn small_work_stays_on_its_thread() {
        assert!(!worth_threads(WORTH_THREADS - 1));
        let pool = |threads| rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        assert!(!pool(1).install(|| worth_threads(WORTH_THREADS)));
        assert!(pool(2).install(|| worth_threads(WORTH_THREADS)));
    }
}
