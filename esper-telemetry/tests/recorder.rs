//! What is in which packet, and what a recorder does when sinks fail and when it ends.

mod common;

use std::time::Duration;

use common::{FlakySink, GatedSink, HALT, LOSS, NOTE, PATIENCE, PanickingSink, STEPS, boundary, notes};
use common::{start, start_with_memory};
use esper_telemetry::packet::MAX_EVENTS;
use esper_telemetry::reader::FrameReader;
use esper_telemetry::sink::{FrameSink, JsonLinesSink, MemorySink};
use esper_telemetry::telemetry::{MISUSED_TOTAL, NON_FINITE_TOTAL};
use esper_telemetry::{Counts, Exposition};
use leyline::id::{EpochIndex, StepIndex};
use leyline::telemetry::{Boundary, Event, Health, HealthStatus, Level, Priority, Recorder};

fn note(n: u64) -> Event {
    Event::new(&NOTE).with("n", n)
}

fn halt(n: u64) -> Event {
    Event::new(&HALT).with("n", n)
}

#[test]
fn a_packet_says_where_when_and_who() {
    let (recorder, guard, log) = start_with_memory();
    let health = Health { status: HealthStatus::Degraded, summary: "latency_high".to_owned() };
    recorder.publish(Boundary { health: health.clone(), ..boundary(25) });
    assert!(guard.shutdown(PATIENCE).finished);
    let packet = log.last().unwrap();
    packet.validate().unwrap();
    assert_eq!((packet.run_id.as_str(), packet.source.as_str(), packet.sequence), ("run-1", "a", 1));
    assert_eq!((packet.epoch.0, packet.step.0, packet.created_unix_ms), (2, 25, 1_700_000_000_000));
    assert_eq!((packet.level, packet.priority, packet.health), (Level::Info, Priority::Normal, health));
}

#[test]
fn a_packet_holds_the_values_of_its_boundary_however_late_it_is_written() {
    let (sink, gate, log) = GatedSink::new();
    let (recorder, guard) = start(vec![Box::new(sink)], 8);
    let (loss, steps) = (recorder.gauge(&LOSS, &[]), recorder.counter(&STEPS, &[]));
    recorder.publish(boundary(0));
    gate.wait_until_stuck();
    for step in 1..=3 {
        loss.set(1.0 / step as f64);
        steps.add(1);
        recorder.publish(boundary(step));
    }
    loss.set_or_clear(None);
    recorder.publish(boundary(4));
    loss.set(9.0);
    drop(gate);
    assert!(guard.shutdown(PATIENCE).finished);
    let value = |name: &str| log.all().iter().map(|p| p.metric(name).map(|metric| metric.value)).collect::<Vec<_>>();
    assert_eq!(value("a.loss"), [None, Some(1.0), Some(0.5), Some(1.0 / 3.0), None]);
    assert_eq!(value("a.steps_total"), [0.0, 1.0, 2.0, 3.0, 3.0].map(Some));
}

#[test]
fn a_value_that_is_no_number_is_absent_and_counted() {
    let (recorder, guard, log) = start_with_memory();
    for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1.0] {
        recorder.gauge(&LOSS, &[]).set(value);
        recorder.publish(boundary(1));
    }
    recorder.publish(boundary(2));
    assert!(guard.shutdown(PATIENCE).finished);
    let found: Vec<_> = log.all().iter().map(|packet| packet.metric("a.loss").map(|metric| metric.value)).collect();
    assert_eq!(found, [None, None, None, Some(1.0), Some(1.0)]);
    assert_eq!(recorder.counter(&NON_FINITE_TOTAL, &[]).get(), 3);
    log.all().iter().for_each(|packet| packet.validate().unwrap());
}

#[test]
fn events_are_in_the_packet_of_the_next_boundary_in_the_order_of_their_recording() {
    let (recorder, guard, log) = start_with_memory();
    recorder.event(note(1));
    recorder.event(halt(2));
    recorder.event(note(3));
    recorder.publish(boundary(1));
    recorder.event(halt(4));
    recorder.publish(boundary(2));
    recorder.event(note(5));
    recorder.publish(boundary(3));
    recorder.publish(boundary(4));
    assert!(guard.shutdown(PATIENCE).finished);
    let packets = log.all();
    assert_eq!(packets.iter().map(notes).collect::<Vec<_>>(), [vec!["1", "2", "3"], vec!["4"], vec!["5"], vec![]]);
    let priorities: Vec<_> = packets.iter().map(|packet| packet.priority).collect();
    assert_eq!(priorities, [Priority::Critical, Priority::Critical, Priority::Normal, Priority::Normal]);
}

#[test]
fn events_without_a_boundary_come_with_the_shutdown_and_with_the_values() {
    let (recorder, guard, log) = start_with_memory();
    recorder.gauge(&LOSS, &[]).set(0.5);
    recorder.publish(boundary(30));
    recorder.event(note(1));
    recorder.gauge(&LOSS, &[]).set(0.25);
    assert!(guard.shutdown(PATIENCE).finished);
    let packet = log.last().unwrap();
    assert_eq!((packet.source.as_str(), packet.step.0, packet.sequence), ("telemetry", 30, 2));
    assert_eq!(notes(&packet), ["1"]);
    assert_eq!(packet.metric("a.loss").map(|metric| metric.value), Some(0.25));
}

#[test]
fn more_events_than_a_packet_holds_are_spread_over_packets() {
    let (recorder, guard, log) = start_with_memory();
    let total = MAX_EVENTS as u64 * 2 + 5;
    (0..total).for_each(|n| recorder.event(note(n)));
    recorder.publish(boundary(1));
    let stats = guard.shutdown(PATIENCE).stats;
    assert_eq!(stats.events, Counts { emitted: total, delivered: total, dropped: 0 });
    let sizes: Vec<_> = log.all().iter().map(|packet| packet.events.len()).collect();
    assert_eq!(sizes, [MAX_EVENTS, MAX_EVENTS, 5]);
    log.all().iter().for_each(|packet| packet.validate().unwrap());
}

#[test]
fn long_texts_are_cut_and_the_packet_stays_valid() {
    let (recorder, guard, log) = start_with_memory();
    recorder.event(Event::new(&NOTE).with("n", "é".repeat(5_000)));
    let health = Health { status: HealthStatus::Unhealthy, summary: "é".repeat(5_000) };
    recorder.publish(Boundary { health, source: "not a name", ..boundary(1) });
    assert!(guard.shutdown(PATIENCE).finished);
    let packet = log.last().unwrap();
    packet.validate().unwrap();
    assert_eq!((packet.source.as_str(), packet.health.summary.len()), ("unknown", 1024));
    assert_eq!(packet.events[0].attributes["n"].len(), 1024);
}

#[test]
fn a_sink_that_fails_is_counted_each_time_and_reported_once_per_edge() {
    let sink = MemorySink::new();
    let log = sink.packets();
    let (recorder, guard) = start(vec![Box::new(FlakySink { fails_at: &[2, 3, 5] }), Box::new(sink)], 64);
    (1..=6).for_each(|step| recorder.publish(boundary(step)));
    let stats = guard.shutdown(PATIENCE).stats;
    assert_eq!((stats.packets.delivered, stats.packets.dropped), (7, 0), "the other sink took them");
    let seen: Vec<(u64, Vec<_>)> = log
        .all()
        .iter()
        .map(|packet| (packet.sequence, packet.events.iter().map(|event| event.name.clone()).collect()))
        .filter(|(_, events): &(_, Vec<_>)| !events.is_empty())
        .collect();
    let (failed, recovered) = ("esper.telemetry.sink_failed", "esper.telemetry.sink_recovered");
    // What happens while packet n is written is told by packet n + 1.
    let expected = [(3, failed), (5, recovered), (6, failed), (7, recovered)];
    assert_eq!(seen, expected.map(|(sequence, name)| (sequence, vec![name.to_owned()])));
    let failure = &log.all()[2].events[0];
    assert_eq!(failure.attributes["error"], "the sink failed: no luck");
    let errors = log.last().unwrap().metric("esper.telemetry.sink_errors_total").map(|metric| metric.value);
    assert_eq!(errors, Some(3.0));
    let scraped = Exposition::new(&recorder, Vec::new()).text();
    for (name, level) in [(failed, "error"), (recovered, "info")] {
        let line = format!("esper_events_total{{event=\"{name}\",level=\"{level}\"}} 2.0\n");
        assert!(scraped.contains(&line), "{scraped}");
    }
}

#[test]
fn what_no_sink_accepts_is_dropped() {
    let (recorder, guard) = start(vec![Box::new(FlakySink { fails_at: &[2] })], 64);
    (1..=3).for_each(|n| {
        recorder.event(note(n));
        recorder.publish(boundary(n));
    });
    let stats = guard.shutdown(PATIENCE).stats;
    // Two events of its own tell of the failure; the second comes in a packet of its own at the end.
    assert_eq!(stats.events, Counts { emitted: 5, delivered: 4, dropped: 1 });
    assert_eq!(stats.packets, Counts { emitted: 4, delivered: 3, dropped: 1 });
}

#[test]
fn without_sinks_nothing_is_lost() {
    let (recorder, guard) = start(vec![], 64);
    recorder.event(note(1));
    recorder.publish(boundary(1));
    assert_eq!(guard.shutdown(PATIENCE).stats.events, Counts { emitted: 1, delivered: 1, dropped: 0 });
}

#[test]
fn a_panicking_sink_ends_the_worker_and_not_the_count() {
    let (recorder, guard) = start(vec![Box::new(PanickingSink)], 4);
    for n in 0..100 {
        recorder.event(note(n));
        recorder.publish(boundary(n));
    }
    let shutdown = guard.shutdown(PATIENCE);
    assert!(!shutdown.finished);
    assert_eq!(shutdown.stats.events, Counts { emitted: 100, delivered: 0, dropped: 100 });
    assert_eq!(shutdown.stats.packets, Counts { emitted: 100, delivered: 0, dropped: 100 });
}

#[test]
fn a_shutdown_that_runs_out_of_time_returns_and_says_what_is_in_flight() {
    let (sink, gate, log) = GatedSink::new();
    let (recorder, guard) = start(vec![Box::new(sink)], 4);
    recorder.publish(boundary(1));
    gate.wait_until_stuck();
    recorder.event(note(1));
    let shutdown = guard.shutdown(Duration::ZERO);
    assert!(!shutdown.finished);
    assert_eq!((shutdown.stats.events.in_flight(), shutdown.stats.packets.in_flight()), (1, 1));
    drop(gate);
    while recorder.stats().events.in_flight() > 0 {
        std::thread::yield_now();
    }
    assert_eq!(recorder.stats().events.delivered, 1);
    assert_eq!(log.all().len(), 2);
}

#[test]
fn a_closed_recorder_drops_and_counts() {
    let (recorder, guard, log) = start_with_memory();
    drop(guard);
    recorder.event(halt(1));
    recorder.publish(boundary(1));
    recorder.gauge(&LOSS, &[]).set(1.0);
    assert_eq!(recorder.stats().events, Counts { emitted: 1, delivered: 0, dropped: 1 });
    assert_eq!(recorder.stats().packets, Counts { emitted: 1, delivered: 0, dropped: 1 });
    assert_eq!(log.all(), []);
}

#[test]
fn what_comes_after_the_end_of_a_run_is_no_loss() {
    let (recorder, guard, log) = start_with_memory();
    let exposition = Exposition::new(&recorder, Vec::new());
    recorder.gauge(&LOSS, &[]).set(0.5);
    recorder.publish(boundary(1));
    let stats = guard.end_run(PATIENCE).stats;
    let scraped = exposition.text();
    assert!(scraped.contains("esper_a_loss 0.5\n") && scraped.contains("packets_total 1.0\n"), "{scraped}");
    recorder.event(halt(1));
    recorder.gauge(&LOSS, &[]).set(0.25);
    recorder.counter(&STEPS, &[]).add(1);
    recorder.publish(boundary(2));
    assert_eq!((recorder.stats(), recorder.undelivered()), (stats, Vec::new()));
    assert_eq!(log.all().len(), 1);
    assert_eq!(exposition.text(), scraped);
}

#[test]
fn the_last_packet_of_a_run_has_the_values_of_its_end_however_late_it_is_written() {
    let (sink, gate, log) = GatedSink::new();
    let (recorder, guard) = start(vec![Box::new(sink)], 8);
    recorder.gauge(&LOSS, &[]).set(0.5);
    recorder.publish(boundary(1));
    gate.wait_until_stuck();
    recorder.event(note(1));
    assert!(!guard.end_run(Duration::ZERO).finished);
    recorder.gauge(&LOSS, &[]).set(0.25);
    drop(gate);
    while recorder.stats().events.in_flight() > 0 {
        std::thread::yield_now();
    }
    let packet = log.last().unwrap();
    assert_eq!((notes(&packet), packet.metric("a.loss").map(|metric| metric.value)), (vec!["1".to_owned()], Some(0.5)));
}

#[test]
fn a_boundary_that_takes_the_name_of_the_recorder_gets_another() {
    let (recorder, guard, log) = start_with_memory();
    recorder.publish(Boundary { source: "telemetry", ..boundary(1) });
    assert!(guard.shutdown(PATIENCE).finished);
    assert_eq!(log.last().unwrap().source, "unknown");
    assert_eq!(recorder.counter(&MISUSED_TOTAL, &[]).get(), 1);
}

#[test]
fn a_run_that_is_resumed_and_ends_before_its_first_boundary_is_where_it_was() {
    let (recorder, guard, log) = start_with_memory();
    recorder.event(note(1));
    recorder.resumed_at(EpochIndex(3), StepIndex(30));
    assert!(guard.shutdown(PATIENCE).finished);
    let packet = log.last().unwrap();
    assert_eq!((packet.source.as_str(), packet.epoch.0, packet.step.0), ("telemetry", 3, 30));
}

#[test]
fn a_resumed_run_goes_on_counting_where_its_file_ends() {
    let dir = tempfile::tempdir().unwrap();
    let frames = dir.path().join("packets.bin");
    let lines = dir.path().join("packets.jsonl");
    for _ in 0..2 {
        let (recorder, guard) = start(
            vec![Box::new(FrameSink::append(&frames).unwrap()), Box::new(JsonLinesSink::append(&lines).unwrap())],
            64,
        );
        recorder.event(halt(1));
        (1..=3).for_each(|step| recorder.publish(boundary(step)));
        assert!(guard.shutdown(PATIENCE).finished);
    }
    let packets: Vec<_> = FrameReader::open(&frames).unwrap().map(Result::unwrap).collect();
    assert!(packets.iter().map(|packet| packet.sequence).eq(1..=6));
    let expected: Vec<_> = packets.iter().map(|packet| serde_json::to_string(packet).unwrap()).collect();
    let text = std::fs::read_to_string(&lines).unwrap();
    assert_eq!(text.lines().collect::<Vec<_>>(), expected, "both sinks hold the same packets");
}
