//! Packets to an OpenTelemetry collector: metrics as metrics, events as log records, as protocol buffers over HTTP (OTLP).
//!
//! | limit | value |
//! |---|---|
//! | packets that wait | [`REMOTE_QUEUE`](crate::sink::REMOTE_QUEUE), as many behind a critical one that the collector did not take, and all critical ones, which go first |
//! | a packet, with all attempts | 2 s, or what the sink is told |
//! | an answer | 64 KiB; of its text 200 bytes are told |
//! | redirects, proxies of the environment, credentials | none |

mod encode;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use leyline::clock::Clock;
use leyline::id::RunId;
use opentelemetry_proto::tonic::collector::logs::v1::{ExportLogsServiceRequest, ExportLogsServiceResponse};
use opentelemetry_proto::tonic::collector::metrics::v1::{ExportMetricsServiceRequest, ExportMetricsServiceResponse};
use opentelemetry_proto::tonic::logs::v1::{ResourceLogs, ScopeLogs};
use opentelemetry_proto::tonic::metrics::v1::{ResourceMetrics, ScopeMetrics};
use opentelemetry_proto::tonic::resource::v1::Resource;
use prost::Message;
use ureq::http::{StatusCode, Uri};

use crate::error::Error;
use crate::name::clip;
use crate::packet::Packet;
use crate::sink::Sink;

/// How long a packet may take, with all attempts, before it is given up.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Before the second attempt; twice as long before each further one.
const FIRST_WAIT: Duration = Duration::from_millis(50);
const MAX_ANSWER: u64 = 64 << 10;
const MAX_TOLD: usize = 200;
/// Answers after which the same request may succeed.
const LATER: [u16; 4] = [429, 502, 503, 504];

/// Where a collector takes OTLP over HTTP: `http://HOST:PORT`, perhaps with a path, to which `/v1/metrics` and `/v1/logs` are added.
///
/// ```
/// use esper_telemetry::sink::Endpoint;
///
/// assert!("http://127.0.0.1:4318".parse::<Endpoint>()?.is_local());
/// assert!("https://collector:4318".parse::<Endpoint>().is_err());
/// # Ok::<(), &str>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    url: String,
    is_local: bool,
}

impl Endpoint {
    /// Whether what is sent stays on this machine.
    #[must_use]
    pub fn is_local(&self) -> bool {
        self.is_local
    }
}

impl FromStr for Endpoint {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let expected = "expected http://HOST:PORT like http://127.0.0.1:4318, without user, query or fragment; what is to be encrypted goes to a \
            collector on this machine, which passes it on";
        let uri: Uri = text.parse().map_err(|_| expected)?;
        let host = uri.host().unwrap_or_default();
        let plain =
            uri.scheme_str() == Some("http") && uri.query().is_none() && !text.contains('#') && !host.is_empty();
        if !plain || uri.port_u16().is_none() || uri.authority().is_some_and(|all| all.as_str().contains('@')) {
            return Err(expected);
        }
        let address = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
        let is_local = address.map_or(host == "localhost", |address| address.is_loopback());
        Ok(Self { url: text.trim_end_matches('/').to_owned(), is_local })
    }
}

/// Sends each packet to a collector: its metrics under the names and in the units of [`OtlpName`](crate::prometheus::OtlpName), gauges as gauges
/// and counters as cumulative sums that begin with this recorder; its events as log records. The run is `service.instance.id` of the resource.
///
/// A packet counts as delivered when the collector has taken all of it. A request that fails is repeated where that may help, for two seconds of a packet in all;
/// a packet with critical events is then offered again, unless the collector answered that it will not take it, so that it may get parts of one twice.
/// A receiver that has no `/v1/logs` gets metrics alone, which is told once.
#[derive(Debug)]
pub struct OtlpSink {
    agent: ureq::Agent,
    endpoint: Endpoint,
    resource: Resource,
    clock: Arc<dyn Clock>,
    started_unix_nano: u64,
    timeout: Duration,
    takes_logs: bool,
}

impl OtlpSink {
    /// A sink of a run that begins now. Nothing is sent yet.
    #[must_use]
    pub fn new(endpoint: Endpoint, run: &RunId, clock: Arc<dyn Clock>) -> Self {
        let config = ureq::Agent::config_builder()
            .proxy(None)
            .max_redirects(0)
            .http_status_as_error(false)
            .user_agent(concat!("esper/", env!("CARGO_PKG_VERSION")));
        Self {
            agent: config.build().new_agent(),
            endpoint,
            resource: encode::resource(run),
            started_unix_nano: u64::try_from(clock.unix().as_nanos()).unwrap_or(u64::MAX),
            clock,
            timeout: TIMEOUT,
            takes_logs: true,
        }
    }

    /// With another limit than two seconds for a packet, all attempts included.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sends until the collector takes it, refuses it, or it is too late.
    fn send<A: Answer>(&self, path: &str, bytes: &[u8], deadline: Duration) -> Result<(), Refusal> {
        let mut wait = FIRST_WAIT;
        loop {
            let left = deadline.saturating_sub(self.clock.now());
            let refused = match self.attempt::<A>(path, bytes, left) {
                Err(refused) if refused.may_pass() && left > wait => refused,
                ended => return ended,
            };
            tracing::debug!(%refused, "a collector is asked again");
            thread::sleep(wait);
            wait *= 2;
        }
    }

    fn attempt<A: Answer>(&self, path: &str, bytes: &[u8], left: Duration) -> Result<(), Refusal> {
        let url = format!("{}{path}", self.endpoint.url);
        // Of no time at all the client makes one without end.
        let left = left.max(Duration::from_millis(1));
        let request = self.agent.post(url).config().timeout_global(Some(left)).build();
        let mut response = request.content_type("application/x-protobuf").send(bytes)?;
        let answer = response.body_mut().with_config().limit(MAX_ANSWER).read_to_vec()?;
        match response.status() {
            StatusCode::OK => {}
            status => return Err(Refusal::Status(status.as_u16())),
        }
        let answer = A::decode(&*answer).map_err(|_| Refusal::Unreadable)?;
        match answer.rejected() {
            Some((rejected, message)) if rejected > 0 => {
                Err(Refusal::Partial { rejected, message: clip(message, MAX_TOLD).to_owned() })
            }
            _ => Ok(()),
        }
    }
}

impl Sink for OtlpSink {
    fn name(&self) -> &'static str {
        "otlp"
    }

    fn is_remote(&self) -> bool {
        true
    }

    fn takes_events(&self) -> bool {
        self.takes_logs
    }

    fn write(&mut self, packet: &Packet) -> Result<(), Error> {
        let deadline = self.clock.now() + self.timeout;
        let failed = |refusal: Refusal| match refusal.is_for_good() {
            true => Error::Refused(refusal.into()),
            false => Error::Sink(refusal.into()),
        };
        let (resource, scope) = (Some(self.resource.clone()), Some(encode::scope()));
        // Events first: the next packet has the metrics again.
        if self.takes_logs && !packet.events.is_empty() {
            let scope_logs =
                ScopeLogs { scope: scope.clone(), log_records: encode::logs(packet), ..ScopeLogs::default() };
            let of_run =
                ResourceLogs { resource: resource.clone(), scope_logs: vec![scope_logs], ..ResourceLogs::default() };
            let bytes = ExportLogsServiceRequest { resource_logs: vec![of_run] }.encode_to_vec();
            match self.send::<ExportLogsServiceResponse>("/v1/logs", &bytes, deadline) {
                Err(Refusal::Status(404)) => {
                    tracing::warn!("{} has no /v1/logs: it gets metrics without events", self.endpoint.url);
                    self.takes_logs = false;
                }
                sent => sent.map_err(failed)?,
            }
        }
        let metrics = encode::metrics(packet, self.started_unix_nano);
        let scope_metrics = ScopeMetrics { scope, metrics, ..ScopeMetrics::default() };
        let of_run = ResourceMetrics { resource, scope_metrics: vec![scope_metrics], ..ResourceMetrics::default() };
        let bytes = ExportMetricsServiceRequest { resource_metrics: vec![of_run] }.encode_to_vec();
        self.send::<ExportMetricsServiceResponse>("/v1/metrics", &bytes, deadline).map_err(failed)
    }
}

/// What a collector answers.
trait Answer: Message + Default {
    /// How much of the request it did not take, and why.
    fn rejected(&self) -> Option<(i64, &str)>;
}

impl Answer for ExportMetricsServiceResponse {
    fn rejected(&self) -> Option<(i64, &str)> {
        self.partial_success.as_ref().map(|part| (part.rejected_data_points, part.error_message.as_str()))
    }
}

impl Answer for ExportLogsServiceResponse {
    fn rejected(&self) -> Option<(i64, &str)> {
        self.partial_success.as_ref().map(|part| (part.rejected_log_records, part.error_message.as_str()))
    }
}

/// Why a collector has not taken a request.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    Http(#[from] ureq::Error),
    Status(u16),
    Unreadable,
    Partial { rejected: i64, message: String },
}

impl Refusal {
    /// Whether the collector answered, and would answer the same another time. One that cannot be reached or is too slow may be better later.
    fn is_for_good(&self) -> bool {
        match self {
            Self::Http(error) => matches!(error, ureq::Error::BodyExceedsLimit(_)),
            Self::Status(status) => !LATER.contains(status),
            Self::Unreadable | Self::Partial { .. } => true,
        }
    }

    /// Whether the same request may be taken within the time of its packet.
    fn may_pass(&self) -> bool {
        match self {
            Self::Http(error) => matches!(error, ureq::Error::Io(_) | ureq::Error::ConnectionFailed),
            Self::Status(status) => LATER.contains(status),
            Self::Unreadable | Self::Partial { .. } => false,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Http(error) => write!(f, "the collector cannot be asked: {error}"),
            Self::Status(status) => write!(f, "the collector answers {status}"),
            Self::Unreadable => write!(f, "the collector answers what is not OTLP"),
            // Of the text of somebody else nothing gets to a terminal as it is.
            Self::Partial { rejected, message } => {
                write!(f, "the collector rejects {rejected} of a packet: {message:?}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_a_plain_address_and_says_whether_it_is_of_this_machine() {
        for (text, expected) in [
            ("http://127.0.0.1:4318", Some(true)),
            ("http://[::1]:4318/", Some(true)),
            ("http://localhost:9090/api/v1/otlp", Some(true)),
            ("http://collector.example:4318", Some(false)),
            ("http://10.0.0.1:4318", Some(false)),
            ("http://127.0.0.1.example:4318", Some(false)),
            ("http://127.0.0.1", None),
            ("https://127.0.0.1:4318", None),
            ("http://me:secret@127.0.0.1:4318", None),
            ("http://127.0.0.1:4318/?a=b", None),
            ("http://127.0.0.1:4318/#x", None),
            ("127.0.0.1:4318", None),
            ("", None),
        ] {
            let found = text.parse::<Endpoint>().ok().map(|endpoint| endpoint.is_local());
            assert_eq!(found, expected, "{text:?}");
        }
    }
}
