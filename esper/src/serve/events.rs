//! Server-sent events: how far the run is, once a second when it moved.

use std::convert::Infallible;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::body::{Body, Bytes, Frame};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval};

use super::live::{Live, Now, State};

/// Where the page finds them.
pub(super) const PATH: &str = "/events";

/// Media type of the stream.
pub(super) const CONTENT_TYPE: &str = "text/event-stream";

/// A stream ends after so long; a browser opens another one.
pub(super) const LONGEST: Duration = Duration::from_secs(600);

/// Something is sent at least so often, so that a reader who left is noticed.
const SILENCE: Duration = Duration::from_secs(15);

/// What is written as an answer.
#[derive(Debug)]
pub(super) enum Reply {
    /// All of it at once.
    Whole(Bytes),
    /// As it comes.
    Events(Box<Events>),
}

/// A stream. What was not read yet is at most one event: the next one is made when there is room for it.
#[derive(Debug)]
pub(super) struct Events {
    live: Arc<Live>,
    tick: Interval,
    began: Instant,
    sent: Option<(Instant, Now)>,
    _slot: Rc<()>,
}

impl Events {
    pub(super) fn new(live: Arc<Live>, slot: Rc<()>) -> Self {
        let mut tick = interval(Duration::from_secs(1));
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { live, tick, began: Instant::now(), sent: None, _slot: slot }
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        loop {
            let has_told_the_end = self.sent.is_some_and(|(_, sent)| sent.state == State::Ended);
            if has_told_the_end || self.began.elapsed() > LONGEST {
                return Poll::Ready(None);
            }
            let at = ready!(self.tick.poll_tick(cx));
            let now = self.live.now();
            if self.sent.is_none_or(|(when, sent)| sent != now || at - when >= SILENCE) {
                self.sent = Some((at, now));
                let json = serde_json::to_string(&now).expect("numbers and a name can be written as JSON");
                return Poll::Ready(Some(format!("retry: 2000\ndata: {json}\n\n").into()));
            }
        }
    }
}

impl Body for Reply {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let next = match self.get_mut() {
            Self::Whole(bytes) => Some(std::mem::take(bytes)).filter(|bytes| !bytes.is_empty()),
            Self::Events(events) => ready!(events.poll_next(cx)),
        };
        Poll::Ready(next.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(bytes) if bytes.is_empty())
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        match self {
            Self::Whole(bytes) => hyper::body::SizeHint::with_exact(bytes.len() as u64),
            Self::Events(_) => hyper::body::SizeHint::default(),
        }
    }
}
