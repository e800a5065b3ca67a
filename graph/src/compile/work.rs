//! What passes do, counted in tests: how it grows with programs is a promise, and a clock would tell of the machine as well.

#[cfg(test)]
thread_local! {
    static STEPS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// So many things were looked at or made, one by one.
#[inline]
pub(super) fn did(num_steps: usize) {
    #[cfg(test)]
    STEPS.set(STEPS.get() + num_steps);
    #[cfg(not(test))]
    let _ = num_steps;
}

/// What was done since the last time, by this thread.
#[cfg(test)]
pub(super) fn taken() -> usize {
    STEPS.take()
}
