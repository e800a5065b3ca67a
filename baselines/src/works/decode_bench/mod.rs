//! Tokens one after the other from a language model of 125 million parameters: as candle offers it, and by a step that is
//! replayed.

use candle_core::{D, DType, Tensor};
use esper_graph::{GraphFunction, GraphFunctionConfig, GraphManager, GraphMode};
use leyline::region::Eager;
use tolaria::host_read::{HostReads, read_vec};

use crate::error::Error;
use crate::gpu::open::Gpu;
use crate::models::{Draw, Llama, LlamaConfig, Memory};
use crate::samples::{Samples, us};
use crate::work::{Settings, Work, settings};

pub(super) const WORK: Work =
    Work::on_gpu("decode-bench", "Generating tokens: eagerly, captured and compiled", NOTES, run);

const NOTES: &str = "PRECISION.FORM: one token, mean of a stretch of 128 tokens after the first 64 of a sequence, waited for once (us); \
    the token chosen by argmax on the device is the next input. plain: operations of candle and candle-nn with keys and values that are appended, as \
    candle-transformers has them; in_place: keys and values at one address, attention and products of one row by \
    esper-layers, eagerly; captured: that step as one graph; compiled: the \
    same, compiled. PRECISION.speedup: plain / the faster of captured and compiled. PRECISION.difference: largest difference of a logit between plain and \
    in_place over 64 tokens, relative to the largest logit. in_place, captured and compiled gave the same logits bit for bit \
    over 64 tokens, before any time was taken.";

const SEED: u64 = 17;
const FIRST_TOKEN: u32 = 1;
/// Tokens that are compared, and tokens before a stretch that is timed.
const COMPARED: usize = 64;
const TIMED: usize = 128;
const STRETCHES: usize = 12;
/// Products of bf16 keep 8 bits.
const TOLERANCES: [(&str, DType, f64); 2] = [("f32", DType::F32, 1e-4), ("bf16", DType::BF16, 0.1)];

/// A way to generate.
struct Form {
    name: &'static str,
    mode: GraphMode,
    compile: GraphMode,
}

const FORMS: [Form; 3] = [
    Form { name: "in_place", mode: GraphMode::Off, compile: GraphMode::Off },
    Form { name: "captured", mode: GraphMode::Auto, compile: GraphMode::Off },
    Form { name: "compiled", mode: GraphMode::Auto, compile: GraphMode::Auto },
];

fn run(gpu: &Gpu, eager: &mut Eager, samples: &mut Samples) -> Result<Settings, Error> {
    let mut config = settings([("parameters", "124.9 million: 12 blocks of width 768, 12 heads, 26 000 tokens")]);
    for (precision, dtype, tolerance) in TOLERANCES {
        let model = Llama::new(LlamaConfig::M125, &mut Draw::new(SEED, &gpu.device).with_dtype(dtype))?;
        let (plain_logits, plain_times) = plain(gpu, &model)?;
        let plain = samples.extend(format!("{precision}.plain"), "us", plain_times);
        let mut in_place: Option<Vec<f32>> = None;
        let mut fastest = f64::INFINITY;
        for form in FORMS {
            let name = format!("{precision}.{}", form.name);
            let ((logits, times), note) = kept(gpu, eager, &model, &form)?;
            let median = samples.extend(&name, "us", times);
            config.extend(note.map(|note| (format!("{name}.refused"), note)));
            if let Some(expected) = &in_place {
                let differing = expected.iter().zip(&logits).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
                expect(&name, differing as f64, 0.0)?;
                fastest = fastest.min(median);
            } else {
                let difference = largest_difference(&logits, &plain_logits);
                samples.push(format!("{precision}.difference"), "ratio", difference);
                expect(&name, difference, tolerance)?;
                in_place = Some(logits);
            }
        }
        samples.push(format!("{precision}.speedup"), "ratio", plain / fastest);
    }
    Ok(config)
}

/// Logits that differ by more than allowed end the work.
fn expect(name: &str, found: f64, tolerance: f64) -> Result<(), Error> {
    if found <= tolerance {
        return Ok(());
    }
    Err(Error::WrongResult { what: format!("{name}: difference of logits"), expected: 0.0, found })
}

/// Logits of the first tokens, and the times of stretches, us per token.
type Measured = (Vec<f32>, Vec<f64>);

fn plain(gpu: &Gpu, model: &Llama) -> Result<Measured, Error> {
    let mut memory = Llama::growing();
    let start = |memory: &mut Memory| {
        *memory = Llama::growing();
        Ok(())
    };
    generate(gpu, &mut memory, start, |token, memory| {
        let logits = model.step(token, memory)?;
        Ok((logits.argmax(D::Minus1)?, logits))
    })
}

/// The same with keys and values in place; why it was not replayed or compiled, if that is so.
fn kept(gpu: &Gpu, eager: &mut Eager, model: &Llama, form: &Form) -> Result<(Measured, Option<String>), Error> {
    let mut memory = model.in_place()?;
    let Memory::InPlace(_, position) = &memory else { unreachable!("it is in place") };
    let position = position.clone();
    let config = GraphFunctionConfig { mode: form.mode, compile: form.compile, ..GraphFunctionConfig::default() };
    let step = |inputs: &[Tensor]| {
        let logits = model.step(&inputs[0], &mut memory)?;
        Ok(vec![logits.argmax(D::Minus1)?, logits])
    };
    let mut step = GraphFunction::new(step, config, &GraphManager::new());
    let start = |_: &mut GraphFunction<_>| position.set(0);
    let (logits, times) = generate(gpu, &mut step, start, |token, step| {
        let results = step.call_in_place(eager, &[token])?;
        Ok((results[0].clone(), results[1].clone()))
    })?;
    let token = Tensor::new(&[FIRST_TOKEN], &gpu.device)?;
    let refusal = step.last_refusal(&[&token]).or(step.last_compile_refusal());
    let note = refusal.filter(|_| form.mode == GraphMode::Auto).map(ToString::to_string);
    Ok(((logits, times), note))
}

fn generate<S>(
    gpu: &Gpu,
    state: &mut S,
    start: impl Fn(&mut S) -> candle_core::Result<()>,
    mut next: impl FnMut(&Tensor, &mut S) -> candle_core::Result<(Tensor, Tensor)>,
) -> Result<Measured, Error> {
    let first = Tensor::new(&[FIRST_TOKEN], &gpu.device)?;
    // Warm-up, capture, compile.
    for _ in 0..2 {
        start(state)?;
        let mut token = first.clone();
        for _ in 0..COMPARED {
            token = next(&token, state)?.0;
        }
        gpu.wait()?;
    }
    // Each form gets the same tokens, whatever it would choose.
    start(state)?;
    let mut compared = Vec::new();
    for token in (0..1000_u32).step_by(37).cycle().take(COMPARED) {
        let token = Tensor::new(&[token], &gpu.device)?;
        let logits = next(&token, state)?.1.squeeze(0)?;
        compared.extend(read_vec(&logits, "logits", &mut HostReads::default())?);
    }
    let mut times = Vec::new();
    for _ in 0..STRETCHES {
        start(state)?;
        let mut token = first.clone();
        for _ in 0..COMPARED {
            token = next(&token, state)?.0;
        }
        gpu.wait()?;
        let began = gpu.now();
        for _ in 0..TIMED {
            token = next(&token, state)?.0;
        }
        gpu.wait()?;
        times.push(us(gpu.now() - began) / TIMED as f64);
    }
    Ok((compared, times))
}

/// Relative to the largest.
fn largest_difference(found: &[f32], expected: &[f32]) -> f64 {
    let largest = expected.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
    let difference = found.iter().zip(expected).map(|(a, b)| (a - b).abs());
    // A maximum would drop what is not a number.
    let worst =
        difference.fold(0.0_f32, |worst, one| if one.is_nan() || worst.is_nan() { f32::NAN } else { worst.max(one) });
    f64::from(worst / largest)
}
