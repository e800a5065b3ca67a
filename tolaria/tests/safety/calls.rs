//! Calls of policy and seed manager: nothing that is late or wrong reaches the network, and training goes on.

use std::num::NonZeroU64;
use std::sync::mpsc::Sender;
use std::time::Duration;

use leyline::error::BoxError;
use leyline::region::Eager;
use leyline::seed::SeedManager as _;
use tolaria::trainer::report::EpochReport;
use tolaria::trainer::{BreakerConfig, Flow, Observer, SafetyConfig, StepReport};

use crate::world::{Act, STEPS_PER_EPOCH, world};

fn policy_ms(ms: u64) -> SafetyConfig {
    SafetyConfig { policy_ms: NonZeroU64::new(ms), ..SafetyConfig::default() }
}

#[test]
fn with_a_deadline_that_is_kept_a_run_has_the_bits_of_one_without() {
    let acts = [Act::Nothing, Act::Germinate, Act::Nothing, Act::Germinate, Act::Nothing];
    let expected = world(&acts, SafetyConfig::default(), &[]).run();
    let mut timed = world(&acts, policy_ms(60_000), &[]);
    assert_eq!(timed.run(), expected);
    assert_ne!(expected, world(&[Act::Nothing], SafetyConfig::default(), &[]).run(), "seeds grew");
    for name in ["timeout.tamiyo_total", "timeout.kasmina_total", "timeout.late_answers_total"] {
        assert_eq!(timed.counter(name, &[]), 0, "{name}");
    }
    for name in ["mode.conservative_entered_total", "mode.refused_total"] {
        assert_eq!(timed.counter(name, &[]), 0, "{name}");
    }
    assert_eq!(timed.counter("breaker.opened_total", &["policy"]), 0);
}

#[test]
fn whatever_a_policy_does_a_run_without_its_orders_has_the_bits_of_one_without_it() {
    let expected = world(&[Act::Nothing], SafetyConfig::default(), &[]).run();
    for (act, deadline_ms, timeouts, errors, refused) in [
        (Act::Sleep, 20, 1, 0, 0),
        (Act::Fail, 60_000, 0, 3, 0),
        (Act::Panic, 60_000, 0, 3, 0),
        (Act::Flood, 60_000, 0, 3, 0),
        (Act::Garbage, 60_000, 0, 0, 5),
    ] {
        let mut world = world(&[act], policy_ms(deadline_ms), &[]);
        assert_eq!(world.run(), expected, "{act:?}");
        assert_eq!(world.counter("timeout.tamiyo_total", &[]), timeouts, "{act:?}");
        assert_eq!(world.num_events("tamiyo_timeout"), usize::try_from(timeouts).unwrap(), "{act:?}: told once");
        assert_eq!(world.num_events("tamiyo_error"), errors, "{act:?}: it is not asked any more after three");
        assert_eq!(world.num_events("command_refused"), refused, "{act:?}");
        let is_conservative = act != Act::Garbage;
        assert_eq!(world.gauge("mode.conservative", &[]), u64::from(is_conservative), "{act:?}");
        assert_eq!(world.num_events("conservative_mode_entered"), usize::from(is_conservative), "{act:?}: at the edge");
        let opened = u64::from(errors > 0);
        assert_eq!(world.counter("breaker.opened_total", &["policy"]), opened, "{act:?}");
        assert_eq!(world.num_events("breaker_opened") as u64, opened, "{act:?}");
        assert_eq!(world.gauge("breaker.state", &["policy"]), 1 + u64::from(errors > 0), "{act:?}");
    }
}

/// Opens the gate in the middle of an epoch, and gives the answer time to come.
struct OpensAt<'a>(u64, &'a Sender<()>);

impl Observer for OpensAt<'_> {
    fn step(&mut self, report: &StepReport<'_>) -> Flow {
        if report.step.0 == self.0 {
            self.1.send(()).unwrap();
            std::thread::sleep(Duration::from_millis(200));
        }
        Flow::Continue
    }

    fn epoch_finished(&mut self, _report: &EpochReport) -> Result<(), BoxError> {
        Ok(())
    }
}

#[test]
fn an_answer_that_comes_an_epoch_late_is_dropped_and_the_next_one_counts() {
    let expected = world(&[Act::Nothing, Act::Nothing, Act::Germinate, Act::Nothing], SafetyConfig::default(), &[]);
    let expected = { expected }.run();
    // What it is shown then is on offer again.
    for then in [Act::Germinate, Act::GerminateOffered] {
        let mut late = world(&[Act::Sleep, then, Act::Nothing], policy_ms(300), &[]);
        // Asked at the end of the first epoch, it is still thinking at the end of the second; its answer comes in the third.
        let gate = late.gate.clone();
        let mut observer = OpensAt(2 * STEPS_PER_EPOCH + 1, &gate);
        late.trainer.run(&mut Eager::acquire().unwrap(), &mut observer).unwrap();
        assert_eq!(late.bits(), expected, "{then:?}");
        let counts = ["timeout.tamiyo_total", "timeout.late_answers_total", "mode.conservative_entered_total"];
        assert_eq!(counts.map(|name| late.counter(name, &[])), [1, 1, 1]);
        let events = ["conservative_mode_entered", "conservative_mode_cleared"];
        assert_eq!(events.map(|name| late.num_events(name)), [1, 1]);
        assert_eq!((late.gauge("mode.conservative", &[]), late.gauge("breaker.state", &["policy"])), (0, 1));
    }
}

#[test]
fn a_seed_manager_that_is_slow_is_left_alone_and_trusted_again() {
    let breaker = BreakerConfig { failures: 2, open_ms: 1, successes: 1, ..Default::default() };
    let safety = SafetyConfig { seeds_ms: NonZeroU64::new(10), breaker, ..SafetyConfig::default() };
    let acts = [Act::Nothing, Act::Germinate];
    // Two slow ends of epochs; then it is left alone; then its trial; at the fifth it may grow again.
    let mut world = world(&acts, safety, &[11, 11, 2, 0, 0]);
    world.run();
    assert_eq!(world.counter("timeout.kasmina_total", &[]), 2);
    assert_eq!(world.num_events("kasmina_timeout"), 1, "told at the edge");
    let labels: &[&str] = &["seed_manager"];
    assert_eq!((world.counter("breaker.opened_total", labels), world.num_events("breaker_closed")), (1, 1));
    assert_eq!((world.counter("mode.conservative_entered_total", &[]), world.gauge("mode.conservative", &[])), (1, 0));
    let refused: Vec<String> =
        world.recorder.events_named("tolaria.command_refused").iter().map(|event| format!("{event:?}")).collect();
    assert_eq!(refused.len() as u64, world.counter("mode.refused_total", &[]));
    let told = |text: &str| refused.iter().filter(|event| event.contains(text)).count();
    assert_eq!((told("nothing grows"), told("left alone")), (2, 1), "{refused:#?}");
    assert_eq!(world.trainer.seeds().export_seed_states(&Eager::acquire().unwrap()).unwrap().len(), 1);
}

#[test]
fn a_call_that_was_too_long_is_told_with_its_time() {
    let safety = SafetyConfig { seeds_ms: NonZeroU64::new(10), ..SafetyConfig::default() };
    let mut world = world(&[Act::Nothing], safety, &[0, 0, 0, 11, 11, 11]);
    world.run();
    assert!(world.counter("timeout.kasmina_total", &[]) > 0);
    assert!(world.gauge("timeout.kasmina_last_ms", &[]) >= 11);
}

#[test]
fn counters_and_gauges_are_there_from_the_start() {
    let world = world(&[Act::Nothing], SafetyConfig::default(), &[]);
    for name in [
        "timeout.tamiyo_total",
        "timeout.kasmina_total",
        "timeout.late_answers_total",
        "mode.conservative_entered_total",
    ] {
        assert_eq!(world.counter(name, &[]), 0, "{name}");
    }
    for name in ["timeout.tamiyo_last_ms", "timeout.kasmina_last_ms", "mode.conservative"] {
        assert_eq!(world.gauge(name, &[]), 0, "{name}");
    }
    for call in ["policy", "seed_manager"] {
        assert_eq!(world.gauge("breaker.state", &[call]), 1);
        assert_eq!((world.gauge("breaker.failures", &[call]), world.counter("breaker.opened_total", &[call])), (0, 0));
    }
}
