//! The four runs and their numbers.

use std::sync::Arc;

use esper_weights::{Artifact, KernelStore, Poll, PrefetchConfig, PrefetchError, Prefetcher, StoreError};
use leyline::clock::Clock;

use super::WORK;
use super::clients::{Asked, End, ask};
use super::store::{Fetched, Latency, SimulatedStore, blueprint};
use crate::error::Error;
use crate::measure::Measurement;
use crate::samples::{Samples, ms, us};
use crate::work::{Outcome, Setting, settings};

/// Sizes of the runs.
#[derive(Debug, Clone, Copy)]
struct Plan {
    num_requests: usize,
    /// Workers, and clients where requests shall not wait for one.
    concurrency: usize,
    /// Clients where requests shall wait for a worker.
    num_queuing: usize,
    /// What 95 % of the requests must stay within, beside their fetch.
    bar_ms: f64,
    latency: Latency,
    killed_after: usize,
    num_hits: usize,
}

const PLAN: Plan = Plan {
    num_requests: 256,
    concurrency: 6,
    num_queuing: 24,
    bar_ms: 1.0,
    latency: Latency { mean_ms: 45.0, deviation_ms: 8.0, seed: 7 },
    killed_after: 128,
    num_hits: 1_000,
};
const NOTES: &str = "fetch: of the store, by its own clock readings, its hashing included; latency: from the request to \
    the artifact in the client's hands; overhead: latency minus fetch of the same request; its p95 must be at most 1 ms, \
    or the bench fails; overhead.within_bar: share of the requests within 1 ms. All of these with as many clients as \
    workers. queued: 24 clients on 6 workers; .queue: from the request to the beginning of its fetch, the hand-over to the \
    worker included; .overhead: latency minus queue minus fetch, the way back. killed: the store fails for good once half of the fetches have begun; ends of all requests as counts, .poll: every call of \
    poll in that run, .cached.wrong: artifacts in the cache that differ from the published ones or that nobody was \
    given. hit: a request and a poll for what is cached";

/// Fails when a request ends as none should, something wrong is cached, or the overhead is above its bar.
pub(super) fn run(setting: &Setting) -> Result<Outcome, Error> {
    let (clock, mut samples) = (&setting.clock, Samples::default());
    for part in [healthy, queued, killed, hits] {
        part(&PLAN, clock, &mut samples)?;
    }
    let defaults = PrefetchConfig::default();
    let config = settings([
        ("requests", PLAN.num_requests.to_string()),
        ("concurrency", PLAN.concurrency.to_string()),
        ("clients", PLAN.concurrency.to_string()),
        ("clients_queued", PLAN.num_queuing.to_string()),
        ("bar_ms", PLAN.bar_ms.to_string()),
        ("store", format!("sleeps {} ± {} ms", PLAN.latency.mean_ms, PLAN.latency.deviation_ms)),
        ("store_seed", PLAN.latency.seed.to_string()),
        ("killed_after", PLAN.killed_after.to_string()),
        ("deadline_ms", defaults.deadline_ms.to_string()),
        ("breaker_failures", defaults.breaker.failures.to_string()),
    ]);
    Ok(samples.into_result(WORK.name, WORK.name, NOTES, config, clock.as_ref()).into())
}

/// One request that ended as it should.
struct Answered {
    fetch: f64,
    /// From the request to the beginning of its fetch.
    queue: f64,
    latency: f64,
}

fn healthy(plan: &Plan, clock: &Arc<dyn Clock>, found: &mut Samples) -> Result<(), Error> {
    let answered = answers(plan, plan.concurrency, clock)?;
    let overheads: Vec<f64> = answered.iter().map(|one| one.latency - one.fetch).collect();
    found.extend("fetch", "ms", answered.iter().map(|one| one.fetch).collect());
    found.extend("latency", "ms", answered.iter().map(|one| one.latency).collect());
    found.extend("overhead", "ms", overheads.clone());
    let within = overheads.iter().filter(|overhead| **overhead <= plan.bar_ms).count();
    found.push("overhead.within_bar", "ratio", within as f64 / overheads.len() as f64);
    require_within(plan.bar_ms, overheads)
}

/// Fails unless the p95 is within the bar.
fn require_within(bar_ms: f64, overheads: Vec<f64>) -> Result<(), Error> {
    match Measurement::of("ms", overheads) {
        Some(Measurement { p95, .. }) if p95 <= bar_ms => Ok(()),
        Some(Measurement { p95, .. }) => {
            Err(broken(format!("the p95 of the overhead is {p95:.3} ms: at most {bar_ms}")))
        }
        None => Err(broken("no overhead was measured".to_owned())),
    }
}

fn queued(plan: &Plan, clock: &Arc<dyn Clock>, found: &mut Samples) -> Result<(), Error> {
    let answered = answers(plan, plan.num_queuing, clock)?;
    type Part = fn(&Answered) -> f64;
    let parts: [(&str, Part); 4] = [
        ("fetch", |one| one.fetch),
        ("queue", |one| one.queue),
        ("latency", |one| one.latency),
        ("overhead", |one| one.latency - one.queue - one.fetch),
    ];
    for (name, part) in parts {
        found.extend(format!("queued.{name}"), "ms", answered.iter().map(part).collect());
    }
    Ok(())
}

/// What becomes of all requests to a store that works.
fn answers(plan: &Plan, num_clients: usize, clock: &Arc<dyn Clock>) -> Result<Vec<Answered>, Error> {
    let (store, prefetcher) = open(plan, u64::MAX, clock)?;
    let asked = ask(&prefetcher, plan.num_requests, num_clients, clock);
    let answer = |Asked { index, started, latency, end, .. }: &Asked| {
        let entry = &store.entries()[*index];
        match (end, entry.fetched()) {
            (End::Ready(artifact), Some(Fetched { began, took })) if *artifact == entry.artifact => {
                let queue = ms(began.saturating_sub(*started));
                Ok(Answered { fetch: ms(took), queue, latency: ms(*latency) })
            }
            (end, _) => Err(broken(format!("healthy store, request {index}: {end:?}"))),
        }
    };
    let answered = asked.iter().map(answer).collect::<Result<_, _>>()?;
    wrong_in_cache(&prefetcher, &store, &asked, plan.num_requests)?;
    Ok(answered)
}

fn killed(plan: &Plan, clock: &Arc<dyn Clock>, found: &mut Samples) -> Result<(), Error> {
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
        found.push(format!("killed.{name}"), "count", count as f64);
    }
    let polls: Vec<f64> = asked.iter().flat_map(|asked| &asked.polls).map(|took| us(*took)).collect();
    let longest = polls.iter().copied().fold(0.0, f64::max);
    found.extend("killed.poll", "us", polls);
    found.push("killed.poll.longest", "us", longest);
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

fn hits(plan: &Plan, clock: &Arc<dyn Clock>, found: &mut Samples) -> Result<(), Error> {
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
    found.extend("hit", "us", times);
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

fn broken(what: String) -> Error {
    Error::BrokenPromises { table: what }
}

#[cfg(test)]
mod tests {
    use leyline::clock::SystemClock;

    use super::*;

    #[test]
    fn every_request_ends_in_a_known_way_and_every_quantity_is_there() {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let latency = Latency { mean_ms: 2.0, deviation_ms: 0.5, seed: 1 };
        let plan = Plan {
            num_requests: 40,
            concurrency: 3,
            num_queuing: 12,
            // Other tests run at the same time: how fast it is, the bench says.
            bar_ms: f64::INFINITY,
            latency,
            killed_after: 10,
            num_hits: 20,
        };
        let mut found = Samples::default();
        healthy(&plan, &clock, &mut found).unwrap();
        queued(&plan, &clock, &mut found).unwrap();
        killed(&plan, &clock, &mut found).unwrap();
        hits(&plan, &clock, &mut found).unwrap();
        let found = found.into_measurements();
        let count = |name: &str| found[&format!("killed.{name}")].median.to_string().parse::<usize>().unwrap();
        assert_eq!((count("ready"), count("hung"), count("cached"), count("cached.wrong")), (10, 0, 10, 0));
        assert!(count("error") >= 3, "three failures open the breaker");
        assert!(count("breaker_refused") > 0, "the breaker let everything through");
        assert_eq!(count("error") + count("breaker_refused") + count("timeout"), 30);
        let sizes = ["fetch", "latency", "overhead", "hit"].map(|name| found[name].n);
        assert_eq!(sizes, [40, 40, 40, 20]);
        assert!(found["overhead"].min >= 0.0, "a request cannot take less than its fetch");
        assert!((found["overhead.within_bar"].median - 1.0).abs() < 1e-12, "nothing is above infinity");
        let queued = |part: &str| &found[&format!("queued.{part}")];
        assert_eq!(["fetch", "queue", "latency", "overhead"].map(|part| queued(part).n), [40; 4]);
        assert!(queued("overhead").min >= 0.0, "a request cannot take less than its wait and its fetch");
        // Four clients per worker: each request finds three before it, but for those at both ends.
        assert!(queued("queue").median > queued("fetch").median, "{:?}", queued("queue"));
    }

    #[test]
    fn an_overhead_above_its_bar_fails_the_bench_and_a_few_slow_requests_do_not() {
        let mut overheads = vec![0.5; 100];
        overheads[..5].fill(9.0);
        require_within(1.0, overheads.clone()).unwrap();
        overheads[5] = 1.25;
        let error = require_within(1.0, overheads).unwrap_err().to_string();
        assert!(error.contains("the p95 of the overhead is 1.250 ms: at most 1"), "{error}");
        assert!(require_within(1.0, Vec::new()).is_err());
    }
}
