//! The live page and the report in a real browser: charts are drawn, pages follow the run, nothing is wrong in the console, and
//! nothing but the run is reached.
//!
//! Chromium is `ESPER_CHROMIUM`, or one on the path. Where there is none the test says so and passes, unless
//! `ESPER_REQUIRE_CHROMIUM` is set. Screenshots stay in the folder for temporary files of tests, `target/tmp/browser`.
#![cfg(unix)]
#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "helpers of tests, which wait for another process"
)]

mod programs;
#[expect(dead_code, reason = "some of it is for the tests of serving")]
mod served;

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use self::programs::on_path;
use self::served::Served;

fn chromium() -> Option<PathBuf> {
    let named = std::env::var_os("ESPER_CHROMIUM").map(PathBuf::from);
    let names = ["chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"];
    let found = named.or_else(|| names.iter().find_map(|name| on_path(None, name)));
    if found.is_none() {
        assert!(std::env::var_os("ESPER_REQUIRE_CHROMIUM").is_none(), "a Chromium is required and is not installed");
        println!("no Chromium is installed: nothing was tested (apt-get install chromium, or ESPER_CHROMIUM=PROGRAM)");
    }
    found
}

/// Chromium with what it needs to run anywhere. Names are not resolved, and other addresses than this machine's go to a proxy that is
/// not there.
fn arguments(profile: &Path) -> Vec<String> {
    [
        "--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run --window-size=1280,3600 --hide-scrollbars",
        "--proxy-server=127.0.0.1:9 --proxy-bypass-list=127.0.0.1",
    ]
    .iter()
    .flat_map(|some| some.split(' ').map(str::to_owned))
    .chain(["--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1".to_owned()])
    .chain([format!("--user-data-dir={}", profile.display())])
    .collect()
}

/// A browser that is asked over pipes, in Chromium's protocol of debuggers; ended when it goes out of scope. Flags alone cannot have it
/// wait while a page follows a run.
struct Browser {
    child: Child,
    to: File,
    from: BufReader<File>,
    session: Option<String>,
    num_asked: u64,
    /// What a page complained of.
    faults: Vec<String>,
    _dir: TempDir,
}

impl Browser {
    fn start(chromium: &Path) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let [input, output] = ["in", "out"].map(|name| dir.path().join(name));
        assert!(Command::new("mkfifo").args([&input, &output]).status().unwrap().success());
        let child = Command::new("sh")
            .args(["-c", "exec \"$@\" 3<\"$0/in\" 4>\"$0/out\""])
            .arg(dir.path())
            .arg(chromium)
            .args(arguments(dir.path()))
            .args(["--remote-debugging-pipe", "about:blank"])
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let to = OpenOptions::new().write(true).open(input).unwrap();
        let from = BufReader::new(File::open(output).unwrap());
        Self { child, to, from, session: None, num_asked: 0, faults: Vec::new(), _dir: dir }
    }

    /// Asks, and waits for the answer.
    fn ask(&mut self, method: &str, params: &Value) -> Value {
        self.num_asked += 1;
        let mut request = json!({ "id": self.num_asked, "method": method, "params": params });
        if let Some(session) = &self.session {
            request["sessionId"] = json!(session);
        }
        self.to.write_all(format!("{request}\0").as_bytes()).unwrap();
        loop {
            let mut bytes = Vec::new();
            self.from.read_until(0, &mut bytes).unwrap();
            assert_eq!(bytes.pop(), Some(0), "the browser ended");
            let mut said: Value = serde_json::from_slice(&bytes).unwrap();
            let is_fault = match said["method"].as_str() {
                Some("Runtime.exceptionThrown") => true,
                Some("Runtime.consoleAPICalled") => {
                    ["error", "warning", "assert"].map(Some).contains(&said["params"]["type"].as_str())
                }
                Some("Log.entryAdded") => {
                    ["error", "warning"].map(Some).contains(&said["params"]["entry"]["level"].as_str())
                }
                _ => false,
            };
            if is_fault {
                self.faults.push(said["params"].to_string());
            }
            if said["id"] == self.num_asked {
                assert!(said["error"].is_null(), "{method}: {said}");
                return said["result"].take();
            }
        }
    }

    /// Opens a page in place of the one before.
    fn open(&mut self, url: &str) {
        self.session = None;
        self.faults.clear();
        let target = self.ask("Target.createTarget", &json!({ "url": "about:blank" }))["targetId"].take();
        let session = self.ask("Target.attachToTarget", &json!({ "targetId": target, "flatten": true }));
        self.session = session["sessionId"].as_str().map(str::to_owned);
        for domain in ["Runtime", "Log", "Page"] {
            self.ask(&format!("{domain}.enable"), &json!({}));
        }
        let answer = self.ask("Page.navigate", &json!({ "url": url }));
        assert!(answer["errorText"].is_null(), "{url}: {answer}");
        self.wait_for("document.readyState === 'complete'");
    }

    /// What an expression of JavaScript gives in the page.
    fn eval(&mut self, expression: &str) -> Value {
        self.ask("Runtime.evaluate", &json!({ "expression": expression, "returnByValue": true }))["result"]["value"]
            .take()
    }

    /// Waits until an expression is true.
    fn wait_for(&mut self, expression: &str) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while self.eval(expression) != json!(true) {
            assert!(Instant::now() < deadline, "{expression} never became true; {:?}", self.faults);
            thread::sleep(Duration::from_millis(100));
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Keeps a picture of a page.
fn screenshot(chromium: &Path, url: &str, name: &str) {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("browser").join(name);
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::remove_file(&file).ok();
    let profile = tempfile::tempdir().unwrap();
    let output = Command::new(chromium)
        .args(arguments(profile.path()))
        .args([&format!("--screenshot={}", file.display()), url])
        .output()
        .unwrap();
    let bytes = fs::read(&file).unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)));
    println!("{}: {} bytes", file.display(), bytes.len());
    assert!(bytes.starts_with(b"\x89PNG") && bytes.len() > 20_000, "{} bytes", bytes.len());
}

#[track_caller]
fn check_charts(browser: &mut Browser) {
    let seen =
        "[...document.querySelectorAll('main svg')].filter((one) => one.getBoundingClientRect().width > 50).length";
    let charts = browser.eval(seen).as_u64().unwrap();
    assert!(charts >= 3, "{charts} charts are seen");
    assert!(browser.faults.is_empty(), "{:#?}", browser.faults);
}

#[test]
fn the_live_page_follows_a_run_and_both_pages_are_without_a_fault() {
    let Some(chromium) = chromium() else { return };
    let dir = tempfile::tempdir().unwrap();
    let served = Served::start(&dir.path().join("run"), &[]);
    let url = format!("http://{}/", served.address);
    let mut browser = Browser::start(&chromium);
    browser.open(&url);
    // Nobody loads the page again: events do.
    browser.eval("window.isTheSame = true; first = Number(document.querySelector('main').dataset.revision)");
    browser.wait_for("Number(document.querySelector('main').dataset.revision) >= first + 2 && window.isTheSame");
    browser.wait_for("document.getElementById('live').textContent.startsWith('Training: ')");
    check_charts(&mut browser);
    screenshot(&chromium, &url, "live.png");
    served.end();
    browser.wait_for("document.getElementById('live').textContent.startsWith('Ended: ')");
    browser.wait_for("!document.querySelector('.pill').textContent.includes('running')");
    check_charts(&mut browser);
    let report = format!("file://{}", dir.path().join("run/report.html").display());
    browser.open(&report);
    check_charts(&mut browser);
    screenshot(&chromium, &report, "report.png");
}

#[test]
fn a_fault_of_a_page_is_seen_and_nothing_but_this_machine_is_reached() {
    let Some(chromium) = chromium() else { return };
    let dir = tempfile::tempdir().unwrap();
    let page = dir.path().join("page.html");
    let mut browser = Browser::start(&chromium);
    for (script, expected) in [
        ("console.error('planted')", "planted"),
        ("missing()", "missing is not defined"),
        ("fetch('http://192.0.2.1/')", "ERR_PROXY_CONNECTION_FAILED"),
    ] {
        fs::write(&page, format!("<html><body><script>{script}</script></body></html>")).unwrap();
        browser.open(&format!("file://{}", page.display()));
        let deadline = Instant::now() + Duration::from_secs(20);
        while !browser.faults.iter().any(|fault| fault.contains(expected)) {
            assert!(Instant::now() < deadline, "{script}: {:?}", browser.faults);
            browser.eval("1");
            thread::sleep(Duration::from_millis(100));
        }
    }
}
