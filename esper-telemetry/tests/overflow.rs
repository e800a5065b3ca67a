//! Nothing is lost without being counted, and nobody waits: with a sink that is stuck, and under contention.

mod common;

use std::thread;

use common::{GatedSink, HALT, NOTE, PATIENCE, PanickingSink, boundary, start};
use esper_telemetry::sink::{MemorySink, REMOTE_QUEUE, Sink};
use esper_telemetry::{Counts, Error, Packet, Shutdown, Stats};
use leyline::telemetry::{Event, Recorder};

#[test]
fn with_a_stuck_sink_calls_return_and_the_loss_is_exact() {
    let (sink, gate, log) = GatedSink::new();
    let (recorder, guard) = start(vec![Box::new(sink)], 8);
    recorder.publish(boundary(1));
    gate.wait_until_stuck();

    // The common queue takes 8 of 20, and has no room for the boundary; critical ones find room.
    (0..20).for_each(|n| recorder.event(Event::new(&NOTE).with("n", n)));
    (0..5).for_each(|n| recorder.event(Event::new(&HALT).with("n", n)));
    recorder.publish(boundary(2));
    let events = Counts { emitted: 25, delivered: 0, dropped: 12 };
    let packets = Counts { emitted: 2, delivered: 0, dropped: 1 };
    assert_eq!(recorder.stats(), Stats { events, packets });
    assert_eq!(events.in_flight(), 13);

    drop(gate);
    // The events that no boundary followed come in a packet of the recorder's own.
    let events = Counts { emitted: 25, delivered: 13, dropped: 12 };
    let packets = Counts { emitted: 3, delivered: 2, dropped: 1 };
    assert_eq!(guard.shutdown(PATIENCE), Shutdown { finished: true, stats: Stats { events, packets } });
    let found: Vec<_> = log.all().iter().map(common::notes).collect();
    let expected = ["0", "1", "2", "3", "4", "5", "6", "7", "0", "1", "2", "3", "4"].map(str::to_owned);
    assert_eq!(found, [vec![], expected.to_vec()]);
}

#[test]
fn a_flood_of_ordinary_events_costs_no_critical_one() {
    let (sink, gate, log) = GatedSink::new();
    let (recorder, guard) = start(vec![Box::new(sink)], 4);
    recorder.publish(boundary(1));
    gate.wait_until_stuck();
    (0..1_000).for_each(|n| recorder.event(Event::new(&NOTE).with("n", n)));
    (0..4).for_each(|n| recorder.event(Event::new(&HALT).with("n", n)));
    drop(gate);
    let stats = guard.shutdown(PATIENCE).stats;
    assert_eq!(stats.events, Counts { emitted: 1_004, delivered: 8, dropped: 996 });
    let halts = log.all().iter().flat_map(|packet| &packet.events).filter(|event| event.name == HALT.name).count();
    assert_eq!(halts, 4);
}

#[test]
fn the_loss_is_in_the_next_packet() {
    let (sink, gate, log) = GatedSink::new();
    let (recorder, guard) = start(vec![Box::new(sink)], 4);
    recorder.publish(boundary(1));
    gate.wait_until_stuck();
    (0..3).for_each(|_| recorder.event(Event::new(&NOTE).with("n", 0)));
    (0..3).for_each(|step| recorder.publish(boundary(step)));
    drop(gate);
    while recorder.stats().packets.in_flight() > 0 {
        thread::yield_now();
    }
    recorder.publish(boundary(4));
    assert!(guard.shutdown(PATIENCE).finished);
    let last = log.last().unwrap();
    let dropped = |kind: &str| {
        let of_kind = |metric: &&esper_telemetry::packet::Metric| {
            metric.name == "esper.telemetry.dropped_total" && metric.labels["kind"] == kind
        };
        last.metrics.iter().find(of_kind).map(|metric| metric.value)
    };
    assert_eq!((dropped("event"), dropped("packet")), (Some(0.0), Some(2.0)));
}

#[test]
fn a_remote_sink_that_is_stuck_costs_its_own_packets_and_critical_ones_have_their_reserve() {
    let (sink, gate, far) = GatedSink::remote();
    let near = MemorySink::new();
    let near_log = near.packets();
    let (recorder, guard) = start(vec![Box::new(sink), Box::new(near)], 1024);
    recorder.publish(boundary(0));
    gate.wait_until_stuck();
    let room = REMOTE_QUEUE as u64;
    (1..=room + 5).for_each(|step| recorder.publish(boundary(step)));
    recorder.event(Event::new(&HALT).with("n", "halt"));
    recorder.publish(boundary(room + 6));
    while near_log.all().len() as u64 <= room + 6 {
        thread::yield_now();
    }
    drop(gate);
    let stats = guard.shutdown(PATIENCE).stats;
    let all = room + 7;
    assert_eq!(stats.packets, Counts { emitted: all, delivered: all, dropped: 0 }, "one sink had each");
    let steps: Vec<u64> = far.all().iter().map(|packet| packet.step.0).collect();
    let expected: Vec<u64> = [0, room + 6].into_iter().chain(1..=room).collect();
    assert_eq!(steps, expected, "the critical one first, and what the queue had room for");
}

#[test]
fn what_a_remote_sink_alone_did_not_take_is_dropped_and_counted() {
    let (sink, gate, log) = GatedSink::remote();
    let (recorder, guard) = start(vec![Box::new(sink)], 1024);
    recorder.publish(boundary(0));
    gate.wait_until_stuck();
    let room = REMOTE_QUEUE as u64;
    (1..=room + 5).for_each(|step| recorder.publish(boundary(step)));
    while recorder.stats().packets.dropped < 5 {
        thread::yield_now();
    }
    assert_eq!(recorder.stats().packets, Counts { emitted: room + 6, delivered: 0, dropped: 5 });
    drop(gate);
    let counts = guard.shutdown(PATIENCE).stats.packets;
    assert_eq!(counts, Counts { emitted: room + 6, delivered: room + 1, dropped: 5 });
    assert_eq!(log.all().len() as u64, room + 1);
}

#[test]
fn a_remote_sink_that_panics_is_replaced_by_the_count_of_what_it_lost() {
    let (recorder, guard) = start(vec![Box::new(Remote(PanickingSink))], 1024);
    (1..=20).for_each(|step| recorder.publish(boundary(step)));
    let ended = guard.shutdown(PATIENCE);
    assert!(ended.finished, "the worker goes on without it");
    assert_eq!(ended.stats.packets, Counts { emitted: 20, delivered: 0, dropped: 20 });
}

/// On a thread of its own.
#[derive(Debug)]
struct Remote<S>(S);

impl<S: Sink> Sink for Remote<S> {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn write(&mut self, packet: &Packet) -> Result<(), Error> {
        self.0.write(packet)
    }

    fn is_remote(&self) -> bool {
        true
    }
}

#[test]
fn under_contention_every_event_is_delivered_or_counted() {
    const THREADS: u64 = 4;
    const EVENTS: u64 = 5_000;
    let sink = MemorySink::new();
    let log = sink.packets();
    let (recorder, guard) = start(vec![Box::new(sink)], 16);
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for n in 0..EVENTS {
                    recorder.event(Event::new(if n % 10 == 0 { &HALT } else { &NOTE }).with("n", n));
                    if n % 50 == 0 {
                        recorder.publish(boundary(n));
                    }
                }
            });
        }
        // Closing in the middle of it must not lose count either.
        while recorder.stats().events.emitted < THREADS * EVENTS / 2 {
            thread::yield_now();
        }
        assert!(guard.shutdown(PATIENCE).finished);
    });
    let Stats { events, packets } = recorder.stats();
    assert_eq!(events.emitted, THREADS * EVENTS);
    assert_eq!(events.in_flight(), 0, "{events:?}");
    assert_eq!(packets.in_flight(), 0, "{packets:?}");
    assert_eq!(packets.delivered, log.all().len() as u64);
    assert_eq!(events.delivered, log.all().iter().map(|packet| packet.events.len() as u64).sum::<u64>());
    assert!(log.all().iter().map(|packet| packet.sequence).eq(1..=packets.delivered));
}
