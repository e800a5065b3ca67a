//! `esper train --serve`: what is answered, to whom, and that nobody who asks changes the run.
//!
//! `ESPER_HOSTILE_REQUESTS=10000 cargo test --release -p esper --test serve hostile -- --nocapture` makes the attack as large as
//! that, and prints what it cost.
#![cfg(unix)]
#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "helpers of tests, which wait for another process"
)]

mod served;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use baselines::hostile::{self, ask};
use esper::wire::DESCRIPTORS;
use esper_telemetry::Catalogue;
use esper_telemetry::prometheus::PrometheusName;
use leyline::telemetry::MetricKind;
use prometheus_parse::{Scrape, Value as Sample};
use roxmltree::{Document, ParsingOptions};
use serde_json::Value;

use self::served::{ENDLESS, Served, train};

fn scrape(text: &str) -> Scrape {
    Scrape::parse(text.lines().map(|line| Ok(line.to_owned()))).unwrap()
}

/// Values by name and labels.
fn series(text: &str) -> BTreeMap<String, f64> {
    let value = |sample: &Sample| match sample {
        Sample::Counter(value) | Sample::Gauge(value) | Sample::Untyped(value) => *value,
        Sample::Histogram(_) | Sample::Summary(_) => panic!("no such metric is exposed"),
    };
    let named = |sample: &prometheus_parse::Sample| {
        let labels: BTreeMap<_, _> = sample.labels.iter().collect();
        (format!("{} {labels:?}", sample.metric), value(&sample.value))
    };
    scrape(text).samples.iter().map(named).collect()
}

#[test]
fn what_is_scraped_is_read_by_another_parser_and_counters_never_fall() {
    let dir = tempfile::tempdir().unwrap();
    let served = Served::start(&dir.path().join("run"), &[]);
    let (status, first) = served.get("/metrics");
    assert_eq!(status, 200);
    let names: BTreeSet<String> = scrape(&first).samples.into_iter().map(|sample| sample.metric).collect();
    let catalogue = Catalogue::new(DESCRIPTORS).unwrap();
    for desc in catalogue.metrics().filter(|desc| desc.kind == MetricKind::Counter && desc.labels.is_empty()) {
        let PrometheusName { name, .. } = PrometheusName::of(desc);
        assert!(names.contains(&name), "{name} is not there from the start");
    }
    let build = format!("esper_build_info{{version=\"{}\"", env!("CARGO_PKG_VERSION"));
    assert!(first.contains(&build), "{first}");
    let mut before = series(&first);
    assert!((50..1000).contains(&before.len()), "{} series", before.len());
    let mut grew = false;
    for _ in 0..10 {
        thread::sleep(Duration::from_millis(260));
        let now = series(&served.get("/metrics").1);
        for (name, value) in &before {
            let is_counter = name.split(' ').next().unwrap().ends_with("_total");
            assert!(!is_counter || now[name] >= *value, "{name} fell from {value} to {}", now[name]);
            grew |= name.starts_with("esper_tolaria_steps_total") && now[name] > *value;
        }
        before = now;
    }
    assert!(grew, "no step was counted");
    let told =
        |kind: &str| first.lines().filter_map(|line| line.strip_prefix(kind)?.split(' ').next()).collect::<Vec<_>>();
    let families = told("# TYPE ");
    assert_eq!(told("# HELP "), families);
    assert_eq!(families.iter().collect::<BTreeSet<_>>().len(), families.len(), "{families:?}");
    assert_eq!(served.get("/healthz"), (200, "ok\n".to_owned()));
    served.end();
}

#[test]
fn the_live_page_is_the_report_of_the_epochs_so_far_and_says_how_far_the_run_is() {
    let dir = tempfile::tempdir().unwrap();
    let served = Served::start(&dir.path().join("run"), &[]);
    let mut watching = TcpStream::connect(served.address).unwrap();
    watching.write_all(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let address = served.address;
    let watcher = thread::spawn(move || {
        let lines = BufReader::new(watching).lines().map_while(Result::ok).collect::<Vec<_>>();
        // As the page does, which is told of the end and then fetches what there is at the end; on a busy machine not at once.
        let mut asking = TcpStream::connect(address).unwrap();
        thread::sleep(Duration::from_millis(50));
        asking.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        (lines, BufReader::new(asking).lines().next().and_then(Result::ok))
    });
    let deadline = Instant::now() + Duration::from_secs(60);
    let page = loop {
        let (status, page) = served.get("/");
        assert_eq!(status, 200);
        if !page.contains("data-revision=\"1\"") {
            break page;
        }
        assert!(Instant::now() < deadline, "no epoch was shown");
        thread::sleep(Duration::from_millis(100));
    };
    let options = ParsingOptions { allow_dtd: true, ..ParsingOptions::default() };
    let document = Document::parse_with_options(&page, options).unwrap();
    let targets = document.descendants().filter_map(|node| node.attribute("src").or(node.attribute("href")));
    let foreign: Vec<&str> = targets.filter(|target| !target.starts_with('#')).collect();
    assert_eq!(foreign, ["/live.js"]);
    let ids: BTreeSet<&str> = document.descendants().filter_map(|node| node.attribute("id")).collect();
    assert!(ids.contains("curves") && ids.contains("live"), "{ids:?}");
    assert!(!ids.contains("configuration") && !ids.contains("provenance"), "{ids:?}");
    // A run that is going has none yet, and the page says already that it trains.
    assert!(!page.contains("summary.json"), "the page of a healthy run speaks of a file that only an ended one has");
    let (status, script) = served.get("/live.js");
    assert!(status == 200 && script.contains("EventSource(\"/events\")"), "{status}");
    served.end();
    let (lines, at_the_end) = watcher.join().unwrap();
    assert_eq!(at_the_end.as_deref(), Some("HTTP/1.1 200 OK"), "who watched did not get the page of the end");
    let events: Vec<Value> =
        lines.iter().filter_map(|line| Some(serde_json::from_str(line.strip_prefix("data: ")?).unwrap())).collect();
    assert!(events.len() >= 2, "{events:?}");
    assert_eq!(events.last().unwrap()["state"], "ended");
    let steps: Vec<u64> = events.iter().map(|event| event["step"].as_u64().unwrap()).collect();
    assert!(steps.is_sorted() && steps.first() < steps.last(), "{steps:?}");
    // The report that stays keeps its scripts out.
    let report = fs::read_to_string(dir.path().join("run/report.html")).unwrap();
    assert!(report.contains("default-src 'none'") && !report.contains("<script"), "the report has a script");
}

#[test]
fn an_address_that_others_reach_or_that_is_taken_is_refused_before_anything_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    for (flags, expected) in [
        (&["--serve", "0.0.0.0:0"][..], "--serve-remote"),
        (&["--serve", "example.org:80"], "expected IP:PORT"),
        (&["--serve-remote"], "--serve"),
        (&["--serve", &taken], "in use"),
        (&["--otlp-remote"], "--otlp"),
        (
            &["--otlp", "http://10.0.0.1:4318"],
            if cfg!(feature = "otlp") { "--otlp-remote" } else { "`--features otlp`" },
        ),
        (&["--otlp", "127.0.0.1"], if cfg!(feature = "otlp") { "expected http://" } else { "`--features otlp`" }),
    ] {
        let out = dir.path().join("run");
        let output = train(&out, "1", flags).stderr(Stdio::piped()).output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{flags:?}: {told}");
        assert!(told.contains(expected), "{flags:?}: {told}");
        assert!(!out.exists(), "{flags:?} left a folder");
    }
}

/// Lines of epochs without what depends on the clock, or on how long the run was to be.
fn epochs(dir: &Path) -> Vec<Value> {
    let text = fs::read_to_string(dir.join("metrics.jsonl")).unwrap();
    let line = |line: &str| {
        let mut value: Value = serde_json::from_str(line).unwrap();
        for key in ["wall_s", "samples_per_s", "waiting", "asked"] {
            value.as_object_mut().unwrap().remove(key);
        }
        value
    };
    text.lines().map(line).collect()
}

/// How long each epoch took.
fn wall_ms(dir: &Path) -> Vec<f64> {
    let text = fs::read_to_string(dir.join("metrics.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["wall_s"].as_f64().unwrap() * 1e3).collect()
}

fn quantiles(times: &[f64]) -> [f64; 2] {
    let mut times = times.to_vec();
    times.sort_by(f64::total_cmp);
    [50, 99].map(|percent| times.get(times.len() * percent / 100).map_or(f64::NAN, |ms| (ms * 10.0).round() / 10.0))
}

/// Sends the hostile request of this number, and looks at what is answered.
fn attack(address: SocketAddr, number: usize) {
    let (request, expected) = hostile::request(number);
    let (status, _) = ask(address, &request);
    assert!(expected.contains(&status), "{status} to {:?}", &request[..request.len().min(80)]);
}

#[test]
fn hostile_requests_change_nothing_of_the_run_and_take_no_memory() {
    let num: usize = std::env::var("ESPER_HOSTILE_REQUESTS").map_or(120, |text| text.parse().unwrap());
    let dir = tempfile::tempdir().unwrap();
    let (quiet, loud) = (dir.path().join("quiet"), dir.path().join("loud"));
    let flags = ["--seed", "7"];
    assert!(
        train(&quiet, ENDLESS, &[&flags[..], &["--max-steps", "170"]].concat())
            .stderr(Stdio::null())
            .status()
            .unwrap()
            .success()
    );
    let served = Served::start(&loud, &flags);
    let address = served.address;
    served.get("/");
    if num > 1000 {
        thread::sleep(Duration::from_secs(20));
    }
    let (began, before) = (Instant::now(), served.resident());
    let epochs_before = epochs(&loud).len();
    // Those who say little, or nothing, and stay; and those who ask and do not read.
    let silent: Vec<TcpStream> =
        (0..(num / 10).min(1000)).filter_map(|index| hostile::silent(address, index)).collect();
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= num {
                        break;
                    }
                    attack(address, number);
                }
            });
        }
    });
    let took = began.elapsed();
    let grown = served.resident().saturating_sub(before);
    let times = wall_ms(&loud);
    for stream in &silent {
        stream.shutdown(Shutdown::Both).ok();
    }
    assert_eq!(served.get("/healthz").0, 200, "nobody is answered any more");
    let files: BTreeSet<_> = fs::read_dir(&loud).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    // Requests may be over before so many epochs are.
    let waited = Instant::now();
    while epochs(&loud).len() < 3 && waited.elapsed() < Duration::from_secs(60) {
        thread::sleep(Duration::from_millis(50));
    }
    served.end();
    let grown_kib = grown >> 10;
    println!("{num} requests, {} silent connections, {took:.1?}: {grown_kib} KiB more memory", silent.len());
    let (idle, attacked) = times.split_at(epochs_before);
    println!("epoch without and with them, p50 and p99 in ms: {:?} {:?}", quantiles(idle), quantiles(attacked));
    // The run itself grows: telemetry, a network.
    assert!(grown < 48 << 20, "{grown} bytes more");
    let written: BTreeSet<_> = fs::read_dir(&quiet).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(files.is_subset(&written), "{files:?} against {written:?}");
    let (quiet, loud) = (epochs(&quiet), epochs(&loud));
    let num_compared = quiet.len().min(loud.len());
    assert!(num_compared >= 3, "{num_compared} epochs");
    assert_eq!(quiet[..num_compared], loud[..num_compared]);
}
