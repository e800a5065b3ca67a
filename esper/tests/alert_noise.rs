//! How often alerts fire on a normal day: real runs, scraped as Prometheus does, laid end to end, and all rules evaluated over them.
//!
//! `deploy/noise/runs.json` are recordings, `deploy/noise/alerts.json` is what fired; `docs/alerts.md` shows it. To write what fired
//! again, after a rule changed: `ESPER_REGENERATE_DOCS=1 cargo test -p esper --test alert_noise`. To record runs anew as well, in some
//! ten minutes: `ESPER_RECORD_RUNS=1` in its place, with `ESPER_TEST_DEVICE=cuda:0`, `--release` and `--features cuda` those on a GPU
//! too, which stay as they were otherwise. `promtool` is looked for as `prometheus.rs` says.
#![cfg(unix)]
#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "helpers of tests, which wait for another process"
)]

#[path = "programs/prometheus.rs"]
mod installed;
mod programs;
#[expect(dead_code, reason = "some of it is for the tests of serving")]
mod served;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use prometheus_parse::{Scrape, Value as Sample};
use serde::{Deserialize, Serialize};

use self::installed::program;
use self::served::Served;

/// As `deploy/prometheus/prometheus.yml` has it.
const SCRAPE_S: usize = 5;
/// Rules are evaluated so often, which takes a sixth of the time that every scrape would.
const EVALUATE_S: u64 = 30;
const DAY: usize = 24 * 3600 / SCRAPE_S;
/// Scrapes of each run that is recorded.
const NUM_SCRAPES: usize = 24;
/// Runs that are recorded at once, and one on a GPU with them.
const AT_ONCE: usize = 2;
/// Stands for a folder with the weights of a seed.
const LIBRARY: &str = "LIBRARY";
const RUNS: [&[&str]; 6] = [
    &["--data", "digits", "--seed", "1"],
    &["--data", "mnist1d", "--seed", "2"],
    &["--data", "digits", "--seed", "3", "--policy", "random", "--set", "seeds.library.path=LIBRARY"],
    &["--data", "mnist1d", "--seed", "4", "--policy", "random"],
    &["--data", "digits", "--seed", "5", "--policy", "fixed"],
    &["--data", "mnist1d", "--seed", "6", "--policy", "off"],
];
/// Those on a GPU, with its name as another flag.
const GPU_RUNS: [&[&str]; 3] = [
    &["--data", "digits", "--seed", "1", "--device"],
    &["--data", "mnist1d", "--seed", "4", "--policy", "random", "--device"],
    &["--data", "digits", "--seed", "5", "--policy", "fixed", "--set", "train.conflict=pcgrad", "--device"],
];

#[derive(Serialize, Deserialize)]
struct Recorded {
    runs: Vec<Run>,
}

/// What one run exposed of what rules read.
#[derive(Serialize, Deserialize)]
struct Run {
    /// Commit, profile, and cores for the runs that were recorded at once.
    made: String,
    flags: Vec<String>,
    /// One value for each scrape, in the notation of `promtool`.
    series: BTreeMap<String, String>,
}

/// What an alert did in a day.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
struct Fired {
    /// Hours in which it fired.
    hours: u64,
    seconds: u64,
}

fn deploy(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy").join(path)
}

fn rules() -> String {
    fs::read_to_string(deploy("prometheus/rules.yml")).unwrap()
}

fn write(path: &Path, what: &impl Serialize) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, serde_json::to_string_pretty(what).unwrap() + "\n").unwrap();
}

/// Names of metrics that rules read.
fn names(rules: &str) -> BTreeSet<&str> {
    rules.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).filter(|word| word.starts_with("esper_")).collect()
}

/// `0 0 0 1` as `0x2 1`.
fn packed(tokens: &[String]) -> String {
    let groups = tokens.chunk_by(|a, b| a == b && a != "stale");
    let packed = groups.map(|group| match group.len() {
        1 => group[0].clone(),
        // A lonely `_xN` stands for N gaps, a value with `xN` for itself and N more.
        more if group[0] == "_" => format!("_x{more}"),
        more => format!("{}x{}", group[0], more - 1),
    });
    packed.collect::<Vec<_>>().join(" ")
}

/// The values again; none where the series was not there.
fn unpacked(text: &str) -> Vec<Option<f64>> {
    let group = |token: &str| {
        let (value, more) = token.rsplit_once('x').map_or((token, 0), |(value, more)| (value, more.parse().unwrap()));
        if value == "_" { vec![None; more.max(1)] } else { vec![Some(value.parse().unwrap()); more + 1] }
    };
    text.split(' ').flat_map(group).collect()
}

/// A library with a seed of a short run.
fn library(dir: &Path) -> PathBuf {
    let (first, library) = (dir.join("first"), dir.join("library"));
    let [first, to] = [&first, &library].map(|path| path.to_str().unwrap());
    let train =
        ["train", "--policy", "fixed", "--epochs", "14", "--set", "run.seed=3", "--progress", "off", "--out", first];
    for args in [&train[..], &["seeds", "export", first, "--seed", "1", "--library", to]] {
        let output = Command::new(env!("CARGO_BIN_EXE_esper")).args(args).output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    library
}

fn record(flags: &[String]) -> Run {
    let rules = rules();
    let names = names(&rules);
    let dir = tempfile::tempdir().unwrap();
    let used: Vec<String> = if flags.iter().any(|flag| flag.contains(LIBRARY)) {
        let library = library(dir.path());
        flags.iter().map(|flag| flag.replace(LIBRARY, library.to_str().unwrap())).collect()
    } else {
        flags.to_vec()
    };
    let served = Served::start(&dir.path().join("run"), &used.iter().map(String::as_str).collect::<Vec<_>>());
    let began = Instant::now();
    let mut series: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for index in 0..NUM_SCRAPES {
        thread::sleep(
            (began + Duration::from_secs((index * SCRAPE_S) as u64)).saturating_duration_since(Instant::now()),
        );
        let text = served.get("/metrics").1;
        for sample in Scrape::parse(text.lines().map(|line| Ok(line.to_owned()))).unwrap().samples {
            let (Sample::Counter(value) | Sample::Gauge(value) | Sample::Untyped(value)) = sample.value else {
                continue;
            };
            let is_read = sample.labels.get("event").is_none_or(|event| rules.contains(event));
            if names.contains(sample.metric.as_str()) && is_read {
                let labels: BTreeMap<_, _> = sample.labels.iter().collect();
                let labels: Vec<_> = labels.iter().map(|(name, value)| format!("{name}={value:?}")).collect();
                let values = series.entry(format!("{}{{{}}}", sample.metric, labels.join(","))).or_default();
                values.resize(index, "_".to_owned());
                // Four digits are enough to be compared with a threshold; counters are whole.
                let value = if value.fract() == 0.0 { value } else { format!("{value:.3e}").parse().unwrap() };
                values.push(value.to_string());
            }
        }
    }
    served.end();
    let complete = |(name, mut values): (String, Vec<String>)| {
        values.resize(NUM_SCRAPES, "_".to_owned());
        (name, packed(&values))
    };
    let profile = if cfg!(debug_assertions) { "debug" } else { "release" };
    let (commit, cores) = (env!("ESPER_BUILD_COMMIT"), thread::available_parallelism().unwrap().get());
    let made = format!("{profile} build of {}, {cores} cores", commit.get(..12).unwrap_or("an unknown commit"));
    Run { made, flags: flags.to_vec(), series: series.into_iter().map(complete).collect() }
}

/// Whether a run was on a GPU.
fn has_gpu(run: &Run) -> bool {
    run.flags.iter().any(|flag| flag == "--device")
}

fn recorded() -> Recorded {
    let path = deploy("noise/runs.json");
    let before = || serde_json::from_str::<Recorded>(&fs::read_to_string(&path).unwrap()).unwrap();
    if std::env::var_os("ESPER_RECORD_RUNS").is_none() {
        return before();
    }
    let owned = |flags: &[&str]| -> Vec<String> { flags.iter().map(ToString::to_string).collect() };
    let device = std::env::var("ESPER_TEST_DEVICE").ok();
    let on_gpu = GPU_RUNS.iter().filter_map(|flags| Some([owned(flags), vec![device.clone()?]].concat()));
    let mut on_gpu = on_gpu.collect::<Vec<_>>().into_iter();
    let mut runs = Vec::new();
    for some in RUNS.chunks(AT_ONCE) {
        let together = some.iter().map(|flags| owned(flags)).chain(on_gpu.next());
        let together: Vec<_> = together.map(|flags| thread::spawn(move || record(&flags))).collect();
        runs.extend(together.into_iter().map(|run| run.join().unwrap()));
    }
    if device.is_none() {
        runs.extend(before().runs.into_iter().filter(has_gpu));
    }
    let recorded = Recorded { runs };
    write(&path, &recorded);
    recorded
}

/// All series of a day: each run lasts as long as the others, its recording repeated with counters that go on, and is not there for
/// one scrape at its end.
fn day(runs: &[Run]) -> BTreeMap<String, Vec<String>> {
    let lasts = DAY / runs.len();
    let mut day: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let gap = || "_".to_owned();
    for (index, run) in runs.iter().enumerate() {
        for (name, values) in &run.series {
            let values = unpacked(values);
            assert_eq!(values.len(), NUM_SCRAPES, "{name} of {:?}", run.flags);
            let is_counter = name.split('{').next().unwrap().ends_with("_total");
            let there = || values.iter().flatten();
            let gained = if is_counter { there().last().unwrap() - there().next().unwrap() } else { 0.0 };
            let at = |tick: usize| {
                let (repeat, tick) = (tick / NUM_SCRAPES, tick % NUM_SCRAPES);
                // A counter that came late is there from then on.
                let value =
                    values[tick].or(values.iter().flatten().next().copied().filter(|_| is_counter && repeat > 0));
                value.map_or_else(gap, |value| (value + gained * repeat as f64).to_string())
            };
            let all = day.entry(name.clone()).or_default();
            all.resize(index * lasts, gap());
            all.extend((0..lasts - 1).map(at));
            all.push("stale".to_owned());
        }
        let up = day.entry("up{job=\"esper\"}".to_owned()).or_default();
        up.resize((index + 1) * lasts - 1, "1".to_owned());
        up.push("0".to_owned());
    }
    day
}

/// Every alert of the rules, and what it did on the first `hours` of `day`.
fn fired(promtool: &Path, day: &BTreeMap<String, Vec<String>>, hours: usize) -> BTreeMap<String, Fired> {
    let rules_file = deploy("prometheus/rules.yml").canonicalize().unwrap();
    let mut test = format!(
        "rule_files: [{}]\nevaluation_interval: {EVALUATE_S}s\ntests:\n  - interval: {SCRAPE_S}s\n    input_series:\n",
        rules_file.display()
    );
    for (name, values) in day {
        writeln!(
            test,
            "      - {{series: '{name}', values: '{}'}}",
            packed(&values[..values.len().min(hours * 3600 / SCRAPE_S)])
        )
        .unwrap();
    }
    test += "    promql_expr_test:\n";
    let query = "sum by (alertname) (count_over_time(ALERTS{alertstate=\"firing\"}[1h]))";
    for hour in 1..=hours {
        writeln!(test, "      - {{expr: '{query}', eval_time: {hour}h, exp_samples: []}}").unwrap();
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("day.yml");
    fs::write(&file, test).unwrap();
    let output = Command::new(promtool).args(["test", "rules"]).arg(&file).output().unwrap();
    let told = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    // Nothing is expected, so what it tells are the alerts of each hour that had some.
    assert_eq!(output.status.success(), !told.contains("FAILED"), "{told}");
    assert!(!told.contains("err:"), "{told}");
    let rules = rules();
    let names = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: "));
    let mut fired: BTreeMap<String, Fired> = names.map(|name| (name.to_owned(), Fired::default())).collect();
    for sample in told.split("alertname=\"").skip(1) {
        let (name, rest) = sample.split_once("\"} ").unwrap();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count")]
        let num = rest.split([',', '\n']).next().unwrap().trim().parse::<f64>().unwrap() as u64;
        let fired = fired.get_mut(name).unwrap();
        fired.hours += 1;
        fired.seconds += num * EVALUATE_S;
    }
    fired
}

#[test]
fn alerts_fire_on_a_normal_day_as_often_as_is_written_and_one_that_should_is_counted() {
    let Some(promtool) = program("promtool") else { return };
    let runs = recorded().runs;
    let mut day = day(&runs);
    let rules = rules();
    let read = |name: &str| day.keys().any(|series| series.split('{').next() == Some(name));
    // A rule reads it since this recording.
    let is_before = runs.iter().any(|run| run.made.contains("1cd5976140f0"));
    let is_new = |name: &str| is_before && name.starts_with("esper_tolaria_compile_replay_");
    let missing: Vec<&str> = names(&rules).into_iter().filter(|name| !read(name) && !is_new(name)).collect();
    assert!(missing.is_empty(), "{missing:?} are read by rules and not recorded: ESPER_RECORD_RUNS=1 records them");
    let (path, fired_now) = (deploy("noise/alerts.json"), fired(&promtool, &day, 24));
    if ["ESPER_REGENERATE_DOCS", "ESPER_RECORD_RUNS"].iter().any(|name| std::env::var_os(name).is_some()) {
        write(&path, &fired_now);
    }
    let written: BTreeMap<String, Fired> = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    assert_eq!(fired_now, written, "another noise than {} has", "deploy/noise/alerts.json");
    // A time-out of the policy is seen for the five minutes that its rule looks back.
    let timeouts = day.get_mut("esper_tolaria_timeout_tamiyo_total{}").unwrap();
    let at = 100;
    for value in &mut timeouts[at..at + 200] {
        *value = "1".to_owned();
    }
    let planted = fired(&promtool, &day, 1)["EsperPolicyTimeout"];
    assert!(planted.hours == 1 && (240..=360).contains(&planted.seconds), "{planted:?}");
}
