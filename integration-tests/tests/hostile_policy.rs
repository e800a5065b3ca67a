//! A policy that orders everything at every opportunity: what it may not have it does not get, and the host is not disturbed.
#![expect(clippy::unwrap_used, reason = "a helper of a test fails the test")]

use std::sync::Arc;

use integration_tests::scripted;
use kasmina::KasminaConfig;
use kasmina::host::HostConfig;
use leyline::command::{AlphaCurve, AlphaRamp, Operation};
use leyline::error::BoxError;
use leyline::id::{BlueprintId, SeedId, SlotId};
use leyline::region::Eager;
use leyline::seed::SeedStage;
use leyline::telemetry::NullRecorder;
use leyline::unit::Alpha;
use tolaria::trainer::report::EpochReport;
use tolaria::trainer::{Observer, Outcome};

const SLOTS: [&str; 3] = ["input", "hidden0", "hidden1"];
const NUM_EPOCHS: u64 = 60;
/// Half of them confirm: enough to confirm a gain, so that it is no lack of them that refuses.
const NUM_SAMPLES: u8 = 240;

/// Germinates harmful seeds and others wherever there is a slot, and moves every seed that there ever was to every stage;
/// `culls` them, too.
fn everything(culls: bool) -> scripted::Script {
    let mut epoch = 0_u32;
    Box::new(move || {
        epoch += 1;
        let ramp = AlphaRamp { target: Alpha::ONE, steps: 1, curve: AlphaCurve::Linear };
        let blueprint = if epoch.is_multiple_of(2) { "noise" } else { "mlp" };
        let germinate = |slot| Operation::germinate(SlotId::new(slot).unwrap(), BlueprintId::new(blueprint).unwrap());
        let moves = (1..=3 * epoch).map(SeedId).flat_map(|seed| {
            let forward = [
                Operation::StartTraining { seed },
                Operation::StartBlending { seed, ramp },
                Operation::Hold { seed },
                Operation::Fossilize { seed },
            ];
            forward.into_iter().chain(culls.then_some(Operation::Cull { seed }))
        });
        SLOTS.into_iter().chain(["nowhere"]).map(germinate).chain(moves.collect::<Vec<_>>()).collect()
    })
}

#[derive(Debug, Default)]
struct Watch {
    losses: Vec<u64>,
    num_refused: usize,
    num_germinated: usize,
    problems: Vec<String>,
}

impl Observer for Watch {
    fn epoch_finished(&mut self, report: &EpochReport) -> Result<(), BoxError> {
        // Bits, of what the host alone says.
        self.losses.push(report.validation.loss.to_bits());
        self.num_refused += report.commands.iter().filter(|command| command.refused.is_some()).count();
        self.num_germinated += report.transitions.iter().filter(|t| t.to == SeedStage::Germinated).count();
        let acts = [SeedStage::Blending, SeedStage::Holding, SeedStage::Fossilized];
        let acting = report.seeds.iter().filter(|seed| acts.contains(&seed.stage));
        self.problems.extend(acting.map(|seed| format!("epoch {}: {} {}", report.epoch, seed.seed_id, seed.stage)));
        if report.seeds.len() > SLOTS.len() {
            self.problems.push(format!("epoch {}: {} seeds", report.epoch, report.seeds.len()));
        }
        Ok(())
    }
}

fn watched(script: scripted::Script) -> Watch {
    let host = HostConfig::Mlp { inputs: 3, hidden: vec![4, 4], classes: 2 };
    let config = KasminaConfig { seed_width: 2, noise_blueprint: true, ..KasminaConfig::new(host) };
    let mut trainer = scripted::trainer_of(config, (NUM_SAMPLES, NUM_EPOCHS), Arc::new(NullRecorder), script);
    let (mut eager, mut watch) = (Eager::acquire().unwrap(), Watch::default());
    assert_eq!(trainer.run(&mut eager, &mut watch).unwrap(), Outcome::Completed);
    watch
}

#[test]
fn nothing_harmful_acts_and_the_host_has_the_bits_that_it_has_alone() {
    let alone = watched(Box::new(Vec::new));
    assert_eq!((alone.num_germinated, alone.losses.len() as u64), (0, NUM_EPOCHS));
    assert!(alone.losses.windows(2).any(|pair| pair[0] != pair[1]), "the host does not train");
    for culls in [false, true] {
        let hostile = watched(everything(culls));
        assert!(hostile.problems.is_empty(), "{:?}", &hostile.problems[..hostile.problems.len().min(5)]);
        // Without culls the three of the first epoch stay; with them slots are free again and again.
        let least = if culls { 2 * SLOTS.len() } else { SLOTS.len() };
        assert!(hostile.num_germinated >= least && hostile.num_refused > 5_000, "{hostile:?}");
        assert!(hostile.losses == alone.losses, "culls {culls}: the host trained otherwise");
    }
}
