//! On the CPU a trainer records nothing, refuses nothing and gives the same bits whatever its execution settings say.
#![expect(clippy::unwrap_used, reason = "a helper of a test fails the test")]

use std::num::NonZeroUsize;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor, Var};
use esper_graph::GraphStats;
use leyline::clock::SystemClock;
use leyline::id::RunId;
use leyline::model::TrainableModel as _;
use leyline::region::Eager;
use leyline::seed::SeedManager as _;
use leyline_testkit::recording_recorder::RecordingRecorder;
use tolaria::aggregate::ConflictResolution;
use tolaria::batch::{BatchConfig, Dataset};
use tolaria::host_read::{HostReads, read_vec};
use tolaria::optim::{OptimizerConfig, ScheduleConfig};
use tolaria::plain::{NoPolicy, NoSeeds, PlainModel};
use tolaria::task::Classification;
use tolaria::trainer::{ExecutionConfig, NullObserver, Parts, Splits, StepMode, TrainConfig, Trainer};

/// Thirteen samples in windows of two microbatches of three: the last window is short.
fn samples() -> Dataset {
    let inputs: Vec<f32> = (0..26_u8).map(|i| f32::from(i * 7 % 11) / 11.0 - 0.4).collect();
    let targets: Vec<u32> = (0..13).map(|i| i % 2).collect();
    let (inputs, targets) =
        (Tensor::from_vec(inputs, (13, 2), &Device::Cpu), Tensor::from_vec(targets, 13, &Device::Cpu));
    Dataset::new(inputs.unwrap(), targets.unwrap()).unwrap()
}

fn train(execution: &ExecutionConfig, recorder: &Arc<RecordingRecorder>) -> (Vec<u32>, GraphStats, bool) {
    let weight = Var::zeros((2, 2), DType::F32, &Device::Cpu).unwrap();
    let named = vec![("weight".to_owned(), weight.clone())];
    let model = PlainModel::new(named, move |x: &Tensor| x.matmul(&weight)).unwrap();
    let count = |n| NonZeroUsize::new(n).unwrap();
    let config = TrainConfig {
        batch: BatchConfig { batch_size: count(3), microbatches_per_step: count(2) },
        optimizer: OptimizerConfig::AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01 },
        schedule: ScheduleConfig::constant(0.1),
        conflict: ConflictResolution::PcGrad,
        eval_batch_size: count(5),
        conflict_warn: 1.0,
        execution: execution.clone(),
        ..TrainConfig::default()
    };
    let parts = Parts {
        run_id: RunId::new("cpu").unwrap(),
        seed: 4,
        num_epochs: 5,
        max_steps: None,
        device: Device::Cpu,
        data: Splits { train: samples(), validation: samples(), test: samples() },
        task: Arc::new(Classification::new(2)),
        seeds: NoSeeds::new(model),
        policy: NoPolicy,
        checkpoints: None,
        recorder: recorder.clone(),
        clock: Arc::new(SystemClock::new()),
    };
    let mut trainer = Trainer::new(config, parts).unwrap();
    trainer.run(&mut Eager::acquire().unwrap(), &mut NullObserver).unwrap();
    let parameter = &trainer.seeds().model().parameters()[0];
    let values = read_vec(parameter.var.as_tensor(), "test", &mut HostReads::default()).unwrap();
    assert!(values.iter().any(|value| *value != 0.0), "nothing was learned");
    let refused = trainer.last_refusal().or(trainer.last_compile_refusal()).is_some();
    assert!(trainer.compile_report().is_none() && trainer.num_compiled_replays() == 0, "{execution:?}");
    (values.into_iter().map(f32::to_bits).collect(), trainer.graph_stats(), refused)
}

#[test]
fn nothing_is_recorded_and_no_setting_changes_a_bit() {
    let recorder = || Arc::new(RecordingRecorder::new());
    let (expected, ..) = train(&ExecutionConfig::default(), &recorder());
    for execution in [
        ExecutionConfig { mode: StepMode::Eager, ..ExecutionConfig::default() },
        ExecutionConfig { mode: StepMode::Graph, ..ExecutionConfig::default() },
        ExecutionConfig { mode: StepMode::Compiled, compile_warmup_steps: 0, ..ExecutionConfig::default() },
        ExecutionConfig { prefetch: true, data_on_device: false, ..ExecutionConfig::default() },
        ExecutionConfig::default(),
    ] {
        let recorder = recorder();
        let (found, stats, refused) = train(&execution, &recorder);
        assert_eq!(found, expected, "{execution:?}");
        let total = stats.total;
        assert_eq!([total.captures, total.replays, total.misses, total.fallbacks], [0; 4], "{execution:?}");
        assert!(!refused, "the CPU is no reason for a warning");
        let events: Vec<&str> = recorder.events().iter().map(|event| event.desc.name).collect();
        assert!(events.iter().all(|name| !name.contains("graph") && !name.contains("compile")), "{events:?}");
        let gauges = ["tolaria.train.compile_enabled", "tolaria.compile_warmup_remaining", "tolaria.compile_ms"];
        let values = gauges.map(|name| recorder.gauge_value(name, &[]));
        assert_eq!(values, [Some(0.0), None, None], "{execution:?}");
    }
}
