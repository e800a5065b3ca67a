//! `candle-zoo-steps [--device cuda:0] [--only NAMES] [--steps 200] [--out FILE.json]`: every model of the zoo on a device, as JSON.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;

use baselines::environment::Build;
use baselines::measure::Measurement;
use baselines::result::BenchResult;
use candle_core::Device;
use candle_zoo::Model;
use candle_zoo_steps::found::Found;
use candle_zoo_steps::{Setting, look};
use clap::Parser;
use esper_graph::Session;
use leyline::clock::{Clock, SystemClock};
use leyline::region::Eager;

const NOTES: &str = "Models of candle-transformers as they are, random weights, AdamW, clipped. MODEL.forward.plain, .captured, .compiled: a call, waited \
    for; .pipelined, one of ten that are waited for once. MODEL.step.eager, .captured, .compiled: a step of the trainer, waited \
    for; .pipelined, one of eight. MODEL.gradients.with of .used parameters that the loss depends on have one; .compared elements \
    agree with differences. config says what was compared, refused, or failed. \
    torch.MODEL.step and .forward: the same in PyTorch, one CUDA graph with the kernels of Inductor; MODEL.step.over_torch: the compiled \
    step over it. What was not measured is absent.";

/// As the build script saw it.
fn build() -> Build {
    let commit = option_env!("ZOO_BUILD_COMMIT").filter(|commit| !commit.is_empty());
    Build { commit, dirty: option_env!("ZOO_BUILD_DIRTY") == Some("true") }
}

/// Models of candle-transformers as they are: gradients, results and training steps, plain, captured and compiled.
#[derive(Debug, Parser)]
struct Arguments {
    /// `cpu` or `cuda:N`.
    #[arg(long, default_value = "cpu")]
    device: String,
    /// Models, by name, separated by commas; all when absent.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    only: Vec<String>,
    /// Training steps that are compared.
    #[arg(long, default_value_t = 200)]
    steps: u64,
    /// Parameters of a model of which three elements are compared with differences.
    #[arg(long, default_value_t = 4)]
    compared: usize,
    /// Seconds for the eager steps of a model; one that needs more takes fewer steps.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Seconds for all of them; models that are left then are named.
    #[arg(long, default_value_t = 250.0)]
    in_all: f64,
    /// Convolutions in groups on a GPU by one kernel, instead of by candle's loop over the groups.
    #[arg(long)]
    direct: bool,
    /// What `peer.py` has printed: models in PyTorch, which the result is put beside.
    #[arg(long, value_name = "FILE")]
    peer: Option<PathBuf>,
    /// Where the result goes; written after every model.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Whether every model kept every promise.
fn run(arguments: &Arguments) -> Result<bool, Box<dyn Error>> {
    let chosen = chosen(&arguments.only)?;
    let device = match arguments.device.strip_prefix("cuda:") {
        Some(ordinal) => Device::new_cuda_with_stream(ordinal.parse()?)?,
        None if arguments.device == "cpu" => Device::Cpu,
        None => return Err(format!("no device `{}`: expected `cpu` or `cuda:N`", arguments.device).into()),
    };
    candle_core::grouped::set_direct(arguments.direct);
    let clock = Arc::new(SystemClock::new());
    let mut result = BenchResult::new("candle-zoo", NOTES, &*clock);
    result.command =
        "cargo run --release --manifest-path candle/Cargo.toml -p candle-zoo-steps --features cuda -- --device cuda:0"
            .to_owned();
    result.environment = result.environment.built_from(build());
    if arguments.direct {
        result.command += " --direct";
    }
    // Before any model, so that no other thread takes the device.
    let session = Session::open(&device).ok();
    if let Some(session) = &session {
        result.environment = result.environment.on_gpu(&session.facts());
    }
    let Arguments { steps, compared, seconds, .. } = *arguments;
    let setting = Setting { device, clock: clock.clone(), steps, compared, seconds };
    let mut eager = Eager::acquire()?;
    let mut num_broken = 0;
    for (index, model) in chosen.iter().enumerate() {
        let name = model.name.replace(' ', "_");
        let began = clock.now();
        if began.as_secs_f64() > arguments.in_all {
            result.config.insert(name, "not measured: no time was left".to_owned());
            continue;
        }
        let found = look(*model, &setting, &mut eager);
        println!("{}", row(model, &found, (clock.now() - began).as_secs_f64()));
        num_broken += usize::from(found.is_broken);
        result.measurements.extend(found.measurements.into_iter().map(|(key, value)| (format!("{name}.{key}"), value)));
        result.config.extend(found.texts.into_iter().map(|(key, value)| (format!("{name}.{key}"), value)));
        write(&result, arguments.out.as_deref())?;
        if setting.device.synchronize().is_err() {
            println!("the device is lost: the models after {} go on in a process of their own", model.name);
            num_broken +=
                usize::from(!elsewhere(arguments, &chosen[index + 1..], &mut result, clock.now().as_secs_f64())?);
            break;
        }
    }
    if let Some(peer) = &arguments.peer {
        beside(peer, &mut result)?;
    }
    write(&result, arguments.out.as_deref())?;
    println!("{} models, {num_broken} with something broken, {:.0} s", chosen.len(), clock.now().as_secs_f64());
    Ok(num_broken == 0)
}

fn chosen(names: &[String]) -> Result<Vec<Model>, String> {
    let all: Vec<Model> = candle_zoo::models().collect();
    let named =
        |name: &str| all.iter().find(|model| model.name == name || model.name.replace(' ', "_") == name).copied();
    if names.is_empty() {
        return Ok(all);
    }
    let known = || all.iter().map(|model| model.name.replace(' ', "_")).collect::<Vec<_>>().join(", ");
    names.iter().map(|name| named(name).ok_or_else(|| format!("no model `{name}`: expected of {}", known()))).collect()
}

/// One line, and what is not as it should be.
fn row(model: &Model, found: &Found, seconds: f64) -> String {
    let us = |name: &str| found.median(name).map_or_else(|| "–".to_owned(), |us| format!("{us:.0}"));
    let count = |name: &str| found.median(name).map_or_else(|| "–".to_owned(), |count| format!("{count}"));
    let three = |of: &str, ways: [&str; 3]| ways.map(|way| us(&format!("{of}.{way}"))).join(" / ");
    let mut text = format!(
        "{:<22} gradients {} of {}; forward {}; step {} ({} steps); {seconds:.1} s",
        model.name,
        count("gradients.with"),
        count("gradients.used"),
        three("forward", ["plain", "captured", "compiled"]),
        three("step", ["eager", "captured", "compiled"]),
        count("steps"),
    );
    for (name, said) in &found.texts {
        if ["BROKEN", "fails", "refused", "none for", "not in time"].iter().any(|word| said.contains(word)) {
            text += &format!("\n    {name}: {said}");
        }
    }
    text
}

/// Writes `FILE`, whose name is that of the result.
fn write(result: &BenchResult, out: Option<&Path>) -> Result<(), Box<dyn Error>> {
    let Some(out) = out else { return Ok(()) };
    let stem = out.file_stem().and_then(|stem| stem.to_str()).ok_or("expected `--out FILE.json`")?;
    BenchResult { name: stem.to_owned(), ..result.clone() }.write(out.parent().unwrap_or(Path::new(".")))?;
    Ok(())
}

/// Adds what PyTorch takes for models of the same shapes, and how many times as long the fastest way here takes.
fn beside(peer: &Path, result: &mut BenchResult) -> Result<(), Box<dyn Error>> {
    let mut read: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(peer)?)?;
    let theirs: BTreeMap<String, Measurement> = serde_json::from_value(read["measurements"].take())?;
    let said: BTreeMap<String, String> = serde_json::from_value(read["config"].take())?;
    for (name, measured) in &theirs {
        let of = name.trim_start_matches("torch.");
        let of = of.strip_suffix(".pipelined").map_or((of, ""), |of| (of, ".pipelined"));
        let ours = |way| result.measurements.get(&format!("{}.{way}{}", of.0, of.1)).cloned();
        if let Some(ours) = ours("compiled").or_else(|| ours("captured"))
            && let Some(ratio) = Measurement::of("ratio", vec![ours.median / measured.median])
        {
            println!("{name}: {:.0} us, here {:.0}: {:.2}", measured.median, ours.median, ratio.median);
            result.measurements.insert(format!("{}.over_torch{}", of.0, of.1), ratio);
        }
    }
    result.measurements.extend(theirs);
    result.config.extend(said);
    Ok(())
}

/// The models that are left, by this program in a new process: a device in error stays so for the one that it was lost in.
fn elsewhere(
    arguments: &Arguments,
    left: &[Model],
    result: &mut BenchResult,
    after: f64,
) -> Result<bool, Box<dyn Error>> {
    if left.is_empty() {
        return Ok(true);
    }
    let part = std::env::temp_dir().join(format!("candle-zoo-{}.json", std::process::id()));
    let names: Vec<String> = left.iter().map(|model| model.name.replace(' ', "_")).collect();
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--device", &arguments.device, "--only", &names.join(",")]).arg("--out").arg(&part);
    command.args(["--steps", &arguments.steps.to_string(), "--compared", &arguments.compared.to_string()]);
    command.args(["--seconds", &arguments.seconds.to_string()]);
    command.args(arguments.direct.then_some("--direct"));
    let status = command.args(["--in-all", &(arguments.in_all - after).to_string()]).status()?;
    let rest = BenchResult::read(&part)?;
    result.measurements.extend(rest.measurements);
    result.config.extend(rest.config);
    std::fs::remove_file(&part)?;
    Ok(status.success())
}
