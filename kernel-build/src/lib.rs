//! Compiles the kernels of a crate for its feature `cuda`, from its build script.
//!
//! The result holds machine code for the card that `CUDA_COMPUTE_CAP` names, so that loading it compiles nothing, and
//! portable code beside it for later cards.
#![forbid(unsafe_code)]

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles `source`, a file under `kernels/`, to `image` in the folder of the build's results, where it finds what the build
/// script wrote before. Without the feature
/// `cuda` it only tells cargo what to watch; a failure ends the build script with a warning that names it.
#[expect(clippy::print_stdout, reason = "what a build script prints is what it tells cargo")]
pub fn run(source: &str, image: &str) {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=kernels");
    println!("cargo:rerun-if-env-changed=CUDA_COMPUTE_CAP");
    println!("cargo:rerun-if-env-changed=CUDA_HOME");
    println!("cargo:rerun-if-env-changed=CUDA_PATH");
    if env::var_os("CARGO_FEATURE_CUDA").is_some()
        && let Err(message) = compile(source, image)
    {
        println!("cargo:warning={message}");
        std::process::exit(1);
    }
}

fn compile(source: &str, image: &str) -> Result<(), String> {
    let target = target(&env::var("CUDA_COMPUTE_CAP").unwrap_or_else(|_| "80".to_owned()))?;
    let nvcc = ["CUDA_HOME", "CUDA_PATH"]
        .iter()
        .filter_map(env::var_os)
        .map(|home| Path::new(&home).join("bin/nvcc"))
        .find(|path| path.exists())
        .unwrap_or_else(|| PathBuf::from("nvcc"));
    let folder = PathBuf::from(env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?);
    // No contraction to fused multiply-adds: the kernels round after every operation, as the CPU does.
    let output = Command::new(&nvcc)
        .args(["-fatbin", "-O3", "--fmad=false", "-std=c++17"])
        .arg(target)
        .args(["-I", "kernels", "-I"])
        .arg(&folder)
        .arg("-o")
        .arg(folder.join(image))
        .arg(Path::new("kernels").join(source))
        .output()
        .map_err(|error| {
            format!("{} could not be run: {error}; the feature `cuda` needs the CUDA toolkit", nvcc.display())
        })?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{} failed: {}", nvcc.display(), String::from_utf8_lossy(&output.stderr).replace('\n', " ")))
}

/// The compiler's argument for a compute capability, with or without its dot.
fn target(capability: &str) -> Result<String, String> {
    let cap = capability.replace('.', "");
    if cap.is_empty() || !cap.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!("CUDA_COMPUTE_CAP is `{cap}`: expected a number such as 80 or 90"));
    }
    Ok(format!("-gencode=arch=compute_{cap},code=[sm_{cap},compute_{cap}]"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capability_names_machine_code_and_portable_code() {
        for text in ["90", "9.0"] {
            assert_eq!(target(text).unwrap(), "-gencode=arch=compute_90,code=[sm_90,compute_90]");
        }
    }

    #[test]
    fn a_capability_that_is_no_number_is_named() {
        for (text, shown) in [("", "``"), (".", "``"), ("9O", "`9O`"), ("sm_90", "`sm_90`")] {
            assert!(target(text).unwrap_err().contains(shown), "{text}");
        }
    }
}
