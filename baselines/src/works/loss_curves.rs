//! Losses step by step, here and in PyTorch: the same weights, the same sequences, two orders of them.
//!
//! ```text
//!   weights, sequences, orders ─┬─► here: a step after the other ─► losses ─┐
//!                               └─► files ─► PyTorch ─► losses ─────────────┴─► windows of steps ─► distances of curves
//! ```
//! The distance between implementations means something beside the one between orders alone: that is what chance does.

use std::fs;
use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Tensor};
use leyline::model::TrainableModel as _;
use serde::Deserialize;
use serde_json::json;
use tolaria::grad::{GradientBufferPool, GradientScope, gather_gradients};
use tolaria::host_read::{HostReads, read_vec};
use tolaria::optim::Optimizer;

use crate::error::Error;
use crate::gpu::Gpu;
use crate::models::{Draw, Form, Precision, Variant, Workload};
use crate::samples::Samples;
use crate::torch::{PeerEnvironment, run_script};
use crate::work::{Flags, Needs, Outcome, Setting, Work, settings};

pub(super) const WORK: Work = Work::with_flags::<LossCurvesConfig>(
    "loss-curves",
    "Losses of 500 steps of GPT-2, here and in PyTorch, for two orders of the data",
    Needs::Gpu,
);

const NOTES: &str = "Same initial weights (f32), same sequences, each seen once; the loss of a step is that of the batch that it learns from. here: layers, products in bf16; \
    torch: eager, autocast to bf16; or both in f32 (precision). loss.IMPLEMENTATION.orderN: all steps. curve.IMPLEMENTATION.orderN.stepK: mean over the window of steps that \
    ends with step K. distance.implementations: between here and torch in the same order, distance.orders: between both orders of one implementation; absolute difference of the \
    curves at each window, of both orders or implementations. overlay: median distance of implementations / that of orders; at most 1 where curves lie within what the order does";

const SCRIPT: &str = concat!(
    include_str!("../../torch/report.py"),
    include_str!("../../torch/losses.py"),
    include_str!("../../torch/peer.py")
);
const ORDERS: [u64; 2] = [1, 2];
/// Windows of a curve.
const WINDOWS: usize = 20;
/// Tokens that occur, of all that there are: few enough that what follows each is seen often.
const OCCURRING: u32 = 512;
/// Without a warm-up, one that every step takes well.
const RATE: f64 = 3e-4;

/// What is compared.
#[derive(Debug, Clone, clap::Args)]
struct LossCurvesConfig {
    /// Interpreter with PyTorch.
    #[arg(long, value_name = "PROGRAM", default_value = "python3")]
    python: PathBuf,
    /// A language model, of `gpt2`, `tfm5m`, `tfm30m`.
    #[arg(long, value_name = "NAME", default_value = "gpt2")]
    work: String,
    /// `bf16`, or `f32`, in which curves of a few steps show whether both train the same network.
    #[arg(long, value_name = "NAME", default_value = "bf16", value_parser = precision)]
    precision: Precision,
    /// Optimizer steps, at least 20.
    #[arg(long, value_name = "N", default_value_t = 500)]
    steps: usize,
    /// Seconds that PyTorch gets.
    #[arg(long, value_name = "S", default_value_t = 240)]
    budget: u64,
}

impl Flags for LossCurvesConfig {
    fn measure(&self, setting: &Setting) -> Result<Outcome, Error> {
        let gpu = Gpu::open(setting)?;
        let (device, steps) = (&gpu.device, self.steps.max(WINDOWS));
        let variant = Variant { form: Form::Layers, precision: self.precision };
        let data = Data::new(&Workload::of(&self.work, variant, 0, &Device::Cpu)?, steps)?;
        let folder = tempfile::tempdir().map_err(|source| file("making", Path::new("a temporary folder"), source))?;
        let mut here = Vec::new();
        for order in ORDERS {
            let work = Workload::of(&self.work, variant, 0, device)?;
            if here.is_empty() {
                data.write(folder.path(), &self.work, &work, self.precision == Precision::Bf16)?;
            }
            let work = data.in_order(work, order, device)?;
            here.push(losses(&work, steps)?);
        }
        let arguments = [format!("--losses={}", folder.path().display()), format!("--budget={}", self.budget)];
        let report: Report = run_script(SCRIPT, &self.python, &arguments)?;
        let (environment, there) = report.into_losses(steps)?;
        let samples = compared(&here, &there);
        let mut config = settings([
            ("work", self.work.clone()),
            ("steps", steps.to_string()),
            ("precision", self.precision.name().to_owned()),
            ("learning_rate", RATE.to_string()),
            ("tokens_that_occur", data.vocabulary.to_string()),
        ]);
        config.extend(environment.facts());
        Ok(gpu.result(WORK.name, NOTES, config, samples).into())
    }
}

/// TF32 is a setting of the process, which nobody makes here.
fn precision(name: &str) -> Result<Precision, String> {
    let known = [Precision::Bf16, Precision::F32];
    known.into_iter().find(|precision| precision.name() == name).ok_or_else(|| "expected bf16 or f32".to_owned())
}

/// Sequences, each for one step.
struct Data {
    /// (N, T) tokens, and those that follow.
    inputs: Vec<u32>,
    targets: Vec<u32>,
    length: usize,
    batch: usize,
    vocabulary: u32,
}

impl Data {
    /// As many as `steps` of `work` see, in which a token leaves four choices for the next one.
    fn new(work: &Workload, steps: usize) -> Result<Self, Error> {
        let Some(_) = work.tokens else {
            return Err(Error::UnknownWork { name: work.name.to_owned(), known: "gpt2, tfm5m, tfm30m".to_owned() });
        };
        let (batch, length) = (work.batch_size, work.inputs.dims()[1]);
        let vocabulary = OCCURRING.min(u32::try_from(work.num_classes).unwrap_or(OCCURRING));
        let mut draw = Draw::new(17, &Device::Cpu);
        let (mut inputs, mut targets) = (Vec::new(), Vec::new());
        for _ in 0..steps * batch {
            let mut token = draw.below(vocabulary);
            for _ in 0..length {
                inputs.push(token);
                token = (5 * token + draw.below(4)) % vocabulary;
                targets.push(token);
            }
        }
        Ok(Self { inputs, targets, length, batch, vocabulary })
    }

    fn num_sequences(&self) -> usize {
        self.inputs.len() / self.length
    }

    /// Where the sequences of an order come from.
    fn places(&self, order: u64) -> Vec<u32> {
        let count = u32::try_from(self.num_sequences()).expect("some thousand sequences");
        let (mut places, mut draw) = ((0..count).collect::<Vec<_>>(), Draw::new(order, &Device::Cpu));
        for last in (1..count).rev() {
            places.swap(last as usize, draw.below(last + 1) as usize);
        }
        places
    }

    /// The network with these sequences.
    fn in_order(&self, work: Workload, order: u64, device: &Device) -> Result<Workload, Error> {
        let places = self.places(order);
        let sequence = |of: &[u32], place: u32| of[place as usize * self.length..][..self.length].to_vec();
        let all = |of: &[u32]| places.iter().flat_map(|place| sequence(of, *place)).collect::<Vec<u32>>();
        let inputs: Vec<f32> = all(&self.inputs).into_iter().map(|token| token as f32).collect();
        let inputs = Tensor::from_vec(inputs, (places.len(), self.length), device)?;
        let targets = Tensor::from_vec(all(&self.targets), places.len() * self.length, device)?;
        Ok(Workload { inputs, targets, learning_rate: RATE, ..work })
    }

    /// What the peer begins with.
    fn write(&self, folder: &Path, name: &str, work: &Workload, is_autocast: bool) -> Result<(), Error> {
        let put = |name: &str, bytes: Vec<u8>| {
            let path = folder.join(name);
            fs::write(&path, bytes).map_err(|source| file("writing", &path, source))
        };
        let words = |values: &[u32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
        put("weights", work.parameters()?.iter().flat_map(|value| value.to_le_bytes()).collect())?;
        put("inputs", words(&self.inputs))?;
        put("targets", words(&self.targets))?;
        for order in ORDERS {
            put(&format!("order.{order}"), words(&self.places(order)))?;
        }
        let parameters: Vec<_> =
            work.model.parameters().iter().map(|parameter| json!([parameter.name, parameter.var.dims()])).collect();
        let description = json!({
            "work": name, "batch": self.batch, "length": self.length, "steps": self.num_sequences() / self.batch,
            "rate": RATE, "orders": ORDERS, "is_autocast": is_autocast, "parameters": parameters,
        });
        put("description.json", description.to_string().into_bytes())
    }
}

/// The loss of each step, before it.
fn losses(work: &Workload, steps: usize) -> Result<Vec<f64>, Error> {
    let (model, mut optimizer) = (&work.model, Optimizer::new(work.optimizer));
    let (parameters, layout, pool) = (model.parameters(), model.layout(), GradientBufferPool::new());
    let mut found = Vec::with_capacity(steps);
    for step in 0..steps {
        let loss = work.loss(&work.batch(step)?)?;
        let gradient = pool.lease_to_write(layout.num_elements(), DType::F32, loss.device())?;
        gather_gradients(&loss.backward()?, parameters, layout, GradientScope::Main, &gradient)?;
        let plan = optimizer.prepare(parameters, layout, work.learning_rate)?;
        optimizer.apply(parameters, layout, gradient.as_tensor(), &plan, None)?;
        optimizer.commit(layout, &plan);
        found.push(loss.detach().reshape(1)?);
    }
    let found = read_vec(&Tensor::cat(&found, 0)?, "bench_losses", &mut HostReads::default())?;
    Ok(found.into_iter().map(f64::from).collect())
}

/// What the peer prints.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Report {
    environment: PeerEnvironment,
    results: Vec<Curve>,
}

/// The losses of an order, or why there are none.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Curve {
    order: u64,
    #[serde(default)]
    losses: Vec<f64>,
    #[serde(default)]
    error: Option<String>,
    #[serde(default, rename = "n")]
    _n: usize,
}

impl Report {
    /// The losses of both orders.
    fn into_losses(self, steps: usize) -> Result<(PeerEnvironment, Vec<Vec<f64>>), Error> {
        let of = |order: u64| {
            let curve = self.results.iter().find(|curve| curve.order == order);
            let why = |curve: &Curve| curve.error.clone().unwrap_or_else(|| format!("{} losses", curve.losses.len()));
            match curve {
                Some(curve) if curve.losses.len() == steps => Ok(curve.losses.clone()),
                other => Err(Error::Process {
                    what: format!("PyTorch in order {order}"),
                    message: other.map_or_else(|| "no losses".to_owned(), why),
                }),
            }
        };
        let losses = ORDERS.into_iter().map(of).collect::<Result<_, _>>()?;
        Ok((self.environment, losses))
    }
}

/// Curves of both implementations in all orders, and how far they are from each other.
fn compared(here: &[Vec<f64>], there: &[Vec<f64>]) -> Samples {
    let mut samples = Samples::default();
    for (name, curves) in [("here", here), ("torch", there)] {
        for (order, losses) in ORDERS.iter().zip(curves) {
            losses.iter().for_each(|loss| samples.push(format!("loss.{name}.order{order}"), "nats", *loss));
            let ends = (1..=WINDOWS).map(|window| window * losses.len() / WINDOWS);
            for (end, mean) in ends.zip(windows(losses)) {
                samples.push(format!("curve.{name}.order{order}.step{end:04}"), "nats", mean);
            }
        }
    }
    let pairs = [
        ("implementations", [(&here[0], &there[0]), (&here[1], &there[1])]),
        ("orders", [(&here[0], &here[1]), (&there[0], &there[1])]),
    ];
    for (what, pairs) in pairs {
        for (a, b) in pairs {
            let distances = windows(a).into_iter().zip(windows(b)).map(|(a, b)| (a - b).abs()).collect();
            samples.extend(format!("distance.{what}"), "nats", distances);
        }
    }
    let [implementations, orders] =
        ["implementations", "orders"].map(|what| samples.median(&format!("distance.{what}")).unwrap_or(f64::NAN));
    samples.push("overlay", "ratio", implementations / orders);
    samples
}

/// Means over windows of equal lengths.
fn windows(losses: &[f64]) -> Vec<f64> {
    let part = |window: usize| &losses[window * losses.len() / WINDOWS..(window + 1) * losses.len() / WINDOWS];
    (0..WINDOWS).map(part).map(|part| part.iter().sum::<f64>() / part.len() as f64).collect()
}

fn file(action: &'static str, path: &Path, source: std::io::Error) -> Error {
    Error::File { action, path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_are_as_far_apart_as_their_windows() {
        let curve = |by: f64| (0..40).map(|step| f64::from(step) + by).collect::<Vec<f64>>();
        let samples = compared(&[curve(0.0), curve(4.0)], &[curve(1.0), curve(6.0)]);
        let found = ["distance.implementations", "distance.orders", "overlay", "curve.torch.order2.step0004"]
            .map(|name| samples.median(name).unwrap().to_string());
        assert_eq!(found, ["1", "4", "0.25", "8.5"]);
        let whole = samples.into_measurements();
        assert_eq!((whole["loss.here.order1"].n, whole["distance.orders"].n), (40, 2 * WINDOWS));
    }

    #[test]
    fn an_order_has_each_sequence_once_and_the_network_learns_in_it() {
        let work = || Workload::of("tfm5m", Variant::of(Form::Layers), 0, &Device::Cpu).unwrap();
        let data = Data { batch: 2, ..Data::new(&work(), 1).unwrap() };
        let [first, second] = ORDERS.map(|order| data.places(order));
        assert_ne!(first, second);
        let mut sorted = first.clone();
        sorted.sort_unstable();
        assert!(sorted.iter().copied().eq(0..8), "{sorted:?}");
        // One batch again and again.
        let work = data.in_order(work(), 1, &Device::Cpu).unwrap();
        let inputs = work.inputs.narrow(0, 0, 2).unwrap().contiguous().unwrap();
        let targets = work.targets.narrow(0, 0, 2 * data.length).unwrap().contiguous().unwrap();
        let found = losses(&Workload { batch_size: 2, inputs, targets, ..work }, 4).unwrap();
        assert!((found[0] - 256.0_f64.ln()).abs() < 0.5 && found.is_sorted_by(|a, b| a > b), "{found:?}");
    }

    #[test]
    fn what_the_peer_prints_is_a_curve_of_each_order_or_a_reason() {
        let report = |results: &str| -> Report {
            let environment = r#"{"torch": "2.11", "cuda": null, "gpu": null, "driver": null}"#;
            serde_json::from_str(&format!(r#"{{"environment": {environment}, "results": {results}}}"#)).unwrap()
        };
        let whole = report(r#"[{"order": 2, "losses": [3, 4]}, {"order": 1, "losses": [1, 2]}]"#);
        assert_eq!(whole.into_losses(2).unwrap().1, [[1.0, 2.0], [3.0, 4.0]]);
        let late = report(r#"[{"order": 1, "losses": [1, 2]}, {"order": 2, "n": 0, "error": "not finished"}]"#);
        assert!(late.into_losses(2).unwrap_err().to_string().contains("PyTorch in order 2 failed: not finished"));
    }
}
