//! Templates over a result that was made up, and the documents of this repository.

use std::collections::BTreeMap;
use std::fs;

use leyline::clock::SystemClock;

use super::*;
use crate::environment::Environment;
use crate::measure::Measurement;

fn folder() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let values = [("a.step", vec![1.0, 2.0, 9.0]), ("b.step", vec![1_234.5]), ("c.over", vec![-0.012_345])];
    let measure = |(name, values): (&str, Vec<f64>)| (name.to_owned(), Measurement::of("us", values).unwrap());
    let mut result = BenchResult {
        schema: crate::result::SCHEMA,
        name: "one".to_owned(),
        command: String::new(),
        notes: String::new(),
        environment: Environment { cpu: Some("A Processor".to_owned()), ..Environment::detect(&SystemClock::new()) },
        config: BTreeMap::from([("torch".to_owned(), "2.11".to_owned())]),
        measurements: values.into_iter().map(measure).collect(),
        metrics: Vec::new(),
    };
    result.write(dir.path()).unwrap();
    result.name = "two".to_owned();
    result.measurements.retain(|name, _| name == "a.step");
    result.write(dir.path()).unwrap();
    dir
}

fn rendered(template: &str) -> Result<String, (usize, String)> {
    let text = format!("before\n<!-- figures one.json two.json\n{template}\n-->\nold\n<!-- /figures -->\nafter\n");
    let rendered = render(&text, folder().path())?;
    let (head, rest) = rendered.split_once("-->\n").unwrap();
    assert_eq!(head, format!("before\n<!-- figures one.json two.json\n{template}\n"));
    Ok(rest.strip_suffix("\n<!-- /figures -->\nafter\n").unwrap().to_owned())
}

#[track_caller]
fn check(template: &str, expected: &str) {
    assert_eq!(rendered(template), Ok(expected.to_owned()), "{template}");
}

#[track_caller]
fn check_error(template: &str, complaint: &str) {
    let (line, message) = rendered(template).unwrap_err();
    assert!(line == 3 && message.contains(complaint), "{template}: {line}: {message}");
}

#[test]
fn expressions_become_numbers_as_documents_write_them() {
    check("plain text", "plain text");
    check("{a.step} and {a.step@max}, {a.step@n}", "2 and 9, 3");
    check("{b.step} {b.step .1} {b.step * 1000 .0}", "1 234 1 234.5 1 234 500");
    check("{c.over} {c.over .2} {a.step +.1}", "−0.0123 −0.01 +2.0");
    check("{b.step / a.step .2} {b.step - 2:a.step@max .0}", "617.25 1 226");
    check("{max *.step .0} {min *.step@min} {sum *.step .1} {count *}", "1 234 1 1 236.5 3");
    check("{d.step .1 ?} {a.step .1 ?}", "– 2.0");
    check("{env 2:cpu}, {config torch}", "A Processor, 2.11");
    check("{a.step / 3} {a.step / 0.021} {a.step * 5000 / 3}", "0.667 95.2 3 333");
}

#[test]
fn a_line_is_repeated_for_each_list_before_it() {
    check(
        "| head |\n% first; a\n% second; b\n| $1 | {$2.step .0} |\nend",
        "| head |\n| first | 2 |\n| second | 1 234 |\nend",
    );
}

#[test]
fn what_cannot_be_filled_in_is_named_with_its_line() {
    check_error("{d.step}", "{d.step}: one has no `d.step`");
    check_error("{2:b.step}", "two has no `b.step`");
    check_error("{3:a.step}", "there is no file 3");
    check_error("{a.step@mean}", "expected one of median");
    check_error("{a.step % b.step}", "expected one of / * + -");
    check_error("{a.step / 0}", "is no figure");
    check_error("{*.step}", "2 fit");
    check_error("{a.step", "is missing after a.step");
    check_error("{env shoe_size}", "expected one of cpu");
    for text in
        ["<!-- figures one.json\n", "<!-- figures one.json\n-->\n", "<!-- figures none.json\n-->\n<!-- /figures -->\n"]
    {
        let (line, message) = render(text, folder().path()).unwrap_err();
        assert!(line == 1 && (message.contains("is missing") || message.contains("none.json")), "{message}");
    }
}

#[test]
fn a_planted_difference_is_found_and_a_second_look_finds_none() {
    let dir = folder();
    fs::create_dir(dir.path().join("docs")).unwrap();
    for name in ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"] {
        fs::write(dir.path().join(name), "no figures\n").unwrap();
    }
    let planted = dir.path().join("docs/gpu.md");
    fs::write(&planted, "<!-- figures one.json\n{a.step} us\n-->\n78 us\n<!-- /figures -->\n").unwrap();
    let found = stale(dir.path()).unwrap();
    assert_eq!((found.len(), &found[0].path), (1, &planted));
    assert_eq!(found[0].difference, "line 4: `78 us` should be `2 us`");
    fs::write(&planted, &found[0].text).unwrap();
    assert_eq!(stale(dir.path()).unwrap(), []);
    fs::write(&planted, "<!-- figures one.json\n{lost}\n-->\n<!-- /figures -->\n").unwrap();
    assert!(stale(dir.path()).unwrap_err().to_string().starts_with("docs/gpu.md:2: {lost}: one has no"));
}

#[test]
fn the_documents_say_what_the_committed_results_say() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let found = stale(root).unwrap();
    let lines: Vec<String> =
        found.iter().map(|stale| format!("{}: {}", stale.path.display(), stale.difference)).collect();
    assert!(lines.is_empty(), "`esper bench figures` mends this:\n{}", lines.join("\n"));
}
