//! Compares the public items of the library crates with the record in `docs/api/`, or writes it anew: `.ci/public-items/run`,
//! `.ci/public-items/run --write`. Reads what rustdoc wrote as JSON.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::{env, fs};

use serde_json::Value;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Libraries that promise nothing to others: parts of the command and of the build.
const INTERNAL: &[&str] = &["esper", "baselines", "kernel-build", "integration-tests"];
const RECORD: &str = "docs/api";

fn main() -> Result<ExitCode> {
    let write = match env::args().skip(1).collect::<Vec<_>>().as_slice() {
        [] => false,
        [flag] if flag == "--write" => true,
        _ => return Err("expected no argument, or --write".into()),
    };
    let metadata = metadata()?;
    let documents = Path::new(metadata["target_directory"].as_str().ok_or("no target directory")?).join("doc");
    let root = Path::new(metadata["workspace_root"].as_str().ok_or("no workspace")?);
    let mut differs = false;
    let mut recorded = records(&root.join(RECORD))?;
    for krate in libraries(&metadata) {
        let items = items(&documents.join(format!("{}.json", krate.replace('-', "_"))))?;
        let path = root.join(RECORD).join(format!("{krate}.txt"));
        recorded.remove(&path);
        if write {
            fs::create_dir_all(root.join(RECORD))?;
            fs::write(&path, items.iter().map(|item| format!("{item}\n")).collect::<String>())?;
            println!("{krate}: {} public items", items.len());
            continue;
        }
        let text = fs::read_to_string(&path).unwrap_or_default();
        let changes = changes(&text.lines().map(str::to_owned).collect(), &items);
        changes.iter().for_each(|change| println!("{krate}: {change}"));
        differs |= !changes.is_empty();
    }
    for path in recorded {
        println!("{}: there is no such library", path.display());
        differs = true;
    }
    if differs {
        println!(
            "The public items are not those of {RECORD}. What was removed breaks those who use it: CHANGELOG.md says what they \
             do instead. If all is meant: .ci/public-items/run --write"
        );
    }
    Ok(if differs { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn metadata() -> Result<Value> {
    let output =
        Command::new(env!("CARGO")).args(["metadata", "--format-version", "1", "--no-deps", "--offline"]).output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Names of the packages whose libraries are for others.
fn libraries(metadata: &Value) -> Vec<String> {
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let names = packages.filter_map(|package| package["name"].as_str());
    names.filter(|name| !INTERNAL.contains(name)).map(str::to_owned).collect()
}

/// The files of the record.
fn records(folder: &Path) -> Result<BTreeSet<PathBuf>> {
    if !folder.exists() {
        return Ok(BTreeSet::new());
    }
    fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect()
}

/// One line per public item, ordered; implementations that the compiler or a derive adds are left out.
fn items(json: &Path) -> Result<BTreeSet<String>> {
    let builder = public_api::Builder::from_rustdoc_json(json);
    let api = builder.omit_blanket_impls(true).omit_auto_trait_impls(true).omit_auto_derived_impls(true).build();
    let api = api.map_err(|error| format!("{}: {error}", json.display()))?;
    Ok(api.items().map(ToString::to_string).collect())
}

/// What differs, what was removed first.
fn changes(recorded: &BTreeSet<String>, items: &BTreeSet<String>) -> Vec<String> {
    let removed = recorded.difference(items).map(|item| format!("removed or changed: {item}"));
    removed.chain(items.difference(recorded).map(|item| format!("new: {item}"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_planted_change_is_named_from_both_sides() {
        let set = |items: &[&str]| items.iter().map(|item| (*item).to_owned()).collect::<BTreeSet<_>>();
        let before = set(&["pub fn a::f(u8)", "pub struct a::S"]);
        assert_eq!(changes(&before, &before), Vec::<String>::new());
        let after = set(&["pub fn a::f(u16)", "pub struct a::S"]);
        assert_eq!(changes(&before, &after), ["removed or changed: pub fn a::f(u8)", "new: pub fn a::f(u16)"]);
    }
}
