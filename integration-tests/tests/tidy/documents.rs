//! Documents name files that exist, and times only where they are made from results.

use crate::tree::{File, root, walk};

/// Ends of names that a file of this repository has; other paths in documents are those of runs and caches.
const ENDS: &[&str] = &[".rs", ".cu", ".cuh", ".md", ".toml", ".json", ".py", ".lock", ".svg", ".txt", "/"];
/// Where figures of results begin and end, as `baselines::figures` writes them.
const FIGURES: [&str; 2] = ["<!-- figures ", "<!-- /figures -->"];
const UNITS: &[&str] = &["µs", "ms", "GB/s"];

fn is_document(file: &File) -> bool {
    let path = file.path.as_str();
    ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"].contains(&path)
        || (path.starts_with("docs/") && path.ends_with(".md"))
}

/// The lines outside of blocks of code and of templates of figures.
fn prose(file: &File) -> Vec<(usize, &str)> {
    let (mut is_code, mut is_template) = (false, false);
    let lines = file.text.lines().enumerate().map(|(index, line)| (index + 1, line));
    lines
        .filter(|(_, line)| {
            let is_fence = line.trim_start().starts_with("```");
            is_code ^= is_fence;
            let is_shown = !is_code && !is_fence && !is_template;
            is_template = (is_template || line.starts_with(FIGURES[0])) && *line != "-->";
            is_shown
        })
        .collect()
}

/// Links and names in code type that no file has. `paths` are all files of the repository; a path in code type may be the
/// end of one.
pub(crate) fn dead_path(file: &File, paths: &[String]) -> Option<String> {
    if !is_document(file) {
        return None;
    }
    let folder = file.path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let exists = |path: &str| {
        let path = path.trim_end_matches('/');
        paths.iter().any(|known| known == path || known.strip_prefix(path).is_some_and(|rest| rest.starts_with('/')))
    };
    let is_part = |path: &str| {
        paths.iter().any(|known| format!("/{known}/").contains(&format!("/{}/", path.trim_end_matches('/'))))
    };
    for (number, line) in prose(file) {
        let links = line.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next());
        let links = links.filter(|link| !link.is_empty() && !link.contains("://"));
        let dead_link = links.map(|link| joined(folder, link)).find(|path| !exists(path));
        let names = line.split('`').skip(1).step_by(2).filter(|name| {
            let is_path = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/._-".contains(&byte));
            let is_pattern = name.contains("NAME");
            let is_here = name.trim_end_matches('/').contains('/') && !name.starts_with('.') && !is_pattern;
            is_path && is_here && ENDS.iter().any(|end| name.ends_with(end))
        });
        let dead_name = names.map(str::to_owned).find(|name| !is_part(name));
        if let Some(path) = dead_link.or(dead_name) {
            return Some(format!("{}:{number}: there is no `{path}` in this repository", file.path));
        }
    }
    None
}

/// The link of a document in `folder`, from the root.
fn joined(folder: &str, link: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in link.split('/') {
        match part {
            ".." => drop(parts.pop()),
            "." => {}
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// A time or a rate that somebody typed. Limits of the program, which are no results, stand in `docs/telemetry.md`, and bars in
/// `docs/requirements.md`.
pub(crate) fn typed_figure(file: &File) -> Option<String> {
    if !is_document(file) || ["docs/telemetry.md", "docs/requirements.md"].contains(&file.path.as_str()) {
        return None;
    }
    let mut is_made = false;
    prose(file).into_iter().find_map(|(number, line)| {
        is_made = (is_made || line.starts_with(FIGURES[0])) && line != FIGURES[1];
        let words: Vec<&str> = line.split_whitespace().collect();
        let found = words.windows(2).find(|pair| {
            pair[0].ends_with(|end: char| end.is_ascii_digit())
                && UNITS.contains(&pair[1].trim_end_matches(|end: char| ".,;:)".contains(end)))
        });
        let [value, unit] = found.filter(|_| !is_made)? else { return None };
        Some(format!(
            "{}:{number}: `{value} {unit}` was typed; take it from a result with `{}…` (see baselines/src/figures.rs)",
            file.path, FIGURES[0]
        ))
    })
}

/// All files of the repository, as documents name them.
pub(crate) fn paths() -> Vec<String> {
    let mut found = Vec::new();
    walk(root(), "", &mut |path| found.push(path.to_owned()));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(text: &str) -> File {
        File { path: "docs/a/b.md".into(), text: text.into() }
    }

    #[track_caller]
    fn check(found: Option<String>, complaint: Option<&str>) {
        match (&found, complaint) {
            (None, None) => {}
            (Some(found), Some(complaint)) => assert!(found.contains(complaint), "{found}"),
            _ => panic!("{found:?}, expected {complaint:?}"),
        }
    }

    #[test]
    fn planted_dead_paths_are_named() {
        let paths = ["docs/a/c.md", "x/src/y/mod.rs", "x/src/z.rs"].map(str::to_owned);
        for (text, complaint) in [
            ("[c](c.md) [c](c.md#part) [up](../../x/src) [here](#b) [out](https://a.b/c.rs)", None),
            ("one\n[d](d.md)", Some("docs/a/b.md:2: there is no `docs/a/d.md`")),
            ("[x](x/src/z.rs)", Some("no `docs/a/x/src/z.rs`")),
            ("`x/src/y/` `y/mod.rs` `src/z.rs` `runs/report.html` `a / b` `x::y`", None),
            ("`x/src/y.rs`", Some("no `x/src/y.rs`")),
            ("`rc/z.rs`", Some("no `rc/z.rs`")),
            ("`x/src/NAME.rs`", None),
            ("```text\n`x/src/y.rs`\n```", None),
            ("<!-- figures a.json\n[d](d.md)\n-->\n[c](c.md)\n<!-- /figures -->", None),
            ("<!-- figures a.json\n-->\n[d](d.md)\n<!-- /figures -->", Some("b.md:3: there is no `docs/a/d.md`")),
        ] {
            check(dead_path(&document(text), &paths), complaint);
        }
    }

    #[test]
    fn planted_times_are_named() {
        for (text, complaint) in [
            ("a step takes 5 µs.", Some("docs/a/b.md:1: `5 µs.` was typed")),
            ("| 1.5 ms |", Some("`1.5 ms` was typed")),
            ("medians in µs, 5 steps, µs 5", None),
            ("<!-- figures a.json\n{a} ms\n-->\n5 ms\n<!-- /figures -->", None),
            ("<!-- figures a.json\n-->\n<!-- /figures -->\n5 ms", Some("b.md:4")),
            ("```sh\n# 5 ms\n```", None),
        ] {
            check(typed_figure(&document(text)), complaint);
        }
    }
}
