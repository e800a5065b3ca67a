//! A receiver of OTLP over HTTP on this machine that answers as it is told.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// What a request is answered.
#[derive(Debug, Clone)]
pub(crate) enum Reply {
    /// 200 with this body.
    Ok(Vec<u8>),
    /// Another status, without a body.
    Status(u16),
    /// Nothing, while the connection stays.
    Never,
    /// A byte every ten milliseconds, without end.
    Trickles,
}

type Got = Arc<Mutex<Vec<(String, Vec<u8>)>>>;
type Answers = dyn Fn(&str, usize) -> Reply + Send + Sync;

/// Listens until it is dropped.
pub(crate) struct Receiver {
    address: SocketAddr,
    got: Got,
    is_over: Arc<AtomicBool>,
}

impl Receiver {
    /// Listens on a free port. `answers` gets the path and how many requests of this path there were before.
    pub(crate) fn start(answers: impl Fn(&str, usize) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, got) = (listener.local_addr().unwrap(), Got::default());
        let (answers, is_over): (Arc<Answers>, _) = (Arc::new(answers), Arc::<AtomicBool>::default());
        let shared = (Arc::clone(&got), Arc::clone(&is_over));
        thread::spawn(move || {
            let (got, is_over) = shared;
            let counts = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
            for stream in listener.incoming().flatten() {
                if is_over.load(Ordering::SeqCst) {
                    break;
                }
                let of_connection = (Arc::clone(&got), Arc::clone(&answers), Arc::clone(&counts), Arc::clone(&is_over));
                thread::spawn(move || {
                    let (got, answers, counts, is_over) = of_connection;
                    // A client that goes is none of its business.
                    drop(serve(&stream, &got, &*answers, &counts, &is_over));
                });
            }
        });
        Self { address, got, is_over }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Path and body of every request so far.
    pub(crate) fn got(&self) -> Vec<(String, Vec<u8>)> {
        self.got.lock().unwrap().clone()
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        drop(TcpStream::connect(self.address));
    }
}

fn serve(
    stream: &TcpStream,
    got: &Got,
    answers: &Answers,
    counts: &[AtomicUsize; 2],
    is_over: &AtomicBool,
) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    let mut writer = stream;
    loop {
        let (mut head, mut length) = (String::new(), 0);
        reader.read_line(&mut head)?;
        let Some(path) = head.split(' ').nth(1).map(str::to_owned) else { return Ok(()) };
        loop {
            let mut line = String::new();
            reader.read_line(&mut line)?;
            if line.trim().is_empty() {
                break;
            }
            if let Some(("content-length", value)) = line.to_ascii_lowercase().split_once(':') {
                length = value.trim().parse().unwrap();
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        let nth = counts[usize::from(path == "/v1/logs")].fetch_add(1, Ordering::SeqCst);
        let reply = answers(&path, nth);
        got.lock().unwrap().push((path, body));
        match reply {
            Reply::Ok(body) => {
                write!(writer, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len())?;
                writer.write_all(&body)?;
            }
            Reply::Status(status) => write!(writer, "HTTP/1.1 {status} No\r\nContent-Length: 0\r\n\r\n")?,
            Reply::Never | Reply::Trickles => {
                write!(writer, "{}", if matches!(reply, Reply::Never) { "" } else { "HTTP/1.1 200 OK\r\nX: " })?;
                while !is_over.load(Ordering::SeqCst) {
                    thread::sleep(Duration::from_millis(10));
                    if matches!(reply, Reply::Trickles) {
                        writer.write_all(b"x")?;
                    }
                }
                return Ok(());
            }
        }
    }
}
