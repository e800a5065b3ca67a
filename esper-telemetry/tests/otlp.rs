//! The sink for collectors against receivers on this machine: what they get, and what becomes of a run whose receiver does not work..
#![cfg(feature = "otlp")]
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod common;
#[path = "otlp/receiver.rs"]
mod receiver;

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use common::{HALT, LOSS, NOTE, PATIENCE, STEPS, boundary, start};
use esper_telemetry::sink::{Endpoint, MemorySink, OtlpSink, PacketLog, Sink};
use esper_telemetry::telemetry::SINK_ERRORS_TOTAL;
use esper_telemetry::{Counts, TelemetryRecorder};
use leyline::clock::{Clock, SystemClock};
use leyline::id::RunId;
use leyline::telemetry::{Event, Recorder as _};
use opentelemetry_proto::tonic::collector::logs::v1::{
    ExportLogsPartialSuccess, ExportLogsServiceRequest, ExportLogsServiceResponse,
};
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::{Metric, number_data_point};
use prost::Message as _;
use receiver::{Receiver, Reply};

/// Of a receiver that does not answer.
const SHORT: Duration = Duration::from_millis(10);

fn sink(url: &str, timeout: Duration) -> Box<dyn Sink> {
    let endpoint: Endpoint = url.parse().unwrap();
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    Box::new(OtlpSink::new(endpoint, &RunId::new("run-1").unwrap(), clock).with_timeout(timeout))
}

/// Packets and events of so many boundaries, with a critical event before the first.
fn publish(recorder: &TelemetryRecorder, number: u64) {
    recorder.event(Event::new(&HALT).with("n", "halt"));
    for step in 1..=number {
        recorder.gauge(&LOSS, &[]).set(0.25);
        recorder.counter(&STEPS, &[]).add(2);
        recorder.event(Event::new(&NOTE).with("n", step));
        recorder.publish(boundary(step));
    }
}

fn metrics(body: &[u8]) -> Vec<Metric> {
    let request = ExportMetricsServiceRequest::decode(body).unwrap();
    request.resource_metrics.into_iter().flat_map(|run| run.scope_metrics).flat_map(|scope| scope.metrics).collect()
}

#[test]
fn a_receiver_gets_metrics_in_base_units_and_events_as_log_records_in_order() {
    let receiver = Receiver::start(|_, _| Reply::Ok(Vec::new()));
    let (recorder, guard) = start(vec![sink(&receiver.url(), PATIENCE)], 64);
    publish(&recorder, 2);
    let stats = guard.shutdown(PATIENCE).stats;
    assert_eq!(stats.packets, Counts { emitted: 2, delivered: 2, dropped: 0 });
    assert_eq!(stats.events, Counts { emitted: 3, delivered: 3, dropped: 0 });
    let got = receiver.got();
    let paths: Vec<&str> = got.iter().map(|(path, _)| path.as_str()).collect();
    assert_eq!(paths, ["/v1/logs", "/v1/metrics", "/v1/logs", "/v1/metrics"]);

    let request = ExportMetricsServiceRequest::decode(&*got[3].1).unwrap();
    let resource = request.resource_metrics[0].resource.as_ref().unwrap();
    let found: Vec<_> =
        resource.attributes.iter().map(|pair| (pair.key.as_str(), format!("{:?}", pair.value))).collect();
    assert!(found.iter().any(|(key, value)| *key == "service.instance.id" && value.contains("\"run-1\"")), "{found:?}");
    let found = metrics(&got[3].1);
    let of = |name: &str| found.iter().find(|metric| metric.name == name).unwrap();
    let Some(Data::Gauge(loss)) = &of("esper.a.loss").data else { panic!("{found:?}") };
    assert_eq!(loss.data_points[0].value, Some(number_data_point::Value::AsDouble(0.25)));
    let Some(Data::Sum(steps)) = &of("esper.a.steps").data else { panic!("{found:?}") };
    assert_eq!((steps.is_monotonic, steps.aggregation_temporality), (true, 2), "2 is cumulative");
    assert_eq!(steps.data_points[0].value, Some(number_data_point::Value::AsDouble(4.0)));
    assert!(steps.data_points[0].start_time_unix_nano > 0);
    let Some(Data::Sum(dropped)) = &of("esper.telemetry.dropped").data else { panic!("{found:?}") };
    assert_eq!(dropped.data_points.len(), 2, "one metric, a point for each set of labels");

    let logs = ExportLogsServiceRequest::decode(&*got[0].1).unwrap();
    let records = &logs.resource_logs[0].scope_logs[0].log_records;
    let found: Vec<_> = records
        .iter()
        .map(|record| (record.event_name.as_str(), record.severity_number, &*record.severity_text))
        .collect();
    assert_eq!(found, [("a.halt", 21, "critical"), ("a.note", 9, "info")]);
    assert_eq!(records[1].attributes[0].key, "n");
}

#[test]
fn a_request_is_repeated_where_that_may_help_and_only_there() {
    let answers = [503, 429, 200, 400, 200];
    let receiver = Receiver::start(move |path, nth| match (path, answers.get(nth)) {
        ("/v1/metrics", Some(200) | None) => Reply::Ok(Vec::new()),
        ("/v1/metrics", Some(status)) => Reply::Status(*status),
        _ => Reply::Status(404),
    });
    let (other, _) = memory();
    let (recorder, guard) = start(vec![sink(&receiver.url(), PATIENCE), other], 64);
    (1..=3).for_each(|step| recorder.publish(boundary(step)));
    guard.shutdown(PATIENCE);
    assert_eq!(errors(&recorder), 1, "that which was answered 400");
    let sent = receiver.got().iter().filter(|(path, _)| path == "/v1/metrics").count();
    // The recorder may have sent one more, about the sink that failed.
    assert!((5..=6).contains(&sent), "{sent}: three, two of them again");
}

/// Packets that did not get to the receiver.
fn errors(recorder: &TelemetryRecorder) -> u64 {
    recorder.counter(&SINK_ERRORS_TOTAL, &["otlp"]).get()
}

#[test]
fn a_receiver_of_metrics_alone_gets_them_and_what_is_taken_in_part_is_not_delivered() {
    let receiver =
        Receiver::start(|path, _| if path == "/v1/logs" { Reply::Status(404) } else { Reply::Ok(Vec::new()) });
    let (recorder, guard) = start(vec![sink(&receiver.url(), PATIENCE)], 64);
    publish(&recorder, 3);
    assert_eq!(guard.shutdown(PATIENCE).stats.packets, Counts { emitted: 3, delivered: 3, dropped: 0 });
    let paths: Vec<String> = receiver.got().into_iter().map(|(path, _)| path).collect();
    assert_eq!(paths, ["/v1/logs", "/v1/metrics", "/v1/metrics", "/v1/metrics"]);

    let partly = ExportLogsPartialSuccess { rejected_log_records: 1, error_message: "\u{1b}[31mno".to_owned() };
    let partly = ExportLogsServiceResponse { partial_success: Some(partly) }.encode_to_vec();
    let receiver = Receiver::start(move |_, _| Reply::Ok(partly.clone()));
    let (memory, log) = memory();
    let (recorder, guard) = start(vec![sink(&receiver.url(), PATIENCE), memory], 64);
    recorder.event(Event::new(&NOTE).with("n", 1));
    recorder.publish(boundary(1));
    guard.shutdown(PATIENCE);
    let told: Vec<String> = log
        .all()
        .iter()
        .flat_map(|packet| &packet.events)
        .filter_map(|event| event.attributes.get("error").cloned())
        .collect();
    assert_eq!(told, ["the sink refuses the packet: the collector rejects 1 of a packet: \"\\u{1b}[31mno\""]);
}

fn memory() -> (Box<dyn Sink>, PacketLog) {
    let memory = MemorySink::new();
    let log = memory.packets();
    (Box::new(memory), log)
}

/// Whatever the receiver does, all that is published returns, another sink has everything, and no packet is lost without being counted.
#[track_caller]
fn check(url: &str) {
    const PACKETS: u64 = 300;
    let (other, log) = memory();
    let (recorder, guard) = start(vec![sink(url, SHORT), other], 1024);
    publish(&recorder, PACKETS);
    let ended = guard.shutdown(PATIENCE);
    assert!(ended.finished);
    let Counts { emitted, delivered, dropped } = ended.stats.packets;
    assert_eq!((delivered, dropped), (emitted, 0));
    assert_eq!(log.all().len() as u64, emitted);
    assert!(
        log.all().iter().flat_map(|packet| &packet.events).any(|event| event.name == "esper.telemetry.sink_failed")
    );
    // Each, and each further time that the critical one was offered.
    assert!(errors(&recorder) >= PACKETS, "{} of {emitted}", errors(&recorder));

    let (recorder, guard) = start(vec![sink(url, SHORT)], 1024);
    publish(&recorder, PACKETS);
    let stats = guard.shutdown(PATIENCE).stats;
    assert_eq!((stats.packets.in_flight(), stats.events.in_flight()), (0, 0));
    assert_eq!(stats.packets.delivered, 0, "{stats:?}");
    assert_eq!(recorder.undelivered(), [("a.halt", 1)]);
}

#[test]
fn a_receiver_that_comes_back_gets_the_critical_events_of_meanwhile_and_one_that_says_no_is_not_asked_again() {
    // Of 503 there are more than a packet has attempts in its time.
    for (answer, timeout, delivered) in [(503, Duration::from_millis(200), true), (400, PATIENCE, false)] {
        let receiver = Receiver::start(move |path, nth| match (path, nth) {
            ("/v1/logs", 0..8) => Reply::Status(answer),
            _ => Reply::Ok(Vec::new()),
        });
        let (recorder, guard) = start(vec![sink(&receiver.url(), timeout)], 64);
        recorder.event(Event::new(&HALT).with("n", "halt"));
        recorder.publish(boundary(1));
        guard.shutdown(PATIENCE);
        assert_eq!(recorder.undelivered().is_empty(), delivered, "{answer}");
        let number = receiver.got().iter().filter(|(path, _)| path == "/v1/logs").count();
        assert!(if delivered { number > 8 } else { number == 1 }, "{answer}: {number}");
    }
}

#[test]
fn a_receiver_that_is_closed_costs_its_own_packets_only() {
    // Nobody listens where somebody did.
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    check(&format!("http://{address}"));
}

#[test]
fn a_receiver_that_never_answers_costs_its_own_packets_only() {
    check(&Receiver::start(|_, _| Reply::Never).url());
}

#[test]
fn a_receiver_that_answers_a_byte_at_a_time_costs_its_own_packets_only() {
    check(&Receiver::start(|_, _| Reply::Trickles).url());
}

#[test]
fn an_answer_without_end_is_not_read() {
    check(&Receiver::start(|_, _| Reply::Ok(vec![0; 1 << 20])).url());
}
