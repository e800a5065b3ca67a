//! The three runs and their numbers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kasmina::prefetch::{Artifact, KernelStore, Poll, PrefetchConfig, PrefetchError, Prefetcher, StoreError};
use leyline::clock::Clock;

use super::clients::{Asked, End, ask};
use super::store::{Latency, SimulatedStore, blueprint};
use crate::environment::Environment;
use crate::error::Error;
use crate::measure::Measurement;
use crate::result::{BenchResult, SCHEMA};

/// Sizes of the runs.
#[derive(Debug, Clone, Copy)]
struct Plan {
    num_requests: usize,
    /// Workers, and clients.
    concurrency: usize,
    latency: Latency,
    killed_after: usize,
    num_hits: usize,
}

const PLAN: Plan = Plan {
    num_requests: 256,
    concurrency: 6,
    latency: Latency { mean_ms: 45.0, deviation_ms: 8.0, seed: 7 },
    killed_after: 128,
    num_hits: 1_000,
};
const NOTES: &str = "fetch: of the store, by its own clock readings, its hashing included; latency: from the request to \
    the artifact in the client's hands; overhead: latency minus fetch of the same request; the bar for its p95 is 1 ms. \
    killed: the store fails for good once half of the fetches have begun; ends of all requests as counts, .poll: every call of \
    poll in that run, .cached.wrong: artifacts in the cache that differ from the published ones or that nobody was \
    given. hit: a request and a poll for what is cached";

/// Measures the prefetch.
///
/// # Errors
/// [`Error::BrokenPromises`] when a request ends as none should, or something wrong is cached.
pub(in crate::works) fn run(clock: &Arc<dyn Clock>) -> Result<BenchResult, Error> {
    let mut measurements = BTreeMap::new();
    healthy(&PLAN, clock, &mut measurements)?;
    killed(&PLAN, clock, &mut measurements)?;
    hits(&PLAN, clock, &mut measurements)?;
    let defaults = PrefetchConfig::default();
    let config = [
        ("requests", PLAN.num_requests.to_string()),
        ("concurrency", PLAN.concurrency.to_string()),
        ("clients", PLAN.concurrency.to_string()),
        ("store", format!("sleeps {} ± {} ms", PLAN.latency.mean_ms, PLAN.latency.deviation_ms)),
        ("store_seed", PLAN.latency.seed.to_string()),
        ("killed_after", PLAN.killed_after.to_string()),
        ("deadline_ms", defaults.deadline_ms.to_string()),
        ("breaker_failures", defaults.breaker.failures.to_string()),
    ];
    Ok(BenchResult {
        schema: SCHEMA,
        name: "prefetch".to_owned(),
        command: "cargo run --release -p esper -- bench prefetch --out DIR".to_owned(),
        notes: NOTES.to_owned(),
        environment: Environment::detect(clock.as_ref()),
        config: config.map(|(key, value)| (key.to_owned(), value)).into(),
        measurements,
        metrics: Vec::new(),
    })
}

type Measurements = BTreeMap<String, Measurement>;

fn healthy(plan: &Plan, clock: &Arc<dyn Clock>, found: &mut Measurements) -> Result<(), Error> {
    let (store, prefetcher) = open(plan, u64::MAX, clock)?;
    let asked = ask(&prefetcher, plan.num_requests, plan.concurrency, clock);
    let (mut fetches, mut latencies, mut overheads) = (Vec::new(), Vec::new(), Vec::new());
    for Asked { index, latency, end, .. } in &asked {
        let entry = &store.entries()[*index];
        match (end, entry.took()) {
            (End::Ready(artifact), Some(took)) if *artifact == entry.artifact => {
                fetches.push(ms(took));
                latencies.push(ms(*latency));
                overheads.push(ms(*latency) - ms(took));
            }
            (end, _) => return Err(broken(format!("healthy store, request {index}: {end:?}"))),
        }
    }
    wrong_in_cache(&prefetcher, &store, &asked, plan.num_requests)?;
    for (name, values) in [("fetch", fetches), ("latency", latencies), ("overhead", overheads)] {
        add(found, name, "ms", values);
    }
    Ok(())
}

fn killed(plan: &Plan, clock: &Arc<dyn Clock>, found: &mut Measurements) -> Result<(), Error> {
    let (store, prefetcher) = open(plan, plan.killed_after as u64, clock)?;
    let asked = ask(&prefetcher, plan.num_requests, plan.concurrency, clock);
    let count = |is_one: fn(&End) -> bool| asked.iter().filter(|asked| is_one(&asked.end)).count();
    let ready = count(|end| matches!(end, End::Ready(_)));
    let counts = [
        ("ready", ready),
        ("error", count(|end| matches!(end, End::Error(_)))),
        ("breaker_refused", count(|end| matches!(end, End::Refused))),
        ("timeout", count(|end| matches!(end, End::TimedOut))),
        ("hung", count(|end| matches!(end, End::Hung))),
        ("cached", prefetcher.cached().len()),
        ("cached.wrong", wrong_in_cache(&prefetcher, &store, &asked, ready)?),
    ];
    for (name, count) in counts {
        add(found, &format!("killed.{name}"), "count", vec![count as f64]);
    }
    let polls: Vec<f64> = asked.iter().flat_map(|asked| &asked.polls).map(|took| us(*took)).collect();
    let longest = polls.iter().copied().fold(0.0, f64::max);
    add(found, "killed.poll", "us", polls);
    add(found, "killed.poll.longest", "us", vec![longest]);
    for Asked { index, end, .. } in &asked {
        match end {
            End::Ready(_) | End::Refused | End::TimedOut => {}
            // What the killed store says; any other error would be one of the prefetch.
            End::Error(PrefetchError::Store(StoreError::Io(_))) => {}
            End::Error(_) | End::Hung => return Err(broken(format!("killed store, request {index}: {end:?}"))),
        }
    }
    Ok(())
}

fn hits(plan: &Plan, clock: &Arc<dyn Clock>, found: &mut Measurements) -> Result<(), Error> {
    let (_, prefetcher) = open(plan, u64::MAX, clock)?;
    ask(&prefetcher, 1, 1, clock);
    let mut times = Vec::with_capacity(plan.num_hits);
    for _ in 0..plan.num_hits {
        let started = clock.now();
        let ticket =
            prefetcher.request(&blueprint(0)).map_err(|error| broken(format!("a hit was refused: {error}")))?;
        let poll = prefetcher.poll(&ticket);
        times.push(us(clock.now() - started));
        if !matches!(poll, Poll::Ready(_)) {
            return Err(broken(format!("a hit was not ready at once: {poll:?}")));
        }
    }
    let hits = prefetcher.stats().cache_hits;
    if hits != plan.num_hits as u64 {
        return Err(broken(format!("{hits} hits were counted of {}", plan.num_hits)));
    }
    add(found, "hit", "us", times);
    Ok(())
}

fn open(plan: &Plan, killed_after: u64, clock: &Arc<dyn Clock>) -> Result<(Arc<SimulatedStore>, Prefetcher), Error> {
    let store = SimulatedStore::new(plan.num_requests, plan.latency, killed_after, clock);
    let store = Arc::new(store.map_err(|error| broken(format!("the store cannot be filled: {error}")))?);
    let config = PrefetchConfig { concurrency: plan.concurrency, ..PrefetchConfig::default() };
    let prefetcher = Prefetcher::new(Arc::clone(&store) as Arc<dyn KernelStore>, config, Arc::clone(clock))
        .map_err(|error| broken(format!("the prefetcher cannot be started: {error}")))?;
    Ok((store, prefetcher))
}

/// Artifacts in the cache that are not the published ones or that no client was given; there may be none.
fn wrong_in_cache(
    prefetcher: &Prefetcher,
    store: &SimulatedStore,
    asked: &[Asked],
    num_expected: usize,
) -> Result<usize, Error> {
    let cached = prefetcher.cached();
    let is_right = |artifact: &Artifact| {
        store.entries().iter().any(|entry| entry.artifact == *artifact)
            && asked.iter().any(|asked| matches!(&asked.end, End::Ready(given) if given == artifact))
    };
    let wrong = cached.iter().filter(|artifact| !is_right(artifact)).count();
    if wrong > 0 || cached.len() != num_expected {
        let found = format!("{} artifacts are cached, {wrong} of them wrong: expected {num_expected}", cached.len());
        return Err(broken(found));
    }
    Ok(wrong)
}

fn add(found: &mut Measurements, name: &str, unit: &str, values: Vec<f64>) {
    if let Some(measured) = Measurement::of(unit, values) {
        found.insert(name.to_owned(), measured);
    }
}

fn broken(what: String) -> Error {
    Error::BrokenPromises { table: what }
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

fn us(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

#[cfg(test)]
mod tests {
    use leyline::clock::SystemClock;

    use super::*;

    #[test]
    fn every_request_ends_in_a_known_way_and_every_quantity_is_there() {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let latency = Latency { mean_ms: 2.0, deviation_ms: 0.5, seed: 1 };
        let plan = Plan { num_requests: 40, concurrency: 3, latency, killed_after: 10, num_hits: 20 };
        let mut found = BTreeMap::new();
        healthy(&plan, &clock, &mut found).unwrap();
        killed(&plan, &clock, &mut found).unwrap();
        hits(&plan, &clock, &mut found).unwrap();
        let count = |name: &str| found[&format!("killed.{name}")].median.to_string().parse::<usize>().unwrap();
        assert_eq!((count("ready"), count("hung"), count("cached"), count("cached.wrong")), (10, 0, 10, 0));
        assert!(count("error") >= 3, "three failures open the breaker");
        assert!(count("breaker_refused") > 0, "the breaker let everything through");
        assert_eq!(count("error") + count("breaker_refused") + count("timeout"), 30);
        let sizes = ["fetch", "latency", "overhead", "hit"].map(|name| found[name].n);
        assert_eq!(sizes, [40, 40, 40, 20]);
        assert!(found["overhead"].min >= 0.0, "a request cannot take less than its fetch");
    }
}
