//! One caller, one worker, one request at a time; an answer that nobody waits for any more is dropped.
//!
//! ```text
//!  caller   ask ─► generation g ─► wait(g, time) ─► the answer of g, or none: then g is given up
//!  worker   next ◄─ (g, request) ─► answer(g): taken when g is still waited for, else dropped and counted
//! ```
//! There is one place for a request and one for an answer: nothing grows, whatever either side does. Model-checked by
//! `cargo test -p esper-safety --features model-check --lib exchange`.

use std::time::Duration;

use crate::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, wait_while};

/// The two ends are clones of one exchange.
#[derive(Debug)]
pub(crate) struct Exchange<Q, A>(Arc<Shared<Q, A>>);

#[derive(Debug)]
struct Shared<Q, A> {
    state: Mutex<State<Q, A>>,
    /// There is a request, or there will be none.
    asked: Condvar,
    /// There is an answer.
    answered: Condvar,
}

#[derive(Debug)]
struct State<Q, A> {
    /// Of the last request.
    generation: u64,
    /// The generation whose answer somebody waits for.
    wanted: Option<u64>,
    request: Option<Q>,
    answer: Option<A>,
    /// From the time that the worker takes a request until its answer is taken, or, where it was late, until it asks for the next.
    is_working: bool,
    is_closed: bool,
    num_late: u64,
}

impl<Q, A> Clone for Exchange<Q, A> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<Q, A> Exchange<Q, A> {
    pub(crate) fn new() -> Self {
        let state = State {
            generation: 0,
            wanted: None,
            request: None,
            answer: None,
            is_working: false,
            is_closed: false,
            num_late: 0,
        };
        Self(Arc::new(Shared { state: Mutex::new(state), asked: Condvar::new(), answered: Condvar::new() }))
    }

    /// Hands over a request and returns its generation; gives it back while the worker is still at an earlier one.
    pub(crate) fn ask(&self, request: Q) -> Result<u64, Q> {
        let mut state = self.lock();
        if state.is_working || state.is_closed {
            return Err(request);
        }
        state.generation += 1;
        (state.request, state.answer, state.wanted) = (Some(request), None, Some(state.generation));
        self.0.asked.notify_one();
        Ok(state.generation)
    }

    /// The answer of a generation; none once that took longer than `time`, and then its answer will be dropped.
    pub(crate) fn wait(&self, generation: u64, time: Duration) -> Option<A> {
        let state = self.lock();
        let is_open = |state: &mut State<Q, A>| state.wanted == Some(generation) && state.answer.is_none();
        let mut state = wait_while(&self.0.answered, state, time, is_open);
        if state.wanted != Some(generation) {
            return None;
        }
        // One that was not begun is withdrawn.
        (state.wanted, state.request) = (None, None);
        state.answer.take()
    }

    /// The next request; none when there will be no more.
    pub(crate) fn next(&self) -> Option<(u64, Q)> {
        let mut state = self.lock();
        state.is_working = false;
        loop {
            if state.is_closed {
                return None;
            }
            if let Some(request) = state.request.take() {
                state.is_working = true;
                return Some((state.generation, request));
            }
            state = self.0.asked.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Hands over an answer; whether somebody waits for it. If not, it is dropped, and the worker counts as busy until it
    /// asks for the [`next`](Self::next) request.
    pub(crate) fn answer(&self, generation: u64, answer: A) -> bool {
        let mut state = self.lock();
        if state.wanted != Some(generation) {
            state.num_late += 1;
            return false;
        }
        (state.answer, state.is_working) = (Some(answer), false);
        self.0.answered.notify_one();
        true
    }

    /// Answers that were dropped.
    pub(crate) fn num_late(&self) -> u64 {
        self.lock().num_late
    }

    /// There will be no more requests; whether the worker is still at one.
    pub(crate) fn close(&self) -> bool {
        let mut state = self.lock();
        state.is_closed = true;
        self.0.asked.notify_one();
        state.is_working
    }

    /// A panic while it is held leaves a state that is whole: each change is one assignment.
    fn lock(&self) -> MutexGuard<'_, State<Q, A>> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
#[cfg(feature = "model-check")]
mod tests {
    use shuttle::scheduler::{PctScheduler, RandomScheduler};
    use shuttle::{Config, Runner, thread};

    use super::*;

    const SEED: u64 = 16;
    const NUM_SCHEDULES: usize = 10_000;
    const NUM_CALLS: u64 = 5;

    /// Runs `model` under random schedules, and under schedules of few but unlucky preemptions.
    fn explore(model: fn()) {
        Runner::new(RandomScheduler::new_from_seed(SEED, NUM_SCHEDULES), Config::default()).run(model);
        for num_preemptions in 1..=3 {
            let scheduler = PctScheduler::new_from_seed(SEED, num_preemptions, NUM_SCHEDULES);
            Runner::new(scheduler, Config::default()).run(model);
        }
    }

    /// A worker that answers each request with the request, and a caller that gives up whenever the schedule says so.
    fn a_caller_and_a_worker() {
        let exchange = Exchange::<u64, u64>::new();
        let worker = {
            let exchange = exchange.clone();
            thread::spawn(move || {
                let (mut num_taken, mut num_dropped) = (0, 0);
                while let Some((generation, request)) = exchange.next() {
                    thread::yield_now();
                    match exchange.answer(generation, request) {
                        true => num_taken += 1,
                        false => num_dropped += 1,
                    }
                }
                (num_taken, num_dropped)
            })
        };
        let (mut num_asked, mut num_got, mut last) = (0, 0, 0);
        for call in 1..=NUM_CALLS {
            match exchange.ask(call) {
                Ok(generation) => {
                    assert!(generation > last, "generations grow");
                    (last, num_asked) = (generation, num_asked + 1);
                    if let Some(answer) = exchange.wait(generation, Duration::ZERO) {
                        assert_eq!(answer, call, "the answer of another call was taken for that of this one");
                        num_got += 1;
                    }
                    // What was given up stays so.
                    assert_eq!(exchange.wait(generation, Duration::ZERO), None);
                }
                Err(request) => assert_eq!(request, call, "a request that is not taken is given back"),
            }
            thread::yield_now();
        }
        exchange.close();
        let (num_taken, num_dropped) = worker.join().unwrap();
        assert_eq!((num_taken, exchange.num_late()), (num_got, num_dropped), "taken is got, and dropped is counted");
        // What was neither was withdrawn before it was begun.
        assert!(num_taken + num_dropped <= num_asked);
    }

    #[test]
    fn no_late_answer_is_taken_and_nobody_waits_for_ever() {
        explore(a_caller_and_a_worker);
    }

    #[test]
    fn a_caller_that_leaves_ends_the_worker_wherever_it_is() {
        explore(|| {
            let exchange = Exchange::<u64, u64>::new();
            let worker = {
                let exchange = exchange.clone();
                thread::spawn(move || {
                    while let Some((generation, request)) = exchange.next() {
                        exchange.answer(generation, request);
                    }
                })
            };
            let generation = exchange.ask(1);
            if shuttle::rand::Rng::gen_bool(&mut shuttle::rand::thread_rng(), 0.5) {
                generation.ok().and_then(|generation| exchange.wait(generation, Duration::ZERO));
            }
            exchange.close();
            assert_eq!(exchange.ask(2), Err(2), "nothing is asked of a worker that was told to end");
            worker.join().unwrap();
        });
    }
}
