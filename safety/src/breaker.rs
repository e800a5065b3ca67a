//! Circuit breaker: leaves alone what fails, then tries it with a few calls.
//!
//! ```text
//!             `failures` in a row                 `open_ms` after the last failure, longer each time
//!   closed ─────────────────────────► open ─────────────────────────────────────────► half-open
//!      ▲                               ▲                                               │  │
//!      │                               └───────────────── one failure ─────────────────┘  │
//!      └──────────────────────────────────── `successes` in a row ────────────────────────┘
//! ```
//!
//! Whoever is let through has a permit of that period. The outcome of a permit of an earlier period says nothing about
//! the present and is not counted, except that a failure while open keeps it open for longer. A call that is refused is no
//! failure: however often it is asked, it is tried again when its time is over.
//!
//! ```
//! use std::time::Duration;
//!
//! use esper_safety::breaker::{Breaker, BreakerConfig, BreakerState, Verdict};
//!
//! let at = Duration::from_millis;
//! let mut breaker = Breaker::new(BreakerConfig { failures: 1, open_ms: 100, ..BreakerConfig::default() });
//! let permit = breaker.allow(at(0)).unwrap();
//! breaker.record(permit, Verdict::Failure, at(5));
//! assert_eq!(breaker.allow(at(99)).unwrap_err().retry_in, at(6));
//! assert!(breaker.allow(at(105)).is_ok() && breaker.state() == BreakerState::HalfOpen);
//! ```

use std::time::Duration;

use leyline::config::ConfigIssue;
use serde::{Deserialize, Serialize};

/// A day: a longer time is a slip, not a wish.
const MAX_MS: u64 = 86_400_000;

/// When what fails is left alone, and when it is trusted again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BreakerConfig {
    /// Failures in a row that open it (count).
    pub failures: u32,
    /// How long it stays open after the last failure.
    pub open_ms: u64,
    /// Each time that a trial fails it stays open twice as long, up to this; the time does not grow where it is below `open_ms`.
    pub max_open_ms: u64,
    /// Successes in a row that close it again (count).
    pub successes: u32,
}

impl Default for BreakerConfig {
    fn default() -> Self {
        Self { failures: 3, open_ms: 30_000, max_open_ms: 30_000, successes: 2 }
    }
}

impl BreakerConfig {
    /// Everything that is wrong with the values, by keys below `section`; empty when they can be used.
    #[must_use]
    pub fn validate(&self, section: &str) -> Vec<ConfigIssue> {
        let rows = [
            ("failures", self.failures.into(), u32::MAX.into()),
            ("open_ms", self.open_ms, MAX_MS),
            ("max_open_ms", self.max_open_ms, MAX_MS),
            ("successes", self.successes.into(), u32::MAX.into()),
        ];
        let bad = rows.into_iter().filter(|(_, value, max)| !(1..=*max).contains(value));
        let issue = |(key, value, max): (&str, u64, u64)| {
            ConfigIssue::new(format!("{section}.{key}"), format!("is {value}: expected 1 to {max}"))
        };
        bad.map(issue).collect()
    }
}

/// Whether calls are let through.
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

/// Leave to call, for the period in which it was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Permit {
    period: u64,
}

/// What a call says about the health of what was called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It works.
    Success,
    /// It does not.
    Failure,
    /// Nothing: it was cancelled, say, or what was asked for was at fault.
    Neither,
}

/// The breaker is open: try again after so long; zero while the trials are running.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused {
    /// Until a trial.
    pub retry_in: Duration,
}

/// The breaker before one thing that may fail. Time is that of one monotonic clock, handed in.
#[derive(Debug)]
pub struct Breaker {
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
    /// Times that a trial failed since it was closed.
    reopened: u32,
}

impl Breaker {
    /// A closed one.
    #[must_use]
    pub fn new(config: BreakerConfig) -> Self {
        let (state, open_until) = (BreakerState::Closed, Duration::ZERO);
        Self { config, state, period: 0, failures: 0, successes: 0, trials: 0, open_until, reopened: 0 }
    }

    /// What it lets through.
    #[must_use]
    pub fn state(&self) -> BreakerState {
        self.state
    }

    /// Failures in a row (count).
    #[must_use]
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// Asks to call. Every permit must come back through [`Self::record`].
    ///
    /// # Errors
    /// [`Refused`], and for how long; being refused changes nothing.
    pub fn allow(&mut self, now: Duration) -> Result<Permit, Refused> {
        if self.state == BreakerState::Open {
            if now < self.open_until {
                return Err(Refused { retry_in: self.open_until - now });
            }
            self.enter(BreakerState::HalfOpen);
            self.failures = 0;
        }
        if self.state == BreakerState::HalfOpen {
            // More trials than could close it would only be more load on what is perhaps still down.
            if self.trials.saturating_add(self.successes) >= self.config.successes {
                return Err(Refused { retry_in: Duration::ZERO });
            }
            self.trials += 1;
        }
        Ok(Permit { period: self.period })
    }

    /// Whether a permit that waited in a queue still holds; it is renewed when it does.
    ///
    /// # Errors
    /// As [`Self::allow`].
    pub fn confirm(&self, permit: Permit, now: Duration) -> Result<Permit, Refused> {
        match self.state {
            BreakerState::Closed => Ok(Permit { period: self.period }),
            BreakerState::HalfOpen if permit.period == self.period => Ok(permit),
            BreakerState::HalfOpen => Err(Refused { retry_in: Duration::ZERO }),
            BreakerState::Open => Err(Refused { retry_in: self.open_until.saturating_sub(now) }),
        }
    }

    /// Takes a permit back.
    pub fn record(&mut self, permit: Permit, verdict: Verdict, now: Duration) {
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
                    self.reopened = 0;
                    self.enter(BreakerState::Closed);
                }
            }
            (BreakerState::HalfOpen, Verdict::Failure) if is_current => {
                self.failures = 1;
                self.reopened = self.reopened.saturating_add(1);
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
        let BreakerConfig { open_ms, max_open_ms, .. } = self.config;
        let factor = 1_u64.checked_shl(self.reopened).unwrap_or(u64::MAX);
        let open_ms = open_ms.saturating_mul(factor).min(max_open_ms.max(open_ms));
        now.saturating_add(Duration::from_millis(open_ms)).max(self.open_until)
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
        Breaker::new(BreakerConfig::default())
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
    fn it_stays_open_twice_as_long_after_each_trial_that_fails_up_to_a_bound() {
        let config = BreakerConfig { failures: 1, open_ms: 100, max_open_ms: 350, successes: 1 };
        let mut breaker = Breaker::new(config);
        let mut now = at(0);
        let fail = |breaker: &mut Breaker, now: Duration| {
            let permit = breaker.allow(now).unwrap();
            breaker.record(permit, Failure, now);
            breaker.allow(now).unwrap_err().retry_in
        };
        for expected in [100, 200, 350, 350, 350] {
            let retry_in = fail(&mut breaker, now);
            assert_eq!(retry_in, at(expected));
            now += retry_in;
        }
        let permit = breaker.allow(now).unwrap();
        breaker.record(permit, Success, now);
        assert_eq!(fail(&mut breaker, now), at(100), "a success forgets how often it failed");
        let mut many = Breaker { reopened: 200, ..Breaker::new(config) };
        assert_eq!(fail(&mut many, at(0)), at(350));
    }

    proptest::proptest! {
        /// Whatever is called when, and however it ends: refusals count for nothing, the time until a trial is bounded, and
        /// once all succeeds it is closed after a bounded time.
        #[test]
        fn no_schedule_keeps_it_open_for_longer_than_its_bound(
            config in (1_u32..4, 1_u64..50, 1_u64..200, 1_u32..4),
            calls in proptest::collection::vec((0_u32..80, 0_u8..3, proptest::bool::ANY), 1..200),
        ) {
            let (failures, open_ms, max_open_ms, successes) = config;
            let config = BreakerConfig { failures, open_ms, max_open_ms, successes };
            let longest = Duration::from_millis(max_open_ms.max(open_ms));
            let (mut breaker, mut now, mut held) = (Breaker::new(config), Duration::ZERO, Vec::new());
            for (passes_ms, verdict, is_late) in calls {
                now += at(passes_ms);
                let was = (breaker.state(), breaker.failures());
                match breaker.allow(now) {
                    Ok(permit) => held.push((permit, [Success, Failure, Neither][usize::from(verdict)])),
                    Err(refused) => {
                        proptest::prop_assert!(refused.retry_in <= longest);
                        proptest::prop_assert_eq!((breaker.state(), breaker.failures()), was, "a refusal changes nothing");
                    }
                }
                if !is_late {
                    while let Some((permit, verdict)) = held.pop() {
                        let before = breaker.state();
                        breaker.record(permit, verdict, now);
                        if (before, verdict) == (HalfOpen, Failure) {
                            // One failure of a trial is enough; that of an earlier period is none.
                            proptest::prop_assert!(breaker.state() != Closed);
                        }
                    }
                }
            }
            for (permit, _) in held {
                breaker.record(permit, Neither, now);
            }
            now += longest;
            for _ in 0..successes {
                let permit = breaker.allow(now);
                proptest::prop_assert!(permit.is_ok(), "{:?}", permit);
                breaker.record(permit.unwrap(), Success, now);
            }
            proptest::prop_assert_eq!(breaker.state(), Closed);
        }
    }

    #[test]
    fn an_unusable_value_is_named_with_its_key() {
        let config = BreakerConfig { failures: 0, open_ms: MAX_MS + 1, max_open_ms: 1, successes: 1 };
        let issues: Vec<String> = config.validate("store.breaker").iter().map(ToString::to_string).collect();
        let expected = [
            "`store.breaker.failures` is 0: expected 1 to 4294967295",
            "`store.breaker.open_ms` is 86400001: expected 1 to 86400000",
        ];
        assert_eq!(issues, expected);
    }

    #[test]
    fn states_have_their_numbers() {
        assert_eq!([Closed, Open, HalfOpen].map(BreakerState::number), [1, 2, 3]);
    }
}
