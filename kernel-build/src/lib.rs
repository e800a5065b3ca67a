//! Compiles the kernels of a crate for its feature `cuda`, from its build script.
//!
//! The result holds machine code for the card that `CUDA_COMPUTE_CAP` names, so that loading it compiles nothing, and
//! portable code beside it for later cards.
//!
//! Every kernel begins with `WAIT_FOR_INPUTS` (`wait.cuh`), and a source with one that does not is not compiled. Where that makes it
//! wait, the image has a kernel more, of the name that the
//! crate finds in `KERNELS_WAIT` when it is compiled: by it whoever launches a kernel of the image knows.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io};

/// The kernel, which does nothing, of an image whose kernels wait.
const WAITS: &str = "esper_kernels_wait_for_inputs";

/// The first statement of every kernel, and what it is.
const WAIT: (&str, &str) = ("WAIT_FOR_INPUTS;", include_str!("wait.cuh"));

/// Compiles `source`, a file under `kernels/`, to `image` in the folder of the build's results, where it finds what the build
/// script wrote before, and where it leaves `wait.cuh`. Without the feature
/// `cuda` it only does that and tells cargo what to watch; a failure ends the build script with a warning that names it.
#[expect(clippy::print_stdout, reason = "what a build script prints is what it tells cargo")]
pub fn run(source: &str, image: &str) {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=kernels");
    println!("cargo:rerun-if-env-changed=CUDA_COMPUTE_CAP");
    println!("cargo:rerun-if-env-changed=CUDA_HOME");
    println!("cargo:rerun-if-env-changed=CUDA_PATH");
    println!("cargo:rustc-env=KERNELS_WAIT={WAITS}");
    if let Err(message) = write_wait() {
        println!("cargo:warning={message}");
        std::process::exit(1);
    }
    if env::var_os("CARGO_FEATURE_CUDA").is_some()
        && let Err(message) = compile(source, image)
    {
        println!("cargo:warning={message}");
        std::process::exit(1);
    }
}

fn folder() -> Result<PathBuf, String> {
    env::var_os("OUT_DIR").map(PathBuf::from).ok_or_else(|| "OUT_DIR is not set".to_owned())
}

fn write_wait() -> Result<(), String> {
    let path = folder()?.join("wait.cuh");
    fs::write(&path, WAIT.1).map_err(|error| format!("{}: {error}", path.display()))
}

fn compile(source: &str, image: &str) -> Result<(), String> {
    check_all(Path::new("kernels")).map_err(|error| error.to_string())?;
    let target = target(&env::var("CUDA_COMPUTE_CAP").unwrap_or_else(|_| "80".to_owned()))?;
    let nvcc = ["CUDA_HOME", "CUDA_PATH"]
        .iter()
        .filter_map(env::var_os)
        .map(|home| Path::new(&home).join("bin/nvcc"))
        .find(|path| path.exists())
        .unwrap_or_else(|| PathBuf::from("nvcc"));
    let folder = folder()?;
    let begin = folder.join("begin.cuh");
    let told = format!(
        "#include \"wait.cuh\"\n#if __CUDA_ARCH__ >= 900\nextern \"C\" __global__ void {WAITS}() {{}}\n#endif\n"
    );
    fs::write(&begin, told).map_err(|error| format!("{}: {error}", begin.display()))?;
    // No contraction to fused multiply-adds: the kernels round after every operation, as the CPU does.
    let output = Command::new(&nvcc)
        .args(["-fatbin", "-O3", "--fmad=false", "-std=c++17"])
        .args(target)
        .args(["-I", "kernels", "-I"])
        .arg(&folder)
        .arg("-include")
        .arg(&begin)
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

/// Confirms of every file of a folder, and of those in it, what [`check`] does.
fn check_all(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            check_all(&path)?;
        } else if let Err(message) = check(&fs::read_to_string(&path)?) {
            return Err(io::Error::other(format!("{}: {message}", path.display())));
        }
    }
    Ok(())
}

/// Confirms that every kernel of a source begins by waiting.
fn check(source: &str) -> Result<(), String> {
    for (start, word) in source.match_indices("__global__") {
        let body = source[start + word.len()..].split_once('{').map_or("", |(_, body)| body);
        if !body.trim_start_matches(|letter: char| letter.is_whitespace() || letter == '\\').starts_with(WAIT.0) {
            let line = source[..start].lines().count();
            return Err(format!("the kernel at line {line} does not begin with `{}`", WAIT.0));
        }
    }
    Ok(())
}

/// The compiler's arguments for a compute capability, with or without its dot.
fn target(capability: &str) -> Result<[String; 2], String> {
    let cap = capability.replace('.', "");
    if cap.is_empty() || !cap.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!("CUDA_COMPUTE_CAP is `{cap}`: expected a number such as 80 or 90"));
    }
    // Machine code of Hopper may have instructions that later cards do not know: portable code has none of them.
    let own = if cap == "90" { "90a" } else { &cap };
    Ok([
        format!("-gencode=arch=compute_{own},code=sm_{own}"),
        format!("-gencode=arch=compute_{cap},code=compute_{cap}"),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capability_names_machine_code_and_portable_code() {
        for text in ["90", "9.0"] {
            let found = target(text).unwrap();
            assert_eq!(found, ["-gencode=arch=compute_90a,code=sm_90a", "-gencode=arch=compute_90,code=compute_90"]);
        }
        let found = target("8.0").unwrap();
        assert_eq!(found, ["-gencode=arch=compute_80,code=sm_80", "-gencode=arch=compute_80,code=compute_80"]);
    }

    #[test]
    fn a_kernel_that_does_not_begin_by_waiting_is_named() {
        let plain = "// One.\nextern \"C\" __global__ void a(float* x) {\n    WAIT_FOR_INPUTS;\n    x[0] = 1.0f;\n}\n";
        let of_macro = "#define OF(T) \\\n    __global__ void __launch_bounds__(128) b_##T(T* x) { \\\n        WAIT_FOR_INPUTS;  \\\n    }\n";
        assert_eq!(check(&[plain, of_macro].concat()), Ok(()));
        for missing in
            [plain.replace("    WAIT_FOR_INPUTS;\n", ""), plain.replace("    WAIT", "    x[0] = 2.0f;\n    WAIT")]
        {
            let message = check(&[of_macro, &missing].concat()).unwrap_err();
            assert_eq!(message, "the kernel at line 6 does not begin with `WAIT_FOR_INPUTS;`");
        }
        assert!(check(&of_macro.replace("WAIT_FOR_INPUTS;", "")).is_err());
        assert!(check("__global__ void only_declared(float* x);").is_err());
    }

    #[test]
    fn a_capability_that_is_no_number_is_named() {
        for (text, shown) in [("", "``"), (".", "``"), ("9O", "`9O`"), ("sm_90", "`sm_90`")] {
            assert!(target(text).unwrap_err().contains(shown), "{text}");
        }
    }
}
