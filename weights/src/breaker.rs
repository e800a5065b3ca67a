//! Circuit breaker: leaves a failing store alone, then tries it with a few fetches.
//!
//! ```text
//!             `failures` in a row                 `open_ms` after the last failure
//!   closed ─────────────────────────► open ─────────────────────────────────────────► half-open
//!      ▲                               ▲                                               │  │
//!      │                               └───────────────── one failure ─────────────────┘  │
//!      └──────────────────────────────────── `successes` in a row ────────────────────────┘
//! ```
//!
//! Whoever is let through has a permit of that period. The outcome of a permit of an earlier period says nothing about
//! the store of now and is not counted, except that a failure while open keeps it open for longer.

use std::time::Duration;

use crate::config::BreakerConfig;

/// Whether fetches are let through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum BreakerState {
    /// All are.
    Closed = 1,
    /// None is.
    Open = 2,
    /// As many as could close it are.
    HalfOpen = 3,
}

impl BreakerState {
    /// The number that telemetry shows.
    #[must_use]
    pub const fn number(self) -> u8 {
        self as u8
    }
}

/// Leave to fetch, for the period in which it was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Permit {
    period: u64,
}

/// What a fetch says about the health of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Success,
    Failure,
    /// Nothing: it was cancelled, or the artifact was at fault.
    Neither,
}

/// The breaker is open: try again after so long; zero while the trials are running.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) retry_in: Duration,
}

#[derive(Debug)]
pub(crate) struct Breaker {
    config: BreakerConfig,
    state: BreakerState,
    /// Grows with every change of state.
    period: u64,
    /// In a row.
    failures: u32,
    /// In a row, while half-open.
    successes: u32,
    /// Permits of this half-open period without a verdict.
    trials: u32,
    open_until: Duration,
}

impl Breaker {
    pub(crate) fn new(config: BreakerConfig) -> Self {
        let (state, open_until) = (BreakerState::Closed, Duration::ZERO);
        Self { config, state, period: 0, failures: 0, successes: 0, trials: 0, open_until }
    }

    pub(crate) fn state(&self) -> BreakerState {
        self.state
    }

    pub(crate) fn failures(&self) -> u32 {
        self.failures
    }

    /// Asks to fetch. Every permit must come back through [`Self::record`].
    pub(crate) fn allow(&mut self, now: Duration) -> Result<Permit, Refused> {
        if self.state == BreakerState::Open {
            if now < self.open_until {
                return Err(Refused { retry_in: self.open_until - now });
            }
            self.enter(BreakerState::HalfOpen);
            self.failures = 0;
        }
        if self.state == BreakerState::HalfOpen {
            // More trials than could close it would only be more load on a store that is perhaps still down.
            if self.trials.saturating_add(self.successes) >= self.config.successes {
                return Err(Refused { retry_in: Duration::ZERO });
            }
            self.trials += 1;
        }
        Ok(Permit { period: self.period })
    }

    /// Whether a permit that waited in a queue still holds; it is renewed when it does.
    pub(crate) fn confirm(&self, permit: Permit, now: Duration) -> Result<Permit, Refused> {
        match self.state {
            BreakerState::Closed => Ok(Permit { period: self.period }),
            BreakerState::HalfOpen if permit.period == self.period => Ok(permit),
            BreakerState::HalfOpen => Err(Refused { retry_in: Duration::ZERO }),
            BreakerState::Open => Err(Refused { retry_in: self.open_until.saturating_sub(now) }),
        }
    }

    /// Takes a permit back.
    pub(crate) fn record(&mut self, permit: Permit, verdict: Verdict, now: Duration) {
        let is_current = permit.period == self.period;
        match (self.state, verdict) {
            (BreakerState::Open, Verdict::Failure) => self.open_until = self.until(now),
            (BreakerState::Closed, Verdict::Success) if is_current => self.failures = 0,
            (BreakerState::Closed, Verdict::Failure) if is_current => {
                self.failures += 1;
                if self.failures >= self.config.failures {
                    self.open(now);
                }
            }
            (BreakerState::HalfOpen, Verdict::Success) if is_current => {
                self.trials -= 1;
                self.successes += 1;
                if self.successes >= self.config.successes {
                    self.enter(BreakerState::Closed);
                }
            }
            (BreakerState::HalfOpen, Verdict::Failure) if is_current => {
                self.failures = 1;
                self.open(now);
            }
            (BreakerState::HalfOpen, Verdict::Neither) if is_current => self.trials -= 1,
            _ => {}
        }
    }

    fn open(&mut self, now: Duration) {
        self.enter(BreakerState::Open);
        self.open_until = self.until(now);
    }

    fn until(&self, now: Duration) -> Duration {
        now.saturating_add(Duration::from_millis(self.config.open_ms)).max(self.open_until)
    }

    fn enter(&mut self, state: BreakerState) {
        self.state = state;
        self.period += 1;
        (self.successes, self.trials) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use BreakerState::{Closed, HalfOpen, Open};
    use Verdict::{Failure, Neither, Success};

    const MS: Duration = Duration::from_millis(1);

    fn at(ms: u32) -> Duration {
        MS * ms
    }

    fn breaker() -> Breaker {
        Breaker::new(BreakerConfig { failures: 3, open_ms: 30_000, successes: 2 })
    }

    /// One fetch at a time: when it asks, and its verdict, or none when it is to be refused; and the state after it.
    #[track_caller]
    fn check(steps: &[(u32, Option<Verdict>, BreakerState)]) {
        let mut breaker = breaker();
        for (index, &(ms, verdict, state)) in steps.iter().enumerate() {
            let permit = breaker.allow(at(ms));
            match (permit, verdict) {
                (Ok(permit), Some(verdict)) => breaker.record(permit, verdict, at(ms)),
                (Err(_), None) => {}
                (permit, verdict) => panic!("step {index}: {permit:?}, expected {verdict:?}"),
            }
            assert_eq!(breaker.state(), state, "step {index}");
        }
    }

    #[test]
    fn three_failures_in_a_row_open_it_for_thirty_seconds() {
        let f = Some(Failure);
        check(&[(0, f, Closed), (1, f, Closed), (2, f, Open), (3, None, Open), (30_001, None, Open)]);
        check(&[(0, f, Closed), (0, f, Closed), (0, Some(Success), Closed), (0, f, Closed), (0, f, Closed)]);
        check(&[(0, f, Closed), (0, f, Closed), (0, Some(Neither), Closed), (0, f, Open)]);
        check(&[(0, Some(Neither), Closed), (0, Some(Neither), Closed), (0, Some(Neither), Closed)]);
    }

    #[test]
    fn two_successes_close_it_and_one_failure_opens_it_again() {
        let (f, s, n) = (Some(Failure), Some(Success), Some(Neither));
        let opened = [(0, f, Closed), (1, f, Closed), (2, f, Open)];
        check(&[&opened[..], &[(30_002, s, HalfOpen), (30_002, s, Closed), (30_003, f, Closed)]].concat());
        check(&[&opened[..], &[(30_002, f, Open), (60_001, None, Open), (60_002, s, HalfOpen)]].concat());
        check(&[&opened[..], &[(30_002, s, HalfOpen), (30_003, f, Open), (60_002, None, Open)]].concat());
        check(&[&opened[..], &[(30_002, n, HalfOpen), (30_002, n, HalfOpen), (30_002, s, HalfOpen)]].concat());
        // Closed again, it takes three failures once more.
        check(&[&opened[..], &[(30_002, s, HalfOpen), (30_002, s, Closed), (0, f, Closed), (0, f, Closed)]].concat());
    }

    fn opened() -> Breaker {
        let mut breaker = breaker();
        for _ in 0..3 {
            let permit = breaker.allow(at(0)).unwrap();
            breaker.record(permit, Failure, at(0));
        }
        breaker
    }

    #[test]
    fn half_open_lets_as_many_through_as_could_close_it() {
        let mut breaker = opened();
        let first = breaker.allow(at(30_000)).unwrap();
        let second = breaker.allow(at(30_000)).unwrap();
        assert_eq!(breaker.allow(at(30_000)), Err(Refused { retry_in: Duration::ZERO }));
        breaker.record(first, Success, at(30_001));
        assert!(breaker.allow(at(30_001)).is_err(), "one success and one trial are two");
        breaker.record(second, Neither, at(30_001));
        assert!(breaker.allow(at(30_001)).is_ok(), "a trial without a verdict is replaced");
    }

    #[test]
    fn outcomes_of_an_earlier_period_are_not_counted() {
        let mut breaker = breaker();
        let permits: Vec<Permit> = (0..6).map(|_| breaker.allow(at(0)).unwrap()).collect();
        for &permit in &permits[..3] {
            breaker.record(permit, Failure, at(0));
        }
        assert_eq!(breaker.state(), Open);
        breaker.record(permits[3], Success, at(1));
        assert_eq!(breaker.state(), Open);
        breaker.record(permits[4], Failure, at(10_000));
        assert_eq!(breaker.allow(at(30_000)), Err(Refused { retry_in: at(10_000) }), "it stays open for longer");
        let trial = breaker.allow(at(40_000)).unwrap();
        breaker.record(permits[5], Failure, at(40_000));
        assert_eq!(breaker.state(), HalfOpen);
        breaker.record(trial, Success, at(40_000));
        let trial = breaker.allow(at(40_000)).unwrap();
        breaker.record(trial, Success, at(40_000));
        assert_eq!(breaker.state(), Closed);
        breaker.record(permits[5], Failure, at(40_001));
        assert_eq!(breaker.failures(), 0);
    }

    #[test]
    fn a_permit_that_waited_holds_in_its_period_and_while_closed() {
        let mut breaker = breaker();
        let early = breaker.allow(at(0)).unwrap();
        assert_eq!(breaker.confirm(early, at(0)), Ok(early));
        for _ in 0..3 {
            let permit = breaker.allow(at(0)).unwrap();
            breaker.record(permit, Failure, at(0));
        }
        assert_eq!(breaker.confirm(early, at(1_000)), Err(Refused { retry_in: at(29_000) }));
        let trial = breaker.allow(at(30_000)).unwrap();
        assert!(breaker.confirm(early, at(30_000)).is_err() && breaker.confirm(trial, at(30_000)).is_ok());
        breaker.record(trial, Success, at(30_000));
        let trial = breaker.allow(at(30_000)).unwrap();
        breaker.record(trial, Success, at(30_000));
        let renewed = breaker.confirm(early, at(30_000)).unwrap();
        breaker.record(renewed, Failure, at(30_000));
        assert_eq!(breaker.failures(), 1, "the renewed permit is one of this period");
    }

    #[test]
    fn states_have_their_numbers() {
        assert_eq!([Closed, Open, HalfOpen].map(BreakerState::number), [1, 2, 3]);
    }
}
