//! Emergency levels: what each does, what raises and lowers it, who is told.

use std::num::{NonZeroU32, NonZeroU64};

use leyline::error::BoxError;
use leyline::region::Eager;
use leyline::seed::SeedManager as _;
use tolaria::trainer::report::EpochReport;
use tolaria::trainer::{
    Emergency, Flow, Level, Observer, Origin, Outcome, RunEvent, SafetyConfig, SignalFile, StepReport,
};

use crate::world::{Act, NUM_EPOCHS, STEPS_PER_EPOCH, World, world, world_of};

/// An operator who orders levels after steps.
struct Operator<'a> {
    emergency: Emergency,
    orders: &'a [(u64, Level)],
    told: Vec<Level>,
    outcome: Option<Outcome>,
}

impl Observer for Operator<'_> {
    fn step(&mut self, report: &StepReport<'_>) -> Flow {
        for (_, level) in self.orders.iter().filter(|(step, _)| *step == report.step.0) {
            self.emergency.set(Origin::Operator, *level, "an order");
        }
        Flow::Continue
    }

    fn event(&mut self, event: &RunEvent<'_>) {
        match event {
            RunEvent::Emergency { level, .. } => self.told.push(*level),
            RunEvent::Ended { outcome, .. } => self.outcome = Some(*outcome),
            _ => {}
        }
    }

    fn epoch_finished(&mut self, _report: &EpochReport) -> Result<(), BoxError> {
        Ok(())
    }
}

/// Runs with these orders: how it ended, and the levels that were told.
fn run(world: &mut World, orders: &[(u64, Level)]) -> (Outcome, Vec<Level>) {
    let mut operator = Operator { emergency: world.trainer.emergency(), orders, told: Vec::new(), outcome: None };
    let outcome = world.trainer.run(&mut Eager::acquire().unwrap(), &mut operator).unwrap();
    assert_eq!(operator.outcome, Some(outcome));
    (outcome, operator.told)
}

fn num_seeds(world: &World) -> usize {
    world.trainer.seeds().export_seed_states(&Eager::acquire().unwrap()).unwrap().len()
}

#[test]
fn each_level_does_what_it_says_and_no_more() {
    let acts = [Act::Germinate];
    let plain = world(&acts, SafetyConfig::default(), &[]).run();
    let unasked = world(&[Act::Nothing], SafetyConfig::default(), &[]).run();
    for (level, same_as, refused) in
        [(Level::Notice, &plain, 0), (Level::Conservative, &unasked, NUM_EPOCHS), (Level::Safe, &unasked, 0)]
    {
        let mut world = world(&acts, SafetyConfig::default(), &[]);
        assert_eq!(run(&mut world, &[(1, level)]), (Outcome::Completed, vec![level]), "{level}");
        assert_eq!(&world.bits(), same_as, "{level}");
        assert_eq!(world.counter("mode.refused_total", &[]), refused, "{level}");
        assert_eq!(world.gauge("emergency.level", &[]), u64::from(level.number()), "{level}");
        assert_eq!(world.gauge("mode.conservative", &[]), u64::from(level > Level::Notice), "{level}");
        assert_eq!(world.num_events("emergency.escalated"), 1, "{level}");
    }
}

#[test]
fn nothing_is_on_offer_while_nothing_grows_so_that_a_germination_is_put_off_and_not_lost() {
    // At the ends of the two epochs that are left, where it is lowered in the fourth.
    for (orders, num_grown) in [
        (&[(1, Level::Conservative)][..], 0),
        (&[(1, Level::Conservative), (3 * STEPS_PER_EPOCH + 1, Level::Normal)], 2),
    ] {
        let mut world = world(&[Act::GerminateOffered], SafetyConfig::default(), &[]);
        assert_eq!(run(&mut world, orders).0, Outcome::Completed);
        assert_eq!((num_seeds(&world), world.counter("mode.refused_total", &[])), (num_grown, 0));
    }
}

#[test]
fn at_the_third_level_ramps_and_clocks_of_seeds_stand_still_until_it_is_lowered() {
    let acts = [Act::Germinate, Act::Nothing];
    let ages = |orders: &[(u64, Level)]| {
        let mut world = world(&acts, SafetyConfig::default(), &[]);
        assert_eq!(run(&mut world, orders).0, Outcome::Completed);
        let seeds = world.trainer.seeds().export_seed_states(&Eager::acquire().unwrap()).unwrap();
        seeds.iter().map(|seed| seed.age_epochs).collect::<Vec<_>>()
    };
    let [plain, frozen] =
        [ages(&[]), ages(&[(STEPS_PER_EPOCH + 1, Level::Safe), (3 * STEPS_PER_EPOCH + 1, Level::Normal)])];
    assert_eq!((plain.len(), frozen.len()), (1, 1));
    assert_eq!(plain[0], frozen[0] + 2, "it is two epochs younger");
}

#[test]
fn a_halt_ends_the_run_after_the_step_and_another_run_goes_on_from_its_checkpoint() {
    let acts = [Act::Nothing, Act::Germinate, Act::Nothing];
    // Numbers of layouts are those of a process.
    let tensors = |bits: Vec<(String, Vec<u32>)>| bits.into_iter().map(|(_, bits)| bits).collect::<Vec<_>>();
    let expected = tensors(world(&[Act::Nothing], SafetyConfig::default(), &[]).run());
    for step in [1, STEPS_PER_EPOCH - 1, STEPS_PER_EPOCH, 2 * STEPS_PER_EPOCH + 2] {
        let dir = tempfile::tempdir().unwrap();
        let mut halted = world_of(&[Act::Nothing], SafetyConfig::default(), &[], NUM_EPOCHS, Some(dir.path()));
        let (outcome, told) = run(&mut halted, &[(step, Level::Halt), (step, Level::Normal)]);
        assert_eq!((outcome, halted.trainer.progress().1.0), (Outcome::Halted, step));
        assert_eq!(told, [Level::Halt], "it is not lowered any more");
        assert_eq!(halted.trainer.end_reason().unwrap(), "halted by an emergency: an order");
        let counts = ["emergency.halts_total", "emergency.escalations_total", "emergency.changes_total"];
        assert_eq!(counts.map(|name| halted.counter(name, &[])), [1; 3]);
        assert_eq!((halted.gauge("emergency.halt", &[]), halted.num_events("emergency.halt")), (1, 1));
        let last = halted.recorder.publications().pop().unwrap();
        assert!(last.events.iter().any(|event| event.desc.name == "tolaria.emergency.halt"), "it is told at once");
        drop(halted);
        let mut next = world_of(&[Act::Nothing], SafetyConfig::default(), &[], NUM_EPOCHS, Some(dir.path()));
        let resumed = next.trainer.resume(&mut Eager::acquire().unwrap()).unwrap().unwrap();
        assert_eq!(resumed.step.0, step);
        assert_eq!(tensors(next.run()), expected, "halted at {step}");
    }
    // A run without a store ends too.
    let mut bare = world(&acts, SafetyConfig::default(), &[]);
    assert_eq!(run(&mut bare, &[(2, Level::Halt)]).0, Outcome::Halted);
}

#[test]
fn trouble_raises_the_level_step_by_step_and_an_epoch_without_it_lowers_it() {
    let safety = SafetyConfig {
        policy_ms: NonZeroU64::new(60_000),
        safe_after_epochs: NonZeroU32::new(2),
        halt_after_epochs: NonZeroU32::new(4),
        ..SafetyConfig::default()
    };
    let mut bad = world_of(&[Act::Fail], safety.clone(), &[], 9, None);
    let (outcome, told) = run(&mut bad, &[]);
    // Every other epoch nobody is asked, so the fourth that is in trouble is the sixth.
    use Level::{Conservative, Halt, Notice, Safe};
    assert_eq!((outcome, told), (Outcome::Halted, vec![Notice, Safe, Conservative, Safe, Conservative, Halt]));
    assert_eq!(bad.trainer.progress().0.0, 6);
    let acts = [Act::Fail, Act::Fail, Act::Germinate, Act::Germinate, Act::Nothing];
    let mut better = world_of(&acts, safety, &[], 9, None);
    assert_eq!(run(&mut better, &[]), (Outcome::Completed, vec![Notice, Safe, Conservative, Level::Normal]));
    assert_eq!((num_seeds(&better), better.counter("mode.refused_total", &[])), (1, 1), "an epoch later it grows");
    assert_eq!((better.counter("emergency.escalations_total", &[]), better.num_events("emergency.lowered")), (2, 2));
    // Without these settings trouble is told, and nothing else.
    let mut told_only = world_of(&[Act::Fail, Act::Nothing], SafetyConfig::default(), &[], 3, None);
    assert_eq!(run(&mut told_only, &[]), (Outcome::Completed, vec![Notice, Level::Normal]));
}

#[test]
fn every_change_is_written_for_other_processes_or_counted_as_a_failure() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("emergency");
    let mut world = world(&[Act::Nothing], SafetyConfig::default(), &[]);
    assert_eq!(world.gauge("emergency.shared_signal_mode", &[]), 0);
    world.trainer.signal_emergencies_to(SignalFile::open(&path).unwrap());
    let mut others = SignalFile::open(&path).unwrap();
    assert_eq!(others.read(Origin::Run).unwrap().unwrap().level, Level::Normal);
    run(&mut world, &[(2, Level::Safe), (5, Level::Notice)]);
    let read = others.read(Origin::Run).unwrap().unwrap();
    assert_eq!((read.level, read.sequence, read.reason.as_str()), (Level::Notice, 3, "an order"));
    let counts = |world: &World| {
        ["emergency.broadcasts_total", "emergency.broadcast_failures_total"].map(|name| world.counter(name, &[]))
    };
    assert_eq!((counts(&world), world.gauge("emergency.shared_signal_mode", &[])), ([3, 0], 1));
    // Somebody else holds the file.
    let mut blocked = crate::world::world(&[Act::Nothing], SafetyConfig::default(), &[]);
    blocked.trainer.signal_emergencies_to(SignalFile::open(&path).unwrap());
    let holder = std::fs::File::open(&path).unwrap();
    holder.lock().unwrap();
    assert_eq!(run(&mut blocked, &[(2, Level::Notice)]).0, Outcome::Completed);
    assert_eq!(counts(&blocked), [1, 1]);
}

#[test]
fn counters_are_right_when_many_threads_raise_and_lower_the_level_while_the_run_trains() {
    let mut world = world_of(&[Act::Nothing], SafetyConfig::default(), &[], 40, None);
    let emergency = world.trainer.emergency();
    let (outcome, told) = std::thread::scope(|scope| {
        for thread in 0..4_usize {
            let emergency = emergency.clone();
            scope.spawn(move || {
                for turn in 0..20_000_usize {
                    emergency.set(Origin::Operator, Level::ALL[(turn * 7 + thread) % 4], "stress");
                    if turn % 64 == 0 {
                        std::thread::yield_now();
                    }
                }
                emergency.set(Origin::Operator, Level::Normal, "the end");
            });
        }
        run(&mut world, &[])
    });
    // What came after the last look is told by the next run.
    let (changes, dropped) =
        (world.counter("emergency.changes_total", &[]), world.counter("emergency.bypass_dropped_total", &[]));
    assert_eq!(outcome, Outcome::Completed);
    assert!(changes <= emergency.num_changes() && changes > 0, "{changes} of {}", emergency.num_changes());
    assert_eq!(changes - dropped, told.len() as u64, "told or dropped, each once");
    let events = world.num_events("emergency.escalated") + world.num_events("emergency.lowered");
    assert_eq!(events, told.len());
    assert_eq!(world.counter("emergency.escalations_total", &[]), world.num_events("emergency.escalated") as u64);
}

#[test]
fn counters_and_gauges_of_emergencies_are_there_from_the_start() {
    let world = world(&[Act::Nothing], SafetyConfig::default(), &[]);
    for name in ["changes", "escalations", "bypass_dropped", "halts", "broadcasts", "broadcast_failures"] {
        assert_eq!(world.counter(&format!("emergency.{name}_total"), &[]), 0, "{name}");
    }
    for name in ["level", "halt", "last_broadcast_latency_ms", "shared_signal_mode"] {
        assert_eq!(world.gauge(&format!("emergency.{name}"), &[]), 0, "{name}");
    }
}
