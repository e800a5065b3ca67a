//! Kernels of a published package as machine code, for a build script.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::{Error, find, missing, put};

/// What names the card, as for the package itself.
const CARD: &str = "CUDA_COMPUTE_CAP";
/// What the package is compiled with, apart from the card.
const FLAGS: [&str; 6] = ["-cubin", "-O3", "-std=c++17", "--expt-relaxed-constexpr", "--default-stream", "per-thread"];

/// Compiles `src/KERNEL.cu` of `name` `version` for the card that `CUDA_COMPUTE_CAP` names, and writes `images.rs` into `OUT_DIR`: a slice of
/// `(&str, &[u8])`, each name with its machine code. It is empty where the feature `cuda` is off or no card is named.
///
/// # Errors
/// [`Error::NotFound`] where the sources or the compiler are not there, [`Error::Kernel`] with what the compiler says.
pub fn write_images(name: &str, version: &str, kernels: &[&str]) -> Result<(), Error> {
    for variable in [CARD, "CUDA_HOME", "CUDA_PATH"] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or_else(|| missing("OUT_DIR"))?);
    let card = env::var(CARD).ok().filter(|_| env::var_os("CARGO_FEATURE_CUDA").is_some());
    let compiled = match card {
        Some(card) => compile(&find(name, version)?.join("src"), &out, &target(&card)?, kernels)?,
        None => Vec::new(),
    };
    put(&out.join("images.rs"), &listed(&compiled))
}

/// The compiler's argument for a compute capability, with or without its dot.
fn target(card: &str) -> Result<String, Error> {
    let digits = card.replace('.', "");
    if digits.len() < 2 || !digits.trim_end_matches('a').bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(Error::Kernel(format!("{CARD} is `{card}`: expected a number such as 80 or 90")));
    }
    Ok(format!("-arch=sm_{digits}"))
}

/// All at once: a compiler takes one core, and a few seconds.
fn compile<'a>(from: &Path, out: &Path, target: &str, kernels: &[&'a str]) -> Result<Vec<(&'a str, PathBuf)>, Error> {
    let homes = ["CUDA_HOME", "CUDA_PATH"].iter().filter_map(env::var_os);
    let nvcc = homes.map(|home| Path::new(&home).join("bin/nvcc")).find(|path| path.exists());
    let nvcc = nvcc.unwrap_or_else(|| PathBuf::from("nvcc"));
    let start = |kernel: &&'a str| -> Result<(&'a str, PathBuf, Child), Error> {
        let image = out.join(format!("{kernel}.cubin"));
        let mut command = Command::new(&nvcc);
        command.args(FLAGS).arg(target).arg("-o").arg(&image).arg(from.join(format!("{kernel}.cu")));
        let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
        let child = child.map_err(|e| Error::NotFound(format!("{} could not be run: {e}", nvcc.display())))?;
        Ok((*kernel, image, child))
    };
    let started = kernels.iter().map(start).collect::<Result<Vec<_>, _>>()?;
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
    use std::fs;

    use super::*;

    #[test]
    fn a_card_is_a_number_with_or_without_its_dot() {
        for (card, expected) in [("90", "-arch=sm_90"), ("9.0", "-arch=sm_90"), ("90a", "-arch=sm_90a")] {
            assert_eq!(target(card).unwrap(), expected);
        }
        for card in ["", "9", "sm_90", "9O", "a"] {
            let said = target(card).unwrap_err().to_string();
            assert_eq!(said, format!("CUDA_COMPUTE_CAP is `{card}`: expected a number such as 80 or 90"));
        }
    }

    #[test]
    fn images_are_listed_by_name_and_may_be_none() {
        assert_eq!(listed(&[]), "&[\n]\n");
        let images = [("fill", PathBuf::from("/a b/fill.cubin"))];
        assert_eq!(listed(&images), "&[\n    (\"fill\", include_bytes!(\"/a b/fill.cubin\")),\n]\n");
    }

    #[test]
    fn a_compiler_that_refuses_a_kernel_or_is_not_there_is_told() {
        let folder = env::temp_dir().join(format!("candle-sources-kernels-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let said = compile(&folder, &folder, "-arch=sm_90", &["nowhere"]).unwrap_err().to_string();
        fs::remove_dir_all(&folder).unwrap();
        assert!(said.contains("nowhere.cu does not compile") || said.contains("could not be run"), "{said}");
    }
}
