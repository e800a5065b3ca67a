//! An inference function: plain, captured, compiled.

use std::time::Duration;

use candle_core::{DType, Result, Tensor};
use candle_zoo::Model;
use candle_zoo::check::Trial;
use esper_graph::{GraphFunction, GraphFunctionConfig, GraphManager, GraphMode};
use leyline::region::Eager;

use crate::found::Found;
use crate::{Setting, bits, differing, more};

/// Calls that are waited for, and groups of ten that are waited for once.
const TIMED: usize = 40;
const GROUPS: usize = 5;
const IN_GROUP: u32 = 10;
/// For the compiler.
const WAIT: Duration = Duration::from_secs(4);

pub(crate) fn look(model: Model, setting: &Setting, eager: &mut Eager, found: &mut Found) -> Result<()> {
    let mut built = Trial::new(model, DType::F32, &setting.device)?.built;
    let own = built.inputs.clone();
    let inputs = [own.clone(), more(&own, 1)?];
    let mut expected = Vec::new();
    for x in &inputs {
        expected.push(bits(&built.forward(x)?.detach())?);
    }
    times(setting, "plain", found, &mut || built.forward(&own).map(drop))?;
    for (way, compile) in [("captured", GraphMode::Off), ("compiled", GraphMode::Auto)] {
        let config = GraphFunctionConfig { compile, ..GraphFunctionConfig::default() };
        let function = |inputs: &[Tensor]| Ok(vec![built.forward(&inputs[0])?]);
        let mut function = GraphFunction::new(function, config, &GraphManager::global());
        let name = format!("forward.{way}");
        let began = setting.clock.now();
        loop {
            function.call(eager, &[&own])?;
            let total = function.stats().total;
            let is_there = if way == "captured" { total.replays > 2 } else { total.compiled > 2 };
            let is_refused = function.last_refusal(&[&own]).is_some() || function.last_compile_refusal().is_some();
            if is_there || is_refused || setting.clock.now() - began > WAIT {
                break;
            }
        }
        let mut wrong = 0;
        for (x, expected) in inputs.iter().zip(&expected) {
            wrong += differing(&bits(&function.call(eager, &[x])?[0])?, expected);
        }
        let same = if wrong == 0 { "the same bits".to_owned() } else { format!("BROKEN: {wrong} elements differ") };
        let refusal = function.last_refusal(&[&own]).or(function.last_compile_refusal());
        let refusal = refusal.map(|refusal| format!("; refused as {}: {refusal}", refusal.name()));
        let total = function.stats().total;
        let is_taken = if way == "captured" { total.replays > 0 } else { total.compiled > 0 };
        let late = if is_taken || refusal.is_some() { "" } else { "; not in time" };
        found.say(&name, format!("{same}{}{late}", refusal.unwrap_or_default()));
        if is_taken {
            times(setting, way, found, &mut || function.call_in_place(eager, &[&own]).map(drop))?;
        }
    }
    for way in ["captured", "compiled"] {
        if let (Some(plain), Some(other)) = (found.median("forward.plain"), found.median(&format!("forward.{way}"))) {
            found.value(&format!("forward.plain_over_{way}"), "ratio", plain / other);
        }
    }
    Ok(())
}

/// Microseconds of a call that is waited for, and of one of ten.
fn times(setting: &Setting, way: &str, found: &mut Found, call: &mut dyn FnMut() -> Result<()>) -> Result<()> {
    let began = setting.clock.now();
    let mut timed = |calls: u32| {
        let started = setting.clock.now();
        (0..calls).try_for_each(|_| call())?;
        setting.device.synchronize()?;
        Result::Ok((setting.clock.now() - started).as_secs_f64() * 1e6 / f64::from(calls))
    };
    timed(3)?;
    let (mut waited, mut pipelined) = (Vec::new(), Vec::new());
    // A call of a slow one takes seconds on a CPU.
    let is_over = || (setting.clock.now() - began).as_secs_f64() > setting.seconds / 4.0;
    while waited.len() < TIMED && !(waited.len() >= 3 && is_over()) {
        waited.push(timed(1)?);
    }
    while pipelined.len() < GROUPS && !is_over() {
        pipelined.push(timed(IN_GROUP)?);
    }
    found.values(format!("forward.{way}"), "us", waited);
    found.values(format!("forward.{way}.pipelined"), "us", pipelined);
    Ok(())
}
