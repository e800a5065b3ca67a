//! The server: one thread, a few connections at a time, each for one request and for a while only.
//!
//! | limit | value |
//! |---|---|
//! | connections at once | 64; others wait in the queue of the operating system |
//! | of these streams of events | 8; a further one is answered 503 |
//! | connections accepted | 500 per second |
//! | request line with headers | 8 KiB, 64 headers; read within 1 s |
//! | an answer that is not a stream | read within 10 s |
//! | methods | GET and HEAD; a body is not read |

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::io;
use std::net::TcpListener;
use std::rc::Rc;
use std::time::Duration;

use hyper::body::{Bytes, Incoming};
use hyper::header::{self, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::task::LocalSet;
use tokio::time::{Instant, sleep, timeout};

use super::answers::{Answer, Answers};
use super::events::{self, Events, Reply};
use super::live::State;

const MAX_CONNECTIONS: usize = 64;
const MAX_STREAMS: usize = 8;
const MAX_HEADERS: usize = 64;
const MAX_HEAD_BYTES: usize = 8192;
const HEAD_WITHIN: Duration = Duration::from_secs(1);
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
const BETWEEN_CONNECTIONS: Duration = Duration::from_millis(2);
/// How often it is looked whether the run has ended.
const LOOK: Duration = Duration::from_millis(100);
/// After the end, who watches is served on for so long at most.
const FAREWELL: Duration = Duration::from_secs(2);
/// Who was told of the end by a stream fetches what there is then within so long.
const LAST_FETCH: Duration = Duration::from_millis(500);

const HEADERS: [(header::HeaderName, &str); 6] = [
    (header::CACHE_CONTROL, "no-store"),
    (header::CONNECTION, "close"),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'self'; connect-src 'self'; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'",
    ),
];

/// Serves until the run has ended, and then who watches for a little longer.
///
/// # Errors
/// When the operating system gives no event loop. A connection that fails is nobody's business.
pub(super) fn serve(listener: TcpListener, answers: Answers) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    let local = LocalSet::new();
    local.block_on(&runtime, async {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let shared =
            Rc::new(Shared { answers: RefCell::new(answers), connections: Rc::default(), streams: Rc::default() });
        let (mut ended, mut watched): (Option<Instant>, Option<Instant>) = (None, None);
        let is_awaited = |watched: Option<Instant>| watched.is_some_and(|watched| watched.elapsed() < LAST_FETCH);
        while ended.is_none_or(|ended| is_awaited(watched) && ended.elapsed() < FAREWELL) {
            if shared.num_streams() > 0 {
                watched = Some(Instant::now());
            }
            if shared.answers.borrow().live.now().state == State::Ended {
                ended.get_or_insert_with(Instant::now);
            }
            if Rc::strong_count(&shared.connections) > MAX_CONNECTIONS {
                sleep(LOOK).await;
            } else if let Ok(accepted) = timeout(LOOK, listener.accept()).await {
                // A connection that is gone already, or no descriptor for it: the next one may do.
                if let Ok((stream, _)) = accepted {
                    tokio::task::spawn_local(connection(stream, Rc::clone(&shared)));
                }
                sleep(BETWEEN_CONNECTIONS).await;
            }
        }
        Ok(())
    })
}

/// What connections have in common. Each holds a clone of `connections`, each stream of events one of `streams`.
struct Shared {
    answers: RefCell<Answers>,
    connections: Rc<()>,
    streams: Rc<()>,
}

impl Shared {
    fn num_streams(&self) -> usize {
        Rc::strong_count(&self.streams) - 1
    }
}

async fn connection(stream: TcpStream, shared: Rc<Shared>) {
    let _counted = Rc::clone(&shared.connections);
    let is_stream = Cell::new(false);
    let service = service_fn(|request| {
        let reply = answer(&request, &shared);
        is_stream.set(matches!(reply.body(), Reply::Events(_)));
        async move { Ok::<_, Infallible>(reply) }
    });
    let mut http = http1::Builder::new();
    http.keep_alive(false).max_buf_size(MAX_HEAD_BYTES).max_header_size(MAX_HEAD_BYTES).max_headers(MAX_HEADERS);
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_WITHIN);
    let mut serving = std::pin::pin!(http.serve_connection(TokioIo::new(stream), service));
    // What goes wrong on a connection is the business of who opened it.
    if timeout(ANSWER_WITHIN, serving.as_mut()).await.is_err() && is_stream.get() {
        drop(timeout(events::LONGEST, serving).await);
    }
}

fn answer(request: &Request<Incoming>, shared: &Shared) -> Response<Reply> {
    let mut answers = shared.answers.borrow_mut();
    let host = request.headers().get(header::HOST).map(HeaderValue::to_str);
    let path = request.uri().path();
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut response = whole(text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n"));
        response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
        response
    } else if !host.is_none_or(|host| host.is_ok_and(|host| answers.is_meant(Some(host)))) {
        whole(text(StatusCode::MISDIRECTED_REQUEST, "only this machine is served; ask for localhost or 127.0.0.1\n"))
    } else if path != events::PATH {
        whole(answers.of(path))
    } else if shared.num_streams() >= MAX_STREAMS {
        whole(text(StatusCode::SERVICE_UNAVAILABLE, "too many watch\n"))
    } else {
        let events = Events::new(answers.live.clone(), Rc::clone(&shared.streams));
        response(StatusCode::OK, events::CONTENT_TYPE, Reply::Events(Box::new(events)))
    }
}

fn text(status: StatusCode, text: &'static str) -> Answer {
    (status, "text/plain; charset=utf-8", Bytes::from_static(text.as_bytes()))
}

fn whole((status, media_type, content): Answer) -> Response<Reply> {
    response(status, media_type, Reply::Whole(content))
}

fn response(status: StatusCode, media_type: &'static str, reply: Reply) -> Response<Reply> {
    let mut response = Response::new(reply);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
    headers.extend(HEADERS.map(|(name, value)| (name, HeaderValue::from_static(value))));
    response
}
