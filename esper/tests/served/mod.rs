//! A run that is served, for tests of those who ask it.
#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "helpers of tests, which wait for another process")]

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use baselines::hostile::ask;

/// More epochs than any test waits for.
pub(crate) const ENDLESS: &str = "1000000";

/// A run that is served; ended when it goes out of scope.
pub(crate) struct Served {
    child: Child,
    pub(crate) address: SocketAddr,
}

/// A run that is not served unless a flag says so.
pub(crate) fn train(dir: &Path, epochs: &str, flags: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_esper"));
    command.args([
        "train",
        "--epochs",
        epochs,
        "--set",
        "checkpoint.every_epochs=1000",
        "--progress",
        "plain",
        "--out",
    ]);
    command.arg(dir).args(flags).stdout(Stdio::null());
    command
}

impl Served {
    /// Starts a run, and waits until it takes steps.
    pub(crate) fn start(dir: &Path, flags: &[&str]) -> Self {
        let flags: Vec<&str> = ["--serve", "0"].iter().chain(flags).copied().collect();
        let mut child = train(dir, ENDLESS, &flags).stderr(Stdio::piped()).spawn().unwrap();
        let mut told = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        let url = told.find_map(|line| line.strip_prefix("live page http://").map(str::to_owned));
        let address = url.expect("no address was told").trim_end_matches('/').parse().unwrap();
        thread::spawn(move || told.count());
        let served = Self { child, address };
        let deadline = Instant::now() + Duration::from_secs(60);
        while served.get("/readyz").0 != 200 {
            assert!(Instant::now() < deadline, "it never became ready");
            thread::sleep(Duration::from_millis(50));
        }
        served
    }

    /// Status and content of a path.
    pub(crate) fn get(&self, path: &str) -> (u16, String) {
        ask(self.address, &format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"))
    }

    /// Ends the run as a user would.
    pub(crate) fn end(mut self) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        assert_eq!(self.child.wait().unwrap().code(), Some(130));
    }

    /// Bytes of memory that it holds.
    pub(crate) fn resident(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // It may have ended already.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
