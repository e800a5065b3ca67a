//! A run of the command that sends its telemetry to a receiver on this machine..
#![cfg(feature = "otlp")]
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

#[path = "../../esper-telemetry/tests/otlp/receiver.rs"]
mod receiver;

use std::path::Path;
use std::sync::Arc;

use esper::run::{OtlpArgs, TrainArgs, train_quietly};
use esper_disk::StdFs;
use esper_telemetry::Packet;
use esper_telemetry::prometheus::OtlpName;
use esper_telemetry::reader::FrameReader;
use integration_tests::run_folder;
use receiver::{Receiver, Reply};

/// Trains; what was written meanwhile.
fn packets(dir: &Path, url: &str) -> Vec<Packet> {
    let otlp = OtlpArgs { otlp: Some(url.to_owned()), otlp_remote: false };
    let args = TrainArgs { otlp, ..run_folder::arguments(dir, Some(run_folder::settings())) };
    train_quietly(&args, Arc::new(StdFs)).unwrap();
    FrameReader::open(&args.out.unwrap().join("packets.bin")).unwrap().map(Result::unwrap).collect()
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|part| part == text.as_bytes())
}

#[test]
fn a_run_sends_every_packet_that_it_writes() {
    let dir = tempfile::tempdir().unwrap();
    let receiver = Receiver::start(|_, _| Reply::Ok(Vec::new()));
    let written = packets(dir.path(), &receiver.url());
    let got = receiver.got();
    let of = |wanted: &str| got.iter().filter(|(path, _)| path == wanted).map(|(_, body)| body).collect::<Vec<_>>();
    let (metrics, logs) = (of("/v1/metrics"), of("/v1/logs"));
    assert_eq!(metrics.len(), written.len());
    assert_eq!(logs.len(), written.iter().filter(|packet| !packet.events.is_empty()).count());
    for packet in &written {
        let is_whole = |body: &&Vec<u8>| {
            let names = packet.metrics.iter().map(|metric| OtlpName::of(&metric.name, metric.unit).name);
            contains(body, packet.run_id.as_str()) && names.into_iter().all(|name| contains(body, &name))
        };
        assert!(metrics.iter().copied().any(|body| is_whole(&body)), "packet {} was not sent whole", packet.sequence);
        for event in &packet.events {
            assert!(logs.iter().any(|body| contains(body, &event.name)), "{} was not sent", event.name);
        }
    }
}

#[test]
fn a_run_whose_receiver_does_not_work_writes_what_another_writes() {
    for reply in [Reply::Never, Reply::Trickles, Reply::Status(500)] {
        let dir = tempfile::tempdir().unwrap();
        let receiver = Receiver::start(move |_, _| reply.clone());
        let written = packets(dir.path(), &receiver.url());
        let epochs = written.iter().filter(|packet| packet.source == "tolaria").count();
        assert!(epochs >= 4, "{epochs}");
        assert!(written.iter().map(|packet| packet.sequence).eq(1..=written.len() as u64), "none is missing");
        assert!(!receiver.got().is_empty(), "it was asked");
    }
}
