//! The report of whole run folders: what is on the page, what is refused, and what no text can do to it.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::fs;
use std::path::{Path, PathBuf};

use esper::report::{ReportError, Run, RunOutcome, Summary, Versions, render_html, render_text, write};
use esper_disk::StdFs;
use leyline::error::{Error as _, ErrorKind};
use roxmltree::{Document, Node, ParsingOptions};
use serde_json::{Value, json};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// A copy of a fixture that may be spoiled.
fn copy(name: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(fixture(name)).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), dir.path().join(entry.file_name())).unwrap();
    }
    dir
}

fn page(dir: &Path) -> String {
    render_html(&Run::read(dir).unwrap()).unwrap()
}

fn parse(page: &str) -> Document<'_> {
    Document::parse_with_options(page, ParsingOptions { allow_dtd: true, ..ParsingOptions::default() }).unwrap()
}

fn classed<'a, 'input>(root: Node<'a, 'input>, class: &str) -> Vec<Node<'a, 'input>> {
    let has = |node: &Node<'_, '_>| node.attribute("class").is_some_and(|all| all.split(' ').any(|one| one == class));
    root.descendants().filter(has).collect()
}

fn text(node: Node<'_, '_>) -> String {
    node.descendants().filter(Node::is_text).filter_map(|node| node.text()).collect()
}

fn by_id<'a, 'input>(document: &'a Document<'input>, id: &str) -> Node<'a, 'input> {
    document.descendants().find(|node| node.attribute("id") == Some(id)).unwrap_or_else(|| panic!("no element {id}"))
}

/// Changes one file of a run folder as JSON.
fn edit(dir: &Path, file: &str, change: impl FnOnce(&mut Value)) {
    let path = dir.join(file);
    let mut value: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    change(&mut value);
    fs::write(&path, value.to_string()).unwrap();
}

/// Changes one line of metrics as JSON; lines count from 1.
fn edit_epoch(dir: &Path, line: usize, change: impl FnOnce(&mut Value)) {
    let path = dir.join("metrics.jsonl");
    let mut lines: Vec<String> = fs::read_to_string(&path).unwrap().lines().map(str::to_owned).collect();
    let mut value: Value = serde_json::from_str(&lines[line - 1]).unwrap();
    change(&mut value);
    lines[line - 1] = value.to_string();
    fs::write(&path, lines.join("\n") + "\n").unwrap();
}

#[test]
fn every_page_is_well_formed_and_stands_alone() {
    for name in ["completed", "no_seeds", "torn", "empty"] {
        let page = page(&fixture(name));
        let document = parse(&page);
        for node in document.descendants().filter(Node::is_element) {
            assert!(
                !matches!(node.tag_name().name(), "script" | "iframe" | "object" | "img" | "link" | "base"),
                "{name}"
            );
            for attribute in node.attributes() {
                let (key, value) = (attribute.name(), attribute.value());
                assert!(!key.starts_with("on") && key != "style" && key != "src", "{name}: {key}");
                assert!(key != "href" || value.starts_with('#'), "{name}: the page refers to {value}");
            }
        }
        assert!(!page.contains("@import") && !page.contains("://"), "{name}: the page refers to something outside");
        let policy = document.descendants().find(|n| n.attribute("http-equiv") == Some("Content-Security-Policy"));
        assert!(policy.unwrap().attribute("content").unwrap().starts_with("default-src 'none'"), "{name}");
    }
}

#[test]
fn ids_are_unique_and_references_lead_somewhere() {
    let page = page(&fixture("completed"));
    let document = parse(&page);
    let mut ids: Vec<&str> = document.descendants().filter_map(|node| node.attribute("id")).collect();
    ids.sort_unstable();
    let num = ids.len();
    ids.dedup();
    assert_eq!(ids.len(), num, "an id is used twice");
    for node in document.descendants() {
        let linked = node.attribute("href").map(|href| &href[1..]);
        let named = node.attribute("aria-labelledby").unwrap_or_default().split_whitespace();
        for id in linked.into_iter().chain(named) {
            assert!(ids.contains(&id), "nothing has the id {id}");
        }
    }
}

#[test]
fn every_picture_has_a_title_and_a_description() {
    let page = page(&fixture("completed"));
    let document = parse(&page);
    let pictures: Vec<_> = document.descendants().filter(|node| node.attribute("role") == Some("img")).collect();
    assert_eq!(pictures.len(), 9, "lifecycle, six curves and two charts of gradients");
    for picture in pictures {
        let child = |name| picture.children().find(|node| node.has_tag_name(name)).map(text);
        assert!(child("title").is_some_and(|title| title.contains("over epochs")));
        assert!(child("desc").is_some_and(|words| words.contains("epoch ") || words.contains("epochs")), "{picture:?}");
    }
}

#[test]
fn the_page_tells_the_result() {
    let page = page(&fixture("completed"));
    let document = parse(&page);
    let facts: Vec<String> = classed(by_id(&document, "results"), "card").into_iter().map(text).collect();
    let facts: Vec<String> = facts.iter().map(|fact| fact.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    for (fact, expected) in facts.iter().zip([
        "Test accuracy 97.41% loss 0.1593; 270 samples",
        "Validation accuracy 98.54% best 98.54% at epoch 24",
        "Parameters 11,402 +18.6% over the host's 9,610",
        "Seeds 3 1 fossilized, 1 live, 1 pruned",
        "Epochs 24 240 optimizer steps",
        "Wall time 12.4 s 2,709 samples/s",
    ]) {
        assert_eq!(fact, expected);
    }
    assert_eq!(facts.len(), 6);
    assert!(text(by_id(&document, "accuracy")).contains("test 97.41%"), "the test value is marked on the curve");
}

#[test]
fn the_page_shows_the_life_of_every_seed() {
    let page = page(&fixture("completed"));
    let document = parse(&page);
    let bands = classed(by_id(&document, "lifecycle"), "bands")[0];
    let told: Vec<String> = bands
        .descendants()
        .filter(|node| node.has_tag_name("title"))
        .map(text)
        .filter(|title| title.starts_with("seed-2"))
        .collect();
    assert_eq!(
        told,
        [
            "seed-2: germinated from the end of epoch 7 to the end of epoch 8",
            "seed-2: training from the end of epoch 8 to the end of epoch 11",
            "seed-2: blending from the end of epoch 11 to the end of epoch 14",
            "seed-2: pruned from the end of epoch 14 to the end of epoch 15",
            "seed-2: embargoed from the end of epoch 15 to the end of epoch 18",
            "seed-2: resetting from the end of epoch 18 to the end of epoch 19",
        ]
    );
    let markers: Vec<String> = classed(by_id(&document, "loss"), "marker").into_iter().map(text).collect();
    let markers: Vec<&str> = markers.iter().map(|marker| marker.trim()).collect();
    assert_eq!(
        markers,
        [
            "end of epoch 5\ngermination: seed-1",
            "end of epoch 7\ngermination: seed-2",
            "end of epoch 14\nprune: seed-2",
            "end of epoch 16\nfossilization: seed-1",
            "end of epoch 19\ngermination: seed-3",
        ]
    );
    assert!(page.contains("+0.0720 ± 0.0042 in loss"), "the counterfactual gain with its standard error");
    assert!(page.contains("gradient health 1.00, needs 0.90"), "the conditions of a gate");
}

#[test]
fn every_command_is_listed_with_its_reason_and_outcome() {
    let run = Run::read(&fixture("completed")).unwrap();
    let page = render_html(&run).unwrap();
    let document = parse(&page);
    let table = by_id(&document, "commands").descendants().find(|node| node.has_tag_name("tbody")).unwrap();
    let rows: Vec<String> = table.children().filter(|node| node.has_tag_name("tr")).map(text).collect();
    let commands: Vec<_> = run.epochs.iter().flat_map(|report| &report.commands).collect();
    assert_eq!(rows.len(), commands.len());
    for (row, command) in rows.iter().zip(commands) {
        assert!(row.contains(&command.operation) && row.contains(&command.reason), "{row}");
        assert_eq!(row.contains("refused"), command.refused.is_some(), "{row}");
        assert!(command.refused.as_deref().is_none_or(|why| row.contains(why)), "{row}");
    }
}

#[test]
fn what_was_not_measured_is_a_gap_and_a_sentence() {
    let page = page(&fixture("completed"));
    let document = parse(&page);
    let conflicts = by_id(&document, "conflicts");
    assert!(text(conflicts).contains("Not measured in 8 of 24 epochs: those are gaps."));
    let paths = classed(conflicts, "plot")[0].descendants().filter(|node| node.has_tag_name("path"));
    for path in paths {
        assert_eq!(path.attribute("d").unwrap().matches('M').count(), 3, "three pieces with two gaps");
    }
    assert!(text(conflicts).contains("epoch 1\nconflicts: not measured\nhost share: not measured"));
}

#[test]
fn the_gradients_of_every_owner_are_shown() {
    let page = page(&fixture("completed"));
    let document = parse(&page);
    let section = by_id(&document, "gradients");
    let told = text(section);
    assert!(
        told.contains("In epoch 24: 4 of 20 ordered pairs of owners conflict (20.00%), host share 62.81%"),
        "{told}"
    );
    let tables: Vec<_> = section.descendants().filter(|node| node.has_tag_name("tbody")).collect();
    let rows = |table: usize| {
        let rows = tables[table].children().filter(|node| node.has_tag_name("tr"));
        rows.map(|row| text(row.first_element_child().unwrap())).collect::<Vec<_>>()
    };
    assert_eq!(rows(0), ["host", "seed-1", "seed-2", "seed-3"]);
    assert_eq!(rows(1), ["host and seed-3"]);
    assert_eq!(rows(2).len(), 4 + 5 + 5 + 5);
    let shares = by_id(&document, "norm-shares");
    assert_eq!(classed(shares, "line").iter().filter(|node| node.attribute("d") != Some("M1 5H21")).count(), 4);
    assert!(told.contains("Not measured in 8 of 24 epochs: those are gaps."));
    assert!(classed(document.root(), "card").len() > 10 && page.contains("href=\"#gradients\""));
}

#[test]
fn a_run_that_told_no_owners_apart_has_no_section_about_them() {
    let page = page(&fixture("no_seeds"));
    assert!(!page.contains("gradients-title") && !page.contains("#gradients"));
    let shown = render_text(&Run::read(&fixture("no_seeds")).unwrap());
    assert!(!shown.contains("ordered pairs"), "{shown}");
}

#[test]
fn the_terminal_tells_the_gradients_of_every_owner() {
    let shown = render_text(&Run::read(&fixture("completed")).unwrap());
    assert!(shown.contains("  gradients at epoch 24: 4 of 20 ordered pairs of owners conflict (20.00%)"), "{shown}");
    for owner in ["host", "seed-1", "seed-2", "seed-3"] {
        let line = shown.lines().find(|line| line.contains("of norms") && line.contains(owner));
        assert!(
            line.is_some_and(|line| line.contains("attribution") && line.contains("conflicts")),
            "{owner}:\n{shown}"
        );
    }
}

#[test]
fn a_run_without_seeds_has_a_whole_page() {
    let page = page(&fixture("no_seeds"));
    let document = parse(&page);
    assert!(text(by_id(&document, "lifecycle")).contains("No seed germinated in this run"));
    assert!(text(by_id(&document, "commands")).contains("The policy gave no command."));
    assert_eq!(classed(by_id(&document, "loss"), "plot").len(), 1);
    assert!(classed(document.root(), "marker").is_empty());
}

#[test]
fn what_the_policy_waited_for_is_told_where_nothing_germinated() {
    let dir = copy("no_seeds");
    let shown = render_text(&Run::read(dir.path()).unwrap());
    assert!(shown.contains("none germinated: the policy gave no reason"), "{shown}");
    edit_epoch(dir.path(), 1, |epoch| {
        epoch["waiting"] = json!([{"rule": "improving", "detail": "2 of 3 <b>epochs</b>"}]);
    });
    let shown = render_text(&Run::read(dir.path()).unwrap());
    for part in
        ["none germinated: improving (1 epoch)", "waited: improving (1 epoch), last at epoch 1: 2 of 3 <b>epochs"]
    {
        assert!(shown.contains(part), "{part} is missing:\n{shown}");
    }
    let page = page(dir.path());
    let document = parse(&page);
    assert!(text(by_id(&document, "results")).contains("none germinated: improving (1 epoch)"));
    assert!(text(by_id(&document, "commands")).contains("2 of 3 <b>epochs</b>"));
}

#[test]
fn memory_is_listed_by_part_where_it_was_measured() {
    let dir = copy("completed");
    assert!(!render_text(&Run::read(dir.path()).unwrap()).contains("memory"));
    assert!(!page(dir.path()).contains("memory-title"));
    edit(dir.path(), "summary.json", |summary| {
        summary["memory"] = json!({"gradients": 512, "moments": 3 << 20, "<b>": 2048});
    });
    let shown = render_text(&Run::read(dir.path()).unwrap());
    let lines: Vec<&str> = shown.lines().filter_map(|line| line.trim().strip_prefix("memory: ")).collect();
    let words: Vec<Vec<&str>> = lines.iter().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(words, [["moments", "3.0", "MiB"], ["<b>", "2.0", "KiB"], ["gradients", "512", "B"]]);
    let page = page(dir.path());
    let listed = text(by_id(&parse(&page), "memory"));
    let listed = listed.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(listed.ends_with("moments 3.0 MiB <b> 2.0 KiB gradients 512 B"), "{listed}");
}

#[test]
fn a_run_without_epochs_has_a_page_that_says_so() {
    let page = page(&fixture("empty"));
    let document = parse(&page);
    assert!(text(classed(document.root(), "note")[0]).contains("No epoch was completed yet"));
    assert!(classed(document.root(), "plot").is_empty());
    assert!(text(by_id(&document, "provenance")).contains("fresh-0003"));
}

#[test]
fn a_torn_last_line_is_left_out_with_a_note() {
    let run = Run::read(&fixture("torn")).unwrap();
    assert_eq!(run.epochs.len(), 8);
    for shown in [render_html(&run).unwrap(), render_text(&run)] {
        assert!(shown.contains("metrics.jsonl ends in the middle of line 9"), "{shown}");
        assert!(shown.contains("unfinished"), "{shown}");
    }
}

#[test]
fn a_last_line_that_only_lacks_its_line_break_is_whole() {
    let dir = copy("no_seeds");
    let path = dir.path().join("metrics.jsonl");
    fs::write(&path, fs::read_to_string(&path).unwrap().trim_end()).unwrap();
    let run = Run::read(dir.path()).unwrap();
    assert_eq!((run.epochs.len(), run.notes.len()), (6, 0));
}

#[test]
fn a_summary_that_knows_more_epochs_than_the_metrics_is_noted() {
    let dir = copy("no_seeds");
    edit(dir.path(), "summary.json", |summary| summary["epochs"] = 9.into());
    let notes = Run::read(dir.path()).unwrap().notes;
    assert!(notes.len() == 1 && notes[0].contains("9 epochs") && notes[0].contains("ends at epoch 6"), "{notes:?}");
}

#[track_caller]
fn check_refused(spoil: impl FnOnce(&Path), kind: ErrorKind, parts: &[&str]) {
    let dir = copy("completed");
    spoil(dir.path());
    let error = Run::read(dir.path()).unwrap_err();
    assert_eq!(error.kind(), kind, "{error}");
    for part in parts {
        assert!(error.to_string().contains(part), "`{error}` does not say `{part}`");
    }
    assert!(!error.to_string().contains('\u{1b}'), "{error:?}");
}

#[test]
fn a_folder_that_is_no_run_is_refused() {
    for file in ["run.json", "config.toml"] {
        check_refused(
            |dir| fs::remove_file(dir.join(file)).unwrap(),
            ErrorKind::Io,
            &[file, "is missing", "expected a folder that `esper train` wrote"],
        );
    }
    let missing = Run::read(Path::new("no/such/folder")).unwrap_err();
    assert!(matches!(missing, ReportError::NotARun { .. }), "{missing}");
}

#[test]
fn a_file_of_more_bytes_than_a_run_writes_is_refused_before_it_is_read() {
    for file in ["run.json", "config.toml", "summary.json", "metrics.jsonl"] {
        let dir = copy("completed");
        fs::File::create(dir.path().join(file)).unwrap().set_len(1 << 40).unwrap();
        let error = Run::read(dir.path()).unwrap_err();
        assert!(error.to_string().contains(file), "{error}");
        let why = std::error::Error::source(&error).expect("a reason").to_string();
        assert_eq!(why, "expected at most 1073741824 bytes");
    }
}

#[test]
fn damage_is_named_with_file_and_line() {
    let spoil_line = |line: usize, key: &'static str, value: Value| {
        move |dir: &Path| edit_epoch(dir, line, |epoch| epoch[key] = value)
    };
    let nan = "a number is null, which stands for NaN or infinity; expected a finite number";
    check_refused(spoil_line(7, "gradient_norm", Value::Null), ErrorKind::Corrupt, &["metrics.jsonl:7:", nan]);
    check_refused(
        |dir| edit_epoch(dir, 3, |epoch| epoch["validation"]["loss"] = Value::Null),
        ErrorKind::Corrupt,
        &["metrics.jsonl:3:", nan],
    );
    check_refused(spoil_line(4, "surprise", 1.into()), ErrorKind::Corrupt, &["metrics.jsonl:4:", "surprise"]);
    check_refused(spoil_line(5, "epoch", 2.into()), ErrorKind::Corrupt, &["metrics.jsonl:5:", "epoch 2 after epoch 4"]);
    check_refused(
        |dir| fs::write(dir.join("metrics.jsonl"), "{}\n{}\n").unwrap(),
        ErrorKind::Corrupt,
        &["metrics.jsonl:1:", "missing field"],
    );
    check_refused(
        |dir| fs::write(dir.join("metrics.jsonl"), b"\xff\xfe\n").unwrap(),
        ErrorKind::Corrupt,
        &["metrics.jsonl:1:"],
    );
    check_refused(
        |dir| fs::write(dir.join("summary.json"), "{\n  \"epochs\": \"many\"\n}").unwrap(),
        ErrorKind::Corrupt,
        &["summary.json:2:"],
    );
    check_refused(|dir| fs::write(dir.join("run.json"), "").unwrap(), ErrorKind::Corrupt, &["run.json:1:", "EOF"]);
    check_refused(
        |dir| fs::write(dir.join("config.toml"), b"a = 1\nb = \"\xff\"\n").unwrap(),
        ErrorKind::Corrupt,
        &["config.toml:2:6: not UTF-8"],
    );
}

/// Texts that would do something where they are not escaped.
const HOSTILE: &[&str] = &[
    "<script>alert(1)</script>",
    "\"><img src=x onerror=alert(1)>",
    "' onmouseover='alert(1)",
    "</style><script>alert(1)</script>",
    "</title></svg><script>alert(1)</script>",
    "]]><script>alert(1)</script>",
    "<!-- --><b>",
    "&lt;script&gt;&amp;",
    "{{ 7 * 7 }}{% include \"x\" %}",
    "javascript:alert(1)",
    "\u{1b}]0;owned\u{7}\u{0}\u{202e}",
];

#[test]
fn no_text_of_a_run_can_become_markup() {
    let count = |page: &str| parse(page).descendants().filter(Node::is_element).count();
    let spoil = |text: &str| {
        let dir = copy("completed");
        edit(dir.path(), "run.json", |run| {
            for key in ["device", "resume_command", "reproduce_command"] {
                run[key] = text.into();
            }
            run["data"]["name"] = text.into();
            run["data"]["digest"] = text.into();
            for key in ["esper", "rustc", "target", "git_commit"] {
                run["versions"][key] = text.into();
            }
        });
        edit(dir.path(), "summary.json", |summary| {
            summary["out"] = text.into();
            summary["resumed_from"] = text.into();
        });
        fs::write(dir.path().join("config.toml"), text).unwrap();
        edit_epoch(dir.path(), 12, |epoch| {
            let command = epoch["commands"].as_array_mut().unwrap().last_mut().unwrap();
            for key in ["operation", "reason", "refused"] {
                command[key] = text.into();
            }
            for seed in epoch["seeds"].as_array_mut().unwrap() {
                seed["last_gate"]["failed"] = vec![text].into();
                seed["last_gate"]["met"] = vec![text].into();
            }
        });
        edit_epoch(dir.path(), 14, |epoch| epoch["transitions"][0]["reason"] = text.into());
        edit_epoch(dir.path(), 24, |epoch| epoch["conflict"]["owners"][0]["layers"][0]["layer"] = text.into());
        page(dir.path())
    };
    let harmless = count(&spoil("harmless"));
    for text in HOSTILE {
        let page = spoil(text);
        assert_eq!(count(&page), harmless, "{text:?} changed the structure of the page");
        assert!(!page.contains(['\u{1b}', '\u{7}', '\u{0}', '\u{202e}']), "{text:?}");
        let shown = text.replace(['\u{1b}', '\u{7}', '\u{0}', '\u{202e}'], "");
        let document = parse(&page);
        let pre = document.descendants().find(|node| node.has_tag_name("pre")).unwrap();
        assert_eq!(pre.text(), Some(shown.as_str()), "a reader sees the text as it is");
    }
}

#[test]
fn an_id_that_could_be_markup_is_not_even_read() {
    check_refused(
        |dir| edit_epoch(dir, 5, |epoch| epoch["conflict"]["owners"][1]["owner"] = "<b>\u{1b}[2J".into()),
        ErrorKind::Corrupt,
        &["metrics.jsonl:5:", "<b>[2J"],
    );
    for key in ["slot", "blueprint", "seed_id"] {
        check_refused(
            |dir| edit_epoch(dir, 6, |epoch| epoch["seeds"][0][key] = "<b>\u{1b}[2J".into()),
            ErrorKind::Corrupt,
            &["metrics.jsonl:6:", "<b>[2J"],
        );
    }
    check_refused(
        |dir| edit(dir, "run.json", |run| run["run_id"] = "../<b>".into()),
        ErrorKind::Corrupt,
        &["run.json:1:", "is not a run id"],
    );
}

#[test]
fn no_template_switches_escaping_off() {
    let templates = Path::new(env!("CARGO_MANIFEST_DIR")).join("templates/report");
    let mut num = 0;
    for entry in fs::read_dir(templates).unwrap() {
        let path = entry.unwrap().path();
        let text = fs::read_to_string(&path).unwrap().replace(' ', "");
        assert!(!text.contains("|safe") && !text.contains("autoescape"), "{}", path.display());
        num += 1;
    }
    assert!(num > 3, "the templates have moved");
}

#[test]
fn the_page_is_written_over_an_earlier_one_and_no_other_file_is_left() {
    let dir = copy("completed");
    fs::write(dir.path().join("report.html"), "old").unwrap();
    let path = write(&StdFs, dir.path()).unwrap();
    assert_eq!(path, dir.path().join("report.html"));
    assert_eq!(fs::read_to_string(&path).unwrap(), page(&fixture("completed")));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 5);
}

#[test]
fn a_refused_run_leaves_the_earlier_page_alone() {
    let dir = copy("completed");
    fs::write(dir.path().join("report.html"), "old").unwrap();
    edit_epoch(dir.path(), 1, |epoch| epoch["wall_s"] = Value::Null);
    write(&StdFs, dir.path()).unwrap_err();
    assert_eq!(fs::read_to_string(dir.path().join("report.html")).unwrap(), "old");
}

#[test]
fn the_terminal_gets_the_same_facts() {
    let shown = render_text(&Run::read(&fixture("completed")).unwrap());
    for part in
        ["digits-0007: completed", "97.41%", "1 fossilized, 1 live, 1 pruned", "mlp_small in hidden", "± 0.0042"]
    {
        assert!(shown.contains(part), "{part} is missing:\n{shown}");
    }
    assert!(shown.chars().all(|c| c == '\n' || !c.is_control()));
}

#[test]
fn what_was_not_measured_is_no_number_in_the_terminal() {
    let shown = render_text(&Run::read(&fixture("empty")).unwrap());
    assert!(shown.contains("not measured") && !shown.contains("0.00%") && !shown.contains(" -0"), "{shown}");
}

#[test]
fn a_summary_survives_its_file() {
    let text = fs::read_to_string(fixture("completed").join("summary.json")).unwrap();
    let summary: Summary = serde_json::from_str(&text).unwrap();
    assert_eq!(summary.outcome, RunOutcome::Completed);
    let again: Summary = serde_json::from_str(&serde_json::to_string(&summary).unwrap()).unwrap();
    assert_eq!(again, summary);
    assert!(!serde_json::to_string(&summary).unwrap().contains('\n'), "it is one line of `esper train --json`");
}

#[test]
fn a_build_knows_its_version_and_its_target() {
    let versions = Versions::of_this_build();
    assert_eq!(versions.esper, env!("CARGO_PKG_VERSION"));
    assert!(versions.target.contains(std::env::consts::ARCH));
}

/// Contrast of text and ground, WCAG 2.2, 1.4.3: at least 4.5 to 1.
#[test]
fn text_stands_out_from_its_ground_in_light_and_in_dark() {
    let css = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("templates/report/style.css")).unwrap();
    let (light, rest) = css.split_once("@media (prefers-color-scheme: dark)").unwrap();
    let dark = rest.split_once("* {").unwrap().0;
    let color = |theme: &str, name: &str| {
        let start = theme.find(&format!("--{name}: #")).unwrap_or_else(|| panic!("no color {name}")) + name.len() + 5;
        [0, 2, 4].map(|at| f64::from(u8::from_str_radix(&theme[start + at..start + at + 2], 16).unwrap()) / 255.0)
    };
    let luminance = |rgb: [f64; 3]| {
        let linear = rgb.map(|c| if c <= 0.04045 { c / 12.92 } else { ((c + 0.055) / 1.055).powf(2.4) });
        0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    };
    let text = [
        ("ink", "page"),
        ("ink", "card"),
        ("muted", "page"),
        ("muted", "card"),
        ("accent", "page"),
        ("good", "card"),
        ("bad", "card"),
        ("note-ink", "note"),
        ("on-light", "germinated"),
        ("on-light", "training"),
        ("on-dark", "blending"),
        ("on-light", "holding"),
        ("on-dark", "fossilized"),
        ("on-pruned", "pruned"),
        ("ink", "embargoed"),
        ("ink", "resetting"),
        ("ink", "dormant"),
    ];
    let lines = ["c1", "c2", "c3", "c4", "c5", "c6"].map(|color| (color, "card"));
    for (theme, css) in [("light", light), ("dark", dark)] {
        for (pairs, least) in [(&text[..], 4.5), (&lines[..], 3.0)] {
            for (front, back) in pairs {
                let (a, b) = (luminance(color(css, front)), luminance(color(css, back)));
                let contrast = (a.max(b) + 0.05) / (a.min(b) + 0.05);
                assert!(contrast >= least, "{theme}: {front} on {back} has {contrast:.2} to 1");
            }
        }
    }
}
