//! `docs/how-to-extend.md` lists the files that a new policy, optimizer, … touches. What exists already shows whether that
//! is so: a file that names one of its kind has to be touched for the next one.

use crate::code::{has_word, uncommented};
use crate::tree::{File, Tree};

const DOCUMENT: &str = "docs/how-to-extend.md";

/// Something that is there in several kinds, and of which there can be more.
struct Kind {
    /// Heading of its part in the document.
    heading: &'static str,
    /// The most files that a new one may touch, documents and tests aside.
    most: usize,
    /// What is there already.
    instances: &'static [Instance],
    /// Beginnings of paths of sources that use what there is, and that a new one does not touch.
    users: &'static [&'static str],
}

struct Instance {
    /// What stands for `NAME` in the paths of the document.
    name: &'static str,
    /// Words that stand for it in sources, and for nothing else.
    words: &'static [&'static str],
}

const KINDS: &[Kind] = &[
    Kind {
        heading: "Policy",
        most: 3,
        instances: &[
            Instance { name: "fixed", words: &["FixedConfig", "PolicyKind::Fixed"] },
            Instance { name: "random", words: &["RandomConfig", "PolicyKind::Random"] },
        ],
        users: &["baselines/", "esper/src/study/"],
    },
    Kind {
        heading: "Loss or task",
        most: 3,
        instances: &[Instance { name: "regression", words: &["regression", "Regression"] }],
        users: &["baselines/"],
    },
    Kind {
        heading: "Optimizer",
        most: 4,
        instances: &[
            Instance { name: "sgd", words: &["sgd", "Sgd"] },
            Instance { name: "adam_w", words: &["adam_w", "AdamW"] },
        ],
        users: &["baselines/", "candle/", "esper/src/config/defaults/"],
    },
    Kind {
        heading: "Schedule",
        most: 1,
        instances: &[Instance { name: "cosine", words: &["final_ratio"] }],
        users: &[],
    },
    Kind {
        heading: "Aggregation",
        most: 4,
        instances: &[
            Instance { name: "mgda", words: &["mgda", "Mgda"] },
            Instance { name: "upgrad", words: &["upgrad", "UpGrad"] },
        ],
        users: &["baselines/"],
    },
    Kind {
        heading: "Blueprint",
        most: 2,
        instances: &[
            Instance { name: "low_rank", words: &["low_rank", "LowRank"] },
            Instance { name: "depthwise", words: &["Depthwise"] },
        ],
        users: &["export/src/onnx/"],
    },
    Kind {
        heading: "Data format",
        most: 2,
        instances: &[Instance { name: "npy", words: &["npy", "NPZ"] }],
        users: &[],
    },
    Kind {
        heading: "Host",
        most: 3,
        instances: &[
            Instance { name: "cnn1d", words: &["cnn1d", "Cnn1d"] },
            Instance { name: "cnn2d", words: &["cnn2d", "Cnn2d"] },
        ],
        users: &["export/src/onnx/", "baselines/", "esper/src/config/defaults/"],
    },
    Kind {
        heading: "Quality metric",
        most: 3,
        instances: &[Instance { name: "top_k", words: &["TOP5", "top5", "top5_accuracy"] }],
        users: &[],
    },
    Kind {
        heading: "Bench work",
        most: 1,
        instances: &[
            Instance { name: "compile_scale", words: &["compile_scale", "compile-scale"] },
            Instance { name: "gradient_cpu", words: &["gradient_cpu", "gradient-cpu"] },
        ],
        users: &[],
    },
    Kind {
        heading: "CLI command",
        most: 2,
        instances: &[
            Instance { name: "completions", words: &["completions", "CompletionsArgs"] },
            Instance { name: "warm_up", words: &["WarmUpArgs"] },
        ],
        users: &[],
    },
];

/// What is wrong with the lists.
pub(crate) fn violations(tree: &Tree) -> Vec<String> {
    KINDS.iter().flat_map(|kind| check(kind, tree)).collect()
}

fn check(kind: &Kind, tree: &Tree) -> Vec<String> {
    let heading = kind.heading;
    let rows = rows(tree.text_of(DOCUMENT), heading);
    let mut found = Vec::new();
    if rows.is_empty() {
        found.push(format!("{DOCUMENT}: there is no part `## {heading}` with a table of files"));
    }
    if rows.len() > kind.most {
        found.push(format!("{DOCUMENT}: `{heading}` lists {} files, at most {} are allowed", rows.len(), kind.most));
    }
    for instance in kind.instances {
        let listed: Vec<String> = rows.iter().map(|row| row.replace("NAME", instance.name)).collect();
        let is_user = |file: &File| kind.users.iter().any(|user| file.path.starts_with(user));
        let naming = tree.files.iter().filter(|file| is_source(file) && !is_user(file) && names(file, instance));
        let naming: Vec<&str> = naming.map(|file| file.path.as_str()).collect();
        let unlisted = naming.iter().filter(|path| !listed.iter().any(|row| row == *path));
        found.extend(unlisted.map(|path| {
            format!("{path} names `{}`, but `{heading}` in {DOCUMENT} does not list the file", instance.words[0])
        }));
        let unneeded = listed.iter().filter(|row| !naming.contains(&row.as_str()));
        found.extend(
            unneeded.map(|row| {
                format!("`{heading}` in {DOCUMENT} lists {row}, where `{}` is not named", instance.words[0])
            }),
        );
    }
    found
}

/// The paths in the first column of the table below a heading.
fn rows<'a>(document: &'a str, heading: &str) -> Vec<&'a str> {
    let part = document.lines().skip_while(|line| line.strip_prefix("## ") != Some(heading)).skip(1);
    let part = part.take_while(|line| !line.starts_with("## "));
    part.filter_map(|line| line.strip_prefix("| `")?.split_once('`')).map(|(path, _)| path).collect()
}

fn is_source(file: &File) -> bool {
    let is_code = [".rs", ".cu", ".cuh", ".toml", ".html"].iter().any(|end| file.path.ends_with(end));
    let parts = ["testing.rs", "examples", "testkit", "integration-tests", "consumers"];
    is_code && !file.is_test() && !file.path.split('/').any(|part| parts.contains(&part))
}

/// Whether the file names it outside of comments and of the tests at its end, or has its name.
fn names(file: &File, instance: &Instance) -> bool {
    let stem = file.path.rsplit('/').next().and_then(|name| name.split('.').next()).unwrap_or_default();
    if instance.words.contains(&stem) {
        return true;
    }
    if !instance.words.iter().any(|word| file.text.contains(word)) {
        return false;
    }
    let text = file.text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let code = if file.path.ends_with(".toml") {
        text.lines().filter_map(|line| line.split('#').next()).collect::<Vec<_>>().join("\n")
    } else {
        uncommented(text)
    };
    instance.words.iter().any(|word| has_word(&code, word))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: Kind = Kind {
        heading: "Shape",
        most: 2,
        instances: &[Instance { name: "ring", words: &["ring", "Ring"] }],
        users: &["user/"],
    };
    const LIST: &str =
        "## Shape\n\n| file | what |\n|---|---|\n| `a/NAME.rs` | it |\n| `a/mod.rs` | its name |\n## Next";

    #[track_caller]
    fn judge(list: &str, files: &[(&str, &str)], complaints: &[&str]) {
        let file = |(path, text): &(&str, &str)| File { path: (*path).into(), text: (*text).into() };
        let files = files.iter().chain(&[(DOCUMENT, list)]).map(file).collect();
        let found = check(&KIND, &Tree { files });
        assert_eq!(found.len(), complaints.len(), "{found:?}");
        for (found, complaint) in found.iter().zip(complaints) {
            assert!(found.contains(complaint), "{found}");
        }
    }

    #[test]
    fn planted_files_that_are_not_listed_are_named_and_counted() {
        let (own, list) = (("a/ring.rs", "struct Ring;"), ("a/mod.rs", "mod ring;"));
        judge(LIST, &[own, list], &[]);
        judge(LIST, &[own, list, ("b.rs", "use a::Ring;")], &["b.rs names `ring`, but `Shape`"]);
        judge(LIST, &[own, list, ("b.rs", r#"match x { "ring" => 1 }"#)], &["b.rs names"]);
        judge(LIST, &[own, list, ("k.cu", "__device__ void ring();")], &["k.cu names"]);
        judge(LIST, &[own, list, ("k/ring.cuh", "__device__ void weigh_ring();")], &["k/ring.cuh names"]);
        judge(LIST, &[own], &["lists a/mod.rs, where `ring` is not named"]);
        judge(LIST, &[own, ("a/mod.rs", "mod rings; // ring")], &["lists a/mod.rs"]);
        judge("## Next", &[], &["there is no part `## Shape`"]);
        let long = LIST.replace("## Next", "| `c.rs` | more |");
        judge(&long, &[own, list, ("c.rs", "ring")], &["lists 3 files, at most 2"]);
    }

    #[test]
    fn tests_and_users_do_not_count() {
        let (own, list) = (("a/ring.rs", "struct Ring;"), ("a/mod.rs", "mod ring;"));
        let tested = "fn f() {}\n\n#[cfg(test)]\nmod tests {\n    use a::Ring;\n}";
        let others =
            [("b.rs", tested), ("b/tests/c.rs", "Ring"), ("user/d.rs", "Ring"), ("e.md", "Ring"), ("f.toml", "# ring")];
        judge(LIST, &[&[own, list], &others[..]].concat(), &[]);
    }
}
