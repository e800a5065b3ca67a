//! Requests over HTTP that nobody should be able to hurt a server with, and what has to be answered to them.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// How many kinds of requests [`request`] makes.
pub const NUM_KINDS: usize = 12;

/// Sends `request`, gives status and what follows the head. Status 0 is no answer.
#[must_use]
pub fn ask(address: SocketAddr, request: &str) -> (u16, String) {
    let answer = TcpStream::connect(address).and_then(|mut stream| {
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        stream.write_all(request.as_bytes())?;
        let mut bytes = Vec::new();
        // What came before a reset counts.
        stream.read_to_end(&mut bytes).ok();
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    });
    let answer = answer.unwrap_or_default();
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    (status, answer.split_once("\r\n\r\n").map_or_else(String::new, |(_, body)| body.to_owned()))
}

/// A request that is malformed, huge, or for others, and the answers of which one is right; 0 is none at all. A kind comes again after
/// [`NUM_KINDS`].
#[must_use]
pub fn request(number: usize) -> (String, &'static [u16]) {
    let head = "GET / HTTP/1.1\r\nHost: localhost\r\n";
    let post = |rest: &str| format!("POST / HTTP/1.1\r\nHost: localhost\r\n{rest}");
    match number % NUM_KINDS {
        0 => ("\u{1}\u{2}\u{3}\r\n\r\n".to_owned(), &[400]),
        1 => ("GET\r\n\r\n".to_owned(), &[400]),
        2 => ("GET / HTTP/9.9\r\n\r\n".to_owned(), &[400, 505]),
        // Who sends more than is read may see a reset in place of the answer.
        3 => (format!("{head}X-A: {}\r\n\r\n", "a".repeat(1 << 20)), &[431, 0]),
        4 => {
            (format!("{head}{}\r\n", (0..500).map(|index| format!("X-{index}: 1\r\n")).collect::<String>()), &[431, 0])
        }
        5 => (format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(1 << 18)), &[414, 431, 0]),
        6 => (post(&format!("Content-Length: {}\r\n\r\nabc", u64::MAX)), &[431]),
        7 => (post("Content-Length: 1000000\r\n\r\nabc"), &[405]),
        8 => ("DELETE /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n".to_owned(), &[405]),
        9 => ("GET /metrics HTTP/1.1\r\nHost: evil.example\r\n\r\n".to_owned(), &[421]),
        10 => ("GET /../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n".to_owned(), &[404]),
        _ => (post("Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n"), &[405, 400, 0]),
    }
}

/// A connection that stays: of one who says nothing, or not all, or asks and does not read. Absent where none is to be had.
#[must_use]
pub fn silent(address: SocketAddr, number: usize) -> Option<TcpStream> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(1)).ok()?;
    let said = [&b""[..], b"GET / HTTP/1.1\r\nX-Slow: a", b"GET /events HTTP/1.1\r\n\r\n"][number % 3];
    stream.write_all(said).ok()?;
    Some(stream)
}
