//! Gauges come and go with the owners, and seeds are warned about once an epoch.

use leyline_testkit::recording_recorder::RecordingRecorder;

use super::*;
use crate::testing::{HOST, seed};
use crate::trainer::report::{CosineRecord, LayerRecord};

const METHOD: ConflictResolution = ConflictResolution::PcGrad;
const WARN: f64 = 0.5;

fn owner(owner: Owner) -> OwnerRecord {
    let is_seed = owner != HOST;
    OwnerRecord {
        owner,
        windows: 4,
        weight: 0.5,
        norm: 2.0,
        share: 0.25,
        share_delta: None,
        conflicts: 1,
        pairs: 4,
        conflict_ratio: 0.25,
        resolved_weight: 0.75,
        alpha: is_seed.then_some(0.125),
        host_split: is_seed.then_some(1.0),
        num_parameters: 12,
        parameter_fraction: 0.1,
        layers: vec![LayerRecord { layer: "stem.weight".to_owned(), norm: 1.5 }],
    }
}

fn record(owners: Vec<OwnerRecord>) -> ConflictRecord {
    let cosine = CosineRecord { a: HOST, b: seed(1), cosine: -0.5, windows: 4 };
    ConflictRecord { ratio: 0.25, conflicts: 2, pairs: 8, windows: 4, host_share: 0.625, owners, cosines: vec![cosine] }
}

struct Bench {
    recorder: Arc<RecordingRecorder>,
    instruments: GradientInstruments,
}

impl Bench {
    fn new() -> Self {
        let recorder = Arc::new(RecordingRecorder::new());
        let shared: Arc<dyn Recorder> = Arc::clone(&recorder) as Arc<dyn Recorder>;
        Self { recorder, instruments: GradientInstruments::new(&shared) }
    }

    fn epoch(&mut self, record: Option<&ConflictRecord>) {
        self.instruments.epoch(record, METHOD, WARN);
    }

    fn gauge(&self, name: &str, labels: &[&str]) -> Option<f64> {
        self.recorder.gauge_value(&format!("tolaria.grad_agg.{name}"), labels)
    }
}

#[test]
fn owners_get_gauges_and_what_the_host_has_not_stays_absent() {
    let mut bench = Bench::new();
    bench.epoch(Some(&record(vec![owner(HOST), owner(seed(1))])));
    assert_eq!(bench.gauge("conflicts", &[]), Some(2.0));
    assert_eq!(bench.gauge("teacher_share", &[]), Some(0.625));
    assert_eq!(bench.gauge("weights_mean", &[]), Some(0.75));
    for (name, host, first) in [
        ("weight", Some(0.5), Some(0.5)),
        ("norm", Some(2.0), Some(2.0)),
        ("share", Some(0.25), Some(0.25)),
        ("share_delta", None, None),
        ("alpha", None, Some(0.125)),
        ("conflicts", Some(1.0), Some(1.0)),
        ("conflict_ratio", Some(0.25), Some(0.25)),
        ("params", Some(12.0), Some(12.0)),
        ("mask_fraction", Some(0.1), Some(0.1)),
        ("teacher_share", None, Some(1.0)),
        ("cosine", None, Some(-0.5)),
    ] {
        let name = format!("seed.{name}");
        assert_eq!((bench.gauge(&name, &["host"]), bench.gauge(&name, &["seed-1"])), (host, first), "{name}");
    }
    assert_eq!(bench.gauge("seed.layer_norm", &["seed-1", "stem.weight"]), Some(1.5));
}

#[test]
fn an_owner_that_is_gone_becomes_absent() {
    let mut bench = Bench::new();
    bench.epoch(Some(&record(vec![owner(HOST), owner(seed(1))])));
    bench.epoch(Some(&record(vec![owner(HOST)])));
    for name in ["weight", "norm", "share", "alpha", "conflicts", "conflict_ratio", "params", "cosine"] {
        assert_eq!(bench.gauge(&format!("seed.{name}"), &["seed-1"]), None, "{name}");
    }
    assert_eq!(bench.gauge("seed.layer_norm", &["seed-1", "stem.weight"]), None);
    assert_eq!(bench.gauge("seed.norm", &["host"]), Some(2.0));
    bench.epoch(None);
    assert_eq!((bench.gauge("seed.norm", &["host"]), bench.gauge("conflict_ratio", &[])), (None, None));
}

#[test]
fn layers_that_change_do_not_grow_the_number_of_series() {
    let mut bench = Bench::new();
    for epoch in 0..4 {
        let layers = (0..5).map(|index| LayerRecord { layer: format!("layer{epoch}-{index}"), norm: 1.0 }).collect();
        bench.epoch(Some(&record(vec![OwnerRecord { layers, ..owner(HOST) }])));
    }
    assert_eq!(bench.instruments.owners[&HOST].layers.len(), LAYERS_REPORTED);
}

#[test]
fn a_projection_needs_a_conflict_and_a_method() {
    let calm = ConflictRecord { conflicts: 0, ratio: 0.0, ..record(Vec::new()) };
    for (record, method, expected) in [
        (&record(Vec::new()), ConflictResolution::PcGrad, 1.0),
        (&record(Vec::new()), ConflictResolution::Mean, 0.0),
        (&calm, ConflictResolution::PcGrad, 0.0),
    ] {
        let mut bench = Bench::new();
        bench.instruments.epoch(Some(record), method, WARN);
        assert_eq!(bench.gauge("pcgrad_applied", &[]), Some(expected), "{method:?}");
        assert_eq!(bench.gauge("weights_mean", &[]), None, "there is no owner");
    }
}

#[test]
fn seeds_that_jump_or_conflict_are_warned_about_once_per_epoch() {
    let told = |owner: OwnerRecord| {
        let mut bench = Bench::new();
        bench.epoch(Some(&record(vec![owner])));
        bench.recorder.events().iter().map(|event| event.desc.name).collect::<Vec<_>>()
    };
    let jump = |share_delta| OwnerRecord { share_delta: Some(share_delta), ..owner(seed(1)) };
    let conflict = |conflict_ratio| OwnerRecord { conflict_ratio, ..owner(seed(1)) };
    assert!(told(owner(seed(1))).is_empty(), "a first share is no jump");
    assert_eq!(told(jump(SHARE_JUMP)), ["seed_share_jump"]);
    assert_eq!(told(jump(-SHARE_JUMP)), ["seed_share_jump"]);
    assert!(told(jump(0.29)).is_empty());
    assert_eq!(told(conflict(WARN)), ["seed_conflict_high"]);
    assert!(told(conflict(0.49)).is_empty());
    assert!(told(OwnerRecord { pairs: 0, ..conflict(WARN) }).is_empty(), "nothing was compared");
    let host = OwnerRecord { share_delta: Some(1.0), conflict_ratio: 1.0, ..owner(HOST) };
    assert!(told(host).is_empty(), "the warnings are about seeds");
}
