//! What is captured is a hypothesis: when it is tested again, and what a test says of the replays before it.
//!
//! A test records the region once more, right before a replay, and compares the recording with the captured one; nothing
//! runs. Where they agree, that replay computes what the region would, and so did those since the last test, unless a
//! number moved and moved back. Where they differ, nothing is lost when nothing was replayed since the last test but the
//! replay right after it.

use std::time::Duration;

use leyline::model::HostNumbers;

use super::reason::Refusal;

/// Replays between tests of a region that promises to read no number that moves.
const PROMISED_DISTANCE: u64 = 512;

/// Replays that a later recording did not confirm.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{num_replays} replays since the last recording that agreed are not confirmed: {refusal}")]
pub struct Stale {
    /// Replays since the last recording that agreed, at least 1.
    pub num_replays: u64,
    /// What the last recording showed.
    pub refusal: Refusal,
}

/// How often captured steps were tested, and what that took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GraphTests {
    /// Tests so far.
    pub num_tests: u64,
    /// Host time of all of them.
    pub time: Duration,
}

/// Whether what was captured is still what the region does, as far as it was tested.
#[derive(Debug)]
pub(crate) struct Hypothesis {
    promise: HostNumbers,
    /// Whether something outside of the replays may have changed it.
    is_doubted: bool,
    /// Replays since the last test, the one that it was made for included.
    num_since: u64,
    /// Replays from one test to the next.
    distance: u64,
}

impl Hypothesis {
    /// Of a new capture, which is tested before its first replay; a promise may wait where somebody else is going to record
    /// the region soon.
    pub(crate) fn new(promise: HostNumbers, is_recorded_soon: bool) -> Self {
        let distance = match promise {
            HostNumbers::MayMove => 1,
            HostNumbers::Fixed => PROMISED_DISTANCE,
        };
        let is_doubted = promise == HostNumbers::MayMove || !is_recorded_soon;
        Self { promise, is_doubted, num_since: 0, distance }
    }

    /// Whether it is to be tested before the next replay.
    pub(crate) fn is_due(&self) -> bool {
        self.is_doubted || self.num_since >= self.distance
    }

    /// Notes a replay.
    pub(crate) fn replayed(&mut self) {
        self.num_since += 1;
    }

    /// Others had their turn: what promises nothing is tested before the next replay.
    pub(crate) fn doubt(&mut self) {
        self.is_doubted |= self.promise == HostNumbers::MayMove;
    }

    /// Whether somebody who builds on the replays has to wait for a test.
    pub(crate) fn is_open(&self) -> bool {
        self.promise == HostNumbers::MayMove && self.num_untested() > 0
    }

    /// Replays that no test was made for since the last one.
    pub(crate) fn num_untested(&self) -> u64 {
        self.num_since.saturating_sub(1)
    }

    /// Takes the outcome of a test. Tests that were due by distance are followed by one at twice the distance.
    pub(crate) fn judge(&mut self, outcome: Result<(), Refusal>) -> Result<(), Judgment> {
        if self.num_since >= self.distance {
            self.distance = self.distance.saturating_mul(2);
        }
        self.is_doubted = false;
        let num_replays = self.num_untested();
        self.num_since = 0;
        match outcome {
            Ok(()) => Ok(()),
            Err(refusal) if num_replays == 0 => Err(Judgment::InTime(refusal)),
            Err(refusal) => Err(Judgment::TooLate(Stale { num_replays, refusal })),
        }
    }
}

/// A hypothesis that failed its test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Judgment {
    /// Nothing was replayed since the last test but what it was made for.
    InTime(Refusal),
    /// Something was.
    TooLate(Stale),
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Replays before which each test is made, of so many in each of so many stretches.
    fn tests(promise: HostNumbers, num_stretches: usize, num_replays: usize) -> Vec<Vec<usize>> {
        tests_of(Hypothesis::new(promise, false), num_stretches, num_replays)
    }

    fn tests_of(mut hypothesis: Hypothesis, num_stretches: usize, num_replays: usize) -> Vec<Vec<usize>> {
        let stretch = |_| {
            let mut tested = Vec::new();
            for replay in 0..num_replays {
                if hypothesis.is_due() {
                    hypothesis.judge(Ok(())).unwrap();
                    tested.push(replay);
                }
                hypothesis.replayed();
            }
            if hypothesis.is_open() {
                hypothesis.judge(Ok(())).unwrap();
                tested.push(num_replays);
            }
            hypothesis.doubt();
            tested
        };
        (0..num_stretches).map(stretch).collect()
    }

    #[test]
    fn a_region_that_promises_nothing_is_tested_at_both_ends_of_a_stretch_and_at_growing_distances() {
        let expected: [&[usize]; 4] = [&[0, 1, 3, 7, 15, 20], &[0, 16, 20], &[0, 20], &[0, 20]];
        assert_eq!(tests(HostNumbers::MayMove, 4, 20), expected);
        assert_eq!(tests(HostNumbers::MayMove, 2, 1), [vec![0], vec![0]]);
    }

    #[test]
    fn a_promise_is_tested_at_growing_distances_alone() {
        let expected: [&[usize]; 4] = [&[0, 512], &[536], &[], &[584]];
        assert_eq!(tests(HostNumbers::Fixed, 4, 1000), expected);
        let num_tests: usize = tests(HostNumbers::Fixed, 1000, 100).iter().map(Vec::len).sum();
        assert_eq!(num_tests, 8, "of 100 000 replays");
        let soon = Hypothesis::new(HostNumbers::Fixed, true);
        assert_eq!(tests_of(soon, 2, 600), [vec![512], vec![]], "the compiler records it before");
        assert!(Hypothesis::new(HostNumbers::MayMove, true).is_due());
    }

    #[test]
    fn a_difference_is_in_time_only_where_nothing_was_replayed_since_the_last_test() {
        let refusal = || Refusal::Empty;
        for promise in [HostNumbers::MayMove, HostNumbers::Fixed] {
            let mut hypothesis = Hypothesis::new(promise, false);
            assert_eq!(hypothesis.judge(Err(refusal())), Err(Judgment::InTime(refusal())));
            let mut hypothesis = Hypothesis::new(promise, false);
            hypothesis.judge(Ok(())).unwrap();
            hypothesis.replayed();
            assert_eq!(hypothesis.judge(Err(refusal())), Err(Judgment::InTime(refusal())), "that replay was tested");
            hypothesis.judge(Ok(())).unwrap();
            for _ in 0..3 {
                hypothesis.replayed();
            }
            let stale = Stale { num_replays: 2, refusal: refusal() };
            assert_eq!(hypothesis.judge(Err(refusal())), Err(Judgment::TooLate(stale)));
            assert_eq!(hypothesis.num_untested(), 0);
        }
    }
}
