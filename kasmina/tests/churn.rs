//! Ten thousand seeds come and go: nothing is left of them, not a byte.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/in_use.rs"]
mod in_use;
mod support;

use std::sync::Arc;
use std::time::Duration;

use candle_core::Device;
use in_use::in_use;
use kasmina::host::HostConfig;
use kasmina::{Kasmina, KasminaConfig};
use leyline::command::{AlphaCurve, Operation};
use leyline::durable::Durable;
use leyline::id::{BlueprintId, EpochIndex, SeedId, StepIndex};
use leyline::model::TrainableModel;
use leyline::region::Eager;
use leyline::seed::SeedManager;
use leyline::telemetry::NullRecorder;
use leyline_testkit::clock::ManualClock;
use support::{config, slot};

const CYCLES: u32 = 10_000;
const WARM_UP: u32 = 1_000;

struct Churn {
    manager: Kasmina,
    eager: Eager,
    clock: Arc<ManualClock>,
}

impl Churn {
    fn send(&mut self, operation: Operation) -> SeedId {
        self.manager.apply(&mut self.eager, &operation.into()).unwrap().seed
    }

    /// A seed germinates, trains, is paused now and then, and is removed; its slot becomes free.
    fn cycle(&mut self, cycle: u32) {
        let place = ["input", "hidden0"][cycle as usize % 2];
        let seed = self.send(Operation::germinate(slot(place), BlueprintId::new("mlp").unwrap()));
        assert_eq!(seed, SeedId(cycle + 1));
        self.send(Operation::StartTraining { seed });
        if cycle.is_multiple_of(3) {
            self.send(Operation::Pause { seed });
        }
        self.manager.finish_step(&mut self.eager, StepIndex(u64::from(cycle))).unwrap();
        self.send(if cycle.is_multiple_of(2) {
            Operation::Cull { seed }
        } else {
            Operation::CullGradually { seed, steps: 2, curve: AlphaCurve::Linear }
        });
        for _ in 0..2 {
            self.manager.finish_epoch(&mut self.eager, EpochIndex(u64::from(cycle))).unwrap();
        }
        self.clock.advance(Duration::from_secs(1));
    }
}

#[test]
fn ten_thousand_seeds_leave_nothing_behind() {
    let host = HostConfig::Mlp { inputs: 3, hidden: vec![2], classes: 2 };
    let config = KasminaConfig { seed_width: 1, embargo_epochs: 0, ..config(host) };
    let clock = Arc::new(ManualClock::default());
    let manager = Kasmina::new(config, &Device::Cpu, clock.clone(), Arc::new(NullRecorder)).unwrap();
    let mut churn = Churn { manager, eager: Eager::acquire().unwrap(), clock };
    let empty = churn.manager.save(&churn.eager).unwrap();
    let mut revision = churn.manager.model().layout().revision();
    let mut after_warm_up = 0;
    for cycle in 0..CYCLES {
        churn.cycle(cycle);
        let now = churn.manager.model().layout().revision();
        assert!(now > revision, "the parameters of a seed came and went");
        revision = now;
        assert!(churn.manager.export_seed_states(&churn.eager).unwrap().is_empty(), "a record is left");
        if cycle + 1 == WARM_UP {
            after_warm_up = in_use();
        }
    }
    let grown = in_use() - after_warm_up;
    assert!(grown.abs() <= 4_096, "{grown} bytes more in use after {CYCLES} cycles than after {WARM_UP}");

    let saved = churn.manager.save(&churn.eager).unwrap();
    assert_eq!(saved.tensors.keys().collect::<Vec<_>>(), empty.tensors.keys().collect::<Vec<_>>());
    let document: serde_json::Value = serde_json::from_str(&saved.json).unwrap();
    for list in ["seeds", "unreturned"] {
        assert_eq!(document[list], serde_json::json!([]), "{list}");
    }
    let parameters = churn.manager.model().parameters();
    assert!(parameters.iter().all(|parameter| parameter.name.starts_with("host.")));
}
