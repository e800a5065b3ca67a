//! How long rewriting takes as recordings become longer: networks of more and more layers, on the host alone.

use esper_graph::compile::{PassSet, compile, perceptron};

use crate::error::Error;
use crate::samples::{Samples, ms};
use crate::work::{Needs, Outcome, Setting, Work, settings};

pub(super) const WORK: Work = Work::new(
    "compile-scale",
    "Rewriting recordings of a thousand to two hundred thousand operations",
    Needs::Nothing,
    run,
);

const NOTES: &str = "nN.compile: all passes over a recorded training step of N operations, networks of 25 to 6500 layers of one width \
    (ms); nN.pass.PASS: one of them. per_node.nN: median of compile over N (us). growth: per_node of the longest over that of the shortest, 1 where \
    time grows with the number of operations";

const LAYERS: [usize; 6] = [25, 80, 250, 800, 1900, 6500];
const REPETITIONS: usize = 3;

fn run(setting: &Setting) -> Result<Outcome, Error> {
    let mut samples = Samples::default();
    let mut per_node = Vec::new();
    for layers in LAYERS {
        let broken = |message: String| Error::Process { what: format!("a network of {layers} layers"), message };
        let program = perceptron(layers).map_err(|error| broken(format!("{error}")))?;
        let nodes = program.nodes.len();
        for _ in 0..REPETITIONS {
            let began = setting.clock.now();
            let compiled = compile(&program, &PassSet::all()).map_err(|error| broken(format!("{error:?}")))?;
            samples.push(format!("n{nodes}.compile"), "ms", ms(setting.clock.now() - began));
            for report in &compiled.reports {
                samples.push(format!("n{nodes}.pass.{}", report.pass.name()), "ms", ms(report.time));
            }
        }
        let median = samples.median(&format!("n{nodes}.compile")).unwrap_or(f64::NAN) * 1e3 / nodes as f64;
        samples.push(format!("per_node.n{nodes}"), "us", median);
        per_node.push(median);
    }
    let growth = per_node.last().zip(per_node.first()).map(|(last, first)| last / first);
    samples.extend_from("growth", "ratio", growth);
    let config = settings([("layers", LAYERS.map(|layers| layers.to_string()).join(","))]);
    Ok(samples.into_result(WORK.name, WORK.name, NOTES, config, setting.clock.as_ref()).into())
}
