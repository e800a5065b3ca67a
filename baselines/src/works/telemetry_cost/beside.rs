//! What is beside the steps of a block: the server of the command, and those who ask it.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use esper_telemetry::TelemetryRecorder;
use tolaria::trainer::Observer;

use crate::error::Error;
use crate::hostile;
use crate::work::Surround;

const NUM_ATTACKERS: usize = 16;
/// Of so many hostile requests, one is of a client who stays and says little.
const ONE_SILENT_OF: usize = 10;

/// A served run with a scraper (`/metrics` and the page, once a second), a reader of its events, and perhaps attackers.
pub(super) struct Beside {
    /// The server, until it is dropped.
    pub(super) observer: Box<dyn Observer>,
    is_over: Arc<AtomicBool>,
    askers: Vec<JoinHandle<Answers>>,
    /// Until the server ends.
    reader: JoinHandle<()>,
}

/// Answers, and those that were not as they should be.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Answers {
    pub(super) scraped: u64,
    pub(super) hostile: u64,
    pub(super) wrong: u64,
}

impl std::ops::AddAssign for Answers {
    fn add_assign(&mut self, other: Self) {
        self.scraped += other.scraped;
        self.hostile += other.hostile;
        self.wrong += other.wrong;
    }
}

impl Beside {
    /// Serves a run in a new folder, with so many hostile requests at once; once it is late no further one is sent.
    pub(super) fn start(
        surround: Surround,
        folder: &Path,
        recorder: &Arc<TelemetryRecorder>,
        num_hostile: usize,
        is_late: Arc<dyn Fn() -> bool + Send + Sync>,
    ) -> Result<Self, Error> {
        let failed = |message: String| Error::Process { what: "the server".to_owned(), message };
        let (address, observer) = surround(folder, recorder).map_err(failed)?;
        let events = TcpStream::connect(address).map_err(|error| failed(error.to_string()))?;
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        let mut askers = vec![thread::spawn(move || scrape(address, &over))];
        let next = Arc::new(AtomicUsize::new(0));
        for _ in 0..NUM_ATTACKERS.min(num_hostile) {
            let (next, is_late) = (Arc::clone(&next), Arc::clone(&is_late));
            askers.push(thread::spawn(move || attack(address, &next, num_hostile, &*is_late)));
        }
        let reader = thread::spawn(move || drop(read_events(events)));
        Ok(Self { observer, is_over, askers, reader })
    }

    /// Waits until all that was to be asked is answered, and ends the server.
    pub(super) fn end(self) -> Answers {
        self.is_over.store(true, Ordering::SeqCst);
        let mut answers = Answers::default();
        for asker in self.askers {
            answers += asker.join().unwrap_or(Answers { wrong: 1, ..Answers::default() });
        }
        drop(self.observer);
        answers.wrong += u64::from(self.reader.join().is_err());
        answers
    }
}

fn scrape(address: SocketAddr, is_over: &AtomicBool) -> Answers {
    let mut answers = Answers::default();
    while !is_over.load(Ordering::SeqCst) {
        for path in ["/metrics", "/"] {
            let (status, _) = hostile::ask(address, &format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"));
            answers.scraped += 1;
            answers.wrong += u64::from(status != 200);
        }
        for _ in 0..100 {
            if !is_over.load(Ordering::SeqCst) {
                thread::sleep(Duration::from_millis(10));
            }
        }
    }
    answers
}

fn attack(address: SocketAddr, next: &AtomicUsize, num_requests: usize, is_late: &dyn Fn() -> bool) -> Answers {
    let mut answers = Answers::default();
    let mut silent = Vec::new();
    loop {
        let number = next.fetch_add(1, Ordering::SeqCst);
        if number >= num_requests || is_late() {
            break answers;
        }
        answers.hostile += 1;
        if number.is_multiple_of(ONE_SILENT_OF) {
            silent.extend(hostile::silent(address, number / ONE_SILENT_OF));
        } else {
            let (request, expected) = hostile::request(number);
            let (status, _) = hostile::ask(address, &request);
            answers.wrong += u64::from(!expected.contains(&status));
        }
    }
}

fn read_events(mut stream: TcpStream) -> io::Result<()> {
    stream.write_all(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
    let mut bytes = [0; 4096];
    while stream.read(&mut bytes)? > 0 {}
    Ok(())
}
