//! Compiles the kernels of this crate for the feature `cuda`.

use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs, io};

#[path = "src/optim/rules.rs"]
#[allow(dead_code, reason = "only the sources are used here")]
mod rules;

use rules::Source;

fn main() -> io::Result<()> {
    let out = env::var_os("OUT_DIR").ok_or_else(|| io::Error::other("OUT_DIR is not set"))?;
    fs::write(Path::new(&out).join("methods.cuh"), methods(Path::new("kernels/weights"))?)?;
    fs::write(
        Path::new(&out).join("rules.cuh"),
        rules::SOURCES.iter().map(structure).chain([kernels()]).collect::<String>(),
    )?;
    kernel_build::run("all.cu", "kernels.fatbin");
    Ok(())
}

/// Includes every file of `folder` that has a method, and makes its kernel; in the order of their names.
fn methods(folder: &Path) -> io::Result<String> {
    let paths = fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    let mut sources =
        paths.into_iter().map(|path| Ok((fs::read_to_string(&path)?, path))).collect::<io::Result<Vec<_>>>()?;
    sources.sort_by(|(_, a), (_, b)| a.cmp(b));
    let mut methods = String::new();
    for (source, path) in sources {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if source.contains(&format!("weigh_{name}(")) {
            writeln!(methods, "#include \"weights/{name}.cuh\"\nSOLVE({name})").map_err(io::Error::other)?;
        }
    }
    Ok(methods)
}

/// An element-wise rule as `kernels/optimizer.cu` uses it.
fn structure(rule: &Source) -> String {
    assert!(
        rule.settings.len() <= rules::MAX_SETTINGS && rule.constants.len() <= rules::MAX_CONSTANTS,
        "{}",
        rule.name
    );
    let all = |of: &dyn Fn(usize, &str) -> String, names: &[&str]| {
        names.iter().enumerate().map(|(index, name)| of(index, name)).collect::<String>()
    };
    let field = |_: usize, name: &str| format!("    float {name};\n");
    let reference = |index: usize, name: &str| format!("        float& {name} = state[{index}];\n");
    let read = |from: &'static str| move |index: usize, name: &str| format!("        {name} = {from}[{index}];\n");
    let Source { name, element: [x, g], state, settings, constants, body } = rule;
    [
        format!("struct rule_{name} {{\n    static const int STATES = {};\n", state.len()),
        all(&field, settings),
        all(&field, constants),
        format!("    __device__ rule_{name}(const float* settings, const float* constants) {{\n"),
        all(&read("settings"), settings),
        all(&read("constants"), constants),
        format!("    }}\n    __device__ void update(float& {x}, float* state, float {g}) const {{\n"),
        all(&reference, state),
        format!("#define let float\n        {body}\n#undef let\n    }}\n}};\n"),
    ]
    .concat()
}

/// The kernels of all rules.
fn kernels() -> String {
    let kernels: String = rules::SOURCES.iter().map(|rule| format!(" UPDATE({})", rule.name)).collect();
    format!("#define TABLE_WIDTH {}\n#define UPDATE_RULES{kernels}\n", rules::TABLE_WIDTH)
}
