//! Work spread over the threads of the tensor library.

use std::sync::{Mutex, PoisonError};

use candle_core::utils::barrier_pool;

/// Runs `run` on the chunks of `numbers`, of `len` numbers but for the last, and their indices: in order on this thread, or on all
/// threads of the tensor library in any order. `run` spreads nothing itself.
pub(crate) fn for_each_chunk(
    numbers: &mut [f32],
    len: usize,
    is_worth_threads: bool,
    run: &(impl Fn(usize, &mut [f32]) + Sync),
) {
    if !is_worth_threads {
        return numbers.chunks_mut(len).enumerate().for_each(|(index, chunk)| run(index, chunk));
    }
    let num_threads = barrier_pool().n_workers() + 1;
    hand_out(numbers, len, run, |work| {
        barrier_pool().execute_chunked(num_threads, |range| range.for_each(|_| work()));
    });
}

/// `on_threads` has each of its threads do the work that it is given.
fn hand_out(
    numbers: &mut [f32],
    len: usize,
    run: &(impl Fn(usize, &mut [f32]) + Sync),
    on_threads: impl FnOnce(&(dyn Fn() + Sync)),
) {
    let chunks = Mutex::new(numbers.chunks_mut(len).enumerate());
    let next = || chunks.lock().unwrap_or_else(PoisonError::into_inner).next();
    on_threads(&|| {
        while let Some((index, chunk)) = next() {
            run(index, chunk);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_take_each_number_once() {
        const CHUNK: usize = 1000;
        let run = |chunk_index: usize, chunk: &mut [f32]| {
            let numbers = chunk.iter_mut().enumerate();
            numbers.for_each(|(index, number)| *number += (chunk_index * CHUNK + index) as f32);
        };
        for count in [0, 1, CHUNK, 5 * CHUNK + 3] {
            let expected: Vec<f32> = (0..count).map(|index| 1.0 + index as f32).collect();
            let mut found = vec![1.0_f32; count];
            hand_out(&mut found, CHUNK, &run, |work| {
                std::thread::scope(|scope| (0..3).for_each(|_| drop(scope.spawn(work))));
            });
            assert_eq!(found, expected);
            for is_worth_threads in [false, true] {
                let mut found = vec![1.0_f32; count];
                for_each_chunk(&mut found, CHUNK, is_worth_threads, &run);
                assert_eq!(found, expected);
            }
        }
    }
}
