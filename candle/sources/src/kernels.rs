//! Kernels of a published package as machine code, for a build script.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::{Error, find, missing, put};

/// What names the card, and what names the compiler before the toolkit does.
const CARD: &str = "CUDA_COMPUTE_CAP";
const COMPILER: &str = "NVCC";
/// What the package is compiled with, apart from the card.
const FLAGS: [&str; 6] = ["-cubin", "-O3", "-std=c++17", "--expt-relaxed-constexpr", "--default-stream", "per-thread"];

/// Compiles `src/KERNEL.cu` of `name` `version` for the card that `CUDA_COMPUTE_CAP` names, and writes `images.rs` into `OUT_DIR`: a slice of
/// `(&str, &[u8])`, each name with its machine code. It is empty where the feature `cuda` is off or no card is named, and, with a warning, where
/// the name is not that of one card or no compiler is found: then the driver compiles, as without this.
///
/// # Errors
/// [`Error::NotFound`] where the sources are not there, [`Error::Kernel`] with what the compiler says.
pub fn write_images(name: &str, version: &str, kernels: &[&str]) -> Result<(), Error> {
    for variable in [CARD, COMPILER, "CUDA_HOME", "CUDA_PATH"] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or_else(|| missing("OUT_DIR"))?);
    let card = env::var(CARD).ok().filter(|_| env::var_os("CARGO_FEATURE_CUDA").is_some());
    let compiled = match card {
        Some(card) => match target(&card) {
            Some(target) => compile(&nvcc(), &find(name, version)?.join("src"), &out, &target, kernels)?,
            None => {
                println!(
                    "cargo::warning={CARD} is `{card}`, not one card such as 80 or 90: no machine code for {name}"
                );
                Vec::new()
            }
        },
        None => Vec::new(),
    };
    put(&out.join("images.rs"), &listed(&compiled))
}

/// The compiler's argument for a compute capability, with or without its dot; none for what is no number of two digits or more.
fn target(card: &str) -> Option<String> {
    let digits = card.trim().trim_start_matches("sm_").replace('.', "");
    let number = digits.strip_suffix(['a', 'f']).unwrap_or(&digits);
    (number.len() > 1 && number.bytes().all(|byte| byte.is_ascii_digit())).then(|| format!("-arch=sm_{digits}"))
}

fn nvcc() -> PathBuf {
    let homes = ["CUDA_HOME", "CUDA_PATH"].iter().filter_map(env::var_os).map(|home| Path::new(&home).join("bin/nvcc"));
    let named = env::var_os(COMPILER).map(PathBuf::from);
    named.into_iter().chain(homes).find(|path| path.exists()).unwrap_or_else(|| PathBuf::from("nvcc"))
}

/// All at once: a compiler takes one core, and a few seconds.
fn compile<'a>(
    nvcc: &Path,
    from: &Path,
    out: &Path,
    target: &str,
    kernels: &[&'a str],
) -> Result<Vec<(&'a str, PathBuf)>, Error> {
    let mut started: Vec<(&str, PathBuf, Child)> = Vec::new();
    for kernel in kernels {
        let image = out.join(format!("{kernel}.cubin"));
        let mut command = Command::new(nvcc);
        command.args(FLAGS).arg(target).arg("-o").arg(&image).arg(from.join(format!("{kernel}.cu")));
        match command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn() {
            Ok(child) => started.push((kernel, image, child)),
            Err(error) if started.is_empty() => {
                println!("cargo::warning={} could not be run ({error}): no machine code", nvcc.display());
                return Ok(Vec::new());
            }
            Err(error) => return Err(Error::Io(nvcc.to_owned(), error)),
        }
    }
    let mut compiled = Vec::new();
    for (kernel, image, child) in started {
        let output = child.wait_with_output().map_err(|e| Error::Io(image.clone(), e))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(Error::Kernel(format!("{kernel}.cu does not compile: {said}")));
        }
        compiled.push((kernel, image));
    }
    Ok(compiled)
}

fn listed(images: &[(&str, PathBuf)]) -> String {
    let each = images
        .iter()
        .map(|(name, path)| format!("    ({name:?}, include_bytes!({:?})),\n", path.display().to_string()));
    format!("&[\n{}]\n", each.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_is_a_number_with_or_without_its_dot() {
        for (card, expected) in
            [("90", "sm_90"), ("9.0", "sm_90"), (" sm_90a ", "sm_90a"), ("121f", "sm_121f"), ("120", "sm_120")]
        {
            assert_eq!(target(card), Some(format!("-arch={expected}")), "{card}");
        }
        for card in ["", "9", "9O", "a", "aa", "90ab", "80,90"] {
            assert_eq!(target(card), None, "{card}");
        }
    }

    #[test]
    fn images_are_listed_by_name_and_may_be_none() {
        assert_eq!(listed(&[]), "&[\n]\n");
        let images = [("fill", PathBuf::from("/a b/fill.cubin"))];
        assert_eq!(listed(&images), "&[\n    (\"fill\", include_bytes!(\"/a b/fill.cubin\")),\n]\n");
    }

    #[test]
    fn a_compiler_that_refuses_a_kernel_is_told_and_one_that_is_not_there_leaves_none() {
        let folder = env::temp_dir();
        let of = |nvcc: &str| compile(Path::new(nvcc), &folder, &folder, "-arch=sm_90", &["nowhere"]);
        assert_eq!(of("false").unwrap_err().to_string(), "nowhere.cu does not compile: ");
        assert!(of("/nowhere/nvcc").unwrap().is_empty());
        assert_eq!(of("true").unwrap(), [("nowhere", folder.join("nowhere.cubin"))]);
    }
}
