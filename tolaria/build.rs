//! Compiles the kernels of this crate for the feature `cuda`.
//!
//! The result holds machine code for the card that `CUDA_COMPUTE_CAP` names, so that loading it compiles nothing, and
//! portable code beside it for later cards.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=kernels");
    println!("cargo:rerun-if-env-changed=CUDA_COMPUTE_CAP");
    println!("cargo:rerun-if-env-changed=CUDA_HOME");
    println!("cargo:rerun-if-env-changed=CUDA_PATH");
    if env::var_os("CARGO_FEATURE_CUDA").is_some()
        && let Err(message) = compile()
    {
        println!("cargo:warning={message}");
        std::process::exit(1);
    }
}

fn compile() -> Result<(), String> {
    let cap = env::var("CUDA_COMPUTE_CAP").unwrap_or_else(|_| "80".to_owned()).replace('.', "");
    if cap.is_empty() || !cap.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!("CUDA_COMPUTE_CAP is `{cap}`: expected a number such as 80 or 90"));
    }
    let nvcc = ["CUDA_HOME", "CUDA_PATH"]
        .iter()
        .filter_map(env::var_os)
        .map(|home| Path::new(&home).join("bin/nvcc"))
        .find(|path| path.exists())
        .unwrap_or_else(|| PathBuf::from("nvcc"));
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?).join("kernels.fatbin");
    // No contraction to fused multiply-adds: the kernels round after every operation, as the CPU does.
    let output = Command::new(&nvcc)
        .args(["-fatbin", "-O3", "--fmad=false", "-std=c++17"])
        .arg(format!("-gencode=arch=compute_{cap},code=[sm_{cap},compute_{cap}]"))
        .arg("-o")
        .arg(&out)
        .arg("kernels/all.cu")
        .output()
        .map_err(|error| {
            format!("{} could not be run: {error}; the feature `cuda` needs the CUDA toolkit", nvcc.display())
        })?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{} failed: {}", nvcc.display(), String::from_utf8_lossy(&output.stderr).replace('\n', " ")))
}
