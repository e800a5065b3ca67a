//! Critical events are dropped only where the process ends or a sink refuses them for good: with sinks that stall, fail for a while, or never work again.

mod common;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use common::{GatedSink, HALT, NOTE, PATIENCE, STEPS, boundary, notes, start, start_by};
use esper_disk::Fs;
use esper_disk::testkit::{Failure, FaultFs, SimFs, Which};
use esper_telemetry::packet::MAX_EVENTS;
use esper_telemetry::reader::FrameReader;
use esper_telemetry::sink::{FrameSink, MemorySink, PacketLog, Sink};
use esper_telemetry::{Counts, Error, Exposition, Packet, TelemetryRecorder};
use leyline::clock::{Clock as _, SystemClock};
use leyline::telemetry::{Event, Recorder as _};
use leyline_testkit::clock::ManualClock;

fn halt(n: u64) -> Event {
    Event::new(&HALT).with("n", n)
}

/// A clock that runs, and its time now.
fn timer() -> (SystemClock, Duration) {
    let clock = SystemClock::new();
    let now = clock.now();
    (clock, now)
}

/// Steps of `log` and what its events are, in its order.
fn seen(log: &PacketLog) -> Vec<(u64, Vec<String>)> {
    let of_callers = |packet: &Packet| packet.source != "telemetry";
    log.all().iter().filter(|packet| of_callers(packet)).map(|packet| (packet.step.0, told(packet))).collect()
}

fn told(packet: &Packet) -> Vec<String> {
    packet.events.iter().filter_map(|event| event.attributes.get("n").cloned()).collect()
}

/// The gauge of critical events that wait, as it is scraped.
fn waiting(recorder: &TelemetryRecorder) -> Option<f64> {
    let text = Exposition::new(recorder, Vec::new()).text();
    text.lines().find_map(|line| line.strip_prefix("esper_telemetry_critical_waiting ")?.parse().ok())
}

/// A sink that refuses while it is told to, and perhaps for good.
#[derive(Debug)]
struct Refusing {
    inner: MemorySink,
    left: Arc<AtomicUsize>,
    for_good: bool,
    is_remote: bool,
}

impl Refusing {
    /// Fails so many times.
    fn times(n: usize, is_remote: bool) -> (Self, Arc<AtomicUsize>, PacketLog) {
        let (inner, left) = (MemorySink::new(), Arc::new(AtomicUsize::new(n)));
        let log = inner.packets();
        (Self { inner, left: Arc::clone(&left), for_good: false, is_remote }, left, log)
    }
}

impl Sink for Refusing {
    fn name(&self) -> &'static str {
        "refusing"
    }

    fn write(&mut self, packet: &Packet) -> Result<(), Error> {
        match self.left.load(Ordering::Relaxed) {
            0 => self.inner.write(packet),
            n => {
                self.left.store(n - 1, Ordering::Relaxed);
                let error = "not now".into();
                Err(if self.for_good { Error::Refused(error) } else { Error::Sink(error) })
            }
        }
    }

    fn is_remote(&self) -> bool {
        self.is_remote
    }
}

#[test]
fn a_sink_that_stalls_costs_no_critical_event_and_no_call_waits_for_it() {
    const EVENTS: u64 = 100_000;
    let (sink, gate, log) = GatedSink::new();
    let (recorder, guard) = start(vec![Box::new(sink)], 8);
    assert_eq!(waiting(&recorder), Some(0.0), "from the start");
    recorder.publish(boundary(1));
    gate.wait_until_stuck();
    (0..EVENTS).for_each(|n| recorder.event(halt(n)));
    assert_eq!(recorder.stats().events, Counts { emitted: EVENTS, delivered: 0, dropped: 0 });
    assert_eq!(waiting(&recorder), Some(EVENTS as f64));
    assert_eq!(recorder.undelivered(), [("a.halt", EVENTS)]);
    drop(gate);
    assert_eq!(guard.shutdown(PATIENCE).stats.events, Counts { emitted: EVENTS, delivered: EVENTS, dropped: 0 });
    let found: Vec<String> = log.all().iter().flat_map(notes).collect();
    assert_eq!(found, (0..EVENTS).map(|n| n.to_string()).collect::<Vec<_>>());
    assert_eq!((waiting(&recorder), recorder.undelivered()), (Some(0.0), Vec::new()));
}

#[test]
fn counters_never_fall_where_critical_events_overtake_a_boundary() {
    let (sink, gate, log) = GatedSink::new();
    let (recorder, guard) = start(vec![Box::new(sink)], 8);
    let steps = recorder.counter(&STEPS, &[]);
    recorder.publish(boundary(1));
    gate.wait_until_stuck();
    steps.add(1);
    recorder.publish(boundary(2));
    steps.add(1);
    (0..=MAX_EVENTS as u64).for_each(|n| recorder.event(halt(n)));
    drop(gate);
    assert!(guard.shutdown(PATIENCE).finished);
    let packets = log.all();
    let sources: Vec<_> = packets.iter().map(|packet| (&*packet.source, packet.step.0)).collect();
    assert_eq!(sources, [("a", 1), ("telemetry", 1), ("a", 2), ("telemetry", 2)]);
    let counted = packets.iter().map(|packet| packet.metric("a.steps_total").map(|metric| metric.value));
    assert_eq!(counted.collect::<Vec<_>>(), [0.0, 0.0, 1.0, 2.0].map(Some));
}

#[test]
fn a_sink_that_fails_for_a_while_gets_critical_packets_then_in_order_with_what_came_between() {
    for is_remote in [false, true] {
        // The critical packet fails, and is tried with each of the next two.
        let (sink, _, log) = Refusing::times(3, is_remote);
        let (recorder, guard) = start(vec![Box::new(sink)], 64);
        recorder.event(halt(1));
        (1..=5).for_each(|step| recorder.publish(boundary(step)));
        recorder.event(halt(2));
        recorder.publish(boundary(6));
        let stats = guard.shutdown(PATIENCE).stats;
        let found = seen(&log);
        assert_eq!((stats.events.in_flight(), stats.packets.in_flight()), (0, 0), "remote {is_remote}: {stats:?}");
        assert_eq!(recorder.undelivered(), [], "remote {is_remote}");
        let mut steps: Vec<u64> = found.iter().map(|(step, _)| *step).collect();
        if is_remote {
            // Critical ones may overtake others on the way to a remote sink.
            steps.sort_unstable();
        }
        assert_eq!(steps, [1, 2, 3, 4, 5, 6], "remote {is_remote}");
        let critical: Vec<_> = found.into_iter().filter(|(_, told)| !told.is_empty()).collect();
        let expected = [(1, vec!["1".to_owned()]), (6, vec!["2".to_owned()])];
        assert_eq!(critical, expected, "remote {is_remote}");
    }
}

#[test]
fn what_waits_behind_a_critical_packet_is_bounded_and_counted_where_it_is_dropped() {
    const STEPS: u64 = 200;
    let (sink, left, log) = Refusing::times(usize::MAX, false);
    let (recorder, guard) = start(vec![Box::new(sink)], 1024);
    (1..=STEPS).for_each(|step| {
        if step % 2 == 1 {
            recorder.event(halt(step));
        }
        recorder.publish(boundary(step));
    });
    while recorder.stats().packets.dropped < STEPS / 2 - 32 {
        thread::yield_now();
    }
    left.store(0, Ordering::Relaxed);
    let stats = guard.shutdown(PATIENCE).stats;
    assert_eq!((stats.events.dropped, stats.events.in_flight()), (0, 0));
    let kept: Vec<u64> = seen(&log).iter().map(|(step, _)| *step).collect();
    // 64 of them have what is ordinary between.
    let expected: Vec<u64> = (1..=64).chain((65..=STEPS).step_by(2)).collect();
    assert_eq!(kept, expected);
}

#[test]
fn a_disk_that_is_full_for_a_while_costs_no_critical_event() {
    let disk = Arc::new(SimFs::default());
    let path = Path::new("/packets.bin");
    let full = Which::Named("write_at packets.bin".to_owned(), 1);
    let fs = FaultFs::failing_at(Arc::clone(&disk) as Arc<dyn Fs>, Failure::DiskFull, full);
    let sink = FrameSink::append_on(Arc::new(fs.clone()), path).unwrap();
    let (recorder, guard) = start(vec![Box::new(sink)], 64);
    recorder.publish(boundary(1));
    (2..=4).for_each(|step| {
        recorder.event(halt(step));
        recorder.publish(boundary(step));
    });
    // The first is written, each of the others fails once.
    let attempts = || fs.calls().iter().filter(|call| *call == "write_at packets.bin").count();
    while attempts() < 4 {
        thread::yield_now();
    }
    assert_eq!((recorder.stats().packets.delivered, waiting(&recorder)), (1, Some(3.0)));
    fs.recover();
    let stats = guard.shutdown(PATIENCE).stats;
    assert_eq!(stats.events.dropped, 0, "{stats:?}");
    assert_eq!(stats.packets.in_flight() + stats.packets.dropped, 0, "{stats:?}");
    let bytes = disk.read(path, 1 << 20).unwrap();
    let packets: Vec<Packet> = FrameReader::new(&*bytes, bytes.len() as u64).map(Result::unwrap).collect();
    assert!(packets.is_sorted_by_key(|packet| packet.sequence));
    assert_eq!(packets.iter().flat_map(told).collect::<Vec<_>>(), ["2", "3", "4"]);
}

#[test]
fn a_sink_that_works_again_is_offered_what_waits_though_nothing_new_comes() {
    for is_remote in [false, true] {
        let (sink, left, log) = Refusing::times(usize::MAX, is_remote);
        let (recorder, guard) = start_by(Arc::new(SystemClock::new()), vec![Box::new(sink)], 64);
        recorder.event(halt(1));
        recorder.publish(boundary(1));
        while left.load(Ordering::Relaxed) == usize::MAX {
            thread::yield_now();
        }
        left.store(0, Ordering::Relaxed);
        let (clock, since) = timer();
        while recorder.stats().packets.delivered == 0 && clock.now() - since < PATIENCE {
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(seen(&log), [(1, vec!["1".to_owned()])], "remote {is_remote}");
        guard.shutdown(PATIENCE);
    }
}

#[test]
fn what_no_sink_has_taken_at_the_end_is_counted_and_told_by_name_in_time() {
    for is_remote in [false, true] {
        let (sink, _, log) = Refusing::times(usize::MAX, is_remote);
        let (recorder, guard) = start(vec![Box::new(sink)], 64);
        (1..=3).for_each(|n| recorder.event(halt(n)));
        recorder.event(Event::new(&NOTE).with("n", 4));
        recorder.publish(boundary(1));
        let (clock, since) = timer();
        let ended = guard.shutdown(PATIENCE);
        let took = clock.now() - since;
        assert!(ended.finished && took < PATIENCE / 4, "remote {is_remote}: {took:?}");
        let Counts { emitted, delivered, dropped } = ended.stats.events;
        assert_eq!((delivered, dropped), (0, emitted), "remote {is_remote}");
        assert_eq!(recorder.undelivered(), [("a.halt", 3)], "remote {is_remote}");
        assert_eq!(waiting(&recorder), Some(0.0), "nothing is offered any more");
        assert_eq!(log.all(), []);
    }
}

#[test]
fn a_packet_that_is_refused_for_good_is_not_offered_again() {
    let (sink, _, log) = Refusing::times(1, false);
    let (recorder, guard) = start(vec![Box::new(Refusing { for_good: true, ..sink })], 64);
    recorder.event(halt(1));
    recorder.publish(boundary(1));
    recorder.event(halt(2));
    recorder.publish(boundary(2));
    let stats = guard.shutdown(PATIENCE).stats;
    assert_eq!((stats.events.dropped, stats.packets.dropped), (1, 1));
    assert_eq!(recorder.undelivered(), [("a.halt", 1)]);
    assert_eq!(seen(&log), [(2, vec!["2".to_owned()])]);
}

#[test]
fn a_sink_that_works_is_not_held_up_by_one_that_fails_and_each_gets_all() {
    let (failing, left, late) = Refusing::times(usize::MAX, false);
    let works = MemorySink::new();
    let log = works.packets();
    let (recorder, guard) = start(vec![Box::new(failing), Box::new(works)], 64);
    recorder.event(halt(1));
    recorder.publish(boundary(1));
    while recorder.stats().packets.delivered == 0 {
        thread::yield_now();
    }
    assert_eq!((seen(&log).len(), seen(&late).len()), (1, 0));
    assert_eq!((recorder.undelivered(), waiting(&recorder)), (Vec::new(), Some(1.0)), "one of two has it");
    left.store(0, Ordering::Relaxed);
    assert_eq!(guard.shutdown(PATIENCE).stats.events.dropped, 0);
    assert_eq!(seen(&late), seen(&log));
}

/// Keeps values alone.
#[derive(Debug)]
struct WithoutEvents(MemorySink);

impl Sink for WithoutEvents {
    fn name(&self) -> &'static str {
        "without_events"
    }

    fn write(&mut self, packet: &Packet) -> Result<(), Error> {
        self.0.write(packet)
    }

    fn takes_events(&self) -> bool {
        false
    }
}

#[test]
fn a_sink_that_leaves_events_out_delivers_none() {
    let (failing, _, _) = Refusing::times(usize::MAX, false);
    let (recorder, guard) = start(vec![Box::new(failing), Box::new(WithoutEvents(MemorySink::new()))], 64);
    recorder.event(halt(1));
    recorder.publish(boundary(1));
    let stats = guard.shutdown(PATIENCE).stats;
    assert_eq!((stats.packets.dropped, stats.packets.in_flight()), (0, 0), "{stats:?}");
    assert_eq!((stats.events.delivered, stats.events.in_flight()), (0, 0), "{stats:?}");
    assert_eq!(recorder.undelivered(), [("a.halt", 1)]);
}

/// Refuses, and then takes a second and a half for each packet.
#[derive(Debug)]
struct Slow {
    refusing: Refusing,
    clock: Arc<ManualClock>,
}

impl Sink for Slow {
    fn name(&self) -> &'static str {
        "slow"
    }

    fn write(&mut self, packet: &Packet) -> Result<(), Error> {
        self.refusing.write(packet)?;
        self.clock.advance(Duration::from_millis(1500));
        Ok(())
    }

    fn is_remote(&self) -> bool {
        self.refusing.is_remote
    }
}

#[test]
fn a_slow_sink_does_not_hold_up_the_end_for_each_packet_that_it_was_not_there_for() {
    for is_remote in [false, true] {
        const PACKETS: u32 = 20;
        let (refusing, left, log) = Refusing::times(usize::MAX, is_remote);
        let clock = Arc::new(ManualClock::default());
        let sink = Slow { refusing, clock: Arc::clone(&clock) };
        let (recorder, guard) = start_by(clock, vec![Box::new(sink)], 64);
        (1..=u64::from(PACKETS)).for_each(|step| {
            recorder.event(halt(step));
            recorder.publish(boundary(step));
        });
        // The first is tried with each of the others, which wait behind it.
        while usize::MAX - left.load(Ordering::Relaxed) < usize::try_from(PACKETS).unwrap() {
            thread::yield_now();
        }
        left.store(0, Ordering::Relaxed);
        let stats = guard.shutdown(PATIENCE).stats;
        assert!(seen(&log).len() <= 2, "remote {is_remote}: {:?}", seen(&log));
        assert_eq!((stats.events.in_flight(), stats.packets.in_flight()), (0, 0), "remote {is_remote}: {stats:?}");
        assert_eq!(
            recorder.undelivered(),
            [("a.halt", u64::from(PACKETS) - seen(&log).len() as u64)],
            "remote {is_remote}"
        );
    }
}
