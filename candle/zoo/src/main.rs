//! `candle-zoo [--all] [--bits] [NAME…]`: what is found of the models, as a table, or the bits of their results alone.

#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::Instant;

use candle_zoo::check::{Extent, bits, check};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
    let extent = if has("--all") { Extent::All } else { Extent::Some(8) };
    let names: Vec<&String> = arguments.iter().filter(|argument| !argument.starts_with("--")).collect();
    let chosen = candle_zoo::models().filter(|model| names.is_empty() || names.iter().any(|name| *name == model.name));
    let mut is_right = true;
    if !has("--bits") {
        println!("{:<22} {:<4} {:>12} {:>7} {:>9} {:>7}", "model", "type", "gradients", "unused", "compared", "s");
    }
    for model in chosen {
        if has("--bits") {
            match bits(model) {
                Ok(bits) => println!("{:<22} {bits:016x}", model.name),
                Err(error) => println!("{:<22} {error}", model.name),
            }
            continue;
        }
        let began = Instant::now();
        match check(model, extent, &candle_core::Device::Cpu) {
            Ok(found) => {
                println!("{found} {:>7.1}", began.elapsed().as_secs_f64());
                is_right &= found.is_right(&model);
                for missing in &found.missing {
                    let why =
                        model.without.filter(|(part, _)| missing.contains(part)).map_or("unexpected", |(_, why)| why);
                    println!("    without: {missing}: {why}");
                }
                found.different.iter().for_each(|different| println!("    different: {different}"));
            }
            Err(error) => {
                is_right = false;
                println!("{:<22} fails: {}", model.name, error.to_string().lines().next().unwrap_or_default());
            }
        }
    }
    if is_right { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
